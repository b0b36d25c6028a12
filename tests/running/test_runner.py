"""StepRunner: one run of a program as a stream of events, and what it leaves behind."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import pytest
from runner_cases import (
    SEARCHES,
    SyncAgent,
    answering,
    check_stream,
    collected,
    kinds,
    messages,
    run,
    said,
    search,
    snapshots,
    thought,
)

import hybridagi_steps as hs
from hybridagi_steps import AgentStepType, StepEvent, StepEventType, StepMemory, StepMessages
from hybridagi_steps.errors import InvalidMemoryError, InvalidSettingError, SequenceConflictError
from hybridagi_steps.running import streaming
from hybridagi_steps.running.limits import AgentSession, StepRunnerConfig
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.stored_events import stored_events
from hybridagi_steps.testing import ScriptedLM, ToolCall, request_text

QA = "question -> answer"


@pytest.fixture
def unpaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every piece be an event of its own, however fast a script speaks."""
    monkeypatch.setattr(streaming, "PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("unpaced")
def test_a_predictor_streams_its_answer(memory: StepMemory) -> None:
    lm = answering("Paris is the capital of France.")
    events = run(StepRunner(dspy.Predict(QA), memory), "chat", "Capital?", lm)
    check_stream(memory, events)
    assert kinds(events) == ["run_started", "step_completed", "step_completed", "run_completed"]
    deltas = [event for event in events if event.type is StepEventType.STEP_DELTA]
    assert len(deltas) > 2
    assert said(memory, "chat") == [
        ("user", "Capital?"),
        ("assistant", "Paris is the capital of France."),
    ]


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter])
@pytest.mark.parametrize(
    "text",
    ["short", "  padded \n\n lines\n", 'quotes "and" {braces}, [[ brackets', "", "é漢字🎉" * 9],
)
def test_pieces_give_what_is_stored_whatever_the_adapter_and_the_text(
    memory: StepMemory, adapter: Any, text: str
) -> None:
    lm = ScriptedLM([{"reasoning": f"thinking of {text}", "answer": text}])
    with dspy.context(adapter=adapter()):
        events = run(StepRunner(dspy.ChainOfThought(QA), memory), "chat", "Say it", lm)
    check_stream(memory, events)
    assert events[-1].type is StepEventType.RUN_COMPLETED
    assert str(messages(memory, "chat")[1].content).strip() == text.strip()


@pytest.mark.usefixtures("unpaced")
@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter])
def test_an_answer_shows_while_it_is_written(memory: StepMemory, adapter: Any) -> None:
    text = 'He said "no" \n\n and left; ' * 9
    lm = ScriptedLM([{"reasoning": "I think {so}", "answer": text}])
    with dspy.context(adapter=adapter()):
        events = run(StepRunner(dspy.ChainOfThought(QA), memory), "chat", "Say it", lm)
    deltas = [event for event in events if event.type is StepEventType.STEP_DELTA]
    assert len(deltas) > 9
    assert len({event.step_id for event in deltas}) == 1
    assert not any((event.data or {}).get("discarded") for event in deltas)


@pytest.mark.parametrize("program", [dspy.Predict(QA), dspy.ChainOfThought(QA)])
def test_an_answer_that_cannot_be_read_is_asked_for_as_json(
    memory: StepMemory, program: Any
) -> None:
    lm = ScriptedLM(["It is Paris, I think.", '{"reasoning": "r", "answer": "Paris"}'])
    events = run(StepRunner(program, memory), "chat", "Capital?", lm)
    check_stream(memory, events)
    assert said(memory, "chat") == [("user", "Capital?"), ("assistant", "Paris")]
    assert (events[-1].data or {})["metrics"]["llm_calls"] == 2


def test_steps_and_messages_are_linked_and_stored_together(memory: StepMemory) -> None:
    lm = ScriptedLM(SEARCHES)
    events = run(StepRunner(dspy.ReAct(QA, tools=[search]), memory), "chat", "Capital?", lm)
    check_stream(memory, events)
    user, asks, result, answer = messages(memory, "chat")
    assert [step.sequence for step in (user, asks, result, answer)] == [1, 2, 3, 4]
    steps = {str(step.id): step for step in memory.run(str(answer.run_id)).steps}
    assert asks.content == "I look it up"
    assert asks.tool_calls is not None
    assert asks.tool_calls[0]["function"] == {"name": "search", "arguments": '{"query":"x"}'}
    assert result.tool_call_id == asks.tool_calls[0]["id"]
    assert result.content == "result for x"
    assert asks.agent_step_id == result.agent_step_id
    assert asks.metadata == {"agent_step_ids": [result.agent_step_id]}
    assert steps[str(result.agent_step_id)].tool == "search"
    assert steps[str(answer.agent_step_id)].step_type is AgentStepType.ProgramEnd
    assert {step.session_id for step in steps.values()} == {"chat"}
    assert [step.hop for step in steps.values()] == list(range(len(steps)))


@pytest.mark.parametrize("program", [dspy.ReAct(QA, tools=[search]), SyncAgent()])
def test_sync_and_async_programs_leave_the_same_messages(memory: StepMemory, program: Any) -> None:
    events = run(StepRunner(program, memory), "chat", "Capital?", ScriptedLM(SEARCHES))
    check_stream(memory, events)
    assert said(memory, "chat") == [
        ("user", "Capital?"),
        ("assistant", "I look it up"),
        ("tool", "result for x"),
        ("assistant", "Paris"),
    ]


def test_native_tool_calls_of_one_answer_are_one_message(memory: StepMemory) -> None:
    calls = [ToolCall("search", {"query": "a"}), ToolCall("search", {"query": "b"})]
    lm = ScriptedLM([["I look", *calls], [ToolCall("submit", {"answer": "Paris"})]])
    events = run(StepRunner(dspy.ReActV2(QA, tools=[search]), memory), "chat", "Capital?", lm)
    check_stream(memory, events)
    _, asks, first, second, answer = messages(memory, "chat")
    assert [call["id"] for call in asks.tool_calls or []] == [
        first.tool_call_id,
        second.tool_call_id,
    ]
    assert asks.content == "I look"
    assert (first.content, second.content) == ("result for a", "result for b")
    assert answer.content == "Paris"


def test_earlier_turns_reach_the_program_as_messages(memory: StepMemory) -> None:
    lm = ScriptedLM([*SEARCHES, thought("easy", "finish"), {"reasoning": "r", "answer": "Two"}])
    runner = StepRunner(dspy.ReAct(QA, tools=[search]), memory)
    with dspy.context(lm=lm):
        run(runner, "chat", "Capital?")
        run(runner, "chat", "How many?")
    asked = lm.requests[3]
    assert [message.role for message in asked.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert asked.messages[0].text == "Capital?"
    assert asked.messages[3].text == "Paris"
    assert "How many?" in request_text(asked)
    assert "Paris" not in request_text(asked)


class WithPast(dspy.Signature):
    """Answer the traveller."""

    past: StepMessages = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Wrapped(dspy.Module):
    """Takes the conversation as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = dspy.Predict(WithPast)

    async def aforward(self, question: str, past: StepMessages) -> Any:
        """Pass it on."""
        return await self.reply.acall(question=question, past=past)


@pytest.mark.parametrize("program", [dspy.Predict(WithPast), Wrapped()])
@pytest.mark.parametrize("adapter", [None, dspy.JSONAdapter(), hs.NativeChatAdapter()])
def test_a_field_for_messages_gets_them_once(
    memory: StepMemory, program: Any, adapter: Any
) -> None:
    lm = answering("Paris", "Two")
    with dspy.context(adapter=adapter):
        run(StepRunner(program, memory), "chat", "Capital?", lm)
        events = run(StepRunner(program, memory), "chat", "How many?", lm)
    check_stream(memory, events)
    asked = lm.requests[1].messages
    assert [message.text for message in asked[:-1]] == ["Capital?", "Paris"]
    assert "Paris" not in (asked[-1].text or "")
    assert said(memory, "chat")[-1] == ("assistant", "Two")


def test_the_context_stays_within_its_budget(memory: StepMemory) -> None:
    lm = answering(*(f"answer {n} " + "word " * 50 for n in range(6)))
    runner = StepRunner(dspy.Predict(QA), memory, config=StepRunnerConfig(context_budget=150))
    for n in range(6):
        run(runner, "chat", f"question {n}", lm)
    texts = [message.text or "" for message in lm.requests[-1].messages]
    assert 1 < len(texts) < 6
    assert texts[-2].startswith("answer 4")


def test_other_sessions_are_not_heard(memory: StepMemory) -> None:
    lm = answering("one", "two")
    runner = StepRunner(dspy.Predict(QA), memory)
    run(runner, "first", "a secret", lm)
    run(runner, "second", "hello", lm)
    assert "secret" not in str(lm.requests[-1].messages)


@pytest.mark.parametrize(
    "program",
    [
        lambda messages: f"{len(messages)} heard",
        lambda messages: {"role": "assistant", "content": f"{len(messages)} heard"},
    ],
)
def test_a_callable_over_messages_is_a_program(memory: StepMemory, program: Any) -> None:
    runner = StepRunner(program, memory)
    run(runner, "chat", "Hello")
    events = run(runner, "chat", "Again")
    check_stream(memory, events)
    assert messages(memory, "chat")[-1].content == "3 heard"
    steps = memory.run(events[0].run_id).steps
    assert [step.step_type.value for step in steps] == ["ProgramCall", "ProgramEnd"]


@pytest.mark.usefixtures("unpaced")
def test_an_async_generator_streams_its_pieces(memory: StepMemory) -> None:
    async def program(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
        for piece in ("Hel", "lo ", str(messages[-1]["content"])):
            yield piece
            await asyncio.sleep(0.001)

    events = run(StepRunner(program, memory), "chat", "you")
    check_stream(memory, events)
    pieces = [event.delta.content for event in events if event.delta is not None]
    assert pieces == ["Hel", "lo ", "you"]
    assert messages(memory, "chat")[-1].content == "Hello you"


def test_a_long_program_stores_its_steps_on_the_way(memory: StepMemory) -> None:
    seen: list[int] = []

    class Long(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reply = dspy.Predict("question -> note")

        async def aforward(self, question: str) -> Any:
            for _ in range(120):
                await self.reply.acall(question=question)
                seen.append(sum(1 for _ in memory.iter_steps()))
            return dspy.Prediction(answer="done")

    lm = ScriptedLM(lambda _: {"note": "n"})
    config = StepRunnerConfig(max_steps=None)
    events = run(StepRunner(Long(), memory, config=config), "chat", "Go", lm)
    check_stream(memory, events)
    assert sorted(set(seen)) == [0, 50, 100]
    assert [step.hop for step in memory.run(events[0].run_id).steps] == list(range(122))


def test_what_a_model_thinks_aloud_streams_and_is_kept(memory: StepMemory) -> None:
    async def program(messages: list[dict[str, Any]]) -> AsyncIterator[Any]:
        for text in ("I wonder", " a lot"):
            yield {"reasoning_content": text}
        yield "Paris"

    events = run(StepRunner(program, memory), "chat", "Capital?")
    check_stream(memory, events)
    answer = messages(memory, "chat")[-1]
    assert (answer.content, answer.reasoning_content) == ("Paris", "I wonder a lot")
    assert not any((event.data or {}).get("discarded") for event in events)


def test_the_first_event_comes_at_once(memory: StepMemory) -> None:
    async def first() -> list[StepEvent]:
        go_on = asyncio.Event()

        async def program(messages: list[dict[str, Any]]) -> str:
            await go_on.wait()
            return "ok"

        stream = StepRunner(program, memory).run_stream("chat", "Hello")
        events = [await asyncio.wait_for(anext(stream), 60)]
        go_on.set()
        return [*events, *[event async for event in stream]]

    events = asyncio.run(first())
    check_stream(memory, events)
    assert events[0].type is StepEventType.RUN_STARTED


def test_metrics_count_tools_and_their_errors(memory: StepMemory) -> None:
    def fails(query: str) -> str:
        """Fail."""
        raise ValueError("no such place")

    turns = [thought("try", "fails", query="x"), thought("again", "search", query="x")]
    lm = ScriptedLM([*turns, *SEARCHES[-2:]])
    events = run(StepRunner(dspy.ReAct(QA, tools=[fails, search]), memory), "chat", "Capital?", lm)
    total = (events[-1].data or {})["metrics"]
    assert (total["tool_calls"], total["tool_errors"]) == (2, 1)
    events = run(StepRunner(dspy.Predict(QA), memory), "other", "Hello", answering("Hi"))
    assert "tool_calls" not in (events[-1].data or {})["metrics"], "none is not measured as 0"


def test_steps_of_a_user_carry_the_user(memory: StepMemory) -> None:
    session = AgentSession("chat", user_id="ada")
    events = run(StepRunner(dspy.Predict(QA), memory), session, "Hello", answering("Hi"))
    assert {step.user_id for step in memory.run(events[0].run_id).steps} == {"ada"}


def test_metrics_add_up_to_those_of_the_run(memory: StepMemory) -> None:
    runner = StepRunner(dspy.ReAct(QA, tools=[search]), memory)
    events = run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    costs = [step.metrics for step in snapshots(events) if step.metrics is not None]
    total = (events[-1].data or {})["metrics"]
    assert sum(cost.input_tokens or 0 for cost in costs) == total["input_tokens"] > 0
    assert sum(cost.llm_calls or 0 for cost in costs) == total["llm_calls"] == 3
    assert costs[0].first_token_latency_ms is not None
    assert costs[1].tool_exec_time_ms is not None
    snapshot = [event for event in events if event.type is StepEventType.METRICS_SNAPSHOT]
    assert len(snapshot) == 3
    again = (stored_events(memory, events[0].run_id)[-1].data or {})["metrics"]
    for told in (*(event.data or {} for event in snapshot), total, again):
        assert told
        assert None not in told.values()
    answer = memory.run(events[0].run_id).steps[-2]
    assert answer.metrics is not None
    assert answer.metrics.first_token_latency_ms is not None


def test_cached_tokens_of_a_provider_are_counted(memory: StepMemory) -> None:
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90}

    def program(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"role": "assistant", "content": "Hi", "usage": usage, "model": "claude"}

    events = run(StepRunner(program, memory), "chat", "Hello")
    cost = snapshots(events)[-1].metrics
    assert cost is not None
    assert (cost.input_tokens, cost.cache_read_tokens, cost.model_name) == (100, 90, "claude")


def test_a_session_has_one_run_at_a_time(memory: StepMemory) -> None:
    first, second = (StepRunner(dspy.Predict(QA), memory) for _ in range(2))

    async def both() -> None:
        stream = first.run_stream("chat", "Hello")
        await anext(stream)
        with pytest.raises(SequenceConflictError, match="in flight"):
            await collected(second.run_stream("chat", "Me too"))
        await collected(stream)

    with dspy.context(lm=answering("Hi", delay_seconds=0.05)):
        asyncio.run(both())
    assert said(memory, "chat") == [("user", "Hello"), ("assistant", "Hi")]
    assert first.active_runs() == {}


def test_a_reader_may_leave_at_the_final_event_and_go_on(memory: StepMemory) -> None:
    runner = StepRunner(dspy.Predict(QA), memory)

    async def turns() -> None:
        for n in range(3):
            async for event in runner.run_stream("chat", f"question {n}"):
                if event.type is StepEventType.RUN_COMPLETED:
                    break
        assert (await runner.run("chat", "one more")).text == "3"

    with dspy.context(lm=answering("0", "1", "2", "3")):
        asyncio.run(turns())
    assert [text for role, text in said(memory, "chat") if role == "assistant"] == list("0123")


def test_somebody_else_writing_fails_the_run_and_mixes_nothing(memory: StepMemory) -> None:
    async def program(messages: list[dict[str, Any]]) -> str:
        await memory.repository().append("chat", [{"role": "user", "content": "intruder"}])
        return "answer"

    events = run(StepRunner(program, memory), "chat", "Hello")
    assert events[-1].type is StepEventType.RUN_FAILED
    assert (events[-1].data or {})["error"]["type"] == "SequenceConflictError"
    assert said(memory, "chat") == [("user", "Hello"), ("user", "intruder")]


def test_fifty_runs_side_by_side_do_not_mix(memory: StepMemory) -> None:
    lm = ScriptedLM(
        lambda request: {"answer": f"re: {request_text(request).splitlines()[1]}"},
        delay_seconds=0.01,
    )
    runner = StepRunner(dspy.Predict(QA), memory)

    async def all_of_them() -> list[list[Any]]:
        streams = (runner.run_stream(f"s{n}", f"message {n}") for n in range(50))
        return list(await asyncio.gather(*map(collected, streams)))

    with dspy.context(lm=lm):
        runs = asyncio.run(all_of_them())
    for n, events in enumerate(runs):
        check_stream(memory, events)
        assert {event.session_id for event in events} == {f"s{n}"}
        assert said(memory, f"s{n}")[1] == ("assistant", f"re: message {n}")
        assert len(memory.run(events[0].run_id).steps) == 3


def test_nothing_of_a_run_is_left_in_the_settings(memory: StepMemory) -> None:
    before = dict(dspy.settings.copy())
    run(StepRunner(dspy.ReAct(QA, tools=[search]), memory), "chat", "?", ScriptedLM(SEARCHES))
    assert dict(dspy.settings.copy()) == before
    assert search("outside") == dspy.Tool(search)(query="outside") == "result for outside"


def test_a_program_with_several_inputs_needs_to_be_told_which(memory: StepMemory) -> None:
    program = dspy.Predict("context, question -> answer")
    with pytest.raises(InvalidSettingError, match="context, question"):
        StepRunner(program, memory)
    with pytest.raises(InvalidSettingError, match="no input 'message'"):
        StepRunner(program, memory, input_field="message")
    lm = answering("Hi")
    runner = StepRunner(program, memory, input_field="question")
    run(runner, "chat", "Hello", lm, inputs={"context": "greetings"})
    assert "greetings" in request_text(lm.requests[0])


def test_other_outputs_are_kept_beside_the_answer(memory: StepMemory) -> None:
    lm = ScriptedLM([{"answer": "Paris", "confidence": 0.9}])
    program = dspy.Predict("question -> answer, confidence: float")
    run(StepRunner(program, memory), "chat", "Capital?", lm)
    answer = messages(memory, "chat")[-1]
    assert answer.content == "Paris"
    assert (answer.metadata or {})["outputs"] == {"confidence": 0.9}


def test_what_is_no_memory_or_program_is_refused(memory: StepMemory) -> None:
    with pytest.raises(InvalidMemoryError):
        StepRunner(dspy.Predict(QA), object())
    with pytest.raises(InvalidSettingError):
        StepRunner(None, memory)
    with pytest.raises(InvalidSettingError):
        StepRunnerConfig(max_steps=0)


@pytest.mark.usefixtures("unpaced")
def test_redaction_reaches_pieces_messages_and_steps() -> None:
    def redact(text: str) -> str:
        return text.replace("hunter2-very-long-secret", "[secret]")

    text = "x" * 300 + " the password is hunter2-very-long-secret, " + "y" * 300
    with StepMemory(":memory:", embedder="hashing", redact=redact) as memory:
        events = run(StepRunner(dspy.Predict(QA), memory), "chat", "Say it", answering(text))
        check_stream(memory, events)
        shown = "".join(e.delta.content or "" for e in events if e.delta is not None)
        assert shown == redact(text)
        assert sum(event.delta is not None for event in events) > 2
        assert "hunter2" not in "".join(event.to_sse() for event in events)
        assert "hunter2" not in str([s.to_dict() for s in memory.iter_steps()])


class Ensemble(dspy.Module):
    """Asks its predictor in threads of its own."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.ask, self.way = dspy.Predict("question -> answer"), way

    def forward(self, question: str) -> Any:
        """Ask twice, side by side; give the last answer."""
        questions = [f"{question} {n}" for n in range(2)]
        if self.way == "Parallel":
            examples = [dspy.Example(question=each).with_inputs("question") for each in questions]
            return dspy.Parallel(num_threads=2)([(self.ask, each) for each in examples])[-1]
        with ThreadPoolExecutor(2) as pool:
            ask = hs.in_context(lambda each: self.ask(question=each))
            return list(pool.map(ask, questions))[-1]


@pytest.mark.parametrize("way", ["Parallel", "threads"])
def test_a_program_may_ask_in_threads_of_its_own(memory: StepMemory, way: str) -> None:
    """Pieces cannot be sent from there; the answers are there all the same."""
    lm = ScriptedLM(lambda request: {"answer": "Paris"})
    events = run(StepRunner(Ensemble(way), memory), "chat", "Capital?", lm)
    check_stream(memory, events)
    assert kinds(events) == ["run_started", "step_completed", "step_completed", "run_completed"]
    assert said(memory, "chat") == [("user", "Capital?"), ("assistant", "Paris")]
    steps = memory.run(events[0].run_id).steps
    kinds_of_steps = [step.step_type.value for step in steps]
    assert kinds_of_steps == ["ProgramCall", "Action", "Action", "ProgramEnd"]
    assert {steps[1].parent_id, steps[2].parent_id} == {steps[0].id}
