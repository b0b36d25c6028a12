"""What recording costs above DSPy's own dispatch to a callback that does nothing."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback

import hybridagi_steps as hs

STEPS_PER_CALL = 2 + 8 * 3
CALLS = 25
ROUNDS = 15
BUDGET_MICROSECONDS = 100


class Counter:
    """A memory that only counts, so that no store is measured."""

    redact = None

    def __init__(self) -> None:
        self.steps = 0

    def add(self, step: hs.AgentStep) -> None:
        self.steps += 1

    def run(self, run_id: str) -> list[hs.AgentStep]:
        return []


class Leaf(dspy.Module):
    """Gives back what it gets."""

    def forward(self, question: str, number: int) -> Any:
        """Give it back."""
        return dspy.Prediction(answer=question, number=number)


def find(query: str) -> dict[str, Any]:
    """Find some rows."""
    return {"rows": [{"id": 1, "text": "some text"}] * 5, "query": query}


class Tree(dspy.Module):
    """Calls modules and tools."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = Leaf()
        self.tool = dspy.Tool(find)

    def forward(self, question: str) -> Any:
        """Call eight of each."""
        for number in range(8):
            self.leaf(question=question, number=number)
            self.tool(query=question)
        return dspy.Prediction(answer="a" * 500)


def cpu_seconds(program: Any, callback: BaseCallback) -> float:
    """CPU time of some calls."""
    with dspy.context(callbacks=[callback]):
        begun = time.process_time()
        for _ in range(CALLS):
            program(question="What is the capital of France? " * 5)
        return time.process_time() - begun


@pytest.mark.slow
def test_a_recorded_step_costs_at_most_a_hundred_microseconds() -> None:
    program, memory = Tree(), Counter()
    recorder, nothing = hs.StepRecorder(memory), BaseCallback()
    rounds = [
        (cpu_seconds(program, nothing), cpu_seconds(program, recorder)) for _ in range(ROUNDS)
    ]
    assert memory.steps == STEPS_PER_CALL * CALLS * ROUNDS
    # The least of many is what the code needs; the rest is what else the machine was doing.
    least_nothing = min(without for without, _ in rounds)
    least_recorded = min(recorded for _, recorded in rounds)
    spent = (least_recorded - least_nothing) / (STEPS_PER_CALL * CALLS) * 1e6
    assert spent <= BUDGET_MICROSECONDS, f"{spent:.0f} µs per step"
