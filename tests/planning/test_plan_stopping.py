"""How a plan ends that is interrupted, breaks off by itself, or cannot be undone."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from hybridagi_steps import errors
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.testing import Reply, ScriptedLM, ToolCall
from hybridagi_steps.workspace.snapshot import Limits
from hybridagi_steps.workspace.workspace import Workspace

BESIDE = (
    "PLAN: p\nSTEP: a\nGOAL: g\nSTEP: after\nGOAL: g\nDEPENDENCIES: a\n"
    "STEP: b\nGOAL: g\nSTEP: c\nGOAL: g\nDEPENDENCIES: b"
)

NOTEBOOK_CELL = """
import asyncio, sys
import anyio
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.worker import Finished

ended = []

async def execute(work, workspace):
    print("begun", flush=True)
    await anyio.sleep_forever()
    return Finished()

def told(event):
    ended.append(event.type.value)

async def cell():
    try:
        Orchestrator(executor=execute, on_event=told).run(plan="PLAN: p\\nSTEP: a\\nGOAL: g")
    except KeyboardInterrupt:
        print("interrupted", ended[-1], flush=True)

asyncio.new_event_loop().run_until_complete(cell())
"""


def statuses(result: Any) -> dict[str, str]:
    return {step.id: step.status.value for step in result.steps}


def test_an_interrupt_in_a_notebook_stops_the_run() -> None:
    cell = subprocess.Popen(
        [sys.executable, "-u", "-c", NOTEBOOK_CELL],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert cell.stdout is not None
    assert cell.stdout.readline() == "begun\n"
    cell.send_signal(signal.SIGINT)
    told, _ = cell.communicate(timeout=60)
    assert told == "interrupted run_cancelled\n"


@pytest.mark.parametrize("times", [1, 2])
def test_an_executor_that_cancels_itself_fails_its_step_alone(times: int) -> None:
    asked: list[str] = []

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        asked.append(work.step.id)
        if work.step.id == "a" and asked.count("a") <= times:
            raise asyncio.CancelledError("connection pool closed")
        await anyio.sleep(0.05)
        return Finished()

    result = Orchestrator(executor=execute, max_replans=0).run(plan=BESIDE)
    assert asked.count("a") == 2
    assert result.success == (times == 1)
    assert statuses(result)["c"] == "succeeded"
    if times == 2:
        assert statuses(result) | {"b": "", "c": ""} == {
            "a": "failed",
            "after": "skipped",
            "b": "",
            "c": "",
        }
        assert isinstance(result.step("a").error, errors.StepsError)
        assert "connection pool closed" in str(result.step("a").error)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_tool_that_cancels_itself_is_an_answer_to_the_model(*, is_async: bool) -> None:
    async def fetch() -> None:
        raise asyncio.CancelledError("connection pool closed")

    def fetch_at_once() -> None:
        raise asyncio.CancelledError("connection pool closed")

    tool = fetch if is_async else fetch_at_once

    def model(request: Any) -> Reply:
        if "# Step a (" in str(request.messages) and request.messages[-1].role != "tool":
            return [ToolCall(tool.__name__, {})]
        return [ToolCall("finish_step", {"summary": "ok"})]

    result = Orchestrator([tool], lm=ScriptedLM(model)).run(plan=BESIDE)
    assert result.success, str(result)
    assert "connection pool closed" in result.step("a").problems[0].message


def test_a_planner_that_cancels_itself_is_the_reason_of_the_failure() -> None:
    class Planner:
        async def acall(self, **given: Any) -> Any:
            raise asyncio.CancelledError("connection pool closed")

    result = Orchestrator(planner=Planner()).run("do it")
    assert result.status == "failed"
    assert "connection pool closed" in str(result.error)


def test_a_run_whose_task_is_cancelled_is_cancelled() -> None:
    told: list[StepEvent] = []

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        await anyio.sleep(60)
        return Finished()

    async def broken_off() -> None:
        orchestrator = Orchestrator(executor=execute, on_event=told.append)
        await asyncio.wait_for(orchestrator.arun(plan=BESIDE), 0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(broken_off())
    assert told[-1].type.value == "run_cancelled"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "files").mkdir()
    for number in range(6):
        (tmp_path / "files" / f"base{number}").write_text("base")
    return Workspace(tmp_path / "files", state=tmp_path / "state", limits=Limits(files=10))


async def three_files(work: Work, workspace: Workspace | None) -> Finished:
    """Write three files under the step's name."""
    assert workspace is not None
    for number in range(3):
        workspace.write(f"{work.step.id}{number}", "x")
    return Finished()


def test_what_would_go_beyond_the_limits_is_not_merged(workspace: Workspace) -> None:
    plan = "PLAN: p\nSTEP: a\nGOAL: g\nSTEP: b\nGOAL: g"
    result = Orchestrator(executor=three_files, workspace=workspace, max_replans=0).run(plan=plan)
    assert sorted(statuses(result).values()) == ["failed", "succeeded"]
    assert len(workspace.manifest()) == 9
    failed = next(step for step in result.steps if step.status == "failed")
    assert isinstance(failed.error, errors.WorkspaceError)
    assert "more than 10 files" in str(failed.error)
    assert workspace.rollback(result.snapshot or "") != []


def test_the_sum_of_sizes_is_looked_at_before_a_merge(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "here").write_text("x" * 60)
    workspace = Workspace(
        tmp_path / "files", state=tmp_path / "state", limits=Limits(total_bytes=100)
    )
    with workspace.overlay() as first, workspace.overlay() as second:
        first.write("first", "x" * 30)
        second.write("here", "x" * 90)
        workspace.merge(first.changes())
        with pytest.raises(errors.WorkspaceError, match="more than 100 bytes"):
            workspace.merge(second.changes())
        second.remove("here")
        workspace.merge(second.changes())
    assert workspace.list() == ["first"]


def test_a_workspace_beyond_its_limits_can_be_brought_back(workspace: Workspace) -> None:
    before = workspace.snapshot()
    for number in range(20):
        (workspace.root / f"more{number}").write_text("more")
    assert len(workspace.rollback(before)) == 20
    assert len(workspace.list()) == 6


def test_a_rollback_that_fails_keeps_the_result_and_tells_the_end(workspace: Workspace) -> None:
    told: list[StepEvent] = []

    async def execute(work: Work, place: Workspace | None) -> Finished:
        (workspace.root / "base0").write_text("changed")
        for stored in (workspace.state / "objects").glob("*/*"):
            stored.unlink()
        raise ConnectionError("down")

    orchestrator = Orchestrator(
        executor=execute,
        workspace=workspace,
        max_replans=0,
        max_attempts=1,
        on_failure="rollback",
        on_event=told.append,
    )
    result = orchestrator.run(plan="PLAN: p\nSTEP: a\nGOAL: g")
    assert (result.status, result.rolled_back) == ("failed", False)
    assert statuses(result) == {"a": "failed"}
    assert isinstance(result.error, errors.WorkspaceError)
    for part in ("down", "could not be rolled back", "is not in the state", str(result.snapshot)):
        assert part in str(result.error)
    assert told[-1].type.value == "run_failed"


def test_a_plan_that_could_not_be_made_says_why() -> None:
    lm = ScriptedLM(lambda _: ConnectionError("the line is down"))
    shown = str(Orchestrator(lm=lm).run("make tea"))
    assert shown.startswith("failed: make tea\n")
    assert "the line is down" in shown
