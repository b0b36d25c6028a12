"""The vector index: one planner over exact search and four-bit codes with an exact second look.

All scores are exact cosines of float32 unit vectors, whichever way was taken; only which rows are
looked at can be estimated. A search takes the cheapest way that is right for it:

* a narrow filter, or few rows: an exact product over just these rows;
* else the codes name candidates, scored exactly together with the rows not yet encoded. If one of
  the best k stands outside the nearer half of the candidates, more may stand beyond the last:
  twice as many are fetched, and again; where that takes longer, everything is scanned.
  A wide filter and tombstones thin the candidates out, so more are fetched, from more lists.

Codes are built when a search first wants them, and anew when the rows have doubled or a tenth of
the codes stands for rows that are gone, in a thread of its own: until it ends the old codes answer
or, if there are none, an exact scan. One lock serialises everything else; it is whole after a fork.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps._concurrency import ForkSafeLock, rest_first_at_fork
from hybridagi_steps.embedders.vectors import (
    Stored,
    exact_similarities,
    pieces,
    products,
    stored_rows,
    unit_rows,
    unpacked,
)
from hybridagi_steps.errors import DamagedFileError, VectorError
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows, distinct
from hybridagi_steps.search.index_cache import DamagedCacheError, unread
from hybridagi_steps.search.vector_rows import Mask, Positions, VectorStore

if TYPE_CHECKING:
    from hybridagi_steps.search.quantized_codes import Building, ScanCodes

# Measured with one thread, 256 dimensions, k = 10, on steps that the benchmark makes up, in ms
# beside a numpy product with a partition: 4,000 rows .09 / .09; 10,000 .11 / .2; 100,000 .6 / 4.5,
# all at recall 1; 250,000 rows 1.9 without lists, .6 with them, 500,000 rows 3.6 and .95 / 20.
CODES_FROM_BYTES = 4 * 2**20
"""Size of the vectors searched from which codes are asked instead of scanning them."""
LISTS_FROM = 2**18
"""Rows from which codes are cut into lists, of which a search scans the nearest: beyond, the codes
no longer fit the processor's cache. What is lost is stated at `LISTS_SEARCHED`."""
CODE_BATCH = 2_048
"""Fresh rows are scanned exactly until there are so many, then encoded at once."""
FETCH = 160
"""Candidates fetched first; at least `FETCH_PER_RESULT` per result wanted. With 80 more searches
need a second look, with 320 the first takes longer; both are slower at 10,000 and 100,000 rows."""
FETCH_PER_RESULT, WIDER, NEAR_SHARE = 8, 2, 2
"""When those at hand do not settle it, `WIDER` times as many are fetched; they do if the best k
stand among one in `NEAR_SHARE` of them. With 10, 3 and 4 more than twice as many vectors are looked
at, each that no search of the process has looked at yet is read from the file, and a fraction of a
thousandth more of the best 50 found; `benchmarks search` prints recall@50. The best 50 of 100,000
steps of real words took 2.4 fetches with 4 per result, 1.6 with 8, for vectors 3 % more."""
LISTS_FETCH_PER_RESULT = 16
"""The same where codes are cut into lists: scanning them takes as long for 500 as for 5,000
candidates, so a second fetch costs as much as the first."""
LARGEST_FETCH, NARROW_FETCH = 0.1, 0.1
"""Share of the rows searched from which fetching candidates takes longer than scoring all; and from
which the first `FETCH` of them do, which makes a filter narrow."""
LISTS_LARGEST_FETCH = 0.5
"""The same of codes in lists, whose scan takes 6 ms for 500 and 10 for 40,000 of a million rows,
where scoring a tenth of them takes 8 ms, and 300 if their vectors are still in the file."""
COMPACT_SHARE = 0.1
"""Share of dead positions from which they are dropped, and of dead codes, from which all are made
anew."""
TIE_SLACK = 4e-6
"""More than float32 products of unit vectors are off by: what is closer is compared exactly."""

_LISTED = 128
"""Narrow scopes that are remembered, at most."""

log = logging.getLogger("hybridagi_steps")


class Scope(NamedTuple):
    """The positions a search may answer with: listed, or marked, or (both None) all of them."""

    positions: Positions | None
    vectors: FloatMatrix | None
    """Those of `positions`, side by side."""
    allowed: Mask | None
    size: int

    def among(self, positions: Positions) -> Positions:
        """Return those of some positions that are marked."""
        return positions if self.allowed is None else positions[self.allowed[positions]]


class Scopes:
    """Turns rows into scopes; remembers narrow ones of rows that cannot change.

    Args:
        store: Where the rows stand.
        kept_rows: Most rows whose vectors are kept side by side.
    """

    def __init__(self, store: VectorStore, kept_rows: int) -> None:
        self._store, self._kept_rows = store, kept_rows
        self._last: tuple[Rows, Scope] | None = None
        self._listed_before: dict[int, tuple[Rows, Scope]] = {}

    def forget(self) -> None:
        """Drop what is remembered: rows have come or gone."""
        self._last = None
        self._listed_before.clear()

    def of(self, rows: Rows | None, narrow: int, *, gather: bool) -> Scope:
        """Return the scope of some rows; None: of all.

        Args:
            rows: Row numbers; unknown ones are skipped.
            narrow: Up to so many rows are listed, more are marked.
            gather: Lay vectors side by side at once, not only when rows are asked for again.
        """
        store = self._store
        if rows is None:
            return Scope(None, None, store.alive if store.dead else None, len(store))
        rows = np.asarray(rows, np.int64)
        if len(rows) > narrow:
            allowed = store.holding(rows)
            return Scope(None, None, allowed, int(np.count_nonzero(allowed)))
        if self._last is not None and np.array_equal(self._last[0], rows):
            kept, scope = self._last
            gather = True
        elif _is_frozen(rows):
            kept, scope = self._remembered(rows)
        else:
            kept, scope = rows.copy(), self._listed(rows)
        if gather and scope.vectors is None:
            scope = self._gathered(scope)
        self._last = kept, scope
        return scope

    def _remembered(self, rows: Rows) -> tuple[Rows, Scope]:
        """Return the rows of a filter, which are one array as long as it remembers them, listed."""
        known = self._listed_before.pop(id(rows), None) or (rows, self._listed(rows))
        if len(self._listed_before) >= min(_LISTED, self._store.count // max(1, len(rows))):
            self._listed_before.clear()
        self._listed_before[id(rows)] = known
        return known

    def _listed(self, rows: Rows) -> Scope:
        if (rows[1:] <= rows[:-1]).any():  # a row given twice must not be found twice
            rows = distinct(rows)
        positions = self._store.positions(rows)
        positions = positions[positions >= 0]
        return Scope(positions, None, None, len(positions))

    def _gathered(self, scope: Scope) -> Scope:
        positions = scope.positions
        if positions is None or len(positions) > min(self._kept_rows, self._store.count // 4):
            return scope
        return scope._replace(vectors=self._store.at(positions))


def _is_frozen(rows: Rows) -> bool:
    """Tell whether an array cannot be changed: then it need not be copied or compared."""
    return rows.base is None and not rows.flags.writeable


class ScoredRows(NamedTuple):
    """Rows with their scores, best first; ties go to the row stored first."""

    rows: Rows
    scores: FloatVector


class FaissIndex:
    """Searches unit vectors by cosine similarity."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.exact = False
        """Whether searches look at every vector, with codes or without."""
        self._store = VectorStore(dimension)
        self._codes: ScanCodes | None = None
        self._build: CodeBuild | None = None
        self._exact_rows = CODES_FROM_BYTES // (4 * max(1, dimension))  # 0 before the first vector
        self._scopes = Scopes(self._store, self._exact_rows)
        self._lock = ForkSafeLock()

    def __len__(self) -> int:
        """Number of rows held."""
        with self._lock:
            return len(self._store)

    def add(self, rows: npt.ArrayLike, vectors: npt.ArrayLike) -> None:
        """Add vectors, replacing rows already held; of a row given twice the last counts.

        Args:
            rows: Row numbers, shape (n,).
            vectors: Shape (n, d), of any length above zero. Whole numbers of two bytes are kept as
                they are until they are looked at, others normalised here.
        """
        row_numbers = np.asarray(rows, np.int64)
        if not len(row_numbers):
            return
        stored = stored_rows(vectors, self.dimension, where="vector")
        if row_numbers.shape != (len(stored),):
            raise VectorError(f"{row_numbers.shape} rows were given for {len(stored)} vectors.")
        with self._lock:
            self._scopes.forget()
            self._store.append(row_numbers, stored)
            self._compact_if_worth_it()

    def expect(self, count: int) -> None:
        """Take note that about so many rows will be added."""
        with self._lock:
            self._store.expected = self._store.count + count

    def remove(self, rows: npt.ArrayLike) -> int:
        """Forget rows; unknown ones are skipped. Returns how many were held."""
        with self._lock:
            self._scopes.forget()
            removed = self._store.remove(np.asarray(rows, np.int64))
            self._compact_if_worth_it()
            return removed

    def search(
        self, queries: npt.ArrayLike, k: int, *, rows: Rows | None = None
    ) -> list[ScoredRows]:
        """Return up to k most similar rows per query.

        Args:
            queries: Shape (q, d), of any length above zero.
            k: Most results wanted per query; at least 1.
            rows: Search among these only; unknown ones are skipped.

        Returns:
            One result per query, best first; exact cosines in [-1, 1], ties go to the lower row.

        Complexity: O(d) per row of a narrow filter or a small index, else about O(d / 32) per row.
        """
        if k < 1:
            raise VectorError(f"k is {k}; ask for at least 1 result.")
        units = unit_rows(queries, self.dimension, where="query")
        with self._lock:
            scope = self._scope(rows)
            return [self._search_one(query, k, scope) for query in units]

    def similarities(self, query: npt.ArrayLike, rows: npt.ArrayLike) -> FloatVector:
        """Return the exact cosine of `query` with each row, NaN for rows not held."""
        unit = unit_rows(np.asarray(query)[None], self.dimension, where="query")[0]
        with self._lock:
            positions = self._store.positions(np.asarray(rows, np.int64))
            held = positions >= 0
            scores = np.full(len(positions), np.nan, np.float32)
            scores[held] = exact_similarities(unit, self._store.at(positions[held]))
            return scores

    @property
    def trained_on(self) -> int:
        """How many rows there were when the codes were learnt; 0: there are none."""
        with self._lock:
            return 0 if self._codes is None else self._codes.trained_on

    @property
    def lists(self) -> int:
        """Number of lists the codes are cut into; 0: none."""
        with self._lock:
            return 0 if self._codes is None else self._codes.lists

    @property
    def building(self) -> bool:
        """Whether codes are being built."""
        with self._lock:
            return self._build is not None and self._build.going_on

    def finish_build(self) -> None:
        """Make the codes that searches want; wait for those that are being made."""
        with self._lock:
            if len(self._store) <= self._exact_rows:
                return
            self._build_if_outdated()
            build = self._build
        if build is not None:
            build.wait()
        with self._lock:
            while self._codes is not None and self._encode_fresh(self._codes):
                pass

    def close(self) -> None:
        """Abandon a build that is going on: it ends after the piece at hand."""
        with self._lock:
            if self._build is not None:
                self._build.abandon()

    def to_arrays(self, *, patched: bool = False) -> dict[str, Any]:
        """Return everything as arrays for a cache file; views that later writes leave alone.

        Codes are made for it where searches want them: else every process would make its own.

        Args:
            patched: Whether vectors that stand in a file may be one that is `Patched`.
        """
        self.finish_build()
        with self._lock:
            store, codes = self._store, self._codes
            arrays: dict[str, Any] = {
                "rows": store.rows,
                "vectors": store.saved if patched else store.stored,
                "alive": store.alive.copy(),
            }
            if codes is None:
                return arrays
            codes.forget(np.flatnonzero(~store.alive))
            return arrays | codes.to_arrays()

    @classmethod
    def from_arrays(cls, dimension: int, arrays: Mapping[str, npt.NDArray[Any]]) -> FaissIndex:
        """Revive what `to_arrays` gave, without copying: read-only arrays are fine.

        Of a file vectors are read as searches look at them; they raise DamagedCacheError then.

        The arrays must come from a checked file: FAISS does not survive damaged codes.
        """
        if missing := {"rows", "vectors", "alive"} - arrays.keys():
            raise DamagedFileError(f"the cached index lacks {', '.join(sorted(missing))}.")
        vectors, paged = unread(arrays, "vectors", unpacked)
        store = VectorStore.restore(arrays["rows"], paged or vectors, arrays["alive"])
        index = cls(dimension)
        index._store, index._scopes = store, Scopes(store, index._exact_rows)
        with index._lock:  # a fork waits: a child would wait for ever for an import it cannot end
            codes = _codes_of(arrays)
        code_dimension = dimension if codes is None else codes.dimension
        if not dimension == store.dimension == code_dimension:
            raise DamagedFileError(
                f"the cached index has {store.dimension} dimensions, {dimension} were expected."
            )
        if codes is not None and codes.count > store.count:
            raise DamagedFileError("the cached index has more codes than vectors.")
        index._codes = codes
        return index

    # -- under the lock ---------------------------------------------------------------------------

    def _scope(self, rows: Rows | None) -> Scope:
        # Of fewer rows than this the codes would have to name more than are worth fetching.
        fetched = isqrt(int(FETCH * self._store.count / NARROW_FETCH))
        narrow = max(self._exact_rows, fetched)
        return self._scopes.of(rows, narrow, gather=self._codes is None)

    def _search_one(self, query: FloatVector, k: int, scope: Scope) -> ScoredRows:
        if scope.positions is not None or scope.size <= max(k, self._exact_rows):
            return self._exact(query, k, scope)
        codes = None if self.exact else self._current_codes()
        if codes is None:
            return self._exact(query, k, scope)
        fresh = self._fresh(query, codes.count, scope.allowed)
        thinness = max(codes.total, self._store.count) / scope.size
        per_result = LISTS_FETCH_PER_RESULT if codes.lists else FETCH_PER_RESULT
        largest = LISTS_LARGEST_FETCH if codes.lists else LARGEST_FETCH
        fetch = int(max(FETCH, per_result * k) * thinness)
        while fetch <= largest * scope.size:
            candidates = scope.among(codes.nearest(query, fetch, thinness))
            scores = self._products(query, candidates)
            end = len(candidates) // NEAR_SHARE
            near, near_scores = candidates[:end], scores[:end]
            if fresh is not None:
                near = np.concatenate([near, fresh[0]])
                near_scores = np.concatenate([near_scores, fresh[1]])
            found = self._best(query, k, near, near_scores)
            far_best = scores[end:].max(initial=-np.inf)
            if len(found.rows) == k and far_best < found.scores[-1] - TIE_SLACK:
                return found
            fetch *= WIDER
        return self._exact(query, k, scope)

    def _fresh(
        self, query: FloatVector, encoded: int, allowed: Mask | None
    ) -> tuple[Positions, FloatVector] | None:
        """Score the positions that have no codes yet, if there are any."""
        if encoded == self._store.count:
            return None
        end = self._store.count
        scores = products(self._store.read(slice(encoded, end))[encoded:end], query)
        fresh = np.arange(encoded, encoded + len(scores))
        if allowed is None:
            return fresh, scores
        return fresh[allowed[encoded:]], scores[allowed[encoded:]]

    def _exact(self, query: FloatVector, k: int, scope: Scope) -> ScoredRows:
        """Score every position of the scope."""
        positions = scope.positions
        if scope.vectors is not None:
            return self._best(query, k, positions, products(scope.vectors, query))
        if scope.allowed is not None:
            positions = np.flatnonzero(scope.allowed)
        if positions is not None and len(positions) <= self._store.count // 4:
            return self._best(query, k, positions, self._products(query, positions))
        scores = self._all_products(query)  # one pass beats a large gather
        return self._best(query, k, positions, scores if positions is None else scores[positions])

    def _all_products(self, query: FloatVector) -> FloatVector:
        """Score every position; while codes are being made, unit rows are not kept for it."""
        if self._codes is not None or self._store.count <= self._exact_rows:
            return products(self._store.vectors, query)
        held = self._store.held
        parts = [products(unpacked(held[part]), query) for part in pieces(len(held))]
        return np.concatenate(parts)

    def _products(self, query: FloatVector, positions: Positions) -> FloatVector:
        """Score some positions; FAISS copies no vector for it, but takes long to load."""
        if self._codes is None:
            return products(self._store.at(positions), query)
        return self._codes.products(query, self._store.read(positions), positions)

    def _best(
        self, query: FloatVector, k: int, positions: Positions | None, scores: FloatVector
    ) -> ScoredRows:
        """Cut to the best k, the close ones compared exactly; ties go to the lower row.

        Scores belong to `positions`; None means to all, in order.
        """
        kth = -np.inf
        if len(scores) > k:
            parted = scores.copy()
            parted.partition(-k)
            kth = parted[-k]
        (close,) = (scores >= kth - TIE_SLACK).nonzero()
        best = close if positions is None else positions[close]
        exact = exact_similarities(query, self._store.at(best))
        rows = self._store.rows[best]
        order = np.lexsort((rows, -exact))[:k]
        return ScoredRows(rows[order], exact[order])

    def _current_codes(self) -> ScanCodes | None:
        """Return the codes, of all but the freshest rows; None while there are none yet."""
        self._build_if_outdated()
        if self._codes is not None:
            self._encode_fresh(self._codes)
        return self._codes

    def _encode_fresh(self, codes: ScanCodes) -> bool:
        """Encode fresh rows if they are many; no more than a search can wait for."""
        if self._store.count - codes.count < CODE_BATCH:
            return False
        from hybridagi_steps.search.quantized_codes import PIECE

        fresh = slice(codes.count, min(codes.count + PIECE, self._store.count))
        codes.add(self._store.read(fresh)[fresh])
        return True

    def _build_if_outdated(self) -> None:
        count, codes = self._store.count, self._codes
        outdated = (
            codes is None
            or count >= 2 * codes.trained_on
            or (count >= LISTS_FROM and not codes.lists)
            or codes.total > (1 + COMPACT_SHARE) * codes.count
        )
        if not outdated or (self._build and (self._build.going_on or self._build.failed)):
            return
        from hybridagi_steps.search import quantized_codes as scan_codes

        building = scan_codes.build(self._vectors, lists=count >= LISTS_FROM)
        self._build = CodeBuild(building, self._adopt)

    def _vectors(self) -> Stored:
        with self._lock:
            return self._store.held

    def _adopt(self, codes: ScanCodes, build: CodeBuild) -> None:
        """Take over what was built, unless positions have changed since it began."""
        with self._lock:
            if build is self._build:
                self._codes, self._build = codes, None

    def _compact_if_worth_it(self) -> None:
        if self._store.dead <= max(64, COMPACT_SHARE * self._store.count):
            return
        kept = self._store.compact()
        if self._build is not None:
            self._build.abandon()
            self._build = None
        if kept is None:
            self._codes = None
        elif self._codes is not None:
            self._codes.keep(kept)


def _codes_of(arrays: Mapping[str, npt.NDArray[Any]]) -> ScanCodes | None:
    if "codes" not in arrays:
        return None
    from hybridagi_steps.search.quantized_codes import ScanCodes

    return ScanCodes.from_arrays(arrays)


class CodeBuild:
    """Builds codes in a thread of its own, while searches go on without them.

    It works in pieces and rests between them for a fork; a child has no such thread and starts its
    own. `adopt` is given the codes when they are ready, unless the build was abandoned before.
    """

    def __init__(self, pieces: Building, adopt: Callable[[ScanCodes, CodeBuild], None]) -> None:
        self._pieces, self._adopt = pieces, adopt
        self._abandoned = threading.Event()
        self._piece = threading.Lock()
        self.failed = False
        rest_first_at_fork(self)
        # No daemon: a thread that is in the middle of foreign code when Python ends may crash it.
        self._thread = threading.Thread(target=self._run, name="hybridagi-steps-index")
        self._thread.start()

    @property
    def going_on(self) -> bool:
        """Whether there is still something to wait for in this process."""
        return self._thread.is_alive() and not self._abandoned.is_set()

    def abandon(self) -> None:
        """Let it end after the piece at hand; nothing is adopted any more."""
        self._abandoned.set()

    def wait(self) -> None:
        """Wait for its end. The caller must hold no lock that `adopt` takes."""
        self._thread.join()

    def before_fork(self) -> None:
        """Wait for the piece at hand."""
        self._piece.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._piece.release()

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set() and threading.main_thread().is_alive():
                with self._piece:
                    try:
                        next(self._pieces)
                    except StopIteration as end:
                        self._adopt(end.value, self)
                        return
        except (RuntimeError, MemoryError, DamagedCacheError) as error:  # FAISS raises no others
            self.failed = True
            log.warning("codes were not built, searches stay exact but slower: %s", error)
