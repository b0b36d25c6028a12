"""A key names one run: it goes on after a crash, a rollback or a failure, and does nothing else."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("dbos", reason="durable plans need the extra `durable`")
# DBOS reads its own files when it is imported, and pytest's warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

from hybridagi_steps import errors  # noqa: E402
from hybridagi_steps.durable.plan_steps import DurableQueue  # noqa: E402
from hybridagi_steps.planning.orchestrator import Orchestrator  # noqa: E402
from hybridagi_steps.planning.plan import Plan, PlanStep  # noqa: E402
from hybridagi_steps.planning.worker import Finished, Work  # noqa: E402
from hybridagi_steps.workspace.workspace import Workspace  # noqa: E402

TWO = "PLAN: p\nSTEP: one\nGOAL: g\nSTEP: two\nGOAL: g\nDEPENDENCIES: one"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[DurableQueue]:
    with DurableQueue(tmp_path / "queue.sqlite", poll_seconds=0.02) as made:
        yield made


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return new_workspace(tmp_path, "files")


def new_workspace(folder: Path, name: str) -> Workspace:
    (folder / name).mkdir()
    return Workspace(folder / name, state=folder / f"state-{name}")


class Writer:
    """An executor whose steps write a file each; those of `trouble` fail or never end."""

    def __init__(self, *trouble: str, hangs: bool = False) -> None:
        self.trouble, self.hangs = set(trouble), hangs
        self.asked: list[str] = []
        self.reached = threading.Event()

    async def __call__(self, work: Work, workspace: Workspace | None) -> Finished:
        self.asked.append(work.step.id)
        if work.step.id in self.trouble:
            self.reached.set()
            if self.hangs:
                await anyio.sleep(60)
            raise ConnectionError("the provider is down")
        if workspace is not None:
            workspace.write(f"{work.step.id}.txt", work.step.goal)
        return Finished(summary=f"wrote {work.step.id}")


def files(workspace: Workspace) -> list[str]:
    return workspace.list()


class Planner:
    """Plans two steps, and a third in the place of one that failed."""

    async def acall(self, **_: object) -> Plan:
        return Plan.parse(TWO)

    async def replan(self, *asked: Any) -> list[PlanStep]:
        return asked[-1](Plan(steps=[PlanStep(id="three", goal="g")]))


def test_work_is_kept_under_the_names_that_earlier_releases_gave_it(
    queue: DurableQueue, workspace: Workspace
) -> None:
    orchestrator = Orchestrator(
        executor=Writer("two"), planner=Planner(), workspace=workspace, durable=queue
    )
    assert orchestrator.run("build", key="release/7").success
    attempts = ["step:0:one:1", "step:0:one:1:merged:", "step:0:two:2", "step:0:three:1"]
    for name in ("about", "snapshot:", "plan", "round:0:replan:1", *attempts):
        assert asyncio.run(queue.known(f"release%2F7:{name}")) is not None, name


def test_a_run_that_was_cancelled_and_rolled_back_does_its_merges_again(
    queue: DurableQueue, workspace: Workspace
) -> None:
    writer = Writer("two", hangs=True)
    orchestrator = Orchestrator(
        executor=writer, workspace=workspace, durable=queue, on_failure="rollback"
    )
    threading.Thread(target=lambda: (writer.reached.wait(30), orchestrator.cancel())).start()
    first = orchestrator.run(plan=TWO, key="release-7")
    assert (first.status, first.rolled_back, files(workspace)) == ("cancelled", True, [])
    writer.trouble.clear()
    second = orchestrator.run(plan=TWO, key="release-7")
    assert second.success
    assert files(workspace) == ["one.txt", "two.txt"]
    assert writer.asked.count("one") == 1


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_run_that_failed_and_was_rolled_back_does_its_merges_again(
    queue: DurableQueue, workspace: Workspace, *, by_hand: bool
) -> None:
    writer = Writer("two")
    orchestrator = Orchestrator(
        executor=writer,
        workspace=workspace,
        durable=queue,
        max_replans=0,
        on_failure="keep" if by_hand else "rollback",
    )
    first = orchestrator.run(plan=TWO, key="k")
    assert first.status == "failed"
    if by_hand:
        assert first.snapshot is not None
        workspace.rollback(first.snapshot)
    assert files(workspace) == []
    workspace.write("own.txt", "written by hand meanwhile")
    writer.trouble.clear()
    assert orchestrator.run(plan=TWO, key="k").success
    assert files(workspace) == ["one.txt", "own.txt", "two.txt"]
    assert writer.asked.count("one") == 1


def test_a_run_that_fails_after_a_rollback_comes_back_to_what_was_there_then(
    queue: DurableQueue, workspace: Workspace
) -> None:
    writer = Writer("two")
    orchestrator = Orchestrator(
        executor=writer, workspace=workspace, durable=queue, max_replans=0, on_failure="rollback"
    )
    assert not orchestrator.run(plan=TWO, key="k").success
    workspace.write("own.txt", "written by hand meanwhile")
    assert not orchestrator.run(plan=TWO, key="k").success
    assert files(workspace) == ["own.txt"]


def test_what_failed_is_tried_again_under_the_same_key(queue: DurableQueue) -> None:
    writer = Writer("two")
    orchestrator = Orchestrator(executor=writer, durable=queue, max_replans=0)
    assert not orchestrator.run(plan=TWO, key="k").success
    assert not orchestrator.run(plan=TWO, key="k").success
    assert writer.asked == ["one", "two", "two", "two", "two"]
    writer.trouble.clear()
    third, fourth = (orchestrator.run(plan=TWO, key="k") for _ in range(2))
    assert third.success
    assert fourth.success
    assert writer.asked == ["one", "two", "two", "two", "two", "two"]
    assert third.step("one").summary == "wrote one"


def test_what_had_failed_before_a_run_was_cancelled_is_tried_again(queue: DurableQueue) -> None:
    asked: list[str] = []
    failing, hanging = {"one"}, {"two"}
    reached = threading.Event()

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        asked.append(work.step.id)
        if work.step.id in failing:
            raise ConnectionError("down")
        if work.step.id in hanging and "one" in asked:
            reached.set()
            while hanging:  # a worker goes on with what it has begun, and here takes one at a time
                await anyio.sleep(0.01)
        return Finished()

    options: dict[str, Any] = {"max_attempts": 1, "max_parallel": 1, "max_replans": 0}
    orchestrator = Orchestrator(executor=execute, durable=queue, **options)
    plan = "PLAN: p\nSTEP: one\nGOAL: g\nSTEP: two\nGOAL: g"
    threading.Thread(target=lambda: (reached.wait(30), orchestrator.cancel())).start()
    assert orchestrator.run(plan=plan, key="k").status == "cancelled"
    failing.clear()
    hanging.clear()
    assert orchestrator.run(plan=plan, key="k").success
    assert asked == ["one", "two", "one", "two"]


def test_another_step_of_the_same_name_is_not_taken_for_one_that_succeeded(
    queue: DurableQueue,
) -> None:
    class Planner:
        goals = iter(["red", "blue"])

        async def replan(self, *given: Any) -> list[PlanStep]:
            goal = next(self.goals)
            fails = PlanStep(id="last", goal="g", dependencies=["new"])
            return given[-1](Plan(steps=[PlanStep(id="new", goal=goal), fails]))

    told: list[str] = []

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        told.append(f"{work.step.id}: {work.step.goal}")
        if work.step.id in ("one", "last"):
            raise ConnectionError("down")
        return Finished()

    options: dict[str, Any] = {"durable": queue, "planner": Planner(), "max_attempts": 1}
    orchestrator = Orchestrator(executor=execute, **options)
    for _ in range(2):
        assert not orchestrator.run(plan="PLAN: p\nSTEP: one\nGOAL: g", key="k").success
    assert [line for line in told if line.startswith("new")] == ["new: red", "new: blue"]


@pytest.mark.parametrize("other", ["requirement", "plan", "workspace"])
def test_a_used_key_is_refused_for_another_run(
    queue: DurableQueue, workspace: Workspace, tmp_path: Path, other: str
) -> None:
    writer = Writer()
    first = Orchestrator(executor=writer, workspace=workspace, durable=queue)
    assert first.run("build", plan=TWO, key="release-7").success
    place = new_workspace(tmp_path, "other") if other == "workspace" else workspace
    second = Orchestrator(executor=writer, workspace=place, durable=queue)
    plan = TWO.replace("GOAL: g", "GOAL: h") if other == "plan" else TWO
    wanted = "test" if other == "requirement" else "build"
    with pytest.raises(errors.InvalidSettingError, match=rf"'release-7'.* another {other}\b"):
        second.run(wanted, plan=plan, key="release-7")
    assert writer.asked == ["one", "two"]
    assert second.run(wanted, plan=plan, key="release-8").success


def test_keys_and_steps_of_any_name_stay_apart(queue: DurableQueue) -> None:
    class Planner:
        async def replan(self, *given: Any) -> list[PlanStep]:
            return given[-1](Plan(steps=[PlanStep(id="better", goal="g")]))

    for name in ("replan", "plan", "snapshot", "about", "round", "ended", "step"):
        options: dict[str, Any] = {"durable": queue, "planner": Planner(), "max_attempts": 1}
        result = Orchestrator(executor=Writer(name), **options).run(
            plan=f"PLAN: p\nSTEP: {name}\nGOAL: fail", key=f"k-{name}"
        )
        assert {step.id: step.status.value for step in result.steps} == {
            name: "replaced",
            "better": "succeeded",
        }
    for key in ("a", "a:step", "a:step:0", "a%3Astep", "ä"):
        writer = Writer()
        assert Orchestrator(executor=writer, durable=queue).run(plan=TWO, key=key).success
        assert writer.asked == ["one", "two"]


def test_the_same_key_twice_at_once_is_refused(queue: DurableQueue) -> None:
    writer = Writer()
    orchestrator = Orchestrator(executor=writer, durable=queue)

    async def both() -> list[Any]:
        runs = [orchestrator.arun(plan=TWO, key="k") for _ in range(2)]
        return await asyncio.gather(*runs, return_exceptions=True)

    first, second = asyncio.run(both())
    assert first.success
    assert isinstance(second, errors.InvalidSettingError)
    assert "under way" in str(second)
    assert writer.asked == ["one", "two"]


def test_a_worker_whose_executor_cancels_itself_goes_on(queue: DurableQueue) -> None:
    asked: list[str] = []

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        asked.append(work.step.id)
        if asked == ["one"]:
            raise asyncio.CancelledError("connection pool closed")
        return Finished()

    result = Orchestrator(executor=execute, durable=queue).run(plan=TWO)
    assert result.success, str(result)
    assert asked == ["one", "one", "two"]
