"""What is special about PostgreSQL: connections that end, writers that die, secret addresses."""

# DSPy ships no types.
# pyright: reportPrivateUsage=false, reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from child_processes import piped
from conformance.samples import EVERYTHING, ids, message, save_pending, step
from typer.testing import CliRunner

from hybridagi_steps import StepMemory
from hybridagi_steps.errors import (
    DamagedFileError,
    ForeignFileError,
    MissingExtraError,
    NewerSchemaError,
    ReadOnlyStorageError,
    StepTooLargeError,
    StorageBusyError,
    StorageError,
    UnsupportedAddressError,
)
from hybridagi_steps.exchange import salvage_file
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import Position
from hybridagi_steps.search.columns.metadata_columns import by_key
from hybridagi_steps.stores import open_store
from hybridagi_steps.stores.address import cache_path, secrets_of, shown_address
from hybridagi_steps.stores.body import encode_body

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from hybridagi_steps.stores.postgres import PostgresStepStore, following, schema  # noqa: E402
from hybridagi_steps.stores.postgres.roles import grant  # noqa: E402
from hybridagi_steps.stores.postgres.spelling import spelled  # noqa: E402
from hybridagi_steps.stores.postgres.steps import metadata_texts  # noqa: E402

SECRET = "hunter2"  # noqa: S105 - what must be shown nowhere
FORKED = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def store(postgres_address: str) -> Iterator[PostgresStepStore]:
    with closing(PostgresStepStore(postgres_address)) as opened:
        yield opened


def run_sql(address: str, *statements: str) -> list[Any]:
    """Run statements as another program would; return the rows of the last."""
    rows: list[Any] = []
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


def lines_of(pipe: int) -> list[str]:
    """Return the whole lines that were acknowledged until the pipe ended."""
    with os.fdopen(pipe, "rb") as reading:
        return reading.read().decode().rpartition("\n")[0].splitlines()


class TestProcesses:
    """Writers that are killed, writers at once, and whoever follows them."""

    @FORKED
    @pytest.mark.parametrize("durability", ["normal", "full"])
    def test_kill_nine_loses_nothing_that_was_acknowledged(
        self, postgres_address: str, durability: Any
    ) -> None:
        def write(name: str, pipe: int) -> None:
            store = PostgresStepStore(postgres_address, durability=durability)
            for n in range(100_000):
                size = 1 + n % 3
                store.append([step(id=f"{name}.{n}.{m}", run_id=name, hop=n) for m in range(size)])
                os.write(pipe, f"{name}.{n} {size}\n".encode())
                if n % 5 == 0:
                    save_pending(store)
                    store.commit(name, [message(str(n))], [step(id=f"{name}.{n}.said")])
                if n % 7 == 6:
                    store.delete([f"{name}.{n - 3}.0"])

        acknowledged: list[str] = []
        for chance in range(6):
            children = [
                piped(lambda pipe, name=f"{chance}{who}": write(name, pipe)) for who in "ab"
            ]
            for process_id, pipe in children:
                with os.fdopen(pipe) as told:
                    heard = [told.readline() for _ in range(5 + 3 * chance)]
                    os.kill(process_id, signal.SIGKILL)
                    os.waitpid(process_id, 0)
                    acknowledged += [*heard, *told]
        assert all(acknowledged)  # each was killed while it wrote
        with closing(PostgresStepStore(postgres_address)) as store:
            stored = set(ids(store.find(EVERYTHING, limit=10**6)))
            deleted = {run.run_id for run in store.runs(limit=99)} and _may_be_deleted(acknowledged)
            for line in acknowledged:
                name, size = line.split()
                expected = {f"{name}.{m}" for m in range(int(size))}
                assert expected - stored <= deleted, line
            save_pending(store)
            assert store.verify() == []

    @FORKED
    def test_a_writer_killed_inside_a_transaction_leaves_nothing_and_no_lock(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        store.append([step(id="before")])

        def stop_half_way(pipe: int) -> None:
            other = PostgresStepStore(postgres_address)
            with other._db.writing() as connection:
                other._insert_all(connection, ["half"], [step(id="half")], {})
                os.write(pipe, b"inside\n")
                threading.Event().wait(60)

        process_id, pipe = piped(stop_half_way)
        assert os.read(pipe, 7) == b"inside\n"
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(process_id, 0)
        os.close(pipe)
        store.append([step(id="after")])
        assert ids(store.find(EVERYTHING, limit=9)) == ["before", "after"]
        assert store.verify() == []

    def test_readers_wait_for_no_writer_and_writers_not_in_series(
        self, postgres_address: str
    ) -> None:
        threads, seconds = 6, 0.5
        with StepMemory(postgres_address, embedder="hashing", timeout_seconds=seconds) as memory:
            memory.add([step(id="a", inputs={"purpose": "refund"}), step(id="b")])
            memory.flush()
            memory.add(step(id="c", inputs={"purpose": "refund"}))
            with closing(PostgresStepStore(postgres_address)) as other, other._db.writing():
                for mode in ("hybrid", "lexical", "dense"):
                    hits = memory.search("refund", k=9, mode=mode)
                    assert "c" in [str(hit.step.id) for hit in hits]
                assert memory.get("c", vectors=True).steps[0].vector
                assert memory.stats()["pending_texts"] == 1
                waits: list[float] = []

                def write(number: int) -> None:
                    begun = time.monotonic()
                    with pytest.raises(StorageBusyError):
                        memory.add([step(id=f"{number}.{n}") for n in range(1 + number % 2)])
                    waits.append(time.monotonic() - begun)

                workers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                assert len(waits) == threads
                assert max(waits) < threads / 2 * min(waits)  # the last does not wait for all
            while memory.search("refund") and memory.stats()["pending_vectors"]:
                time.sleep(0.01)
            assert memory.stats()["pending_texts"] == 0
            memory.add(step(id="now"))
            assert memory.verify() == []

    def test_who_finds_no_connection_is_told(self, postgres_address: str) -> None:
        with closing(PostgresStepStore(postgres_address, timeout_seconds=0.2)) as store:
            with ExitStack() as taken:
                for _ in range(8):
                    taken.enter_context(store._db.reading())
                with pytest.raises(StorageBusyError, match="8 connections"):
                    store.frontier()
            assert store.frontier().position == Position(1, 0, 0, 0, 0)

    @FORKED
    def test_a_follower_of_two_writers_misses_no_row(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        def write(name: str, pipe: int) -> None:
            other = PostgresStepStore(postgres_address, durability="normal")
            for n in range(150):
                count = 1 + n % 4
                vector = [1.0, 2.0] if n % 2 else None
                other.append([step(id=f"{name}{n}.{m}", vector=vector) for m in range(count)])
                if n % 10 == 0:
                    save_pending(other)
            os.write(pipe, b"done\n")

        children = [piped(lambda pipe, name=name: write(name, pipe)) for name in "ab"]
        position, rows, texts, vectors = Position(0, 0, 0, 0, 0), list[int](), {0}, {0}
        ended = 0
        while ended < 2 or store.frontier().position != position:
            ended += sum(os.waitpid(child, os.WNOHANG)[0] > 0 for child, _ in children[:2])
            children = [pair for pair in children if _alive(pair[0])]
            through, _ = store.frontier().settled
            found, _ = store.step_keys(["scope"], after=rows[-1] if rows else 0, limit=10**6)
            rows += found[found <= through].tolist()
            changes = store.changes(position)
            position = changes.position
            texts |= {text.row for text in changes.texts}
            vectors |= {vector.row for vector in changes.vectors}
        found, _ = store.step_keys(["scope"], after=rows[-1], limit=10**6)
        rows += found.tolist()
        everything = store.rows(EVERYTHING).tolist()
        assert rows == everything
        assert len(rows) == 2 * sum(1 + n % 4 for n in range(150))
        late = store.changes(Position(0, 0, 0, 0, 0))
        assert texts - {0} == {text.row for text in late.texts}
        assert vectors - {0} == {vector.row for vector in late.vectors}

    @FORKED
    def test_many_processes_may_open_an_empty_database_at_once(self, postgres_address: str) -> None:
        def open_and_write(pipe: int, name: str) -> None:
            with closing(PostgresStepStore(postgres_address)) as store:
                store.append([step(id=name)])
            os.write(pipe, b"done\n")

        children = [piped(lambda pipe, name=str(n): open_and_write(pipe, name)) for n in range(6)]
        for process_id, pipe in children:
            assert lines_of(pipe) == ["done"]
            assert os.waitpid(process_id, 0)[1] == 0
        with closing(PostgresStepStore(postgres_address)) as store:
            assert sorted(ids(store.find(EVERYTHING, limit=9))) == list("012345")
            assert store.verify() == []

    @FORKED
    def test_a_child_of_fork_never_speaks_on_its_parents_connection(
        self, store: PostgresStepStore
    ) -> None:
        store.append([step(id="before")])
        at_work = threading.Event()
        stop = threading.Event()

        def go_on() -> None:
            for n in range(10_000):
                store.append([step(id=f"thread {n}")])
                at_work.set()
                if stop.is_set():
                    return

        thread = threading.Thread(target=go_on)
        thread.start()
        at_work.wait(20)
        children = [
            piped(lambda pipe, n=n: _append_and_say(store, f"child {n}", pipe)) for n in range(5)
        ]
        for process_id, pipe in children:
            assert lines_of(pipe) == ["done"]
            assert os.waitpid(process_id, 0)[1] == 0
        stop.set()
        thread.join()
        stored = set(ids(store.find(EVERYTHING, limit=10**6)))
        assert {"before", *(f"child {n}" for n in range(5))} <= stored
        assert store.verify() == []


def _append_and_say(store: PostgresStepStore, name: str, pipe: int) -> None:
    store.append([step(id=name)])
    assert store.get([name])
    os.write(pipe, b"done\n")


def _alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def _may_be_deleted(acknowledged: list[str]) -> set[str]:
    """Return the steps that a writer may have deleted again before it was killed."""
    names = {line.split()[0] for line in acknowledged}
    found: set[str] = set()
    for name in names:
        writer, _, number = name.partition(".")
        if (int(number) + 3) % 7 == 6:
            found.add(f"{writer}.{number}.0")
    return found


class TestConnections:
    """Connections that the server ends, locks that are held, servers that are not there."""

    def test_an_idle_connection_that_ended_is_replaced_without_a_word(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        store.append([step(id="a")])
        _end_connections(postgres_address)
        store.append([step(id="b")])
        _end_connections(postgres_address)
        assert ids(store.find(EVERYTHING, limit=9)) == ["a", "b"]

    def test_a_connection_that_ends_in_the_middle_is_an_error_once(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        store.append([step(id="a")])

        def write_and_lose() -> None:
            with store._db.writing() as connection:
                store._insert_all(connection, ["lost"], [step(id="lost")], {})
                _end_connections(postgres_address)
                store._ends_of(connection, ["s"])

        with pytest.raises(StorageError, match="ended the connection"):
            write_and_lose()
        store.append([step(id="b")])
        assert ids(store.find(EVERYTHING, limit=9)) == ["a", "b"]

    def test_the_next_call_after_a_restart_of_the_server_connects_again(
        self, own_server: Any
    ) -> None:
        address = str(own_server.get_uri())
        with StepMemory(address, embedder="hashing") as memory:
            memory.add(step(id="a", inputs={"purpose": "refund the ticket"}))
            assert memory.search("refund")
            _restart(own_server)
            memory.add(step(id="b", inputs={"purpose": "refund the order"}))
            assert [str(hit.step.id) for hit in memory.search("refund the order", k=1)] == ["b"]
            own_server.stop()
            with pytest.raises(StorageError, match="cannot be reached"):
                memory.find()
            own_server.start()
            assert [str(found.id) for found in memory.iter_steps()] == ["a", "b"]
            assert memory.verify() == []

    def test_what_a_killed_server_lost_is_lost_to_followers_too(self, own_server: Any) -> None:
        address = str(own_server.get_uri())
        lazy = ("wal_writer_delay TO 10000", "wal_writer_flush_after TO '512MB'")
        run_sql(address, *(f"ALTER SYSTEM SET {setting}" for setting in lazy))
        run_sql(address, "SELECT pg_reload_conf()")
        with (
            StepMemory(address, embedder="hashing", durability="normal") as writer,
            StepMemory(address, embedder="hashing", durability="normal") as reader,
        ):
            for n in range(300):
                writer.add(step(id=str(n), inputs={"purpose": f"old {n}"}))
            assert reader.search("old")
            _crash(address)
            there = [str(found.id) for found in writer.iter_steps()]
            assert there == [str(n) for n in range(len(there))]
            writer.add([step(inputs={"purpose": f"new {n}"}) for n in range(1000, 1400)])
            for memory in (reader, writer):
                [hit] = memory.search("new 1007", k=1, mode="lexical")
                assert hit.step.purpose == "new 1007"
            assert reader.verify() == []

    def test_writers_of_one_namespace_wait_and_those_of_another_do_not(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        with (
            closing(PostgresStepStore(postgres_address, timeout_seconds=0.2)) as same,
            closing(PostgresStepStore(postgres_address, namespace="b", timeout_seconds=0.2)) as b,
            store._db.writing(),
        ):
            with pytest.raises(StorageBusyError):
                same.append([step()])
            with pytest.raises(StorageBusyError):
                same.delete(["x"])
            b.append([step(id="not held up")])
            assert same.find(EVERYTHING, limit=9) == []

    def test_nobody_is_there(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="cannot be reached"):
            open_store(f"postgresql://somebody@/db?host={tmp_path}")

    def test_a_database_that_is_not_there(self, postgres_database: str) -> None:
        with pytest.raises(StorageError, match="does not exist"):
            open_store(postgres_database.replace("/postgres?", "/nothing?"))

    def test_a_write_does_not_begin_to_wait_anew(self, postgres_address: str) -> None:
        with (
            closing(PostgresStepStore(postgres_address, timeout_seconds=2.0)) as store,
            ExitStack() as readers,
        ):
            for _ in range(8):
                readers.enter_context(store._db.reading())
            store._db._write_turn.acquire()
            given_back = threading.Timer(0.5, store._db._write_turn.release)
            given_back.start()
            with pytest.raises(StorageBusyError, match="all 8 connections") as error:
                store.delete(["nothing"])
            given_back.join()
            assert float(str(error.value).split(" for ")[1].split(" s;")[0]) < 2.0

    def test_a_transaction_that_still_reads_holds_compaction_back(
        self, postgres_address: str
    ) -> None:
        with (
            closing(PostgresStepStore(postgres_address, timeout_seconds=0.3)) as store,
            psycopg.connect(postgres_address) as reader,
        ):
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT count(*) FROM hybridagi_steps.agent_step")
            store.append([step(id="a")])
            store.delete(["a"])
            with pytest.raises(StorageBusyError):
                store.compact()
            reader.rollback()
            store.compact()

    def test_nobody_waits_behind_a_compaction_that_waits_for_a_table(
        self, postgres_address: str
    ) -> None:
        with (
            closing(PostgresStepStore(postgres_address, timeout_seconds=3.0)) as store,
            closing(PostgresStepStore(postgres_address)) as other,
            psycopg.connect(postgres_address) as holder,
        ):
            store.append([step(id="a")])
            holder.execute("SELECT count(*) FROM hybridagi_steps.agent_step")
            refused: list[StorageBusyError] = []

            def compact() -> None:
                with pytest.raises(StorageBusyError, match=r"agent_step.* is in use") as error:
                    store.compact()
                refused.append(error.value)

            compacting = threading.Thread(target=compact)
            compacting.start()
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            while not run_sql(postgres_address, waiting):
                assert compacting.is_alive()
            assert ids(other.get(["a"])) == ["a"]
            assert not refused
            compacting.join()
            assert refused
            holder.rollback()
            store.compact()


def _end_connections(address: str) -> None:
    run_sql(
        address,
        """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()""",
    )


def _crash(address: str) -> None:
    """Kill one process of the server: it ends them all and recovers, as after a loss of power."""
    recovered = "SELECT stats_reset FROM pg_stat_bgwriter"
    with psycopg.connect(address, autocommit=True) as connection:
        [before] = connection.execute(recovered).fetchall()
        [(process_id,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
        os.kill(process_id, signal.SIGKILL)
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up:
        try:
            if run_sql(address, recovered) != [before]:
                return
        except psycopg.OperationalError:
            time.sleep(0.05)
    raise AssertionError("the server does not come back")


def _restart(server: Any) -> None:
    server.stop()
    server.start()


@pytest.fixture
def own_server(new_postgres_server: Callable[[], Any]) -> Any:
    """A server that a test may stop."""
    return new_postgres_server()


class TestSchema:
    """Whose tables these are, and of which version."""

    def test_tables_of_another_program_are_left_alone(self, postgres_address: str) -> None:
        run_sql(
            postgres_address,
            "CREATE TABLE agent_step (mine integer)",
            "CREATE TABLE meta (key text, value text)",
        )
        with closing(PostgresStepStore(postgres_address)) as store:
            store.append([step(id="a")])
        assert run_sql(postgres_address, "SELECT * FROM public.agent_step") == []

    @pytest.mark.parametrize(
        "table",
        ["agent_step (mine integer)", "meta (key text, value text)", "meta (mine integer)"],
    )
    def test_a_schema_of_this_name_that_is_not_ours_is_refused(
        self, postgres_address: str, table: str
    ) -> None:
        run_sql(
            postgres_address,
            "CREATE SCHEMA hybridagi_steps",
            f"CREATE TABLE hybridagi_steps.{table}",
        )
        with pytest.raises(ForeignFileError, match="another program"):
            PostgresStepStore(postgres_address)

    def test_an_empty_schema_made_for_us_is_taken(self, postgres_address: str) -> None:
        run_sql(postgres_address, "CREATE SCHEMA hybridagi_steps")
        PostgresStepStore(postgres_address).close()

    def test_a_newer_schema_is_refused(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        run_sql(
            postgres_address,
            "UPDATE hybridagi_steps.meta SET value = '99' WHERE key = 'schema_version'",
        )
        with pytest.raises(NewerSchemaError, match="upgrade"):
            PostgresStepStore(postgres_address)

    def test_a_writer_stops_where_a_newer_version_has_migrated(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        store.append([step()])
        store.commit("s", [message("one")])
        run_sql(
            postgres_address,
            "UPDATE hybridagi_steps.meta SET value = '99' WHERE key = 'schema_version'",
        )
        for write in (
            lambda: store.append([step()]),
            lambda: store.append([step(), step()]),
            lambda: store.commit("s", [message("two")]),
            lambda: store.commit("new", [message("two")]),
            lambda: store.delete(["x"]),
            lambda: store.delete_session("s"),
        ):
            with pytest.raises(NewerSchemaError, match="upgrade"):
                write()
        assert [each.content for each in store.messages("s")] == ["one"]
        count = "SELECT count(*) FROM hybridagi_steps.agent_step"
        assert run_sql(postgres_address, count) == [(1,)]

    def test_a_schema_without_its_tables_is_damaged(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        run_sql(postgres_address, "DROP TABLE hybridagi_steps.message CASCADE")
        with pytest.raises(DamagedFileError, match="message"):
            PostgresStepStore(postgres_address)
        with pytest.raises(DamagedFileError):
            store.messages("s") if store.commit("s", [message("x")]) else None

    def test_users_of_a_schema_of_before_get_their_index(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        store.append([step(id="a", run_id="r", user_id="ann")])
        run_sql(
            postgres_address,
            "DROP INDEX hybridagi_steps.agent_step_user",
            "UPDATE hybridagi_steps.meta SET value = '14' WHERE key = 'schema_version'",
        )
        with closing(PostgresStepStore(postgres_address)) as later:
            assert [run.run_id for run in later.runs(limit=9, where=StepFilter(user_id="ann"))] == [
                "r"
            ]
        listed = "SELECT indexname FROM pg_indexes WHERE schemaname = 'hybridagi_steps'"
        assert ("agent_step_user",) in run_sql(postgres_address, listed)

    def test_verify_names_what_does_not_hold_together(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        store.append([step(id="a", vector=[1, 2]), step(id="b")])
        store.commit("s", [message("x"), message("y")])
        save_pending(store)
        run_sql(
            postgres_address,
            "UPDATE hybridagi_steps.agent_step SET body = 'no JSON' WHERE id = 'b'",
            "UPDATE hybridagi_steps.embedding SET dimension = 7",
            "DELETE FROM hybridagi_steps.message WHERE sequence = 1",
            "DELETE FROM hybridagi_steps.agent_step WHERE id = 'a'",
        )
        found = "\n".join(store.verify())
        for words in ("no JSON", "another length", "with a gap", "words without a step"):
            assert words in found
        with pytest.raises(DamagedFileError, match="not as it was written"):
            store.get(["b"])

    def test_what_a_row_held_is_checked(
        self, store: PostgresStepStore, postgres_address: str, tmp_path: Path
    ) -> None:
        store.append([step(id=name, outputs={"answer": "naught"}) for name in ("a", "b")])
        store.commit("s", [message("first"), message("naught"), message("last")])
        run_sql(
            postgres_address,
            """UPDATE hybridagi_steps.agent_step SET body = replace(body, 'naught', 'caught')
            WHERE id = 'b'""",
            "UPDATE hybridagi_steps.agent_step SET tool = 'hammer' WHERE id = 'a'",
            "UPDATE hybridagi_steps.message SET said = replace(said, 'naught', 'caught')",
        )
        with pytest.raises(DamagedFileError, match=r"row 2 .*checksum"):
            store.get(["b"])
        for read in (store.messages, store.message_dicts):
            with pytest.raises(DamagedFileError, match="message 2"):
                read("s")
        problems = "\n".join(store.verify())
        for words in ("a step that is not", "keys that are not", "a message that is not"):
            assert words in problems
        named: list[str] = []
        with StepMemory(postgres_address) as memory:
            assert salvage_file(memory, tmp_path / "whole.jsonl", damaged=named.append) == 1
        assert "the step 'b' in row 2 is not whole" in named
        assert "the session 's' lacks its message 2" in named

    def test_vacuum_adds_checksums(self, store: PostgresStepStore, postgres_address: str) -> None:
        store.append([step(id="a", vector=[1, 2])])
        store.commit("s", [message("first")])
        for table in ("agent_step", "embedding", "session", "branch", "message"):
            run_sql(postgres_address, f"UPDATE hybridagi_steps.{table} SET checksum = NULL")
        assert store.verify() == []
        assert len(store.messages("s")) == len(store.get(["a"], vectors=True)) == 1
        store.vacuum()
        for table in ("agent_step", "embedding", "session", "branch", "message"):
            unchecked = f"SELECT count(*) FROM hybridagi_steps.{table} WHERE checksum IS NULL"
            assert run_sql(postgres_address, unchecked)[0][0] == 0
        assert store.verify() == []

    def test_a_server_that_cannot_be_written_can_be_read(self, postgres_address: str) -> None:
        with closing(PostgresStepStore(postgres_address)) as store:
            store.append([step(id="a")])
        name = run_sql(postgres_address, "SELECT current_database()")[0][0]
        run_sql(postgres_address, f"ALTER DATABASE {name} SET default_transaction_read_only TO on")
        with closing(PostgresStepStore(postgres_address)) as store:
            assert ids(store.find(EVERYTHING, limit=9)) == ["a"]
            with pytest.raises(ReadOnlyStorageError):
                store.append([step(id="b")])
            with pytest.raises(ReadOnlyStorageError):
                store.delete(["a"])
        with closing(PostgresStepStore(postgres_address, namespace="new")) as other:
            assert other.find(EVERYTHING, limit=9) == []
            assert other.stats()["steps"] == 0

    def test_a_user_without_rights_may_not_create_the_schema(self, postgres_address: str) -> None:
        with _user(postgres_address, "reader") as address, pytest.raises(ReadOnlyStorageError):
            PostgresStepStore(address)

    def test_only_the_owner_may_compact(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        with _user(postgres_address, "writer") as address:
            grant(postgres_address, "writer", "server")
            with closing(PostgresStepStore(address)) as other:
                other.append([step(id="a")])
                with pytest.raises(ReadOnlyStorageError, match="belong to another user"):
                    other.compact()

    def test_a_database_of_another_encoding_is_refused(self, postgres_database: str) -> None:
        run_sql(
            postgres_database,
            """CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'""",
        )
        try:
            with pytest.raises(StorageError, match="LATIN1"):
                PostgresStepStore(postgres_database.replace("/postgres?", "/latin?"))
        finally:
            run_sql(postgres_database, "DROP DATABASE latin WITH (FORCE)")

    def test_full_waits_for_the_disk_and_normal_does_not(self, postgres_address: str) -> None:
        for durability, setting in (("full", "on"), ("normal", "off")):
            store: Any = open_store(postgres_address, durability=durability)  # pyright: ignore[reportArgumentType]
            with closing(store), store._db.reading() as connection:
                assert connection.execute("SHOW synchronous_commit").fetchone() == (setting,)


class _user:  # noqa: N801 - reads as a function
    """A user of the server, for as long as the block lasts."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name

    def __enter__(self) -> str:
        run_sql(self._address, f"CREATE ROLE {self._name} LOGIN PASSWORD '{SECRET}'")
        return self._address.replace("postgres:@", f"{self._name}:{SECRET}@")

    def __exit__(self, *_: object) -> None:
        run_sql(self._address, f"DROP OWNED BY {self._name}", f"DROP ROLE {self._name}")


class TestTexts:
    """What PostgreSQL's text cannot hold, and what is large."""

    def test_nul_and_its_escape_are_kept_wherever_a_text_may_stand(
        self, store: PostgresStepStore
    ) -> None:
        odd = "a\x00b\x1ac\x1a0\x1a1\\u0000 ключ 🙂"
        values = {
            "inputs": {"tool": odd, "purpose": odd},
            "outputs": {odd: [odd]},
            "metadata": {odd: odd},
        }
        given = step(id="a", run_id="r").model_copy(update=values)  # unchecked, so unrepaired
        store.append([given])
        store.score_run("r", 0.5, odd)
        assert store.get(["a"])[0].inputs == given.inputs
        assert [run.feedback for run in store.runs(limit=9)] == [odd]
        assert ids(store.find(StepFilter(tools=[odd]), limit=9)) == ["a"]
        assert ids(store.find(StepFilter(metadata={odd: odd}), limit=9)) == ["a"]
        assert store.find(StepFilter(tools=["ab"]), limit=9) == []
        assert store.step_keys(["tool"], after=0, limit=9)[1]["tool"] == [odd]
        store.commit("s", [message(odd)])
        assert store.messages("s")[0].content == odd
        assert store.verify() == []

    def test_keys_of_many_steps_are_read_as_one_text(
        self, store: PostgresStepStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever stands in them, where some have none; metadata by pages, each value once."""
        odd = ["a", "", None, "\x1a2", "\x1a3", "\x1a", "\x00", "\x1a\x00", "a\nb", "\\", "\x1a1"]
        monkeypatch.setattr(following, "_PAGE", 3)
        values: list[Any] = [*odd, 1, 1.0, True, 2.5, 2**63, [1], {"n": 1}]
        made = [
            step(id=f"{n}").model_copy(
                update={
                    "inputs": {"tool": odd[n % len(odd)]},
                    "metadata": {"k": value, f"k\x1a2{n % 2}": "x"} if n % 5 else None,
                }
            )
            for n, value in enumerate(values)
        ]
        store.append(made)
        rows, keys = store.step_keys(["user_id", "tool"], after=0, limit=99)
        assert keys["tool"] == [each.inputs["tool"] for each in made if each.inputs]
        assert keys["user_id"] == [None] * len(made)
        assert store.step_keys(["user_id"], after=int(rows[-2]), limit=99)[0].tolist() == [rows[-1]]
        for after, through in ((0, int(rows[-1])), (int(rows[2]), int(rows[9])), (0, 0)):
            told = {
                (row, key): value
                for key, held in by_key(store.metadata_values(after=after, through=through)).items()
                for row, value in zip(
                    held.rows, map(held.values.__getitem__, held.numbers), strict=True
                )
            }
            expected = {
                (row, key): value
                for row, each in zip(rows, made, strict=True)
                for key, value in (each.metadata or {}).items()
                if after < row <= through and not isinstance(value, list | dict)
            }
            assert {place: (value, value is True) for place, value in told.items()} == {
                place: (value, value is True) for place, value in expected.items()
            }
        few = by_key(store.metadata_values(after=0, through=int(rows[-1])))["k\x1a20"]
        assert few.values == ["x"]

    def test_a_name_with_nul_finds_nothing(self, store: PostgresStepStore) -> None:
        store.append([step(id="a", run_id="r")])
        assert store.find(StepFilter(run_id="r\x00"), limit=9) == []
        assert store.get(["a\x00"]) == []

    def test_a_step_of_eight_mebibytes(self, store: PostgresStepStore) -> None:
        large = step(id="large", outputs={"x": "ü" * (4 * 1024 * 1024 - 1000)})
        store.append([large])
        assert store.get(["large"]) == [large]
        with pytest.raises(StepTooLargeError):
            store.append([step(outputs={"x": "y" * (8 * 1024 * 1024)})])

    def test_names_and_times_compare_byte_by_byte_in_any_database(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        found = run_sql(
            postgres_address,
            """SELECT c.relname || '.' || a.attname FROM pg_attribute a
            JOIN pg_class c ON c.oid = a.attrelid
            WHERE c.relnamespace = 'hybridagi_steps'::regnamespace AND c.relkind = 'r'
                AND a.attnum > 0 AND a.atttypid = 'text'::regtype
                AND a.attcollation <> (SELECT oid FROM pg_collation WHERE collname = 'C')""",
        )
        only_kept = {"agent_step.body", "message.body", "message.said", "meta.value"}
        only_kept |= {"run.feedback", "step_text.tokens", "embedding.model"}
        assert {name for (name,) in found} == only_kept

    @pytest.mark.parametrize("others", [0, 3])
    def test_what_was_erased_is_in_no_table(self, own_server: Any, others: int) -> None:
        word, address = "orchidaceous", str(own_server.get_uri())
        with StepMemory(address, embedder="hashing") as memory:
            for n in range(60):
                _live(memory, f"{word}{n % 30}", "u")
            for n in range(others):
                _live(memory, f"plain{n}", "other")
            assert memory.search(word, 3)
            memory.flush()
            run_sql(address, "ANALYZE")  # as the server does by itself
            erased = memory.purge({"user_id": "u"})
            assert (erased, erased.unreached) == (120, ())
            assert _files_with(own_server, word) == []
            assert memory.stats()["steps"] == others

    def test_old_statistics_that_cannot_be_rewritten_are_named(
        self, new_postgres_server: Callable[[], Any]
    ) -> None:
        server = new_postgres_server()
        with _user(str(server.get_uri()), "owner") as address:
            run_sql(str(server.get_uri()), "CREATE SCHEMA hybridagi_steps AUTHORIZATION owner")
            with StepMemory(address, embedder="hashing") as memory:
                memory.add(step(id="a", user_id="u"))
                erased = memory.purge({"user_id": "u"})
                assert erased == 1
                assert [place.split()[-1] for place in erased.unreached] == ["pg_statistic"]

    def test_statements_are_spelled_for_postgres(self) -> None:
        sql = "SELECT 1 WHERE +s.row IN (SELECT value FROM json_each(:rows)) AND a = ?"
        assert spelled(sql) == b"SELECT 1 WHERE s.row = ANY(%(rows)s) AND a = %s"


def _live(memory: StepMemory, word: str, user: str) -> None:
    """Write a word wherever a memory takes one."""
    store: Any = memory._open_store
    told = {"user_id": user, "run_id": f"run {word}", "session_id": f"session {word}"}
    one = step(**told, inputs={"purpose": f"{word} does"}, metadata={word: word})
    store.commit(f"session {word}", [message(f"{word} says")], [one])
    memory.score(f"run {word}", 1, f"{word} was good")


def _files_with(server: Any, word: str) -> list[str]:
    """Return the tables' files that hold a word."""
    run_sql(str(server.get_uri()), "CHECKPOINT")
    files = [path for path in Path(server.pgdata, "base").rglob("*") if path.is_file()]
    return [path.name for path in files if word.encode() in path.read_bytes()]


class TestAbove:
    """What stands above the stores does not notice where it is kept."""

    def test_a_runner_keeps_its_session_there(self, postgres_address: str) -> None:
        import dspy
        from runner_cases import answering, check_stream, run

        from hybridagi_steps import StepRunner

        with StepMemory(postgres_address, embedder="hashing") as memory:
            runner = StepRunner(dspy.Predict("question -> answer"), memory)
            check_stream(memory, run(runner, "s", "hello", answering("hi")))
            check_stream(memory, run(runner, "s", "again", answering("yes")))
            store: Any = memory._store
            assert [found.content for found in store.messages("s")][-3::2] == ["hi", "yes"]
            assert memory.verify() == []

    def test_the_command_line_takes_an_address(
        self, postgres_address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from hybridagi_steps.cli.app import application

        address = postgres_address.replace("postgres:@", f"postgres:{SECRET}@")
        with StepMemory(address) as memory:
            memory.add(step(id="a", user_id="u", inputs={"purpose": "refund the ticket"}))
        monkeypatch.setenv("HYBRIDAGI_STEPS_DB", address)
        for words in (
            ["stats"],
            ["verify"],
            ["search", "refund"],
            ["purge", "--user", "u", "--yes"],
        ):
            done = CliRunner().invoke(application(), words)
            assert done.exit_code == 0, done.output
            assert SECRET not in done.output
        with StepMemory(address) as memory:
            assert list(memory.iter_steps()) == []


class TestSecrets:
    """A password is in no message, no repr, no log and no name of a file."""

    @pytest.mark.parametrize(
        "address",
        [
            f"postgresql://me:{SECRET}@localhost:1/db",
            f"postgres://me:{SECRET}@localhost:1/db?connect_timeout=1",
            f"POSTGRESQL://me:{SECRET}@localhost:1",
            f"postgresql://me@localhost:1/db?password={SECRET}",
            f"postgresql://me:x@{SECRET}@localhost:1/db",
            f"postgresql://me:x/{SECRET}@localhost:1/db",
            f"postgresql://me:x?{SECRET}@localhost:1/db",
            f"postgresql://me:{SECRET}@localhost:port/db",
            f"postgresql://me:{SECRET}%zz@localhost:1/db",
            f"postgresql://me:{SECRET}@localhost:1/db?nonsense=1",
            f"postgresql://me@localhost:1/db?sslpassword={SECRET}&sslmode=nonsense",
        ],
    )
    def test_an_address_that_leads_nowhere_shows_none(
        self, address: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        with pytest.raises((StorageError, UnsupportedAddressError)) as caught:
            StepMemory(address)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert SECRET not in caplog.text
        assert SECRET not in shown_address(address)

    def test_a_memory_shows_none(
        self, postgres_address: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        address = postgres_address.replace("postgres:@", f"postgres:{SECRET}@")
        with StepMemory(address, embedder="hashing") as memory:
            memory.add(step())
            memory.search("x")
            memory.flush()
            shown = [repr(memory), str(memory.stats()), memory.address, *memory.verify()]
            assert all(SECRET not in text for text in shown)
            assert shown_address(address) == memory.address
            with pickle.loads(pickle.dumps(memory)) as again:
                assert len(again.find()) == 1
        with pytest.raises(Exception, match="closed") as caught:
            memory.find()
        assert SECRET not in str(caught.value)
        assert SECRET not in caplog.text
        assert cache_path(address, "default") is None

    def test_a_wrong_password(self, own_server: Any) -> None:
        address = str(own_server.get_uri())
        run_sql(address, f"CREATE ROLE me LOGIN PASSWORD 'not {SECRET}'")
        rules = Path(own_server.pgdata, "pg_hba.conf")
        rules.write_text("local all me scram-sha-256\n" + rules.read_text("utf-8"), "utf-8")
        run_sql(address, "SELECT pg_reload_conf()")
        _restart(own_server)
        with pytest.raises(StorageError, match="password authentication failed") as caught:
            open_store(address.replace("postgres:@", f"me:{SECRET}@"))
        assert SECRET not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize(
        ("address", "shown", "secrets"),
        [
            ("steps.db", "steps.db", []),
            (":memory:", ":memory:", []),
            ("postgresql://h/d", "postgresql://h/d", []),
            ("postgresql:///d?host=/tmp/x", "postgresql:///d?host=/tmp/x", []),
            ("postgresql://u:p@h1:1,h2:2/d", "postgresql://u@h1:1,h2:2/d", ["p"]),
            ("postgresql://u:a%20b@h/d?x=1", "postgresql://u@h/d", ["a b", "a%20b"]),
            ("postgresql://h/d?user=u&password=p", "postgresql://h/d?user=u", ["p"]),
        ],
    )
    def test_what_of_an_address_is_shown(
        self, address: str, shown: str, secrets: list[str]
    ) -> None:
        assert shown_address(address) == shown
        assert secrets_of(address) == secrets


class TestWithoutDriver:
    """What stands above works without psycopg until it is needed."""

    def test_importing_the_package_does_not_load_the_driver(self) -> None:
        code = (
            "import sys, hybridagi_steps as hs; hs.StepMemory(':memory:', embedder='hashing'); "
            "assert 'psycopg' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_the_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith("hybridagi_steps.stores.pos")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(MissingExtraError, match=r"hybridagi-steps\[postgres\]"):
            StepMemory("postgresql://localhost/db")


ODD_TEXTS = [
    "a, b",
    '"',
    "\\",
    '\\"',
    "{}",
    "NULL",
    "",
    " ",
    "\x1a",
    "a\nb",
    "\U0001f600",
    "\u2003",
]


@pytest.mark.parametrize("at_once", [1, 2])
def test_metadata_of_any_text_is_kept_as_a_filter_looks_for_it(
    postgres_address: str, at_once: int
) -> None:
    with closing(open_store(postgres_address)) as store:
        steps = [step(id=f"{n}", metadata={text: text}) for n, text in enumerate(ODD_TEXTS)]
        for first in range(0, len(steps), at_once):
            store.append(steps[first : first + at_once])
        for row, text in enumerate(ODD_TEXTS, 1):
            assert store.rows(StepFilter(metadata={text: text})).tolist() == [row], text
        assert store.verify() == []


def test_a_database_of_the_first_schema_is_brought_up_to_date(postgres_address: str) -> None:
    first, *later = schema.migrations()
    steps = [step(id="a", metadata={"format": 5}), step(id="chat", metadata={"format": "openai"})]
    with (
        pytest.MonkeyPatch.context() as patch,
        psycopg.connect(postgres_address, autocommit=True) as connection,
    ):
        patch.setattr(schema, "migrations", lambda: [first])
        connection.execute("SET search_path TO hybridagi_steps")
        schema.migrate(connection, "the database")
        connection.execute("INSERT INTO namespace (name) VALUES ('default')")
        for each in steps:
            values = (
                each.id,
                each.created_at.isoformat(),
                metadata_texts(each.metadata),
                encode_body(each),
            )
            connection.execute(
                """INSERT INTO agent_step
                (namespace, id, hop, step_type, status, created_at, metadata, body)
                VALUES (1, %s, 0, 'Action', 'ok', %s, %s, %s)""",
                values,
            )
        connection.execute("ANALYZE")
    with closing(open_store(postgres_address)) as store:
        bodies = "SELECT 1 FROM pg_stats WHERE tablename = 'agent_step' AND attname = 'body'"
        assert run_sql(postgres_address, bodies, "ANALYZE", bodies) == []
        assert ids(store.find(StepFilter(trust="team"), limit=9)) == ["a"]
        assert store.revoke(StepFilter(sources=["openai"]), None).matched == 1
        assert ids(store.find(StepFilter(), limit=9)) == ["a"]
        assert store.verify() == []
    assert later
