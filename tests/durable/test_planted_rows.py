"""Rows that somebody planted in a queue: nothing that is read back is ever unpickled."""

from __future__ import annotations

import asyncio
import base64
import pickle
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="needs the extra `durable`")

from dbos import DBOSClient

from hybridagi_steps import StepMemory, StepRunner
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.errors import UnknownRunError

PICKLE = "py_pickle"


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.file,)


def planted(file: Path) -> str:
    """Return a payload as DBOS would have it in a row."""
    return base64.b64encode(pickle.dumps(Payload(file))).decode()


async def echo(messages: list[dict[str, Any]]) -> str:
    """Say it back."""
    return f"said {messages[-1]['content']}"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[DurableRunner]:
    """What hands out runs and jobs of a new memory."""
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(StepRunner(echo, memory), poll_seconds=0.02) as made,
    ):
        yield made


def worked(runner: DurableRunner, *runs: str) -> None:
    """Have a worker take what there is until these runs have ended."""
    stop = threading.Event()
    worker = threading.Thread(target=runner.run_worker, args=(stop,))
    worker.start()
    for run in runs:
        assert asyncio.run(runner.result(run)).status == "completed"
    stop.set()
    worker.join()


def columns_of(queue: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the columns of each table of a queue."""
    tables = queue.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        table: [row[1] for row in queue.execute(f"PRAGMA table_info({table})")]
        for (table,) in tables
        if not table.startswith("sqlite_")
    }


def plant(queue: sqlite3.Connection, table: str, column: str, payload: str) -> None:
    """Write a payload into one column, of a new row where the table has none."""
    columns = columns_of(queue)[table]
    if queue.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,):
        names, values = ", ".join(columns), ", ".join("?" for _ in columns)
        (run,) = queue.execute("SELECT workflow_uuid FROM workflow_status").fetchone()
        row = [run if each.endswith("_uuid") else 1 for each in columns]
        queue.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({values})", row)
    form = f", serialization = '{PICKLE}'" if "serialization" in columns else ""
    queue.execute(f"UPDATE OR IGNORE {table} SET {column} = ?{form}", (payload,))
    queue.execute("UPDATE workflow_status SET serialization = ?", (PICKLE,))


def read_all(runner: DurableRunner, ids: list[str], column: str) -> None:
    """Ask for everything that can be asked about runs and jobs, the first of which has ended."""
    client = runner._client  # pyright: ignore[reportPrivateUsage]
    calls: list[Callable[[], Any]] = [
        runner.jobs.list,
        client.list_workflows,
        client.list_schedules,
        *(lambda run=run: runner.jobs.get(run) for run in ids),
        *(lambda run=run: client.list_workflow_steps(run) for run in ids),
        *(lambda run=run: client.get_all_events(run) for run in ids),
        *(lambda run=run: client.get_event(run, "1", timeout_seconds=0) for run in ids),
    ]
    if column in (
        "output",
        "error",
        "value",
        "inputs",
        "serialization",
    ):  # else it may wait for ever
        calls.append(client.retrieve_workflow(ids[0]).get_result)
        calls.append(lambda: next(client.read_stream(ids[0], "1")))
        calls.append(lambda: asyncio.run(runner.result(ids[0])))
    for call in calls:
        with suppress(Exception):  # what is broken by the planting may say so in any way
            call()


def test_no_pickle_in_any_column_of_any_table_runs(runner: DurableRunner, tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", Path(runner.database)
    done = asyncio.run(runner.submit("s", "hello"))
    job = runner.jobs.submit("import", path="nowhere.jsonl")
    worked(runner, done)
    waiting = asyncio.run(runner.submit("t", "later"))
    with closing(sqlite3.connect(file, isolation_level=None)) as queue:
        queue.execute("PRAGMA foreign_keys = OFF")
        tables = columns_of(queue)
        assert {"workflow_status", "workflow_input", "operation_outputs", "streams"} <= set(tables)
        before = {name: queue.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
        for table, columns in tables.items():
            for column in columns if table != "dbos_migrations" else ():
                plant(queue, table, column, planted(ran))
                read_all(runner, [done, job, waiting], column)
                assert not ran.exists(), (table, column)
                for name, rows in before.items():
                    queue.execute(f"DELETE FROM {name}")
                    values = ", ".join("?" for _ in tables[name])
                    queue.executemany(f"INSERT INTO {name} VALUES ({values})", rows)


def test_what_is_planted_would_run_where_nobody_looks(
    runner: DurableRunner, tmp_path: Path
) -> None:
    ran, file = tmp_path / "ran", Path(runner.database)
    asyncio.run(runner.submit("s", "hello"))
    with closing(sqlite3.connect(file, isolation_level=None)) as queue:
        plant(queue, "workflow_input", "inputs", planted(ran))
    client = DBOSClient(system_database_url=f"sqlite:///{file}")
    client.list_workflows()
    client.destroy()
    assert ran.exists()


def test_a_worker_refuses_a_planted_row_and_does_the_others(
    runner: DurableRunner, tmp_path: Path
) -> None:
    ran, file = tmp_path / "ran", Path(runner.database)
    bad = asyncio.run(runner.submit("a", "planted"))
    job = runner.jobs.submit("import", path="nowhere.jsonl")
    with closing(sqlite3.connect(file, isolation_level=None)) as queue:
        plant(queue, "workflow_input", "inputs", planted(ran))
    good = asyncio.run(runner.submit("b", "hello"))
    worked(runner, good)
    assert not ran.exists()
    with pytest.raises(UnknownRunError, match="form that is not read here"):
        asyncio.run(runner.result(bad))
    [listed] = runner.jobs.list()
    assert (listed.id, listed.status) == (job, "failed")
    assert "form that is not read here" in str(listed.error)
