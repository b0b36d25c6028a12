"""Words as a file holds them: deflated, checked, as earlier versions wrote them, and gone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conformance.samples import START, step, text
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.records.store_values import TextRow
from hybridagi_steps.stores.checksums import packed_words, unpacked_words, words_checksum
from hybridagi_steps.stores.sqlite import SqliteStepStore

SENTENCE = "the refund of order {} wa declin by the bank and sent again on mondai"
WORDS = "\t".join(SENTENCE.format(n) for n in range(8)) + "\nfurther\n12 3 +"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStepStore]:
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append([step(id=name) for name in ("long", "short")])
        store.save_derived([text(1, tokens=WORDS), text(2, 1, tokens="refund")], [])
        yield store


def change(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(sql, values).rowcount == 1


def read(store: SqliteStepStore) -> list[TextRow]:
    return store.changes(START).texts


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=6_000))
def test_words_come_back_as_they_were_and_take_no_more_room(words: str) -> None:
    stored = packed_words(words)
    assert unpacked_words(stored) == words
    assert len(stored.encode() if isinstance(stored, str) else stored) <= len(words.encode())


def test_a_file_holds_few_bytes_of_long_words_and_short_ones_as_they_are(
    path: Path, store: SqliteStepStore
) -> None:
    assert [row.tokens for row in read(store)] == [WORDS, "refund"]
    assert store.verify() == []
    with closing(sqlite3.connect(path)) as connection:
        held = dict(connection.execute("SELECT row, tokens FROM step_text").fetchall())
    assert held[2] == "refund"
    assert len(held[1]) < len(WORDS) / 3


def test_words_of_earlier_versions_are_read_as_they_are(path: Path, store: SqliteStepStore) -> None:
    before = words_checksum(1, None, WORDS, 7, 0)
    for checksum in (before, None):
        change(path, "UPDATE step_text SET tokens = ?, checksum = ? WHERE row = 1", WORDS, checksum)
        assert [row.tokens for row in read(store)] == [WORDS, "refund"]
        assert store.verify() == []
    store.vacuum()
    with closing(sqlite3.connect(path)) as connection:
        sums = connection.execute("SELECT checksum FROM step_text WHERE row = 1").fetchone()
    assert sums == (before,)


@pytest.mark.parametrize("checked", [True, False])
def test_damaged_words_are_told(
    path: Path, store: SqliteStepStore, caplog: pytest.LogCaptureFixture, checked: bool
) -> None:
    damaged = b"\xff" + bytes(packed_words(WORDS))[1:]  # pyright: ignore[reportArgumentType] - they are bytes
    sums = "" if checked else ", checksum = NULL"
    change(path, f"UPDATE step_text SET tokens = ?{sums} WHERE row = 1", damaged)
    assert [row.tokens for row in read(store)] == ["", "refund"]
    assert "step long in row 1" in caplog.text
    if checked:
        [problem] = store.verify()
        assert "the words of a step" in problem


def test_packed_words_of_a_deleted_step_are_in_no_file(path: Path, store: SqliteStepStore) -> None:
    packed = packed_words(WORDS)
    assert isinstance(packed, bytes)
    assert any(packed in file.read_bytes() for file in path.parent.iterdir())
    store.delete(["long"])
    store.vacuum()
    assert not any(packed in file.read_bytes() for file in path.parent.iterdir())
