"""Messages of sessions as a search sees them: what each tells, its keys, and which are hidden.

No second copy of the words is kept: what a message tells follows from it and from what stands
before it in its line, which never changes. Its row is that of the message plus `MESSAGE_ROWS`, so
that words, embeddings and tombstones of messages stand in the tables of those of steps.

A message is of the only user whose steps its run has, else of the only one that steps of its
session have, or of the session that this was forked from. Where they have several, it is no named
user's to find, and nobody's either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import orjson

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.messages.agent_steps import SHOWN
from hybridagi_steps.messages.message_steps import MessageStep, message_steps
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.json_reading import as_list, as_object, as_text
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.step_identity import is_end
from hybridagi_steps.records.store_values import (
    ABANDONED,
    MESSAGE_ROWS,
    REVOKED,
    SEVERAL_USERS,
    Hidden,
    MessagePlace,
    Rows,
)
from hybridagi_steps.stores.body import decode_message
from hybridagi_steps.stores.checksums import damaged
from hybridagi_steps.stores.sql.lineage import (
    checked_row,
    links,
    reader_of,
    tip_of,
)
from hybridagi_steps.stores.sql.message_owners import owners_of, sessions_of
from hybridagi_steps.stores.sql.steps import StepReading
from hybridagi_steps.stores.sql.tables import Connection, many
from hybridagi_steps.stores.sql.where import scalar_kind

_PLACES = """SELECT m.row, m.branch_id, m.sequence, b.session_id FROM message m
    JOIN branch b ON b.id = m.branch_id
    WHERE +m.namespace = ? AND m.row IN (SELECT value FROM json_each(?))"""
_LINE = """SELECT row, sequence, id, CAST(said AS BLOB), CAST(body AS BLOB), said_checksum, checksum
    FROM message WHERE branch_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence"""
_RUN_SCORES = "SELECT run_id, score FROM run WHERE namespace = ? AND score >= ?"
_PAGE_OF_BODIES = """SELECT row, CAST(body AS BLOB), branch_id FROM message
    WHERE +namespace = ? AND row > ? ORDER BY row LIMIT ?"""
_BODIES_OF = """SELECT row, CAST(body AS BLOB), branch_id FROM message
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_OF_LINK = "SELECT row FROM message WHERE branch_id = ? AND sequence BETWEEN ? AND ?"
_ABANDONED = """SELECT m.row FROM branch b
    JOIN message m ON m.branch_id = b.id AND m.sequence > b.reach
    WHERE b.namespace = ? AND b.reach < 9223372036854775807"""
_MARKED = """SELECT m.row FROM revoked r
    JOIN message m ON m.namespace = r.namespace AND m.id = r.step_id WHERE r.namespace = ?"""
_MARKS = "SELECT step_id FROM revoked WHERE namespace = ?"
_IDS_OF = """SELECT id FROM message
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?)) ORDER BY row"""
_LOOK_BACK, _FARTHEST = 8, 512
"""Messages before one that are read to find its question, first and at most."""
_NEAR = 64
"""Messages of a branch that stand closer than this are read together."""
_BODIES_AT_ONCE = 5_000


class Place(NamedTuple):
    """Where a message stands."""

    row: int
    branch_id: int
    sequence: int
    session_id: str


class MessageUnit(NamedTuple):
    """What the message in a row tells; rows of other messages as `MESSAGE_ROWS` counts them."""

    content: MessageStep
    asked: AgentStep | None
    before_row: int | None
    before: AgentStep | None

    @property
    def step(self) -> AgentStep | None:
        """The message as a step."""
        return self.content.step


NOTHING = MessageUnit(MessageStep(None), None, None, None)


class MessageUnits(StepReading):
    """Implements what `IndexedStore` says of messages; see protocols.py for the contract."""

    def message_keys(
        self, names: Sequence[StepKey], *, after: int, limit: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        """Return the next messages above `after` with their keys."""
        with self._db.reading() as connection:
            page = (self._namespace, max(after - MESSAGE_ROWS, 0), limit)
            found = connection.execute(_PAGE_OF_BODIES, page).fetchall()
            lines = sessions_of(connection, {branch_id for *_, branch_id in found})
        sessions = {branch: orjson.dumps(sorted(of)).decode() for branch, of in lines.items()}
        keys = [{**_keys(body), "sessions": sessions.get(branch)} for _, body, branch in found]
        rows = np.array([row + MESSAGE_ROWS for row, *_ in found], np.int64)
        return rows, {name: [one.get(name) for one in keys] for name in names}

    def message_rows(self, where: StepFilter) -> Rows:
        """Return the rows of messages that match, ascending."""
        self._catch_up()
        with self._db.reading() as connection:
            rows = self._matching_messages(connection, where)
        return np.array(sorted(rows), np.int64) + MESSAGE_ROWS

    def message_places(
        self, rows: Sequence[int], session_id: str | None = None
    ) -> dict[int, MessagePlace]:
        """Return a session that reads each message, that one where it does, and its sequence."""
        found: dict[int, MessagePlace] = {}
        with self._db.reading() as connection:
            for place in self._places(connection, [row - MESSAGE_ROWS for row in rows]):
                wanted = session_id or place.session_id
                at = (place.branch_id, place.sequence)
                reader = reader_of(connection, self._namespace, *at, preferred=wanted)
                name = place.session_id if reader is None else reader
                found[place.row + MESSAGE_ROWS] = MessagePlace(name, place.sequence)
        return found

    def message_line(
        self, row: int, session_id: str, *, before: int, after: int
    ) -> list[tuple[int, MessageStep]]:
        """Return what messages around one tell, in the line of a session that reads it."""
        with self._db.reading() as connection:
            places = self._places(connection, [row - MESSAGE_ROWS])
            tip = tip_of(connection, self._namespace, session_id)
            if not places or tip is None:
                return []
            [place] = places
            own = place._replace(branch_id=tip, session_id=session_id)
            start = max(1, place.sequence - before)
            line = self._messages_between(connection, own, start, place.sequence + after)
            steps = self._steps_in_line(connection, line)
        return [(row + MESSAGE_ROWS, one) for (row, _), one in zip(line, steps, strict=True)]

    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows, and what the messages in them tell."""
        messages = [int(row) for row in rows if row >= MESSAGE_ROWS]
        found = super().read([row for row in rows if row < MESSAGE_ROWS])
        if messages:
            with self._db.reading() as connection:
                units = self._units(connection, [row - MESSAGE_ROWS for row in messages])
                self._scored(connection, [one.step for one in units.values() if one.step])
            found |= {row + MESSAGE_ROWS: one.step for row, one in units.items() if one.step}
        return found

    def hidden_messages(self) -> Hidden:
        """Return the rows of messages that recall leaves out."""
        with self._db.reading() as connection:
            abandoned = self._column(connection, _ABANDONED, self._namespace)
            revoked = self._revoked_messages(connection)
        found = (np.array(sorted({*rows}), np.int64) for rows in (abandoned, revoked))
        return Hidden(*(rows + MESSAGE_ROWS for rows in found))

    def _message_ids(self, connection: Connection, where: StepFilter) -> list[str]:
        """Return the ids of the messages that match."""
        rows = many(self._matching_messages(connection, where))
        return self._column(connection, _IDS_OF, self._namespace, rows)

    # -- what messages tell -----------------------------------------------------------------------

    def _units(self, connection: Connection, rows: Sequence[int]) -> dict[int, MessageUnit]:
        """Return what the messages in some rows of `message` tell; rows that are gone are missing.

        A damaged line tells nothing: it must not keep everybody from searching. Who reads the
        session is told.
        """
        units: dict[int, MessageUnit] = {}
        for cluster in _clusters(self._places(connection, rows)):
            try:
                found = self._units_in_line(connection, cluster)
            except DamagedFileError:
                found = {}
            units |= {place.row: found.get(place.sequence, NOTHING) for place in cluster}
        return units

    def _places(self, connection: Connection, rows: Sequence[int]) -> list[Place]:
        """Return where messages stand; one whose place is damaged stands nowhere."""
        asked = (self._namespace, many(rows))
        found = (Place(*values) for values in connection.execute(_PLACES, asked))
        return [place for place in found if list(map(type, place)) == [int, int, int, str]]

    def _units_in_line(
        self, connection: Connection, cluster: Sequence[Place]
    ) -> dict[int, MessageUnit]:
        """Return by sequence what messages of one branch tell that stand near each other."""
        line = self._from_its_turn(connection, cluster)
        steps = self._steps_in_line(connection, line)

        def step_at(place: int | None) -> AgentStep | None:
            return None if place is None else steps[place].step

        found: dict[int, MessageUnit] = {}
        for one, (_, message) in zip(steps, line, strict=True):
            before = step_at(one.before)
            # What another user said is not for this one's window.
            if before is not None and one.step is not None and before.user_id != one.step.user_id:
                before = None
            row = None if before is None or one.before is None else line[one.before][0]
            before_row = None if row is None else row + MESSAGE_ROWS
            found[message.sequence] = MessageUnit(one, step_at(one.asked), before_row, before)
        return found

    def _from_its_turn(
        self, connection: Connection, cluster: Sequence[Place]
    ) -> list[tuple[int, Step]]:
        """Return the messages from the turn before the first of these up to the last, with rows."""
        first, back = cluster[0], _LOOK_BACK
        line = self._messages_between(connection, first, first.sequence, cluster[-1].sequence)
        begin = first.sequence
        while begin > 1 and back <= _FARTHEST:
            start = max(1, first.sequence - back)
            line = self._messages_between(connection, first, start, begin - 1) + line
            begin, back = start, back * 4
            asked = [
                n
                for n, (_, message) in enumerate(line)
                if message.is_user_step() and message.sequence <= first.sequence
            ]
            if len(asked) > 1:  # its own question, and that of the turn before
                return line[asked[-2] :]
        return line

    def _messages_between(
        self, connection: Connection, place: Place, start: int, end: int
    ) -> list[tuple[int, Step]]:
        line: list[tuple[int, Step]] = []
        for link in links(connection, place.branch_id, start, end):
            first = max(link.first, start)
            found = connection.execute(_LINE, (link.branch_id, first, link.last))
            for expected, (row, *values) in enumerate(found, first):
                one = checked_row(link.branch_id, expected, *values)
                message = decode_message(one.written, one.id, place.session_id, one.sequence)
                line.append((int(row), message))
        return line

    def _steps_in_line(
        self, connection: Connection, line: Sequence[tuple[int, Step]]
    ) -> list[MessageStep]:
        """Return what messages tell, given with their rows, and whose they are."""
        steps = message_steps([message for _, message in line])
        branches = {place.row: place.branch_id for place in self._places(connection, [*dict(line)])}
        if len(branches) < len(line):
            raise damaged("the place of a message")
        origins = {row: (message.run_id, branches[row]) for row, message in line}
        owners = owners_of(connection, self._namespace, origins)
        for one, (row, _) in zip(steps, line, strict=True):
            if one.step is not None:
                whose = owners[row]
                one.step.user_id = SEVERAL_USERS if isinstance(whose, Set) else whose
        return steps

    def _shown(
        self, connection: Connection, shown: Iterable[MessageStep]
    ) -> dict[int, tuple[int, AgentStep]]:
        """Return the stored step that each message shows, with its row, by the message's identity.

        Of several it is the end of the program, else the last.
        """
        asked = [one for one in shown if one.step is not None and one.shown]
        rows = self._rows_of(connection, [step_id for one in asked for step_id in one.shown])
        steps = self._read(connection, sorted({*rows.values()}))
        found: dict[int, tuple[int, AgentStep]] = {}
        for one in asked:
            stored = [(rows[i], steps[rows[i]]) for i in one.shown if i in rows]
            stored = [(row, step) for row, step in stored if _is_shown_by(step, one)]
            if stored:
                found[id(one)] = max(stored, key=lambda pair: (is_end(pair[1]), pair[0]))
        return found

    def _scored(self, connection: Connection, steps: Sequence[AgentStep]) -> None:
        """Let messages show the score of their run."""
        runs = {step.run_id for step in steps if step.run_id}
        scores = self._run_scores(connection, runs) if runs else {}
        for step in steps:
            if step.run_id in scores:
                step.score = scores[step.run_id]

    # -- which messages ---------------------------------------------------------------------------

    def _matching_messages(self, connection: Connection, where: StepFilter) -> list[int]:
        """Return the rows of `message` that match a filter."""
        if not where.finds("message"):
            return []
        asked = list(self._candidates(connection, where))
        keys = {row: _keys(body) for row, body, _ in asked}
        origins = {row: (keys[row]["run_id"], branch_id) for row, _, branch_id in asked}
        owners = owners_of(connection, self._namespace, origins if _names_user(where) else {})
        rated = self._rated(connection, where.min_score)
        found = [row for row, one in keys.items() if _matches(where, one, owners.get(row), rated)]
        return self._in_scope(connection, where.scope, found)

    def _candidates(
        self, connection: Connection, where: StepFilter
    ) -> Iterator[tuple[int, bytes, int]]:
        """Yield the rows, bodies and branches of all messages, or of a session's line."""
        if where.session_id is not None:
            tip = tip_of(connection, self._namespace, where.session_id)
            rows = [
                row
                for link in (links(connection, tip) if tip is not None else [])
                for row in self._column(connection, _OF_LINK, *link)
            ]
            yield from connection.execute(_BODIES_OF, (self._namespace, many(rows)))
            return
        after, full = 0, True
        while full:
            asked = (self._namespace, after, _BODIES_AT_ONCE)
            page = connection.execute(_PAGE_OF_BODIES, asked).fetchall()
            yield from page
            full = len(page) == _BODIES_AT_ONCE
            after = page[-1][0] if page else after

    def _rated(self, connection: Connection, least: float | None) -> set[str] | None:
        if least is None:
            return None
        return {run for run, _ in connection.execute(_RUN_SCORES, (self._namespace, least))}

    def _in_scope(self, connection: Connection, scope: str | None, rows: list[int]) -> list[int]:
        """Return those rows that a scope shows; messages of sessions are no trials."""
        if scope == EVERY_SCOPE:
            return rows
        revoked = set(self._revoked_messages(connection))
        if scope == REVOKED:
            return [row for row in rows if row in revoked]
        rows = [row for row in rows if row not in revoked]
        if scope is not None and scope != ABANDONED and not scope.startswith(EVERY_SCOPE):
            return []
        if scope is not None and scope.startswith(EVERY_SCOPE):
            return rows
        abandoned = set(self._column(connection, _ABANDONED, self._namespace))
        return [row for row in rows if (row in abandoned) == (scope == ABANDONED)]

    def _revoked_messages(self, connection: Connection) -> list[int]:
        """Return the rows of messages that are revoked, or show a step that is."""
        ids = set(self._column(connection, _MARKS, self._namespace))
        if not ids:
            return []
        ids.update(self._late_revoked(connection))
        rows: list[int] = self._column(connection, _MARKED, self._namespace)
        for row, body, _ in self._candidates(connection, StepFilter()):
            if b'"agent_step' in bytes(_raw(body)) and not ids.isdisjoint(_shown_ids(body)):
                rows.append(row)
        return rows


def _is_shown_by(step: AgentStep, message: MessageStep) -> bool:
    """Whether a message tells what a stored step does: a tool's result, or an answer."""
    return bool(step.tool) == bool(message.step is not None and message.step.tool)


def _names_user(where: StepFilter) -> bool:
    return where.user_id is not None or where.trust == "own"


def _matches(
    where: StepFilter,
    keys: Mapping[str, Any],
    whose: str | Set[str] | None,
    rated: set[str] | None,
) -> bool:
    """Whether a message has the keys that a filter asks for, but for scope and session."""
    run, made = keys["run_id"], keys["created_at"]
    own = {**keys, "user_id": whose}
    if any(own.get(name) not in values for name, values in where.equalities()):
        return False
    if where.exclude_run_id is not None and run in where.exclude_run_id:
        return False
    if rated is not None and run not in rated:
        return False
    if where.since is not None and not (made and made >= where.since.isoformat()):
        return False
    if where.until is not None and not (made and made < where.until.isoformat()):
        return False
    metadata: Mapping[str, Any] = keys["metadata"]
    return all(
        key in metadata and scalar_kind(metadata[key]) == scalar_kind(value)
        for key, value in (where.metadata or {}).items()
    )


def _raw(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else body


def _fields(body: Any) -> dict[str, Any]:
    """Return what a body says; of a damaged one nothing: who reads the message is told."""
    try:
        found: Any = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _keys(body: Any) -> dict[str, Any]:
    """Return what filters compare of a message."""
    fields = _fields(body)
    metadata: Any = fields.get("metadata")
    known = as_object(metadata)
    return {
        "run_id": as_text(fields.get("run_id")),
        "created_at": as_text(fields.get("created_at")),
        "source": source_of(known),
        "metadata": known,
    }


def _shown_ids(body: Any) -> list[str]:
    fields = _fields(body)
    several = as_list(as_object(fields.get("metadata")).get(SHOWN))
    return [str(one) for one in (fields.get("agent_step_id"), *several) if one]


def _clusters(places: Iterable[Place]) -> Iterator[list[Place]]:
    """Yield places of one branch that stand near each other, in order."""
    by_branch: defaultdict[int, list[Place]] = defaultdict(list)
    for place in places:
        by_branch[place.branch_id].append(place)
    for found in by_branch.values():
        found.sort(key=itemgetter(2))
        start = 0
        for end in range(1, len(found) + 1):
            if end == len(found) or found[end].sequence - found[end - 1].sequence > _NEAR:
                yield found[start:end]
                start = end
