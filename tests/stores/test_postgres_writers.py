"""Writers of one PostgreSQL namespace side by side: nobody waits, and followers miss no row.

A writer is stalled where it hurts most, after its row is numbered and before it is committed: a
trigger waits there for a lock that the test holds.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from child_processes import piped
from conformance.samples import EVERYTHING, message, save_pending
from jumping_clock import jump
from session_operations import check_two_writers

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.errors import (
    ConnectionLostError,
    DiskFullError,
    DuplicateStepError,
    SequenceConflictError,
    StorageBusyError,
    StorageError,
)
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.sqlite import SqliteStepStore

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from hybridagi_steps.stores.postgres import PostgresStepStore  # noqa: E402

FORKED = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
GATE = 4711
STALLS = f"""CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END $$;
    CREATE TRIGGER stalls AFTER INSERT ON hybridagi_steps.agent_step FOR EACH ROW
        WHEN (new.id LIKE 'late%') EXECUTE FUNCTION stall();
    CREATE TRIGGER stalls AFTER INSERT ON hybridagi_steps.message FOR EACH ROW
        WHEN (new.id LIKE 'late%') EXECUTE FUNCTION stall()"""
WAITING = f"""SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE locktype = 'advisory' AND NOT granted AND objid = {GATE}
    AND datname = current_database()"""
LOSE = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'hybridagi_steps';
    SELECT pg_stat_reset_shared('bgwriter');
    SET session_replication_role TO replica;
    DELETE FROM hybridagi_steps.agent_step WHERE id = 'lost';
    SELECT setval('hybridagi_steps.step_row', max(row)) FROM hybridagi_steps.agent_step"""

Stall = Callable[[Callable[[], object]], Future[object]]
"""Lets a thread write; returns when it stands still with its rows numbered."""


def step(name: str, **values: Any) -> AgentStep:
    """Return a step that is found by its name."""
    inputs = {"purpose": f"refund {name}", "tool": "refund"}
    return AgentStep(id=name, step_type=AgentStepType.Action, inputs=inputs, **values)


def said(name: str) -> Any:
    """Return a message that is found by its name."""
    return message(f"refund {name}", id=name)


def found(memory: StepMemory, **asked: Any) -> set[str]:
    """Return the ids of what a search finds."""
    return {str(hit.step.id) for hit in memory.search("refund", k=500, **asked)}


def rows_found(memory: StepMemory, **asked: Any) -> list[str]:
    """Return what search hits say, sorted."""
    return sorted(
        str(hit.step.purpose or hit.step.outputs) for hit in memory.search("refund", k=500, **asked)
    )


@pytest.fixture
def memory(postgres_address: str) -> Iterator[StepMemory]:
    with StepMemory(postgres_address, embedder="hashing", timeout_seconds=60) as opened:
        opened.add([step(f"old-{n}", user_id="u") for n in range(3)])
        opened.search("refund", where={"user_id": "u"})
        yield opened


@pytest.fixture
def other(memory: StepMemory, postgres_address: str) -> Iterator[StepMemory]:
    with StepMemory(postgres_address, embedder="hashing", timeout_seconds=60) as opened:
        opened.search("refund", where={"user_id": "u"})
        yield opened


@pytest.fixture
def store(postgres_address: str) -> Iterator[PostgresStepStore]:
    with closing(PostgresStepStore(postgres_address, timeout_seconds=60)) as opened:
        yield opened


@contextmanager
def stalling(address: str) -> Generator[Stall]:
    """Stall writers of what is called late until the end of a `with`."""
    with psycopg.connect(address, autocommit=True) as gate, ThreadPoolExecutor() as threads:
        gate.execute(STALLS.encode())
        gate.execute(f"SELECT pg_advisory_lock({GATE})".encode())

        def stall(write: Callable[[], object]) -> Future[object]:
            (before,) = gate.execute(WAITING.encode()).fetchone() or (0,)
            future = threads.submit(write)
            while gate.execute(WAITING.encode()).fetchone() == (before,):
                assert not future.done(), future.result()
            return future

        try:
            yield stall
        finally:
            gate.execute(b"SELECT pg_advisory_unlock_all()")


class TestStalledWriters:
    """Others write, search and save beside a writer that stands still."""

    @pytest.mark.parametrize("kind", ["step", "batch", "message", "message with a step"])
    def test_its_rows_are_found_when_it_commits(
        self, memory: StepMemory, other: StepMemory, store: PostgresStepStore,
        postgres_address: str, kind: str,
    ) -> None:  # fmt: skip
        store.commit("s", [said("m0")])
        late = {
            "step": lambda: store.append([step("late", user_id="u")]),
            "batch": lambda: store.append([step(n, user_id="u") for n in ("b", "late")]),
            "message": lambda: store.commit("s", [said("late")], user_id=None),
            "message with a step": lambda: store.commit(
                "s", [said("x")], [step("late", user_id="u")]
            ),
        }[kind]
        new: set[str] = set()
        with stalling(postgres_address) as stall:
            writer = stall(late)
            for round_of in range(3):  # followers index, save what they may, and go on
                name = f"new-{round_of}"
                memory.add(step(name, user_id="u", parent_id="late"))
                store.commit("t", [said(f"said-{round_of}")])
                new.add(name)
                for one in (memory, other):
                    assert new <= found(one)
                    assert new <= found(one, where={"user_id": "u"})
                    assert memory.stats()["steps"] == 3 + len(new)
            assert memory.stats()["messages"] == 1 + len(new)
            for one in (memory, other):
                one.searcher.save()
        writer.result()
        steps = {"step": {"late"}, "batch": {"b", "late"}, "message with a step": {"late"}}
        with StepMemory(postgres_address, embedder="hashing") as third:
            for one in (memory, other, third):
                everything = found(one)
                assert new | steps.get(kind, set()) <= everything
                assert steps.get(kind, set()) <= found(one, where={"user_id": "u"})
                texts = [hit.step.model_dump_json() for hit in one.search("refund late", k=500)]
                assert any("refund late" in text for text in texts)
        memory.flush()
        stats = memory.stats()
        assert (stats["pending_texts"], stats["pending_vectors"]) == (0, 0)
        assert stats["steps"] == len(store.find(EVERYTHING, limit=99))
        assert stats["dangling_parents"] == (0 if steps.get(kind) else 3)
        assert memory.verify() == []
        with StepMemory(postgres_address, embedder="hashing") as fresh:
            assert found(fresh) >= new | steps.get(kind, set())
            for where in ({}, {"user_id": "u"}):
                assert rows_found(fresh, where=where) == rows_found(memory, where=where)
                assert rows_found(fresh, where=where) == rows_found(other, where=where)

    def test_a_search_in_the_database_finds_it_too(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        with StepMemory(postgres_address, embedder="hashing", memory_budget="1KB") as memory:
            memory.add([step(f"old-{n}", user_id="u") for n in range(3)])
            expected = found(memory, where={"user_id": "u"})
            assert len(expected) == 3
            with stalling(postgres_address) as stall:
                writer = stall(lambda: store.append([step("late", user_id="u")]))
                for name in ("new-0", "new-1"):
                    memory.add(step(name, user_id="u"))
                    expected.add(name)
                    assert found(memory, where={"user_id": "u"}) == found(memory) == expected
            writer.result()
            for _ in range(2):
                for asked in ({}, {"user_id": "u"}):
                    assert found(memory, where=asked) == {*expected, "late"}
                memory.flush()
            assert memory.verify() == []

    def test_what_shows_it_is_told_anew(self, memory: StepMemory, postgres_address: str) -> None:
        """A child that was indexed before its parent could be seen shows it afterwards."""
        with stalling(postgres_address) as stall:
            writer = stall(
                lambda: memory.add(step("late", run_id="r", hop=0, outputs={"result": "a zebra"}))
            )
            memory.add(step("child", run_id="r", hop=1))
            memory.add(step("named", parent_id="late"))
            assert {"child", "named"} <= found(memory)
            store = memory.repository().store
            assert isinstance(store, PostgresStepStore)
            frontier = store.frontier()
            assert frontier.unsettled is not None
            assert frontier.settled[0] < frontier.row
        writer.result()
        memory.search("refund")
        memory.flush()
        rows = {
            str(one.id): row for row, one in store.read(store.rows(EVERYTHING).tolist()).items()
        }
        shown = {
            text.row: text.parent_row
            for text in store.changes(store.frontier().position._replace(text=0)).texts
        }
        assert shown[rows["child"]] == shown[rows["named"]] == rows["late"]
        assert memory.verify() == []

    def test_words_held_of_a_lost_step_are_not_those_of_who_gets_its_row(
        self, memory: StepMemory, other: StepMemory, postgres_address: str
    ) -> None:
        with stalling(postgres_address) as stall, psycopg.connect(postgres_address) as server:
            writer = stall(lambda: other.add(step("late")))
            memory.add(step("lost"))
            assert "lost" in found(memory)  # held, since who is late comes before it
            # What a takeover leaves: connections ended, rows gone, their numbers drawn again.
            server.execute(LOSE.encode())
            server.commit()
            with pytest.raises(StorageError):
                writer.result()
            other.add([step("zebra"), step("quagga")])
        for searched in (memory, other):
            for name in ("zebra", "quagga"):
                assert [str(hit.step.id) for hit in searched.search(name, k=1)] == [name]
            assert searched.search("lost", mode="lexical") == []

    def test_a_flush_waits_for_it_and_is_told(
        self, postgres_address: str, memory: StepMemory
    ) -> None:
        with StepMemory(postgres_address, embedder="hashing", timeout_seconds=0.3) as hasty:
            with stalling(postgres_address) as stall:
                writer = stall(lambda: memory.add(step("late")))
                hasty.add(step("new"))
                with pytest.raises(StorageBusyError):
                    hasty.flush()
                with pytest.raises(StorageBusyError):
                    hasty.delete("old-0")
                assert "new" in found(hasty)
            writer.result()
            hasty.flush()
            assert hasty.stats()["pending_texts"] == 0

    def test_a_revoked_step_hides_what_came_late_from_it(
        self, memory: StepMemory, postgres_address: str
    ) -> None:
        memory.revoke({"user_id": "nobody"})
        memory.add(step("source", user_id="bad"))
        memory.revoke({"user_id": "bad"})
        with stalling(postgres_address) as stall:
            writer = stall(lambda: memory.add(step("late", metadata={"recalled": ["source"]})))
            memory.add(step("new"))
            memory.search("refund")
            memory.search("refund")
        writer.result()
        memory.add(step("newer"))
        for _ in range(2):
            assert "late" not in found(memory)
            memory.flush()
        assert [str(one.id) for one in memory.find({"scope": "revoked"}).steps] == [
            "source",
            "late",
        ]


class CountingStore(PostgresStepStore):
    """Counts the commits that it tried where it knew an end: those that were refused, and all."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.at_once = [0, 0]

    def _commit_known(self, new: Any) -> int | None:
        knew = new.session_id in self._known
        found = super()._commit_known(new)
        if knew:
            self.at_once[found is not None] += 1
        return found


class TestKnownSessions:
    """A writer that knows where a session ends commits there at once, if it is still so."""

    @pytest.mark.parametrize("seed", range(3))
    def test_two_of_them_leave_what_one_leaves_in_a_file(
        self, postgres_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        """Whatever the other has done to a session in between: the same messages, and errors."""
        monkeypatch.setattr("hybridagi_steps.stores.postgres.store._LOOKS", 1)
        with (
            closing(CountingStore(postgres_address)) as one,
            closing(CountingStore(postgres_address)) as two,
            closing(SqliteStepStore(tmp_path / "oracle.db")) as oracle,
        ):
            check_two_writers(one, two, oracle, seed, 250)

    def test_steps_and_any_text_stand_where_they_were_said(self, store: PostgresStepStore) -> None:
        odd, key = "a\x00b\x1a1 \\u0000 ключ 🙂", "b\x1a1 \\u0000 ключ 🙂"
        for n in range(3):
            given = step(f"step {n}", metadata={"n": key}, run_id="r", user_id="u")
            made = store.commit(
                "s", [message(odd, id=f"a{n}"), message("b", id=f"b{n}")], [given], after=[1]
            )
            assert [one.sequence for one in made] == [2 * n + 1, 2 * n + 2]
        assert [one.content for one in store.messages("s")] == [odd, "b"] * 3
        assert store.pinned_steps("s") == [(2 * n + 2, f"step {n}") for n in range(3)]
        found = store.find(StepFilter(metadata={"n": key}), limit=9)
        assert [str(one.id) for one in found] == ["step 0", "step 1", "step 2"]
        assert [one.session_id for one in found] == ["s"] * 3
        with pytest.raises(DuplicateStepError, match="step 1"):
            store.commit("s", [said("x")], [step("step 1")])
        assert [one.id for one in store.messages("s")][-1] == "b2"
        assert store.verify() == []


class TestSideBySide:
    """What writers do to each other."""

    @FORKED
    def test_eight_processes_lose_nothing_and_leave_no_gap(self, postgres_address: str) -> None:
        PostgresStepStore(postgres_address).close()

        def write(name: str, pipe: int) -> None:
            with closing(PostgresStepStore(postgres_address, durability="normal")) as store:
                for n in range(40):
                    key = f"{name}.{n}"
                    for session in (name, "all"):
                        store.commit(
                            session, [message(key)], [step(f"{session} {key}")], idempotency_key=key
                        )
                    store.append([step(f"{key}.{m}") for m in range(1 + n % 3)])
            os.write(pipe, b"done\n")

        children = [piped(lambda pipe, name=name: write(name, pipe)) for name in "abcdefgh"]
        with StepMemory(postgres_address, embedder="hashing", durability="normal") as memory:
            while children:
                memory.search("refund")
                children = [pair for pair in children if os.waitpid(pair[0], os.WNOHANG)[0] == 0]
            memory.flush()
            assert memory.verify() == []
            store = memory.repository().store
            assert isinstance(store, PostgresStepStore)
            for session in "abcdefgh":
                assert [one.content for one in store.messages(session)] == [
                    f"{session}.{n}" for n in range(40)
                ]
            together = store.messages("all")
            assert [one.sequence for one in together] == [*range(1, 321)]
            assert len({str(one.content) for one in together}) == 320
            stored = {str(one.id) for one in store.iter_steps(EVERYTHING)}
            assert len(stored) == 8 * (2 * 40 + sum(1 + n % 3 for n in range(40)))
            assert {
                str(hit.step.id)
                for hit in memory.search("refund", k=10_000, where={"kinds": ["step"]})
            } == stored

    def test_writers_of_other_sessions_do_not_wait_and_those_of_one_do(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        for session in "st":
            store.commit(session, [said(f"{session} 1")])
        with (
            closing(PostgresStepStore(postgres_address, timeout_seconds=0.3)) as hasty,
            stalling(postgres_address) as stall,
        ):
            first = stall(lambda: store.commit("s", [said("late")], idempotency_key="k"))
            new = stall(lambda: store.commit("fresh", [said("late 2")]))
            assert [one.sequence for one in hasty.commit("t", [said("t 2")])] == [2]
            for session in ("s", "fresh"):
                with pytest.raises(StorageBusyError):
                    hasty.commit(session, [said("mine")])
            hasty.append([step("mine too", session_id="s")])
        for written in (first, new):
            written.result()
        again = store.commit("s", [said("late")], idempotency_key="k")
        assert [one.sequence for one in again] == [2]
        with pytest.raises(SequenceConflictError):
            store.commit("s", [said("other")], expect_last=1)
        assert store.verify() == []

    def test_a_commit_whose_connection_ends_is_repeated_by_its_key(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        def commit() -> list[int]:
            made = store.commit("s", [said("late")], [step("late")], idempotency_key="k")
            return [one.sequence for one in made]

        store.commit("s", [said("first")])
        with stalling(postgres_address) as stall, psycopg.connect(postgres_address) as other:
            lost = stall(commit)
            other.execute(
                b"SELECT pg_terminate_backend(pid, 5000) FROM pg_locks l WHERE NOT granted"
                b" AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            with pytest.raises(ConnectionLostError, match=r"not known.* idempotency key"):
                lost.result()
        assert [commit(), commit()] == [[2], [2]]
        assert [one.id for one in store.messages("s")] == ["first", "late"]
        assert store.verify() == []

    @pytest.mark.parametrize("size", [1, 3])
    def test_of_two_that_store_one_id_the_second_is_told(
        self, store: PostgresStepStore, postgres_address: str, size: int
    ) -> None:
        with (
            closing(PostgresStepStore(postgres_address)) as other,
            ThreadPoolExecutor(1) as threads,
        ):
            with stalling(postgres_address) as stall:
                first = stall(lambda: store.append([step("late")]))
                second = threads.submit(
                    other.append, [step(f"{n} late"[-4 - n :]) for n in range(size)]
                )
            first.result()
            with pytest.raises(DuplicateStepError) as error:
                second.result()
            assert error.value.step_id == "late"
        assert [str(one.id) for one in store.find(EVERYTHING, limit=9)] == ["late"]

    def test_threads_of_one_store_write_side_by_side(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        with stalling(postgres_address) as stall:
            stalled = [stall(lambda n=n: store.append([step(f"late {n}")])) for n in range(3)]
            store.append([step("new")])
            assert store.rows(StepFilter()).tolist() == [store.frontier().row]
        for one in stalled:
            one.result()
        save_pending(store)
        assert len(store.find(EVERYTHING, limit=9)) == 4
        assert store.verify() == []


class TestMachines:
    """What goes wrong where machines meet: clocks that disagree, a disk that is full."""

    @FORKED
    def test_clocks_that_disagree_change_no_order_and_lose_nothing(
        self, store: PostgresStepStore, postgres_address: str
    ) -> None:
        def write(name: str, pipe: int) -> None:
            if name != "right":
                jump(random.Random(name))  # each look at the clock is decades from the last
            with closing(PostgresStepStore(postgres_address, durability="normal")) as own:
                for n in range(25):
                    key = f"{name} {n}"
                    for session in ("all", name):
                        own.commit(session, [said(f"{session} {key}")], [step(f"{session}: {key}")])
            os.write(pipe, b"done\n")

        names = ("right", "wrong", "other")
        for process_id, pipe in [piped(lambda pipe, n=n: write(n, pipe)) for n in names]:
            assert os.waitpid(process_id, 0)[1] == 0
            os.close(pipe)
        together = store.messages("all")
        assert [one.sequence for one in together] == [*range(1, 76)]
        for name in names:
            own = [f"{name} {n}" for n in range(25)]
            assert [one.id for one in store.messages(name)] == [f"{name} {each}" for each in own]
            mine = [one.id for one in together if f" {name} " in one.id]
            assert mine == [f"all {each}" for each in own]
            pinned = [step_id for _, step_id in store.pinned_steps(name)]
            assert pinned == [f"{name}: {each}" for each in own]
        for session in ("b", "a"):  # written by a right clock, and last
            store.commit(session, [said(session)])
        assert [one.session_id for one in store.sessions(limit=2)] == ["a", "b"]
        save_pending(store)
        assert store.verify() == []

    def test_a_full_disk_is_said_and_loses_nothing(
        self, new_postgres_server: Callable[[], Any]
    ) -> None:
        server = new_postgres_server()
        disk = Path(tempfile.mkdtemp(prefix="disk-"))
        mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            disk.rmdir()
            pytest.skip("mounting a small disk takes root")
        try:
            shutil.chown(disk, server.system_user)
            address = str(server.get_uri())
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'".encode())
                connection.execute(b"CREATE DATABASE small TABLESPACE small")
            address = address.replace("/postgres?", "/small?")
            with closing(PostgresStepStore(address)) as store:
                written = _written_until_full(store)
                assert len(written) > 1
                assert [one.id for one in store.messages("s")] == written
                wider = ["mount", "-o", "remount,size=64m", str(disk)]
                subprocess.run(wider, check=True)
                store.commit("s", [said("later")], [step("later")], idempotency_key="later")
                assert [one.id for one in store.messages("s")] == [*written, "later"]
                assert len(store.find(EVERYTHING, limit=999)) == len(written) + 1
                assert store.verify() == []
        finally:
            server.stop()
            subprocess.run(["umount", str(disk)], check=True)
            disk.rmdir()


def _written_until_full(store: PostgresStepStore) -> list[str]:
    """Commit messages with steps until the disk is full; return the ids that were acknowledged."""
    written = list[str]()
    while len(written) < 500:
        name = str(len(written))
        large = step(
            f"step {name}", outputs={"result": random.Random(name).randbytes(60_000).hex()}
        )
        try:
            store.commit("s", [said(name)], [large], idempotency_key=name)
        except DiskFullError:
            return written
        written.append(name)
    raise AssertionError("the disk is not full")
