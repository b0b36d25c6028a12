"""Hashes and parent links of steps, by row: who says the same, who stands under whom.

Four columns of numbers side by side; a column is sorted when it is first looked things up in, and
what came later stands beside it, sorted too, until it is much. Removed rows are marked, and dropped
when they are many, so that what is sorted outlives them. Spoken turns have columns of their own,
which a memory without them does not pay for: session, length, speaker, and two flags. Not
thread-safe by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import Rows, TextRow
from hybridagi_steps.records.step_text import SpokenTurn
from hybridagi_steps.records.store_values import distinct
from hybridagi_steps.search.forward_index import Scores

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
_FEW_DEAD = 64
_DEAD_SHARE = 0.1
"""Share of removed rows from which columns are made without them."""
_FEW_FRESH, _FRESH_SHARE = 1_024, 64
"""So many rows, or one in so many, are sorted anew with each look before they join the others."""
_NAMES = ("rows", "parent_rows", "text_hashes", "purpose_hashes")


class StepColumns:
    """Hashes and parent links of steps, by row."""

    def __init__(self) -> None:
        self._columns: dict[str, Rows] = {name: np.empty(0, np.int64) for name in _NAMES}
        self._alive = np.empty(0, np.bool_)
        self._size, self._dead = 0, 0
        self._sorted: dict[str, list[_Sorted]] = {}
        self._found: tuple[Rows, Rows] | None = None
        self._saved: Mapping[str, npt.NDArray[Any]] = {}
        self._held: Rows | None = None

    def __len__(self) -> int:
        """Number of steps held."""
        return self._size - self._dead

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
        self._found = None
        first, self._size = self._size, self._size + len(table)
        for number, name in enumerate(_NAMES):
            self._columns[name][first : self._size] = table[:, number]
        self._alive[first : self._size] = True
        self._held = None

    def remove(self, rows: Rows) -> None:
        """Forget rows; unknown ones are skipped."""
        positions = self._find(rows)
        positions = positions[positions != NO_ROW]
        if not len(positions):
            return
        self._alive[positions] = False
        self._found = None
        self._dead, self._held = self._dead + len(positions), None
        if self._dead > max(_FEW_DEAD, _DEAD_SHARE * self._size):
            self._drop_dead()

    def held(self) -> Rows:
        """Return all rows, ascending; not to be written to."""
        if self._held is None:
            self._held = np.sort(self._column("rows")[self._alive[: self._size]], kind="stable")
        return self._held

    def with_text(self, text_hash: int, passing: Callable[[Rows], Rows] | None = None) -> Rows:
        """Return the rows whose own text, or else whose purpose, has this hash, newest first.

        Args:
            text_hash: The hash.
            passing: Returns those of some rows that count: what others say is no reason not to
                look at purposes.
        """
        for name in ("text_hashes", "purpose_hashes"):
            found = self._column("rows")[self._having(name, np.array([text_hash]))]
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

    def crowds(self, hashes: Rows, most: int, passing: Callable[[Rows], Rows]) -> list[Rows]:
        """Return, for each of these texts that more than `most` rows have which pass, these."""
        places = (self._having("text_hashes", hashes[n : n + 1]) for n in range(len(hashes)))
        passed = (passing(self._column("rows")[each]) for each in places if len(each) > most)
        return [rows for rows in passed if len(rows) > most]

    def with_purposes(self, hashes: Rows) -> Rows:
        """Return all rows whose purpose hash is one of these."""
        return distinct(self._column("rows")[self._having("purpose_hashes", hashes)])

    def parents(self, rows: Rows) -> Rows:
        """Return each row's parent row, `NO_ROW` where there is none."""
        return self._look_up("parent_rows", rows, missing=NO_ROW)

    def children(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return all children of `rows` and, beside each, its parent."""
        positions = self._having("parent_rows", rows)
        return self._column("rows")[positions], self._column("parent_rows")[positions]

    def best_neighbours(self, rows: Rows, scores: Scores, worth: Scores) -> Scores:
        """Return the best score among each row's parent and children, one hop."""
        parents = self.parents(rows)
        place = np.minimum(np.searchsorted(rows, parents), len(rows) - 1) if len(rows) else parents
        linked = np.flatnonzero(rows[place] == parents) if len(rows) else place
        both = np.minimum(worth[linked], worth[place[linked]])
        best = np.zeros(len(rows))
        np.maximum.at(best, linked, both * scores[place[linked]])
        np.maximum.at(best, place[linked], both * scores[linked])
        return best

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns without removed rows, and the order in which each ascends."""
        if self._dead:
            self._drop_dead()
        orders = {f"{name}_order": self._parts(name)[0].order.astype(np.int32) for name in _NAMES}
        return {name: self._column(name) for name in _NAMES} | orders

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> StepColumns:
        """Return the columns that `to_arrays` described; an order is read when it is needed."""
        columns = cls()
        columns._take_over({name: arrays[name] for name in _NAMES})
        columns._saved = arrays
        return columns

    def _drop_dead(self) -> None:
        """Leave removed rows out; what is sorted stays so: to sort it anew takes ten times that."""
        alive = self._alive[: self._size]
        places = np.cumsum(alive) - 1
        known = {*self._sorted, *(name for name in _NAMES if f"{name}_order" in self._saved)}
        ordered = {name: self._parts(name) for name in known}
        self._take_over({name: self._column(name)[alive] for name in _NAMES})
        for name, parts in ordered.items():
            base = parts[0].joined(parts[1]) if parts[1:] else parts[0]
            kept = alive[base.order]
            self._sorted[name] = [_Sorted(base.values[kept], places[base.order[kept]])]

    def _take_over(self, columns: dict[str, Rows]) -> None:
        self._columns, self._size, self._dead = columns, len(columns["rows"]), 0
        self._alive = np.ones(self._size, np.bool_)
        self._sorted, self._saved, self._found = {}, {}, None

    def _column(self, name: str) -> Rows:
        return self._columns[name][: self._size]

    def _parts(self, name: str) -> list[_Sorted]:
        """Return what a column is sorted in: nearly all, and what came since, if anything did.

        A search after every append would otherwise sort whole columns of random hashes each time.
        """
        parts = self._sorted.get(name)
        if parts is None:
            column, saved = self._column(name), self._saved.get(f"{name}_order")
            order = np.argsort(column, kind="stable") if saved is None else saved
            parts = self._sorted[name] = [_Sorted(column[order], order)]
        if sum(len(part.order) for part in parts) < self._size:
            base = parts[0]
            fresh = _Sorted.of(self._column(name)[len(base.order) :], len(base.order))
            many = len(fresh.order) > max(_FEW_FRESH, len(base.order) // _FRESH_SHARE)
            parts = self._sorted[name] = [base.joined(fresh)] if many else [base, fresh]
        return parts

    def _having(self, name: str, values: Rows) -> Rows:
        parts = [part.having(values) for part in self._parts(name)]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found[self._alive[found]] if self._dead else found

    def _find(self, rows: Rows) -> Rows:
        """Return the position of each row, `NO_ROW` where it is missing.

        Asked again of the same array, which a search does with its candidates, it is remembered.
        """
        if self._found is not None and self._found[0] is rows:
            return self._found[1]
        found = np.full(len(rows), NO_ROW, np.int64)
        for known, order in self._parts("rows"):
            if len(known):
                # A replaced row stands twice; the last of equal rows is the newest.
                place = np.maximum(known.searchsorted(rows, side="right") - 1, 0)
                position = order[place]
                held = (known[place] == rows) & self._alive[position]
                found = np.where(held, position, found)
        self._found = rows, found
        return found

    def _look_up(self, name: str, rows: Rows, *, missing: int) -> Rows:
        if not self._size:
            return np.full(len(rows), missing, np.int64)
        positions = self._find(rows)
        return np.where(positions == NO_ROW, missing, self._column(name)[positions])

    def _reserve(self, more: int) -> None:
        need = self._size + more
        if need <= len(self._alive):
            return
        room = max(need, 2 * self._size, 1024)
        for name in _NAMES:
            grown = np.empty(room, np.int64)
            grown[: self._size] = self._column(name)
            self._columns[name] = grown
        self._alive = np.append(self._alive[: self._size], np.zeros(room - self._size, np.bool_))


class _Sorted(NamedTuple):
    """Values ascending, and the position each came from; of equal ones the first comes first."""

    values: Rows
    order: npt.NDArray[Any]

    @classmethod
    def of(cls, values: Rows, first: int) -> _Sorted:
        """Sort values that stand from position `first` on."""
        turn = np.argsort(values, kind="stable")
        return cls(values[turn], turn + first)

    def joined(self, later: _Sorted) -> _Sorted:
        """Return this with what stands behind it."""
        places = np.searchsorted(self.values, later.values, side="right")
        return _Sorted(
            np.insert(self.values, places, later.values), np.insert(self.order, places, later.order)
        )

    def having(self, values: Rows) -> npt.NDArray[Any]:
        """Return the positions of some values."""
        first = self.values.searchsorted(values)
        count = self.values.searchsorted(values, side="right") - first
        behind = count.cumsum()
        places = (first - behind + count).repeat(count)
        places += np.arange(len(places))
        return self.order[places]


class TurnColumns:
    """Facts about spoken turns, by row."""

    def __init__(self) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(0, kind) for name, kind in _TURN_TYPES.items()
        }
        self._room = dict(self._columns)
        """What the columns are the beginning of, unless turns went or came in between."""
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
        order = np.argsort(values["rows"], kind="stable")
        new = {name: np.array(values[name], kind)[order] for name, kind in _TURN_TYPES.items()}
        behind = len(self.rows)
        if behind and new["rows"][0] < self.rows[-1]:
            joined = {name: np.concatenate((self._columns[name], new[name])) for name in new}
            order = np.argsort(joined["rows"], kind="stable")
            self._columns = {name: column[order] for name, column in joined.items()}
            return
        need = behind + len(order)
        if need > len(self._room["rows"]) or self.rows.base is not self._room["rows"]:
            for name, column in self._columns.items():
                self._room[name] = np.empty(need + need // 8 + 64, column.dtype)
                self._room[name][:behind] = column
        for name, room in self._room.items():
            room[behind:need] = new[name]
        self._columns = {name: room[:need] for name, room in self._room.items()}

    def remove(self, rows: Rows) -> None:
        """Forget rows; unknown ones are skipped."""
        places = self.places(rows)
        if (gone := places[places >= 0]).size:
            self._columns = {n: np.delete(column, gone) for n, column in self._columns.items()}

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

    def session_hashes(self, rows: Rows) -> list[int]:
        """Return the hashes of the sessions of some turns."""
        numbers = {*self._columns["sessions"][self.places(rows)].tolist()}
        return [known for known, number in self._sessions.items() if number in numbers]

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


def turns_of(texts: Iterable[TextRow]) -> Iterator[tuple[int, SpokenTurn]]:
    """Yield the rows among some that are spoken turns, each with what counts of it."""
    spoken = (text for text in texts if text.tokens.count("\n") > 1)
    return ((text.row, SpokenTurn.of_line(text.tokens.split("\n", 2)[2])) for text in spoken)


def _used(values: list[_Value], numbers: npt.NDArray[Any]) -> tuple[list[_Value], Any]:
    """Return the values that a column of numbers names, and the column numbered anew."""
    used, column = np.unique(numbers, return_inverse=True)
    return [values[number] for number in used.tolist()], column.astype(np.int32)
