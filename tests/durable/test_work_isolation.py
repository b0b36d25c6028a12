"""Work in PostgreSQL belongs to its namespace: a bound role does its own, and sees no other's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="needs the extra `durable`")
psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from stores.test_postgres_roles import Roles  # noqa: E402

from hybridagi_steps import StepMemory, StepRunner  # noqa: E402
from hybridagi_steps.durable.plan_steps import DurableQueue  # noqa: E402
from hybridagi_steps.durable.session_runs import DurableRunner  # noqa: E402
from hybridagi_steps.errors import UnknownRunError  # noqa: E402
from hybridagi_steps.planning.orchestrator import Orchestrator  # noqa: E402
from hybridagi_steps.planning.plan import Plan, PlanStep  # noqa: E402
from hybridagi_steps.planning.worker import Finished, Work  # noqa: E402
from hybridagi_steps.stores.postgres.live_runs import LiveRuns  # noqa: E402
from hybridagi_steps.stores.postgres.work_tables import (  # noqa: E402
    WORK_SCHEMA,
    isolate,
    schema_of_queue,
)
from hybridagi_steps.workspace.workspace import Workspace  # noqa: E402

pytestmark = pytest.mark.slow

TABLES = f"SELECT tablename FROM pg_tables WHERE schemaname = '{WORK_SCHEMA}'"
SHARED = {"application_versions", "dbos_migrations"}
"""What says how the database is set up: every role that works sees it."""


@pytest.fixture
def roles(new_postgres_database: Callable[[], str]) -> Iterator[Roles]:
    """Roles of a new database."""
    made = Roles(new_postgres_database())
    yield made
    made.drop()


def rows(address: str, statement: str) -> list[Any]:
    """What a role sees."""
    with psycopg.connect(address, autocommit=True) as raw:
        return raw.execute(statement.encode()).fetchall()


async def echo(messages: list[dict[str, Any]]) -> str:
    """Say it back."""
    return f"said {messages[-1]['content']}"


def worked(address: str, namespace: str, file: Path) -> tuple[str, str]:
    """Hand out a run and a job, and do both; return their ids."""
    with (
        StepMemory(address, namespace=namespace, embedder="hashing") as memory,
        DurableRunner(StepRunner(echo, memory), poll_seconds=0.05) as durable,
    ):
        stop = threading.Event()
        run = asyncio.run(durable.submit("s", f"a secret of {namespace}"))
        job = durable.jobs.submit("import", path=str(file))
        worker = threading.Thread(target=durable.run_worker, args=(stop,))
        worker.start()
        assert asyncio.run(durable.result(run)).text == f"said a secret of {namespace}"
        while durable.jobs.get(job).status in ("waiting", "running"):
            assert not stop.wait(0.05)
        assert durable.jobs.get(job).status == "completed", durable.jobs.get(job)
        stop.set()
        worker.join()
    return run, job


def planned(address: str, namespace: str) -> None:
    """Have a plan done from the queue, under a key that other namespaces have, too."""
    told = threading.Event()

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id == "slow" and not told.is_set():
            told.set()
            await asyncio.sleep(60)
        return Finished(summary=f"a secret of {namespace}")

    steps = [PlanStep(id=name, goal=f"find what is of {namespace}") for name in ("a", "slow")]
    with (
        StepMemory(address, namespace=namespace, embedder="hashing") as memory,
        DurableQueue(address, poll_seconds=0.05, worker_id="planner") as queue,
    ):
        made = Orchestrator(executor=execute, memory=memory, durable=queue)
        threading.Thread(target=lambda: (told.wait(30), made.cancel())).start()
        assert made.run("build", plan=Plan(name="p", steps=steps), key="k").status == "cancelled"
        done = made.run("build", plan=Plan(name="p", steps=steps), key="k")
        assert done.success, done
        assert [step.summary for step in done.steps] == [f"a secret of {namespace}"] * 2
        made.run("build again", plan=Plan(name="p", steps=steps[:1]), key="k2")


def test_a_bound_role_works_and_sees_its_own_alone(roles: Roles, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text('{"step_type": "Action", "inputs": {"purpose": "p"}}\n')
    one = roles.granted("server", "one")
    worked(roles.owner, "one", file)  # makes the schema
    two = roles.granted("server", "two")
    done = {one: worked(one, "one", file), two: worked(two, "two", file)}
    for address, namespace in ((one, "one"), (two, "two")):
        planned(address, namespace)
    live = LiveRuns(two, "two")
    live.begin("live", "s", "ann")
    assert live.admit("ann", 5) is None
    assert live.hold("user:ann:0")
    live.tell("live", 1, "m")
    live.ask("live", cancel=True)
    for table in {name for (name,) in rows(roles.owner, TABLES)} - SHARED:
        seen = {each: rows(each, f"SELECT * FROM {WORK_SCHEMA}.{table}") for each in (one, two)}
        everything = rows(roles.owner, f"SELECT * FROM {WORK_SCHEMA}.{table}")
        assert not [row for row in seen[one] if row in seen[two]], table
        assert "of two" not in str(seen[one]), table
        if table in ("live_run", "run_event", "run_request", "workflow_status", "lease", "queues"):
            assert seen[two]
            assert len(everything) == len(seen[one]) + len(seen[two]), table
    changed = f"UPDATE {WORK_SCHEMA}.workflow_status SET status = 'CANCELLED' RETURNING 1"
    assert len(rows(one, changed)) < len(rows(roles.owner, changed))
    with (
        StepMemory(one, namespace="one", embedder="hashing") as memory,
        DurableRunner(memory=memory) as durable,
    ):
        run, job = done[two]
        with pytest.raises(UnknownRunError):
            asyncio.run(durable.result(run))
        with pytest.raises(UnknownRunError):
            durable.jobs.get(job)
        assert job not in [each.id for each in durable.jobs.list()]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows(one, f"INSERT INTO {WORK_SCHEMA}.live_run VALUES ('two', 'r', 'h') RETURNING 1")
    live.close()


def test_a_bound_role_adds_nothing_to_runs_of_others_and_no_code(
    roles: Roles, tmp_path: Path
) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text('{"step_type": "Action", "inputs": {"purpose": "p"}}\n')
    run, _ = worked(roles.owner, "one", file)
    two = roles.granted("server", "two")
    worked(two, "two", file)
    foreign = (
        f"notifications (destination_uuid, topic, message) VALUES ('{run}', 't', '1')",
        f"workflow_events (workflow_uuid, key, value) VALUES ('{run}', 'k', '1')",
        f"streams (workflow_uuid, key, value, \"offset\") VALUES ('{run}', 'k', '1', 9)",
        "workflow_schedules (schedule_id, schedule_name, workflow_name, schedule, context) "
        "VALUES ('i', 'n', 'w', '* * * * *', '1')",
        "event_dispatch_kv (service_name, workflow_fn_name, key) VALUES ('s', 'w', 'k')",
    )
    for row in foreign:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            rows(two, f"INSERT INTO {WORK_SCHEMA}.{row} RETURNING 1")
    of_two = f"UPDATE {WORK_SCHEMA}.workflow_status SET serialization = 'py_pickle' RETURNING 1"
    for address in (two, roles.owner):
        with pytest.raises(psycopg.errors.CheckViolation, match="own_form"):
            rows(address, of_two)


def test_policies_of_an_earlier_version_are_made_anew(roles: Roles, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text('{"step_type": "Action", "inputs": {"purpose": "p"}}\n')
    roles.granted("server", "two")
    run, _ = worked(roles.owner, "one", file)
    two = roles.granted("server", "two")
    events = f"{WORK_SCHEMA}.workflow_events"
    with psycopg.connect(roles.owner, autocommit=True) as raw:
        raw.execute(f"DROP POLICY own ON {events}".encode())
        raw.execute(f"CREATE POLICY own ON {events} USING (false) WITH CHECK (true)".encode())
    isolate(roles.owner)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        rows(two, f"INSERT INTO {events} (workflow_uuid, key, value) VALUES ('{run}', 'k', '1')")


def test_a_worker_starts_while_another_is_still_making_the_tables(roles: Roles) -> None:
    roles.granted("server", "one")
    schema_of_queue(roles.owner, "session-runs:one")
    status, secured = f"{WORK_SCHEMA}.workflow_status", "SELECT relrowsecurity FROM pg_class"
    with psycopg.connect(roles.owner, autocommit=True) as raw:
        raw.execute(f"CREATE TABLE {status} (workflow_uuid TEXT, queue_name TEXT)".encode())
        assert schema_of_queue(roles.owner, "session-runs:one") == WORK_SCHEMA
        asked = f"{secured} WHERE oid = '{status}'::regclass".encode()
        assert raw.execute(asked).fetchone() == (False,)
        raw.execute(f"ALTER TABLE {status} ADD attributes JSONB".encode())
        isolate(roles.owner)
        assert raw.execute(asked).fetchone() == (True,)
