"""A plan on a real small language model over HTTP: whatever it does, what is told of it is true."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.planning.example_tasks import task
from hybridagi_steps.planning.executor import StepExecutor
from hybridagi_steps.workspace.workspace import Workspace

pytestmark = pytest.mark.slow


def test_a_small_model_is_told_of_truthfully(
    small_model: dspy.LM, tmp_path: Path, file_memory: hs.StepMemory
) -> None:
    chosen = task("fix_pagination")
    chosen.copy_workspace(tmp_path / "files")
    workspace = Workspace(tmp_path / "files", commands=chosen.commands, state=tmp_path / "state")
    before = workspace.manifest()
    orchestrator = hs.Orchestrator(
        workspace=workspace,
        memory=file_memory,
        lm=small_model,
        executor=StepExecutor(max_turns=3),
        max_attempts=1,
        max_replans=0,
        on_failure="rollback",
    )
    result = orchestrator.run(requirements=chosen.requirement, plan=chosen.plan())
    accepted = chosen.accept(workspace.root).exit_code == 0
    assert [step.id for step in result.steps] == [step.id for step in chosen.plan().steps]
    assert result.success == all(step.status == "succeeded" for step in result.steps)
    for step in result.steps:
        assert (step.error is not None) == (step.status == "failed")
        assert (step.because is not None) == (step.status == "skipped")
        assert (step.spent.calls > 0) == (step.attempts > 0)
    if not result.success:
        # So small a model is not expected to do it; then nothing may be left of its attempts.
        assert not accepted
        assert result.rolled_back
        assert workspace.manifest() == before
    assert (result.token_usage.total.total_tokens or 0) > 100
    ended = file_memory.run(result.run_id).steps[-1]
    assert (ended.program, ended.status == "ok") == ("Orchestrator", result.success)


def test_a_small_model_that_cannot_plan_says_so(
    small_model: dspy.LM, file_memory: hs.StepMemory
) -> None:
    orchestrator = hs.Orchestrator(memory=file_memory, lm=small_model, max_replans=0)
    result = orchestrator.run(requirements="Write a poem about the sea.")
    assert result.token_usage.planning.calls >= 1
    assert result.success or result.error is not None or any(s.error for s in result.steps)
    if result.plan is None:
        assert isinstance(result.error, hs.errors.PlanError)
