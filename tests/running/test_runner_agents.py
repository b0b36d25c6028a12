"""A graph agent in a session: one that fails ends its run as failed, and says nothing empty."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import pytest
from agent_programs import chain, say
from runner_cases import kinds, messages, run

from hybridagi_steps import GraphInterpreter, StepMemory
from hybridagi_steps.programs import Action
from hybridagi_steps.programs.tools import Speak
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.testing import scripted_lm


def broken() -> None:
    """Fail."""
    raise OSError("disk on fire")


def again() -> None:
    """Do it once more."""


FAILING = chain(Action("b", "broken", "Break", disable_inference=True))
LONG = chain(*(Action(f"n{n}", "again", "Go on", disable_inference=True) for n in range(5)))


@pytest.mark.parametrize(
    ("agent", "kind", "reason"),
    [
        (GraphInterpreter(FAILING, [broken]), "OSError", "error"),
        (GraphInterpreter(FAILING, [broken], on_error="raise"), "OSError", "error"),
        (GraphInterpreter(LONG, [again], max_iters=3), "LimitReachedError", "error"),
    ],
)
def test_an_agent_that_does_not_finish_fails_its_run(
    memory: StepMemory, agent: GraphInterpreter, kind: str, reason: str
) -> None:
    events = run(StepRunner(agent, memory), "s", "Go.", scripted_lm([]))
    assert kinds(events)[-1] == "run_failed"
    assert events[-1].data["termination_reason"] == reason
    assert events[-1].data["error"]["type"] == kind
    assert [message.role.value for message in messages(memory, "s")] == ["user"]
    assert memory.find({"step_types": "ProgramEnd"}).steps[-1].status == "error"


def test_one_that_finishes_answers(memory: StepMemory) -> None:
    agent = GraphInterpreter(chain(say("It is done.")), [Speak()])
    assert kinds(run(StepRunner(agent, memory), "s", "Go.", scripted_lm([])))[-1] == "run_completed"
    assert messages(memory, "s")[-1].content == "It is done."
