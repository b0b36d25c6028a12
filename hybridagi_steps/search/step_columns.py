"""Hashes and parent links of steps, by row: who says the same, who stands under whom.

Four columns of numbers side by side; a column is sorted when it is first looked things up in, and
what comes later is inserted. Spoken turns have columns of their own, which a memory without them
does not pay for: session, length, speaker, and two flags. Not thread-safe by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import Rows, TextRow
from hybridagi_steps.records.step_text import SpokenTurn

NO_ROW = -1
"""Stands where a step has no parent, or a row is not held."""

_Value = TypeVar("_Value")
_TURN_TYPES = {
    "rows": np.int64,
    "sessions": np.int32,
    "lengths": np.int32,
    "asks": np.bool_,
    "dated": np.bool_,
    "exchanges": np.bool_,
    "speakers": np.int32,
}
_NAMES = ("rows", "parent_rows", "text_hashes", "purpose_hashes")


class StepColumns:
    """Hashes and parent links of steps, by row."""

    def __init__(self) -> None:
        self._columns: dict[str, Rows] = {name: np.empty(0, np.int64) for name in _NAMES}
        self._size = 0
        self._sorted: dict[str, tuple[Rows, Rows]] = {}

    def __len__(self) -> int:
        """Number of steps held."""
        return int(np.count_nonzero(self._column("rows") != NO_ROW))

    def add(self, texts: Iterable[TextRow]) -> None:
        """Add steps; a row already held is replaced."""
        fresh = [
            (t.row, NO_ROW if t.parent_row is None else t.parent_row, t.text_hash, t.purpose_hash)
            for t in texts
        ]
        if not fresh:
            return
        table = np.array(fresh, np.int64)
        self.remove(table[:, 0])
        self._reserve(len(table))
        for number, name in enumerate(_NAMES):
            self._columns[name][self._size : self._size + len(table)] = table[:, number]
        first = self._size
        self._size += len(table)
        self._insert_sorted(first)

    def remove(self, rows: Rows) -> None:
        """Forget rows; unknown ones are skipped."""
        positions = self._find("rows", rows)
        positions = positions[positions != NO_ROW]
        if not len(positions):
            return
        if not self._columns["rows"].flags.writeable:
            self._columns = {name: column.copy() for name, column in self._columns.items()}
        for name, gone in zip(_NAMES, (NO_ROW, NO_ROW, 0, 0), strict=True):
            self._columns[name][positions] = gone
        self._sorted.clear()

    def held(self) -> Rows:
        """Return all rows, ascending."""
        rows = self._order("rows")[0]
        return rows[np.searchsorted(rows, NO_ROW, side="right") :]

    def with_text(self, text_hash: int, passing: Callable[[Rows], Rows] | None = None) -> Rows:
        """Return the rows whose own text, or else whose purpose, has this hash, newest first.

        Args:
            text_hash: The hash.
            passing: Returns those of some rows that count: what others say is no reason not to
                look at purposes.
        """
        for name in ("text_hashes", "purpose_hashes"):
            known, order = self._order(name)
            first, last = (np.searchsorted(known, text_hash, side) for side in ("left", "right"))
            found = self._column("rows")[order[first:last]]
            found = found[found != NO_ROW]
            found = passing(found) if passing is not None else found
            if len(found):
                return np.sort(found)[::-1]
        return np.empty(0, np.int64)

    def text_hashes(self, rows: Rows) -> Rows:
        """Return the hash of each row's own text, 0 where it is not held."""
        return self._look_up("text_hashes", rows, missing=0)

    def purpose_hashes(self, rows: Rows) -> Rows:
        """Return the purpose hash of each row, 0 where it is not held."""
        return self._look_up("purpose_hashes", rows, missing=0)

    def with_purposes(self, hashes: Rows) -> Rows:
        """Return all rows whose purpose hash is one of these."""
        known, order = self._order("purpose_hashes")
        first, last = np.searchsorted(known, hashes), np.searchsorted(known, hashes, side="right")
        runs = _runs(order, first, last)
        if not runs:
            return np.empty(0, np.int64)
        return np.unique(self._column("rows")[np.concatenate(runs)])

    def parents(self, rows: Rows) -> Rows:
        """Return each row's parent row, `NO_ROW` where there is none."""
        return self._look_up("parent_rows", rows, missing=NO_ROW)

    def children(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return all children of `rows` and, beside each, its parent."""
        known, order = self._order("parent_rows")
        first, last = np.searchsorted(known, rows), np.searchsorted(known, rows, side="right")
        runs = _runs(order, first, last)
        if not runs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        positions = np.concatenate(runs)
        return self._column("rows")[positions], self._column("parent_rows")[positions]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns without the gaps of removed rows."""
        held = self._column("rows") != NO_ROW
        return {name: self._column(name)[held] for name in _NAMES}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> StepColumns:
        """Return the columns that `to_arrays` described."""
        columns = cls()
        columns._columns = {name: arrays[name] for name in _NAMES}
        columns._size = len(arrays["rows"])
        return columns

    def _column(self, name: str) -> Rows:
        return self._columns[name][: self._size]

    def _order(self, name: str) -> tuple[Rows, Rows]:
        """Return a column sorted, and the position each value came from."""
        if name not in self._sorted:
            order = np.argsort(self._column(name), kind="stable")
            self._sorted[name] = self._column(name)[order], order
        return self._sorted[name]

    def _insert_sorted(self, first: int) -> None:
        """Insert what stands from position `first` on into the columns sorted so far.

        A search after every append would otherwise sort whole columns of random hashes each time.
        """
        for name, (known, order) in self._sorted.items():
            fresh = self._column(name)[first:]
            turn = np.argsort(fresh, kind="stable")
            places = np.searchsorted(known, fresh[turn], side="right")
            self._sorted[name] = (
                np.insert(known, places, fresh[turn]),
                np.insert(order, places, turn + first),
            )

    def _find(self, name: str, values: Rows) -> Rows:
        """Return the position of each value in a column, `NO_ROW` where it is missing."""
        known, order = self._order(name)
        if not len(known):
            return np.full(len(values), NO_ROW, np.int64)
        found = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.where((known[found] == values) & (values != NO_ROW), order[found], NO_ROW)

    def _look_up(self, name: str, rows: Rows, *, missing: int) -> Rows:
        positions = self._find("rows", rows)
        if not self._size:
            return np.full(len(rows), missing, np.int64)
        return np.where(positions == NO_ROW, missing, self._column(name)[positions])

    def _reserve(self, more: int) -> None:
        need = self._size + more
        if need <= len(self._columns["rows"]):
            return
        room = max(need, 2 * self._size, 1024)
        for name in _NAMES:
            grown = np.zeros(room, np.int64)
            grown[: self._size] = self._column(name)
            self._columns[name] = grown


class TurnColumns:
    """Facts about spoken turns, by row."""

    def __init__(self) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(0, kind) for name, kind in _TURN_TYPES.items()
        }
        self._speakers: dict[str, int] = {}
        self._sessions: dict[int, int] = {}

    def add(self, turns: Iterable[tuple[int, SpokenTurn]]) -> None:
        """Add turns; a row already held is replaced."""
        fresh = dict(turns)
        if not fresh:
            return
        self.remove(np.array([*fresh], np.int64))
        values: dict[str, list[Any]] = {
            "rows": [*fresh],
            "sessions": [
                self._sessions.setdefault(turn.session, len(self._sessions))
                for turn in fresh.values()
            ],
            "lengths": [turn.length for turn in fresh.values()],
            "asks": [turn.asks for turn in fresh.values()],
            "dated": [turn.dated for turn in fresh.values()],
            "exchanges": [turn.exchange for turn in fresh.values()],
            "speakers": [
                self._speakers.setdefault(turn.speaker, len(self._speakers))
                for turn in fresh.values()
            ],
        }
        joined = {
            name: np.concatenate((column, np.array(values[name], column.dtype)))
            for name, column in self._columns.items()
        }
        order = np.argsort(joined["rows"], kind="stable")
        self._columns = {name: column[order] for name, column in joined.items()}

    def remove(self, rows: Rows) -> None:
        """Forget rows; unknown ones are skipped."""
        gone = np.isin(self.rows, rows) if len(self.rows) else np.zeros(0, np.bool_)
        if gone.any():
            self._columns = {name: column[~gone] for name, column in self._columns.items()}

    @property
    def rows(self) -> Rows:
        """All turns, ascending."""
        return self._columns["rows"]

    @property
    def sessions(self) -> npt.NDArray[Any]:
        """The number of the session of each of them."""
        return self._columns["sessions"]

    @property
    def session_count(self) -> int:
        """Numbers of sessions given out so far."""
        return len(self._sessions)

    def places(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Return where in the columns each row stands, -1 for those that are no turns."""
        if not len(self.rows):
            return np.full(len(rows), -1, np.intp)
        found = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return np.where(self.rows[found] == rows, found, -1)

    def column(self, name: str, places: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Return `lengths`, `asks`, `dated` or `exchanges` at some places."""
        return self._columns[name][places]

    def spoken_by(self, places: npt.NDArray[np.intp], names: Collection[str]) -> npt.NDArray[Any]:
        """Return which turns have a speaker of whose name some stem is among `names`."""
        numbers = [
            number
            for speaker, number in self._speakers.items()
            if not set(names).isdisjoint(speaker.split())
        ]
        return np.isin(self._columns["speakers"][places], numbers)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns, the names of speakers and the hashes of sessions still in use."""
        names, speakers = _used([*self._speakers], self._columns["speakers"])
        hashes, sessions = _used([*self._sessions], self._columns["sessions"])
        return {
            **self._columns,
            "speakers": speakers,
            "sessions": sessions,
            "names": np.frombuffer("\n".join(names).encode(), np.uint8),
            "hashes": np.array(hashes, np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TurnColumns:
        """Return the columns that `to_arrays` described."""
        columns = cls()
        columns._columns = {name: arrays[name] for name in _TURN_TYPES}
        columns._sessions = {known: n for n, known in enumerate(arrays["hashes"].tolist())}
        if columns._sessions:
            names = arrays["names"].tobytes().decode().split("\n")
            columns._speakers = {name: number for number, name in enumerate(names)}
        return columns


def _runs(order: Rows, first: npt.NDArray[Any], last: npt.NDArray[Any]) -> list[Rows]:
    """Return what stands from each `first` to each `last`, where that is anything."""
    (some,) = (last > first).nonzero()
    pairs = zip(first[some].tolist(), last[some].tolist(), strict=True)
    return [order[start:end] for start, end in pairs]


def _used(values: list[_Value], numbers: npt.NDArray[Any]) -> tuple[list[_Value], Any]:
    """Return the values that a column of numbers names, and the column numbered anew."""
    used, column = np.unique(numbers, return_inverse=True)
    return [values[number] for number in used.tolist()], column.astype(np.int32)
