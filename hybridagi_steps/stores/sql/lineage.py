"""Which messages a branch shows: its lineage, where it ends, how far it is read, who speaks in it.

A lineage is a chain of ranges, one per branch. It is resolved first, by one recursive query, and
each range is then read by itself, oldest first. Two rules keep this fast: a message at or below a
fork point never changes, and the parent of a new branch is the branch that *owns* the fork point,
so a thousand retries of one turn stay two links deep. These are functions on a connection; the
transaction is the caller's.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from hybridagi_steps.errors import (
    DamagedFileError,
    UnknownBranchError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.messages.agent_steps import SHOWN
from hybridagi_steps.records.json_reading import as_list, as_object, as_text
from hybridagi_steps.records.message import SUMMARY_OF, utc_now
from hybridagi_steps.records.store_values import SEVERAL_USERS, BranchPosition
from hybridagi_steps.stores.body import Written
from hybridagi_steps.stores.checksums import (
    ChecksumError,
    as_bytes,
    damaged,
    message_checksums,
    place_seed,
    row_checksum,
    session_checksum,
)
from hybridagi_steps.stores.commits import change_time
from hybridagi_steps.stores.sql.tables import Connection, is_storable, many

OPEN_END = 2**63 - 1
"""The last sequence of a range that still grows; the largest integer of a column."""

# A parent is older than its child; one that is not is damage, and would go round for ever.
_CHAIN = """WITH RECURSIVE
chain(branch_id, parent_id, below, last, namespace, reason, created_at, checksum) AS (
    SELECT id, parent_id, fork_sequence, CAST(:end AS BIGINT),
        namespace, reason, created_at, checksum FROM branch WHERE id = :branch
    UNION ALL
    SELECT b.id, b.parent_id, b.fork_sequence,
        CASE WHEN chain.below < :end THEN chain.below ELSE :end END,
        b.namespace, b.reason, b.created_at, b.checksum
    FROM chain JOIN branch b ON b.id = chain.parent_id AND b.id < chain.branch_id
    WHERE chain.below >= :start)
SELECT branch_id, below + 1, last, checksum, namespace, parent_id, below, reason, created_at
FROM chain WHERE below < :end"""
_RANGE = """SELECT sequence, id, CAST(said AS BLOB), CAST(body AS BLOB), said_checksum, checksum
    FROM message
    WHERE branch_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence"""
_SAID = """SELECT CAST(said AS BLOB), said_checksum FROM message
    WHERE branch_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence"""
_STEPS = """SELECT row FROM agent_step
    WHERE namespace = ? AND branch_id = ? AND sequence <= ?"""
_PLACE = "SELECT branch_id, sequence FROM message WHERE namespace = ? AND id = ?"
# Sessions that point at a branch or at one below it; of a user also no fork of others.
_READERS = """WITH RECURSIVE below(id, session_id) AS (
        SELECT id, session_id FROM branch WHERE id = :branch
        UNION SELECT b.id, b.session_id FROM below JOIN branch b
            ON b.parent_id = below.id AND b.reach > 0)
    SELECT s.id, s.branch_id FROM below JOIN session s
        ON s.namespace = :namespace AND s.id = below.session_id AND s.branch_id = below.id
    WHERE (CAST(:user AS TEXT) IS NULL OR s.user_id IS NULL
        OR s.user_id = :user OR s.id = (SELECT session_id FROM branch WHERE id = :branch))
    ORDER BY s.created_at"""
_PINNED = """SELECT sequence, id FROM agent_step
    WHERE namespace = ? AND branch_id = ? AND sequence <= ? ORDER BY sequence, row"""
_END = """SELECT coalesce((SELECT max(sequence) FROM message WHERE branch_id = b.id),
    b.fork_sequence) FROM branch b WHERE id = ?"""
_SESSION = """SELECT branch_id, created_at, updated_at, forked_from, forked_at, user_id, checksum
    FROM session WHERE namespace = ? AND id = ?"""
_NEW_SESSION = """INSERT INTO session
    (namespace, id, branch_id, created_at, updated_at, forked_from, forked_at, user_id, checksum,
        written)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT number FROM next_write))"""
_CHANGE = """UPDATE session SET branch_id = ?, updated_at = ?, user_id = ?, written = {},
        checksum = ?
    WHERE namespace = ? AND id = ?"""
_CHANGE_NOW = _CHANGE.format("(SELECT number FROM next_write)")
_CHANGE_THEN = _CHANGE.format("""coalesce((SELECT max(o.written) FROM session o
        WHERE o.namespace = session.namespace AND o.id <> session.id AND o.updated_at <= ?), 0)""")
TAKE_NUMBER = """UPDATE meta SET value = (SELECT number FROM next_write)
    WHERE key = 'write_floor'"""
"""Gives the next write a higher number than all before; a message takes one as its row."""
_BODIES_AT_ONCE = 5_000
_LIFE = "SELECT epoch, rows_gone FROM namespace WHERE id = ?"
_SHOWING_BODIES = """SELECT row, CAST(body AS BLOB) FROM message
    WHERE row > ? AND +namespace = ? AND body LIKE ? ORDER BY row LIMIT ?"""
_SHOWING = '%"agent_step%'
"""How bodies look that name steps; whether they do is looked up in them."""
_OWNER = "SELECT session_id FROM branch WHERE namespace = ? AND id = ?"
_NEW_BRANCH = """INSERT INTO branch
    (namespace, session_id, parent_id, fork_sequence, reach, pointed, reason, created_at, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"""
_WIDEN = "UPDATE branch SET reach = ? WHERE id = ? AND reach < ?"
_PARENT = "SELECT parent_id, fork_sequence FROM branch WHERE id = ?"
_MEASURED = """SELECT b.parent_id, b.reach, CASE
        WHEN EXISTS (SELECT 1 FROM session s
                     WHERE s.namespace = b.namespace AND s.id = b.session_id AND s.branch_id = b.id)
        THEN 9223372036854775807
        ELSE coalesce((SELECT max(c.fork_sequence) FROM branch c
                       WHERE c.parent_id = b.id AND c.reach > 0), 0) END
    FROM branch b WHERE id = ?"""
_OF_USER = '{"role":"user",%'
"""How what a user says is written, and what a summary says."""
_SOME_OWNER = "SELECT 1 FROM session WHERE namespace = ? AND user_id IS NOT NULL LIMIT 1"
_ROLES = """SELECT row, branch_id, sequence, said LIKE ? FROM message
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?)) ORDER BY branch_id, sequence"""
_ASKED_BEFORE = """SELECT sequence, CAST(body AS BLOB) FROM message
    WHERE branch_id = ? AND sequence BETWEEN ? AND ? AND said LIKE ?
    ORDER BY sequence DESC LIMIT 1"""


class Link(NamedTuple):
    """The part of one branch that a session sees; both ends are inclusive."""

    branch_id: int
    first: int
    last: int


class Row(NamedTuple):
    """One stored message."""

    sequence: int
    id: str
    said: str | bytes
    body: str | bytes

    @property
    def written(self) -> Written:
        """The message itself."""
        return Written(self.said, self.body)


class SessionRow(NamedTuple):
    """What is known of a session besides its id."""

    branch_id: int
    created_at: str
    updated_at: str
    forked_from: str | None
    forked_at: int | None
    user_id: str | None


class Speaker(NamedTuple):
    """Who said a message, as far as it and the question that it stands behind name users."""

    user_id: str | None = None
    """Whose it is, whatever steps there are."""
    asked_by: str | None = None
    """The user who asked, where another may have answered: then it is no visitor's to find, and
    this user's only if it is of a run of his."""


class Named(NamedTuple):
    """What a message says of where it comes from."""

    user_id: str | None
    run_id: str | None
    said: bool
    """Whether somebody said it: it is no summary."""


_NOBODY = Named(None, None, said=True)


def row_checksums(branch_id: int, row: Row) -> tuple[int, int]:
    """Return the two checksums of a message that is being written."""
    place = place_seed(branch_id, row.sequence)
    return message_checksums(as_bytes(row.said), as_bytes(row.body), row.id, place)


def branch_of(
    connection: Connection, namespace: int, session_id: str, branch_id: int | None
) -> int:
    """Return the branch that is asked: the session's current one, or another of its own."""
    tip = tip_of(connection, namespace, session_id)
    if tip is None:
        raise UnknownSessionError(session_id)
    if branch_id is None or branch_id == tip:
        return tip
    owner = connection.execute(_OWNER, (namespace, in_range(branch_id))).fetchone()
    if owner is None or owner[0] != session_id:
        raise foreign_branch(session_id, branch_id)
    return branch_id


def foreign_branch(session_id: str, branch_id: int) -> UnknownBranchError:
    """Return what is raised for a branch that is none of a session's."""
    return UnknownBranchError(session_id, branch_id)


def in_range(number: int) -> int:
    """Return a number that a column can hold: the one given, or the nearest."""
    return max(min(number, OPEN_END), -OPEN_END)


def session_row(connection: Connection, namespace: int, session_id: str) -> SessionRow | None:
    """Return a session, None when there is none."""
    if not is_storable(session_id):
        return None
    found = connection.execute(_SESSION, (namespace, session_id)).fetchone()
    return found and checked_session(namespace, session_id, *found)


def checked_session(namespace: int, session_id: str, branch_id: int, *values: Any) -> SessionRow:
    """Return a session as a database gave it, its checksum last."""
    *known, checksum = values
    if checksum not in (None, session_checksum(namespace, session_id, branch_id, *known)):
        raise damaged(f"the session {session_id!r}")
    return SessionRow(branch_id, *known)


def insert_session(
    connection: Connection, namespace: int, session_id: str, row: SessionRow
) -> None:
    """Add a session."""
    values = (namespace, session_id, *row)
    take_number(connection)
    connection.execute(_NEW_SESSION, (*values, session_checksum(*values)))


def take_number(connection: Connection) -> None:
    """Let the next write have a higher number than all before, deleted messages included."""
    connection.execute(TAKE_NUMBER)


def change_session(
    connection: Connection, namespace: int, session_id: str, row: SessionRow, at: str | None = None
) -> SessionRow:
    """Note where a session points, and that it was written now; return what is noted.

    Who has not just added a message to it takes a number first. With `at` it was written then, in
    another system, and is listed among the others by that time.
    """
    row = row._replace(updated_at=change_time(row.updated_at, at))
    values = (row.branch_id, row.updated_at, row.user_id)
    end = (session_checksum(namespace, session_id, *row), namespace, session_id)
    if at is None:
        connection.execute(_CHANGE_NOW, (*values, *end))
    else:
        connection.execute(_CHANGE_THEN, (*values, row.updated_at, *end))
    return row


def tip_of(connection: Connection, namespace: int, session_id: str) -> int | None:
    """Return the branch a session points at, None for an unknown session."""
    found = session_row(connection, namespace, session_id)
    return found and found.branch_id


def end_of(connection: Connection, branch_id: int) -> BranchPosition:
    """Return where a branch ends."""
    found = connection.execute(_END, (branch_id,)).fetchone()
    if found is None:
        raise damaged(f"the branch {branch_id}", "it is not there")
    return BranchPosition(branch_id, found[0])


def links(
    connection: Connection, branch_id: int, start: int = 1, end: int = OPEN_END
) -> list[Link]:
    """Return the ranges that make up a branch between `start` and `end`, oldest first."""
    asked = {"branch": branch_id, "start": start, "end": end}
    found: list[Link] = []
    for branch, first, last, checksum, *values in connection.execute(_CHAIN, asked):
        if checksum not in (None, row_checksum(*values)):
            raise damaged(f"the branch {branch}")
        found.append(Link(branch, first, last))
    if end >= max(start, 1) and (not found or found[-1].first > max(start, 1)):
        raise damaged(f"the branch {branch_id}", "it is not there, or not the one it continues")
    return found[::-1]


def rows(
    connection: Connection, branch_id: int, start: int = 1, end: int = OPEN_END
) -> Iterator[Row]:
    """Yield the messages of a branch from `start` to `end`, both inclusive, in order.

    Complexity: O(links above `start` + messages returned); index order is the order wanted.
    """
    line = links(connection, branch_id, start, end)
    for link in line:
        asked = link._replace(first=max(link.first, start))
        found = own_rows(connection, asked)
        yield from found
        if link is not line[-1] and len(found) <= link.last - asked.first:
            raise _damaged_message(link.branch_id, asked.first + len(found))


def own_rows(connection: Connection, link: Link) -> list[Row]:
    """Return the messages that a branch has in a range, one after another from its beginning."""
    return checked_rows(link, connection.execute(_RANGE, link).fetchall())


def checked_rows(link: Link, found: Sequence[Any]) -> list[Row]:
    """Return such messages as a database gave them, each with its two checksums last."""
    if not found:
        return []
    sequences, ids, said, bodies, of_said, of_all = zip(*found, strict=True)
    # All at once, which takes a fourth of the time; one by one where something is wrong.
    with suppress(TypeError, ValueError, AttributeError):
        checked = tuple(map(crc32, said, _seeds(link, found)))
        whole = map(crc32, map(str.encode, ids), map(crc32, bodies, checked))
        in_order = sequences == (*range(link.first, link.first + len(found)),)
        if in_order and checked == of_said and tuple(whole) == of_all:
            return list(map(Row._make, zip(sequences, ids, said, bodies, strict=True)))
    return [
        checked_row(link.branch_id, expected, *values)
        for expected, values in enumerate(found, link.first)
    ]


def said(
    connection: Connection, branch_id: int, start: int = 1, end: int = OPEN_END
) -> list[bytes]:
    """Return the same messages as `rows`, only what they say, as JSON."""
    found: list[bytes] = []
    line = links(connection, branch_id, start, end)
    for link in line:
        asked = link._replace(first=max(link.first, start))
        texts = _own_said(connection, asked)
        if link is not line[-1] and len(texts) <= link.last - asked.first:
            raise _damaged_message(link.branch_id, asked.first + len(texts))
        found += texts
    return found


def _own_said(connection: Connection, link: Link) -> list[bytes]:
    """Return what messages say that stand in a range of one branch, one after another."""
    rows = connection.execute(_SAID, link).fetchall()
    try:
        texts, known = [as_bytes(text) for text, _ in rows], [checksum for _, checksum in rows]
        made = list(map(crc32, texts, _seeds(link, rows)))
    except (TypeError, ValueError) as error:
        raise _damaged_message(link.branch_id, link.first, error) from error
    if made != known:
        for sequence, (one, expected) in enumerate(zip(made, known, strict=True), link.first):
            if expected not in (None, one):
                raise _damaged_message(link.branch_id, sequence, ChecksumError())
    return texts


def _seeds(link: Link, rows: Sequence[object]) -> range:
    """Return what the checksums of messages in a range begin with."""
    first = place_seed(link.branch_id, link.first)
    return range(first, first + len(rows))


def steps_of(connection: Connection, namespace: int, session_id: str) -> list[int]:
    """Return the rows of the AgentSteps that are pinned to a session's lineage."""
    tip = tip_of(connection, namespace, session_id)
    found: list[int] = []
    for link in links(connection, tip) if tip is not None else []:
        asked = (namespace, link.branch_id, link.last)
        found += [row for (row,) in connection.execute(_STEPS, asked)]
    return found


def pinned(connection: Connection, namespace: int, branch_id: int) -> list[tuple[int, str]]:
    """Return (sequence, id) of the AgentSteps that are pinned to a branch's lineage, in order."""
    found: list[tuple[int, str]] = []
    for link in links(connection, branch_id):
        found += connection.execute(_PINNED, (namespace, link.branch_id, link.last))
    return sorted(found, key=itemgetter(0))


def place_of(connection: Connection, namespace: int, message_id: str) -> tuple[str, int] | None:
    """Return a session whose lineage has a message, and its sequence there."""
    found = connection.execute(_PLACE, (namespace, message_id)).fetchone()
    if found is None:
        return None
    reader = reader_of(connection, readers_of(connection, namespace, found[0]), *found)
    return None if reader is None else (reader, int(found[1]))


def readers_of(
    connection: Connection, namespace: int, branch_id: int, user_id: str | None = None
) -> list[tuple[str, int]]:
    """Return the sessions that point at a branch or at one below it, and where they point.

    For a user those that others forked from it are left out.
    """
    asked = {"namespace": namespace, "branch": branch_id, "user": user_id}
    return connection.execute(_READERS, asked).fetchall()


def reader_of(
    connection: Connection,
    readers: Sequence[tuple[str, int]],
    branch_id: int,
    sequence: int,
    preferred: str | None = None,
) -> str | None:
    """Return which of `readers_of` a branch has what stands there, the `preferred` one if it does.

    A branch reads all that is its own; of the others' lineage the store is asked.
    """
    for session_id, tip in sorted(readers, key=lambda reader: reader[0] != preferred):
        if tip == branch_id:
            return session_id
        line = links(connection, tip, sequence, sequence)
        if line and line[0].branch_id == branch_id:
            return session_id
    return None


def new_branch(
    connection: Connection,
    namespace: int,
    session_id: str,
    after: BranchPosition | None = None,
    *,
    reason: str,
    pointed: bool,
) -> int:
    """Add a branch that continues after a position, as a child of the branch that owns it.

    Without `after` it shares nothing; `pointed`: the session will point at it in this transaction.
    """
    parent, shared = None, after.sequence if after else 0
    if after is not None:
        last = end_of(connection, after.branch_id).sequence
        if not 0 <= shared <= last:
            (asked,) = connection.execute(_OWNER, (namespace, after.branch_id)).fetchone()
            raise UnknownSequenceError(asked, shared, last)
        if shared:
            [owner] = links(connection, after.branch_id, shared, shared)
            parent = owner.branch_id
    reach, now = OPEN_END if pointed else 0, utc_now().isoformat()
    checksum = row_checksum(namespace, parent, shared, reason, now)
    values = (namespace, session_id, parent, shared, reach, int(pointed), reason, now, checksum)
    return int(connection.execute(_NEW_BRANCH, values).fetchall()[0][0])


def checked_row(branch_id: int, expected: int, sequence: int, message_id: str, *values: Any) -> Row:
    """Return a message as a database gave it, if it is the one that stands there."""
    said, body, *stored = values
    try:
        said, body = as_bytes(said), as_bytes(body)
        place = place_seed(branch_id, expected)
        made = message_checksums(said, body, message_id, place)
        differ = (known not in (None, one) for known, one in zip(stored, made, strict=True))
        if sequence != expected or any(differ):
            raise ChecksumError
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged_message(branch_id, expected, error) from error
    return Row(sequence, message_id, said, body)


def _damaged_message(
    branch_id: int, sequence: int, why: object = "it is not there"
) -> DamagedFileError:
    return damaged(f"the message {sequence} of branch {branch_id}", why)


def widen_reach(connection: Connection, branch_id: int) -> None:
    """Note that a session points at a branch from now on, and so reads what it shares."""
    reach, branch = OPEN_END, branch_id
    while connection.execute(_WIDEN, (reach, branch, reach)).rowcount:
        parent, shared = connection.execute(_PARENT, (branch,)).fetchone()
        if parent is None:
            return
        reach, branch = shared, parent


def narrow_reach(connection: Connection, branch_id: int | None) -> None:
    """Note how far a branch is read after something stopped reading it, and so its ancestors."""
    while branch_id is not None:
        found = connection.execute(_MEASURED, (branch_id,)).fetchone()
        if found is None:
            return
        parent, known, measured = found
        if known == measured:
            return
        update = "UPDATE branch SET reach = ? WHERE id = ?"
        connection.execute(update, (measured, branch_id))
        branch_id = parent


def some_unnamed(connection: Connection, namespace: int, users: Iterable[str | None]) -> bool:
    """Whether some of the users that messages name are nobody, where others may be named."""
    if all(users):
        return False
    # Who first names a user in a session gives it to that user.
    return connection.execute(_SOME_OWNER, (namespace,)).fetchone() is not None


def speakers_of(
    connection: Connection, namespace: int, known: Mapping[int, Named]
) -> dict[int, Speaker]:
    """Return by row of `message` who said each of some messages.

    Complexity: two questions, and one more for each message that names nobody and stands behind a
    question that is none of these; none where no session of the namespace has a user.
    """
    found = {row: Speaker(one.user_id) for row, one in known.items()}
    if not some_unnamed(connection, namespace, (one.user_id for one in known.values())):
        return found
    places = connection.execute(_ROLES, (_OF_USER, namespace, many(sorted(known)))).fetchall()
    here, question = (0, 0), None
    for row, branch, sequence, of_user in places:
        if here != (branch, sequence - 1):
            question = None  # what stands between is not among these
        here, one = (branch, sequence), known[row]
        if of_user and one.said:
            question = one
        elif one.user_id is None:
            question = question or _asked_before(connection, branch, sequence)
            found[row] = _speaker(None, one.run_id, question.user_id, question.run_id)
    return found


def _asked_before(connection: Connection, branch: int, sequence: int) -> Named:
    """Return the last question before a message; where it is damaged one of whoever asked."""
    with suppress(DamagedFileError, ValueError, TypeError):
        for link in reversed(links(connection, branch, 1, sequence - 1)):
            last = link.last
            while asked := connection.execute(
                _ASKED_BEFORE, (*link[:2], last, _OF_USER)
            ).fetchone():
                fields = as_object(orjson.loads(asked[1]))
                if SUMMARY_OF not in as_object(fields.get("metadata")):
                    run_id = as_text(fields.get("run_id"))
                    return Named(as_text(fields.get("user_id")), run_id, said=True)
                last = asked[0] - 1
        return _NOBODY
    return Named(SEVERAL_USERS, SEVERAL_USERS, said=True)


def _speaker(
    user_id: str | None, run_id: str | None, asked_by: str | None, asked_in: str | None
) -> Speaker:
    """Return who said a message: whom it names, else whom the question before it names.

    `asked_by` is whom the user's message names that it stands behind, None where it is a user's
    itself; `asked_in` is the run of that one.
    """
    if user_id is not None or asked_by is None:
        return Speaker(user_id)
    return Speaker(asked_by) if run_id in (None, asked_in) else Speaker(None, asked_by)


class ShownSteps:
    """Which messages show which steps: read on from the last message seen, until some go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._life: tuple[int, ...] = ()
        self._through = 0
        self._rows: defaultdict[str, list[int]] = defaultdict(list)

    def messages(
        self, connection: Connection, namespace: int, restarts: int, ids: Iterable[str]
    ) -> list[int]:
        """Return the rows of the messages that show some steps, as this transaction sees them."""
        life = (*connection.execute(_LIFE, (namespace,)).fetchone(), restarts)
        with self._lock:
            if life != self._life:
                self._life, self._through = life, 0
                self._rows.clear()
            page, full = (namespace, _SHOWING, _BODIES_AT_ONCE), True
            while full:
                found = connection.execute(_SHOWING_BODIES, (self._through, *page)).fetchall()
                for row, body in found:
                    for step_id in _shown_ids(body):
                        self._rows[step_id].append(row)
                    self._through = row
                full = len(found) == _BODIES_AT_ONCE
            return [row for step_id in ids for row in self._rows.get(step_id, ())]


def fields_of(body: Any) -> dict[str, Any]:
    """Return what a body says; of a damaged one nothing: who reads the message is told."""
    try:
        found: Any = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _shown_ids(body: Any) -> list[str]:
    fields = fields_of(body)
    several = as_list(as_object(fields.get("metadata")).get(SHOWN))
    return [str(one) for one in (fields.get("agent_step_id"), *several) if one]
