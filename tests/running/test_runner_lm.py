"""Language models of one's own: what a run says of one that lacks a method."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import dspy
import pytest
from runner_cases import SyncAgent, run

from hybridagi_steps import StepMemory
from hybridagi_steps.running.runner import StepRunner

QA: Any = "question -> answer"
# DSPy 3.4 still takes such models, and warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*(BaseLM|OpenAI).*:DeprecationWarning")


class OnlySync(dspy.BaseLM):
    """A model that can be asked in threads only."""

    def __init__(self) -> None:
        super().__init__(model="only-sync")

    def forward(self, prompt: Any = None, messages: Any = None, **_: Any) -> Any:
        """Answer."""
        raise NotImplementedError("no answer today")


@pytest.mark.parametrize("program", [dspy.Predict(QA), dspy.ReAct(QA, tools=[])])
def test_the_method_that_a_model_lacks_is_named(memory: StepMemory, program: Any) -> None:
    events = run(StepRunner(program, memory), "chat", "?", OnlySync())
    error = events[-1].data["error"]
    assert error["type"] == "InvalidSettingError"
    assert error["message"].startswith("OnlySync.aforward() is missing")


def test_another_error_of_the_kind_is_left_alone(memory: StepMemory) -> None:
    events = run(StepRunner(SyncAgent(), memory), "chat", "?", OnlySync())
    error = events[-1].data["error"]
    assert (error["type"], error["message"]) == ("NotImplementedError", "no answer today")
