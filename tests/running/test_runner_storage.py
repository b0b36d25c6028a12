"""What a run does when a store refuses something of it: it fails, and what it leaves is whole."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from provider_double import check_openai
from runner_cases import check_stream, messages, run

from hybridagi_steps import StepMemory, record_step
from hybridagi_steps.errors import StorageBusyError, StorageError
from hybridagi_steps.messages.agent_steps import INTERRUPTED
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.stored_events import stored_events
from hybridagi_steps.sessions.repository import SessionRepository
from hybridagi_steps.stores.body import MAX_STEP_BYTES

HUGE = "x" * (MAX_STEP_BYTES + 1)


def calling(*names: str, **arguments: str) -> dict[str, Any]:
    """A message that calls tools."""
    text = str(arguments).replace("'", '"')
    functions = [{"name": name, "arguments": text} for name in names]
    calls = [{"id": f"call_{uuid4().hex}", "type": "function", "function": f} for f in functions]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def program_calling(*names: str) -> Any:
    """A program that calls tools once, then answers."""

    def program(given: list[dict[str, Any]]) -> Any:
        return "done" if given[-1]["role"] == "tool" else calling(*names)

    return program


def big() -> str:
    """Give more than a message may hold."""
    return HUGE


async def small() -> str:
    """Give little, some time later."""
    await asyncio.sleep(0.05)
    return "little"


def check_whole(memory: StepMemory, events: list[Any], why: str) -> None:
    """What holds of a run that failed for a store: it says so, and its steps are all there."""
    assert (events[-1].type.value, (events[-1].data or {})["termination_reason"]) == (
        "run_failed",
        why,
    )
    told = stored_events(memory, events[0].run_id)[-1]
    assert (told.type, (told.data or {})["termination_reason"]) == (events[-1].type, why)
    steps = memory.run(events[0].run_id).steps
    assert [step.hop for step in steps] == list(range(len(steps)))
    known = {step.id for step in steps}
    assert steps[0].step_type == "ProgramCall"
    assert all(step.parent_id in known for step in steps[1:])
    ends = [step for step in steps if step.step_type == "ProgramEnd"]
    assert [end.program_id for end in ends] == [str(steps[0].id)]
    assert memory.verify() == []


@pytest.mark.parametrize("names", [("big",), ("big", "small"), ("small", "big")])
def test_a_result_that_is_too_large_leaves_a_whole_turn(
    memory: StepMemory, names: tuple[str, ...]
) -> None:
    runner = StepRunner(program_calling(*names), memory, tools=[big, small])
    events = run(runner, "chat", "Hello")
    check_stream(memory, events)
    check_whole(memory, events, "storage")
    line = messages(memory, "chat")
    asked = [call["id"] for step in line for call in step.tool_calls or []]
    results = [step for step in line if step.is_tool_step()]
    assert [step.tool_call_id for step in results] == asked
    assert "the limit is 8,388,608" in str(results[names.index("big")].content)
    assert (run(runner, "chat", "And now?")[-1].data or {})["status"] == "failed"
    answering = StepRunner(program_calling("small"), memory, tools=[small])
    assert (run(answering, "chat", "Again")[-1].data or {})["status"] == "completed"
    check_openai([step.to_message_dict() for step in messages(memory, "chat")])


def test_an_answer_that_is_too_large_leaves_its_steps(memory: StepMemory) -> None:
    def program(given: list[dict[str, Any]]) -> str:
        return HUGE

    events = run(StepRunner(program, memory), "chat", "Hello")
    check_stream(memory, events)
    check_whole(memory, events, "error")


def test_arguments_that_are_too_large_leave_its_steps(memory: StepMemory) -> None:
    ran: list[str] = []

    def take(text: str) -> str:
        """Take a text."""
        ran.append(text)
        return "taken"

    def program(given: list[dict[str, Any]]) -> Any:
        return calling("take", text=HUGE)

    events = run(StepRunner(program, memory, tools=[take]), "chat", "Hello")
    check_stream(memory, events)
    check_whole(memory, events, "storage")
    assert ran == []


def test_somebody_else_who_writes_to_the_session_takes_no_steps_away(memory: StepMemory) -> None:
    repo = memory.repository()

    async def meddling() -> str:
        """Write to the session that this runs in."""
        await repo.append("chat", [{"role": "user", "content": "Me, too"}])
        return "written"

    events = run(StepRunner(program_calling("meddling"), memory, tools=[meddling]), "chat", "Hello")
    check_whole(memory, events, "storage")
    check_one_error(events)
    assert memory.run(events[0].run_id).steps[1].result == "written"


def check_one_error(events: list[Any]) -> None:
    """What holds of a conflict: it is told once, in words."""
    errors = [e.data for e in events if e.type.value == "error"]
    assert [error["type"] for error in errors] == ["SequenceConflictError"]
    assert "BranchPosition" not in errors[0]["message"]


@pytest.mark.parametrize("how", ["purge", "clear", "delete", "purge and write"])
def test_a_session_that_is_gone_takes_no_steps(memory: StepMemory, how: str) -> None:
    repo = memory.repository()

    async def losing() -> str:
        """Forget the session that this runs in."""
        if how == "delete":
            await repo.delete_steps("chat", 1)
        elif how == "clear":
            memory.clear()
        else:
            memory.purge({"session_id": "chat"})
        if how == "purge and write":
            await repo.append("chat", [{"role": "user", "content": "Me, too"}])
        return "done"

    events = run(StepRunner(program_calling("losing"), memory, tools=[losing]), "chat", "Hello")
    assert (events[-1].data or {})["termination_reason"] == "storage"
    check_one_error(events)
    assert memory.find({"session_id": "chat"}).steps == []
    assert [s.session_id for s in memory.find().steps] == []
    assert memory.verify() == []


def test_steps_that_cannot_be_stored_in_between_wait(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program without tools stores its steps now and then; that may fail for a while."""
    refused: list[int] = []
    commit = SessionRepository.commit_now

    def busy(repo: Any, session_id: str, given: Any, agent_steps: Any, **options: Any) -> Any:
        if not given and len(refused) < 3:
            refused.append(len(agent_steps))
            raise StorageBusyError("not now")
        return commit(repo, session_id, given, agent_steps, **options)

    monkeypatch.setattr(SessionRepository, "commit_now", busy)

    @record_step
    def one(number: int) -> int:
        return number

    async def program(given: list[dict[str, Any]]) -> str:
        return str(sum(one(number) for number in range(70)))

    events = run(StepRunner(program, memory), "chat", "Count")
    check_stream(memory, events)
    assert (events[-1].data or {})["status"] == "completed"
    assert "recording_errors" not in (events[-1].data or {})
    assert refused == [50, 51, 52]
    assert [step.hop for step in memory.run(events[0].run_id).steps] == list(range(72))


def test_a_cut_off_call_that_cannot_be_answered_is_told(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SessionRepository.commit_now

    def busy(repo: Any, session_id: str, given: Any, *rest: Any, **options: Any) -> Any:
        if any(message.content == INTERRUPTED for message in given):
            raise StorageBusyError("not now")
        return commit(repo, session_id, given, *rest, **options)

    monkeypatch.setattr(SessionRepository, "commit_now", busy)

    async def endless() -> str:
        """Wait for ever."""
        return str(await asyncio.Event().wait())

    runner = StepRunner(program_calling("endless"), memory, tools=[endless])

    async def cancelled() -> list[Any]:
        events: list[Any] = []
        async for event in runner.run_stream("chat", "Hello"):
            events.append(event)
            if event.snapshot is not None and event.snapshot.has_tool_calls():
                await runner.cancel(event.run_id)
        return events

    events = asyncio.run(cancelled())
    told = [event.data for event in events if event.type.value == "error"]
    assert {(data["where"], data["type"]) for data in told} == {("storage", "StorageBusyError")}
    assert events[-1].type.value == "run_cancelled"


def test_what_a_tool_gave_is_stored_while_an_earlier_one_still_runs(memory: StepMemory) -> None:
    """After a crash nobody has to run it again: its result is taken from its AgentStep."""
    seen: list[Any] = []

    async def slow() -> str:
        """Wait until the other one has ended."""
        while not seen:
            await asyncio.sleep(0.005)
            seen.extend(step.result for step in memory.find({"tools": ["small"]}).steps)
        return "slow"

    runner = StepRunner(program_calling("slow", "small"), memory, tools=[slow, small])
    events = asyncio.run(asyncio.wait_for(_collected(runner), 30))
    assert seen == ["little"]
    check_stream(memory, events)
    given = [step.content for step in messages(memory, "chat") if step.is_tool_step()]
    assert given == ["slow", "little"]


async def _collected(runner: StepRunner) -> list[Any]:
    return [event async for event in runner.run_stream("chat", "Hello")]


@pytest.mark.parametrize("kept", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("cut_off", [1, 2, 3])
def test_a_commit_whose_answer_was_lost_is_neither_lost_nor_told_twice(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch, kept: bool, cut_off: int
) -> None:
    commits, commit = 0, SessionRepository.commit_now

    def cut(self: SessionRepository, *args: Any, **options: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits != cut_off:
            return commit(self, *args, **options)
        if kept:
            commit(self, *args, **options)
        raise StorageError("the connection ended; whether it was stored is not known.")

    monkeypatch.setattr(SessionRepository, "commit_now", cut)
    runner = StepRunner(program_calling("small"), memory, tools=[small])
    events = run(runner, "chat", "Hello")
    check_stream(memory, events)
    assert commits > cut_off
    assert events[-1].type.value == "run_completed"
    assert [said.role.value for said in messages(memory, "chat")] == [
        "user", "assistant", "tool", "assistant"
    ]  # fmt: skip
    steps = memory.run(events[0].run_id).steps
    assert [step.hop for step in steps] == list(range(len(steps)))
    assert memory.verify() == []
