"""`StepRunner.run` says when a run failed, and hands over what there is of it."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import dspy
import pytest

from hybridagi_steps import StepMemory, StepRunner, StepRunnerConfig
from hybridagi_steps._concurrency import AT_ONCE
from hybridagi_steps.errors import RunFailedError
from hybridagi_steps.running.stored_events import RunResult
from hybridagi_steps.testing import ScriptedLM


async def half(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    yield "The fare is "
    raise ConnectionError("the desk is closed")


def test_a_failed_run_raises_with_what_was_said_and_where_it_failed(memory: StepMemory) -> None:
    with pytest.raises(RunFailedError, match=r"failed \(error\): ConnectionError: the desk") as met:
        asyncio.run(StepRunner(half, memory).run("desk", "How much?"))
    assert met.value.result.text == "The fare is "
    assert (met.value.result.status, met.value.result.reason) == ("failed", "error")
    cause = met.value.__cause__
    assert isinstance(cause, ConnectionError)
    assert cause.__traceback__ is not None
    [asked, said] = asyncio.run(memory.repository().get_steps("desk"))
    assert (asked.content, said.content) == ("How much?", "The fare is ")


def test_it_returns_the_same_when_it_is_told_to(memory: StepMemory) -> None:
    result = asyncio.run(StepRunner(half, memory).run("desk", "?", raise_on_failure=False))
    assert (result.status, result.text) == ("failed", "The fare is ")
    assert result.error == "ConnectionError: the desk is closed"
    shown: Any = result
    assert repr(shown).startswith(f"<run {result.run_id} failed (error): {result.error}: The fare")
    assert str(result.error) in shown._repr_html_()


def test_what_completed_tells_of_no_error(memory: StepMemory) -> None:
    async def fare(messages: list[dict[str, Any]]) -> str:
        return "120"

    result = asyncio.run(StepRunner(fare, memory).run("desk", "?"))
    assert (result.error, repr(result)) == (None, f"<run {result.run_id} completed: 120>")


def test_a_callable_that_raises_what_no_future_can_hold_fails(memory: StepMemory) -> None:
    def empty(messages: list[dict[str, Any]]) -> str:
        return next(iter([]))

    with pytest.raises(RunFailedError, match="StopIteration"):
        asyncio.run(StepRunner(empty, memory).run("desk", "How much?"))


def test_a_callable_that_never_ends_holds_up_no_other_session(memory: StepMemory) -> None:
    going_on = threading.Event()

    def answer(messages: list[dict[str, Any]]) -> str:
        return "Here." if "now" in messages[-1]["content"] else str(going_on.wait(60))

    runner = StepRunner(answer, memory, config=StepRunnerConfig(timeout_seconds=0.1))

    async def ask() -> list[RunResult]:
        hung = (runner.run(f"hung-{n}", "?", raise_on_failure=False) for n in range(AT_ONCE))
        late = await asyncio.gather(*hung)
        return [*late, await runner.run("desk", "And now?")]

    *late, last = asyncio.run(ask())
    assert {result.reason for result in late} == {"timeout"}
    assert last.text == "Here."
    going_on.set()


def test_a_limit_is_a_failure_with_its_summary(memory: StepMemory) -> None:
    def look() -> str:
        """Look once more."""
        return "nothing"

    turn = {"next_thought": "Again.", "next_tool_name": "look", "next_tool_args": {}}
    agent = dspy.ReAct("question -> answer", tools=[look])
    config = StepRunnerConfig(max_steps=2, termination_summary=True)
    runner = StepRunner(agent, memory, config=config)
    with (
        dspy.context(lm=ScriptedLM([turn, turn, {"summary": "Nothing found."}])),
        pytest.raises(RunFailedError, match=r"failed \(max_steps\)") as met,
    ):
        asyncio.run(runner.run("desk", "Where is it?"))
    assert met.value.result.text == "Nothing found."


def test_a_run_that_somebody_cancels_raises_too(memory: StepMemory) -> None:
    async def slow(messages: list[dict[str, Any]]) -> str:
        await asyncio.sleep(60)
        return "late"

    runner = StepRunner(slow, memory)

    async def cancelled() -> None:
        work = asyncio.create_task(runner.run("desk", "?"))
        while not runner.active_runs():
            await asyncio.sleep(0)
        [run_id] = runner.active_runs()
        assert await runner.cancel(run_id)
        await work

    with pytest.raises(RunFailedError, match=r"cancelled \(cancelled\)"):
        asyncio.run(cancelled())
