"""A graph agent in a session: one that fails says nothing empty, and goes on at its node."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

import dspy
import pytest
from agent_programs import chain, say
from runner_cases import collected, kinds, messages, run

from hybridagi_steps import GraphInterpreter, StepMemory
from hybridagi_steps.programs import Action, Program
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


def spoken_of(runner: StepRunner) -> list[str]:
    """Take the session's turn up; return the kinds of its events."""
    with dspy.context(lm=scripted_lm([])):
        return kinds(asyncio.run(collected(runner.resume("s"))))


def booking(done: list[str], *more: str) -> StepRunner:
    """An agent that does one thing after the other, in two programs; the last one fails once."""

    def do(what: str) -> str:
        """Do it."""
        done.append(what)
        if done.count("pay") == 1 and what == "pay":
            raise ConnectionError("the bank is closed")
        return what

    def step(what: str) -> Action:
        return Action(what, "do", "Do it", what, disable_inference=True)

    programs = [
        chain(*map(step, ("look", *more)), Program("call", "Order it", "order"), say("Done.")),
        chain(*map(step, ("choose", "pay")), name="order"),
    ]
    return StepRunner(GraphInterpreter(programs, [do, Speak()]), StepMemory("steps.db"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
def test_a_turn_that_failed_goes_on_at_its_node() -> None:
    runner = booking(done := [])
    assert kinds(run(runner, "s", "Tea", scripted_lm([])))[-1] == "run_failed"
    assert spoken_of(runner)[-1] == "run_completed"
    assert done == ["look", "choose", "pay", "pay"]
    assert messages(runner.memory, "s")[-1].content == "Done."
    assert spoken_of(runner) == []


@pytest.mark.usefixtures("here")
def test_one_whose_programs_have_changed_begins_anew_and_says_so() -> None:
    assert kinds(run(booking([]), "s", "Tea", scripted_lm([])))[-1] == "run_failed"
    runner = booking(done := [], "compare")
    assert "error" in spoken_of(runner)
    assert done == ["look", "compare", "choose", "pay"]


def killed(path: str, until: int) -> None:
    """Take up what was cut off, or begin; die in the middle of one node."""

    def note(what: str) -> str:
        """Note it in a file."""
        with Path(path, "noted").open("a") as file:
            file.write(what)
        if what == str(until):
            os.kill(os.getpid(), signal.SIGKILL)
        return what

    nodes = [Action(f"n{n}", "note", "Note it", str(n), disable_inference=True) for n in range(4)]
    programs = [chain(*nodes[:1], Program("p", "The rest", "rest")), chain(*nodes[1:], name="rest")]
    memory = StepMemory(Path(path, "steps.db"), embedder="hashing")
    runner = StepRunner(GraphInterpreter(programs, [note]), memory)
    if memory.stats()["messages"]:
        spoken_of(runner)
    else:
        run(runner, "s", "Go.", scripted_lm([]))
    memory.close()


def test_a_process_that_is_killed_in_a_turn_loses_no_node(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for until in (1, 1, 3, 9):
        worker = context.Process(target=killed, args=(str(tmp_path), until))
        worker.start()
        worker.join()
        assert worker.exitcode == (0 if until == 9 else -signal.SIGKILL)
    assert Path(tmp_path, "noted").read_text() == "01" + "1" + "123" + "3"
    with StepMemory(tmp_path / "steps.db") as memory:
        assert messages(memory, "s")[-1].content == "3"
        assert memory.verify() == []
