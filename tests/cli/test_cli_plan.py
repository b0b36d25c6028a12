"""`hybridagi-steps plan` on the command line, offline, and the measurement behind its claims."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console

import hybridagi_steps as hs
from hybridagi_steps.cli import main
from hybridagi_steps.cli.plan import PlanTree
from hybridagi_steps.planning.example_tasks import tasks
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.testing import ScriptedLM, ToolCall
from tests.benchmarks import plans


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HYBRIDAGI_STEPS_MODEL", raising=False)


def test_a_shipped_task_is_run_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--task", "fix_pagination", "--workspace", "w", "--db", "p.db"]) == 0
    told = capsys.readouterr().out
    assert "✓ find_bugs" in told
    assert "succeeded; 13 calls" in told
    with hs.StepMemory("p.db") as memory:
        assert memory.find({"program": "Orchestrator"}).steps


def test_json_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--task", "clean_orders", "--workspace", "w", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["success"]
    assert [step["status"] for step in told["steps"]] == ["succeeded"] * 4
    assert 0 < told["comparison"]["ours_cached"] < told["comparison"]["ours"]


def test_a_plan_that_fails_ends_with_one_and_may_be_undone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("own.txt").write_text(
        "PLAN: p\nSTEP: write_tests\nGOAL: g\nSTEP: other\nTYPE: modify\nGOAL: g\nFILES: gone.txt"
    )
    words = ["plan", "--task", "fix_pagination", "--workspace", "w", "--plan", "own.txt"]
    assert main([*words, "--rollback", "--replans", "0"]) == 1
    told = capsys.readouterr().out
    assert "other: WorkspaceError: " in told
    assert "brought back" in told
    assert not Path("w/tests/test_last_page.py").exists()


def test_help_says_what_the_list_of_commands_does_not_hold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for word in ("bubblewrap", "find -exec", "sed e", "tar --checkpoint-action", "test runner"):
        assert word in told


def test_places_that_others_run_are_written_if_they_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return [ToolCall("finish_step", {"summary": "written"})]
        return [ToolCall("write_file", {"path": ".envrc", "content": "export A=1"})]

    Path("w").mkdir()
    Path("own.txt").write_text("PLAN: p\nSTEP: one\nTYPE: modify\nGOAL: g")
    words = ["plan", "--plan", "own.txt", "--workspace", "w", "--model", "scripted"]
    for more, written in (([], False), (["--allow-write", ".envrc/"], True)):
        with patch("hybridagi_steps.cli.plan._model", return_value=ScriptedLM(write)):
            assert main([*words, *more]) == 0
        capsys.readouterr()
        assert Path("w/.envrc").exists() is written


def test_a_plan_can_be_looked_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--task", "fix_pagination", "--workspace", "w", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert hs.Plan.parse(text).steps[0].id == "find_bugs"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say what is wanted"),
        (["do it"], "--model"),
        (["do it", "--plan", "gone.txt"], "cannot be read"),
        (["--task", "nothing", "--workspace", "w"], "add_cli_option"),
        (["do it", "--model", "a/b", "--workspace", "nowhere"], "nowhere"),
        (["do it", "--task", "fix_pagination", "--workspace", "full"], "new directory"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_the_tree_changes_while_it_is_watched() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, legacy_windows=False)

    def event(step_id: str | None, **data: object) -> StepEvent:
        return StepEvent(type=StepEventType.STEP_DELTA, run_id="r", step_id=step_id, data=data)

    steps: list[dict[str, Any]] = [
        {"id": "a", "title": "look", "depends_on": []},
        {"id": "b", "title": "write \x1b[31m", "depends_on": ["a"]},
    ]
    with PlanTree(console, "do it") as tree:
        tree(event(None, steps=steps, states={}))
        tree(event("a", status="running"))
    shown = screen.getvalue()
    assert "▸ look" in shown
    assert "· write" in shown
    assert "write \x1b[31m" not in shown


def test_what_plans_save_is_measured_on_every_task() -> None:
    found = plans.measure(steps=20)
    assert list(found["tasks"]) == [task.name for task in tasks()]
    for each in found["tasks"].values():
        assert each["succeeded"]
        assert each["accepted"]
        assert each["ours_cached"] < each["full_history_cached"]
        assert each["planning"] + each["tool_schemas"] < each["ours"] < each["full_history"]
    assert found["claimed_saving"] == 0.93
    assert 0 < found["overhead_ms_per_step"] < 50
