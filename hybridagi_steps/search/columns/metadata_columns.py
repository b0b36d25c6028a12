"""Columns of metadata: of each key the rows that have it, with the numbers of their values.

All keys of a row are read at once: most of the time goes into finding and parsing what is stored,
whatever is asked of it. So a key that no row has is known to be none, and one that few rows have
takes little. Of a key with very many values their hashes are kept: whoever asks compares what is
stored of the few rows with that hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import orjson

from hybridagi_steps.records.store_values import Metadata, Rows
from hybridagi_steps.search.columns.key_columns import (
    ABSENT,
    LONG_TEXT,
    NOWHERE,
    Column,
    Flags,
    Positions,
    Value,
    Values,
    ValueTable,
    plain_value,
    renumbered,
    value_line,
)

MOST_KEYS = 256
"""Keys that are held, those met first; filters by others ask the store."""
MOST_VALUES = 50_000
"""Values of a key that are numbered; of more their hashes are kept."""
_HASH_BITS = 2**31 - 1


class KeyValues(NamedTuple):
    """Of one key the rows that have it, ascending, and what they have."""

    rows: Rows
    numbers: npt.NDArray[np.intp]
    """Of each row the place of its value in `values`."""
    values: Sequence[Any]


def by_key(found: Metadata) -> Mapping[str, KeyValues]:
    """Return the metadata of rows by key."""
    if isinstance(found, Mapping):
        return {key: KeyValues(*of_key) for key, of_key in found.items()}
    held: dict[str, tuple[list[int], list[Any]]] = {}
    for row, metadata in found:
        for key, value in metadata.items():
            if (of_key := held.get(key)) is None:
                of_key = held[key] = [], []
            of_key[0].append(row)
            of_key[1].append(value)
    return {
        key: KeyValues(np.array(rows, np.int64), np.arange(len(rows)), values)
        for key, (rows, values) in held.items()
    }


class MetadataColumns:
    """What rows have as metadata, up to some place."""

    def __init__(self, saved: Mapping[str, Values] | None = None) -> None:
        """Begin with the arrays that `to_arrays` gave, of which a key is read when it is needed."""
        self._saved: Mapping[str, Values] = {} if saved is None else saved
        self._keys: dict[str, _Key] = {}
        self._unread: dict[str, bool] = {}
        self._size, self._more = 0, False
        if "metadata" in self._saved:
            told = orjson.loads(self._saved["metadata"].tobytes())
            self._size, self._more, self._unread = told["rows"], told["more"], told["keys"]
        self._saved_size = self._size

    def __len__(self) -> int:
        """Rows whose metadata are known."""
        return self._size

    def holds(self, key: str) -> bool:
        """Tell whether it is known which rows have a key."""
        return not self._more or key in self._keys or key in self._unread

    def load(self, keys: Iterable[str] | None = None) -> None:
        """Read some keys, or all, of the file."""
        for key in [*self._unread] if keys is None else keys:
            if key in self._unread:
                self._keys[key] = _Key.saved(self._saved, key, self._saved_size)
                del self._unread[key]

    def extend(self, rows: Rows, count: int, found: Metadata) -> None:
        """Add the next of some rows, so many; what is `found` of others is left out."""
        for key, of_key in by_key(found).items():
            self.load([key])
            if key not in self._keys:
                if len(self._keys) + len(self._unread) == MOST_KEYS:
                    self._more = True
                    continue
                self._keys[key] = _Key()
            self._keys[key].extend(rows, of_key)
        self._size += count

    def positions(self, key: str, value: Value) -> tuple[Positions, bool]:
        """Return where a key has a value, and whether that is sure; else others may be there."""
        self.load([key])
        of_key = self._keys.get(key)
        return (NOWHERE, True) if of_key is None else of_key.having(value)

    def cut(self, count: int) -> None:
        """Keep the first ones."""
        if count < self._saved_size:
            self.load()
        for key in self._keys.values():
            key.cut(count)
        self._size = min(self._size, count)

    def keep(self, kept: Flags) -> None:
        """Drop the other rows."""
        self.load()
        kept = kept[: self._size]
        places = np.cumsum(kept, dtype=np.int32) - np.int32(1)
        for key in self._keys.values():
            key.keep(kept, places)
        self._size = int(np.count_nonzero(kept))

    def to_arrays(self, count: int) -> dict[str, Values | bytes]:
        """Return what is known of the first rows, so many."""
        self.load()
        count = min(count, self._size)
        arrays: dict[str, Values | bytes] = {}
        for key, held in self._keys.items():
            arrays |= {f"metadata {part} {key}": each for part, each in held.parts(count)}
        keys = {key: held.values is None for key, held in self._keys.items()}
        told = {"rows": count, "more": self._more, "keys": keys}
        return {"metadata": orjson.dumps(told), **arrays}


class _Key:
    """One key: places, and beside each the number of its value, or that value's hash."""

    def __init__(
        self,
        places: Positions = NOWHERE,
        numbers: Values = NOWHERE,
        values: ValueTable | None = None,
        *,
        hashed: bool = False,
    ) -> None:
        self._places, self._numbers = Column(places), Column(numbers)
        self.values = None if hashed else values or ValueTable()

    @classmethod
    def saved(cls, arrays: Mapping[str, Values], key: str, count: int) -> _Key:
        """Return what `parts` gave; what all rows have has no places."""
        named = {part: f"metadata {part} {key}" for part in ("places", "numbers", "values")}
        every = named["places"] not in arrays
        places = np.arange(count, dtype=np.int32) if every else arrays[named["places"]]
        numbers = arrays[named["numbers"]]
        if named["values"] not in arrays:
            return cls(places, numbers, hashed=True)
        return cls(places, numbers, ValueTable(arrays[named["values"]].tobytes()))

    def extend(self, rows: Rows, found: KeyValues) -> None:
        plain = [
            value
            if type(value) is str and len(value) <= LONG_TEXT  # most are, so no call for each
            else plain_value(value)
            for value in found.values
        ]
        places = np.searchsorted(rows, found.rows)
        asked = np.array([value is not None for value in plain], np.bool_)
        kept = (rows[places] == found.rows) & asked[found.numbers]
        self._places.extend(places[kept].astype(np.int32))
        if self.values is not None:
            self._hash_if_many(self.values.numbers, [each for each in plain if each is not None])
        number = _hash if self.values is None else self.values.numbers.__getitem__
        numbers = [ABSENT if value is None else number(value) for value in plain]
        self._numbers.extend(np.array(numbers, np.int32)[found.numbers[kept]])

    def _hash_if_many(self, table: Mapping[Value, int], more: Sequence[Value]) -> None:
        few = len(table) + len(more) <= MOST_VALUES
        if not few and len(table.keys() | {*more}) > MOST_VALUES:
            hashes = np.fromiter(map(_hash, table), np.int32, len(table))
            self._numbers, self.values = Column(hashes[self._numbers.values]), None

    def having(self, value: Value) -> tuple[Positions, bool]:
        """Return where a value may be, and whether it is there for sure."""
        if self.values is None:
            number = -1 if value_line(value) is None else _hash(value)
        else:
            number = next(iter(self.values.known([value])), -1)
        found = self._places.values[self._numbers.values == number]
        return found, self.values is not None

    def cut(self, count: int) -> None:
        left = int(np.searchsorted(self._places.values, count))
        self._places.cut(left)
        self._numbers.cut(left)

    def keep(self, kept: Flags, places: Positions) -> None:
        left = kept[self._places.values]
        self._numbers.keep(left)
        self._places = Column(places[self._places.values[left]])

    def parts(self, count: int) -> Iterable[tuple[str, Values | bytes]]:
        """Yield arrays of the rows before a place."""
        places = self._places.values
        places = places[: np.searchsorted(places, count)]
        numbers = self._numbers.values[: len(places)]
        if len(places) < count:
            yield "places", places
        if self.values is None:
            yield "numbers", numbers
        else:
            anew, lines = renumbered(self.values, [numbers])
            yield "numbers", anew[numbers]
            yield "values", lines


def _hash(value: Value) -> int:
    return crc32(value_line(value) or b"") & _HASH_BITS
