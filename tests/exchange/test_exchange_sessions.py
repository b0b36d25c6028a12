"""Imported conversations are sessions: read back, continued, forked, and never doubled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import unsourced
from exchange_talks import said, sessions, written

import hybridagi_steps as hs
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.records.agent_step import id_text

SAMPLES = Path(__file__).parents[1] / "samples"

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Cancel AB12 and CD34."},
    {
        "role": "assistant",
        "content": "Looking.",
        "tool_calls": [
            {
                "id": f"call_{code}",
                "type": "function",
                "function": {"name": "cancel", "arguments": f'{{"code": "{code}"}}'},
            }
            for code in ("AB12", "CD34")
        ],
    },
    {"role": "tool", "tool_call_id": "call_CD34", "content": "no such booking"},
    {"role": "tool", "tool_call_id": "call_AB12", "content": "cancelled"},
    {"role": "assistant", "content": "AB12 is cancelled; CD34 does not exist. 🛫"},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "You are welcome."},
]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[hs.StepMemory]:
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        yield memory


class TestOpenAI:
    def test_the_messages_are_the_ones_that_were_given(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        import_file(memory, written(tmp_path, {"id": "chat-1", "messages": CHAT}))
        assert [step.to_message_dict() for step in said(memory, "chat-1")] == CHAT
        assert [step.sequence for step in said(memory, "chat-1")] == list(range(1, 9))

    def test_messages_and_steps_name_each_other(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        import_file(memory, written(tmp_path, {"id": "chat-1", "messages": CHAT}))
        steps = {id_text(step.id): step for step in memory.iter_steps()}
        messages = said(memory, "chat-1")
        assert {step.session_id for step in steps.values()} == {"chat-1"}
        assert {message.run_id for message in messages} == {"chat-1"}
        assert messages[0].agent_step_id is None
        results = [steps[str(message.agent_step_id)].result for message in messages[3:5]]
        assert results == ["no such booking", "cancelled"]
        called = (messages[2].metadata or {})["agent_step_ids"]
        assert [steps[step_id].arguments["code"] for step_id in called] == ["AB12", "CD34"]
        assert steps[str(messages[7].agent_step_id)].result == "You are welcome."

    def test_a_fork_sees_the_steps_of_its_own_messages(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        import_file(memory, written(tmp_path, {"id": "chat-1", "messages": CHAT}))
        memory.repository().store.fork("chat-1", 5, "before the answer")
        seen = list(memory.iter_steps({"session_id": "before the answer"}))
        assert [str(step.step_type) for step in seen] == ["ProgramCall", "Action", "Action"]
        assert len(list(memory.iter_steps({"session_id": "chat-1"}))) == 8

    def test_it_can_be_continued(self, memory: hs.StepMemory, tmp_path: Path) -> None:
        path = written(tmp_path, {"id": "chat-1", "messages": CHAT})
        import_file(memory, path)
        repo = memory.repository()
        asyncio.run(repo.append("chat-1", [{"role": "user", "content": "And EF56?"}]))
        context = hs.ContextBuilder(memory, budget=1_000).build(session_id="chat-1")
        in_order_of_calls = [*CHAT[:3], CHAT[4], CHAT[3], *CHAT[5:]]
        assert context.messages == [*in_order_of_calls, {"role": "user", "content": "And EF56?"}]
        assert import_file(memory, path).added == 0
        assert len(said(memory, "chat-1")) == 9

    def test_importing_again_changes_nothing(self, memory: hs.StepMemory, tmp_path: Path) -> None:
        path = written(tmp_path, {"messages": CHAT}, {"id": "other", "messages": CHAT[1:2]})
        first = import_file(memory, path)
        before = {name: said(memory, name) for name in sessions(memory)}
        again = import_file(memory, path)
        assert (again.added, again.already_there, again.skipped) == (0, first.added, [])
        assert {name: said(memory, name) for name in sessions(memory)} == before
        assert sorted(map(len, before.values())) == [1, 8]

    def test_a_conversation_that_grew_gets_the_rest(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        import_file(memory, written(tmp_path, {"id": "chat-1", "messages": CHAT[:6]}))
        import_file(memory, written(tmp_path, {"id": "chat-1", "messages": CHAT}))
        assert [step.to_message_dict() for step in said(memory, "chat-1")] == CHAT

    def test_what_an_interrupted_import_left_out_comes_with_the_next(
        self, memory: hs.StepMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = written(tmp_path, *({"id": f"chat-{n}", "messages": CHAT} for n in (1, 2)))
        with monkeypatch.context() as broken:
            calls = iter([hs.SessionRepository.commit_now])

            def second_fails(*args: Any, **kwargs: Any) -> Any:
                if (call := next(calls, None)) is None:
                    raise KeyboardInterrupt
                return call(*args, **kwargs)

            broken.setattr(hs.SessionRepository, "commit_now", second_fails)
            with pytest.raises(KeyboardInterrupt):
                import_file(memory, path)
        assert list(sessions(memory)) == ["chat-1"]
        import_file(memory, path)
        for session_id in ("chat-1", "chat-2"):
            assert [step.to_message_dict() for step in said(memory, session_id)] == CHAT
        assert len(list(memory.iter_steps())) == 16

    def test_steps_imported_before_sessions_were_known_get_their_messages(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        path = written(tmp_path, {"id": "chat-1", "messages": CHAT})
        with hs.StepMemory(":memory:", embedder="hashing") as before:
            import_file(before, path)
            memory.add(list(before.iter_steps()))
        assert sessions(memory) == {}
        assert import_file(memory, path).added == 0
        assert len(said(memory, "chat-1")) == 8

    def test_a_session_given_for_all_holds_one_conversation_after_the_other(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        path = written(tmp_path, {"id": "a", "messages": CHAT}, {"id": "b", "messages": CHAT})
        import_file(memory, path, session_id="all of them")
        assert [step.to_message_dict() for step in said(memory, "all of them")] == CHAT * 2
        assert list(sessions(memory)) == ["all of them"]

    def test_the_oldest_form_of_calls_is_read(self, memory: hs.StepMemory, tmp_path: Path) -> None:
        called = {"name": "cancel", "arguments": "{}"}
        chat = [
            {"role": "user", "content": "Cancel it"},
            {"role": "assistant", "content": None, "function_call": called},
            {"role": "function", "name": "cancel", "content": "done"},
        ]
        import_file(memory, written(tmp_path, {"id": "old", "messages": chat}))
        _, asked, answered = said(memory, "old")
        assert [call["id"] for call in asked.tool_calls or []] == [answered.tool_call_id]
        assert str(answered.role) == "tool"

    def test_secrets_are_taken_out_of_messages_too(self, tmp_path: Path) -> None:
        path = written(tmp_path, {"id": "chat-1", "messages": CHAT})
        hidden = hs.StepMemory(
            tmp_path / "safe.db", embedder="hashing", redact=lambda text: text.replace("AB12", "•")
        )
        with hidden as memory:
            import_file(memory, path)
            assert len(said(memory, "chat-1")) == 8
            assert not any("AB12" in str(step.content) for step in said(memory, "chat-1"))
        assert b"AB12 is cancelled" not in (tmp_path / "safe.db").read_bytes()

    def test_messages_that_cannot_be_kept_are_named_and_their_steps_stay(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        deep: Any = "bottom"
        for _ in range(70):
            deep = [deep]
        chat = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": "Seen"}]
        bad = {"id": "bad", "messages": [{"role": "user", "content": [{"type": "x", "y": deep}]}]}
        report = import_file(memory, written(tmp_path, bad, {"id": "good", "messages": chat}))
        assert [line for line, _ in report.skipped] == [1] * report.skipped_count
        assert report.skipped_count >= 1
        assert len(said(memory, "good")) == 2
        assert report.read == report.added + report.already_there + report.skipped_count


class TestOthers:
    def test_anthropic(self, memory: hs.StepMemory) -> None:
        import_file(memory, SAMPLES / "anthropic_responses.json")
        (session_id,) = sessions(memory)
        messages = [step.to_message_dict() for step in said(memory, session_id)]
        given = json.loads((SAMPLES / "anthropic_responses.json").read_text("utf-8"))
        assert messages[0]["role"] == "system"
        assert str(given["system"])[:20] in str(messages[0]["content"])
        calls = [call["id"] for message in messages for call in message.get("tool_calls", [])]
        answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
        assert sorted(calls) == sorted(answered)
        assert messages[-1] == {"role": "assistant", "content": "You are welcome."}

    @pytest.mark.parametrize("name", ["langgraph_checkpoints.jsonl", "langgraph_history.json"])
    def test_a_forked_thread_is_a_session_and_its_fork(
        self, memory: hs.StepMemory, name: str
    ) -> None:
        for _ in range(2):
            import_file(memory, SAMPLES / name)
        found = sessions(memory)
        (fork,) = set(found) - {"thread-42"}
        assert (found[fork].forked_from, found[fork].forked_at) == ("thread-42", 8)
        main, other = (said(memory, session_id) for session_id in ("thread-42", fork))
        assert [step.id for step in other[:8]] == [step.id for step in main[:8]]
        asked = [[s.content for s in line if s.is_user_step()] for line in (main, other)]
        assert asked == [["Refund AB12 and XX", "That is all"], ["Refund AB12 and XX", "Thanks"]]
        own = [step.inputs or {} for step in memory.iter_steps({"session_id": fork})]
        assert [i["purpose"] for i in own if i.get("program") and "purpose" in i] == asked[1]

    def test_a_chat_of_chatgpt_is_what_was_shown_last_and_its_other_answers_are_forks(
        self, memory: hs.StepMemory
    ) -> None:
        for _ in range(2):
            import_file(memory, SAMPLES / "chatgpt_conversations.json")
        found = sessions(memory)
        main, hello = (f"6925f1c0-0000-8000-9000-{end}" for end in ("a1b2c3d4e5f6", "000000000002"))
        assert {name: (one.forked_from, one.forked_at) for name, one in found.items()} == {
            main: (None, None),
            f"{main}@n9": (main, 7),
            f"{main}@n11": (main, 3),
            hello: (None, None),
        }
        shown = [(str(step.role), step.content) for step in said(memory, main)]
        assert shown[2:] == [
            ("user", "[image_asset_pointer]\nHow far is it from Bergen to Oslo, in miles?"),
            ("assistant", None),
            ("tool", "287.69"),
            ("assistant", "About 288 miles."),
            ("user", "And by train?"),
            ("assistant", "308 miles, in under seven hours."),
        ]
        asked, answered = said(memory, main)[3:5]
        assert asked.reasoning_content == "463 km by road; convert."
        assert [call["id"] for call in asked.tool_calls or ()] == [answered.tool_call_id]

    def test_langchain(self, memory: hs.StepMemory) -> None:
        import_file(memory, SAMPLES / "langchain_messages.json")
        (session_id,) = sessions(memory)
        roles = [str(step.role) for step in said(memory, session_id)]
        assert {"user", "assistant", "tool"} <= set(roles)

    def test_steps_of_a_session_come_back_as_the_steps_they_are(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        steps = [
            hs.Step(
                session_id="s",
                sequence=n,
                role=hs.MessageRole(role),
                content=text,
                content_for_user=text * 2,
            )
            for n, (role, text) in enumerate([("user", "Hi"), ("assistant", "Hello")], start=1)
        ]
        lines = [json.loads(step.model_dump_json()) for step in steps]
        import_file(memory, written(tmp_path, *lines, name="session.jsonl"))
        kept = said(memory, "s")
        shown = {"id", "sequence", "role", "content", "content_for_user", "created_at"}
        assert [k.model_dump(include=shown) for k in kept] == [
            s.model_dump(include=shown) for s in steps
        ]
        assert all(step.agent_step_id for step in kept)


def grown(memory: hs.StepMemory) -> None:
    """Fill a memory with all that sessions can be: talked in, forked, retried, empty."""
    store = memory.repository().store

    def turn(session_id: str, question: str, answer: str, **options: Any) -> None:
        asked = hs.Step(session_id=session_id, role=hs.MessageRole.USER, content=question)
        told = hs.Step(
            session_id=session_id,
            role=hs.MessageRole.ASSISTANT,
            content=answer,
            metrics=hs.StepMetrics(input_tokens=3),
            metadata={"mood": "🙂"},
        )
        step = hs.AgentStep(
            step_type=hs.AgentStepType.Action,
            inputs={"purpose": question},
            outputs={"result": answer},
            session_id=session_id,
            run_id=f"run {question}",
        )
        store.commit(session_id, [asked], **options)
        store.commit(session_id, [told], [step], **options)

    turn("trip", "one?", "1")
    turn("trip", "two?", "2")
    store.fork("trip", 2, "other trip")
    turn("other trip", "and then?", "3")
    store.fork("other trip", 3, "same again")
    tried = store.branch_at("trip", 2)
    turn("trip", "two, again?", "2!", branch_id=tried)
    store.adopt("trip", tried)
    memory.add(hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": "alone"}))
    memory.add(
        hs.AgentStep(
            step_type=hs.AgentStepType.Action, inputs={"purpose": "next"}, session_id="trip"
        )
    )


def told(memory: hs.StepMemory) -> dict[str, Any]:
    """Everything that people see of a memory's sessions and of its own history."""
    store = memory.repository().store
    return {
        "messages": {
            name: [step.model_dump() for step in said(memory, name)] for name in sessions(memory)
        },
        "pinned": {name: store.pinned_steps(name) for name in sessions(memory)},
        "recalled": {
            name: {id_text(step.id) for step in memory.find({"session_id": name}).steps}
            for name in sessions(memory)
        },
        "steps": {id_text(step.id): step for step in memory.find({}).steps},
        "forked": {name: (s.forked_from, s.forked_at) for name, s in sessions(memory).items()},
    }


class TestRoundTrip:
    @pytest.mark.parametrize("address", ["{}/copy.db", ":memory:"])
    def test_everything_of_a_session_comes_back(
        self, memory: hs.StepMemory, tmp_path: Path, address: str
    ) -> None:
        grown(memory)
        export_file(memory, tmp_path / "all.jsonl")
        with hs.StepMemory(address.format(tmp_path), embedder="hashing") as copy:
            report = import_file(copy, tmp_path / "all.jsonl")
            assert (report.added, report.skipped) == (5, [])
            assert unsourced(told(copy)) == unsourced(told(memory))
            export_file(copy, tmp_path / "again.jsonl")
        first, again = (
            sorted(
                json.dumps(unsourced(json.loads(line)))
                for line in (tmp_path / name).read_bytes().splitlines()
            )
            for name in ("all.jsonl", "again.jsonl")
        )
        assert first == again

    def test_a_session_that_only_steps_name_is_exported_as_its_steps(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        action = hs.AgentStepType.Action
        memory.add(hs.AgentStep(step_type=action, inputs={"purpose": "x"}, session_id="notebook"))
        for session_id, count in (("notebook", 1), ("nobody", 0)):
            path = tmp_path / f"{session_id}.jsonl"
            assert export_file(memory, path, where={"session_id": session_id}) == count
            assert len(path.read_bytes().splitlines()) == count

    def test_a_fork_writes_only_what_is_its_own(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        grown(memory)
        export_file(memory, tmp_path / "all.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
        messages = [line["id"] for line in lines if line.get("record") == "message"]
        assert len(messages) == len(set(messages)) == 4 + 2
        assert "two?" not in (tmp_path / "all.jsonl").read_text()  # the attempt nobody reads

    def test_importing_again_or_into_the_same_memory_changes_nothing(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        grown(memory)
        export_file(memory, tmp_path / "all.jsonl")
        before = told(memory)
        report = import_file(memory, tmp_path / "all.jsonl")
        assert (report.added, report.already_there, report.skipped) == (0, 5, [])
        assert told(memory) == before

    def test_an_imported_chat_goes_on_unchanged(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        import_file(memory, written(tmp_path, {"id": "chat-1", "messages": CHAT}))
        import_file(memory, SAMPLES / "langgraph_checkpoints.jsonl")
        export_file(memory, tmp_path / "all.jsonl")
        with hs.StepMemory(tmp_path / "copy.db", embedder="hashing") as copy:
            import_file(copy, tmp_path / "all.jsonl")
            assert unsourced(told(copy)) == unsourced(told(memory))

    def test_one_session_goes_alone_and_a_selection_without_any(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        grown(memory)
        export_file(memory, tmp_path / "one.jsonl", where={"session_id": "other trip"})
        export_file(memory, tmp_path / "some.jsonl", where={"step_types": ["Action"]})
        assert b'"record"' not in (tmp_path / "some.jsonl").read_bytes()
        with hs.StepMemory(tmp_path / "copy.db", embedder="hashing") as copy:
            import_file(copy, tmp_path / "one.jsonl")
            assert list(sessions(copy)) == ["other trip"]
            kept = [step.content for step in said(copy, "other trip")]
            assert kept == ["one?", "1", "and then?", "3"]
            assert {step.purpose for step in copy.iter_steps()} == {"one?", "and then?"}

    def test_a_fork_whose_origin_is_missing_is_named(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        header = {"record": "session", "session_id": "b", "forks": "a", "shares": 3, "last": "m"}
        message = {"record": "message", "session_id": "b", "role": "user", "content": "Hi"}
        broken = {"record": "message", "session_id": "b", "role": "nobody"}
        odd = {"record": "session", "session_id": "c", "forks": "a", "shares": -1, "last": "m"}
        path = written(tmp_path, header, message, broken, {"record": "session"}, odd)
        report = import_file(memory, path)
        assert sorted(line for line, _ in report.skipped) == [1, 3, 4, 5]
        assert sessions(memory) == {}

    def test_a_session_made_of_messages_that_were_there_is_told(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        path = written(tmp_path, {"id": "chat-1", "messages": CHAT})
        assert import_file(memory, path).notes == ()
        assert import_file(memory, path).notes == ()
        [note] = import_file(memory, path, session_id="mine", user_id="zora").notes
        assert note.endswith("keep the user and the source they have: session 'mine' of 'chat-1'")
        assert import_file(memory, path, session_id="mine", user_id="zora").notes == ()

    def test_a_user_who_says_nothing_is_refused(
        self, memory: hs.StepMemory, tmp_path: Path
    ) -> None:
        report = import_file(memory, written(tmp_path, {"messages": [{"role": "user"}]}))
        assert [why for _, why in report.skipped] == ["message 1 is a user's and has no content"]
        assert sessions(memory) == {}
