"""Lines of sessions in memory: only what is new is read, and what was erased is gone from there."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.errors import ContextBudgetError, UnknownSessionError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import to_messages
from hybridagi_steps.messages.units import Unit
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.message import ERASED, MessageRole, Step
from hybridagi_steps.sessions import lines
from hybridagi_steps.sessions.lines import forget_history, history_of

CANARY = "the vault opens at half past nine"
Decoded = list[int]


def said(count: int, session_id: str = "chat", text: str = "word") -> list[Step]:
    """Return messages of a user and an assistant in turn."""
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    return [
        Step(session_id=session_id, role=roles[n % 2], content=f"{text} {n} of {session_id}")
        for n in range(count)
    ]


def heard(messages: list[dict[str, Any]]) -> str:
    return f"heard {len(messages)}"


def store_of(memory: StepMemory) -> Any:
    return memory.repository().store


def add(memory: StepMemory, messages: Sequence[Step], session_id: str = "chat") -> None:
    store_of(memory).commit(session_id, messages)


def contents(memory: StepMemory, session_id: str = "chat") -> list[Any]:
    """Return what a context without a limit shows of a session."""
    built = ContextBuilder(memory, budget=10**6, recent=None, k=0).build(session_id=session_id)
    return [message["content"] for message in built.messages]


@pytest.fixture
def decoded(memory: StepMemory, monkeypatch: pytest.MonkeyPatch) -> Decoded:
    """Note how many messages each read of the store returned."""
    store, noted = store_of(memory), Decoded()
    real: Callable[..., list[Step]] = store.messages

    def messages(*values: Any, **options: Any) -> list[Step]:
        found = real(*values, **options)
        noted.append(len(found))
        return found

    monkeypatch.setattr(store, "messages", messages)
    return noted


class TestWhatIsRead:
    def test_a_turn_reads_the_two_messages_of_the_last_one(
        self, memory: StepMemory, decoded: Decoded
    ) -> None:
        add(memory, said(300))
        runner = hs.StepRunner(heard, memory)
        asyncio.run(runner.run("chat", "one"))
        for _ in range(3):
            decoded.clear()
            asyncio.run(runner.run("chat", "another"))
            assert sum(decoded) <= 2

    def test_runner_and_builders_share_what_was_decoded(
        self, memory: StepMemory, decoded: Decoded
    ) -> None:
        add(memory, said(50))
        asyncio.run(hs.StepRunner(heard, memory).run("chat", "well?"))
        decoded.clear()
        for _ in range(3):
            ContextBuilder(memory, k=0).build(session_id="chat")
        assert sum(decoded) <= 2

    def test_many_sessions_in_turn_are_read_once_each(
        self, memory: StepMemory, decoded: Decoded
    ) -> None:
        names = [f"chat-{n}" for n in range(20)]
        for name in names:
            add(memory, said(250, name), name)
        builder = ContextBuilder(memory, k=0)
        for _ in range(3):
            for name in names:
                builder.build(session_id=name)
        assert sum(decoded) == 20 * 250

    def test_a_message_is_counted_once(self, memory: StepMemory) -> None:
        texts: list[str] = []

        def count(text: str) -> int:
            texts.append(text)
            return len(text.split())

        add(memory, said(100))
        ContextBuilder(memory, k=0, counter=count).build(session_id="chat")
        texts.clear()
        add(memory, said(2, text="new"))
        ContextBuilder(memory, recent=None, k=0, counter=count).build(session_id="chat")
        assert [text for text in texts if text.startswith("word")] == []

    def test_room_is_bounded_and_answers_are_not(
        self, memory: StepMemory, decoded: Decoded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lines, "MOST_BYTES", 20_000)
        for name in ("a", "b", "c"):
            add(memory, said(20, name), name)
        for name in ("a", "b", "c", "a"):
            assert contents(memory, name) == [step.content for step in said(20, name)]
        assert decoded == [20, 20, 20, 20]  # there is room for one

    def test_sessions_that_are_read_now_take_the_place_of_those_that_were(
        self, memory: StepMemory, decoded: Decoded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = self.sessions_of_which_all_but_one_fit(memory, monkeypatch)
        for name in 10 * names[:-2]:
            contents(memory, name)
        decoded.clear()
        for name in 10 * names[-2:]:
            contents(memory, name)
        assert len(decoded) <= 4

    @pytest.mark.parametrize("k", [0, None])
    def test_a_line_counts_for_about_what_it_takes(self, memory: StepMemory, k: int | None) -> None:
        talk = to_messages(shipped_steps(), session_id="chat", carry=False)
        add(memory, talk)
        add(memory, said(50, "other"), "other")
        memory.flush()
        for name in ("chat", "other"):  # which reads and caches what no line holds
            ContextBuilder(memory, k=k).build(session_id=name)
        forget_history(store_of(memory))
        gc.collect()
        tracemalloc.start(1)
        try:
            ContextBuilder(memory, k=k).build(session_id="chat")
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        ContextBuilder(memory, k=k).build(session_id="chat")
        size = lines._lines_of(store_of(memory))._size  # pyright: ignore[reportPrivateUsage]
        assert 0.7 < size / taken < 1.3
        assert taken < (2_000 if k == 0 else 2_800) * len(talk)

    def sessions_of_which_all_but_one_fit(
        self, memory: StepMemory, monkeypatch: pytest.MonkeyPatch
    ) -> list[str]:
        names = [f"chat-{n}" for n in range(6)]
        for name in names:
            add(memory, said(20, name), name)
        contents(memory, names[0])
        size = lines._lines_of(store_of(memory))._size  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(lines, "MOST_BYTES", (len(names) - 1) * size + size // 2)
        return names


class TestSameAsBefore:
    def test_a_growing_session_has_the_contexts_of_its_messages(self, memory: StepMemory) -> None:
        builders = [
            {"budget": 10**6, "recent": None},
            {"budget": 600, "recent": None},
            {"budget": 1_000, "recent": 6},
        ]
        for number, talk in enumerate(shipped_talks()):
            name, kept = f"talk-{number}", list[Step]()
            for begin in range(0, len(talk), 3):
                kept += store_of(memory).commit(name, talk[begin : begin + 3])
                for options in builders:
                    kinds: dict[str, Any] = {**options, "k": 0}
                    shared = outcome(ContextBuilder(memory, **kinds), session_id=name)
                    assert shared == outcome(ContextBuilder(**kinds), steps=kept)

    def test_a_program_is_shown_the_newest_messages(self, memory: StepMemory) -> None:
        shown: list[Any] = []

        def program(messages: list[dict[str, Any]]) -> str:
            shown.append(messages)
            return "noted"

        config = hs.StepRunnerConfig(max_history=20, context_budget=200)
        runner = hs.StepRunner(program, memory, config=config)
        add(memory, said(15))
        builder = ContextBuilder(budget=200, recent=None, k=0)
        for turn in range(8):
            before = store_of(memory).messages("chat")[-20:]
            asyncio.run(runner.run("chat", f"turn {turn}"))
            expected = builder.build(steps=before).messages
            assert shown[-1] == [*expected, {"role": "user", "content": f"turn {turn}"}]

    def test_branches_of_a_session_are_told_apart(self, memory: StepMemory) -> None:
        add(memory, said(6))
        assert len(contents(memory)) == 6
        repo = memory.repository()
        asyncio.run(repo.delete_steps("chat", 4))
        add(memory, said(1, text="other"))
        assert contents(memory)[3:] == ["other 0 of chat"]
        first = asyncio.run(repo.attempts("chat"))[0]
        asyncio.run(repo.adopt("chat", first.branch_id))
        assert contents(memory) == [step.content for step in said(6)]

    def test_an_attempt_that_was_swept_and_grew_again_is_read_anew(
        self, memory: StepMemory
    ) -> None:
        add(memory, said(6))
        assert len(contents(memory)) == 6
        repo = memory.repository()
        asyncio.run(repo.delete_steps("chat", 4))
        memory.vacuum()
        first = asyncio.run(repo.attempts("chat"))[0]
        asyncio.run(repo.adopt("chat", first.branch_id))
        add(memory, said(3, text="grown"))
        assert contents(memory)[3:] == [step.content for step in said(3, text="grown")]

    def test_nobody_can_change_what_is_remembered(self, memory: StepMemory) -> None:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        talk = [
            Step(session_id="chat", role=MessageRole.USER, content=[{"type": "text", "text": "a"}]),
            Step(session_id="chat", role=MessageRole.ASSISTANT, tool_calls=[call]),
            Step(session_id="chat", role=MessageRole.TOOL, content="r", tool_call_id="call_1"),
            Step(session_id="chat", role=MessageRole.USER, content="b", metadata={"k": {"v": 1}}),
        ]
        add(memory, talk)
        builder = ContextBuilder(memory, k=0)
        built = builder.build(session_id="chat")
        before = [message.copy() for message in builder.build(session_id="chat").messages]
        built.messages[1]["tool_calls"][0]["function"]["name"] = "changed"
        built.messages[0]["content"][0]["text"] = "changed"
        for step in built.steps:
            step.content, step.role = "changed", MessageRole.SYSTEM
            (step.metadata or {}).clear()
        assert builder.build(session_id="chat").messages == before
        assert "changed" not in str(before)


class TestErasure:
    def test_a_purged_session_is_nowhere_in_memory(self, memory: StepMemory) -> None:
        add(memory, said(4, text=CANARY))
        assert CANARY in str(contents(memory))
        assert CANARY in held_in_memory()
        memory.purge({"session_id": "chat"})
        assert CANARY not in held_in_memory()
        with pytest.raises(UnknownSessionError):
            contents(memory)

    def test_what_another_process_erased_is_shown_no_more(self, tmp_path: Path) -> None:
        path = tmp_path / "steps.db"
        with (
            StepMemory(path, embedder="hashing") as mine,
            StepMemory(path, embedder="hashing") as other,
        ):
            tell(mine, "chat", "ann", CANARY)
            fork = asyncio.run(mine.repository().fork("chat", 2, "fork"))
            tell(mine, "fork", "bob", "something else")
            assert CANARY in str(contents(mine, fork.session_id))
            other.purge({"user_id": "ann"})
            assert CANARY not in str(contents(mine, "fork"))
            assert ERASED in str(contents(mine, "fork"))
            told = [*history_of(store_of(mine), "fork").messages]
            assert CANARY not in str(told)

    def test_a_session_of_the_same_name_begins_anew(self, memory: StepMemory) -> None:
        add(memory, said(4, text=CANARY))
        contents(memory)
        memory.purge({"session_id": "chat"})
        add(memory, said(4, text="new"))
        assert contents(memory) == [step.content for step in said(4, text="new")]


def held_in_memory() -> str:
    """Return what all messages say that somebody holds, by themselves or in units."""
    gc.collect()
    held = gc.get_objects()
    kept = [step for one in held if isinstance(one, Unit) for step in one.messages]
    return str([step.content for step in (*kept, *held) if isinstance(step, Step)])


def tell(memory: StepMemory, session_id: str, user_id: str, text: str) -> None:
    """Store a turn with the step that says whose it is."""
    turn = said(2, session_id, text)
    step = AgentStep(
        step_type=AgentStepType.Action,
        inputs={"purpose": "talk"},
        outputs={"text": text},
        user_id=user_id,
    )
    store_of(memory).commit(session_id, turn, [step])


def shipped_talks() -> Iterator[list[Step]]:
    """Yield some of the conversations in the package, each as messages."""
    runs = groupby(shipped_steps(), lambda step: step.run_id)
    for number, (_, steps) in enumerate(runs):
        if number % 4 == 0:
            yield to_messages(list(steps), session_id=f"talk-{number}", carry=False)


def outcome(builder: ContextBuilder, **given: Any) -> Any:
    """Return what a builder makes, or that the newest unit does not fit."""
    try:
        made = builder.build(**given)
    except ContextBudgetError as error:
        return str(error)
    receipt = made.receipt
    anthropic = made.for_provider("anthropic")
    return made.messages, anthropic, receipt.kept, receipt.dropped, receipt.notes
