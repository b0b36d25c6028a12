"""Unit vectors in one growable float32 matrix, found by row number.

It knows which position of the matrix holds which row, and which positions are dead; it does not
search. Positions are only ever appended: a replaced or removed row leaves a dead position behind
until `compact`, so that codes computed for a range of positions stay true. Vectors handed in by
`restore` may stand in a cache file, from which those asked for are read; the room behind them is
where new ones go.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.errors import DamagedFileError, DimensionMismatchError, InvalidVectorError
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows
from hybridagi_steps.search.index_cache import PagedArray

Positions = npt.NDArray[np.intp]
"""Row numbers of the matrix."""
Mask = npt.NDArray[np.bool_]

_FIRST_CAPACITY = 256
_MOST_ROOM = 8
"""So many times as many rows as are held there is room for, whatever is expected."""
_WIDEST_TABLE, _LISTED = 32, 128
_AT_ONCE = 2**11
_LARGEST = np.iinfo(np.int16).max


def unit_rows(vectors: npt.ArrayLike, dimension: int, *, where: str) -> FloatMatrix:
    """Return vectors as a float32 matrix (n, d) with rows of length one."""
    matrix = np.asarray(vectors)
    if matrix.ndim != 2 or matrix.shape[1] != dimension:
        got = int(matrix.shape[-1]) if matrix.ndim else 0
        if matrix.ndim == 2:
            raise DimensionMismatchError(got, dimension, where=where)
        raise InvalidVectorError(f"{where}: expected shape (n, {dimension}), got {matrix.shape}.")
    # Squares of large float32 values overflow, those of small ones vanish: float64 holds both.
    if len(matrix) == 1:  # as queries come: a tenth of a search less than the general way
        row = matrix[0].astype(np.float64)
        length = sqrt(row.dot(row))
        if not 0 < length < inf:
            raise _without_direction(0, 1, where)
        return (row / length).astype(np.float32)[None]
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64))
    usable = np.isfinite(lengths) & (lengths > 0)
    if not usable.all():
        raise _without_direction(int(np.flatnonzero(~usable)[0]), len(matrix), where)
    units = np.empty(matrix.shape, np.float32)
    return np.divide(matrix, lengths[:, None], out=units, casting="same_kind")


def shortened(vectors: FloatMatrix) -> npt.NDArray[np.int16]:
    """Return usable vectors in whole numbers of two bytes, the largest of each as large as can be.

    Sums of their squares are exact, so they become the same unit rows wherever that is done.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    return np.rint(vectors * (_LARGEST / largest)).astype(np.int16)


def packed(units: FloatMatrix) -> npt.NDArray[np.int16] | FloatMatrix:
    """Return unit rows as `shortened` does if `unpacked` gives the same back, else as they are."""
    short = np.empty(units.shape, np.int16)
    for start in range(0, len(units), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        short[part] = shortened(units[part])
        if not np.array_equal(unpacked(short[part]), units[part]):
            return units
    return short


def unpacked(stored: npt.NDArray[Any]) -> FloatMatrix:
    """Return the unit rows that `packed` was given."""
    if stored.dtype != np.int16:
        return stored
    # Whole numbers: their sums of squares are those of `unit_rows`, to the last bit.
    wide = stored.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return np.divide(wide, lengths[:, None], out=wide).astype(np.float32)


def _without_direction(place: int, count: int, where: str) -> InvalidVectorError:
    return InvalidVectorError(
        f"{where} {place} of {count} holds NaN or Inf, or is all zero: it has no direction to "
        "compare. Leave it out."
    )


class VectorStore:
    """A growable matrix of unit vectors with tombstones.

    Args:
        dimension: Length of every vector.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.expected = 0
        """About how many rows there will be: room for them is made at once."""
        self.count = 0
        self.dead = 0
        self._vectors: FloatMatrix = np.empty((0, dimension), np.float32)
        self._unread: PagedArray | None = None
        self._rows: Rows = np.empty(0, np.int64)
        self._alive: Mask = np.empty(0, np.bool_)
        self._ascending = True
        self._by_row: tuple[Positions, Rows] | None = None

    @classmethod
    def restore(cls, rows: Rows, vectors: FloatMatrix | PagedArray, alive: Mask) -> VectorStore:
        """Take over arrays that `rows`, `vectors` and `alive` gave earlier, without a copy."""
        unread = vectors if isinstance(vectors, PagedArray) else None
        matrix = vectors.room if isinstance(vectors, PagedArray) else unpacked(vectors)
        fits = (
            (rows.dtype, matrix.dtype, alive.dtype) == (np.int64, np.float32, np.bool_)
            and (rows.ndim, matrix.ndim, alive.ndim) == (1, 2, 1)
            and len(rows) == len(vectors) == len(alive)
        )
        if not fits:
            raise DamagedFileError("cached rows, vectors and tombstones do not fit together.")
        store = cls(int(matrix.shape[1]))
        store._vectors, store._unread, store._rows, store._alive = matrix, unread, rows, alive
        store.count = len(rows)
        store.dead = store.count - int(np.count_nonzero(alive))
        store._ascending = bool((rows[1:] > rows[:-1]).all())
        return store

    def __len__(self) -> int:
        """Number of rows held."""
        return self.count - self.dead

    @property
    def vectors(self) -> FloatMatrix:
        """All positions, dead ones too, shape (count, d); never written again once appended."""
        return self.read(slice(0, self.count))[: self.count]

    def read(self, positions: Positions | slice) -> FloatMatrix:
        """Return a matrix in which the vectors at some positions stand in their places.

        Of the others it may hold anything.
        """
        if self._unread is not None:
            if isinstance(positions, slice):
                self._unread.need(np.array([positions.start]), np.array([positions.stop]))
            else:
                self._unread.need_rows(positions)
            if self._unread.whole:
                self._unread = None
        return self._vectors

    def at(self, positions: Positions) -> FloatMatrix:
        """Return a copy of the vectors at some positions, shape (n, d)."""
        return self.read(positions).take(positions, axis=0)

    @property
    def rows(self) -> Rows:
        """The row number of each position."""
        return self._rows[: self.count]

    @property
    def alive(self) -> Mask:
        """Which positions hold a row."""
        return self._alive[: self.count]

    def append(self, rows: Rows, vectors: FloatMatrix) -> None:
        """Add unit vectors, replacing rows already held. Of a row given twice the last counts."""
        if len(np.unique(rows)) < len(rows):
            _, last_from_end = np.unique(rows[::-1], return_index=True)
            chosen = np.sort(len(rows) - 1 - last_from_end)
            rows, vectors = rows[chosen], vectors[chosen]
        if not len(rows):
            return
        stays_ascending = bool((rows[1:] > rows[:-1]).all()) and (
            self.count == 0 or bool(rows[0] > self._rows[self.count - 1])
        )
        if not (self._ascending and stays_ascending):
            self.remove(rows)
            self._ascending = False
        end = self.count + len(rows)
        self._reserve(end)
        self._vectors[self.count : end] = vectors  # behind what a file has
        self._rows[self.count : end] = rows
        self._alive[self.count : end] = True
        self.count, self._by_row = end, None

    def remove(self, rows: Rows) -> int:
        """Mark rows as gone; return how many were held."""
        positions = self.positions(np.unique(rows))
        positions = positions[positions >= 0]
        if not len(positions):
            return 0
        if not self._alive.flags.writeable:
            self._alive = self._alive.copy()
        self._alive[positions] = False
        self.dead += len(positions)
        self._by_row = None
        return len(positions)

    def positions(self, rows: Rows) -> Positions:
        """Return the position of each row, -1 for rows not held. Shape (n,)."""
        if not self.count:
            return np.full(len(rows), -1, np.intp)
        if self._ascending and self._rows[self.count - 1] - self._rows[0] == self.count - 1:
            found = rows - self._rows[0]  # without a gap, numbers say positions
            if not self.dead and found.view(np.uint64).max(initial=0) < self.count:
                return found  # below the first would be beyond the last without a sign
            found = np.maximum(found, 0)
        elif self._ascending:
            found = np.searchsorted(self.rows, rows)
        else:
            order, sorted_rows = self._order()
            if not len(order):
                return np.full(len(rows), -1, np.intp)
            found = order[np.minimum(np.searchsorted(sorted_rows, rows), len(order) - 1)]
        found = np.minimum(found, self.count - 1)
        held = (self._rows[found] == rows) & self._alive[found]
        return np.where(held, found, -1)

    def holding(self, rows: Rows) -> Mask:
        """Return which positions hold one of many rows, shape (count,)."""
        return standing_among(self.rows, rows) & self.alive

    def compact(self) -> Positions | None:
        """Drop dead positions and sort by row: every position may change.

        Returns:
            The old position of each new one, ascending; None if sorting changed their order.
        """
        order, self._rows = self._order()
        self._vectors = self.vectors[order]
        self.count, self.dead = len(order), 0
        self._alive = np.ones(self.count, np.bool_)
        self._ascending, self._by_row = True, None
        return order if (order[1:] > order[:-1]).all() else None

    def _order(self) -> tuple[Positions, Rows]:
        """Positions that hold a row, by row number, and these numbers."""
        if self._by_row is None:
            held = np.flatnonzero(self.alive)
            order = held[np.argsort(self._rows[held], kind="stable")]
            self._by_row = order, self._rows[order]
        return self._by_row

    def _reserve(self, count: int) -> None:
        """Make room for `count` positions; what was handed out as views stays as it was."""
        # Untouched pages cost nothing.
        capacity = max(_FIRST_CAPACITY, count + count // 2, min(self.expected, _MOST_ROOM * count))
        if count > len(self._vectors) or not self._vectors.flags.writeable:
            vectors = np.empty((capacity, self.dimension), np.float32)
            vectors[: self.count] = self.vectors
            self._vectors = vectors
        if count > len(self._rows):
            rows, alive = np.empty(capacity, np.int64), np.zeros(capacity, np.bool_)
            rows[: self.count], alive[: self.count] = self.rows, self.alive
            self._rows, self._alive = rows, alive


def exact_similarities(query: FloatVector, vectors: FloatMatrix) -> FloatVector:
    """Return the cosine of a unit query with each unit row, shape (n,), within [-1, 1].

    Summed in float64, row by row, so that equal vectors get equal scores wherever they stand;
    a BLAS product differs in the last bits with the position, which would decide ties.
    """
    scores = np.einsum("ij,j->i", vectors, query, dtype=np.float64)
    return scores.clip(-1.0, 1.0, out=scores).astype(np.float32)


def standing_among(known: Rows, rows: Rows) -> Mask:
    """Return which of `known` are among many rows, shape of `known`."""
    if not (len(rows) and len(known)):
        return np.zeros(len(known), np.bool_)
    first, last = int(rows.min()), int(rows.max())
    span = last - first + 1
    if span > _WIDEST_TABLE * len(known):
        ascending = np.unique(rows)
        place = np.minimum(np.searchsorted(ascending, known), len(ascending) - 1)
        return ascending[place] == known
    # Row numbers lie close together: a table is ten times as fast as searching for each.
    table = np.zeros(span + 2, np.bool_)
    table[rows - first + 1] = True
    return table[np.clip(known - first + 1, 0, span + 1)]


def products(vectors: FloatMatrix, query: FloatVector) -> FloatVector:
    """Return the product of each row with a query, shape (n,), in this thread alone.

    A BLAS product of matrix and vector wakes the library's threads, which then wait for more work:
    that cost a search of 2,000 rows three times its own time, and it ended no sooner.
    """
    if hasattr(np, "vecdot"):  # NumPy 2
        return np.vecdot(vectors, query)
    return np.einsum("ij,j->i", vectors, query)


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
        if self._last is not None and _same(self._last[0], rows):
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
            rows = np.unique(rows)
        positions = self._store.positions(rows)
        if positions.min(initial=0) < 0:
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


def _same(known: Rows, asked: Rows) -> bool:
    return (known is asked and _is_frozen(asked)) or np.array_equal(known, asked)
