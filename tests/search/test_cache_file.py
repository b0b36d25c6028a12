"""A cache file is what was written, or nothing: never an error, never other arrays."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import errno
import logging
import mmap
import os
import signal
import struct
import time
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_processes import piped
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hybridagi_steps.embedders.vectors import shortened, unpacked
from hybridagi_steps.records.store_values import FloatMatrix
from hybridagi_steps.search import index_cache
from hybridagi_steps.search.index_cache import (
    CacheFile,
    DamagedCacheError,
    Patched,
    load_cache,
    save_cache,
    untouched,
)
from hybridagi_steps.search.vector_index import FaissIndex
from hybridagi_steps.search.vector_rows import Positions, VectorStore

HEADER: dict[str, Any] = {
    "store": "a1",
    "last_row": 7,
    "model": "hashing/16@1",
    "nested": {"x": [1]},
}
ARRAYS = {
    "rows": np.arange(7, dtype=np.int64),
    "vectors": np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3),
    "alive": np.array([True, False, True]),
    "none": np.empty((0, 3), np.float32),
    "codes": b"\x00\x01codes",
}

_HEAD_BYTES = 56
FIXTURE = [HealthCheck.function_scoped_fixture]  # each example overwrites the file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.index"


def assert_is_what_was_written(loaded: CacheFile | None) -> None:
    assert loaded is not None
    assert loaded.header == HEADER
    assert list(loaded) == list(ARRAYS)
    for name, values in ARRAYS.items():
        expected = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
        np.testing.assert_array_equal(loaded[name], expected)
        assert loaded[name].dtype == expected.dtype
        assert not loaded[name].flags.writeable


def assert_nothing_else_is_read(path: Path) -> None:
    """What was written, wherever bytes that say nothing have changed, or an answer that says no."""
    try:
        if (loaded := load_cache(path, {})) is not None:
            assert_is_what_was_written(loaded)
    except DamagedCacheError:
        assert path.read_bytes()


def test_what_is_written_is_read_for_the_one_who_expects_it(path: Path) -> None:
    assert save_cache(path, HEADER, ARRAYS)
    assert_is_what_was_written(load_cache(path, {"store": "a1", "last_row": 7}))
    assert_is_what_was_written(load_cache(path, {}))


@pytest.mark.parametrize("expect", [{"last_row": 8}, {"unknown": None}, {"store": "b2"}])
def test_a_stale_cache_is_not_used_and_the_log_says_why(
    path: Path, expect: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    save_cache(path, HEADER, ARRAYS)
    with caplog.at_level(logging.INFO, "hybridagi_steps"):
        assert load_cache(path, expect) is None
    assert f"stale: other {next(iter(expect))}" in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"x", b"SQLite format 3\x00" + bytes(4096), bytes(10_000)]
)
def test_a_foreign_file_is_not_used(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert load_cache(path, {}) is None


def test_a_missing_file_or_a_folder_is_not_used(path: Path) -> None:
    assert load_cache(path, {}) is None
    path.mkdir()
    assert load_cache(path, {}) is None
    assert load_cache(path / "no" / "such", {}) is None


@settings(max_examples=300, deadline=None, suppress_health_check=FIXTURE)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_flipped_bytes_are_noticed(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    path = tmp_path / "steps.index"
    save_cache(path, HEADER, ARRAYS)
    original = path.read_bytes()
    content = bytearray(original)
    for position, flip in flips:
        content[position % len(content)] ^= flip
    path.write_bytes(content)
    assert_nothing_else_is_read(path)


def test_a_flip_anywhere_is_noticed_but_in_what_fills_gaps(path: Path) -> None:
    save_cache(path, HEADER, ARRAYS)
    original = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<I", original, 12)
    arrays = [np.frombuffer(a, np.uint8) if isinstance(a, bytes) else a for a in ARRAYS.values()]
    pages = sum(bool(array.nbytes) for array in arrays)
    noticed = 0
    for position in range(len(original)):
        changed = bytearray(original)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        assert_nothing_else_is_read(path)
        try:
            noticed += not (loaded := load_cache(path, {})) or not [*loaded.values()]
        except DamagedCacheError:
            noticed += 1
    said = _HEAD_BYTES + header_bytes + 4 * pages + sum(array.nbytes for array in arrays)
    assert noticed == said < len(original)


@settings(max_examples=150, deadline=None, suppress_health_check=FIXTURE)
@given(length=st.integers(0, 2_000), tail=st.binary(max_size=80))
@example(length=0, tail=b"")
@example(length=-1, tail=b"\x07")
def test_cut_or_lengthened_files_are_noticed(tmp_path: Path, length: int, tail: bytes) -> None:
    path = tmp_path / "steps.index"
    save_cache(path, HEADER, ARRAYS)
    original = path.read_bytes()
    path.write_bytes(original[:length] + tail)
    if path.stat().st_size == len(original):
        assert_nothing_else_is_read(path)
    else:
        assert load_cache(path, {}) is None


def signed(content: bytes, rest: int) -> bytes:
    """Return a file with a checksum that fits what it says of itself."""
    end = _HEAD_BYTES + rest
    digest = sha256(content[:24] + bytes(32) + content[_HEAD_BYTES:end]).digest()
    return content[:24] + digest + content[_HEAD_BYTES:]


@pytest.mark.parametrize("offset", [12, 16])
def test_huge_length_fields_take_no_memory(path: Path, offset: int) -> None:
    save_cache(path, HEADER, ARRAYS)
    content = bytearray(path.read_bytes())
    (header_bytes,) = struct.unpack_from("<I", content, 12)
    struct.pack_into("<I" if offset == 12 else "<Q", content, offset, 2**32 - 1)
    path.write_bytes(signed(bytes(content), header_bytes + 4 * 4))  # even so
    assert load_cache(path, {}) is None


@pytest.mark.parametrize(
    "forged",
    [
        b"[]",
        b"{",
        b'{"header":7,"arrays":[]}',
        b'{"header":{},"arrays":[{}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"|O","shape":[1],"pages":1}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[1000],"pages":1}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[99999],"pages":1}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[10],"pages":2}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[-1],"pages":1}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[1],"pages":-1}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[1],"pages":1e300}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"nonsense","shape":[1],"pages":1}]}',
    ],
)
def test_a_header_that_lies_is_noticed_though_the_checksum_fits(path: Path, forged: bytes) -> None:
    save_cache(path, {}, {})
    magic_and_version = path.read_bytes()[:12]
    for after in (40, 64, 128, 4_096):
        head = struct.pack("<IQ", len(forged), _HEAD_BYTES + len(forged) + after)
        body = magic_and_version + head + bytes(32) + forged + bytes(after)
        for pages in range(3):
            path.write_bytes(signed(body, len(forged) + 4 * pages))
            assert load_cache(path, {}) is None


@settings(max_examples=60, deadline=None, suppress_health_check=FIXTURE)
@given(
    array=hnp.arrays(
        st.sampled_from([np.bool_, np.uint8, np.int64, np.float32, np.float64, np.dtype(">i4")]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    backwards=st.booleans(),
)
def test_any_array_of_numbers_comes_back(tmp_path: Path, array: Any, backwards: bool) -> None:
    given_array = array.T[::-1] if backwards and array.ndim else array
    assert save_cache(tmp_path / "one", {}, {"it": given_array})
    loaded = load_cache(tmp_path / "one", {})
    assert loaded is not None
    np.testing.assert_array_equal(loaded["it"], given_array)
    assert loaded["it"].shape == given_array.shape


def test_objects_are_refused_when_saving(path: Path) -> None:
    with pytest.raises(TypeError, match="only numbers"):
        save_cache(path, {}, {"it": np.array([object()])})
    with pytest.raises(TypeError):
        save_cache(path, {"it": object()}, {})
    assert list(path.parent.iterdir()) == []


def test_the_file_is_the_owners_alone_and_no_other_is_left(path: Path) -> None:
    save_cache(path, HEADER, ARRAYS)
    save_cache(path, HEADER, {})
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_what_killed_writers_left_is_cleared_away_after_a_while(path: Path) -> None:
    old, young = (path.with_name(f".{path.name}.{name}.tmp") for name in ("old", "young"))
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    save_cache(path, HEADER, ARRAYS)
    assert sorted(path.parent.iterdir()) == sorted([path, young])


def test_a_disk_that_cannot_take_it_keeps_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_cache(path, HEADER, ARRAYS)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert not save_cache(path, {"store": "other"}, {})
    assert "No space left" in caplog.text
    assert_is_what_was_written(load_cache(path, {}))
    assert list(path.parent.iterdir()) == [path]
    assert not save_cache(path.parent / "no" / "such", {}, {})


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(path: Path) -> None:
    def write(pipe: int) -> None:
        for number in count(1):
            save_cache(path, {}, {"it": np.full(500_000, number)})
            os.write(pipe, b"." * (number == 1))

    random = np.random.default_rng(0)
    for _ in range(6):
        writer, started = piped(write)
        assert os.read(started, 1)
        time.sleep(random.uniform(0, 0.05))
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        os.close(started)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        loaded = load_cache(path, {})
        assert loaded is not None
        assert len(np.unique(loaded["it"])) == 1


@pytest.fixture(scope="module")
def vectors() -> FloatMatrix:
    return np.random.default_rng(0).standard_normal((20_000, 256)).astype(np.float32)


@pytest.fixture
def index(vectors: FloatMatrix) -> FaissIndex:
    index = FaissIndex(256)
    index.add(np.arange(20_000), vectors)
    index.search(vectors[:1], 1)  # begins to make codes
    index.finish_build()  # else who is first in time would find what codes pass over
    return index


def revived(path: Path, index: FaissIndex) -> FaissIndex:
    save_cache(path, {}, index.to_arrays())
    loaded = load_cache(path, {})
    assert loaded is not None
    return FaissIndex.from_arrays(256, loaded)


class Reads:
    """Counts what is read of files, as where there is no pread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        patch.setattr(index_cache, "_pread", self)

    def __call__(self, descriptor: int, count: int, start: int) -> bytes:
        self.bytes += count
        return index_cache._seek_and_read(descriptor, count, start)


def test_an_index_reads_only_the_vectors_it_looks_at_each_once(
    path: Path, index: FaissIndex, vectors: FloatMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = index.search(vectors[:1], 4)[0]
    reads = Reads(monkeypatch)
    again = revived(path, index)
    assert reads.bytes < vectors.nbytes / 4, "opening asks which arrays there are, not for them"
    reads.bytes = 0
    for _ in range(2):
        found = again.search(vectors[:1], 4)[0]
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.scores, expected.scores)
    assert 0 < reads.bytes < vectors.nbytes / 4
    read = reads.bytes
    again.add([20_000], vectors[:1])
    assert again.search(vectors[:1], 2)[0].rows.tolist() == [0, 20_000]
    again.remove([20_000])
    assert reads.bytes == read, "there is room for new vectors behind what a file has"
    np.testing.assert_array_equal(again.to_arrays()["vectors"][:-1], index.to_arrays()["vectors"])
    assert reads.bytes == vectors.nbytes
    again.add(np.arange(30_000, 50_000), vectors)
    assert again.search(vectors[:1], 2)[0].rows.tolist() == [0, 30_000]


def test_of_a_page_only_the_vectors_looked_at_are_made_unit_rows(
    path: Path, index: FaissIndex, vectors: FloatMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter asks for single rows of thousands of pages: to make all took longer than to read."""
    made = list[int]()

    def counted(stored: Any) -> FloatMatrix:
        made.append(len(stored))
        return unpacked(stored)

    monkeypatch.setattr("hybridagi_steps.search.vector_index.unpacked", counted)
    short = FaissIndex(256)
    short.add(np.arange(20_000), shortened(vectors))
    again, rows = revived(path, short), np.arange(0, 20_000, 40)
    for _ in range(2):
        [expected], [found] = (each.search(vectors[:1], 9, rows=rows) for each in (short, again))
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.scores, expected.scores)
    assert sum(made) == len(rows)
    twice = np.append(rows, rows[::-1]) + 1
    near = again.similarities(vectors[0], twice)
    np.testing.assert_array_equal(near, short.similarities(vectors[0], twice))
    assert 2 * len(rows) <= sum(made) < 2.1 * len(rows)


@pytest.mark.parametrize("more", [0, 1, 2, 3, 50])
@pytest.mark.parametrize("count", [1, 8, 9, 30])
def test_what_is_patched_is_what_it_says(
    path: Path, monkeypatch: pytest.MonkeyPatch, count: int, more: int
) -> None:
    monkeypatch.setattr(index_cache, "_PAGE_BYTES", {1: 8, 2: 24})  # four rows a page
    chance, kind = np.random.default_rng(count + more), np.int16
    expected = chance.integers(-99, 99, (count, 3)).astype(kind)
    save_cache(path, {}, {"before": b"x", "values": expected, "behind": b"y"})
    for _ in range(4):
        loaded = load_cache(path, {})
        assert loaded is not None
        filed = loaded.paged("values")
        rows = np.flatnonzero(chance.random(len(filed)) < 0.2)
        fresh = chance.integers(-99, 99, (more, 3)).astype(kind)
        patched = Patched(filed, rows, np.array([7, 8, 9]), fresh)
        expected[rows] = [7, 8, 9]
        expected = np.concatenate((expected, fresh))
        assert patched.shape == expected.shape
        assert save_cache(path, {}, {"before": b"x", "values": patched, "behind": b"y"})
        loaded = load_cache(path, {})
        assert loaded is not None
        np.testing.assert_array_equal(loaded["values"], expected)
        assert (loaded["before"].tobytes(), loaded["behind"].tobytes()) == (b"x", b"y")


def test_damage_in_what_is_copied_stays_damage(path: Path) -> None:
    values = np.arange(64_000, dtype=np.int16).reshape(1_000, 64)
    save_cache(path, {}, {"values": values})
    whole = path.read_bytes()
    path.write_bytes(whole[:-9_000] + bytes(64) + whole[-8_936:])
    loaded = load_cache(path, {})
    assert loaded is not None
    patched = Patched(loaded.paged("values"), np.array([3]), 0, values[:1])
    assert save_cache(path, {}, {"values": patched})
    loaded = load_cache(path, {})
    assert loaded is not None
    with pytest.raises(DamagedCacheError):
        loaded["values"]


def test_a_file_keeps_nothing_of_vectors_that_went_and_all_of_the_others(
    path: Path, vectors: FloatMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, index = shortened(vectors), FaissIndex(256)
    index.add(np.arange(20_000), short)
    again, gone = revived(path, index), np.array([0, 5, 6, 19_999, 20_001])
    again.add(np.arange(20_000, 20_003), short[:3])
    again.remove(gone)
    reads = Reads(monkeypatch)
    arrays = again.to_arrays(patched=True)
    assert reads.bytes < short.nbytes / 20, "what stays is copied, not looked at"
    expected = again.to_arrays()["vectors"].copy()
    save_cache(path, {}, arrays)
    loaded = load_cache(path, {})
    assert loaded is not None
    np.testing.assert_array_equal(loaded["vectors"], expected)
    assert short[5].tobytes() not in path.read_bytes()
    kept = FaissIndex.from_arrays(256, loaded)
    kept.remove(np.array([77]))
    save_cache(path, {}, kept.to_arrays(patched=True))
    expected[77] = expected[5]
    loaded = load_cache(path, {})
    assert loaded is not None
    np.testing.assert_array_equal(loaded["vectors"], expected)


def test_vectors_in_whole_numbers_are_cached_in_two_bytes_each_and_answer_the_same(
    path: Path, vectors: FloatMatrix
) -> None:
    index = FaissIndex(256)
    index.add(np.arange(20_000), shortened(vectors))
    assert index.to_arrays()["vectors"].nbytes == vectors.nbytes / 2
    again = revived(path, index)
    for query in vectors[:20] + vectors[20:40]:
        [expected], [found] = index.search(query[None], 10), again.search(query[None], 10)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.scores, expected.scores)
    again.add([20_000], vectors[:1])
    whole = revived(path, again)
    np.testing.assert_array_equal(whole.to_arrays()["vectors"], again.to_arrays()["vectors"])


def test_whole_numbers_become_unit_rows_where_searches_look_and_nowhere_else(
    path: Path, vectors: FloatMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them as float32 would take twice the memory that a first search has."""
    kept = list[int]()
    real = VectorStore._unpack

    def unpack(store: VectorStore, positions: Positions | slice) -> None:
        before = np.count_nonzero(store._packed)
        real(store, positions)
        kept.append(int(before - np.count_nonzero(store._packed)))

    def unbuilt(index: FaissIndex) -> None:
        assert index._codes is None

    monkeypatch.setattr(VectorStore, "_unpack", unpack)
    short, index = shortened(vectors), FaissIndex(256)
    for start in range(0, 20_000, 1_000):
        index.add(np.arange(start, start + 1_000), short[start : start + 1_000])
    with monkeypatch.context() as patch:  # no codes, which may be ready or not: it looks at all
        patch.setattr(FaissIndex, "_build_if_outdated", unbuilt)
        [first] = index.search(vectors[:1], 4)
        np.testing.assert_array_equal(index.to_arrays()["vectors"], short)
        [then] = index.search(vectors[:1], 4)
    np.testing.assert_array_equal(first.scores, then.scores)
    assert 0 < sum(kept) < 5_000
    index.add([20_000], vectors[:1])  # not in whole numbers: now all are kept as unit rows
    np.testing.assert_array_equal(index.to_arrays()["vectors"][:-1], unpacked(short))
    again = revived(path, index)
    again.add([20_001], short[:1])
    [found] = again.search(vectors[:1], 3)
    assert sorted(found.rows.tolist()) == [0, 20_000, 20_001]


def test_what_came_since_is_saved_behind_what_a_file_has(path: Path, vectors: FloatMatrix) -> None:
    short, index = shortened(vectors), FaissIndex(256)
    index.add(np.arange(10_000), short[:10_000])
    again = revived(path, index)
    again.add(np.arange(10_000, 20_000), short[10_000:])  # more than there is room for
    np.testing.assert_array_equal(again.to_arrays()["vectors"], short)
    again.remove(np.arange(5_000))
    np.testing.assert_array_equal(again.to_arrays()["vectors"], short[5_000:])
    [expected] = FaissIndex.from_arrays(256, again.to_arrays()).search(vectors[7:8], 3)
    np.testing.assert_array_equal(again.search(vectors[7:8], 3)[0].scores, expected.scores)


def test_whatever_happens_to_a_file_in_use_changes_no_answer(
    path: Path, index: FaissIndex, vectors: FloatMatrix
) -> None:
    """It is overwritten by a copied backup, cut, or its disk fails: each page read before stays."""
    expected = index.search(vectors[:1], 4)[0]
    again = revived(path, index)
    again.search(vectors[:1], 4)
    size = path.stat().st_size
    for content in (b"\x55" * size, b""):
        path.write_bytes(content)
        np.testing.assert_array_equal(again.search(vectors[:1], 4)[0].scores, expected.scores)
        with pytest.raises(DamagedCacheError):
            again.to_arrays()


def test_a_child_reads_by_itself(path: Path, index: FaissIndex, vectors: FloatMatrix) -> None:
    again = revived(path, index)
    if child := os.fork():
        found = again.search(vectors[:40], 1)
        assert os.waitpid(child, 0)[1] == 0
        assert [rows.tolist() for rows, _ in found] == [[n] for n in range(40)]
        return
    found = again.search(vectors[40:80], 1)
    os._exit([rows.tolist() for rows, _ in found] != [[n] for n in range(40, 80)])


def test_a_process_without_memory_for_vectors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="no memory for an array of 8,192 bytes"):
        untouched((16, 128), np.float32)
