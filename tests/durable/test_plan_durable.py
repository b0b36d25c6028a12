"""Plans outlive processes: what is killed goes on, and nothing that was finished is done again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="durable plans need the extra `durable`")
# DBOS reads its own files when it is imported, and pytest's warnings are errors.
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.slow]

from hybridagi_steps import errors  # noqa: E402
from hybridagi_steps.durable.plan_steps import DurableQueue  # noqa: E402
from hybridagi_steps.planning.orchestrator import Orchestrator  # noqa: E402
from hybridagi_steps.planning.plan import Plan, PlanStep  # noqa: E402
from hybridagi_steps.planning.worker import Finished, Work  # noqa: E402
from hybridagi_steps.testing import scripted_lm  # noqa: E402
from hybridagi_steps.workspace.workspace import Workspace  # noqa: E402

WORKER = Path(__file__).parents[1] / "plan_worker.py"
PATIENCE = 60.0
STEPS = ("first", "left", "right", "slow", "last")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "log").touch()
    return tmp_path


class Processes:
    """Processes that end with the test."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: Any) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, str(WORKER), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(started)
        return started


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def logged(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def wait_for(folder: Path, *words: str, process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + PATIENCE
    while list(words) not in [line[:2] for line in logged(folder)]:
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended early: {process.communicate()[0]}")
        assert time.monotonic() < until, f"waited in vain for {words}: {logged(folder)}"
        time.sleep(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def finished(process: subprocess.Popen[str]) -> None:
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told


def check_each_once_but_slow(folder: Path) -> None:
    """Every step ended once; only the one that was killed had begun twice."""
    begun = Counter(line[1] for line in logged(folder) if line[0] == "begin")
    ended = Counter(line[1] for line in logged(folder) if line[0] == "end")
    assert ended == dict.fromkeys(STEPS, 1)
    assert begun == {**dict.fromkeys(STEPS, 1), "slow": 2}
    assert sorted(path.stem for path in (folder / "files").iterdir()) == sorted(STEPS)


def test_a_killed_process_goes_on_where_it_stopped(folder: Path, processes: Processes) -> None:
    (folder / "wait").touch()
    first = processes.start("run", folder)
    wait_for(folder, "begin", "slow", process=first)
    wait_for(folder, "end", "right", process=first)
    time.sleep(0.3)
    kill(first)
    (folder / "wait").unlink()
    finished(processes.start("run", folder))
    check_each_once_but_slow(folder)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_killed_worker_loses_nothing(
    folder: Path,
    processes: Processes,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if database == "postgres":
        monkeypatch.setenv("PLAN_QUEUE", request.getfixturevalue("postgres_address"))
    (folder / "wait").touch()
    worker = processes.start("serve", folder)
    planner = processes.start("plan", folder)
    wait_for(folder, "begin", "slow", process=planner)
    wait_for(folder, "end", "right", process=planner)
    kill(worker)
    (folder / "wait").unlink()
    processes.start("serve", folder)
    finished(planner)
    check_each_once_but_slow(folder)
    workers = {line[2] for line in logged(folder)}
    assert str(planner.pid) not in workers
    assert len(workers) == 2


def test_a_finished_run_is_told_again_and_not_done_again(tmp_path: Path) -> None:
    asked: list[str] = []

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        asked.append(work.step.id)
        if work.step.id == "b":
            raise errors.ArtifactError("b does not work")
        return Finished(summary="ok", artifacts={"x": [1, {"y": None}]})

    plan = Plan(steps=[PlanStep(id="a", goal="g", artifacts=["x"]), PlanStep(id="b", goal="g")])
    with DurableQueue(tmp_path / "queue.sqlite", poll_seconds=0.02) as queue:
        orchestrator = Orchestrator(executor=execute, durable=queue, max_attempts=1, max_replans=0)
        results = [orchestrator.run(plan=plan, requirements="r", key="k") for _ in range(2)]
        assert sorted(asked) == ["a", "b", "b"]  # what failed is tried again
        for result in results:
            assert result.step("a").artifacts == {"x": [1, {"y": None}]}
            assert isinstance(result.step("b").error, errors.ArtifactError)
        orchestrator.run(plan=plan, requirements="r", key="another")
        assert len(asked) == 5
        with pytest.raises(errors.InvalidSettingError, match="another durable queue"):
            Orchestrator(executor=execute, durable=tmp_path / "b.sqlite").run(plan=plan)


def test_a_plan_is_made_once_and_its_cost_is_kept(tmp_path: Path) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished(summary="ok")

    lm = scripted_lm([{"plan": "PLAN: p\nSTEP: a\nGOAL: g\nEND_PLAN"}])
    with DurableQueue(tmp_path / "queue.sqlite", poll_seconds=0.02) as queue:
        orchestrator = Orchestrator(executor=execute, lm=lm, durable=queue)
        first, second = (orchestrator.run("do it", key="k") for _ in range(2))
    assert first.success
    assert second.success
    assert len(lm.requests) == 1
    assert first.token_usage.total.total_tokens == second.token_usage.total.total_tokens
    assert second.token_usage.planning.calls == 1


def test_what_is_stored_is_plain_text(tmp_path: Path) -> None:
    import sqlite3

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished(summary="ok")

    plan = Plan(steps=[PlanStep(id="a", goal="g")])
    with DurableQueue(tmp_path / "queue.sqlite", poll_seconds=0.02) as queue:
        assert Orchestrator(executor=execute, durable=queue).run(plan=plan, requirements="r")
    with sqlite3.connect(tmp_path / "queue.sqlite") as database:
        kinds = database.execute("SELECT DISTINCT serialization FROM workflow_status").fetchall()
    database.close()
    assert kinds == [("hybridagi_steps_json",)]
