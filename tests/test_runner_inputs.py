"""What callers and programs give a runner: answered, or refused with a clear word."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from runner_cases import check_stream, messages, replayed, run, said

from hybridagi_steps import StepMemory
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.running.runner import StepRunner


def error_of(events: list[Any]) -> dict[str, str]:
    """The error that a run ended with."""
    assert events[-1].type.value == "run_failed"
    assert events[-1].data["termination_reason"] == "error"
    return events[-1].data["error"]


def test_a_sync_generator_streams(memory: StepMemory) -> None:
    def pieces(_: Any) -> Iterator[str]:
        yield "a"
        yield "b"

    events = run(StepRunner(pieces, memory), "chat", "Hello")
    check_stream(memory, events)
    assert [each["content"] for each in replayed(events).values()] == ["ab"]
    assert said(memory, "chat") == [("user", "Hello"), ("assistant", "ab")]


async def _numbers(_: Any) -> AsyncIterator[Any]:
    yield 5


async def _nothing(_: Any) -> AsyncIterator[str]:
    for piece in ():
        yield piece


@pytest.mark.parametrize("program", [_numbers, lambda _: 5, lambda _: ["a"], lambda _: iter([5])])
def test_what_is_no_answer_fails_the_run(memory: StepMemory, program: Any) -> None:
    error = error_of(run(StepRunner(program, memory), "chat", "Hello"))
    assert error["type"] == "MessageError"
    assert "of type" in error["message"]


@pytest.mark.parametrize("program", [_nothing, lambda _: "", lambda _: iter(())])
def test_an_empty_answer_fails_the_run(memory: StepMemory, program: Any) -> None:
    error = error_of(run(StepRunner(program, memory), "chat", "Hello"))
    assert "returned nothing" in error["message"]
    assert len(messages(memory, "chat")) == 1


def documented(_: Any) -> str:
    """Say hello.

    In one word.
    """
    return "hello"


def bare(_: Any) -> str:
    return "hello"


@pytest.mark.parametrize(("program", "purpose"), [(documented, "Say hello."), (bare, "bare")])
def test_a_callable_is_recorded_with_its_purpose(
    memory: StepMemory, program: Any, purpose: str
) -> None:
    events = run(StepRunner(program, memory), "chat", "Hello")
    calls = [
        s for s in memory.run(events[0].run_id).steps if s.step_type is AgentStepType.ProgramCall
    ]
    assert [(call.inputs or {})["purpose"] for call in calls] == [purpose]
