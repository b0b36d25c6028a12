"""Messages of sessions as a search sees them: what each tells, and where it is read.

No second copy of the words is kept: what a message tells follows from it and from what stands
before it in its line, which never changes. Its row is that of the message plus `MESSAGE_ROWS`, so
that words, embeddings and tombstones of messages stand in the tables of those of steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.messages.message_steps import MessageStep, message_steps
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.step_identity import is_end
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    SEVERAL_USERS,
    MessagePlace,
)
from hybridagi_steps.stores.body import decode_message
from hybridagi_steps.stores.checksums import damaged
from hybridagi_steps.stores.sql.lineage import (
    Named,
    checked_rows,
    links,
    reader_of,
    readers_of,
    speakers_of,
    tip_of,
)
from hybridagi_steps.stores.sql.message_filter import MessageFilter, Origin, Owner, owners_of
from hybridagi_steps.stores.sql.tables import Connection, is_storable, many

_PLACES = """SELECT m.row, m.branch_id, m.sequence, b.session_id FROM message m
    JOIN branch b ON b.id = m.branch_id
    WHERE +m.namespace = ? AND m.row IN (SELECT value FROM json_each(?))"""
_LINE = """SELECT row, sequence, id, CAST(said AS BLOB), CAST(body AS BLOB), said_checksum, checksum
    FROM message WHERE branch_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence"""
_ROWS_OF = """SELECT id, row FROM message
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_STEPS_BEGINNING, _MESSAGES_BEGINNING = (
    f"SELECT id FROM {table} WHERE namespace = ? AND id BETWEEN ? AND ? ORDER BY id LIMIT ?"  # noqa: S608 - names are ours
    for table in ("agent_step", "message")
)
_NEXT_RUN = """SELECT run_id FROM step_view
    WHERE namespace = ? AND run_id > ? AND run_id BETWEEN ? AND ? ORDER BY run_id LIMIT 1"""
_LAST_CHARACTER = "\U0010ffff"
_LOOK_BACK, _FARTHEST = 8, 512
"""Messages before one that are read to find its question, first and at most."""
_NEAR = 8
"""Messages of a branch that stand closer than this are read together: to read what is between them
is cheaper than to look for another's turn."""


class Place(NamedTuple):
    """Where a message stands."""

    row: int
    branch_id: int
    sequence: int
    session_id: str


class MessageUnit(NamedTuple):
    """What the message in a row tells; rows of other messages as `MESSAGE_ROWS` counts them."""

    content: MessageStep
    asked_for: MessageStep | None
    before_row: int | None
    before_it: MessageStep | None

    @property
    def step(self) -> AgentStep | None:
        """The message as a step."""
        return self.content.step

    @property
    def asked(self) -> AgentStep | None:
        """What it answers."""
        return self.asked_for and self.asked_for.step

    @property
    def before(self) -> AgentStep | None:
        """What its window shows of the message before."""
        return self.before_it and self.before_it.step


@dataclass(slots=True)
class _Read:
    """Messages of one branch that were read with their rows, and those that were asked for."""

    places: list[Place]
    line: list[tuple[int, Step]]

    @property
    def end(self) -> int:
        """The sequence of the last one."""
        return self.places[-1].sequence

    def leads_to(self, branch_id: int) -> bool:
        """Whether they are of a branch, and begin with the turn before that of the first."""
        first = self.places[0]
        asked = (one.is_user_step() for _, one in self.line if one.sequence <= first.sequence)
        whole = sum(asked) > 1 or any(one.sequence == 1 for _, one in self.line[:1])
        return first.branch_id == branch_id and whole


NOTHING = MessageUnit(MessageStep(), None, None, None)


class MessageUnits(MessageFilter):
    """Implements what `IndexedStore` says of messages; see protocols.py for the contract."""

    def message_places(
        self, rows: Sequence[int], session_id: str | None = None, user_id: str | None = None
    ) -> dict[int, MessagePlace]:
        """Return a session that reads each message, that one where it does, and its sequence.

        For a user none is named that others forked; where only those read it, it has no name.
        """
        found: dict[int, MessagePlace] = {}
        with self._db.reading() as connection:
            places = self._places(connection, [row - MESSAGE_ROWS for row in rows])
            branches = {place.branch_id for place in places}
            readers = {
                each: readers_of(connection, self._namespace, each, user_id) for each in branches
            }
            for place in places:
                wanted, at = session_id or place.session_id, (place.branch_id, place.sequence)
                reader = reader_of(connection, readers[place.branch_id], *at, preferred=wanted)
                name = place.session_id if reader is None else reader
                found[place.row + MESSAGE_ROWS] = MessagePlace(name, place.sequence)
        return found

    def rows_of_messages(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the messages with these ids."""
        asked = (self._namespace, many([each for each in ids if is_storable(each)]))
        with self._db.reading() as connection:
            found = connection.execute(_ROWS_OF, asked).fetchall()
        return {message_id: row + MESSAGE_ROWS for message_id, row in found}

    def ids_beginning(self, prefix: str, limit: int) -> tuple[list[str], list[str]]:
        """Return the ids of steps and messages, and those of runs, that begin like this."""
        if not is_storable(prefix):
            return [], []
        self._catch_up()
        key, last = self._namespace, prefix + _LAST_CHARACTER
        runs = list[str]()
        with self._db.reading() as connection:
            steps = self._column(connection, _STEPS_BEGINNING, key, prefix, last, limit)
            said = self._column(connection, _MESSAGES_BEGINNING, key, prefix, last, limit)
            while len(runs) < limit:  # a DISTINCT would read all steps of each
                after = runs[-1] if runs else ""
                found = self._column(connection, _NEXT_RUN, key, after, prefix, last)
                if not found:
                    break
                runs += found
        return sorted({*steps, *said})[:limit], runs

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
            steps = _steps_in_line(line, self._owners(connection, line))
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

    def _units(self, connection: Connection, rows: Sequence[int]) -> dict[int, MessageUnit]:
        """Return what the messages in some rows of `message` tell; rows that are gone are missing.

        A damaged line tells nothing: it must not keep everybody from searching. Who reads the
        session is told.
        """
        units: dict[int, MessageUnit] = {}
        lines: list[_Read] = []
        for cluster in _clusters(self._places(connection, rows)):
            units |= {place.row: NOTHING for place in cluster}
            before = lines[-1] if lines and lines[-1].leads_to(cluster[0].branch_id) else None
            with suppress(DamagedFileError):
                line = self._from_its_turn(connection, cluster, before)
                if before is not None and line[:1] == before.line[:1]:
                    before.places, before.line = before.places + cluster, line
                else:
                    lines.append(_Read(cluster, line))
        owners = self._owners(connection, [pair for read in lines for pair in read.line])
        for read in lines:
            with suppress(DamagedFileError):
                wanted = {place.sequence: place.row for place in read.places}
                found = _units_in_line(read.line, owners, wanted)
                units |= {wanted[sequence]: unit for sequence, unit in found.items()}
        return units

    def _whole_messages(self, connection: Connection, rows: Sequence[int]) -> set[int]:
        """Return those of some rows of `message` whose turn, and the one before, is whole."""
        whole: set[int] = set()
        for place in self._places(connection, rows):
            with suppress(DamagedFileError):
                self._from_its_turn(connection, [place])
                whole.add(place.row)
        return whole

    def _places(self, connection: Connection, rows: Sequence[int]) -> list[Place]:
        """Return where messages stand; one whose place is damaged stands nowhere."""
        asked = (self._namespace, many(rows))
        found = (Place(*values) for values in connection.execute(_PLACES, asked))
        return [place for place in found if list(map(type, place)) == [int, int, int, str]]

    def _from_its_turn(
        self, connection: Connection, cluster: Sequence[Place], before: _Read | None = None
    ) -> list[tuple[int, Step]]:
        """Return the messages from the turn before the first of these up to the last, with rows.

        Behind what was read before of that branch where that reaches so far: nothing is read twice.
        """
        first, back = cluster[0], _LOOK_BACK
        line, end = list[tuple[int, Step]](), cluster[-1].sequence
        while True:
            start = max(1, first.sequence - back)
            if before is not None and start <= before.end:
                line = self._messages_between(connection, first, before.end + 1, end) + line
                return before.line + line
            line = self._messages_between(connection, first, start, end) + line
            asked = [
                n
                for n, (_, message) in enumerate(line)
                if message.is_user_step() and message.sequence <= first.sequence
            ]
            if len(asked) > 1:  # its own question, and that of the turn before
                return line[asked[-2] :]
            if start == 1 or back > _FARTHEST:
                return line
            end, back = start - 1, back * 4

    def _messages_between(
        self, connection: Connection, place: Place, start: int, end: int
    ) -> list[tuple[int, Step]]:
        line: list[tuple[int, Step]] = []
        for link in links(connection, place.branch_id, start, end):
            asked = link._replace(first=max(link.first, start))
            found = connection.execute(_LINE, asked).fetchall()
            checked = checked_rows(asked, [values for _, *values in found])
            line += [
                (int(row), decode_message(one.written, one.id, place.session_id, one.sequence))
                for (row, *_), one in zip(found, checked, strict=True)
            ]
        return line

    def _owners(
        self, connection: Connection, lines: Iterable[tuple[int, Step]]
    ) -> dict[int, Owner]:
        """Return by row whose messages are; those whose place is damaged are missing."""
        said = dict(lines)
        places = self._places(connection, [*said])
        known = {
            row: Named(one.user_id, one.run_id, one.is_user_step()) for row, one in said.items()
        }
        speakers = speakers_of(connection, self._namespace, known)
        origins = {
            place.row: Origin(said[place.row].run_id, place.branch_id, speakers[place.row].asked_by)
            for place in places
        }
        owners = owners_of(connection, self._namespace, origins)
        return {row: speakers[row].user_id or whose for row, whose in owners.items()}

    def _shown(
        self, connection: Connection, shown: Iterable[MessageStep]
    ) -> dict[int, tuple[int, AgentStep]]:
        """Return the stored step that each message shows, with its row, by the message's identity.

        Of several it is the end of the program, else the last.
        """
        asked = [one for one in shown if one.kind is not None and one.shown]
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
        runs = {step.run_id for step in steps if step.run_id is not None}
        scores = self._run_scores(connection, runs) if runs else {}
        for step in steps:
            if step.run_id in scores:
                step.score = scores[step.run_id]


def _units_in_line(
    line: Sequence[tuple[int, Step]], owners: Mapping[int, Owner], wanted: Container[int]
) -> dict[int, MessageUnit]:
    """Return by sequence what some messages of one branch tell, given with their rows."""
    steps = _steps_in_line(line, owners)

    def step_at(place: int | None) -> MessageStep | None:
        return None if place is None else steps[place]

    found: dict[int, MessageUnit] = {}
    for one, (own, message) in zip(steps, line, strict=True):
        if message.sequence not in wanted:
            continue
        row = None if one.before is None else line[one.before][0]
        if row is not None and owners[row] != owners[own]:
            row = None  # what another user said is not for this one's window
        before = None if row is None else step_at(one.before)
        before_row = None if row is None else row + MESSAGE_ROWS
        found[message.sequence] = MessageUnit(one, step_at(one.asked), before_row, before)
    return found


def _steps_in_line(
    line: Sequence[tuple[int, Step]], owners: Mapping[int, Owner]
) -> list[MessageStep]:
    """Return what messages tell, given with their rows, and whose they are."""
    if any(row not in owners for row, _ in line):
        raise damaged("the place of a message")
    steps = message_steps([message for _, message in line], [owners[row] for row, _ in line])
    for one, (row, _) in zip(steps, line, strict=True):
        whose = owners[row]
        one.user_id = SEVERAL_USERS if isinstance(whose, Set) else whose
    return steps


def _is_shown_by(step: AgentStep, message: MessageStep) -> bool:
    """Whether a message tells what a stored step does: a tool's result, or an answer."""
    user_id = None if message.step is None else message.step.user_id
    if {step.user_id, user_id} - {None, SEVERAL_USERS, user_id}:
        return False  # it says what another user's step does
    return bool(step.tool) == bool(message.step is not None and message.step.tool)


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
