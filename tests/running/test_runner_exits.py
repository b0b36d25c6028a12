"""Code of a run that tries to end the process: the run fails, everything else lives."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import sys
from typing import Any

import dspy
import pytest
from runner_cases import SEARCHES, SyncAgent, check_stream, run, said

from hybridagi_steps import StepMemory
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.testing import ScriptedLM

QA = "question -> answer"


def failed_with(events: list[Any], kind: str) -> bool:
    """Whether a run failed with an error that names `kind`."""
    data = events[-1].data
    assert (events[-1].type.value, data["termination_reason"]) == ("run_failed", "error")
    return kind in data["error"]["message"]


def leave(_: Any) -> str:
    """Leave."""
    sys.exit(3)


async def leave_async(_: Any) -> str:
    """Leave."""
    sys.exit(3)


def interrupt(_: Any) -> str:
    """Interrupt, in a thread."""
    raise KeyboardInterrupt


def search(query: str) -> str:
    """Leave instead of searching."""
    sys.exit(query)


async def search_async(query: str) -> str:
    """Leave instead of searching."""
    sys.exit(query)


class Leaving(dspy.Module):
    """Leaves in a thread."""

    def forward(self, question: str) -> Any:
        """Leave."""
        sys.exit(question)


class LeavingAsync(dspy.Module):
    """Leaves on the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict(QA)

    async def aforward(self, question: str) -> Any:
        """Leave."""
        sys.exit(question)


@pytest.mark.parametrize("program", [leave, leave_async, Leaving(), LeavingAsync()])
def test_a_program_that_exits_fails_its_run(memory: StepMemory, program: Any) -> None:
    events = run(StepRunner(program, memory), "chat", "3")
    check_stream(memory, events)
    assert failed_with(events, "SystemExit (3)")
    events = run(StepRunner(lambda _: "fine", memory), "chat", "again")
    assert events[-1].type.value == "run_completed"


def test_an_interrupt_of_a_thread_fails_the_run(memory: StepMemory) -> None:
    assert failed_with(run(StepRunner(interrupt, memory), "chat", "Hello"), "KeyboardInterrupt")


@pytest.mark.parametrize("tool", [search, search_async])
def test_a_tool_that_exits_fails_the_run(memory: StepMemory, tool: Any) -> None:
    tool = dspy.Tool(tool, name="search")
    program = dspy.ReAct(QA, tools=[tool])
    events = run(StepRunner(program, memory), "chat", "Capital?", ScriptedLM(SEARCHES))
    check_stream(memory, events)
    assert failed_with(events, "SystemExit (x)")
    assert [role for role, _ in said(memory, "chat")] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("seconds", [None, 5.0])
def test_so_does_one_in_a_thread(memory: StepMemory, seconds: float | None) -> None:
    config = StepRunnerConfig(tool_timeout_seconds=seconds)
    runner = StepRunner(SyncAgent([search]), memory, config=config)
    events = run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    assert failed_with(events, "SystemExit (x)")


def test_so_does_one_that_a_callable_asks_for(memory: StepMemory) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    call["function"] = {"name": "search", "arguments": '{"query": "x"}'}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    events = run(StepRunner(lambda _: asking, memory, tools=[search]), "chat", "Capital?")
    assert failed_with(events, "SystemExit (x)")


@pytest.mark.parametrize("point", ["on_run_start", "on_model_start", "on_tool_end"])
@pytest.mark.parametrize("later", [True, False])
def test_a_hook_that_exits_fails_the_run(memory: StepMemory, point: str, later: bool) -> None:
    def now(*_: Any) -> None:
        sys.exit(4)

    async def soon(*_: Any) -> None:
        sys.exit(4)

    hook = type("Exit", (), {point: staticmethod(soon if later else now)})()
    agent = dspy.ReAct(QA, tools=[dspy.Tool(lambda query: query, name="search", desc="Search.")])
    runner = StepRunner(agent, memory, hooks=[hook])
    events = run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    assert failed_with(events, "SystemExit (4)")
