"""Large bodies: codes in lists, built in a thread of their own while searches go on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hybridagi_steps.embedders.vectors import shortened
from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows
from hybridagi_steps.search import quantized_codes as scan_codes
from hybridagi_steps.search import vector_index as faiss_index
from hybridagi_steps.search.quantized_codes import ScanCodes
from hybridagi_steps.search.vector_index import FaissIndex
from hybridagi_steps.search.vector_rows import Positions, VectorStore

D = 32
COUNT = 6_000


def clustered(count: int, seed: int = 0) -> FloatMatrix:
    """Unit vectors around shared centres, as texts about the same things have them."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((60, D))
    vectors = centres[random.integers(0, len(centres), count)]
    vectors = vectors + 0.6 * random.standard_normal((count, D))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def recall(index: FaissIndex, vectors: FloatMatrix, queries: FloatMatrix, rows: Rows) -> float:
    """Return the share of the true ten best among `rows` that the index finds; check scores."""
    shares: list[float] = []
    for query in queries:
        kth = float(np.sort(vectors[rows] @ query)[-10])
        (found,) = index.search(query[None], 10, rows=None if len(rows) == len(vectors) else rows)
        np.testing.assert_allclose(found.scores, vectors[found.rows] @ query, atol=1e-5)
        assert set(found.rows.tolist()) <= set(rows.tolist())
        shares.append(float(np.mean(found.scores >= kth - 2e-6)))
    return float(np.mean(shares))


@pytest.fixture(autouse=True)
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let lists and threads come into play with a few thousand vectors."""
    with monkeypatch.context() as patch:
        patch.setattr(faiss_index, "CODES_FROM_BYTES", 4 * D * 30)
        patch.setattr(faiss_index, "LISTS_FROM", 2_000)
        patch.setattr(faiss_index, "CODE_BATCH", 300)
        patch.setattr(scan_codes, "PIECE", 500)
        yield


class Gate:
    """Holds every build before its first piece until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened, self.builds = threading.Event(), 0
        real = scan_codes.build
        gate = self

        def build(vectors: scan_codes.Vectors, *, lists: bool) -> scan_codes.Building:
            gate.builds += 1
            while not gate.opened.wait(0.001):
                yield
            return (yield from real(vectors, lists=lists))

        patch.setattr(scan_codes, "build", build)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.opened.set()


def built(vectors: FloatMatrix) -> FaissIndex:
    index = FaissIndex(D)
    index.add(np.arange(len(vectors)), vectors)
    index.finish_build()
    return index


def test_lists_find_what_an_exact_search_finds() -> None:
    vectors = clustered(COUNT)
    index = built(vectors)
    assert (index.trained_on, index.lists) == (COUNT, 77)
    assert recall(index, vectors, clustered(100, seed=1), np.arange(COUNT)) >= 0.98
    for row in range(50):
        assert index.search(vectors[row : row + 1], 1)[0].rows.tolist() == [row]


@pytest.mark.parametrize(("share", "least"), [(0.01, 0.999), (0.1, 0.98), (0.5, 0.98), (0.9, 0.98)])
def test_filters_are_kept_to(share: float, least: float) -> None:
    vectors = clustered(COUNT)
    index = built(vectors)
    chosen = np.random.default_rng(2).choice(COUNT, int(COUNT * share), replace=False)
    assert recall(index, vectors, clustered(60, seed=1), np.sort(chosen)) >= least


@pytest.mark.parametrize("count", [0, 1])
def test_a_filter_of_many_unknown_rows_finds_nothing_else(count: int) -> None:
    index = FaissIndex(D)
    index.add(np.arange(count), clustered(count))
    (found,) = index.search(clustered(1), 3, rows=np.arange(5_000))
    assert found.rows.tolist() == list(range(count))


def test_searches_are_exact_while_the_first_codes_are_made(gate: Gate) -> None:
    vectors = clustered(COUNT)
    index = FaissIndex(D)
    index.add(np.arange(COUNT), vectors)
    assert recall(index, vectors, clustered(30, seed=1), np.arange(COUNT)) == 1
    assert (index.trained_on, gate.builds) == (0, 1)
    gate.opened.set()
    index.finish_build()
    assert index.trained_on == COUNT
    assert gate.builds == 1


def test_rows_added_and_removed_during_a_build_count_at_once(gate: Gate) -> None:
    vectors = clustered(COUNT)
    index = FaissIndex(D)
    index.add(np.arange(3_000), vectors[:3_000])
    index.search(vectors[:1], 1)
    for row in range(3_000, 4_500):
        index.add([row], vectors[row : row + 1])
        if row % 50 == 0:
            assert index.search(vectors[row : row + 1], 1)[0].rows.tolist() == [row]
        if row == 3_700:
            index.remove(np.arange(100))
            gate.opened.set()
    index.finish_build()
    for row in range(4_000, 4_500, 10):
        assert index.search(vectors[row : row + 1], 1)[0].rows.tolist() == [row]
    assert index.search(vectors[7:8], 1)[0].rows.tolist() != [7]
    assert recall(index, vectors, clustered(40, seed=1), np.arange(100, 4_500)) >= 0.98


def test_the_old_codes_answer_until_those_of_twice_as_many_rows_are_ready(gate: Gate) -> None:
    gate.opened.set()
    vectors = clustered(COUNT)
    index = built(vectors[: COUNT // 2])
    gate.opened.clear()
    index.add(np.arange(COUNT // 2, COUNT), vectors[COUNT // 2 :])
    assert recall(index, vectors, clustered(60, seed=1), np.arange(COUNT)) >= 0.98
    assert (index.trained_on, gate.builds) == (COUNT // 2, 2)
    gate.opened.set()
    index.finish_build()
    assert index.trained_on == COUNT
    assert recall(index, vectors, clustered(60, seed=1), np.arange(COUNT)) >= 0.98


def test_codes_follow_removals_and_are_made_anew_when_a_tenth_is_gone(gate: Gate) -> None:
    gate.opened.set()
    vectors = clustered(COUNT)
    index = built(vectors)
    gate.opened.clear()
    random = np.random.default_rng(3)
    gone = random.choice(COUNT, COUNT // 7, replace=False)
    left = np.setdiff1d(np.arange(COUNT), gone)
    assert index.remove(gone) == len(gone)
    assert recall(index, vectors, clustered(60, seed=1), left) >= 0.98
    assert (index.trained_on, gate.builds) == (COUNT, 2)
    gate.opened.set()
    index.finish_build()
    assert index.trained_on == len(left)
    assert recall(index, vectors, clustered(60, seed=1), left) >= 0.98


def test_positions_that_move_during_a_build_spoil_nothing(gate: Gate) -> None:
    vectors = clustered(COUNT)
    index = FaissIndex(D)
    index.add(np.arange(COUNT), vectors)
    index.search(vectors[:1], 1)
    index.remove(np.arange(0, COUNT, 3))  # positions move: what is being built is of no use
    gate.opened.set()
    index.finish_build()
    left = np.setdiff1d(np.arange(COUNT), np.arange(0, COUNT, 3))
    assert index.trained_on == len(left)
    assert recall(index, vectors, clustered(60, seed=1), left) >= 0.98


def test_closing_during_a_build_ends_it_and_searches_still_answer(gate: Gate) -> None:
    vectors = clustered(COUNT)
    index = FaissIndex(D)
    index.add(np.arange(COUNT), vectors)
    index.search(vectors[:1], 1)
    index.close()
    for thread in threading.enumerate():
        if thread.name == "hybridagi-steps-index":
            thread.join(20)
            assert not thread.is_alive()
    assert index.trained_on == 0


def test_arrays_bring_lists_back_after_a_compaction_too() -> None:
    vectors = clustered(COUNT)
    index = built(vectors)
    gone = np.random.default_rng(3).choice(COUNT, COUNT // 7, replace=False)
    index.remove(gone)
    arrays = index.to_arrays()
    left = np.setdiff1d(np.arange(COUNT), gone)
    revived = FaissIndex.from_arrays(D, arrays)
    assert revived.trained_on == index.trained_on
    assert recall(revived, vectors, clustered(40, seed=1), left) >= 0.98


def test_codes_whose_places_do_not_fit_are_refused() -> None:
    arrays = built(clustered(COUNT)).to_arrays()
    with pytest.raises(DamagedFileError, match="places"):
        FaissIndex.from_arrays(D, arrays | {"places": np.arange(7)})


def test_codes_that_cannot_be_built_are_named_and_searches_stay_exact(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(vectors: FloatMatrix) -> scan_codes.Building:
        yield
        raise MemoryError("no room for centres")

    monkeypatch.setattr(scan_codes, "_centres", fail)
    vectors = clustered(COUNT)
    index = built(vectors)
    assert "no room for centres" in caplog.text
    assert recall(index, vectors, clustered(20, seed=1), np.arange(COUNT)) == 1


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("dimension", [3, 6, 50])
def test_any_dimension_can_be_encoded(lists: bool, dimension: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((900, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pieces = scan_codes.build(lambda: vectors, lists=lists)
    codes: ScanCodes | None = None
    while codes is None:
        try:
            next(pieces)
        except StopIteration as end:
            codes = end.value
    assert codes.count == 900
    assert 5 in codes.nearest(vectors[5], 40, 1.0)


FORK = """
    import os, threading, time, warnings
    import numpy as np
    from hybridagi_steps.search import quantized_codes, vector_index
    from hybridagi_steps.search.vector_index import FaissIndex
    warnings.simplefilter("ignore")
    vector_index.LISTS_FROM, quantized_codes.PIECE = 2_000, 100
    vectors = np.random.default_rng(0).standard_normal((40_000, 64)).astype(np.float32)
    index = FaissIndex(64)
    index.add(np.arange(40_000), vectors)
    forked_during_build = 0
    for attempt in range(8):
        index.search(vectors[:1], 1)
        time.sleep(0.02 * attempt)
        forked_during_build += index.trained_on == 0
        child = os.fork()
        if child == 0:
            ok = index.search(vectors[7:8], 1)[0].rows.tolist() == [7]
            index.finish_build()
            ok = ok and index.trained_on == 40_000
            ok = ok and index.search(vectors[8:9], 1)[0].rows.tolist() == [8]
            os._exit(0 if ok else 3)
        assert os.waitpid(child, 0)[1] == 0, "the child answered wrongly"
    assert forked_during_build
    print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_forked_during_a_build_searches_and_builds_its_own() -> None:
    assert _run(FORK) == ("fine", 0)


LEAVE = """
    import numpy as np
    from hybridagi_steps.search import quantized_codes
    from hybridagi_steps.search.vector_index import FaissIndex
    quantized_codes.PIECE = 10
    vectors = np.random.default_rng(0).standard_normal((60_000, 64)).astype(np.float32)
    index = FaissIndex(64)
    index.add(np.arange(60_000), vectors)
    index.search(vectors[:1], 1)
    print("fine", flush=True)
"""


def test_a_program_that_ends_during_a_build_ends_cleanly() -> None:
    assert _run(LEAVE) == ("fine", 0)


def _run(script: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.strip(), done.returncode


def codes_by_row(index: FaissIndex) -> dict[int, bytes]:
    """Return the code of each row that a cache file would have, lists or none."""
    arrays = index.to_arrays()
    codes: Any = scan_codes.ScanCodes.from_arrays(arrays)
    faiss: Any
    faiss, found, rows = scan_codes.faiss, codes._index, arrays["rows"].tolist()
    places = list(range(codes.total)) if codes._places is None else codes._places.tolist()

    def unpacked(packer: Any, pointer: Any, ids: list[int]) -> dict[int, bytes]:
        size = -(-len(ids) // packer.nvec) * packer.block_size
        blocks = faiss.rev_swig_ptr(pointer, size).reshape(-1, packer.block_size)
        each: dict[int, bytes] = {}
        for n, slot in enumerate(ids):
            block = blocks[n // packer.nvec : n // packer.nvec + 1]
            each[rows[places[slot]]] = packer.unpack_1(block, n % packer.nvec).tobytes()
        return each

    if not codes.lists:
        return unpacked(found.get_CodePacker(), found.codes.get(), list(range(codes.total)))
    inverted, told = faiss.downcast_InvertedLists(found.invlists), dict[int, bytes]()
    for number in range(codes.lists):
        ids = faiss.rev_swig_ptr(inverted.get_ids(number), inverted.list_size(number)).tolist()
        told |= unpacked(inverted.packer, inverted.get_codes(number), ids)
    return told


@pytest.mark.parametrize("lists_from", [2_000, 10**9], ids=["lists", "flat"])
@pytest.mark.parametrize("whole_numbers", [True, False])
def test_what_is_removed_is_in_no_array_that_is_saved(
    monkeypatch: pytest.MonkeyPatch, lists_from: int, whole_numbers: bool
) -> None:
    monkeypatch.setattr(faiss_index, "LISTS_FROM", lists_from)
    vectors = clustered(COUNT)
    index = FaissIndex(D)
    index.add(np.arange(COUNT), shortened(vectors) if whole_numbers else vectors)
    index.finish_build()
    stored, codes = index.to_arrays()["vectors"].copy(), codes_by_row(index)
    gone = np.array([5, 1_234, COUNT - 1])
    for again in range(2):  # once as it was built, once as a cache file brought it back
        before = index.search(vectors[77:78], 5)[0]
        index.remove(gone)
        arrays, left = index.to_arrays(), codes_by_row(index)
        for row in gone.tolist():
            assert not (arrays["vectors"] == stored[row]).all(axis=1).any()
            assert left[row] == bytes(len(codes[row])) != codes[row]
        alive = np.setdiff1d(np.arange(COUNT), gone)
        np.testing.assert_array_equal(arrays["vectors"][alive], stored[alive])
        assert all(left[row] == codes[row] for row in alive.tolist())
        index = FaissIndex.from_arrays(D, arrays)
        found = index.search(vectors[77:78], 5)[0]
        np.testing.assert_array_equal(found.rows, before.rows)
        np.testing.assert_array_equal(found.scores, before.scores)
        gone = np.append(gone, [100 + again])


def test_a_wide_filter_is_settled_by_one_scan_of_codes_and_not_by_all_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a file each vector of the filter would be read by the first search that scans it."""
    vectors = clustered(COUNT)
    index = built(vectors)
    chosen = np.sort(np.random.default_rng(2).choice(COUNT, COUNT // 4, replace=False))
    monkeypatch.setattr(faiss_index, "FETCH", 20)
    scans, looked_at = list[int](), list[int]()
    nearest, read = ScanCodes.nearest, VectorStore.read

    def counted(codes: ScanCodes, query: FloatVector, limit: int, wideness: float) -> Positions:
        scans.append(limit)
        return nearest(codes, query, limit, wideness)

    def reading(store: VectorStore, positions: Positions | slice) -> FloatMatrix:
        looked_at.append(COUNT if isinstance(positions, slice) else len(positions))
        return read(store, positions)

    monkeypatch.setattr(ScanCodes, "nearest", counted)
    monkeypatch.setattr(VectorStore, "read", reading)
    queries = clustered(30, seed=1)
    for rows, least in ((chosen, 0.98), (None, 0.98)):
        found = index.search(queries, 6, rows=rows)
        within = np.arange(COUNT) if rows is None else rows
        kth = np.sort(vectors[within] @ queries.T, axis=0)[-6]
        hits = [each.scores >= worst - 2e-6 for each, worst in zip(found, kth, strict=True)]
        assert np.mean(hits) >= least
    assert len(scans) <= 1.2 * 2 * len(queries)
    assert max(looked_at) < len(chosen) // 2


def test_codes_with_an_empty_list_forget_what_is_gone() -> None:
    """Where many vectors are alike some lists have none."""
    few = np.repeat(clustered(12), 300, axis=0)
    index = FaissIndex(D)
    index.add(np.arange(len(few)), few)
    index.finish_build()
    codes = index._codes  # pyright: ignore[reportPrivateUsage]
    assert codes is not None
    assert codes.lists
    index.remove(np.arange(50))
    arrays = index.to_arrays()
    assert np.count_nonzero(arrays["alive"]) == len(few) - 50
