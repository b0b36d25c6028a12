"""In which order durable runs are done: by priority, fairly among users, one a session."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="needs the extra `durable`")

from dbos import DBOS
from server_cases import until

from hybridagi_steps import AgentSession, StepMemory, StepRunner
from hybridagi_steps.durable.plan_steps import DurableQueue
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.stores.address import is_server
from hybridagi_steps.workspace.workspace import Workspace

PATIENCE = 60.0

Asked = tuple[str, str, int]
"""Session, message and priority of a run; sessions begin with the name of their user."""


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the memory is, with its queue."""
    if request.param == "file":
        return str(tmp_path / "steps.db")
    return request.getfixturevalue("postgres_address")


class Echo:
    """A program that notes in which order it was asked, and how many runs of each user at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, messages: list[dict[str, Any]]) -> str:
        """Say something, but not before others had a chance to."""
        said = messages[-1]["content"]
        user = said.split("-")[0]
        self.asked.append(said)
        self.at_once[user] += 1
        self.most |= self.at_once
        for _ in range(5):
            await asyncio.sleep(0.01)
        self.at_once[user] -= 1
        return f"said {said}"


@contextmanager
def working(durable: DurableRunner, **how: Any) -> Generator[None]:
    """Have a worker in a thread for the length of the block."""
    stop = threading.Event()
    worker = threading.Thread(target=partial(durable.run_worker, stop, **how))
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


async def submitted(durable: DurableRunner, asked: list[Asked]) -> list[str]:
    """Hand out runs."""
    return [
        await durable.submit(AgentSession(session, session[:3]), said, priority=priority)
        for session, said, priority in asked
    ]


async def ended(durable: DurableRunner, runs: list[str]) -> None:
    """Wait for the end of runs."""
    results = [await durable.result(run_id) for run_id in runs]
    assert {result.status for result in results} == {"completed"}


def done(place: str, asked: list[Asked], **how: Any) -> Echo:
    """Return the program after one worker has done all runs."""
    echo = Echo()
    with (
        StepMemory(place, embedder="hashing") as memory,
        DurableRunner(StepRunner(echo, memory), poll_seconds=0.02) as durable,
    ):
        runs = asyncio.run(submitted(durable, asked))
        with working(durable, **how):
            asyncio.run(ended(durable, runs))
    return echo


def test_the_smallest_priority_goes_first_and_a_session_keeps_its_order(place: str) -> None:
    many: list[Asked] = [(f"ann{n}", f"ann-{n}", 0) for n in range(20)]
    late: list[Asked] = [
        ("ann-late", "ann-first", 3),
        ("ann-late", "ann-behind", -1000),
        *[(f"bob{n}", f"bob-{n}", -2) for n in range(4)],
        ("cat", "cat-0", 1000),
    ]
    asked = done(place, many + late, at_once=1).asked
    assert asked[:4] == [f"bob-{n}" for n in range(4)]
    assert asked[4:24] == [f"ann-{n}" for n in range(20)]
    assert asked[24] == "ann-first", "and what is behind it waits, though it is urgent"
    assert {*asked[25:]} == {"ann-behind", "cat-0"}


def test_a_user_with_many_runs_does_not_keep_another_waiting(place: str) -> None:
    many: list[Asked] = [(f"ann{n}", f"ann-{n}", 0) for n in range(100)]
    few: list[Asked] = [(f"bob{n}", f"bob-{n}", 0) for n in range(5)]
    echo = done(place, many + few, at_once=2)
    last = max(echo.asked.index(f"bob-{n}") for n in range(5))
    assert last < 20, "in turns, though all of Ann's were there before"


def test_no_user_has_more_runs_in_flight_than_may_be(place: str) -> None:
    asked: list[Asked] = [(f"{user}{n}", f"{user}-{n}", 0) for n in range(20) for user in USERS]
    echo = done(place, asked, at_once=8, max_runs_per_user=2)
    assert echo.most == dict.fromkeys(USERS, 2)
    assert len(echo.asked) == 60


def test_steps_of_the_plan_with_the_smallest_priority_go_first(place: str) -> None:
    if not is_server(place):
        place = f"{place}.plans"
    asked: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        asked.append(work.step.id)
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return Finished(summary="done")

    def plan(name: str) -> Plan:
        return Plan(name="p", steps=[PlanStep(id=f"{name}-{n}", goal="g") for n in range(3)])

    def waiting() -> int:
        found = DBOS.list_queued_workflows(load_input=False)
        return sum(each.status == "ENQUEUED" for each in found)

    with DurableQueue(place, poll_seconds=0.02) as queue, ThreadPoolExecutor() as pool:
        planner = Orchestrator(executor=execute, durable=queue)
        queue.open(Orchestrator(executor=execute, max_parallel=1).plan_worker())
        late = pool.submit(planner.run, "later", plan=plan("later"), key="later")
        assert begun.wait(PATIENCE)
        until(lambda: waiting() == 2)
        urgent = pool.submit(partial(planner.run, "now", plan=plan("now"), key="now", priority=-5))
        last = pool.submit(
            partial(planner.run, "last", plan=plan("last"), key="last", priority=1_000)
        )
        until(lambda: waiting() == 8)
        go_on.set()
        assert all(each.result(PATIENCE).success for each in (late, urgent, last))
    plans = [name.partition("-")[0] for name in asked]
    assert plans == ["later", *["now"] * 3, *["later"] * 2, *["last"] * 3]


USERS = ("ann", "bob", "cat")


@pytest.mark.parametrize("priority", [-1001, 1001, 0.5, True, None])
def test_what_is_no_priority_is_refused(tmp_path: Path, priority: Any) -> None:
    with pytest.raises(InvalidSettingError, match="priority"):
        Orchestrator().run("build", priority=priority)
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(memory=memory) as durable,
    ):
        with pytest.raises(InvalidSettingError, match="priority"):
            asyncio.run(durable.submit("s", "hello", priority=priority))
        with pytest.raises(InvalidSettingError, match="max_runs_per_user"):
            DurableRunner(Echo(), memory).run_worker(max_runs_per_user=0)
