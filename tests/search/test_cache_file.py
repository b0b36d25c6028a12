"""A cache file is what was written, or nothing: never an error, never other arrays."""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
import textwrap
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hybridagi_steps.search.index_cache import load_cache, save_cache
from hybridagi_steps.search.vector_index import FaissIndex

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

FIXTURE = [HealthCheck.function_scoped_fixture]  # each example overwrites the file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.index"


def assert_is_what_was_written(loaded: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
    assert loaded is not None
    header, arrays = loaded
    assert header == HEADER
    assert list(arrays) == list(ARRAYS)
    for name, values in ARRAYS.items():
        expected = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
        np.testing.assert_array_equal(arrays[name], expected)
        assert arrays[name].dtype == expected.dtype


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
    loaded = load_cache(path, {})
    if bytes(content) == original:
        assert_is_what_was_written(loaded)
    else:
        assert loaded is None


@settings(max_examples=150, deadline=None, suppress_health_check=FIXTURE)
@given(length=st.integers(0, 2_000), tail=st.binary(max_size=80))
@example(length=0, tail=b"")
def test_cut_or_lengthened_files_are_noticed(tmp_path: Path, length: int, tail: bytes) -> None:
    path = tmp_path / "steps.index"
    save_cache(path, HEADER, ARRAYS)
    original = path.read_bytes()
    path.write_bytes(original[:length] + tail)
    loaded = load_cache(path, {})
    if path.read_bytes() == original:
        assert_is_what_was_written(loaded)
    else:
        assert loaded is None


@pytest.mark.parametrize("offset", [12, 16])
def test_huge_length_fields_take_no_memory(path: Path, offset: int) -> None:
    save_cache(path, HEADER, ARRAYS)
    content = bytearray(path.read_bytes())
    struct.pack_into("<I" if offset == 12 else "<Q", content, offset, 2**32 - 1)
    content[-32:] = sha256(content[:-32]).digest()  # even with a checksum that fits
    path.write_bytes(content)
    assert load_cache(path, {}) is None


@pytest.mark.parametrize(
    "forged",
    [
        b"[]",
        b"{",
        b'{"header":7,"arrays":[]}',
        b'{"header":{},"arrays":[{}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"|O","shape":[1],"bytes":8}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[1000],"bytes":4000}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"<f4","shape":[1],"bytes":-8}]}',
        b'{"header":{},"arrays":[{"name":"a","dtype":"nonsense","shape":[1],"bytes":4}]}',
    ],
)
def test_a_header_that_lies_is_noticed_though_the_checksum_fits(path: Path, forged: bytes) -> None:
    save_cache(path, {}, {})
    magic_and_version = path.read_bytes()[:12]
    head = struct.pack("<IQ", len(forged), 24 + len(forged) + 40 + 32)
    body = magic_and_version + head + forged + bytes(40)
    path.write_bytes(body + sha256(body).digest())
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
    np.testing.assert_array_equal(loaded[1]["it"], given_array)
    assert loaded[1]["it"].shape == given_array.shape


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
    script = """
        import sys, numpy as np
        from hybridagi_steps.search.index_cache import save_cache
        number = 0
        while True:
            number += 1
            save_cache(sys.argv[1], {}, {"it": np.full(500_000, number)})
            if number == 1:
                print("started", flush=True)
    """
    random = np.random.default_rng(0)
    for _ in range(6):
        command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(random.uniform(0, 0.05))
            writer.kill()
        loaded = load_cache(path, {})
        assert loaded is not None
        assert len(np.unique(loaded[1]["it"])) == 1


def test_the_loaded_arrays_carry_an_index_without_a_copy(path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((20_000, 256)).astype(np.float32)
    index = FaissIndex(256)
    index.add(np.arange(20_000), vectors)
    expected = index.search(vectors[:5], 4)
    save_cache(path, {"count": 20_000}, index.to_arrays())
    loaded = load_cache(path, {"count": 20_000})
    assert loaded is not None
    arrays = loaded[1]
    assert not any(array.flags.writeable for array in arrays.values())
    revived = FaissIndex.from_arrays(256, arrays)
    for found, wanted in zip(revived.search(vectors[:5], 4), expected, strict=True):
        np.testing.assert_array_equal(found.rows, wanted.rows)
    assert np.shares_memory(revived.to_arrays()["vectors"], arrays["vectors"])
    revived.add([20_000], vectors[:1])
    assert revived.search(vectors[:1], 2)[0].rows.tolist() == [0, 20_000]
