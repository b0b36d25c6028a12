"""The tasks that ship: sound plans, checks that fail before the work and pass after it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.planning.artifact_types import shape_problem
from hybridagi_steps.planning.example_tasks import FINISH_TOOL, ReplayTurn, Task, task, tasks
from hybridagi_steps.planning.plan import PlanStep
from hybridagi_steps.workspace.tools import workspace_tools
from hybridagi_steps.workspace.workspace import Workspace
from tests.plan_waves import waves

TASKS = tasks()
MOST_BYTES = 200_000


def open_workspace(a_task: Task, folder: Path) -> Workspace:
    a_task.copy_workspace(folder / "work")
    return Workspace(
        folder / "work", commands=a_task.commands, state=folder / "state", durable=False
    )


def replay(workspace: Workspace, step: PlanStep, turns: list[ReplayTurn]) -> None:
    """Work on one step as the turns say, in a copy that is merged at the end."""
    with workspace.overlay() as overlay:
        tools = {tool.__name__: tool for tool in workspace_tools(overlay)}
        for turn in turns:
            for call in turn.calls:
                if call.name != FINISH_TOOL:
                    assert "Traceback" not in tools[call.name](**call.arguments)
        workspace.merge(overlay.changes())


def test_there_are_at_least_six_tasks_and_they_are_small() -> None:
    assert len(TASKS) >= 6
    folder = Path(str(TASKS[0].folder)).parent
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert sum(sizes) < MOST_BYTES


@pytest.mark.parametrize("a_task", TASKS, ids=lambda a_task: a_task.name)
def test_the_check_fails_before_the_work_and_passes_after_it(a_task: Task, tmp_path: Path) -> None:
    workspace = open_workspace(a_task, tmp_path)
    assert a_task.accept(workspace.root).exit_code == 1, "accepted before anything was done"
    turns = a_task.replay()
    for wave in waves(a_task.plan()):
        for step in wave:
            replay(workspace, step, [turn for turn in turns if turn.step == step.id])
    result = a_task.accept(workspace.root)
    assert result.ok, result.output


@pytest.mark.parametrize("a_task", TASKS, ids=lambda a_task: a_task.name)
def test_steps_of_a_wave_do_not_need_each_other(a_task: Task, tmp_path: Path) -> None:
    workspace = open_workspace(a_task, tmp_path)
    turns = a_task.replay()
    for wave in waves(a_task.plan()):
        overlays = [(step, workspace.overlay()) for step in wave]
        for step, overlay in overlays:
            tools = {tool.__name__: tool for tool in workspace_tools(overlay)}
            for call in (call for turn in turns if turn.step == step.id for call in turn.calls):
                if call.name != FINISH_TOOL:
                    tools[call.name](**call.arguments)
        for _, overlay in overlays:
            workspace.merge(overlay.changes())
            overlay.close()
    assert a_task.accept(workspace.root).ok


@pytest.mark.parametrize("a_task", TASKS, ids=lambda a_task: a_task.name)
def test_a_plan_is_sound_runs_side_by_side_and_names_files_that_exist(
    a_task: Task, tmp_path: Path
) -> None:
    plan = a_task.plan()
    assert any(len(wave) > 1 for wave in waves(plan)), "nothing in it can run in parallel"
    assert any(step.artifacts for step in plan.steps)
    workspace = open_workspace(a_task, tmp_path)
    for step in plan.steps:
        for path in step.files:
            assert workspace.exists(path), f"{step.id} names {path}"


@pytest.mark.parametrize("a_task", TASKS, ids=lambda a_task: a_task.name)
def test_a_replay_ends_every_step_with_the_artifacts_it_promised(a_task: Task) -> None:
    plan, turns = a_task.plan(), a_task.replay()
    assert a_task.replay_kind == "scripted"
    assert list(dict.fromkeys(turn.step for turn in turns)) == [step.id for step in plan.steps]
    for step in plan.steps:
        *working, last = [turn for turn in turns if turn.step == step.id]
        assert [call.name for call in last.calls] == [FINISH_TOOL]
        assert not any(call.name == FINISH_TOOL for turn in working for call in turn.calls)
        artifacts = last.calls[0].arguments["artifacts"]
        assert set(artifacts) == set(step.artifacts)
        for name, value in artifacts.items():
            assert shape_problem(step.shapes.get(name), value) is None
    ids = [call.id for turn in turns for call in turn.calls]
    assert len(ids) == len(set(ids))


def test_a_copy_leaves_out_what_installers_compile(tmp_path: Path) -> None:
    source = Path(str(TASKS[0].folder))
    copied = tmp_path / "installed"
    shutil.copytree(source, copied)
    (copied / "workspace" / "__pycache__").mkdir()
    (copied / "workspace" / "__pycache__" / "x.pyc").write_bytes(b"x")
    replace(TASKS[0], folder=copied).copy_workspace(tmp_path / "work")
    assert not (tmp_path / "work" / "__pycache__").exists()


def test_an_unknown_task_is_refused_with_those_that_there_are() -> None:
    assert task("clean_orders").title == "Clean a CSV file and compute a report"
    with pytest.raises(WorkspaceError, match="clean_orders"):
        task("nothing")


def test_the_settings_of_tasks_hold_nothing_but_what_is_read() -> None:
    for a_task in TASKS:
        stored = json.loads(a_task.folder.joinpath("task.json").read_text("utf-8"))
        assert set(stored) == {"name", "title", "requirement", "commands", "acceptance", "replay"}
        assert stored["name"] == a_task.folder.name
