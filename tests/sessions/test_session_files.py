"""Sessions in one SQLite file: many processes, damage that is named, attempts that are swept."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from conformance.samples import message, said, step
from session_writers import SESSION, start, unit

from hybridagi_steps.errors import DamagedFileError, SequenceConflictError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.sqlite import SqliteStepStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.db"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_processes_append_to_one_session_without_gap_or_loss(path: Path) -> None:
    def work(name: str) -> Callable[[SqliteStepStore, int], None]:
        def write(store: SqliteStepStore, _: int) -> None:
            for number in range(25):
                unit(store, f"{name}.{number}")

        return write

    writers = [start(path, work(str(n)), "normal") for n in range(6)]
    assert [os.waitpid(writer.process_id, 0)[1] for writer in writers] == [0] * 6
    with closing(SqliteStepStore(path)) as store:
        found = store.messages(SESSION)
        assert [one.sequence for one in found] == list(range(1, 301))
        assert [one.tool_call_id for one in found[1::2]] == [one.content for one in found[::2]]
        wanted = {f"{n}.{number}" for n in range(6) for number in range(25)}
        assert {str(one.content) for one in found[::2]} == wanted
        assert len(store.rows(StepFilter(session_id=SESSION))) == 150
        assert store.verify() == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_of_processes_that_retry_one_turn_one_is_adopted(path: Path) -> None:
    with closing(SqliteStepStore(path)) as store:
        store.commit(SESSION, said(4))
        was = store.session_end(SESSION).branch_id

    def retry(name: str) -> Callable[[SqliteStepStore, int], None]:
        def work(store: SqliteStepStore, _: int) -> None:
            attempt = store.branch_at(SESSION, 3)
            store.commit(SESSION, [message(name)], branch_id=attempt)
            with suppress(SequenceConflictError):
                store.adopt(SESSION, attempt, expect_branch=was)

        return work

    writers = [start(path, retry(str(n)), "normal") for n in range(5)]
    assert [os.waitpid(writer.process_id, 0)[1] for writer in writers] == [0] * 5
    with closing(SqliteStepStore(path)) as store:
        tries = store.attempts(SESSION)
        assert len(tries) == 6
        assert [tried.messages for tried in tries] == [4, 1, 1, 1, 1, 1]
        [current] = [tried for tried in tries if tried.current]
        assert current.branch_id != was
        assert store.session_end(SESSION) == (current.branch_id, 4)
        assert store.verify() == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DELETE FROM message WHERE sequence = 2", "gap"),
        ("UPDATE message SET sequence = 9 WHERE sequence = 3", "gap"),
        ("DELETE FROM branch WHERE id = 1", "no branch"),
        ("DELETE FROM message WHERE sequence >= 2", "forks where its parent"),
        ("UPDATE session SET branch_id = 99", "points at no branch"),
        ("UPDATE session SET branch_id = 2 WHERE id = 's'", "points at no branch"),
        ("UPDATE branch SET reach = 0", "reach"),
        ("UPDATE branch SET parent_id = 2 WHERE id = 2", "older than its parent"),
        ("UPDATE agent_step SET branch_id = 99", "pinned to no branch"),
        ("UPDATE message SET said = '{' WHERE sequence = 1", "no JSON"),
        ("INSERT INTO message_token VALUES (99, 'c', 1)", "tokens"),
    ],
)
def test_verify_names_what_is_wrong_with_sessions(path: Path, damage: str, words: str) -> None:
    with closing(SqliteStepStore(path)) as store:
        store.commit(SESSION, said(3), [step(id="a")])
        store.fork(SESSION, 2)
        assert store.verify() == []
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(damage)
        connection.commit()
    with closing(SqliteStepStore(path)) as store:
        assert any(words in line for line in store.verify()), store.verify()


def test_a_damaged_message_is_named_and_never_skipped(path: Path) -> None:
    with closing(SqliteStepStore(path)) as store:
        store.commit(SESSION, said(3))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE message SET said = 'garbage' WHERE sequence = 2")
        connection.commit()
    with closing(SqliteStepStore(path)) as store:
        for read in (store.messages, store.message_dicts):
            with pytest.raises(DamagedFileError, match=SESSION):
                read(SESSION)
        assert len(store.messages(SESSION, 3)) == 1


def test_an_attempt_that_nobody_ended_is_swept_after_a_day(path: Path) -> None:
    with closing(SqliteStepStore(path)) as store:
        store.commit(SESSION, said(2))
        store.commit(SESSION, [message("x")], branch_id=store.branch_at(SESSION, 1))
        store.vacuum()
        assert store.stats()["messages"] == 3
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE branch SET created_at = '2020-01-01T00:00:00+00:00'")
            connection.commit()
        store.vacuum()
        assert store.stats()["messages"] == 2
        assert len(store.attempts(SESSION)) == 1


def test_a_session_opened_read_only_can_be_read(path: Path) -> None:
    with closing(SqliteStepStore(path)) as store:
        store.commit(SESSION, said(3), [step(id="a")])
    reader = (
        "import sys; from hybridagi_steps.stores.sqlite import SqliteStepStore as S\n"
        "from hybridagi_steps.errors import ReadOnlyStorageError\n"
        "s = S(sys.argv[1]); s._db.writable = False\n"
        "assert len(s.message_dicts('s')) == 3\n"
        "try: s.fork('s', 1)\n"
        "except ReadOnlyStorageError: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", reader, path], capture_output=True, check=True)
    assert done.stdout == b"refused\n"
