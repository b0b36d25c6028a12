"""A damaged write-ahead log that hides committed steps is seen; every other log raises no alarm."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from child_processes import piped

from hybridagi_steps import StepMemory
from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.stores.sqlite.database import Database
from hybridagi_steps.stores.sqlite.lost_commits import lost_commits
from hybridagi_steps.testing.conformance.samples import EVERYTHING, step

PAGE_BYTES = 4096
FRAME_BYTES = 24 + PAGE_BYTES
COMMITS = 12
Damage = Callable[[bytearray, int, random.Random], None]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return a file whose writer was killed: a log of a dozen commits, nothing copied of it."""
    path, folder = tmp_path / "steps.db", tmp_path / "killed"
    with closing(SqliteStepStore(path)):
        pass  # the schema is in the database
    with closing(SqliteStepStore(path)) as store:
        for n in range(COMMITS):
            store.append([step(id=f"{n}.{m}") for m in range(1 + n % 3)])
        _copied(path, folder)
    return folder


def _copied(path: Path, folder: Path) -> Path:
    """Copy a file and its log as a kill of all its processes would leave them."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", folder / f"steps.db{suffix}")
    return folder / "steps.db"


def _problems(path: Path) -> list[str]:
    with closing(SqliteStepStore(path)) as store:
        store.append([step(id="later")])  # overwrites the traces
        return store.verify()


def _stored(path: Path) -> int:
    with closing(SqliteStepStore(path)) as store:
        return len(store.find(EVERYTHING, limit=999))


def flip(log: bytearray, at: int, chance: random.Random) -> None:
    log[at] ^= 1 << chance.randrange(8)


def wipe(log: bytearray, at: int, chance: random.Random) -> None:
    at -= at % 512
    log[at : at + 512] = bytes(512)


@pytest.mark.parametrize("damage", [flip, wipe])
def test_no_step_is_lost_unseen(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    chance, whole = random.Random(3), (killed / "steps.db-wal").read_bytes()
    expected = _stored(_copied(killed / "steps.db", tmp_path / "whole"))
    last = _commits(whole)[-2] * FRAME_BYTES + 32  # behind it only one commit is left to lose
    places = [*range(32), *range(32, 56), *(chance.randrange(len(whole)) for _ in range(150))]
    lost = 0
    for number, at in enumerate(places):
        if damage is wipe and at >= last - last % 512:
            continue  # from a killed writer's last words it cannot be told
        path = _copied(killed / "steps.db", tmp_path / f"damaged {number}")
        log = bytearray(whole)
        damage(log, at, chance)
        Path(f"{path}-wal").write_bytes(log)
        caplog.clear()
        fewer = _stored(_copied(path, tmp_path / f"read {number}")) < expected
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        problems = _problems(path)
        assert (len(errors), len(problems)) == (fewer, fewer), f"byte {at}: {problems}"
        assert all("steps.db-wal is damaged" in line for line in problems)
        lost += fewer
        shutil.rmtree(path.parent)
        shutil.rmtree(tmp_path / f"read {number}")
    assert lost > 30


def _commits(log: bytes | bytearray) -> list[int]:
    """Return the numbers of the frames with a commit mark, from 1."""
    marks = range(36, len(log), FRAME_BYTES)
    return [n for n, at in enumerate(marks, 1) if any(log[at : at + 4])]


def test_the_line_says_how_many_and_what_to_do(killed: Path) -> None:
    path = killed / "steps.db"
    log = bytearray((killed / "steps.db-wal").read_bytes())
    fourth = _commits(log)[-5]
    log[32 + fourth * FRAME_BYTES + 2_000] ^= 1
    (killed / "steps.db-wal").write_bytes(log)
    with StepMemory(path, embedder="hashing") as memory:
        memory.search("anything", mode="lexical")
        [line] = memory.verify()
    assert "the last 4 transactions" in line
    assert "backup" in line
    with StepMemory(path) as memory:
        assert memory.verify() == []  # the log is gone, and what can be read is whole


def test_who_holds_the_lock_is_not_waited_for(killed: Path) -> None:
    log = bytearray((killed / "steps.db-wal").read_bytes())
    log[32 + 2_000] ^= 1
    (killed / "steps.db-wal").write_bytes(log)
    with closing(SqliteStepStore(killed / "steps.db")) as first:
        assert isinstance(first._db, Database)
        with first._db.exclusive(), closing(SqliteStepStore(killed / "steps.db")) as second:
            assert second.verify() == []
        assert len(first.verify()) == 1


# -- no false alarm


@contextmanager
def _raw(path: Path) -> Generator[sqlite3.Connection]:
    """Open a database with a log that is copied only on order."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        yield connection


def _insert(connection: sqlite3.Connection, pages: int) -> None:
    with connection:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO t VALUES (?)", [("x" * 3_000,)] * pages)


def test_a_commit_that_never_counted_is_none(tmp_path: Path) -> None:
    """As of a writer killed while it synced its commit, before a shorter one of somebody else."""
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    with _raw(path) as connection:
        connection.execute("CREATE TABLE t (x)")
        _insert(connection, 1)
        before = log.stat().st_size
        for number in range(6):
            with _raw(_copied(path, tmp_path / f"{number}")) as other:
                _insert(other, 12 - number)
                behind = (tmp_path / f"{number}" / "steps.db-wal").read_bytes()[before:]
            assert len(_commits(log.read_bytes()[:32] + behind)) == 1
            with log.open("r+b") as file:
                file.seek(before)
                file.write(behind)
            assert lost_commits_of(path, tmp_path / f"whole {number}") == 0  # it counts now
            _insert(connection, 1 + number % 2)
            assert _commits(log.read_bytes())[-1] * FRAME_BYTES + 32 > before
            before = _read_bytes(path, tmp_path / f"after {number}")
            assert before < log.stat().st_size
            assert lost_commits_of(path, tmp_path / f"dead {number}") == 0
        assert lost_commits(connection, log) == 0


def lost_commits_of(path: Path, folder: Path) -> int:
    """Look at the log of a database as it is found after all its processes were killed."""
    with _raw(_copied(path, folder)) as connection:
        connection.execute("SELECT count(*) FROM t").fetchone()
        return lost_commits(connection, folder / "steps.db-wal")


def _read_bytes(path: Path, folder: Path) -> int:
    """Return how much of a log SQLite reads."""
    with _raw(_copied(path, folder)) as connection:
        _, last, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return int(32 + last * FRAME_BYTES)


def test_a_large_transaction_that_is_rolled_back_is_none(tmp_path: Path) -> None:
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    with _raw(path) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA cache_size = 5")
        for number in range(4):
            _insert(connection, 2)
            before = log.read_bytes()
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO t VALUES (?)", [(f"{number}" * 3_000,)] * 60)
            assert lost_commits_of(path, tmp_path / f"half way {number}") == 0
            connection.execute("ROLLBACK")
            assert log.read_bytes() != before  # it had been spilled
            assert lost_commits(connection, log) == 0
            assert lost_commits_of(path, tmp_path / f"dead {number}") == 0
            _insert(connection, 1)
            assert lost_commits_of(path, tmp_path / f"later {number}") == 0


@pytest.mark.parametrize("mode", ["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
def test_a_log_that_begins_anew_is_none(tmp_path: Path, mode: str) -> None:
    path, log, chance = tmp_path / "a.db", tmp_path / "a.db-wal", random.Random(mode)
    with _raw(path) as connection, _raw(path) as other:
        connection.execute("CREATE TABLE t (x)")
        for number in range(25):
            _insert(chance.choice((connection, other)), chance.randint(1, 9))
            if chance.random() < 0.5:
                connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            assert lost_commits_of(path, tmp_path / f"dead {number}") == 0
            assert lost_commits(connection, log) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_writers_killed_one_after_another_leave_none(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"

    def write(name: str, pipe: int) -> None:
        store = SqliteStepStore(path, durability="full")
        for n in range(10_000):
            store.append([step(id=f"{name}.{n}.{m}") for m in range(1 + n % 7 * 5)])
            os.write(pipe, b".")

    with closing(SqliteStepStore(path)) as living:
        for number in range(12):
            children = [
                piped(lambda pipe, n=n: write(n, pipe)) for n in (f"{number}a", f"{number}b")
            ]
            for process_id, pipe in children:
                os.read(pipe, 1)  # it writes
                threading.Event().wait(0.003 * (number % 4))
                os.kill(process_id, signal.SIGKILL)
                os.waitpid(process_id, 0)
                os.close(pipe)
            copy = _copied(path, tmp_path / f"dead {number}")
            assert _problems(copy) == []
            if number % 2:
                living.append([step()])
            assert living.verify() == []
            with closing(SqliteStepStore(path)) as new:
                assert new.verify() == []
