"""Durable runs in PostgreSQL: workers of several machines share a queue, and outlive each other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="needs the extra `durable`")

import psycopg
from sqlalchemy import make_url
from sqlalchemy.dialects import postgresql

from hybridagi_steps import StepMemory
from hybridagi_steps.durable.engine import QueueDatabase, QueueTables
from hybridagi_steps.durable.plan_steps import DurableQueue
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.errors import StorageError
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.stores.postgres.presence import Presence
from hybridagi_steps.stores.postgres.work_tables import WORK_SCHEMA, schema_of_queue
from hybridagi_steps.workspace.workspace import Workspace

pytestmark = pytest.mark.slow

RUNS = 100
PATIENCE = 90.0
PROGRAM = '''
import asyncio
import os
import pathlib

FOLDER = pathlib.Path(__file__).parent

async def told(messages):
    """Note who answers, wait while told to, then say it back."""
    said = messages[-1]["content"]
    with (FOLDER / "log").open("a") as log:
        log.write(f"{said} {os.getpid()}\\n")
    while (FOLDER / "hold").exists():
        await asyncio.sleep(0.01)
    return f"said {said}"

def made(memory):
    import hybridagi_steps as hs
    return hs.StepRunner(told, memory)
'''


class Workers:
    """Worker processes, as the command line starts them."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.started: list[subprocess.Popen[str]] = []
        (folder / "telling.py").write_text(PROGRAM)

    def start(self) -> subprocess.Popen[str]:
        """Start one; return when it takes runs."""
        process = subprocess.Popen(
            [sys.executable, "-m", "hybridagi_steps", "worker", "--program", "telling:made"],
            env={**os.environ, "HYBRIDAGI_STEPS_DB": self.address},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("worker: telling:made takes runs from postgres")
        return process

    def log(self) -> list[list[str]]:
        """What was begun, and in which process."""
        log = self.folder / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def workers(tmp_path: Path, postgres_address: str) -> Iterator[Workers]:
    """Workers that end with the test."""
    made = Workers(tmp_path, postgres_address)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.05)


async def handed_out(durable: DurableRunner, count: int) -> dict[str, str]:
    """Hand out runs of as many sessions; return their ids."""
    return {f"s{n}": await durable.submit(f"s{n}", f"m{n}") for n in range(count)}


async def results(durable: DurableRunner, runs: dict[str, str]) -> list[Any]:
    """Wait for all of them."""
    return await asyncio.gather(*[durable.result(run_id) for run_id in runs.values()])


def check_each_once(memory: StepMemory, runs: dict[str, str]) -> None:
    """Each session holds its question and its answer, once."""
    for session_id, run_id in runs.items():
        line = memory.repository().store.messages(session_id)
        said = session_id.replace("s", "m")
        assert [step.content for step in line] == [said, f"said {said}"]
        assert line[0].id == run_id


def test_another_worker_does_what_a_killed_one_had_begun_and_what_waits(workers: Workers) -> None:
    (workers.folder / "hold").touch()
    with (
        StepMemory(workers.address, embedder="hashing") as memory,
        DurableRunner(memory=memory, poll_seconds=0.2) as durable,
    ):
        runs = asyncio.run(handed_out(durable, RUNS))
        first = workers.start()
        wait_for(lambda: len(workers.log()) == 8, "the first worker's eight")
        second = workers.start()
        wait_for(lambda: len(workers.log()) == 16, "the second worker's eight")
        first.kill()
        (workers.folder / "hold").unlink()
        found = asyncio.run(results(durable, runs))
        assert {each.status for each in found} == {"completed"}
        check_each_once(memory, runs)
        assert memory.verify() == []
    begun = Counter(said for said, _ in workers.log())
    again = {said for said, times in begun.items() if times > 1}
    of_first = {said for said, process in workers.log() if process == str(first.pid)}
    assert again == of_first, "only what was cut off is begun twice"
    assert len(of_first) == 8
    assert set(begun) == {f"m{n}" for n in range(RUNS)}
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0


def test_a_worker_that_stood_still_is_taken_for_dead_and_commits_nothing_twice(
    workers: Workers,
) -> None:
    (workers.folder / "hold").touch()
    with (
        StepMemory(workers.address, embedder="hashing") as memory,
        DurableRunner(memory=memory, poll_seconds=0.2) as durable,
    ):
        runs = asyncio.run(handed_out(durable, 4))
        first = workers.start()
        wait_for(lambda: len(workers.log()) == 4, "the first worker's four")
        first.send_signal(signal.SIGSTOP)
        second = workers.start()
        wait_for(lambda: len(workers.log()) == 8, "another one to take all four up")
        first.send_signal(signal.SIGCONT)  # now both are at it
        (workers.folder / "hold").unlink()
        found = asyncio.run(results(durable, runs))
        assert {each.status for each in found} == {"completed"}
        again = asyncio.run(handed_out_more(durable))
        assert [each.status for each in again] == ["completed"] * 8
        check_each_once(memory, runs)
        first.kill()
        more = asyncio.run(handed_out_more(durable))
        assert [each.status for each in more] == ["completed"] * 8
    assert second.poll() is None


async def handed_out_more(durable: DurableRunner) -> list[Any]:
    """Hand out runs of eight new sessions, and wait for them."""
    names = [os.urandom(4).hex() for _ in range(8)]
    return await results(durable, {n: await durable.submit(n, n) for n in names})


def test_a_name_is_its_living_holders(postgres_address: str) -> None:
    first, second = (Presence(postgres_address, "n") for _ in range(2))
    assert first.take("a")
    assert first.take("a"), "renewed"
    assert not second.take("a")
    assert second.take("b")
    second.close()  # as after kill -9
    wait_for(lambda: first.take("b"), "the server to see that it is gone")
    first.ask(f"UPDATE {WORK_SCHEMA}.lease SET seen_at = seen_at - interval '1 minute'")
    third = Presence(postgres_address, "n")
    assert third.take("a"), "not renewed, as by a machine that is gone"
    assert not first.take("a"), "and so its first holder learns that it was away"
    third.release("a")
    assert first.take("a")
    first.close()
    third.close()


def test_statements_about_work_have_limits(postgres_address: str) -> None:
    asked = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
    database = QueueDatabase.of(postgres_address, "a queue")
    client = database.client("some")
    with (
        closing(Presence(postgres_address, "n")) as presence,
        closing(QueueTables(database, "some")) as q,
    ):
        found = [presence.ask(asked), q.ask(asked)]
    with client._sys_db.engine.connect() as dbos:
        found.append([*map(tuple, dbos.exec_driver_sql(asked))])
    client.destroy()
    assert [[*map(tuple, rows)] for rows in found] == [[("10min", "30s")]] * 3


PAGES = """SELECT coalesce(string_agg(encode(pg_read_binary_file(pg_relation_filepath(oid)),
    'escape'), ''), '') FROM pg_class WHERE relnamespace = %s::regnamespace
    AND relkind IN ('r', 'i')"""


def pages(address: str) -> str:
    """What the files of the work tables hold."""
    with psycopg.connect(address, autocommit=True) as raw:
        raw.execute("CHECKPOINT")
        [[found]] = raw.execute(PAGES, (WORK_SCHEMA,)).fetchall()
    return str(found)


def test_a_purge_leaves_no_word_in_the_queue(postgres_address: str) -> None:
    with (
        StepMemory(postgres_address, embedder="hashing") as memory,
        DurableRunner(memory=memory) as durable,
    ):
        kept = asyncio.run(durable.submit("kept", "a word that stays"))
        gone = asyncio.run(durable.submit("gone", "a secret that goes"))
        assert "a secret that goes" in pages(postgres_address)
        memory.note_queue(memory.address.replace("postgres@", "ann@"))  # as another role notes it
        assert memory.purge({"session_id": "gone"}).unreached == ()
        left = pages(postgres_address)
        assert "a secret that goes" not in left
        assert gone not in left
        assert "a word that stays" in left
        assert asyncio.run(durable.cancel(kept))  # which takes it out of DBOS's queue
        assert memory.clear().unreached == ()
        assert "a word that stays" not in pages(postgres_address)


def test_plans_and_runs_share_a_database_and_a_purge_reaches_both(workers: Workers) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished(summary=f"made {work.step.goal}")

    plan = Plan(steps=[PlanStep(id="a", goal="a secret goal")])
    with (
        StepMemory(workers.address, embedder="hashing") as memory,
        DurableRunner(memory=memory, poll_seconds=0.1) as durable,
    ):
        before = asyncio.run(handed_out(durable, 2))
        with DurableQueue(workers.address, poll_seconds=0.05) as queue:
            made = Orchestrator(executor=execute, durable=queue, memory=memory)
            result = made.run(plan=plan, requirements="r", key="k")
            assert result.success
        workers.start()
        after = asyncio.run(handed_out(durable, 3))
        found = asyncio.run(results(durable, {**before, **after}))
        assert [each.status for each in found] == ["completed"] * 3
        assert "a secret goal" in pages(workers.address)
        assert memory.purge({"run_id": result.run_id}).unreached == ()
        assert "a secret goal" not in pages(workers.address)


def test_a_queue_of_plans_that_an_earlier_version_made_stays_where_it_is(
    new_postgres_database: Callable[[], str],
) -> None:
    from dbos import DBOS, DBOSClient

    earlier, new = new_postgres_database(), new_postgres_database()
    DBOS.migrate(earlier)
    client = DBOSClient(system_database_url=earlier)
    client.register_queue("plan-steps")
    client.destroy()
    assert schema_of_queue(earlier, "plan-steps") == "dbos"
    assert schema_of_queue(earlier, "session-runs:default") == WORK_SCHEMA
    assert schema_of_queue(new, "plan-steps") == WORK_SCHEMA


def test_an_address_of_several_hosts_is_the_same_to_both_drivers() -> None:
    address = "postgresql://ann:s%40y@a,b:6000/db?target_session_attrs=read-write"
    url = make_url(QueueDatabase.of(address, "a queue").url)
    assert (url.username, url.password, url.database) == ("ann", "s@y", "db")
    dialect: Any = postgresql.psycopg.dialect()
    _, options = dialect.create_connect_args(url)
    assert (options["host"], options["port"]) == ("a,b", "5432,6000")
    assert options["target_session_attrs"] == "read-write"


@contextmanager
def away(address: str) -> Generator[None]:
    """Take a database away and bring it back."""
    name = address.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(address.replace(f"/{name}", "/postgres"), autocommit=True) as raw:
        raw.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        raw.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        yield
        raw.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


def test_a_database_that_is_away_is_said_to_who_submits(postgres_address: str) -> None:
    with StepMemory(postgres_address) as memory, DurableRunner(memory=memory) as durable:

        async def outage() -> None:
            run_id = await durable.submit("chat", "before", idempotency_key="k")
            waiting = asyncio.create_task(durable.result(run_id))
            with away(postgres_address):
                for _ in range(2):
                    with pytest.raises(StorageError, match="cannot be used as a queue of runs"):
                        await asyncio.wait_for(durable.submit("chat", "now"), PATIENCE)
                    with pytest.raises(StorageError, match="cannot be used as a queue of runs"):
                        await asyncio.wait_for(durable.cancel(run_id), PATIENCE)
                for ask in (durable.jobs.list, lambda: durable.jobs.submit("reembed")):
                    with pytest.raises(StorageError, match="cannot be used as a queue of runs"):
                        await asyncio.wait_for(asyncio.to_thread(ask), PATIENCE)
            assert await durable.submit("chat", "before", idempotency_key="k") == run_id
            assert await durable.cancel(run_id)
            assert (await asyncio.wait_for(waiting, PATIENCE)).status == "cancelled"

        asyncio.run(outage())


def test_a_worker_says_once_that_its_database_is_away_and_once_that_it_is_back(
    workers: Workers,
) -> None:
    lines: list[str] = []

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)

    def said(what: str) -> int:
        return sum(what in line for line in lines)

    reading = threading.Thread(target=read, args=[workers.start()])
    reading.start()
    with StepMemory(workers.address) as memory, DurableRunner(memory=memory) as durable:
        asyncio.run(results(durable, asyncio.run(handed_out(durable, 1))))
    with away(workers.address):
        wait_for(lambda: said("the queue is away") == 2, "both looks at the queue to fail")
    wait_for(lambda: said("the queue is back") == 2, "the database again")
    workers.started[0].kill()
    reading.join()
    assert said("the queue is away") == 2
    assert said("Traceback") == 0, lines
