"""Copies: equal to their source to all that a user sees, whatever happens on the way."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from child_processes import piped
from conformance.samples import message, said
from copied_memories import everything, fill, some_steps, store_of

from hybridagi_steps import StepMemory
from hybridagi_steps.embedders.hashing import HashingEmbedder
from hybridagi_steps.errors import (
    CopyDiffersError,
    CopyError,
    DamagedFileError,
    UnsupportedAddressError,
)
from hybridagi_steps.exchange import export_file
from hybridagi_steps.stores.copying import Progress, tables_of
from hybridagi_steps.stores.sql import copied_rows, copy_tables

Place = Callable[[], str]


@pytest.fixture
def new_file(tmp_path: Path) -> Place:
    return lambda: str(tmp_path / f"{len([*tmp_path.glob('*.db')])}.db")


@pytest.fixture(params=["file to file", "file to server", "server to file", "server to server"])
def places(request: pytest.FixtureRequest, new_file: Place) -> tuple[str, str]:
    """A source and a target that are not there yet."""
    kinds = request.param.split(" to ")
    on_server: Any = None
    if "server" in kinds:
        on_server = request.getfixturevalue("new_postgres_database")
    first, second = (on_server if kind == "server" else new_file for kind in kinds)
    source = first()
    if kinds[0] == "file":
        Path(source).touch()
    return source, second()


class Counting(HashingEmbedder):
    """Counts the texts that it embeds."""

    texts = 0

    def embed_documents(self, texts: Sequence[str]) -> Any:
        type(self).texts += len(texts)
        return super().embed_documents(texts)


def _memory(place: str, **options: Any) -> StepMemory:
    return StepMemory(place, embedder="hashing", **options)


def test_a_copy_is_equal_to_its_source_in_all_that_is_seen(places: tuple[str, str]) -> None:
    source, target = places
    bars: list[tuple[int, int]] = []
    with _memory(source) as memory:
        fill(memory)
        memory.flush()
        report = memory.copy_to(target, lambda done, total: bars.append((done, total)))
        with _memory(target) as copy:
            assert copy.verify() == []
            assert everything(copy) == everything(memory)
            assert (report.steps, report.messages) == (
                copy.stats()["steps"],
                copy.stats()["messages"],
            )
            again = store_of(copy).commit("chat \x1a", said(6), idempotency_key="once")
            assert [each.content for each in again] == [str(n) for n in range(1, 7)]
    assert all(done <= total for done, total in bars)
    assert bars[-1][0] == bars[-1][1] > 0


def test_a_chain_of_copies_exports_what_the_first_did(
    new_file: Place, postgres_address: str, tmp_path: Path
) -> None:
    first, last = new_file(), str(tmp_path / "last.db")
    with _memory(first) as memory:
        fill(memory)
        memory.copy_to(postgres_address)
        with _memory(postgres_address) as between:
            between.copy_to(last)
        with _memory(last) as copy:
            assert everything(copy) == everything(memory)
            assert copy.verify() == []
            written = [tmp_path / name for name in ("before.jsonl", "after.jsonl")]
            for path, each in zip(written, (memory, copy), strict=True):
                export_file(each, str(path), vectors=True)
    assert written[0].read_bytes() == written[1].read_bytes() != b""


def test_nothing_is_embedded_again(places: tuple[str, str]) -> None:
    source, target = places
    embedder = Counting()
    with StepMemory(source, embedder=embedder) as memory:
        fill(memory)
        memory.flush()
        before = embedder.texts
        memory.copy_to(target)
    assert embedder.texts == before


def test_no_word_is_derived_again(places: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = places
    with _memory(source) as memory:
        fill(memory)
        memory.flush()
        made: list[object] = []
        monkeypatch.setattr("hybridagi_steps.search.indexing._text_row", made.append)
        memory.copy_to(target)
        assert made == []
        with _memory(target) as copy:
            assert _words(copy) == _words(memory)


def _words(memory: StepMemory) -> dict[str, tuple[Any, ...]]:
    """Return the words of steps and messages by id, and that of the one they show before it."""
    store, found = tables_of(store_of(memory)), dict[str, tuple[Any, ...]]()
    with store.snapshot() as there:
        for table in (copied_rows.STEPS, copied_rows.MESSAGES):
            for _, name, above, text in store.words_after(there, table, 0):
                found[name] = (above, *text[2:]) if text else ()
    return found


class _StoppedError(Exception):
    """A copy that ends in the middle."""


def _stop_after(calls: int) -> Progress:
    left = iter(range(calls))

    def stop(_done: int, _total: int) -> None:
        if next(left, None) is None:
            raise _StoppedError

    return stop


def test_a_copy_that_ends_in_the_middle_is_none(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory, _memory(target) as copy:
        fill(memory, 1200)
        bars = list[int]()
        for stop in (1, 3, 7):
            with pytest.raises(_StoppedError):
                memory.copy_to(target, _stop_after(stop))
            assert (copy.stats()["steps"], copy.stats()["messages"]) == (0, 0)
            assert copy.verify() == []
        memory.copy_to(target, lambda done, _: bars.append(done))
        assert len(bars) > 7
        assert everything(copy) == everything(memory)


@pytest.mark.parametrize("kind", ["file", "server"])
def test_kill_nine_at_any_moment_leaves_all_or_nothing(
    kind: str,
    new_file: Place,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, target = new_file(), str(tmp_path / "target.db")
    if kind == "server":
        target = request.getfixturevalue("postgres_address")
    monkeypatch.setattr(copied_rows, "PAGE", 7)
    with _memory(place) as memory:
        fill(memory, 150)
        memory.flush()
        steps = memory.stats()["steps"]
    kills = there = 0
    for pages in count(step=4):
        child, told = piped(lambda _: _copy(place, target, pages))  # noqa: B023 - called at once
        _, status = os.waitpid(child, 0)
        os.close(told)
        with _memory(target) as copy:
            there = copy.stats()["steps"]
        if status == 0 or there:
            break
        assert os.WIFSIGNALED(status), status
        kills += 1
    assert kills > 3
    assert there == steps
    with _memory(place) as memory, _memory(target) as copy:
        assert everything(copy) == everything(memory)
        assert copy.verify() == []


def _copy(place: str, target: str, pages: int) -> None:
    """Copy, and die without a word after so many pages were written or read back."""
    left = count(pages, -1)

    def die_in_turn(_done: int, _total: int) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with _memory(place) as memory:
        memory.copy_to(target, die_in_turn)


def test_a_copy_is_of_one_moment_while_others_write(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory, _memory(source) as other:
        fill(memory, 1200)
        before = everything(memory)
        turns = count()

        def write(_done: int, _total: int) -> None:
            n = next(turns)
            store_of(other).commit("busy", said(2), some_steps(f"busy{n}", 3))
            other.delete([str(step.id) for step in other.run_steps(f"red-{n}")])

        memory.copy_to(target, write)
        assert next(turns) > 7
        with _memory(target) as copy:
            assert everything(copy) == before
            assert copy.verify() == []


def test_a_difference_is_named_and_nothing_of_the_copy_stays(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    write: Any = vars(copy_tables.CopyTables)["_write_ordered"]

    def losing(store: Any, here: Any, table: Any, page: Any, copies: Any) -> Any:
        if table is not copied_rows.STEPS:
            return write(store, here, table, page, copies)
        rows = write(store, here, table, page[:-2], copies)
        return rows | {entry.id: 10**6 + n for n, entry in enumerate(page[-2:])}

    with _memory(source) as memory:
        fill(memory)
        with monkeypatch.context() as patched:
            patched.setattr(copy_tables.CopyTables, "_write_ordered", losing)
            with pytest.raises(CopyDiffersError, match="steps") as caught:
                memory.copy_to(target)
        assert caught.value.counts["steps"] == 2
        with _memory(target) as copy:
            assert copy.stats()["steps"] == 0
            memory.copy_to(target)
            assert everything(copy) == everything(memory)


def test_a_place_that_holds_something_is_refused(places: tuple[str, str], new_file: Place) -> None:
    source, target = places
    with _memory(source) as memory, _memory(target) as other:
        with pytest.raises(CopyError, match=r"holds nothing; it has none"):
            memory.copy_to(target)
        fill(memory)
        for fills in (
            lambda: other.add(some_steps("mine", 2)),
            lambda: store_of(other).commit("talk", []),
        ):
            fills()
            before = everything(other)
            with pytest.raises(CopyError, match=r"holds something .* into an empty one"):
                memory.copy_to(target)
            assert everything(other) == before
            other.clear()
        memory.copy_to(target)
        with pytest.raises(CopyError, match="holds something"):
            memory.copy_to(target)
        with pytest.raises(CopyError, match="same memory"):
            memory.copy_to(source)
        with pytest.raises(UnsupportedAddressError, match="gone at once"):
            memory.copy_to(":memory:")


def test_imported_sessions_are_listed_by_their_times_in_a_copy(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory:
        store_of(memory).commit("live", said(1))
        for name, day in (("may", 20), ("june", 40), ("april", 1)):
            at = datetime(2024, 4, 1, tzinfo=UTC) + timedelta(days=day)
            store_of(memory).commit(name, [message(created_at=at)], keep_times=True)
        memory.copy_to(target)
        with _memory(target) as copy:
            listed = [one.session_id for one in copy.sessions()]
    assert listed == ["live", "june", "may", "april"]


def test_other_namespaces_stay_as_they_are_and_are_named(places: tuple[str, str]) -> None:
    source, target = places
    with (
        _memory(source, namespace="a") as first,
        _memory(source, namespace="b") as second,
        _memory(target, namespace="x") as there,
    ):
        fill(there)
        before = everything(there)
        fill(first)
        second.add(some_steps("b", 3))
        assert first.copy_to(target).others == ("b",)
        assert second.copy_to(target).steps == 3
        assert everything(there) == before
        assert there.verify() == []
        with _memory(target, namespace="a") as copy:
            assert everything(copy) == everything(first)


def test_a_damaged_row_is_not_made_good_by_copying(new_file: Place, tmp_path: Path) -> None:
    place = new_file()
    with _memory(place) as memory:
        memory.add(some_steps("red", 5))
    with closing(sqlite3.connect(place)) as file, file:
        file.execute("UPDATE agent_step SET body = replace(body, 'apples 3', 'apples 8')")
    with _memory(place) as memory, pytest.raises(DamagedFileError, match="one of the steps"):
        memory.copy_to(tmp_path / "target.db")


def test_a_memory_without_a_file_is_copied_into_one(memory: StepMemory, tmp_path: Path) -> None:
    fill(memory)
    memory.copy_to(tmp_path / "target.db")
    with _memory(str(tmp_path / "target.db")) as copy:
        assert everything(copy) == everything(memory)


def test_a_store_of_others_says_what_to_do_instead(memory: StepMemory) -> None:
    with pytest.raises(UnsupportedAddressError, match="export its steps"):
        tables_of(object())


def test_a_backup_is_told_from_the_memory_itself(tmp_path: Path) -> None:
    with _memory(str(tmp_path / "a.db")) as memory:
        fill(memory)
        memory.backup(tmp_path / "b.db")
        with pytest.raises(CopyError, match=r"b\.db has the identity of .*a\.db: it is a backup"):
            memory.copy_to(tmp_path / "b.db")
        (tmp_path / "c.db").symlink_to(tmp_path / "a.db")
        with pytest.raises(CopyError, match="are the same memory"):
            memory.copy_to(tmp_path / "c.db")


def test_a_move_erases_the_old_place(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory, _memory(source, namespace="other") as beside:
        fill(memory)
        beside.add(some_steps("beside", 2))
        before = everything(memory)
        memory.move_to(target)
        assert (memory.stats()["steps"], memory.sessions()) == (0, [])
        assert len(beside.run_steps("beside-0")) == 2
        with _memory(target) as moved:
            assert everything(moved) == before
            assert moved.verify() == memory.verify() == []
            moved.add(some_steps("new", 1))
            moved.move_to(source)
            assert len(memory.run_steps("new-0")) == 1


def test_nothing_of_what_was_moved_is_left_in_a_file(new_file: Place, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    with _memory(str(folder / "old.db")) as memory:
        memory.add(some_steps("unmentionable", 200))
        memory.search("unmentionable")
        assert memory.move_to(new_file()).unreached == ()
    for each in folder.iterdir():
        assert b"unmentionable" not in each.read_bytes(), each


def test_what_was_written_while_it_moved_is_not_erased(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory, _memory(source) as other:
        fill(memory)
        late = some_steps("late", 1)

        def write(_done: int, _total: int) -> None:
            if late:
                other.add(late.pop())

        with pytest.raises(CopyError, match=r"somebody wrote to .* while it was copied"):
            memory.move_to(target, write)
        assert len(memory.run_steps("late-0")) == 1
        assert len(memory.run_steps("red-0")) == 4
