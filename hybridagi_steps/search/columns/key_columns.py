"""Columns of step keys: what a filter compares, one number per row.

A text is numbered, four bytes per row or fewer; a time is microseconds, a score stays a score. It
knows places in columns, neither rows nor the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import compress
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from hybridagi_steps.records.filter_fields import StepKey, values_asked
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import UNREVOKED
from hybridagi_steps.stores.sql.tables import is_storable
from hybridagi_steps.stores.sql.where import INTEGERS, scalar_kind

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
"""What is numbered: a text, or another value of metadata with its kind."""

_METADATA = "metadata:"
_UTC = "+00:00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {TIME: np.int64, SCORE: np.float64}
_KINDS = (np.int8, 2**7 - 1), (np.int16, 2**15 - 1), (np.int32, 2**31)
"""What numbers of so many values are kept as in a file."""
_LINE_END = b"\n"
_FEW_VALUES = 16
"""So many values are looked for one by one in lines that no table was made of."""
LONG_TEXT = 128
"""Characters of a text of metadata beyond which its digest stands for it."""


class Column:
    """Numbers in a row that grows at its end."""

    def __init__(self, values: Values) -> None:
        self._room, self._size = values, len(values)

    @classmethod
    def of(cls, name: StepKey, count: int = 0) -> Column:
        """Return the column of a key, of rows that have no value."""
        return cls(nothing(name, count))

    def __len__(self) -> int:
        return self._size

    @property
    def values(self) -> Values:
        """All of them; of a column from a file not to be written to."""
        return self._room[: self._size]

    def extend(self, values: Values) -> None:
        """Add those of the next rows."""
        if not len(values):
            return
        size, kind = self._size + len(values), self._room.dtype
        if kind.kind == "i" and values.max() > np.iinfo(kind).max:  # a file has them as narrow
            kind = values.dtype
        if size > len(self._room) or kind != self._room.dtype:
            grown = np.empty(max(size, self._size + self._size // 4), kind)
            grown[: self._size] = self.values
            self._room = grown
        self._room[self._size : size] = values
        self._size = size

    def put(self, places: npt.NDArray[Any], values: Values) -> None:
        """Change some of them."""
        if not self._room.flags.writeable:
            self._room = self.values.copy()
        self._room[places] = values

    def cut(self, count: int) -> None:
        """Keep the first ones; no file has more."""
        self._size = min(self._size, count)

    def keep(self, kept: Flags) -> None:
        """Drop the other rows."""
        self._room = self.values[kept[: self._size]]
        self._size = len(self._room)


class ValueTable:
    """The number of each value that a key has had; numbers only grow.

    One from a file is looked through as it stands there until there is a new value: to make a
    table of all takes longer than a search.
    """

    def __init__(self, lines: bytes = _LINE_END) -> None:
        """Begin with the lines that `lines` gave."""
        self._lines, self._numbers = lines, None if len(lines) > 1 else _numbering()

    def __len__(self) -> int:
        return self._lines.count(_LINE_END) - 1 if self._numbers is None else len(self._numbers)

    @property
    def numbers(self) -> defaultdict[Any, int]:
        """All of them; one that is new gets the next number."""
        if self._numbers is None:
            self._numbers = _numbering()
            listed = b"[%b]" % self._lines[1:-1].replace(_LINE_END, b",")
            for value in cast("list[Value | list[str]]", orjson.loads(listed)):
                self._numbers[tuple(value) if isinstance(value, list) else value]
            self._lines = _LINE_END
        return self._numbers

    def known(self, values: Iterable[Any]) -> list[int]:
        """Return the numbers of those values that some row has had."""
        wanted = dict.fromkeys(values)
        if self._numbers is None and len(wanted) <= _FEW_VALUES:
            return [found for found in map(self._looked_up, wanted) if found is not None]
        return [self.numbers[value] for value in wanted if value in self.numbers]

    def _looked_up(self, value: Any) -> int | None:
        if (line := value_line(value)) is None:
            return None
        at = self._lines.find(b"\n%b\n" % line)
        return None if at < 0 else self._lines.count(_LINE_END, 0, at)

    def lines(self, used: Flags) -> bytes:
        """Return the JSON of those values that are used, by number, each on a line."""
        kept = used.tolist()  # and one more, of rows without a value
        if self._numbers is None:
            texts = [*compress(self._lines[1:-1].split(_LINE_END), kept)]
        else:
            texts = [value_line(value) or b"" for value, n in self._numbers.items() if kept[n]]
        return b"\n".join([b"", *texts, b""]) if texts else _LINE_END


def _numbering() -> defaultdict[Any, int]:
    table = defaultdict[Any, int]()
    table.default_factory = table.__len__
    return table


def value_line(value: Value) -> bytes | None:
    """Return the JSON of a value, one for all that are equal; None: no store could have it."""
    if isinstance(value, tuple):
        kind, plain = value
        if isinstance(plain, float) and plain.is_integer() and int(plain) in INTEGERS:
            value = kind, int(plain)
    elif value is not None and not is_storable(value):
        return None
    return orjson.dumps(value)


class Numbers:
    """The number of each value of each key, beside the columns that name them."""

    def __init__(self, saved: Mapping[str, Values] | None = None) -> None:
        """Begin with the arrays that `to_arrays` gave, of which nothing is read yet."""
        self._saved: Mapping[str, Values] = {} if saved is None else saved
        self._tables: dict[StepKey, ValueTable] = {}

    def table(self, name: StepKey) -> ValueTable:
        """Return the table of a key; ids of calls are those that enclosing calls have."""
        name = "program_id" if name == "call_id" else name
        if name not in self._tables:
            stored = f"values {name}"
            lines = self._saved[stored].tobytes() if stored in self._saved else _LINE_END
            self._tables[name] = ValueTable(lines)
        return self._tables[name]

    def of(self, name: StepKey) -> defaultdict[Any, int]:
        """Return the number of each value of a key."""
        return self.table(name).numbers

    def known(self, name: StepKey, values: Iterable[Any]) -> list[int]:
        """Return the numbers of those values of a key that some row has had."""
        return self.table(name).known(values)

    def number(self, name: StepKey, value: Value) -> int:
        """Return the number of one value, `ABSENT` where no row has had it."""
        return next(iter(self.known(name, [value])), ABSENT)

    def encoded(self, name: StepKey, values: Sequence[Any]) -> Values:
        """Return the column of some values."""
        if name == TIME:
            return times(values)
        if name == SCORE:
            return np.array(values, np.float64)
        return np.fromiter(map(self.of(name).__getitem__, values), np.int32, len(values))

    def to_arrays(self, columns: Mapping[StepKey, Values]) -> dict[str, Values | bytes]:
        """Return columns, and of their values those that some row still has."""
        arrays: dict[str, Values | bytes] = {
            f"column {name}": columns[name] for name in columns if name in _TYPES
        }
        numbered = [name for name in columns if name not in _TYPES]
        for name, table in {name: self.table(name) for name in numbered}.items():
            same = [one for one in numbered if self.table(one) is table]
            if name == same[0]:
                anew, lines = renumbered(table, [columns[one] for one in same])
                arrays |= {f"column {one}": anew[columns[one]] for one in same}
                arrays[f"values {'program_id' if name == 'call_id' else name}"] = lines
        return arrays


def renumbered(table: ValueTable, columns: Sequence[Values]) -> tuple[Values, bytes]:
    """Return a new number for each in some columns, without a gap, and the lines of their values.

    The numbers are of the narrowest kind that has room for them.
    """
    used = np.zeros(len(table) + 1, np.bool_)  # the last for rows without a value
    for column in columns:
        used[column] = True
    kind = next(kind for kind, most in _KINDS if np.count_nonzero(used) < most)
    anew = np.append(np.cumsum(used[:-1]) - 1, ABSENT).astype(kind)
    return anew, table.lines(used)


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


def plain_value(value: object) -> Value:
    """Return what is compared of a value of metadata; None of what no filter can ask for."""
    if isinstance(value, str):
        return value if len(value) <= LONG_TEXT else ("digest", _digest(value))
    kind = scalar_kind(value)
    return None if kind[0] == "other" else kind


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


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
    return wanted[np.minimum(values, np.int32(len(wanted) - 1))]


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
    for key, values in values_asked(where.metadata).items():
        yield metadata_key(key), [plain_value(value) for value in values]
    if where.scope not in (EVERY_SCOPE, UNREVOKED):
        yield "scope", [where.scope]
