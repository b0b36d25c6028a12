"""What filters look at, in memory: which rows pass is answered without asking the database.

A step's keys never change, and a row number is never used again, so what was read once stays true:
new rows are read on from the highest one seen; removed ones are marked, and dropped when they are
many, so that what is listed by place outlives them. A key is read when a filter first names it.
Texts are numbered, one small integer per row; the rows of a value asked for again are kept as a
posting list. What can change without a new row is asked of the store each time: where branches
stand, run scores. So is what its indexes answer at once (one run, one session) and what is no plain
key (metadata). Not thread-safe by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import IndexedStore
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import (
    ABANDONED,
    REVOKED,
    UNREVOKED,
    Hidden,
    Rows,
)

PAGE = 100_000
"""Rows whose keys are read at once."""
POSITIONS_KEPT = 2
"""Positions in posting lists per step, at most; with all keys in use a step takes 56 bytes."""
WIDE = 4
"""Lists of more than one in so many steps are not kept: others of more use would have to go."""
LIST_COSTS = 64
"""Positions that a list counts besides its own: what Python needs to keep it."""

_LOOKED_AT = 1_000
_FEW_DEAD = 64
ABSENT = -1
"""Stands where a row has no value."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FEW_RUNS = 32
"""So many excluded runs are asked for one by one; of more the column is looked through once."""
DEAD_SHARE = 0.1
"""Share of removed rows from which columns are made without them."""
_NOWHERE = np.empty(0, np.int32)
Positions = npt.NDArray[np.int32]
"""Places in the columns."""
_Flags = npt.NDArray[np.bool_]
_Values = npt.NDArray[Any]


class FilterColumns:
    """Answers filters like `store.rows`, for rows up to the newest it was told of."""

    def __init__(self, store: IndexedStore) -> None:
        """Read from `store`, when first asked."""
        self._store = store
        self._newest = 0
        self._hidden: Hidden | None = None
        self._asked, self._answer = "", np.empty(0, np.int64)
        self._forget()

    def follow(self, newest: int, removed: Rows) -> None:
        """Take note of the newest row there is and that branches may have moved; drop removed."""
        self._newest = max(self._newest, newest)
        self._hidden, self._asked = None, ""
        places = self._places(removed)
        places = places[places != ABSENT]
        if not len(places):
            return
        kept = np.ones(len(self._rows.values), np.bool_) if self._alive is None else self._alive
        kept[places] = False
        self._alive = kept
        if len(kept) - np.count_nonzero(kept) > max(_FEW_DEAD, DEAD_SHARE * len(kept)):
            for column in (self._rows, *self._columns.values()):
                column.keep(kept)
            self._postings, self._kept, self._alive = {}, 0, None

    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending; asked again, the same read-only array.

        Complexity: O(rows of the narrowest value asked for) once its posting list is kept, else
        O(n) over four-byte numbers.
        """
        if self._is_for_the_store(where):
            return self._rows_of(where)
        asked = repr(vars(where))  # its lists might be changed afterwards
        if asked != self._asked:
            self._hold(self._names(where))
            found = self._but_hidden(self._held_rows(self._matching(where)), where)
            found.flags.writeable = False
            self._asked, self._answer = asked, found
        return self._answer

    def numbers(self, name: StepKey, rows: Rows) -> npt.NDArray[Any]:
        """Return the number of each row's value of a key, -1 where it has none."""
        self._hold([name])
        places = self._places(rows)
        if not len(self._rows.values):
            return np.full(len(rows), ABSENT, np.int32)
        values = np.where(places == ABSENT, ABSENT, self._columns[name].values[places])
        return np.where(values == self._numbers_of(name).get(None, ABSENT), ABSENT, values)

    def first_rows(
        self, name: StepKey, number: int, most: int, passing: Callable[[Rows], _Flags]
    ) -> Rows:
        """Return the first rows with a value, given by its number, that pass."""
        rows = self._held_rows(self._posting(name, number))
        found = np.empty(0, np.int64)
        for start in range(0, len(rows), _LOOKED_AT):
            page = rows[start : start + _LOOKED_AT]
            found = np.concatenate((found, page[passing(page)]))[:most]
            if len(found) == most:
                break
        return found

    def hidden(self) -> Hidden:
        """Return the rows that recall leaves out, as the store last said."""
        if self._hidden is None:
            self._hidden = self._hidden_rows()
        return self._hidden

    def value_numbers(self, name: StepKey) -> Mapping[str | None, int]:
        """Return the number of each text that a key has had; they only grow."""
        return self._numbers_of(name)

    def of_runs(self, run_ids: Sequence[str]) -> list[Rows]:
        """Return the rows of some runs, of every scope."""
        wheres = (StepFilter(run_id=run_id, scope=EVERY_SCOPE) for run_id in run_ids)
        return [self._rows_of(where) for where in wheres]

    # -- what the store says ----------------------------------------------------------------------

    def _hidden_rows(self) -> Hidden:
        return self._store.hidden_rows()

    def _rows_of(self, where: StepFilter) -> Rows:
        """Return the rows that match, as the store says."""
        return self._store.rows(where)

    def _keys_above(
        self, names: Sequence[StepKey], after: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        return self._store.step_keys(names, after=after, limit=PAGE)

    def _is_for_the_store(self, where: StepFilter) -> bool:
        """Tell whether the database knows better: by an index, or because it may change."""
        return where.run_id is not None or changes_without_rows(where)

    def _names(self, where: StepFilter) -> list[StepKey]:
        """Return the keys that a filter looks at."""
        names: dict[StepKey, None] = dict.fromkeys(name for name, _ in _equalities(where))
        if where.program is not None:
            names |= {"program": None, "call_id": None, "program_id": None}
        if where.since is not None or where.until is not None:
            names["created_at"] = None
        return list(names)

    def _held_rows(self, positions: Positions) -> Rows:
        if self._alive is not None:
            positions = positions[self._alive[positions]]
        return self._rows.values[positions]

    # -- what passes ------------------------------------------------------------------------------

    def _matching(self, where: StepFilter) -> Positions:
        """Return the positions that pass the keys; each condition looks at what the last left."""
        found: Positions | None = None
        for name, values in _equalities(where):
            found = self._narrowed(found, name, values)
        if found is None:
            found = np.arange(len(self._rows.values), dtype=np.int32)
        if where.program is not None:
            found = found[self._in_program(found, where.program)]
        if where.since is not None:
            found = found[self._columns["created_at"].values[found] >= _microseconds(where.since)]
        if where.until is not None:
            found = found[self._columns["created_at"].values[found] < _microseconds(where.until)]
        return found

    def _narrowed(
        self, found: Positions | None, name: StepKey, values: Iterable[str | None]
    ) -> Positions:
        numbers = self._known(name, values)
        if found is None:
            lists = [self._posting(name, number) for number in numbers]
            return lists[0] if len(lists) == 1 else np.sort(np.concatenate([_NOWHERE, *lists]))
        if numbers and len(self._numbers_of(name)) == 1:
            return found  # all steps have this value, as is usual of the scope
        return found[_one_of(self._columns[name].values[found], numbers)]

    def _in_program(self, found: Positions, program: str) -> _Flags:
        """Return which positions name a program, or stand directly inside a call of it."""
        named = self._known("program", [program])
        calls = self._columns["call_id"].values[self._narrowed(None, "program", [program])]
        enclosing = {*calls.tolist()} - {self._numbers_of("call_id")[None]}
        return _one_of(self._columns["program"].values[found], named) | _one_of(
            self._columns["program_id"].values[found], list(enclosing)
        )

    def _but_hidden(self, found: Rows, where: StepFilter) -> Rows:
        """Leave out excluded runs, and what is abandoned or revoked."""
        excluded = where.exclude_run_id or []
        if len(excluded) > FEW_RUNS:
            self._hold(["run_id"])
            numbers = self._known("run_id", excluded)
            (places,) = _one_of(self._columns["run_id"].values, numbers).nonzero()
            gone = [self._rows.values[places]]
        else:
            gone = self.of_runs(excluded)
        gone = np.concatenate([*gone, self.hidden().under(where.scope)])
        if not len(gone) or not len(found):
            return found
        places = np.minimum(np.searchsorted(found, gone), len(found) - 1)
        passing = np.ones(len(found), np.bool_)
        passing[places[found[places] == gone]] = False
        return found[passing]

    def _known(self, name: StepKey, values: Iterable[str | None]) -> list[int]:
        """Return the numbers of those values that some row has had."""
        numbers = self._numbers_of(name)
        return [numbers[value] for value in dict.fromkeys(values) if value in numbers]

    def _posting(self, name: StepKey, number: int) -> Positions:
        """Return all positions with a value, ascending."""
        column = self._columns[name].values
        known = self._postings.pop((name, number), None)
        found, through = known or (_NOWHERE, 0)
        if known is not None:
            self._kept -= len(found) + LIST_COSTS
        if through < len(column):
            fresh = np.flatnonzero(column[through:] == number) + through
            found = np.concatenate((found, fresh.astype(np.int32)))
        if len(found) > len(column) // WIDE:
            return found
        self._postings[name, number] = found, len(column)
        self._kept += len(found) + LIST_COSTS
        while self._kept > POSITIONS_KEPT * len(column):
            oldest, _ = self._postings.pop(next(iter(self._postings)))
            self._kept -= len(oldest) + LIST_COSTS
        return found

    # -- what is held -----------------------------------------------------------------------------

    def _forget(self) -> None:
        self._rows = _Column(np.int64)
        self._alive: _Flags | None = None
        self._columns: dict[StepKey, _Column] = {}
        self._numbers: dict[StepKey, defaultdict[str | None, int]] = {}
        self._postings: dict[tuple[StepKey, int], tuple[Positions, int]] = {}
        self._kept, self._through = 0, -1

    def _hold(self, names: Sequence[StepKey]) -> None:
        """Read on from the last row seen, and all of the keys that were never asked for before."""
        missing: list[StepKey] = [name for name in names if name not in self._columns]
        if self._newest <= self._through and not missing:
            return
        try:
            if self._through < 0:
                self._columns = _empty_columns(missing)
                missing = []
            self._read_on()
            self._fill(missing)
        except BaseException:
            self._forget()  # half of a page is worse than none
            raise

    def _read_on(self) -> None:
        for rows, columns in self._pages(list(self._columns), self._through):
            self._rows.extend(rows)
            if self._alive is not None:
                fresh = np.ones(len(rows), np.bool_)
                self._alive = np.concatenate((self._alive, fresh))
            for name, values in columns.items():
                self._columns[name].extend(values)
        self._through = max([self._newest, *self._rows.values[-1:].tolist()])

    def _fill(self, names: Sequence[StepKey]) -> None:
        """Read keys of the rows held already; of later ones all is read when their turn comes."""
        if not names:
            return
        columns = _empty_columns(names)
        for column in columns.values():
            column.extend(np.full(len(self._rows.values), ABSENT, column.values.dtype))
        for rows, found in self._pages(names, after=-1):
            places = self._places(rows)
            held = places != ABSENT
            for name, values in found.items():
                columns[name].values[places[held]] = values[held]
        self._columns.update(columns)

    def _pages(
        self, names: Sequence[StepKey], after: int
    ) -> Iterator[tuple[Rows, dict[StepKey, _Values]]]:
        """Yield the rows above `after`, with what is to stand in their columns."""
        full = True
        while full:
            rows, keys = self._keys_above(names, after)
            full = len(rows) == PAGE
            if len(rows):
                yield rows, {name: self._encoded(name, keys[name]) for name in names}
                after = int(rows[-1])

    def _encoded(self, name: StepKey, texts: Sequence[str | None]) -> _Values:
        if name == "created_at":
            return np.array([_microseconds(text) for text in texts], np.int64)
        numbers = map(self._numbers_of(name).__getitem__, texts)
        return np.fromiter(numbers, np.int32, len(texts))

    def _numbers_of(self, name: StepKey) -> defaultdict[str | None, int]:
        """Return the number of each text; ids of calls are those that enclosing calls have."""
        name = "program_id" if name == "call_id" else name
        if name not in self._numbers:
            numbers = self._numbers[name] = defaultdict[str | None, int]()
            numbers.default_factory = numbers.__len__
        return self._numbers[name]

    def _places(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Return where rows stand, `ABSENT` for those not held."""
        known = self._rows.values
        if not len(known):
            return np.full(len(rows), ABSENT, np.intp)
        found = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        held = known[found] == rows
        if self._alive is not None:
            held &= self._alive[found]
        return np.where(held, found, ABSENT)


class _Column:
    """Numbers in a row that grows at its end."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room: _Values = np.empty(0, dtype)
        self._size = 0

    @property
    def values(self) -> _Values:
        return self._room[: self._size]

    def extend(self, values: _Values) -> None:
        size = self._size + len(values)
        if size > len(self._room):
            grown = np.empty(max(size, self._size + self._size // 4), self._room.dtype)
            grown[: self._size] = self.values
            self._room = grown
        self._room[self._size : size] = values
        self._size = size

    def keep(self, kept: _Flags) -> None:
        self._room = self.values[kept]
        self._size = len(self._room)


def _empty_columns(names: Sequence[StepKey]) -> dict[StepKey, _Column]:
    return {name: _Column(np.int64 if name == "created_at" else np.int32) for name in names}


def changes_without_rows(where: StepFilter) -> bool:
    """Tell whether what a filter finds may change without a new row, or is no plain key."""
    return (
        where.session_id is not None
        or where.min_score is not None
        or bool(where.metadata)
        or where.scope in (ABANDONED, REVOKED)
    )


def _equalities(where: StepFilter) -> Iterator[tuple[StepKey, list[str | None]]]:
    """Yield keys that must have one of some values, those first that leave least as a rule."""
    yield from where.equalities()
    if where.scope not in (EVERY_SCOPE, UNREVOKED):
        yield "scope", [where.scope]


def _one_of(values: _Values, numbers: Sequence[int]) -> _Flags:
    if len(numbers) == 1:
        return values == numbers[0]
    wanted = np.zeros(max(numbers, default=0) + 2, np.bool_)  # the last for what is none of them
    wanted[list(numbers)] = True
    return wanted[np.minimum(values, len(wanted) - 1)]


def _microseconds(moment: str | datetime | None) -> int:
    """Return a time as a whole number; none lies before all."""
    if moment is None:
        return np.iinfo(np.int64).min
    made = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (made - _EPOCH) // timedelta(microseconds=1)
