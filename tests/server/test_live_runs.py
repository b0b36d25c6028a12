"""What servers on one PostgreSQL database know of each other, and how they hear that it is new."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra postgres is not installed")
pytest.importorskip("fastapi", reason="the extra server is not installed")

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from server_cases import until

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.server.peers import Peers, open_peers
from hybridagi_steps.server.sse import LiveRun
from hybridagi_steps.stores.postgres import live_runs
from hybridagi_steps.stores.postgres.live_runs import LiveRuns
from tests.cluster.postgres import free_port

POOLER = shutil.which("pgbouncer")
PATIENCE_SECONDS = 60
BACKENDS = b"""SELECT count(*) FROM hybridagi_steps_work.lease l
    JOIN pg_stat_activity a ON a.pid = l.backend"""
WAITING = b"SELECT count(*) FROM pg_locks WHERE NOT granted"
HELD = b"""SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
    WHERE l.mode = 'AccessExclusiveLock' AND l.granted AND c.relkind = 'r'"""


@pytest.fixture
def first(postgres_address: str) -> Iterator[LiveRuns]:
    """A server."""
    with closing(LiveRuns(postgres_address, "default")) as runs:
        yield runs


@pytest.fixture
def second(postgres_address: str) -> Iterator[LiveRuns]:
    """Another one on the same database."""
    with closing(LiveRuns(postgres_address, "default")) as runs:
        yield runs


@pytest.fixture
def pooled_address(postgres_address: str, postgres_server: Any) -> Iterator[str]:
    """The address of a pooler that lends a connection for each transaction."""
    if POOLER is None:
        pytest.skip("needs pgbouncer")
    told = conninfo_to_dict(postgres_address)
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="pooler-"))
    folder.chmod(0o755)  # it refuses to run as root
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pooler.ini").write_text(
        f"[databases]\n* = host={told['host']} user=postgres\n[pgbouncer]\nlisten_port={port}\n"
        f"listen_addr=127.0.0.1\nunix_socket_dir=\npool_mode=transaction\nauth_type=any\n"
        f"auth_file={folder}/users.txt\nignore_startup_parameters=extra_float_digits\n"
    )
    process = subprocess.Popen(
        [POOLER, folder / "pooler.ini"],
        user=postgres_server.system_user,
        stderr=subprocess.DEVNULL,
    )
    address = make_conninfo("", host="127.0.0.1", port=port, dbname=told["dbname"], user="postgres")

    def answers() -> bool:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            assert process.poll() is None
            return False
        return True

    try:
        until(answers)
        yield address
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def heard_by(listener: LiveRuns, *done: object) -> list[str]:
    """What a server hears while calls are made one after the other."""

    async def heard() -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(listener.listen()) as news:
            calls = iter(done)
            async for one in news:
                found.append(one)
                call = next(calls, None)
                if call is None:
                    break
                assert callable(call)
                await asyncio.to_thread(call)
        return found

    return asyncio.run(heard())


def test_what_a_server_tells_and_asks_is_heard_by_another(
    first: LiveRuns, second: LiveRuns
) -> None:
    first.begin("run", "session", "ann")
    asked: list[object] = []
    heard = heard_by(
        second,
        lambda: first.tell("run", 2, "message"),
        lambda: asked.append(first.ask("run", cancel=True)),
        lambda: first.reply(asked[0], True),  # pyright: ignore[reportArgumentType]
        lambda: first.tell("run", 5, None),
    )
    assert heard == ["", second.mark_of("run"), "requests", str(asked[0]), second.mark_of("run")]
    found = second.find_all(["run", "nobody's"])
    assert set(found) == {"run"}
    assert found["run"] == second.find("run")
    assert found["run"].numbers == {"message": 2, None: 5}
    assert not found["run"].in_flight


def test_a_server_that_is_alone_notifies_nobody(first: LiveRuns, postgres_address: str) -> None:
    assert len(first.renew()) == 1
    first.begin("run", "session", None)
    with psycopg.connect(postgres_address, autocommit=True) as raw:
        raw.execute("LISTEN hybridagi_steps_work")
        first.tell("run", 2, "message")
        assert list(raw.notifies(timeout=0.2)) == []
        with closing(LiveRuns(postgres_address, "default")):
            assert len(first.renew()) == 2
            first.tell("run", 3, "another")
            assert len(list(raw.notifies(timeout=PATIENCE_SECONDS, stop_after=1))) == 1


def test_who_has_lost_its_connection_lives_and_who_has_gone_does_not(
    first: LiveRuns, second: LiveRuns, postgres_address: str
) -> None:
    names = second.renew()
    assert len(names) == 2
    first.begin("run", "session", None)
    with psycopg.connect(postgres_address, autocommit=True) as raw:
        raw.execute(
            "SELECT pg_terminate_backend(backend) FROM hybridagi_steps_work.lease"
            " WHERE name = (SELECT holder FROM hybridagi_steps_work.live_run)"
        )
        first.requests()  # whatever it asks, it shows that it lives
        raw.execute("UPDATE hybridagi_steps_work.lease SET seen_at = seen_at - interval '5 s'")
        assert second.renew() == names
        run = second.find("run")
        assert run is not None
        assert run.in_flight
    first.close()
    until(lambda: len(second.renew()) == 1)
    run = second.find("run")
    assert run is not None
    assert not run.in_flight


def test_who_connects_anew_in_the_middle_of_a_question_calls_nobody_dead(
    first: LiveRuns, second: LiveRuns, postgres_address: str
) -> None:
    """As after a takeover: all connections are others, and nobody has renewed yet."""
    first.begin("run", "session", None)
    with psycopg.connect(postgres_address, autocommit=True) as raw:
        raw.execute("UPDATE hybridagi_steps_work.lease SET seen_at = seen_at - interval '5 s'")
        raw.execute("SELECT pg_terminate_backend(backend) FROM hybridagi_steps_work.lease")
        until(lambda: raw.execute(BACKENDS).fetchone() == (0,))
    run = second.find("run")
    assert run is not None
    assert run.in_flight


def test_a_server_takes_part_though_its_start_meets_work_that_is_in_its_way(
    first: LiveRuns, postgres_address: str
) -> None:
    """One that gave up there told readers of runs elsewhere what a dead run's store says."""
    policies = "DROP POLICY IF EXISTS own ON hybridagi_steps_work.{}"
    with StepMemory(postgres_address, embedder="hashing") as memory:
        with psycopg.connect(postgres_address, autocommit=True) as raw:
            for table in ("live_run", "run_event"):
                raw.execute(policies.format(table).encode())
        with (
            psycopg.connect(postgres_address, autocommit=True) as other,
            psycopg.connect(postgres_address) as worker,
            ThreadPoolExecutor() as pool,
        ):
            worker.execute("SET deadlock_timeout TO '1 min'")  # so that the start is given up
            worker.execute("LOCK TABLE hybridagi_steps_work.run_event IN ROW EXCLUSIVE MODE")
            starting = pool.submit(open_peers, memory, 10_000)
            until(lambda: other.execute(WAITING).fetchone() == (1,))
            held = other.execute(HELD).fetchall()
            if ("live_run",) in held:  # whoever stands in the way wants it now: a deadlock
                worker.execute("SELECT count(*) FROM hybridagi_steps_work.live_run")
            worker.rollback()
            assert ("live_run",) in held
            peers = starting.result(PATIENCE_SECONDS)
            assert peers is not None
            assert len(first.renew()) == 2
            peers.runs.close()


def test_a_run_that_is_followed_from_the_middle_of_a_look_on_is_not_taken_for_over(
    first: LiveRuns, second: LiveRuns, postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, followed_now, look = threading.Event(), threading.Event(), second.find_all

    def find_all(run_ids: Collection[str]) -> dict[str, live_runs.LiveRun]:
        found = look(run_ids)
        if not run_ids:  # as when servers begin to hear each other while nothing is followed
            looked.set()
            followed_now.wait(PATIENCE_SECONDS)
        return found

    def find(run_id: str) -> live_runs.LiveRun | None:
        return look([run_id]).get(run_id)

    async def followed(memory: StepMemory) -> LiveRun:
        said = Step(session_id="session", role=MessageRole.USER, content="hello", run_id="run")
        await memory.repository().append("session", [said])
        first.begin("run", "session", None)
        first.tell("run", 2, said.id)
        peers = Peers(memory, second, 10_000)
        monkeypatch.setattr(second, "find_all", find_all)
        peers.begin(None)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.to_thread(looked.wait)
            monkeypatch.setattr(second, "find", find)
            run = await peers.follow("run")
            assert run is not None
            followed_now.set()
            while run.last_number < 2 and not run.ended:
                await run.change()
            assert (run.last_number, run.ended) == (2, False)
            first.tell("run", 7, None)
            while not run.ended:
                await run.change()
        await peers.close()
        return run

    with StepMemory(postgres_address, embedder="hashing") as memory:
        assert asyncio.run(followed(memory)).last_number == 7


def test_a_purge_of_others_between_two_looks_takes_no_end_from_a_reader(
    first: LiveRuns, second: LiveRuns, postgres_address: str
) -> None:
    """It erases what servers know of all runs that are over."""

    async def followed(memory: StepMemory) -> LiveRun:
        said = Step(session_id="session", role=MessageRole.USER, content="hello", run_id="run")
        await memory.repository().append("session", [said])
        first.begin("run", "session", None)
        first.tell("run", 2, said.id)
        peers = Peers(memory, second, 10_000)
        run = await peers.follow("run")
        assert run is not None
        first.tell("run", 7, None)
        memory.add(AgentStep(step_type=AgentStepType.Action, run_id="other"))
        assert memory.purge({"run_id": "other"}) == 1
        assert first.find("run") is None
        peers.begin(None)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not run.ended:
                await run.change()
        await peers.close()
        return run

    with StepMemory(postgres_address, embedder="hashing") as memory:
        run = asyncio.run(followed(memory))
    events = [
        line for line in run.after(0).data.decode().splitlines() if line[:3] in ("id:", "eve")
    ]
    assert events[:4] == ["id: run:1", "event: run_started", "id: run:2", "event: step_completed"]
    assert events[5:] == ["event: run_failed"]


def test_what_can_never_be_told_keeps_nothing_else_waiting(
    first: LiveRuns,
    second: LiveRuns,
    postgres_address: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuse = (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'not this one'; END$$",
        "CREATE TRIGGER refuse BEFORE INSERT ON hybridagi_steps_work.live_run FOR EACH ROW "
        "WHEN (new.run_id = 'bad') EXECUTE FUNCTION refuse()",
    )
    with psycopg.connect(postgres_address, autocommit=True) as raw:
        for statement in refuse:
            raw.execute(statement)

    async def told(memory: StepMemory) -> None:
        peers = Peers(memory, first, 1_000)
        for name in ("bad", "good"):
            event = StepEvent(type=StepEventType.RUN_STARTED, run_id=name, number=1)
            await peers.note(LiveRun(name, "session", 1_000), event)
        assert second.find("good") is None
        peers.begin(None)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while second.find("good") is None:
                await asyncio.sleep(0.02)
        await peers.close()

    monkeypatch.setattr("hybridagi_steps.server.peers._RENEW_SECONDS", 0.01)
    with StepMemory(postgres_address, embedder="hashing") as memory:
        asyncio.run(told(memory))
    assert second.find("bad") is None
    left_out = [line for line in caplog.messages if "not told something of run bad" in line]
    assert len(left_out) == 1


def test_behind_a_pooler_of_transactions_runs_are_followed_by_looking(
    first: LiveRuns, pooled_address: str, postgres_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def followed(memory: StepMemory) -> LiveRun:
        peers = Peers(memory, LiveRuns(pooled_address, "default"), 10_000)
        peers.begin(None)
        try:
            said = Step(session_id="session", role=MessageRole.USER, content="hello", run_id="run")
            await memory.repository().append("session", [said])
            first.begin("run", "session", None)
            first.tell("run", 2, said.id)
            run = await peers.follow("run")
            assert run is not None
            async with asyncio.timeout(PATIENCE_SECONDS):
                while run.last_number < 2:
                    await run.change()
                first.tell("run", 7, None)
                while not run.ended:
                    await run.change()
                while not caplog.messages:
                    await asyncio.sleep(0.05)
            return run
        finally:
            await peers.close()

    with StepMemory(postgres_address, embedder="hashing") as memory:
        run = asyncio.run(followed(memory))
    assert run.last_number == 7
    [line] = caplog.messages
    assert "no notifications" in line
