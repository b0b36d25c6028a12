"""The real `openai` client against a real server: chat, streams, sessions, errors, owners."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

import dspy
import openai
from server_cases import TOKEN, Served, Told, echo, serving, until

from hybridagi_steps import StepMemory, StepRunner
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.server.openai_form import Reading
from hybridagi_steps.server.services import Conversations, End
from hybridagi_steps.server.sse import Frame
from hybridagi_steps.server.tokens import Caller, TokenScope
from hybridagi_steps.testing import ScriptedLM

OWN = frozenset({TokenScope.READ, TokenScope.APPEND})
CALLERS = {f"the-test-token-of-{user}": Caller(OWN, user) for user in ("ann", "bob")}


_clients: list[openai.OpenAI] = []


@pytest.fixture(autouse=True)
def close_clients() -> Iterator[None]:
    """Let no connection outlive its test."""
    yield
    while _clients:
        _clients.pop().close()


def user(content: Any) -> Any:
    """A message of the user."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Any:
    """A message of the assistant."""
    return {"role": "assistant", "content": content}


def client(served: Served, token: str = TOKEN, retries: int = 0) -> openai.OpenAI:
    """The client, as people make it."""
    address = served.address + "/v1"
    made = openai.OpenAI(base_url=address, api_key=token, max_retries=retries, timeout=20)
    _clients.append(made)
    return made


def ask(asking: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    """A completion of the program `echo`."""
    return asking.chat.completions.create(model="echo", messages=list(messages), **more)


def text(completion: Any) -> str:
    """What was answered."""
    return str(completion.choices[0].message.content)


def sessions(served: Served) -> dict[str, list[str]]:
    """Each session's messages."""
    listed = served.client.get("/sessions").json()["sessions"]
    return {
        each["session_id"]: [
            f"{step['role']}: {step['content']}"
            for step in served.client.get(f"/sessions/{each['session_id']}/steps").json()["steps"]
        ]
        for each in listed
    }


@pytest.fixture
def served(memory: StepMemory) -> Iterator[Served]:
    """A server of `echo`, for Ann and Bob, too."""
    with serving(memory, echo, CALLERS) as running:
        yield running


def pays_if_allowed(memory: StepMemory) -> tuple[StepRunner, list[str]]:
    """A program that pays when somebody allows it, and what it paid."""
    paid: list[str] = []

    def pay(amount: str) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    def payer(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return str(messages[-1]["content"])
        function = {"name": "pay", "arguments": '{"amount": "5"}'}
        call = {"id": "call-1", "type": "function", "function": function}
        return {"role": "assistant", "content": "I pay.", "tool_calls": [call]}

    def nobody(_: object) -> None:
        """Leave it open."""

    config = StepRunnerConfig(consent=nobody)
    return StepRunner(payer, memory, tools=[pay], config=config), paid


@pytest.mark.parametrize("stream", [True, False])
def test_a_run_that_pauses_says_what_it_waits_for(memory: StepMemory, stream: bool) -> None:
    runner, paid = pays_if_allowed(memory)
    with serving(memory, runner, CALLERS) as served:
        asked: dict[str, Any] = {"model": "payer", "messages": [user("Pay 5.")]}
        asked["extra_body"] = {"metadata": {"session_id": "till"}}
        if stream:
            chunks = list(client(served).chat.completions.create(stream=True, **asked))
            answer = "".join(each.choices[0].delta.content or "" for each in chunks)
            assert answer.startswith("I pay.\n\n")
            assert chunks[-1].choices[0].finish_reason == "stop"
        else:
            answer = text(client(served).chat.completions.create(**asked))
        assert answer.endswith('call-1: May pay run with {"amount": "5"}?')
        assert paid == []
        events = served.resume("till", {"call-1": True})
    assert events[-1].kind == "run_completed"
    assert paid == ["5"]


class TestAnswers:
    def test_the_program_is_the_model(self, served: Served) -> None:
        [model] = client(served).models.list().data
        assert (model.id, model.object) == ("echo", "model")

    def test_a_model_is_found_by_its_name(self, served: Served) -> None:
        assert client(served).models.retrieve("echo").id == "echo"
        with pytest.raises(openai.NotFoundError, match="known are echo"):
            client(served).models.retrieve("gpt-9")

    def test_without_a_program_there_is_no_model(self, memory: StepMemory) -> None:
        with serving(memory) as served:
            assert client(served).models.list().data == []
            with pytest.raises(openai.InternalServerError, match="--program"):
                ask(client(served), user("Hi"))

    def test_an_answer_is_a_run(self, served: Served) -> None:
        found = ask(client(served), user("Hi"), temperature=0.2, seed=1, max_tokens=9)
        assert text(found) == "You said: Hi"
        assert found.choices[0].finish_reason == "stop"
        assert found.usage is None
        run = served.client.get(f"/runs/{found.id.removeprefix('chatcmpl-')}").json()
        assert run["run"]["session_id"] == found.session_id

    def test_a_streamed_answer_says_the_same(self, served: Served) -> None:
        chunks = list(ask(client(served), user("Hi"), stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "You said: Hi"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in chunks][-2:] == [None, "stop"]
        assert len({c.id for c in chunks}) == 1

    def test_a_stream_ends_with_done(self, served: Served) -> None:
        body = {"model": "echo", "messages": [user("Hi")], "stream": True}
        answer = served.client.post("/v1/chat/completions", json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("\n\ndata: [DONE]\n\n")

    def test_pieces_come_when_they_are_said(self, memory: StepMemory) -> None:
        told = Told()
        with serving(memory, told) as served:
            asking = client(served).chat.completions
            stream = asking.create(model="Told", messages=[user("go")], stream=True)
            said = (c.choices[0].delta.content for c in stream if c.choices[0].delta.content)
            told.say("one ")
            assert next(said) == "one "
            told.say("two")
            assert next(said) == "two"
            told.end()
            assert list(said) == []

    def test_what_it_cost_is_said(self, memory: StepMemory) -> None:
        program = dspy.Predict("question -> answer")
        program.set_lm(ScriptedLM([{"answer": "Paris"}, {"answer": "Rome"}]))
        with serving(memory, program) as served:
            asking = client(served).chat.completions
            whole = asking.create(model="Predict", messages=[user("Where?")])
            options: Any = {"include_usage": True}
            *_, last = asking.create(
                model="Predict", messages=[user("Or?")], stream=True, stream_options=options
            )
            run_id = whole.id.removeprefix("chatcmpl-")
            metrics = served.client.get(f"/runs/{run_id}").json()["metrics"]
        assert text(whole) == "Paris"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == metrics["input_tokens"] > 0
        assert whole.usage.completion_tokens == metrics["output_tokens"] > 0
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.total_tokens > 0

    def test_content_parts_are_taken(self, served: Served) -> None:
        assert "Hi" in text(ask(client(served), user([{"type": "text", "text": "Hi"}])))


class TestSessions:
    def test_who_sends_the_history_goes_on_in_one_session(self, served: Served) -> None:
        asking, talk = client(served), [{"role": "system", "content": "Be short."}]
        for number, word in enumerate(("one", "two", "three")):
            talk.append(user(word))
            if number == 1:
                pieces = ask(asking, *talk, stream=True)
                talk.append(assistant("".join(p.choices[0].delta.content or "" for p in pieces)))
            else:
                talk.append(assistant(text(ask(asking, *talk))))
        [messages] = sessions(served).values()
        assert messages == [f"{each['role']}: {each['content']}" for each in talk]

    def test_an_earlier_answer_as_content_parts_goes_on_in_its_session(
        self, served: Served
    ) -> None:
        asking = client(served)
        first = ask(asking, user("Hi"))
        parts = {"role": "assistant", "content": [{"type": "text", "text": text(first)}]}
        assert ask(asking, user("Hi"), parts, user("So?")).session_id == first.session_id
        [messages] = sessions(served).values()
        assert len(messages) == 4

    def test_two_equal_conversations_are_two_sessions(self, served: Served) -> None:
        asking = client(served)
        first, second = ask(asking, user("Hi")), ask(asking, user("Hi"))
        assert first.session_id != second.session_id
        ahead = [user("Hi"), assistant(text(first))]
        again = ask(asking, *ahead, user("A")).session_id
        other = ask(asking, *ahead, user("B")).session_id
        assert again != other
        assert sessions(served)[again][-2:] == ["user: A", "assistant: You said: A"]
        assert sessions(served)[other][-2:] == ["user: B", "assistant: You said: B"]

    def test_a_conversation_that_is_not_known_begins_with_what_was_said(
        self, served: Served, memory: StepMemory
    ) -> None:
        found = ask(client(served), user("Hi"), assistant("Not from here"), user("So?"))
        [messages] = sessions(served).values()
        assert messages[:2] == ["user: Hi", "assistant: Not from here"]
        steps = memory.repository().store.messages(found.session_id)
        kinds = [((step.metadata or {}).get("source") or {}).get("kind") for step in steps]
        assert kinds == ["client", "client", None, None]

    def test_a_session_that_others_wrote_in_is_left_alone(self, served: Served) -> None:
        asking = client(served)
        first = ask(asking, user("Hi"))
        served.chat(first.session_id, "meanwhile")
        later = ask(asking, user("Hi"), assistant(text(first)), user("So?"))
        assert later.session_id != first.session_id
        assert len(sessions(served)[later.session_id]) == 4

    def test_a_session_can_be_named(self, served: Served) -> None:
        asking, named = client(served), {"session_id": "talk"}
        ask(asking, user("one"), metadata=named)
        found = ask(asking, user("elsewhere"), assistant("no"), user("two"), metadata=named)
        assert found.session_id == "talk"
        assert [each for each in sessions(served)["talk"] if each.startswith("user")] == [
            "user: one",
            "user: two",
        ]

    def test_the_program_is_shown_what_was_said(self, memory: StepMemory) -> None:
        seen: list[Any] = []

        async def echo(messages: list[dict[str, Any]]) -> str:
            seen.append([(each["role"], each["content"]) for each in messages])
            return "so"

        before = [{"role": "system", "content": "Be short."}, user("Hi"), assistant("Yes?")]
        with serving(memory, echo) as served:
            ask(client(served), *before, user("Why?"))
        assert seen == [[(m["role"], m["content"]) for m in (*before, user("Why?"))]]

    def test_the_oldest_conversation_is_forgotten_first(self) -> None:
        known, end = Conversations(most=2), End("s", BranchPosition(1, 2))
        for word in "abc":
            known.keep(None, [("user", word)], end)
        assert [known.take(None, [("user", word)]) for word in "abc"] == [None, end, end]
        assert known.take(None, [("user", "c")]) is None


class TestResponses:
    def test_an_answer_is_a_run(self, served: Served) -> None:
        found = client(served).responses.create(model="echo", input="Hi", temperature=0.2)
        assert (found.output_text, found.status) == ("You said: Hi", "completed")
        assert list(sessions(served).values()) == [["user: Hi", "assistant: You said: Hi"]]

    def test_the_previous_response_goes_on_in_its_session(self, served: Served) -> None:
        asking = client(served).responses
        first = asking.create(model="echo", input="one", instructions="Be short.")
        second = asking.create(model="echo", input="two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        [messages] = sessions(served).values()
        assert messages[0] == "system: Be short."
        assert messages[-2:] == ["user: two", "assistant: You said: two"]
        with pytest.raises(openai.ConflictError, match="went on after this response"):
            asking.create(model="echo", input="three", previous_response_id=first.id)
        assert [*sessions(served).values()] == [messages]

    def test_a_session_can_be_named(self, served: Served) -> None:
        asking, named = client(served).responses, {"session_id": "talk"}
        first = asking.create(model="echo", input="one", metadata=named)
        asking.create(model="echo", input="two", metadata=named, previous_response_id=first.id)
        assert [each for each in sessions(served)["talk"] if each.startswith("user")] == [
            "user: one",
            "user: two",
        ]
        with pytest.raises(openai.UnprocessableEntityError, match="of another session"):
            asking.create(
                model="echo",
                input="three",
                metadata={"session_id": "other"},
                previous_response_id=first.id,
            )

    def test_a_streamed_answer_says_the_same(self, served: Served) -> None:
        with client(served).responses.stream(model="echo", input="Hi") as stream:
            pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert "".join(pieces) == final.output_text == "You said: Hi"

    def test_what_it_cost_is_said(self, memory: StepMemory) -> None:
        program = dspy.Predict("question -> answer")
        program.set_lm(ScriptedLM([{"answer": "Paris"}]))
        with serving(memory, program) as served:
            found = client(served).responses.create(model="Predict", input="Where?")
        assert found.usage is not None
        cost = found.usage
        assert cost.input_tokens > 0 < cost.output_tokens
        assert cost.total_tokens == cost.input_tokens + cost.output_tokens

    def test_a_history_begins_a_session(self, served: Served) -> None:
        parts = [{"type": "input_text", "text": "Hi"}]
        talk: Any = [user(parts), assistant("Not from here"), user("So?")]
        client(served).responses.create(model="echo", input=talk)
        [messages] = sessions(served).values()
        assert messages[:3] == ["user: Hi", "assistant: Not from here", "user: So?"]

    @pytest.mark.parametrize(
        ("asked", "reason"),
        [
            ({"tools": [{"type": "web_search"}]}, "the tools are the program's"),
            ({"previous_response_id": "resp_none"}, "no response of this server"),
            ({"previous_response_id": "chatcmpl-1"}, "no response of this server"),
            ({"input": [{"type": "function_call", "name": "f"}]}, "not 'function_call'"),
            ({"input": [user([{"type": "input_image", "image_url": "x"}])]}, "not 'input_image'"),
            ({"conversation": "conv_1"}, "name the session in `metadata`"),
            ({"background": True}, "read as a stream"),
            ({"input": []}, "the last message is the user's"),
        ],
    )
    def test_what_cannot_be_answered_is_refused(
        self, served: Served, asked: dict[str, Any], reason: str
    ) -> None:
        members: Any = {"model": "echo", "input": "Hi", **asked}
        with pytest.raises(openai.UnprocessableEntityError, match=reason):
            client(served).responses.create(**members)
        assert sessions(served) == {}

    def test_another_users_response_is_refused(self, served: Served) -> None:
        ann, bob = (
            client(served, f"the-test-token-of-{name}").responses for name in ("ann", "bob")
        )
        first = ann.create(model="echo", input="Hi")
        with pytest.raises(openai.PermissionDeniedError, match="another user's"):
            bob.create(model="echo", input="So?", previous_response_id=first.id)
        assert len(ann.create(model="echo", input="So?", previous_response_id=first.id).output) == 1

    def test_a_run_that_fails_is_an_error(self, memory: StepMemory) -> None:
        async def broken(messages: list[dict[str, Any]]) -> str:
            raise ValueError("no such flight")

        with serving(memory, broken) as served:
            asking = client(served).responses
            with pytest.raises(openai.InternalServerError, match="no such flight"):
                asking.create(model="broken", input="Hi")
            events = list(asking.create(model="broken", input="Hi", stream=True))
        assert events[-1].type == "response.failed"


class TestOwners:
    def test_a_token_is_its_users(self, served: Served) -> None:
        anns, bobs = (client(served, token) for token in CALLERS)
        said = ask(anns, user("Hi"))
        owners = served.client.get("/sessions").json()["sessions"]
        assert [each["user_id"] for each in owners] == ["ann"]
        ahead = [user("Hi"), assistant(text(said)), user("So?")]
        assert ask(bobs, *ahead).session_id != said.session_id
        assert ask(anns, *ahead).session_id == said.session_id

    def test_another_users_name_or_session_is_refused(self, served: Served) -> None:
        anns, bobs = (client(served, token) for token in CALLERS)
        session = {"session_id": ask(anns, user("Hi")).session_id}
        before = sessions(served)
        for more in ({"user": "ann"}, {"metadata": session}):
            with pytest.raises(openai.PermissionDeniedError) as refused:
                ask(bobs, user("me too"), **more)
            assert refused.value.code == "NotAllowedError"
            assert refused.value.type == "permission_error"
        assert sessions(served) == before

    def test_without_a_token_nobody_comes_in(self, served: Served) -> None:
        with pytest.raises(openai.AuthenticationError, match="Bearer") as refused:
            client(served, "no-such-token").models.list()
        assert refused.value.type == "authentication_error"


class TestRefusals:
    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"n": 2}, "n"),
            ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
            ({"response_format": {"type": "json_object"}}, "response_format.type"),
            ({"metadata": {"session_id": ".."}}, "metadata.session_id"),
        ],
    )
    def test_what_would_change_the_answer_is_refused(
        self, served: Served, more: dict[str, Any], param: str
    ) -> None:
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            ask(client(served), user("Hi"), **more)
        assert refused.value.param is not None
        assert param.startswith(refused.value.param)
        assert refused.value.type == "invalid_request_error"
        assert "Value error" not in str(refused.value)
        assert sessions(served) == {}

    def test_calls_in_the_history_get_a_sentence(self, served: Served) -> None:
        called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        history = {"role": "assistant", "content": None, "tool_calls": [called]}
        with pytest.raises(openai.UnprocessableEntityError, match="leave calls of tools out"):
            ask(client(served), user("Hi"), history, user("So?"))

    @pytest.mark.parametrize(
        "messages",
        [[], [assistant("Hi")], [user("")], [user(" ")], [{"role": "tool", "content": "x"}]],
    )
    def test_messages_that_ask_nothing_are_refused(self, served: Served, messages: Any) -> None:
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            ask(client(served), *messages)
        assert str(refused.value.param).startswith("messages")
        assert sessions(served) == {}

    def test_a_model_that_is_not_served_is_404(self, served: Served) -> None:
        with pytest.raises(openai.NotFoundError, match="known are echo") as refused:
            client(served).chat.completions.create(model="gpt-9", messages=[user("Hi")])
        assert refused.value.code == "UnknownProgramError"

    def test_errors_elsewhere_stay_problems(self, served: Served) -> None:
        found = served.client.get("/sessions/none/steps")
        assert found.headers["content-type"] == "application/problem+json"
        assert served.client.get("/v1/none").json()["error"]["type"] == "invalid_request_error"


class TestEnds:
    def test_a_run_that_fails_is_an_error_and_not_tried_again(self, memory: StepMemory) -> None:
        asked: list[Any] = []

        async def broken(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
            asked.append(messages)
            yield "Half an "
            raise RuntimeError("no luck")

        runner = StepRunner(broken, memory, config=StepRunnerConfig(max_retries=0))
        with serving(memory, runner) as served:
            asking = client(served, retries=2).chat.completions
            with pytest.raises(openai.InternalServerError, match="no luck") as failed:
                asking.create(model="broken", messages=[user("Hi")])
            assert failed.value.code == "RuntimeError"
            stream = iter(asking.create(model="broken", messages=[user("Yo")], stream=True))
            pieces = [next(stream).choices[0].delta.content for _ in range(2)]
            with pytest.raises(openai.APIError, match="no luck"):
                next(stream)
        assert pieces == ["", "Half an "]
        assert len(asked) == 2

    @pytest.mark.parametrize("streams", [True, False])
    def test_a_client_that_leaves_cancels_nothing(self, memory: StepMemory, streams: bool) -> None:
        told = Told()
        with serving(memory, told) as served:
            asking = client(served).with_options(timeout=1.0).chat.completions
            told.say("a")
            if streams:
                stream: Any = asking.create(model="Told", messages=[user("go")], stream=True)
                next(iter(stream))
                stream.close()
            else:
                with pytest.raises(openai.APITimeoutError):
                    asking.create(model="Told", messages=[user("go")])
            until(lambda: served.services.slots.used == 0)
            told.say("b")
            told.end()
            until(lambda: list(sessions(served).values()) == [["user: go", "assistant: ab"]])

    def test_a_run_that_is_cancelled_is_an_error(self, memory: StepMemory) -> None:
        told = Told()
        with serving(memory, told) as served:
            asking = client(served).chat.completions
            stream: Any = asking.create(model="Told", messages=[user("go")], stream=True)
            run_id = next(iter(stream)).id.removeprefix("chatcmpl-")
            assert served.client.post(f"/runs/{run_id}/cancel").json()["cancelled"] is True
            with pytest.raises(openai.APIError, match="cancelled"):
                list(stream)

    def test_a_busy_server_stores_nothing(self, memory: StepMemory) -> None:
        told = Told()
        with serving(memory, told, max_runs=1) as served:
            asking = client(served).chat.completions
            stream: Any = asking.create(model="Told", messages=[user("go")], stream=True)
            next(iter(stream))
            with pytest.raises(openai.RateLimitError):
                asking.create(model="Told", messages=[user("a"), assistant("b"), user("c")])
            told.end()
            assert len(sessions(served)) == 1

    def test_who_has_too_many_runs_stores_nothing(self, memory: StepMemory) -> None:
        told = Told()
        with serving(memory, told, max_user_runs=1) as served:
            asking = client(served).chat.completions
            stream: Any = asking.create(
                model="Told", messages=[user("go")], stream=True, user="ann"
            )
            next(iter(stream))
            said = [user("a"), assistant("b"), user("c")]
            with pytest.raises(openai.RateLimitError):
                asking.create(model="Told", messages=said, user="ann")
            told.end()
            assert len(sessions(served)) == 1


def frame(number: int, kind: str, step_id: str | None = None, **event: Any) -> Frame:
    """A run's event as a hub keeps it."""
    from hybridagi_steps import StepEvent

    found = StepEvent.model_validate(
        {"type": kind, "run_id": "r", "number": number, "step_id": step_id, **event}
    )
    return Frame(number, found.to_sse().encode(), found.type, step_id)


class TestReading:
    def test_pieces_that_were_forgotten_come_with_their_message(self) -> None:
        snapshot = {"session_id": "s", "role": "assistant", "content": "abcdefghi"}
        reading = Reading()
        said = [
            reading.read(frame(1, "run_started")),
            reading.read(frame(2, "step_delta", "m", delta={"content": "abc"})),
            reading.read(frame(4, "step_delta", "m", delta={"content": "ghi"})),
            reading.read(frame(5, "step_completed", "m", snapshot=snapshot)),
        ]
        assert said == ["", "abc", "", "defghi"]
        assert reading.text == reading.answer == "abcdefghi"

    def test_messages_of_one_turn_are_apart(self) -> None:
        reading = Reading()
        for number, step_id in enumerate("aab", 1):
            reading.read(frame(number, "step_delta", step_id, delta={"content": step_id}))
        assert reading.text == "aa\n\nb"
