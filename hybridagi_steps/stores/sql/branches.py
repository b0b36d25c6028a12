"""Fork, retry, delete and forget in a database. All but forgetting add one row and copy nothing.

What no session reads any more stays on its branch, hidden, until `sweep` removes it: vacuum sweeps
everything, deleting a session what only that session read. A young branch that no session has ever
pointed at is an attempt under way, which a sweep leaves alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hybridagi_steps.errors import SequenceConflictError
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.message import Step, new_id, utc_now
from hybridagi_steps.records.store_values import (
    DENIALS,
    MESSAGE_ROWS,
    Attempt,
    BranchPosition,
    denial_id,
)
from hybridagi_steps.stores.body import decode_message, encode_message
from hybridagi_steps.stores.commits import ATTEMPT_HOURS, check_names, first_and_last
from hybridagi_steps.stores.sql.lineage import (
    branch_of,
    change_session,
    end_of,
    narrow_reach,
    new_branch,
    rows,
    session_row,
    take_number,
    tip_of,
    widen_reach,
)
from hybridagi_steps.stores.sql.sessions import SessionTables
from hybridagi_steps.stores.sql.tables import (
    Connection,
    many,
    remove_empty_runs,
    remove_marks,
    runs_of,
)

_DENIALS = """SELECT row FROM step_view
    WHERE namespace = ? AND session_id = ? AND branch_id IS NULL AND scope = ?"""
_POINTED = "UPDATE branch SET pointed = 1 WHERE id = ?"
_ATTEMPTS = """SELECT id, fork_sequence,
        (SELECT count(*) FROM message WHERE branch_id = b.id), reason, created_at
    FROM branch b WHERE namespace = ? AND session_id = ? ORDER BY id"""
_TIPS = """SELECT branch_id FROM session
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_OWN_BRANCHES = """SELECT id FROM branch WHERE namespace = ?
    AND (session_id = '' OR session_id IN (SELECT value FROM json_each(?)))"""
_SESSIONS_GONE = (
    "DELETE FROM append_key WHERE namespace = ? AND session_id IN (SELECT value FROM json_each(?))",
    "DELETE FROM session WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))",
    """UPDATE branch SET pointed = 1
       WHERE namespace = ? AND session_id IN (SELECT value FROM json_each(?))""",
    """UPDATE session SET forked_from = '', checksum = NULL
       WHERE namespace = ? AND forked_from IN (SELECT value FROM json_each(?))""",
)
"""What is rewritten has no checksum until the purge compacts, which adds them."""
_DISOWN = """UPDATE branch SET session_id = ''
    WHERE namespace = ? AND session_id IN (SELECT value FROM json_each(?))"""
# What sessions and attempts under way read of each branch; branches not listed are read by nobody.
_KEPT = """WITH RECURSIVE chain(branch_id, parent_id, below, last) AS (
    SELECT b.id, b.parent_id, b.fork_sequence, 9223372036854775807 FROM branch b
    WHERE b.namespace = :namespace
        AND (b.reach = 9223372036854775807 OR (b.pointed = 0 AND b.created_at >= :since)){}
    UNION ALL
    SELECT b.id, b.parent_id, b.fork_sequence, chain.below
    FROM chain JOIN branch b ON b.id = chain.parent_id AND b.id < chain.branch_id)
SELECT branch_id, max(last) AS last FROM chain GROUP BY branch_id"""
_LIMITED = f"""SELECT b.id, coalesce(k.last, 0), b.parent_id, b.fork_sequence FROM branch b
    LEFT JOIN ({_KEPT.format("")}) k ON k.branch_id = b.id
    WHERE b.namespace = :namespace AND b.reach < 9223372036854775807
        AND coalesce(k.last, 0) < 9223372036854775807 ORDER BY b.id"""  # noqa: S608 - no value in it
_KEPT_BY_OTHERS = _KEPT.format(" AND NOT b.session_id IN (SELECT value FROM json_each(:names))")
_ALONE = """SELECT count(*) FROM branch b JOIN {} r ON r.branch_id = b.id
    LEFT JOIN ({}) k ON k.branch_id = b.id
    WHERE b.namespace = :namespace AND r.sequence > coalesce(k.last, 0)
        AND (b.session_id = '' OR b.session_id IN (SELECT value FROM json_each(:names)))"""
"""How many rows of a table no session reads but those of some names."""
_STEPS_BEYOND = """SELECT row FROM agent_step
    WHERE namespace = ? AND branch_id = ? AND sequence > ?"""
_OTHERS = """SELECT row FROM step_view
    WHERE namespace = ? AND row IN (SELECT value FROM json_each(?)) AND user_id <> ?"""


def forgetting_messages(which: str) -> tuple[str, ...]:
    """Return SQL that forgets some messages with all that was derived from them; they go last."""
    units = f"SELECT row + {MESSAGE_ROWS} FROM message WHERE {which}"  # noqa: S608 - no value in it
    return (
        f"DELETE FROM message_token WHERE message_row IN (SELECT row FROM message WHERE {which})",  # noqa: S608 - no value in it
        f"INSERT INTO tombstone (namespace, row) {units.replace('row', 'namespace, row', 1)}",
        f"DELETE FROM step_text WHERE row IN ({units})",  # noqa: S608 - no value in it
        f"DELETE FROM embedding WHERE row IN ({units})",  # noqa: S608 - no value in it
        f"DELETE FROM message WHERE {which}",  # noqa: S608 - no value in it
    )


_FORGET_MESSAGES = forgetting_messages("branch_id = ? AND sequence > ?")
# What others show of a message is not known without reading lines, so all are told anew: erasing
# what another session reads is rare.
_TELL_ANEW = (
    f"DELETE FROM step_text WHERE namespace = ? AND row >= {MESSAGE_ROWS}",  # noqa: S608 - no value in it
    f"DELETE FROM embedding WHERE namespace = ? AND row >= {MESSAGE_ROWS}",  # noqa: S608 - no value in it
    """UPDATE namespace SET epoch = epoch + 1, message_texts_through = 0,
       message_vectors_through = 0 WHERE id = ?""",
)
_REWRITE = """UPDATE message SET id = ?, said = ?, body = ?, said_checksum = NULL, checksum = NULL
    WHERE namespace = ? AND id = ?"""
_FORGET_COUNTS = """DELETE FROM message_token WHERE message_row =
    (SELECT row FROM message WHERE namespace = ? AND id = ?)"""


class BranchTables(SessionTables):
    """Implements `SessionStore` and `SessionStore`; see protocols.py."""

    def fork(
        self,
        session_id: str,
        sequence: int,
        new_session_id: str | None = None,
        *,
        user_id: str | None = None,
        keep_times: bool = False,
    ) -> str:
        """Start a session that shares messages 1 to `sequence` with this one."""
        made = str(new_id()) if new_session_id is None else new_session_id
        check_names(made, [], None)
        with self._db.writing() as connection:
            asked = branch_of(connection, self._namespace, session_id, None)
            source = session_row(connection, self._namespace, session_id)
            if tip_of(connection, self._namespace, made) is not None:
                raise SequenceConflictError(
                    f"there is a session {made!r} already; name another, or none to get a new id."
                )
            shares = BranchPosition(asked, sequence)
            owner = user_id or (source and source.user_id)
            last = rows(connection, asked, sequence, sequence) if keep_times else ()
            times = first_and_last(
                decode_message(row.written, row.id, made, row.sequence) for row in last
            )
            session = self._create_session(
                connection,
                made,
                shares=shares,
                forked_from=session_id,
                user_id=owner,
                begun=times and times[0],
            )
            if times is not None:
                change_session(connection, self._namespace, made, session, times[1])
            self._take_denials(connection, session_id, made)
        return made

    def _take_denials(self, connection: Connection, session_id: str, fork: str) -> None:
        """Let the rules of a session that deny a tool hold in a fork of it, whatever goes."""
        key = (self._namespace, session_id, DENIALS)
        found = self._read(connection, self._column(connection, _DENIALS, *key)).values()
        rules = {denial_id(str(rule.program_id), fork, rule.user_id): rule for rule in found}
        known = self._rows_of(connection, [*rules])
        new = [
            rule.model_copy(update={"id": UUID(name), "session_id": fork})
            for name, rule in rules.items()
            if name not in known
        ]
        if new:
            self._insert_all(connection, [id_text(rule.id) for rule in new], new, {})

    def branch_at(self, session_id: str, sequence: int, reason: str = "retry") -> int:
        """Start a branch after `sequence`; the session stays as it is."""
        with self._db.writing() as connection:
            return self._branch_at(connection, session_id, sequence, reason)

    def adopt(self, session_id: str, branch_id: int, *, expect_branch: int | None = None) -> None:
        """Let the session point at one of its branches."""
        with self._db.writing() as connection:
            tip = branch_of(connection, self._namespace, session_id, None)
            if expect_branch is not None and tip != expect_branch:
                raise SequenceConflictError(
                    f"session {session_id!r} points at branch {tip}, not at {expect_branch}: "
                    "somebody else has moved it. Read it again, then decide."
                )
            self._point(connection, session_id, branch_id, tip)

    def hide_from(self, session_id: str, start: int) -> int:
        """Hide the messages from `start` on, in this session only."""
        with self._db.writing() as connection:
            tip = branch_of(connection, self._namespace, session_id, None)
            kept = max(start, 1) - 1
            hidden = end_of(connection, tip).sequence - kept
            if hidden > 0:
                branch = self._branch_at(connection, session_id, kept, "delete")
                self._point(connection, session_id, branch, tip)
        return max(hidden, 0)

    def attempts(self, session_id: str) -> list[Attempt]:
        """Return all branches of a session, oldest first."""
        with self._db.reading() as connection:
            tip = branch_of(connection, self._namespace, session_id, None)
            found = connection.execute(_ATTEMPTS, (self._namespace, session_id))
            return [Attempt(*values, current=values[0] == tip) for values in found]

    def delete_session(self, session_id: str, *, by: str | None = None) -> tuple[int, int]:
        """Delete a session with its attempts, and what no other session reads of it."""
        with self._db.writing() as connection:
            if tip_of(connection, self._namespace, session_id) is None:
                return 0, 0
            return self._delete_sessions(connection, [session_id], by)

    def _delete_sessions(
        self, connection: Connection, names: Sequence[str], by: str | None = None
    ) -> tuple[int, int]:
        """Delete sessions with what no other one reads; return messages and steps."""
        key = (self._namespace, many(names))
        tips = self._column(connection, _TIPS, *key)
        for statement in _SESSIONS_GONE:
            connection.execute(statement, key)
        for tip in tips:
            narrow_reach(connection, tip)
        gone = self._sweep(connection, self._column(connection, _OWN_BRANCHES, *key), by)
        connection.execute(_DISOWN, key)
        return gone

    def alone_in(self, sessions: list[str]) -> tuple[int, int]:
        """Return how many messages and pinned AgentSteps no session but these reads."""
        asked = {**self._asked_of_branches, "names": many(sessions)}
        with self._db.reading() as connection:
            messages, steps = (
                connection.execute(_ALONE.format(table, _KEPT_BY_OTHERS), asked).fetchone()[0]
                for table in ("message", "agent_step")
            )
        return messages, steps

    def now(self) -> datetime:
        """Return the time by the clock that decides what is old."""
        return utc_now()

    @property
    def _asked_of_branches(self) -> dict[str, Any]:
        """Return what the query for what is read of branches asks."""
        since = (self.now() - timedelta(hours=ATTEMPT_HOURS)).isoformat()
        return {"namespace": self._namespace, "since": since}

    def rewrite_messages(self, changed: Mapping[str, Step]) -> int:
        """Put other messages in the place of some."""
        there = 0
        with self._db.writing() as connection:
            for old, message in changed.items():
                key, written = (self._namespace, old), encode_message(message)
                connection.execute(_FORGET_COUNTS, key)
                new = (message.id, written.said, written.body)
                there += connection.execute(_REWRITE, (*new, *key)).rowcount
            for statement in _TELL_ANEW if there else ():
                connection.execute(statement, (self._namespace,))
        return there

    def sweep(self) -> tuple[int, int]:
        """Delete what no session and no attempt under way reads; return messages and steps."""
        with self._db.writing() as connection:
            return self._sweep(connection)

    def _sweep(
        self, connection: Connection, only: Sequence[int] | None = None, by: str | None = None
    ) -> tuple[int, int]:
        """Sweep all branches, or `only` some and what nobody reads and cannot be without them.

        AgentSteps of other users than the one who asks stay, but at no message.
        """
        asked = self._asked_of_branches
        wanted = None if only is None else set(only)
        limited: dict[int, int] = {}
        for branch, last, parent, fork in connection.execute(_LIMITED, asked).fetchall():
            if wanted is None or branch in wanted or limited.get(parent, fork) < fork:
                limited[branch] = last
        messages, rows = 0, list[int]()
        take_number(connection)
        for branch, last in limited.items():
            rows += self._column(connection, _STEPS_BEYOND, self._namespace, branch, last)
            for statement in _FORGET_MESSAGES[:-1]:
                connection.execute(statement, (branch, last))
            messages += connection.execute(_FORGET_MESSAGES[-1], (branch, last)).rowcount
        if by is not None:
            others = self._column(connection, _OTHERS, self._namespace, many(rows), by)
            rows = sorted({*rows}.difference(others))
            self._forget_prompts_in(connection, others)  # they hold what was said in it
            for statement in self._unpin_rows:
                connection.execute(statement, {"namespace": self._namespace, "rows": many(others)})
        runs = runs_of(connection, self._namespace, rows)
        self._forget(connection, sorted(rows))
        remove_empty_runs(connection, self._namespace, runs)
        remove_marks(connection, self._namespace)
        gone = many([branch for branch, last in limited.items() if last == 0])
        connection.execute(
            "DELETE FROM branch WHERE id IN (SELECT value FROM json_each(?))", (gone,)
        )
        return messages, len(rows)

    def _branch_at(
        self, connection: Connection, session_id: str, sequence: int, reason: str
    ) -> int:
        tip = branch_of(connection, self._namespace, session_id, None)
        after = BranchPosition(tip, sequence)
        return new_branch(
            connection, self._namespace, session_id, after, reason=reason, pointed=False
        )

    def _point(self, connection: Connection, session_id: str, branch_id: int, tip: int) -> None:
        """Move the session's pointer from `tip`; what is read moves with it."""
        branch = branch_of(connection, self._namespace, session_id, branch_id)
        if (session := session_row(connection, self._namespace, session_id)) is not None:
            moved = session._replace(branch_id=branch)
            take_number(connection)
            change_session(connection, self._namespace, session_id, moved)
        connection.execute(_POINTED, (branch,))
        if branch != tip:
            widen_reach(connection, branch)
            narrow_reach(connection, tip)
