"""A damaged database as an export reads it: what is whole, and the names of what is not.

Tables are read by ranges of rows, and a range that raises is halved until only the rows that
SQL cannot read are left; indexes only tell which rows there should be. Steps come one by one.
Sessions come as their lines: a line that lacks messages is cut there, and what follows the gap
becomes a session of its own, `<id>~<sequence>`. Nothing is written, and bodies are not kept.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from hybridagi_steps.errors import DamagedFileError, StorageBusyError, StorageError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import (
    ABANDONED,
    MESSAGE_ROWS,
    BranchPosition,
    SessionSummary,
)
from hybridagi_steps.stores.body import decode_message
from hybridagi_steps.stores.checksums import row_checksum
from hybridagi_steps.stores.sql.lineage import OPEN_END, checked_row, checked_session
from hybridagi_steps.stores.sql.tables import Database

_STEPS = """SELECT row, namespace, id, branch_id, sequence, CAST(body AS BLOB), checksum
    FROM agent_step WHERE row BETWEEN ? AND ? ORDER BY row"""
_MESSAGES = """SELECT row, namespace, branch_id, sequence, id, CAST(said AS BLOB),
        CAST(body AS BLOB), said_checksum, checksum
    FROM message WHERE row BETWEEN ? AND ? ORDER BY row"""
_BRANCHES = """SELECT id, namespace, session_id, reach, parent_id, fork_sequence, reason,
        created_at, checksum
    FROM branch WHERE id BETWEEN ? AND ? ORDER BY id"""
# These two are answered by an index alone, which may be whole where the table is not.
_STEPS_LISTED = "SELECT id, row FROM agent_step WHERE namespace = ? ORDER BY id"
_PLACES_LISTED = "SELECT branch_id, sequence FROM message ORDER BY branch_id, sequence"
_SESSIONS = """SELECT id, branch_id, created_at, updated_at, forked_from, forked_at, user_id,
        checksum
    FROM session WHERE namespace = ? ORDER BY id"""
_RUNS = """SELECT run_id, score, feedback, checksum FROM run
    WHERE namespace = ? ORDER BY run_id"""
# The last row of a table, and where that is not readable, what else tells how far rows go.
_LAST_STEP = [
    "SELECT max(row) FROM agent_step WHERE row < ?",
    "SELECT max(row) FROM step_text WHERE row < ?",
    "SELECT max(row) FROM embedding WHERE row < ?",
]
_LAST_MESSAGE = [
    "SELECT max(row) FROM message WHERE row < ?",
    "SELECT row FROM message WHERE +row < ? ORDER BY branch_id, sequence",
]
_LAST_BRANCH = ["SELECT max(id) FROM branch WHERE id < ?"]
_WINDOW = 2_000
_LONGEST_STEM = 100

Decoded = Callable[[int, bytes | str, int | None], AgentStep]
Damaged = Callable[[str], None]
"""Told of each thing that is not whole."""


class _Branch(NamedTuple):
    session_id: str
    reach: int
    parent_id: int | None
    fork_sequence: int
    created_at: str


class _Line(NamedTuple):
    """Messages that follow one another, as a session of the export."""

    session_id: str
    created_at: str
    places: list[BranchPosition]


class Salvaged:
    """What is whole of one namespace; `export_file` reads it as it reads a memory."""

    def __init__(
        self, database: Database, namespace: int, decoded: Decoded, damaged: Damaged
    ) -> None:
        """Read everything once.

        `decoded` returns the step in a row, if it is whole; `damaged` is told of each thing that is
        not.
        """
        self._db, self._namespace = database, namespace
        self._decoded, self._damaged = decoded, damaged
        self._rows: dict[str, int] = {}
        self._pins: dict[str, BranchPosition] = {}
        self._messages: dict[BranchPosition, int] = {}
        self._read_steps()
        self._read_messages()
        self._branches = dict(self._read_branches())
        self._scores = dict(self._read_scores())
        self._lines = {line.session_id: line for line in self._read_lines()}

    def repository(self) -> Self:
        """Return what has the sessions."""
        return self

    @property
    def store(self) -> Self:
        """What has the sessions."""
        return self

    # -- steps

    def get_steps(self, ids: Iterable[str], *, vectors: bool = False) -> list[AgentStep]:  # noqa: ARG002 - embeddings can be made again
        """Return the steps with these ids."""
        rows = {self._rows[step_id]: None for step_id in ids if step_id in self._rows}
        found = {step.id: step for row in rows for _, step in self._steps_in(row, row)}
        return list(found.values())

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        """Yield all steps, or those that no session reads."""
        last = max(self._rows.values(), default=0)
        for first in range(1, last + 1, _WINDOW):
            for _, step in self._steps_in(first, first + _WINDOW - 1):
                if where.scope != ABANDONED or self._is_hidden(id_text(step.id)):
                    yield step

    def run_scores(self, run_ids: Sequence[str]) -> dict[str, tuple[float, str | None]]:
        """Return the scores of those of these runs that have one, and what was said of them."""
        return {run_id: self._scores[run_id] for run_id in run_ids if run_id in self._scores}

    # -- sessions

    def sessions(self, *, limit: int, offset: int = 0) -> list[SessionSummary]:
        """Return the lines, as sessions."""
        return [
            SessionSummary(
                *(line.session_id, 0, len(line.places), ""),
                *(line.created_at, line.created_at, None, None),
            )
            for line in [*self._lines.values()][offset : offset + limit]
        ]

    def messages(self, session_id: str) -> list[Step]:
        """Return the messages of a line, numbered from 1."""
        found: list[Step] = []
        for sequence, place in enumerate(self._lines[session_id].places, 1):
            row = self._messages[place]
            for _, _, *values in self._in_range(_MESSAGES, row, row):
                whole = checked_row(values[0], values[1], *values[1:])
                found.append(decode_message(whole.written, whole.id, session_id, sequence))
        return found

    def pinned_steps(self, session_id: str) -> list[tuple[int, str]]:
        """Return the steps that stand among the messages of a line, in order."""
        places = self._lines[session_id].places
        numbers = {place: number for number, place in enumerate(places, 1)}
        for last in places[-1:]:
            numbers[last._replace(sequence=last.sequence + 1)] = len(places) + 1
        pinned = [
            (numbers[place], self._rows[step_id], step_id)
            for step_id, place in self._pins.items()
            if place in numbers
        ]
        return [(number, step_id) for number, _, step_id in sorted(pinned)]

    # -- inside

    def _read_steps(self) -> None:
        last = self._last(*_LAST_STEP)
        for row, namespace, step_id, branch_id, sequence, body, checksum in self._in_range(
            _STEPS, 1, last
        ):
            if namespace != self._namespace:
                continue
            try:
                step = self._decoded(row, body, checksum)
                step_id = id_text(step.id)
            except DamagedFileError:
                self._damaged(f"the step {step_id!r} in row {row} is not whole")
                self._pins.pop(step_id, None)
                self._rows[step_id] = -row
                continue
            self._rows[step_id] = row
            if branch_id is not None:
                self._pins[step_id] = BranchPosition(branch_id, sequence)
        for step_id, row in self._listed("ids of steps", _STEPS_LISTED, self._namespace):
            if step_id not in self._rows:
                self._damaged(f"the step {step_id!r} in row {row} cannot be read")
        self._rows = {step_id: row for step_id, row in self._rows.items() if row > 0}

    def _steps_in(self, first: int, last: int) -> Iterator[tuple[int, AgentStep]]:
        for row, namespace, _, _, _, body, checksum in self._in_range(_STEPS, first, last):
            if namespace == self._namespace:
                try:
                    step = self._decoded(row, body, checksum)
                except DamagedFileError:
                    continue
                if self._rows.get(id_text(step.id)) == row:
                    yield row, step

    def _is_hidden(self, step_id: str) -> bool:
        """Whether a step stands where its branch is not read; of a lost branch nobody knows."""
        place = self._pins.get(step_id)
        branch = None if place is None else self._branches.get(place.branch_id)
        return place is not None and branch is not None and place.sequence > branch.reach

    def _read_messages(self) -> None:
        last = self._last(*_LAST_MESSAGE)
        for row, namespace, *values in self._in_range(_MESSAGES, 1, last):
            if namespace != self._namespace:
                continue
            branch_id, sequence, message_id, *_ = values
            try:
                checked_row(branch_id, sequence, *values[1:])
            except DamagedFileError:
                self._damaged(f"the message {message_id!r} in row {row} is not whole")
                continue
            self._messages[BranchPosition(branch_id, sequence)] = row

    def _read_scores(self) -> Iterator[tuple[str, tuple[float, str | None]]]:
        for run_id, score, feedback, checksum in self._listed(
            "scores of runs", _RUNS, self._namespace
        ):
            if checksum not in (None, row_checksum(self._namespace, run_id, score, feedback)):
                self._damaged(f"the score of run {run_id!r} is not whole")
            else:
                yield run_id, (score, feedback)

    def _read_branches(self) -> Iterator[tuple[int, _Branch]]:
        known = {place.branch_id for place in (*self._messages, *self._pins.values())}
        last = max(self._last(*_LAST_BRANCH), max(known, default=0))
        for branch_id, namespace, session_id, reach, *values in self._in_range(_BRANCHES, 1, last):
            parent_id, fork_sequence, _, created_at, checksum = values
            if namespace != self._namespace:
                continue
            if checksum not in (None, row_checksum(namespace, *values[:-1])):
                self._damaged(f"the branch {branch_id} of session {session_id!r} is not whole")
                continue
            yield branch_id, _Branch(session_id, reach, parent_id, fork_sequence, created_at)

    def _read_lines(self) -> Iterator[_Line]:
        """Yield the lines of all sessions."""
        ends: dict[int, int] = defaultdict(int)
        listed = (
            BranchPosition(*place) for place in self._listed("places of messages", _PLACES_LISTED)
        )
        for branch_id, sequence in (*self._messages, *listed):
            ends[branch_id] = max(ends[branch_id], sequence)
        for session_id, (branch_id, created_at) in self._tips().items():
            line, gaps = self._line(branch_id, ends)
            for first, last in gaps:
                self._damaged(
                    f"the session {session_id!r} lacks its messages {first} to {last}"
                    if first < last
                    else f"the session {session_id!r} lacks its message {first}"
                )
            for first, places in line if line or gaps else [(1, list[BranchPosition]())]:
                name = session_id if first == 1 else f"{session_id[:_LONGEST_STEM]}~{first}"
                yield _Line(name, created_at, places)

    def _tips(self) -> dict[str, tuple[int, str]]:
        """Return the branch that each session points at, and when the session was made."""
        tips: dict[str, tuple[int, str]] = {}
        for session_id, branch_id, *values in self._listed("sessions", _SESSIONS, self._namespace):
            try:
                row = checked_session(self._namespace, session_id, branch_id, *values)
                tips[session_id] = branch_id, row.created_at
            except DamagedFileError:
                self._damaged(f"the session {session_id!r} is not whole")
        read = (branch for branch in self._branches.items() if branch[1].reach == OPEN_END)
        for branch_id, branch in read:
            if branch.session_id not in tips:
                self._damaged(f"the session {branch.session_id!r} is told by its branch only")
                tips[branch.session_id] = branch_id, branch.created_at
        return tips

    def _line(
        self, tip: int, ends: dict[int, int]
    ) -> tuple[list[tuple[int, list[BranchPosition]]], list[tuple[int, int]]]:
        """Return the stretches of a branch that are whole, and (first, last) of the gaps."""
        places: list[BranchPosition] = []
        branch_id, last = tip, ends[tip]
        while (branch := self._branches.get(branch_id)) is not None:
            last = last or branch.fork_sequence
            own = range(branch.fork_sequence + 1, last + 1)
            places[:0] = [BranchPosition(branch_id, sequence) for sequence in own]
            if branch.parent_id is None or branch.parent_id >= branch_id:
                break
            branch_id, last = branch.parent_id, branch.fork_sequence
        if branch is None and last:
            own = range(1, last + 1)  # from a branch that is lost: what it has itself
            places[:0] = [BranchPosition(branch_id, sequence) for sequence in own]
        line: list[tuple[int, list[BranchPosition]]] = []
        gaps: list[tuple[int, int]] = []
        expected = 1
        for place in places:
            if place not in self._messages:
                continue
            if place.sequence != expected or not line:
                line.append((place.sequence, []))
            if place.sequence > expected:
                gaps.append((expected, place.sequence - 1))
            line[-1][1].append(place)
            expected = place.sequence + 1
        if places and expected <= places[-1].sequence:
            gaps.append((expected, places[-1].sequence))
        return line, gaps

    def _last(self, sql: str, *beside: str) -> int:
        """Return a row that none is beyond: the last, or where that cannot be read, some more."""
        found, whole = self._until_damage(sql, (MESSAGE_ROWS,))
        for other in () if whole else beside:
            found += self._until_damage(other, (MESSAGE_ROWS,))[0]
        last = max((row for (row,) in found if isinstance(row, int)), default=0)
        return last if whole else last + _WINDOW

    def _listed(self, what: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query, as far as it answers, and from its end where it fails."""
        rows, whole = self._until_damage(sql, values)
        if not whole:
            self._damaged(f"the list of {what} is not whole")
            backwards = re.sub(r"(?<=ORDER BY )(.*)", lambda m: m[0].replace(",", " DESC,"), sql)
            rows += self._until_damage(f"{backwards} DESC", values)[0]
        return list(dict.fromkeys(rows))

    def _until_damage(self, sql: str, values: Sequence[Any]) -> tuple[list[Any], bool]:
        found: list[Any] = []
        try:
            with self._db.reading() as connection:
                found.extend(connection.execute(sql, values))
        except StorageBusyError:
            raise
        except StorageError:
            return found, False
        return found, True

    def _in_range(self, sql: str, first: int, last: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a range that can be read."""
        for start in range(first, last + 1, _WINDOW):
            yield from self._halved(sql, start, min(start + _WINDOW - 1, last))

    def _halved(self, sql: str, first: int, last: int) -> Iterator[tuple[Any, ...]]:
        rows, whole = self._until_damage(sql, (first, last))
        if whole:
            yield from rows
        elif first < last:
            middle = (first + last) // 2
            yield from self._halved(sql, first, middle)
            yield from self._halved(sql, middle + 1, last)
