"""Columns of step keys: what a filter compares, one number per row.

A text is numbered, four bytes per row, as is a value of a metadata key, which has a column of its
own (`metadata_key`); a time is microseconds, a score stays a score. It knows neither rows nor the
store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import UNREVOKED
from hybridagi_steps.stores.sql.where import scalar_kind

ANSWERS_KEPT = 128
"""Filters of which the rows are remembered, those asked last; fewer of wide ones: as many as have
all rows together, were they like the last one found."""
ABSENT = -1
"""Stands where a row has no value."""
POSITIONS_KEPT = 2
"""Positions in posting lists per step, at most; with all keys in use a step takes 56 bytes."""
WIDE = 4
"""Lists of more than one in so many steps are not kept: others of more use would have to go."""
LIST_COSTS = 64
"""Positions that a list counts besides its own: what Python needs to keep it."""
NOWHERE = np.empty(0, np.int32)
Positions = npt.NDArray[np.int32]
"""Places in the columns."""
TIME, SCORE = "created_at", "score"
Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
Value = str | tuple[str, Any] | None
"""What is numbered: a text, or a value of metadata with its kind."""

_METADATA = "metadata:"
_UTC = "+00:00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {TIME: np.int64, SCORE: np.float64}


class Column:
    """Numbers in a row that grows at its end."""

    def __init__(self, values: Values) -> None:
        self._room, self._size = values, len(values)

    @classmethod
    def of(cls, name: StepKey, count: int = 0) -> Column:
        """Return the column of a key, of rows that have no value."""
        return cls(nothing(name, count))

    @property
    def values(self) -> Values:
        """All of them; of a column from a file not to be written to."""
        return self._room[: self._size]

    def extend(self, values: Values) -> None:
        """Add those of the next rows."""
        size = self._size + len(values)
        if size > len(self._room):
            grown = np.empty(max(size, self._size + self._size // 4), self._room.dtype)
            grown[: self._size] = self.values
            self._room = grown
        self._room[self._size : size] = values
        self._size = size

    def cut(self, count: int) -> None:
        """Keep the first ones; no file has more."""
        self._size = min(self._size, count)

    def keep(self, kept: Flags) -> None:
        """Drop the other rows."""
        self._room = self.values[kept]
        self._size = len(self._room)


class Numbers:
    """The number of each value that a key has had; numbers only grow."""

    def __init__(self) -> None:
        self._tables: dict[StepKey, defaultdict[Any, int]] = {}

    def of(self, name: StepKey) -> defaultdict[Any, int]:
        """Return the table of a key; ids of calls are those that enclosing calls have."""
        name = "program_id" if name == "call_id" else name
        if name not in self._tables:
            table = self._tables[name] = defaultdict[Any, int]()
            table.default_factory = table.__len__
        return self._tables[name]

    def known(self, name: StepKey, values: Iterable[Any]) -> list[int]:
        """Return the numbers of those values that some row has had."""
        table = self.of(name)
        return [table[value] for value in dict.fromkeys(values) if value in table]

    def encoded(self, name: StepKey, values: Sequence[Any]) -> Values:
        """Return the column of some values."""
        if name == TIME:
            return times(values)
        if name == SCORE:
            return np.array(values, np.float64)
        return np.fromiter(map(self.of(name).__getitem__, values), np.int32, len(values))

    def to_arrays(self, columns: Mapping[StepKey, Column]) -> dict[str, Values | bytes]:
        """Return columns, and of their values those that some row still has."""
        arrays: dict[str, Values | bytes] = {
            f"column {name}": columns[name].values for name in columns if name in _TYPES
        }
        numbered = [name for name in columns if name not in _TYPES]
        for name in numbered:
            self.of(name)  # a column without rows may have no table yet
        for name, table in self._tables.items():
            same = [one for one in numbered if self.of(one) is table]
            used = np.zeros(len(table) + 1, np.bool_)  # the last for rows without a value
            for one in same:
                used[columns[one].values] = True
            anew = np.append((np.cumsum(used[:-1]) - 1).astype(np.int32), np.int32(ABSENT))
            arrays |= {f"column {one}": anew[columns[one].values] for one in same}
            kept = [value for value, number in table.items() if used[number]]
            arrays[f"values {name}"] = orjson.dumps(kept)
        return arrays

    def take_over(self, arrays: Mapping[str, Values]) -> dict[StepKey, Column]:
        """Return the columns of arrays that `to_arrays` gave, and know their values."""
        columns: dict[StepKey, Column] = {}
        for name in arrays:
            kind, _, key = name.partition(" ")
            if kind == "column":
                columns[key] = Column(arrays[name])
            elif kind == "values":
                table = self.of(key)
                for value in cast("list[Value | list[str]]", orjson.loads(arrays[name].tobytes())):
                    table[tuple(value) if isinstance(value, list) else value]
        return columns


class Answers:
    """The rows of filters, until rows come or go."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], Values] = {}

    def known(self, asked: tuple[str, ...]) -> Values | None:
        """Return the rows of a filter that is remembered."""
        found = self._rows.pop(asked, None)
        if found is not None:
            self._rows[asked] = found  # the last to go
        return found

    def kept(self, asked: tuple[str, ...], found: Values, count: int) -> Values:
        """Return the rows of a filter, read-only, and remember them; there are `count` in all."""
        found.flags.writeable = False
        room = max(1, count // max(1, len(found) + len(asked) - 1))
        while len(self._rows) >= min(room, ANSWERS_KEPT):
            del self._rows[next(iter(self._rows))]
        self._rows[asked] = found
        return found

    def clear(self) -> None:
        """Forget all."""
        self._rows.clear()


class PostingLists:
    """Where some values stand, ascending; the lists of those asked for last are kept."""

    def __init__(self) -> None:
        self._lists: dict[tuple[StepKey, int], tuple[Positions, int]] = {}
        self._kept = 0

    def of(self, name: StepKey, number: int, column: Values) -> Positions:
        """Return all positions of a value in the column of a key."""
        known = self._lists.pop((name, number), None)
        found, through = known or (NOWHERE, 0)
        if known is not None:
            self._kept -= len(found) + LIST_COSTS
        if through < len(column):
            fresh = np.flatnonzero(column[through:] == number) + through
            found = np.concatenate((found, fresh.astype(np.int32)))
        if len(found) > len(column) // WIDE:
            return found
        self._lists[name, number] = found, len(column)
        self._kept += len(found) + LIST_COSTS
        while self._kept > POSITIONS_KEPT * len(column):
            oldest, _ = self._lists.pop(next(iter(self._lists)))
            self._kept -= len(oldest) + LIST_COSTS
        return found

    def cut(self, count: int) -> None:
        """Forget the places that the columns have no more, which were cut."""
        for key, (found, through) in self._lists.items():
            left = found[: np.searchsorted(found, count)]
            self._kept -= len(found) - len(left)
            self._lists[key] = left, min(through, count)


def nothing(name: StepKey, count: int) -> Values:
    """Return what stands in a column of so many rows without a value."""
    kind = _TYPES.get(name, np.int32)
    return np.full(count, np.nan if name == SCORE else ABSENT, kind)


def metadata_key(name: str) -> StepKey:
    """Return the name of the column of a metadata key."""
    return f"{_METADATA}{name}"


def metadata_name(key: StepKey) -> str | None:
    """Return the metadata key of a column; None: it is that of another key."""
    return key.removeprefix(_METADATA) if key.startswith(_METADATA) else None


def is_valued(name: StepKey) -> bool:
    """Tell whether not all rows have such a key: a score, or a metadata key."""
    return name == SCORE or metadata_name(name) is not None


def without(rows: Values, gone: Values) -> Values:
    """Return ascending rows but for some."""
    if not len(rows) or not len(gone):
        return rows
    places = np.minimum(np.searchsorted(rows, gone), len(rows) - 1)
    passing = np.ones(len(rows), np.bool_)
    passing[places[rows[places] == gone]] = False
    return rows[passing]


def one_of(values: Values, numbers: Sequence[int]) -> Flags:
    """Return which values are among some numbers."""
    if len(numbers) == 1:
        return values == numbers[0]
    wanted = np.zeros(max(numbers, default=0) + 2, np.bool_)  # the last for what is none of them
    wanted[list(numbers)] = True
    return wanted[np.minimum(values, len(wanted) - 1)]


def times(texts: Sequence[str | None]) -> Values:
    """Return times as microseconds; none lies before all."""
    if all(text is not None and text.endswith(_UTC) for text in texts):  # as bodies write them
        plain = [text[: -len(_UTC)] for text in texts if text is not None]
        return np.array(plain, "datetime64[us]").astype(np.int64)
    return np.array([microseconds(text) for text in texts], np.int64)


def microseconds(moment: str | datetime | None) -> int:
    """Return a time as a whole number; none lies before all."""
    if moment is None:
        return np.iinfo(np.int64).min
    made = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (made - _EPOCH) // timedelta(microseconds=1)


def equalities(where: StepFilter) -> Iterator[tuple[StepKey, Sequence[Value]]]:
    """Yield keys that must have one of some values, those first that leave least as a rule."""
    yield from where.equalities()
    for key, value in (where.metadata or {}).items():
        yield metadata_key(key), [scalar_kind(value)]
    if where.scope not in (EVERY_SCOPE, UNREVOKED):
        yield "scope", [where.scope]
