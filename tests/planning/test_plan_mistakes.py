"""Natural mistakes with plans: each is named, with what to give instead, and nothing is run."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportArgumentType=false

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.cli import main
from hybridagi_steps.planning.executor import StepExecutor
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.workspace.workspace import Workspace

_HOLDER = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""
PLAN = Plan(steps=[PlanStep(id="a", goal="g")])


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HYBRIDAGI_STEPS_MODEL", "nobody/answers")
    Path("w").mkdir()
    Path("file").write_text("no directory")
    Path("p.plan").write_text(PLAN.to_text())


async def nothing(work: Work, workspace: Workspace | None) -> Finished:
    """Succeed at once."""
    return Finished()


def read_file(path: str) -> str:
    """Clash with a tool of the workspace."""
    return path


def finish_step(summary: str) -> str:
    """Clash with the tool that ends a step."""
    return summary


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"requirements": PLAN}, "run(plan=…)"),
        ({"requirements": 7}, "requirements is a text"),
        ({"plan": {"steps": []}}, "Plan.model_validate"),
        ({"plan": PLAN, "key": 7}, "key='7'"),
        ({"plan": PLAN, "key": b"k"}, "key is a text"),
    ],
)
def test_a_run_says_what_it_takes(given: dict[str, Any], told: str) -> None:
    with pytest.raises(errors.InvalidSettingError) as caught:
        Orchestrator(executor=nothing).run(**given)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Orchestrator(workspace=3), "the path of a directory"),
        (lambda: Orchestrator("tools"), "tools is a list"),
        (lambda: Orchestrator(read_file), "write [tool]"),
        (lambda: Orchestrator([3]), "3 is no tool"),
        (lambda: Orchestrator().make_plan(PLAN), "run(plan=…)"),
        (lambda: Orchestrator([read_file], workspace="w"), "'read_file'"),
        (lambda: Orchestrator([finish_step]), "'finish_step'"),
        (lambda: StepExecutor([finish_step]), "'finish_step'"),
        (
            lambda: Orchestrator(executor=StepExecutor([read_file]), workspace="w"),
            "'read_file'",
        ),
        (lambda: Orchestrator([read_file, dspy.Tool(read_file)]), "'read_file'"),
    ],
)
def test_an_orchestrator_says_what_it_takes(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(errors.InvalidSettingError) as caught:
        make()
    assert told in str(caught.value)


def test_names_that_clash_with_nothing_are_taken() -> None:
    assert Orchestrator([read_file]).settings.tool_names == ("read_file",)
    clashing = Workspace("w", commands="python -m unittest")
    assert "run_command" in Orchestrator(workspace=clashing).settings.tool_names


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Workspace(None), "a directory's path, not of None"),
        (lambda: Workspace("nope"), "'nope' is not there: make the directory"),
        (lambda: Workspace("file"), "'file' is a file: name a directory"),
        (lambda: Workspace("w").rollback(None), "None is no id of a snapshot: give"),
        (lambda: Workspace("w").rollback("../x"), "'../x' is no id of a snapshot: give"),
        (lambda: Workspace("w").forget(None), "None is no id of a snapshot: give"),
        (lambda: Workspace("w", commands=["echo 'x"]), "cannot be read as a command"),
    ],
)
def test_a_workspace_says_what_it_takes(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(errors.WorkspaceError) as caught:
        make()
    assert told in str(caught.value)


def test_a_single_text_is_one_command() -> None:
    assert Workspace("w", commands="python -m unittest").commands.listed == ["python -m unittest"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plan", "p.plan", "--workspace", "nope"], "'nope' is not there"),
        (["--plan", "p.plan", "--workspace", "file"], "'file' is a file"),
        (["--task", "fix_pagination", "--workspace", "file"], "file is a file"),
        (["--task", "fix_pagination", "--workspace", "file/inner"], "file/inner is a file"),
    ],
)
def test_the_command_line_names_what_is_wrong_with_a_directory(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestDurable:
    """Mistakes with the database of a queue."""

    @pytest.fixture(autouse=True)
    def _needs_dbos(self) -> None:
        pytest.importorskip("dbos", reason="durable plans need the extra `durable`")

    def test_a_queue_is_made_of_a_path(self) -> None:
        with pytest.raises(errors.InvalidSettingError, match=r"'plans\.sqlite', not of True"):
            Orchestrator(executor=nothing, durable=True)

    def test_a_database_that_cannot_be_used_is_one_line(self) -> None:
        with hs.StepMemory("memory.db"):
            pass
        before = Path("memory.db").read_bytes()
        databases = ["gone/q.sqlite", "file", "w", "memory.db", "foo://x"]
        code = (
            "import sys\nfrom hybridagi_steps.cli import main\n"
            "for database in sys.argv[1:]:\n"
            "    words = ['plan', '--plan', 'p.plan', '--workspace', 'w', '--durable', database]\n"
            "    print(main(words))\n"
        )
        told = subprocess.run(
            [sys.executable, "-c", code, *databases], capture_output=True, text=True, check=True
        )
        assert told.stdout.split() == ["2"] * len(databases)
        for database, line in zip(databases, told.stderr.splitlines(), strict=True):
            place = "the database" if "://" in database else str(Path(database).resolve())
            assert f"{place} cannot be used as a durable queue: " in line
        assert Path("memory.db").read_bytes() == before

    @pytest.mark.parametrize("database", ["gone/q.sqlite", "memory.db", "foo://x"])
    def test_a_database_that_cannot_be_used_is_an_error_of_ours(self, database: str) -> None:
        with hs.StepMemory("memory.db"):
            pass
        with pytest.raises(errors.StorageError, match="cannot be used as a durable queue"):
            Orchestrator(executor=nothing, durable=database).run(plan=PLAN)

    def test_after_a_bad_database_a_good_one_can_be_used(self) -> None:
        from hybridagi_steps.durable.plan_steps import DurableQueue

        with pytest.raises(errors.StorageError):
            Orchestrator(executor=nothing, durable="gone/q.sqlite").run(plan=PLAN)
        with DurableQueue("q.sqlite", poll_seconds=0.02) as queue:
            assert Orchestrator(executor=nothing, durable=queue).run(plan=PLAN).success

    def test_a_name_of_a_running_worker_is_refused(self) -> None:
        from hybridagi_steps.durable.plan_steps import DurableQueue

        Path("q.sqlite.worker-1.lock").touch()
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, "q.sqlite.worker-1.lock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline()
            queue = DurableQueue("q.sqlite", worker_id="worker-1", poll_seconds=0.02)
            with pytest.raises(errors.InvalidSettingError, match="is the worker 'worker-1'"):
                Orchestrator(executor=nothing, durable=queue).run(plan=PLAN)
            holder.kill()
        with queue:
            assert Orchestrator(executor=nothing, durable=queue).run(plan=PLAN).success
