"""Files that a step names and that are none: who may go on without them, and what is said."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import errors
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.testing import ScriptedLM, ToolCall
from hybridagi_steps.workspace.workspace import Workspace

NAMED = {"gone.txt": "is not there yet", "src": "is a directory", "link": "is no regular file"}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "files" / "src").mkdir(parents=True)
    (tmp_path / "files" / "link").symlink_to("src")
    return Workspace(tmp_path / "files", state=tmp_path / "state")


def step_of(kind: str, name: str, workspace: Workspace) -> Any:
    lm = ScriptedLM(lambda _: [ToolCall("finish_step", {"summary": "done"})])
    result = Orchestrator(lm=lm, workspace=workspace, max_replans=0).run(
        plan=f"PLAN: p\nSTEP: a\nTYPE: {kind}\nGOAL: g\nFILES: {name}"
    )
    return result.step("a")


@pytest.mark.parametrize("name", NAMED)
def test_a_generate_step_goes_on_and_is_told(workspace: Workspace, name: str) -> None:
    step = step_of("generate", name, workspace)
    assert (step.status, step.cut) == ("succeeded", [f"{name}: {NAMED[name]}"])


@pytest.mark.parametrize("kind", ["analyze", "modify", "validate", "cleanup"])
@pytest.mark.parametrize("name", NAMED)
def test_any_other_step_fails(workspace: Workspace, name: str, kind: str) -> None:
    step = step_of(kind, name, workspace)
    assert step.status == "failed"
    assert isinstance(step.error, errors.WorkspaceError)
    assert repr(name) in str(step.error)
    assert step.spent.calls == 0
