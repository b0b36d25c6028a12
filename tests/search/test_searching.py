"""Searches that leave runs out: answered without asking the store for all other steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType


def step(number: int, purpose: str, run_id: str | None, scope: str | None = None) -> AgentStep:
    """Return a step that did something."""
    return AgentStep(
        id=f"step-{number}",
        step_type=AgentStepType.Action,
        inputs={"purpose": purpose, "tool": "refund"},
        outputs={"result": f"done {number}"},
        run_id=run_id,
        scope=scope,
    )


@pytest.fixture(params=["file", "memory"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> StepMemory:
    address = ":memory:" if request.param == "memory" else tmp_path / "steps.db"
    held = StepMemory(address, embedder="hashing")
    held.add(
        [
            step(0, "refund the ticket", "mine"),
            step(1, "refund the ticket", "other"),
            step(2, "refund the hotel", None),
            step(3, "refund the ticket", "trial", scope="compile:1"),
            step(4, "refund the train", "third"),
        ]
    )
    return held


def found(memory: StepMemory, *runs: str, query: str = "refund the ticket") -> set[str]:
    return {str(hit.step.id) for hit in memory.search(query, where={"exclude_run_id": list(runs)})}


def test_all_runs_but_some_are_found_and_no_trial(memory: StepMemory) -> None:
    assert found(memory, "mine") == {"step-1", "step-2", "step-4"}
    assert found(memory, "mine", "third") == {"step-1", "step-2"}


def test_an_unknown_run_leaves_nothing_out(memory: StepMemory) -> None:
    assert found(memory, "nowhere") == {"step-0", "step-1", "step-2", "step-4"}


def test_what_an_exclusion_hides_stays_hidden_from_exact_duplicates(memory: StepMemory) -> None:
    said = str(memory.get("step-3").steps[0])
    assert "step-3" not in found(memory, "nowhere", query=said)


def test_steps_added_or_deleted_later_are_followed(memory: StepMemory) -> None:
    assert "step-5" not in found(memory, "mine")
    memory.add([step(5, "refund the taxi", "fourth"), step(6, "refund the taxi", "mine")])
    memory.delete("step-1")
    assert found(memory, "mine") == {"step-2", "step-4", "step-5"}


def test_an_exclusion_adds_up_with_other_conditions(memory: StepMemory) -> None:
    where = {"exclude_run_id": ["mine"], "tools": ["refund"], "scope": "*"}
    ids = {str(hit.step.id) for hit in memory.search("refund the ticket", where=where)}
    assert ids == {"step-1", "step-2", "step-3", "step-4"}


@pytest.mark.parametrize("arguments", [{}, {"city": "Oslo"}])
def test_program_calls_are_found_by_what_they_are_for(
    memory: StepMemory, arguments: dict[str, str]
) -> None:
    purposes = ["refund the flight to Rome", "book a hotel in Paris", "cancel the cello lesson"]
    for purpose in purposes:
        inputs = {"program": "desk", "purpose": purpose, "arguments": arguments}
        memory.add(AgentStep(step_type=AgentStepType.ProgramCall, inputs=inputs))
    for purpose in purposes:
        assert memory.search(purpose)[0].step.purpose == purpose
    assert memory.search("cello", mode="lexical")[0].step.purpose == purposes[2]
    assert len(memory.search("desk", 9, mode="lexical")) == 3


def test_a_small_memory_is_searched_without_loading_faiss() -> None:
    code = (
        "import sys; from hybridagi_steps import AgentStep, StepMemory; "
        "memory = StepMemory(':memory:', embedder='hashing'); "
        "memory.add(AgentStep(step_type='Action', inputs={'purpose': 'refund'})); "
        "assert memory.search('refund'); memory.close(); "
        "sys.exit('faiss was loaded' if 'faiss' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
