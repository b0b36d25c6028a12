"""The vector index against a brute-force oracle: whatever way it takes, the answer is the same."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridagi_steps.errors import (
    DamagedFileError,
    DimensionMismatchError,
    InvalidVectorError,
    VectorError,
)
from hybridagi_steps.records.store_values import FloatMatrix, Rows
from hybridagi_steps.search import vector_index as faiss_index
from hybridagi_steps.search.vector_index import FaissIndex, ScoredRows


def clustered(count: int, dimension: int, seed: int = 0) -> FloatMatrix:
    """Unit vectors around shared centres, as texts about the same things have them."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(5, count // 50), dimension))
    vectors = centres[random.integers(0, len(centres), count)]
    vectors = vectors + 0.7 * random.standard_normal((count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class Oracle:
    """The answers by definition: every cosine in float64, sorted."""

    def __init__(self, dimension: int) -> None:
        self.held: dict[int, FloatMatrix] = {}
        self.dimension = dimension

    def add(self, rows: Rows, vectors: FloatMatrix) -> None:
        self.held.update(zip(rows.tolist(), vectors, strict=True))

    def remove(self, rows: Rows) -> int:
        return sum(self.held.pop(row, None) is not None for row in set(rows.tolist()))

    def search(self, query: FloatMatrix, k: int, rows: Rows | None = None) -> ScoredRows:
        wanted = set(self.held) if rows is None else set(self.held) & set(rows.tolist())
        order = np.array(sorted(wanted), np.int64)
        if not len(order):
            return ScoredRows(order, np.empty(0, np.float32))
        matrix = np.stack([self.held[row] for row in order.tolist()]).astype(np.float64)
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        scores = matrix @ (query / np.linalg.norm(query.astype(np.float64)))
        best = np.argsort(-scores.round(6), kind="stable")[:k]
        return ScoredRows(order[best], scores[best].astype(np.float32))


def assert_same(found: ScoredRows, expected: ScoredRows) -> None:
    assert len(found.rows) == len(expected.rows)
    np.testing.assert_allclose(found.scores, expected.scores, atol=2e-6)
    differing = found.rows != expected.rows  # may only swap among scores that are equal to 1e-6
    np.testing.assert_allclose(found.scores[differing], expected.scores[differing], atol=2e-6)
    assert (np.diff(found.scores) <= 0).all()
    assert len(set(found.rows.tolist())) == len(found.rows)


@pytest.fixture
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every tier come into play with a few hundred vectors."""
    with monkeypatch.context() as patch:
        _small_tiers(patch)
        yield


def _small_tiers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(faiss_index, "CODES_FROM_BYTES", 4 * 16 * 60)
    patch.setattr(faiss_index, "FETCH", 48)
    patch.setattr(faiss_index, "LARGEST_FETCH", 0.4)
    patch.setattr(faiss_index, "CODE_BATCH", 40)


def operations() -> st.SearchStrategy[list[tuple[str, list[int]]]]:
    rows = st.lists(st.integers(0, 400), min_size=1, max_size=120)
    names = st.sampled_from(["add", "add_next", "add_next", "remove", "build", "search", "filter"])
    return st.lists(st.tuples(names, rows), min_size=1, max_size=14)


@settings(max_examples=150, deadline=None)
@given(operations(), st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_every_history_answers_like_the_oracle(
    history: list[tuple[str, list[int]]], seed: int, k: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _small_tiers(patch)
        index, oracle, next_row = FaissIndex(16), Oracle(16), 1000
        random = np.random.default_rng(seed)
        for name, numbers in history:
            rows = np.array(numbers, np.int64)
            vectors = (random.integers(-2, 3, (len(rows), 16)) + 0.01).astype(np.float32)
            if name == "add_next":
                rows = np.arange(next_row, next_row + len(rows))
                next_row += len(rows)
            if name.startswith("add"):
                index.add(rows, vectors)
                oracle.add(rows, vectors)
            elif name == "remove":
                assert index.remove(rows) == oracle.remove(rows)
            elif name == "build":
                index.finish_build()
            else:
                scope = (
                    None if name == "search" else np.unique(np.append(rows, np.arange(1000, 1200)))
                )
                found = index.search(vectors[:2], k, rows=scope)
                for query, result in zip(vectors[:2], found, strict=True):
                    expected = oracle.search(query, k, scope)
                    # codes may miss one of many near equals; scores must be those of real rows
                    exact = index.similarities(query, result.rows)
                    np.testing.assert_array_equal(exact, result.scores)
                    assert len(result.rows) == len(expected.rows)
                    close = result.scores >= expected.scores - 2e-6
                    assert np.count_nonzero(~close) <= (k // 10 if len(index) > 60 else 0)
            assert len(index) == len(oracle.held)


def test_recall_on_many_clustered_vectors_is_that_of_the_oracle() -> None:
    vectors = clustered(30_000, 128)
    index = FaissIndex(128)
    index.add(np.arange(30_000), vectors)
    index.finish_build()
    queries = clustered(60, 128, seed=1) * 0.3 + vectors[:60]
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    kth = np.sort(queries @ vectors.T, axis=1)[:, -10]
    found = index.search(queries, 10)
    hits = [result.scores >= worst - 2e-6 for result, worst in zip(found, kth, strict=True)]
    assert np.mean(hits) >= 0.99


@pytest.mark.usefixtures("small_tiers")
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.6, 0.95])
def test_a_filter_of_any_width_is_answered_within_it(share: float) -> None:
    vectors = clustered(2_000, 64)
    rows = np.arange(2_000) * 7 + 3
    index, oracle = FaissIndex(64), Oracle(64)
    index.add(rows, vectors)
    index.finish_build()
    oracle.add(rows, vectors)
    chosen = np.sort(np.random.default_rng(4).choice(rows, int(2_000 * share), replace=False))
    for query in vectors[:20]:
        (found,) = index.search(query[None], 5, rows=chosen)
        assert set(found.rows.tolist()) <= set(chosen.tolist())
        assert_same(found, oracle.search(query, 5, chosen))


@pytest.mark.parametrize("codes", [False, True])
def test_a_narrow_filter_asked_again_sees_what_has_changed_since(
    codes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_index, "CODES_FROM_BYTES", (100 if codes else 1_000) * 4 * 8)
    index, oracle = FaissIndex(8), Oracle(8)
    vectors = clustered(400, 8)
    rows, query = np.arange(0, 60, 3), vectors[:1]

    def agree() -> None:
        for _ in range(3):  # listed, gathered, kept
            (found,) = index.search(query, 5, rows=rows)
            assert_same(found, oracle.search(query[0], 5, rows))
            frozen = rows.copy()
            frozen.flags.writeable = False
            other = frozen[::2].copy()
            other.flags.writeable = False
            for asked in [frozen] * 3 + [other, frozen] * 3:  # the same again, and in turn
                (found,) = index.search(query, 5, rows=asked)
                assert_same(found, oracle.search(query[0], 5, asked))

    for held in (index, oracle):
        held.add(np.arange(400), vectors)
    index.finish_build()
    assert bool(index.trained_on) == codes
    agree()
    for held in (index, oracle):
        held.remove(np.arange(0, 30, 2))
    agree()
    for held in (index, oracle):
        held.add(np.arange(0, 9), vectors[-9:])
    agree()
    rows[:] = np.arange(200, 220)
    agree()


@pytest.mark.usefixtures("small_tiers")
@pytest.mark.parametrize("scale", [1, 1_000, 2**40])
def test_a_wide_filter_of_rows_in_any_order_and_spread_sees_no_removed_row(scale: int) -> None:
    vectors = clustered(900, 16)
    rows = np.random.default_rng(1).permutation(900) * scale - 50 * scale
    index, oracle = FaissIndex(16), Oracle(16)
    for holder in (index, oracle):
        holder.add(rows, vectors)
        holder.remove(rows[:30])
        holder.add(rows[60:90], vectors[:30])
    index.finish_build()
    chosen = np.sort(np.append(rows[10:700], [10_000 * scale, -(10_000 * scale)]))
    for query in vectors[:20]:
        (found,) = index.search(query[None], 5, rows=chosen)
        assert_same(found, oracle.search(query, 5, chosen))


@pytest.mark.usefixtures("small_tiers")
def test_equal_vectors_come_in_row_order_even_beyond_the_candidates() -> None:
    vectors = clustered(1_500, 16)
    vectors[200:900] = vectors[0]
    order = np.random.default_rng(0).permutation(1_500)
    index = FaissIndex(16)
    index.add(order, vectors[order])
    index.finish_build()
    (found,) = index.search(vectors[:1], 12)
    assert found.rows.tolist() == [0, *range(200, 211)]
    assert found.scores.tolist() == [1.0] * 12


@pytest.mark.usefixtures("small_tiers")
def test_fresh_and_removed_rows_count_at_once() -> None:
    vectors = clustered(600, 16)
    index = FaissIndex(16)
    index.add(np.arange(500), vectors[:500])
    index.finish_build()
    index.add(np.array([500]), vectors[500:501])
    assert index.search(vectors[500:501], 1)[0].rows.tolist() == [500]
    assert index.remove(np.array([500, 500, 99_999])) == 1
    assert index.search(vectors[500:501], 1)[0].rows.tolist() != [500]
    assert index.remove(np.arange(500)) == 500
    assert len(index) == 0
    assert index.search(vectors[:1], 3)[0].rows.tolist() == []
    index.add(np.arange(500), vectors[:500])
    assert index.search(vectors[7:8], 1)[0].rows.tolist() == [7]


def test_an_empty_index_finds_nothing_and_a_large_k_finds_all() -> None:
    index = FaissIndex(3)
    assert index.search(np.eye(3)[:2], 4)[1].rows.tolist() == []
    index.add([5, 2], [[0, 2, 0], [3, 0, 0]])
    (found,) = index.search([[1.0, 0.0, 0.0]], 10)
    assert (found.rows.tolist(), found.scores.tolist()) == ([2, 5], [1.0, 0.0])
    (twice,) = index.search([[1.0, 0.0, 0.0]], 10, rows=np.array([5, 2, 5]))
    assert twice.rows.tolist() == [2, 5]
    (none,) = index.search([[1.0, 0.0, 0.0]], 10, rows=np.array([3, 4]))
    assert none.rows.tolist() == []


def test_similarities_are_exact_and_nan_for_unknown_rows() -> None:
    index = FaissIndex(2)
    index.add([1, 2], [[10, 0], [1, 1]])
    scores = index.similarities(np.array([5, 0]), np.array([2, 9, 1]))
    np.testing.assert_allclose(scores, [np.sqrt(0.5), np.nan, 1.0], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0])
def test_a_vector_without_direction_is_refused_and_nothing_is_added(bad: float) -> None:
    index = FaissIndex(3)
    vectors = np.ones((4, 3), np.float32)
    vectors[2] = bad
    with pytest.raises(InvalidVectorError, match="2 of 4"):
        index.add(np.arange(4), vectors)
    with pytest.raises(InvalidVectorError):
        index.search(vectors[2:3], 1)
    assert len(index) == 0


def test_a_wrong_dimension_is_refused_and_nothing_is_added() -> None:
    index = FaissIndex(3)
    with pytest.raises(DimensionMismatchError, match="4 dimensions, this memory holds 3"):
        index.add(np.arange(2), np.ones((2, 4)))
    with pytest.raises(DimensionMismatchError):
        index.search(np.ones((1, 2)), 1)
    with pytest.raises(DimensionMismatchError):
        index.similarities(np.ones(2), np.array([1]))
    with pytest.raises(VectorError, match="rows"):
        index.add(np.arange(3), np.ones((2, 3)))
    with pytest.raises(VectorError, match="k is 0"):
        index.search(np.ones((1, 3)), 0)
    assert len(index) == 0


def test_very_large_and_very_small_vectors_keep_their_direction() -> None:
    index = FaissIndex(2)
    index.add([1, 2], np.array([[1e30, 1e30], [1e-30, 0]], np.float32))
    (found,) = index.search(np.array([[1e-38, 0]], np.float32), 2)
    np.testing.assert_allclose(found.scores, [1, np.sqrt(0.5)], rtol=1e-6)


@pytest.mark.usefixtures("small_tiers")
def test_arrays_bring_the_same_index_back_and_are_never_written_to() -> None:
    vectors = clustered(700, 16)
    index = FaissIndex(16)
    index.add(np.arange(700), vectors)
    index.finish_build()
    index.remove(np.arange(20, 40))
    arrays = index.to_arrays()
    for array in arrays.values():
        array.flags.writeable = False
    before = {name: array.copy() for name, array in arrays.items()}
    revived = FaissIndex.from_arrays(16, arrays)
    assert revived.search(vectors[:9], 5)[3].rows.tolist() == (
        index.search(vectors[:9], 5)[3].rows.tolist()
    )
    revived.remove(np.arange(5))
    revived.add(np.arange(1_000, 1_100), vectors[:100])
    assert revived.search(vectors[:1], 1)[0].rows.tolist() == [1_000]
    assert len(revived) == 775
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.usefixtures("small_tiers")
def test_codes_of_another_faiss_are_made_anew() -> None:
    vectors = clustered(700, 16)
    index = FaissIndex(16)
    index.add(np.arange(700), vectors)
    expected = index.search(vectors[:1], 5)[0].rows.tolist()
    strange = {"codes": np.arange(9, dtype=np.uint8), "codes_maker": np.zeros(3, np.uint8)}
    revived = FaissIndex.from_arrays(16, index.to_arrays() | strange)
    assert revived.trained_on == 0
    assert revived.search(vectors[:1], 5)[0].rows.tolist() == expected


def test_arrays_that_do_not_fit_are_refused() -> None:
    index = FaissIndex(4)
    index.add(np.arange(3), np.eye(4)[:3])
    arrays = index.to_arrays()
    with pytest.raises(DamagedFileError, match="dimensions"):
        FaissIndex.from_arrays(5, arrays)
    with pytest.raises(DamagedFileError, match="lack codes_maker"):
        FaissIndex.from_arrays(4, arrays | {"codes": np.zeros(9, np.uint8)})
    with pytest.raises(DamagedFileError, match="lacks vectors"):
        FaissIndex.from_arrays(4, {"rows": arrays["rows"], "alive": arrays["alive"]})
    with pytest.raises(DamagedFileError):
        FaissIndex.from_arrays(4, arrays | {"rows": arrays["rows"][:2]})


@pytest.mark.usefixtures("small_tiers")
def test_threads_may_search_while_others_add_and_remove() -> None:
    vectors = clustered(4_000, 16)
    index = FaissIndex(16)
    index.add(np.arange(500), vectors[:500])
    wrong: list[object] = []

    def search() -> None:
        try:
            for at in range(200):
                (found,) = index.search(vectors[at : at + 1], 3)
                if found.rows[0] != at or found.scores[0] < 0.999999:
                    wrong.append(found)
        except Exception as error:
            wrong.append(error)

    searchers = [threading.Thread(target=search) for _ in range(3)]
    for thread in searchers:
        thread.start()
    for start in range(500, 4_000, 100):
        index.add(np.arange(start, start + 100), vectors[start : start + 100])
        index.remove(np.arange(start, start + 30))
    for thread in searchers:
        thread.join(60)
    assert wrong == []
    assert len(index) == 4_000 - 35 * 30


FORK = """
    import os, sys, threading, warnings
    import faiss, numpy as np
    from hybridagi_steps.search.vector_index import FaissIndex
    warnings.simplefilter("ignore")
    vectors = np.random.default_rng(0).standard_normal((30_000, 128)).astype(np.float32)
    index = FaissIndex(128)
    index.add(np.arange(30_000), vectors)
    if "threads" in sys.argv:  # the user's own multi-threaded use of FAISS
        faiss.omp_set_num_threads(4)
        flat = faiss.IndexFlatL2(128); flat.add(vectors); flat.search(vectors[:500], 5)
    if "searched" in sys.argv:
        index.finish_build()
        assert index.search(vectors[3:4], 2)[0].rows[0] == 3
        assert "threads" not in sys.argv or faiss.omp_get_max_threads() == 4
    stop, worker = threading.Event(), None
    def busy():
        while not stop.is_set():
            index.search(vectors[:4], 5)
            index.add(np.array([40_000]), vectors[:1])
    if "busy" in sys.argv:
        index.finish_build()
        worker = threading.Thread(target=busy, daemon=True)
        worker.start()
    for attempt in range(5):
        child = os.fork()
        if child == 0:
            index.add(np.arange(50_000, 53_000), vectors[:3_000] * 2)
            ok = index.search(vectors[7:8], 2)[0].rows.tolist() == [7, 50_007]
            os._exit(0 if ok else 3)
        assert os.waitpid(child, 0)[1] == 0, "the child answered wrongly"
    stop.set()
    if worker:  # Python kills a daemon thread as it ends, which FAISS does not survive
        worker.join()
    print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(
    "history", [[], ["searched"], ["threads"], ["threads", "searched"], ["busy"]]
)
def test_a_forked_child_searches_and_adds(history: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK), *history],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("fine", 0), done.stderr


def test_it_is_a_vector_index() -> None:
    index = FaissIndex(4)
    assert len(index) == 0
