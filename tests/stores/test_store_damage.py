"""A damaged file is named as such, or still gives whole steps; it never crashes the process."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conformance.samples import EVERYTHING, step
from hypothesis import given, settings
from hypothesis import strategies as st
from store_files import filled

from hybridagi_steps.errors import DamagedFileError, ForeignFileError, StorageError
from hybridagi_steps.exchange import salvage_file
from hybridagi_steps.stores.sqlite import SqliteStepStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.db"


def test_missing_tables_are_damage(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE embedding")
    with pytest.raises(DamagedFileError, match="embedding"):
        SqliteStepStore(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good file."""
    path = tmp_path_factory.mktemp("whole") / "steps.db"
    filled(path)
    return path.read_bytes()


# Nothing that is drawn depends on the file, whose bytes are others in every session, and the step
# that is added is always the same one: an example does the same whenever it is repeated.
@settings(deadline=None, max_examples=60)
@given(
    place=st.integers(0, 2**20) | st.integers(0, 200),
    cut=st.booleans(),
    noise=st.binary(min_size=16, max_size=16),
)
def test_a_damaged_file_is_named_or_still_whole(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, place: int, cut: bool, noise: bytes
) -> None:
    where = place % len(whole)
    rest = b"" if cut else noise + whole[where + 16 :]
    path = tmp_path_factory.mktemp("damage") / "steps.db"
    path.write_bytes(whole[:where] + rest)
    try:
        with closing(SqliteStepStore(path)) as store:
            store.verify()
            store.runs(limit=9)
            found = store.find(EVERYTHING, limit=99)
            store.append([step(id="new", created_at=NOON)])
    except StorageError:
        return
    assert len(found) in range(51)


def test_verify_reports_damage_instead_of_raising(path: Path) -> None:
    filled(path, 400)  # so many that the tables themselves are not described at the end
    content = bytearray(path.read_bytes())
    content[-40960:] = os.urandom(40960)
    path.write_bytes(content)
    with closing(SqliteStepStore(path)) as store:
        assert store.verify() != []


def test_verify_names_what_does_not_hold_together(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM agent_step WHERE id = '7'")
        connection.execute("UPDATE agent_step SET body = '{' WHERE id = '8'")
        connection.execute("DELETE FROM step_text WHERE row = 5")
    with closing(SqliteStepStore(path)) as store:
        problems = "\n".join(store.verify())
    assert "words without a step: 1 rows (8" in problems
    assert "a step that is not as it was written: 1 rows (9" in problems
    assert "a body that is no JSON, or not of its id: 1 rows (9" in problems
    assert "a step without words below the watermark: 1 rows (5" in problems


@pytest.mark.parametrize("lost", ["first page", "end", "everything"])
def test_a_salvage_of_what_does_not_open_says_how_to_rebuild_it(path: Path, lost: str) -> None:
    filled(path)
    content = path.read_bytes()
    damaged = {
        "first page": bytes(4096) + content[4096:],
        "end": content[:-4096],
        "everything": b"notes, no database at all",
    }
    path.write_bytes(damaged[lost])
    target, named = path.with_name("whole.jsonl"), list[str]()
    with pytest.raises((DamagedFileError, ForeignFileError), match=r"\.recover") as caught:
        salvage_file(path, target, damaged=named.append)
    assert "--salvage" not in str(caught.value)
    assert (named, target.exists()) == ([], False)
    with pytest.raises(StorageError, match="there is no memory file"):
        salvage_file(path.with_name("missing.db"), target, damaged=named.append)
    assert not path.with_name("missing.db").exists()
