"""The SQLite store as a file: what it refuses, what it survives, and what it leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conformance.samples import EVERYTHING, ids, said, step, text
from session_operations import check_two_writers
from store_files import filled, made_old

from hybridagi_steps import StepMemory
from hybridagi_steps.embedders import HashingEmbedder
from hybridagi_steps.errors import (
    DiskFullError,
    DuplicateStepError,
    ForeignFileError,
    NewerSchemaError,
    ReadOnlyStorageError,
    StorageBusyError,
    StorageError,
)
from hybridagi_steps.protocols import Durability
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.body import encode_body
from hybridagi_steps.stores.sqlite import SqliteStepStore, schema
from hybridagi_steps.stores.sqlite.database import Database
from hybridagi_steps.stores.sqlite.file_lock import FileLock

CANARY = "xCANARYx"
WRITER = """
import sys
from pathlib import Path
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.stores.body import encode_body
from hybridagi_steps.stores.sqlite import SqliteStepStore
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = SqliteStepStore(path, durability="normal")
for n in range(count):
    store.append([AgentStep(id=f"{name}-{n}", step_type="Action", run_id=name, hop=n)])
store.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStepStore]:
    store = SqliteStepStore(path, durability="normal")
    yield store
    store.close()


@pytest.mark.parametrize("count", [5, 45])
def test_steps_of_one_batch_stand_each_at_the_end_of_its_session(
    store: SqliteStepStore, path: Path, count: int
) -> None:
    store.commit("talk", said(3))
    sessions = ["talk" if n % 3 else "elsewhere" for n in range(count)]
    batch = [step(id=f"{n}", session_id=name) for n, name in enumerate(sessions)]
    rows = store.append([*batch, step(id="alone")])
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT row, sequence FROM agent_step ORDER BY row").fetchall()
    places = [4 if name == "talk" else None for name in sessions]
    assert found == list(zip(rows, [*places, None], strict=True))
    assert ids(store.get([f"{n}" for n in range(count)])) == ids(batch)
    assert store.verify() == []


def test_reopening_finds_everything(path: Path) -> None:
    filled(path)
    with closing(SqliteStepStore(path)) as store:
        assert len(store.find(EVERYTHING, limit=99)) == 50
        first = store.identity().store_id
    with closing(SqliteStepStore(path, namespace="other")) as store:
        assert store.identity().store_id == first
        assert store.find(EVERYTHING, limit=99) == []


@pytest.mark.parametrize(("durability", "synchronous"), [("normal", 1), ("full", 2)])
def test_durability_is_what_sqlite_is_told(
    path: Path, durability: Durability, synchronous: int
) -> None:
    filled(path)
    with closing(Database(path, durability, 1)) as database, database.exclusive() as writer:
        assert writer.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_empty_file_is_taken_over(path: Path) -> None:
    path.touch()
    filled(path)
    with closing(SqliteStepStore(path)) as store:
        assert store.stats()["steps"] == 50


def test_processes_may_create_and_fill_one_file_together(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, f"w{n}", "25"]) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    with closing(SqliteStepStore(path)) as store:
        for n in range(4):
            run = store.find(StepFilter(run_id=f"w{n}"), limit=99)
            assert ids(run) == [f"w{n}-{m}" for m in range(25)]
        assert store.verify() == []


def test_vectors_of_the_embedder_take_two_bytes_a_number_and_older_ones_are_read(
    path: Path,
) -> None:
    said = ["refund the ticket to Oslo", "search flights to Madrid", "upgrade the seat"]
    steps = [step(id=str(n), inputs={"purpose": words}) for n, words in enumerate(said)]
    with StepMemory(path, embedder=HashingEmbedder(64)) as memory:
        memory.add(steps)
        expected = [(hit.step.id, hit.score) for hit in memory.search("flights to Oslo")]
        [rounded] = memory.get_steps([steps[1].id], vectors=True)
    [exact] = HashingEmbedder(64).embed_documents(["search flights to Madrid"])
    assert rounded.vector == pytest.approx(exact.tolist(), abs=3e-5)
    with closing(sqlite3.connect(path)) as file, file:
        assert {*file.execute("SELECT length(vector) FROM embedding")} == {(2 * 64 + 1,)}
        for n, vector in enumerate(HashingEmbedder(64).embed_documents(said), 1):
            older = (vector.astype("<f4").tobytes(), n)
            file.execute("UPDATE embedding SET vector = ?, checksum = NULL WHERE row = ?", older)
    with StepMemory(path, embedder=HashingEmbedder(64)) as memory:
        again = memory.search("flights to Oslo")
    assert [hit.step.id for hit in again] == [name for name, _ in expected]
    assert [hit.score for hit in again] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_a_file_of_another_kind_is_refused_untouched(path: Path) -> None:
    path.write_text("Dear diary, " * 200)
    before = path.read_bytes()
    with pytest.raises(ForeignFileError, match=r"steps\.db"):
        SqliteStepStore(path)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused_untouched(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(ForeignFileError, match="another program"):
        SqliteStepStore(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match="folder"):
        SqliteStepStore(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="create it first"):
        SqliteStepStore(tmp_path / "nowhere" / "steps.db")


def test_a_newer_schema_is_refused(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.latest_version() + 1}")
    with pytest.raises(NewerSchemaError, match="upgrade hybridagi-steps"):
        SqliteStepStore(path)


def begun(path: Path) -> None:
    """Leave what a kill leaves before the tables are made: those are migrated one by one."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size > 0


def test_a_new_file_is_what_all_migrations_make_and_has_an_id_of_its_own(tmp_path: Path) -> None:
    begun(tmp_path / "migrated.db")
    pragmas = ("application_id", "user_version", "encoding", "page_size", "journal_mode")
    found, names = list[list[object]](), set[str]()
    for name in ("migrated.db", "new.db", "newer.db"):
        SqliteStepStore(tmp_path / name).close()
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            found.append([connection.execute(f"PRAGMA {p}").fetchall() for p in pragmas])
            dump = "\n".join(connection.iterdump())
            query = "SELECT value FROM meta WHERE key = 'store_id'"
            ((store_id,),) = connection.execute(query).fetchall()
            found[-1].append(dump.replace(store_id, "id"))
            names.add(store_id)
    assert found[0] == found[1] == found[2]
    assert len(names) == 3


def test_a_failed_migration_leaves_an_empty_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = schema.migrations()
    broken = [(1, first[1] + "\nCREATE TABLE nonsense;\n")]
    begun(path)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: broken)
        with pytest.raises(StorageError):
            SqliteStepStore(path)
    filled(path)


def test_a_file_of_an_earlier_schema_is_brought_up_to_date(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *later = schema.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: [first])
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            schema.migrate(connection, 0)
            connection.execute("INSERT INTO namespace (name) VALUES ('default')")
            connection.execute(
                "INSERT INTO agent_step (namespace, id, body) VALUES (1, 'a', ?)",
                (encode_body(step(id="a")),),
            )
            chat = encode_body(step(id="chat", metadata={"format": "openai"}))
            connection.execute(
                "INSERT INTO agent_step (namespace, id, body) VALUES (1, 'chat', ?)", (chat,)
            )
    with closing(SqliteStepStore(path)) as store:
        assert ids(store.find(EVERYTHING, limit=9)) == ["a", "chat"]
        assert store.frontier().position.branch == 0
        assert ids(store.find(StepFilter(trust="team"), limit=9)) == ["a"]
        assert store.revoke(StepFilter(sources=["openai"]), None).matched == 1
        assert ids(store.find(StepFilter(), limit=9)) == ["a"]
        assert store.verify() == []
    assert later


def test_a_failed_upgrade_leaves_the_file_as_it_was(path: Path) -> None:
    first, *later = schema.migrations()
    broken = [(number, script + "\nCREATE TABLE nonsense;\n") for number, script in later]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: [first])
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            schema.migrate(connection, 0)
    before = tables_of(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: [first, *broken])
        with pytest.raises(StorageError):
            SqliteStepStore(path)
    assert tables_of(path) == before
    filled(path)


def test_users_of_a_file_of_before_have_their_steps_in_an_index(path: Path) -> None:
    with closing(SqliteStepStore(path)) as store:
        asked = [step(id=str(n), run_id=f"r{n}", user_id=f"u{n % 9}") for n in range(900)]
        store.append(asked)
        assert store.find(EVERYTHING, limit=1)
    made_old(path, 11)
    with closing(SqliteStepStore(path)) as store:
        found = store.runs(limit=2, where=StepFilter(user_id="u4"))
        assert [run.run_id for run in found] == ["r895", "r886"]
        with store._db.reading() as connection:  # pyright: ignore[reportPrivateUsage]
            plan = connection.execute(
                "EXPLAIN QUERY PLAN SELECT row FROM step_view WHERE namespace = 1 AND user_id = 'u'"
            ).fetchall()
        assert any("step_key_user" in line for *_, line in plan)
        assert store.verify() == []


def tables_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        found = connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    return [str(version), *(str(sql) for (sql,) in found)]


def test_deleted_words_are_in_no_file_after_vacuum(path: Path, store: SqliteStepStore) -> None:
    store.append([step(id=str(n), outputs={"x": f"{CANARY} {n}"}) for n in range(300)])
    store.append([step(id="kept"), step(id="r", run_id=CANARY, outputs={"x": CANARY * 900})])
    doomed = [
        found.row for found in store.pending_texts(999) if found.step and found.step.id != "kept"
    ]
    store.save_derived([text(row, tokens=CANARY) for row in doomed], [])
    store.score_run(CANARY, 1.0, CANARY)
    assert any(CANARY.encode() in file.read_bytes() for file in path.parent.iterdir())
    store.append([step(id="r")], replace=True)
    store.delete([str(n) for n in range(300)])
    store.vacuum()
    files = [file.name for file in path.parent.iterdir() if CANARY.encode() in file.read_bytes()]
    assert files == []
    assert ids(store.find(EVERYTHING, limit=9)) == ["kept", "r"]


def test_a_busy_file_is_named_after_the_timeout(path: Path) -> None:
    filled(path)
    impatient = SqliteStepStore(path, timeout_seconds=0.1)
    patient = SqliteStepStore(path, timeout_seconds=10)
    with closing(impatient), closing(patient), closing(FileLock(path)) as holder:
        holder.acquire(1)
        with pytest.raises(StorageBusyError, match="another writer") as told:
            impatient.append([step(id="no")])
        assert not re.search(r"\d s\b", str(told.value)), "what was left of the time says nothing"
        assert len(impatient.find(EVERYTHING, limit=99)) == 50
        late = threading.Thread(target=patient.append, args=([step(id="late")],))
        late.start()
        time.sleep(0.05)
        holder.release()
        late.join()
        impatient.append([step(id="now")])
        assert ids(impatient.get(["no", "late", "now"])) == ["late", "now"]


def test_another_program_holding_the_file_is_named(path: Path) -> None:
    filled(path)
    with closing(SqliteStepStore(path, timeout_seconds=0.1)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as intruder:
            intruder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageBusyError):
                store.append([step()])
            with pytest.raises(StorageBusyError):
                store.append([step(), step()])
        store.append([step(id="now")])


def test_a_reader_sees_one_state_while_others_write(path: Path, store: SqliteStepStore) -> None:
    store.append([step(id="a")])
    with closing(Database(path, "normal", 1)) as database:
        with database.reading() as connection:
            count = "SELECT count(*) FROM agent_step"
            assert connection.execute(count).fetchone() == (1,)
            store.append([step(id="b"), step(id="c")])
            assert connection.execute(count).fetchone() == (1,)
        with database.reading() as connection:
            assert connection.execute(count).fetchone() == (3,)


def test_answers_do_not_depend_on_written_keys(path: Path) -> None:
    with closing(SqliteStepStore(path, durability="normal")) as store:
        steps = [step(id=str(n), run_id=f"r{n % 7}", hop=n, parent_id="0") for n in range(700)]
        store.append(steps[:300])
        store.find(EVERYTHING, limit=1)
        store.append(steps[300:])
        run = StepFilter(run_id="r3")
        with closing(sqlite3.connect(path)) as connection:
            keys = connection.execute("SELECT count(*) FROM step_key").fetchone()
        assert keys == (300,)
        expected = [str(n) for n in range(700) if n % 7 == 3]
        assert ids(store.find(run, limit=999)) == expected
        assert ids(store.children(["0"])) == [str(n) for n in range(700)]
        assert store.verify() == []


def test_a_transaction_that_fails_leaves_nothing(store: SqliteStepStore) -> None:
    with pytest.raises(DuplicateStepError):
        store.append([step(id=str(n % 9)) for n in range(10)])
    store.append([step(id="x", vector=[1.0]), step(id="y")])
    with pytest.raises(DuplicateStepError):
        store.append([step(id="z", vector=[1.0]), step(id="y")])
    assert ids(store.find(EVERYTHING, limit=99)) == ["x", "y"]
    assert store.stats()["embedded"] == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_steps_that_are_marked_as_revoked_are_not_looked_at_again(
    path: Path, store: SqliteStepStore
) -> None:
    recalls = {"recalled": ["poison"]}
    store.append([step(id="poison", user_id="eve"), step(id="child", metadata=recalls)])
    assert store.revoke(StepFilter(user_id="eve"), None).descended == 1
    with closing(sqlite3.connect(path)) as connection:
        looked = "SELECT revoked_through, (SELECT max(row) FROM agent_step) FROM namespace"
        assert connection.execute(looked).fetchall() == [(2, 2)]


def test_many_forks_share_one_file_with_their_parent(path: Path, store: SqliteStepStore) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            store.append([step(id=f"thread-{number}")])
            store.rows(EVERYTHING)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    children = [_forked(store, number) for number in range(6)]
    outcomes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    stop.set()
    writer.join()
    assert outcomes == [0] * 6
    assert ids(store.get([f"fork-{n}-9" for n in range(6)])) == [f"fork-{n}-9" for n in range(6)]
    assert store.verify() == []


def _forked(store: SqliteStepStore, number: int) -> int:
    """Write from a forked child; return its process id."""
    if child := os.fork():
        return child
    failed = 1
    try:
        for n in range(10):
            store.append([step(id=f"fork-{number}-{n}")])
        failed = int(len(store.get([f"fork-{number}-0"])) != 1)
    finally:
        os._exit(failed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB, where this machine lets us have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)):
        pytest.skip("no right to mount a small file system here")
    yield folder
    mount("-u", str(folder), undo=True)


def mount(*arguments: str, undo: bool = False) -> int:
    """Run mount, or umount to undo it; return the exit code."""
    name = "umount" if undo else "mount"
    if (program := shutil.which(name)) is None:
        return 1
    options = [option for option in arguments if not (undo and option == "-u")]
    return subprocess.run([program, *options], capture_output=True, check=False).returncode


def test_a_full_disk_is_named_and_loses_nothing(small_disk: Path) -> None:
    stored: list[str] = []
    with closing(SqliteStepStore(small_disk / "steps.db", durability="full")) as store:
        with pytest.raises(DiskFullError, match="free some space"):
            _fill_up(store, stored)
        with pytest.raises(DiskFullError):
            store.append([step(outputs={"x": "y" * 100_000}), step()])
        assert ids(store.get(stored)) == stored
        assert store.verify() == []
    with closing(SqliteStepStore(small_disk / "steps.db")) as store:
        assert ids(store.find(EVERYTHING, limit=9999)) == stored
    assert len(stored) > 40


def _fill_up(store: SqliteStepStore, stored: list[str]) -> None:
    for n in range(3000):
        store.append([step(id=str(n), outputs={"x": "y" * 2000})])
        stored.append(str(n))


def test_a_read_only_disk_can_be_read(small_disk: Path) -> None:
    path = small_disk / "steps.db"
    filled(path)
    assert mount("-o", "remount,ro", str(small_disk)) == 0
    with closing(SqliteStepStore(path)) as store:
        assert len(store.find(StepFilter(run_id="r"), limit=99)) == 50
        assert store.pending_texts(9) == []
        assert store.verify() == []
        with pytest.raises(ReadOnlyStorageError):
            store.append([step()])
        with pytest.raises(ReadOnlyStorageError):
            store.delete(["1"])
    with closing(SqliteStepStore(path, namespace="unknown")) as store:
        assert store.find(EVERYTHING, limit=9) == store.runs(limit=9) == []
        assert store.identity().embedder is None
        assert store.frontier().position == store.changes(store.frontier().position).position
        assert store.stats()["steps"] == 0
    with pytest.raises(ReadOnlyStorageError):
        SqliteStepStore(small_disk / "new.db")


def test_an_append_writes_one_step_within_its_budget_of_bytes(path: Path) -> None:
    with closing(SqliteStepStore(path, durability="normal")) as store:
        for n in range(1600):
            store.append(
                [step(run_id=f"r{n // 20}", hop=n % 20, outputs={"x": os.urandom(360).hex()})]
            )
        payload = sum(len(each.model_dump_json()) for each in store.iter_steps(EVERYTHING))
        assert sum(file.stat().st_size for file in path.parent.iterdir()) < 3.5 * payload
    assert path.stat().st_size < 2.2 * payload


def test_the_users_of_a_session_are_found_without_walking_all_steps(path: Path) -> None:
    asked = StepFilter(session_id="s1", scope="*")
    work: list[int] = []

    def count() -> int:
        work[-1] += 1
        return 0

    with closing(SqliteStepStore(path, durability="normal")) as store:
        for many in (200, 2000):
            store.append([step(session_id=f"s{n}", user_id=f"u{n}") for n in range(many)])
            assert store.users(asked, limit=2) == ["u1"]
            # The connection that the next question uses.
            with store._db.reading() as connection:  # pyright: ignore[reportPrivateUsage]
                connection.set_progress_handler(count, 50)
            work.append(0)
            assert store.users(asked, limit=2) == ["u1"]
            connection.set_progress_handler(None, 0)
    few, more = work
    assert 0 < few <= more < 2 * few


class ClaimingStore(SqliteStepStore):
    """Counts the commits that it tried where it knew an end: those that were refused, and all."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, durability="normal")
        self.at_once = [0, 0]

    def _claimed(self, connection: Any, new: Any) -> Any:
        found = super()._claimed(connection, new)
        if new.session_id in self._known:
            self.at_once[found is not None] += 1
        return found


class ReadingStore(SqliteStepStore):
    """Reads a session before each commit."""

    def _claimed(self, connection: Any, new: Any) -> None:
        """Know nothing."""


@pytest.mark.parametrize("seed", range(3))
def test_who_knows_where_a_session_ended_leaves_what_one_leaves_that_looks(
    tmp_path: Path, seed: int
) -> None:
    """Whatever the other has done to a session in between: the same messages, and errors."""
    path = tmp_path / "steps.db"
    with (
        closing(ClaimingStore(path)) as one,
        closing(ClaimingStore(path)) as two,
        closing(ReadingStore(tmp_path / "oracle.db", durability="normal")) as oracle,
    ):
        check_two_writers(one, two, oracle, seed, 400)
        listed = [[each.session_id for each in s.sessions(limit=9)] for s in (one, oracle)]
        assert listed[0] == listed[1]
