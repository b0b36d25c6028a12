"""What is known of spoken turns besides their words: session, length, speaker, and two flags.

Only rows that are turns stand here, so a memory of agents' steps pays nothing. Sorted by row when
first looked things up in. Not thread-safe by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.spoken_turn import SpokenTurn
from hybridagi_steps.records.store_values import Rows

_Value = TypeVar("_Value")
_TYPES = {
    "rows": np.int64,
    "sessions": np.int32,
    "lengths": np.int32,
    "asks": np.bool_,
    "dated": np.bool_,
    "speakers": np.int32,
}


class TurnColumns:
    """Facts about spoken turns, by row."""

    def __init__(self) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(0, kind) for name, kind in _TYPES.items()
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
        """Return `lengths`, `asks` or `dated` at some places."""
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
        columns._columns = {name: arrays[name] for name in _TYPES}
        columns._sessions = {known: n for n, known in enumerate(arrays["hashes"].tolist())}
        if columns._sessions:
            names = arrays["names"].tobytes().decode().split("\n")
            columns._speakers = {name: number for number, name in enumerate(names)}
        return columns


def _used(values: list[_Value], numbers: npt.NDArray[Any]) -> tuple[list[_Value], Any]:
    """Return the values that a column of numbers names, and the column numbered anew."""
    used, column = np.unique(numbers, return_inverse=True)
    return [values[number] for number in used.tolist()], column.astype(np.int32)
