"""Copies: equal to their source to all that a user sees, whatever happens on the way."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from child_processes import piped
from copied_memories import everything, fill, some_steps, store_of

from hybridagi_steps import CopyReport, StepMemory
from hybridagi_steps.embedders.hashing import HashingEmbedder
from hybridagi_steps.errors import (
    CopyDiffersError,
    CopyError,
    DamagedFileError,
    UnsupportedAddressError,
)
from hybridagi_steps.exchange import export_file
from hybridagi_steps.search.vector_index import FaissIndex, ScoredRows
from hybridagi_steps.stores.copying import Progress, tables_of
from hybridagi_steps.stores.sql import copied_rows, copy_tables
from hybridagi_steps.testing.conformance.samples import message, said

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


def _changes(report: CopyReport) -> tuple[int, int]:
    return report.written, report.removed


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
            assert report.searches > 5
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
        report = memory.copy_to(target)
    assert embedder.texts - before == 2 * report.searches > 0  # the queries, in both


def test_no_word_is_derived_again(places: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = places
    with _memory(source) as memory:
        fill(memory)
        memory.flush()
        made: list[object] = []
        monkeypatch.setattr("hybridagi_steps.search.indexing._text_row", made.append)
        assert memory.copy_to(target).searches > 0
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


def test_a_copy_is_brought_up_to_date(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory:
        fill(memory)
        memory.copy_to(target)
        _go_on(memory)
        report = memory.copy_to(target)
        with _memory(target) as copy:
            assert everything(copy) == everything(memory)
            assert copy.verify() == []
        assert 0 < report.written < 60
        assert report.removed > 0
        assert _changes(memory.copy_to(target)) == (0, 0)


def _go_on(memory: StepMemory) -> None:
    """Change something of every kind."""
    store = store_of(memory)
    steps = list(memory.iter_steps({"run_id": "red-2"}))
    memory.update([step.model_copy(update={"outputs": {"result": "new"}}) for step in steps[:2]])
    memory.score_steps({str(steps[2].id): -1.0})
    memory.score("red-1", 0.5)
    memory.reinstate(str(memory.revocations()[0].id))
    memory.revoke({"run_id": "red-5"})
    store.commit("quiet", said(2), idempotency_key="more")
    store.commit("new", said(2), some_steps("new", 3))
    store.delete_session("talk", by="ann")
    store.rewrite_messages({store.messages("fork")[0].id: said(1)[0]})
    memory.delete([str(step.id) for step in memory.iter_steps({"run_id": "red-6"})])
    memory.add(some_steps("later", 9))


def test_what_was_purged_between_two_calls_is_in_no_file_of_the_copy(
    new_file: Place, tmp_path: Path
) -> None:
    place, target = new_file(), tmp_path / "copy" / "copy.db"
    target.parent.mkdir()
    with _memory(place) as memory:
        memory.add(some_steps("unmentionable", 1200, user_id="eve"))
        memory.add(some_steps("plain", 1200))
        store_of(memory).commit("secret", [message("unmentionable")], user_id="eve")
        with pytest.raises(_StoppedError):
            memory.copy_to(target, _stop_after(3))
        assert any(b"unmentionable" in each.read_bytes() for each in target.parent.iterdir())
        memory.purge({"user_id": "eve"})
        memory.purge({"session_id": "secret"})
        with pytest.raises(_StoppedError):  # it is found out that something went, not yet all done
            memory.copy_to(target, _stop_after(1))
        memory.copy_to(target)
        with _memory(str(target)) as copy:
            assert everything(copy) == everything(memory)
        for each in target.parent.iterdir():
            assert b"unmentionable" not in each.read_bytes(), each


class _StoppedError(Exception):
    """A copy that ends in the middle."""


def _stop_after(calls: int) -> Progress:
    left = iter(range(calls))

    def stop(_done: int, _total: int) -> None:
        if next(left, None) is None:
            raise _StoppedError

    return stop


@pytest.mark.parametrize("kind", ["file", "server"])
def test_kill_nine_at_any_moment_and_the_same_call_ends_equal(
    kind: str,
    new_file: Place,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, target = new_file(), str(tmp_path / "target.db")
    if kind == "server":
        target = request.getfixturevalue("postgres_address")
    for module in (copied_rows, copy_tables):
        monkeypatch.setattr(module, "PAGE", 7)
    with _memory(place) as memory:
        fill(memory, 150)
        memory.flush()
    chance, kills = random.Random(5), 0
    for attempt in count():
        child, acknowledged = piped(lambda pipe: _copy(place, target, pipe))
        for _ in range(chance.randint(0, 12 + attempt)):
            os.read(acknowledged, 1)
        time.sleep(chance.random() * 0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        os.close(acknowledged)
        if status == 0:
            break
        assert os.WIFSIGNALED(status), status
        kills += 1
    assert kills > 3
    with _memory(place) as memory, _memory(target) as copy:
        assert everything(copy) == everything(memory)
        assert copy.verify() == []
        assert _changes(memory.copy_to(target)) == (0, 0)


def _copy(place: str, target: str, pipe: int) -> None:
    def tell(_done: int, _total: int) -> None:
        os.write(pipe, b".")

    with _memory(place) as memory:
        memory.copy_to(target, tell)


def test_others_write_to_the_source_meanwhile(places: tuple[str, str]) -> None:
    source, target = places
    done = threading.Event()
    with _memory(source) as memory, _memory(source) as other:
        fill(memory)

        def write() -> None:
            for n in count():
                if done.wait(0.005):  # faster than words are made no copy would come to an end
                    return
                store_of(other).commit("busy", said(2), some_steps(f"busy{n}", 3))
                if n % 3 == 0:
                    other.delete([str(step.id) for step in other.run_steps(f"busy{n}-0")][:1])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            reports = [memory.copy_to(target) for _ in range(2)]
        finally:
            done.set()
            writer.join()
        assert reports[1].steps >= reports[0].steps
        assert memory.copy_to(target).searches > 0
        with _memory(target) as copy:
            assert everything(copy) == everything(memory)
            assert copy.verify() == []


def test_codes_that_name_other_candidates_make_no_copy_differ(
    new_file: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_file(), str(tmp_path / "copy.db")
    search: Any = vars(FaissIndex)["_search_one"]
    estimating = list[FaissIndex]()

    def missing_some(index: FaissIndex, query: Any, k: int, scope: Any) -> Any:
        found = search(index, query, k, scope)
        if index.exact or len(found.rows) < 2 or index not in (estimating or [index]):
            return found
        estimating.append(index)
        return ScoredRows(found.rows[-1:], found.scores[-1:])

    monkeypatch.setattr(FaissIndex, "_search_one", missing_some)
    with _memory(source) as memory:
        fill(memory)
        assert memory.copy_to(target).searches > 0
    assert estimating


def test_a_difference_is_named_and_repaired_by_the_same_call(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory:
        fill(memory)
        memory.copy_to(target)
        memory.add(some_steps("later", 1))
        with _memory(target) as copy:
            names = [str(step.id) for step in copy.iter_steps({"run_id": "red-2"})]
            seen: list[int] = []

            def spoil(done: int, total: int) -> None:
                seen.append(done)
                if len(seen) == 2:  # both tables were repaired and are about to be compared
                    copy.delete(names[:2])

            with pytest.raises(CopyDiffersError, match="2 steps") as told:
                memory.copy_to(target, spoil)
            assert names[0] in str(told.value)
            assert told.value.counts["steps"] == 2
            memory.copy_to(target)
            assert everything(copy) == everything(memory)


def test_what_is_no_copy_of_this_is_left_alone(places: tuple[str, str], new_file: Place) -> None:
    source, target = places
    with _memory(source) as memory, _memory(target) as other:
        with pytest.raises(CopyError, match=r"holds nothing; it has none"):
            memory.copy_to(target)
        fill(memory)
        other.add(some_steps("mine", 2))
        with pytest.raises(CopyError, match="something else"):
            memory.copy_to(target)
        assert len(list(other.iter_steps())) == 2
        other.clear()
        memory.copy_to(target)
        other.add(some_steps("mine", 1))
        with pytest.raises(CopyError, match="was written to since"):
            memory.copy_to(target)
        assert len(other.run_steps("mine-0")) == 1
        with pytest.raises(CopyError, match="same memory"):
            memory.copy_to(source)
        with pytest.raises(UnsupportedAddressError, match="gone at once"):
            memory.copy_to(":memory:")
        with _memory(new_file()) as third:
            third.add(some_steps("third", 2))
            with pytest.raises(CopyError, match="something else"):
                third.copy_to(target)


def test_an_unfinished_copy_is_no_place_for_another_source(new_file: Place, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    with _memory(new_file()) as memory:
        memory.add(some_steps("one", 1200))
        with pytest.raises(_StoppedError):
            memory.copy_to(target, _stop_after(1))
        with _memory(new_file()) as other:
            other.add(some_steps("two", 2))
            with pytest.raises(CopyError, match="something else"):
                other.copy_to(target)
        with _memory(str(target)) as copy:
            assert any("unfinished copy" in line for line in copy.verify())


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


def test_a_move_tells_what_it_wrote_in_all(places: tuple[str, str]) -> None:
    source, target = places
    with _memory(source) as memory:
        fill(memory)
        assert memory.move_to(target).written > 0
        assert memory.move_to(target).written == 0


def test_a_backup_is_told_from_the_memory_itself(tmp_path: Path) -> None:
    with _memory(str(tmp_path / "a.db")) as memory:
        fill(memory)
        memory.backup(tmp_path / "b.db")
        with pytest.raises(CopyError, match=r"b\.db has the identity of .*a\.db: it is a backup"):
            memory.copy_to(tmp_path / "b.db")
        (tmp_path / "c.db").symlink_to(tmp_path / "a.db")
        with pytest.raises(CopyError, match="are the same memory"):
            memory.copy_to(tmp_path / "c.db")
