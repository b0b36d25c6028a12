"""Unit vectors in one growable float32 matrix, found by row number.

It knows which position of the matrix holds which row, and which positions are dead; it does not
search. Positions are only ever appended: a replaced or removed row leaves a dead position behind
until `compact`, so that codes computed for a range of positions stay true. Vectors handed in by
`restore` may stand in a cache file, from which those asked for are read; the room behind them is
where new ones go. Of vectors that come in whole numbers those are kept, half as long, and a unit
row is made when it is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.embedders.vectors import Stored, pieces, unpacked
from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.records.store_values import MESSAGE_ROWS, FloatMatrix, Rows, distinct
from hybridagi_steps.search.index_cache import PagedArray, Patched, untouched

Positions = npt.NDArray[np.intp]
"""Row numbers of the matrix."""
Mask = npt.NDArray[np.bool_]

_FIRST_CAPACITY = 256
_MOST_ROOM = 8
"""So many times as many rows as are held there is room for, whatever is expected."""
_WIDEST_TABLE, _SORTED_BEHIND = 32, 4_096


class VectorStore:
    """A growable matrix of unit vectors with tombstones."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.expected = 0
        """About how many rows there will be: room for them is made at once."""
        self.count = 0
        self.dead = 0
        self._hold(np.empty((0, dimension), np.int16))
        self._rows: Rows = np.empty(0, np.int64)
        self._alive = self._alive_in_file = np.empty(0, np.bool_)
        self._places = RowPositions()

    @classmethod
    def restore(cls, rows: Rows, vectors: Stored | PagedArray, alive: Mask) -> VectorStore:
        """Take over arrays that `rows`, `stored` and `alive` gave earlier, without a copy."""
        shape = vectors.shape
        fits = (
            (rows.dtype, alive.dtype) == (np.int64, np.bool_)
            and vectors.dtype in (np.dtype(np.int16), np.dtype(np.float32))
            and (rows.ndim, len(shape), alive.ndim) == (1, 2, 1)
            and len(rows) == shape[0] == len(alive)
        )
        if not fits:
            raise DamagedFileError("cached rows, vectors and tombstones do not fit together.")
        store = cls(shape[1])
        store._hold(vectors)
        store._rows, store._alive, store._alive_in_file = rows, alive, alive
        store.count = len(rows)
        store.dead = store.count - int(np.count_nonzero(alive))
        store._places.follow(rows)
        return store

    def __len__(self) -> int:
        """Number of rows held."""
        return self.count - self.dead

    @property
    def vectors(self) -> FloatMatrix:
        """All positions, dead ones too, shape (count, d); never written again once appended."""
        return self.read(slice(0, self.count))[: self.count]

    @property
    def held(self) -> Stored:
        """As `vectors`, but where all stand in memory in whole numbers, these."""
        if self._short is None or self._file is not None:
            return self.vectors
        return self._short[: self.count]

    @property
    def stored(self) -> Stored:
        """As `vectors`, in whole numbers if all came so; of what is gone nothing is left in it."""
        if self._short is None or self._file is None:
            whole = self.held
        else:
            whole = np.empty((self.count, self.dimension), np.int16)
            filed = self._file.copy_to(whole)
            whole[filed:] = self._short[filed : self.count]
        return self._without_dead(whole, self.alive)

    @property
    def saved(self) -> Stored | Patched:
        """As `stored`, as it is to be saved: what nothing was changed of is copied as it is."""
        if self._short is None or self._file is None:
            return self.stored
        filed = len(self._file)
        (gone,) = (self._alive_in_file & ~self.alive[:filed]).nonzero()
        more = self._without_dead(self._short[filed : self.count], self.alive[filed:])
        return Patched(self._file, gone, self._nobodys, more)

    def _without_dead(self, vectors: Stored, alive: Mask) -> Stored:
        if alive.all():
            return vectors
        vectors = vectors if vectors.flags.writeable else vectors.copy()
        vectors[~alive] = self._nobodys
        return vectors

    @property
    def _nobodys(self) -> Stored:
        """Stands in the place of a vector that is gone: nobody's, but a direction."""
        return np.eye(1, self.dimension, dtype=np.int16)

    def read(self, positions: Positions | slice) -> FloatMatrix:
        """Return a matrix in which the vectors at some positions stand in their places.

        Of the others it may hold anything.
        """
        if self._file is not None:
            if isinstance(positions, slice):
                self._file.need(np.array([positions.start]), np.array([positions.stop]))
            else:
                self._file.need_rows(positions)
        self._unpack(positions)
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

    def append(self, rows: Rows, vectors: Stored) -> None:
        """Add vectors, replacing rows already held. Of a row given twice the last counts."""
        if len(distinct(rows)) < len(rows):
            _, last_from_end = np.unique(rows[::-1], return_index=True)
            chosen = np.sort(len(rows) - 1 - last_from_end)
            rows, vectors = rows[chosen], vectors[chosen]
        if not len(rows):
            return
        if not self._places.extended_by(self.rows, rows):
            self.remove(rows)
        end = self.count + len(rows)
        if vectors.dtype != np.int16:
            self._unpack(slice(0, self.count))
            self._short = None
        self._reserve(end)
        added = slice(self.count, end)  # behind what a file has
        if self._short is None:
            self._vectors[added] = unpacked(vectors)
        else:
            self._short[added], self._packed[added] = vectors, True
        self._rows[self.count : end] = rows
        self._alive[self.count : end] = True
        self.count = end
        self._places.follow(self.rows)

    def remove(self, rows: Rows) -> int:
        """Mark rows as gone; return how many were held."""
        positions = self.positions(distinct(rows))
        positions = positions[positions >= 0]
        if not len(positions):
            return 0
        if not self._alive.flags.writeable:
            self._alive = self._alive.copy()
        self._alive[positions] = False
        self.dead += len(positions)
        return len(positions)

    def positions(self, rows: Rows) -> Positions:
        """Return the position of each row, -1 for rows not held. Shape (n,)."""
        found = self._places.find(self.rows, rows)
        return np.where(self._alive[found], found, -1) if self.dead else found

    def holding(self, rows: Rows) -> Mask:
        """Return which positions hold one of many rows, shape (count,)."""
        return standing_among(self.rows, rows) & self.alive

    def compact(self) -> Positions | None:
        """Drop dead positions and sort by row: every position may change.

        Returns:
            The old position of each new one, ascending; None if sorting changed their order.
        """
        held = np.flatnonzero(self.alive)
        order = held[np.argsort(self._rows[held], kind="stable")]
        self._hold(self.stored[order])
        self._rows, self._alive = self._rows[order], np.ones(len(order), np.bool_)
        self.count, self.dead, self._places = len(order), 0, RowPositions()
        self._places.follow(self._rows)
        return order if (order[1:] > order[:-1]).all() else None

    def _reserve(self, count: int) -> None:
        """Make room for `count` positions; what was handed out as views stays as it was."""
        # Untouched pages cost nothing.
        capacity = max(_FIRST_CAPACITY, count + count // 2, min(self.expected, _MOST_ROOM * count))
        if count > len(self._vectors) or not self._vectors.flags.writeable:
            self._move(capacity)
        if count > len(self._rows):
            rows, alive = np.empty(capacity, np.int64), np.zeros(capacity, np.bool_)
            rows[: self.count], alive[: self.count] = self.rows, self.alive
            self._rows, self._alive = rows, alive

    def _move(self, capacity: int) -> None:
        """Bring the vectors to where there is room."""
        if self._file is not None:
            self._file.need(np.array([0]), np.array([len(self._file)]))
        old, short, packed = self._vectors, self._short, self._packed[: self.count]
        self._vectors = untouched((capacity, self.dimension), np.float32)
        self._packed = np.zeros(capacity, np.bool_)
        np.copyto(self._vectors[: self.count], old[: self.count], where=~packed[:, None])
        self._packed[: self.count] = packed
        if short is not None:
            behind = slice(0 if self._file is None else len(self._file), self.count)
            self._short = untouched((capacity, self.dimension), np.int16)
            self._short[behind] = short[behind]

    def _hold(self, stored: Any) -> None:
        """Take over the vectors of all positions: `Stored`, or a paged array of a file."""
        short, filed = stored.dtype == np.int16, isinstance(stored, PagedArray)
        room = stored.room if filed else stored
        self._file: PagedArray | None = stored if filed else None
        self._short: npt.NDArray[np.int16] | None = None
        """What came in whole numbers behind those of the file; None: some came otherwise."""
        if short:
            self._short = untouched(room.shape, np.int16) if filed else room
        self._vectors: FloatMatrix = room
        if short and not filed:
            self._vectors = untouched(room.shape, np.float32)
        self._packed = np.full(len(room), short and not filed)
        """Which positions have no unit row yet, only whole numbers."""

    def _unpack(self, positions: Positions | slice) -> None:
        """Make unit rows of those that have none yet."""
        if self._short is None:
            return
        if isinstance(positions, slice):
            places = self._packed[positions].nonzero()[0] + positions.start
        else:
            places = positions[self._packed[positions]]
        for part in pieces(len(places)):
            self._vectors[places[part]] = unpacked(self._short[places[part]])
        self._packed[places] = False


_Ordered = tuple[Rows, Positions | None]  # ascending, and where each stands; None: as they are


class RowPositions:
    """Where rows stand in an array that is only appended to; of a row that stands twice, the last.

    Those that ascend from the first on are searched as they are, and only what follows is sorted:
    a row that is replaced would else have all of them sorted again.
    """

    def __init__(self) -> None:
        self._sorted = self._count = 0
        self._all: _Ordered | None = None
        self._behind: _Ordered | None = None

    def extended_by(self, rows: Rows, more: Rows) -> bool:
        """Whether all rows ascend, and go on so with more: then none of these is held."""
        ascend = self._all is None and self._sorted == len(rows)
        joined = np.concatenate((rows[-1:], more))
        return ascend and bool((joined[1:] > joined[:-1]).all())

    def follow(self, rows: Rows) -> None:
        """Take in what was appended; `rows` are all."""
        if self._all is None and self._sorted == self._count:
            first = max(self._count - 1, 0)
            fresh = rows[first:]
            (breaks,) = (fresh[1:] <= fresh[:-1]).nonzero()
            self._sorted = first + (int(breaks[0]) + 1 if len(breaks) else len(fresh))
        self._count, self._behind = len(rows), None

    def find(self, rows: Rows, wanted: Rows) -> Positions:
        """Return the position of each row that is wanted among all, -1 where it is not."""
        if len(rows) - self._sorted > max(_SORTED_BEHIND, self._sorted // 8):
            self._all, self._sorted = _by_row(rows, 0), len(rows)
        found = _standing(self._all or (rows[: self._sorted], None), wanted)
        if self._sorted < len(rows):
            self._behind = self._behind or _by_row(rows, self._sorted)
            behind = _standing(self._behind, wanted)
            found = np.where(behind >= 0, behind, found)
        return found


def _by_row(rows: Rows, start: int) -> _Ordered:
    turn = np.argsort(rows[start:], kind="stable") + start
    return rows[turn], turn


def _standing(ordered: _Ordered, wanted: Rows) -> Positions:
    """Return the last position of each row, -1 where it is not."""
    known, turn = ordered
    if not len(known):
        return np.full(len(wanted), -1, np.intp)
    if turn is None and known[-1] - known[0] == len(known) - 1:  # without a gap
        found = wanted - known[0]  # below the first would be beyond the last without a sign
        within = found.view(np.uint64) < len(known)
        return found if within.all() else np.where(within, found, -1)
    found = np.searchsorted(known, wanted, side="right") - 1
    return np.where(known[found] == wanted, found if turn is None else turn[found], -1)


def standing_among(known: Rows, rows: Rows) -> Mask:
    """Return which of `known` are among many rows, shape of `known`."""
    if not (len(rows) and len(known)):
        return np.zeros(len(known), np.bool_)
    first, last = int(rows.min()), int(rows.max())
    span = last - first + 1
    if span > _WIDEST_TABLE * len(known):
        ascending = rows if (rows[1:] > rows[:-1]).all() else distinct(rows)
        cut = int(np.searchsorted(ascending, MESSAGE_ROWS))
        if 0 < cut < len(ascending):  # numbers of each kind lie close together
            return standing_among(known, ascending[:cut]) | standing_among(known, ascending[cut:])
        place = np.minimum(np.searchsorted(ascending, known), len(ascending) - 1)
        return ascending[place] == known
    # Row numbers lie close together: a table is ten times as fast as searching for each.
    table = np.zeros(span + 2, np.bool_)
    table[rows - first + 1] = True
    return table[np.clip(known - first + 1, 0, span + 1)]
