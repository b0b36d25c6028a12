"""Which messages a branch shows: its lineage, where it ends, and how far each branch is read.

A lineage is a chain of ranges, one per branch. It is resolved first, by one recursive query, and
each range is then read by itself, oldest first. Two rules keep this fast: a message at or below a
fork point never changes, and the parent of a new branch is the branch that *owns* the fork point,
so a thousand retries of one turn stay two links deep. These are functions on a connection; the
transaction is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from hybridagi_steps.errors import (
    SequenceConflictError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.session_protocols import BranchPosition
from hybridagi_steps.stores.message_body import Written
from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sql.values import is_storable

OPEN_END = 2**63 - 1
"""The last sequence of a range that still grows; the largest integer of a column."""

_CHAIN = """WITH RECURSIVE chain(branch_id, parent_id, below, last) AS (
    SELECT id, parent_id, fork_sequence, CAST(:end AS BIGINT) FROM branch WHERE id = :branch
    UNION ALL
    SELECT b.id, b.parent_id, b.fork_sequence,
        CASE WHEN chain.below < :end THEN chain.below ELSE :end END
    FROM chain JOIN branch b ON b.id = chain.parent_id WHERE chain.below >= :start)
SELECT branch_id, below + 1, last FROM chain WHERE below < :end"""
_RANGE = """SELECT sequence, id, said, body FROM message
    WHERE branch_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence"""
_SAID = """SELECT said FROM message
    WHERE branch_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence"""
_STEPS = """SELECT row FROM agent_step
    WHERE namespace = ? AND branch_id = ? AND sequence <= ?"""
_PLACE = "SELECT branch_id, sequence FROM message WHERE namespace = ? AND id = ?"
# Sessions that point at a branch or at one below it.
_READERS = """WITH RECURSIVE below(id) AS (
        SELECT CAST(:branch AS BIGINT) UNION SELECT b.id FROM below JOIN branch b
            ON b.parent_id = below.id AND b.reach > 0)
    SELECT s.id, s.branch_id FROM below JOIN session s ON s.branch_id = below.id
    WHERE s.namespace = :namespace ORDER BY s.created_at"""
_PINNED = """SELECT sequence, id FROM agent_step
    WHERE namespace = ? AND branch_id = ? AND sequence <= ? ORDER BY sequence, row"""
_END = """SELECT coalesce((SELECT max(sequence) FROM message WHERE branch_id = b.id),
    b.fork_sequence) FROM branch b WHERE id = ?"""
_TIP = "SELECT branch_id FROM session WHERE namespace = ? AND id = ?"
_OWNER = "SELECT session_id FROM branch WHERE namespace = ? AND id = ?"
_NEW_BRANCH = """INSERT INTO branch
    (namespace, session_id, parent_id, fork_sequence, reach, pointed, reason, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"""
_WIDEN = "UPDATE branch SET reach = ? WHERE id = ? AND reach < ?"
_PARENT = "SELECT parent_id, fork_sequence FROM branch WHERE id = ?"
_MEASURED = """SELECT b.parent_id, b.reach, CASE
        WHEN EXISTS (SELECT 1 FROM session s
                     WHERE s.namespace = b.namespace AND s.id = b.session_id AND s.branch_id = b.id)
        THEN 9223372036854775807
        ELSE coalesce((SELECT max(c.fork_sequence) FROM branch c
                       WHERE c.parent_id = b.id AND c.reach > 0), 0) END
    FROM branch b WHERE id = ?"""


class Link(NamedTuple):
    """The part of one branch that a session sees; both ends are inclusive."""

    branch_id: int
    first: int
    last: int


class Row(NamedTuple):
    """One stored message."""

    sequence: int
    id: str
    said: str
    body: str

    @property
    def written(self) -> Written:
        """The message itself."""
        return Written(self.said, self.body)


def branch_of(
    connection: Connection, namespace: int, session_id: str, branch_id: int | None
) -> int:
    """Return the branch that is asked: the session's current one, or another of its own.

    Raises:
        UnknownSessionError: No such session.
        SequenceConflictError: The branch is not one of this session.
    """
    tip = tip_of(connection, namespace, session_id)
    if tip is None:
        raise UnknownSessionError(session_id)
    if branch_id is None or branch_id == tip:
        return tip
    owner = connection.execute(_OWNER, (namespace, in_range(branch_id))).fetchone()
    if owner is None or owner[0] != session_id:
        raise not_its_branch(session_id, branch_id)
    return branch_id


def in_range(number: int) -> int:
    """Return a number that a column can hold: the one given, or the nearest."""
    return max(min(number, OPEN_END), -OPEN_END)


def not_its_branch(session_id: str, branch_id: int) -> SequenceConflictError:
    """Return the error to raise for a branch that a session does not have."""
    return SequenceConflictError(
        f"branch {branch_id} is not one of session {session_id!r}; attempts() lists them."
    )


def tip_of(connection: Connection, namespace: int, session_id: str) -> int | None:
    """Return the branch a session points at, None for an unknown session."""
    if not is_storable(session_id):
        return None
    found = connection.execute(_TIP, (namespace, session_id)).fetchone()
    return found[0] if found else None


def end_of(connection: Connection, branch_id: int) -> BranchPosition:
    """Return where a branch ends."""
    return BranchPosition(branch_id, connection.execute(_END, (branch_id,)).fetchone()[0])


def links(
    connection: Connection, branch_id: int, start: int = 1, end: int = OPEN_END
) -> list[Link]:
    """Return the ranges that make up a branch between `start` and `end`, oldest first."""
    asked = {"branch": branch_id, "start": start, "end": end}
    return [Link(*row) for row in connection.execute(_CHAIN, asked)][::-1]


def rows(
    connection: Connection, branch_id: int, start: int = 1, end: int = OPEN_END
) -> Iterator[Row]:
    """Yield the messages of a branch from `start` to `end`, both inclusive, in order.

    Complexity: O(links above `start` + messages returned); index order is the order wanted.
    """
    for link in links(connection, branch_id, start, end):
        asked = (link.branch_id, max(link.first, start), link.last)
        yield from map(Row._make, connection.execute(_RANGE, asked))


def said(connection: Connection, branch_id: int, start: int = 1, end: int = OPEN_END) -> list[str]:
    """Return the same messages as `rows`, only what they say, as JSON."""
    found: list[str] = []
    for link in links(connection, branch_id, start, end):
        asked = (link.branch_id, max(link.first, start), link.last)
        found += [text for (text,) in connection.execute(_SAID, asked)]
    return found


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
    branch_id, sequence = found
    readers = {"namespace": namespace, "branch": branch_id}
    for session_id, tip in connection.execute(_READERS, readers).fetchall():
        if links(connection, tip, sequence, sequence)[0].branch_id == branch_id:
            return session_id, sequence
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

    Args:
        connection: The writer.
        namespace: Whose branch.
        session_id: The session it belongs to.
        after: A branch, and the last sequence to share with it; None shares nothing.
        reason: Why it was made.
        pointed: Whether the session will point at it in this transaction.

    Raises:
        UnknownSequenceError: `after` lies beyond the end of its branch.
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
    reach = OPEN_END if pointed else 0
    place = (namespace, session_id, parent, shared)
    made = (reach, int(pointed), reason, utc_now().isoformat())
    return int(connection.execute(_NEW_BRANCH, (*place, *made)).fetchall()[0][0])


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
