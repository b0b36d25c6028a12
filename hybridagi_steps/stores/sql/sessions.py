"""Messages of sessions in a database: commit and read.

A commit is one transaction: look the key up, check where the session ends, write the messages and
their AgentSteps. Who else writes waits at a lock, so sequences have no gap and no duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hybridagi_steps.errors import NotAllowedError, StepsError, UnknownSessionError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.message import Step, utc_now
from hybridagi_steps.records.store_values import BranchPosition, SessionState, SessionSummary
from hybridagi_steps.stores.body import (
    Written,
    decode_message,
    encode_message,
    message_dicts,
    preview,
)
from hybridagi_steps.stores.checksums import damaged
from hybridagi_steps.stores.commits import (
    check_end,
    check_names,
    check_repeated,
    first_user,
    refuse_twice,
)
from hybridagi_steps.stores.sql.lineage import (
    OPEN_END,
    Link,
    Row,
    SessionRow,
    branch_of,
    change_session,
    checked_rows,
    checked_session,
    end_of,
    foreign_branch,
    in_range,
    insert_session,
    links,
    new_branch,
    own_rows,
    pinned,
    place_of,
    rows,
    said,
    session_row,
    take_number,
    tip_of,
)
from hybridagi_steps.stores.sql.tables import DERIVED, Connection, is_storable, many
from hybridagi_steps.stores.sql.writing import StepWriting

_OF_STATE = 15  # columns that it has of the session
_USED = """SELECT branch_id, first, last FROM append_key
    WHERE namespace = ? AND session_id = ? AND key = ?"""
_USE = "INSERT INTO append_key VALUES (?, ?, ?, ?, ?, ?)"
_SESSIONS = """SELECT id, branch_id, created_at, updated_at, forked_from, forked_at, user_id,
        checksum FROM session
    WHERE namespace = ? {} ORDER BY written DESC LIMIT ? OFFSET ?"""
_SAVE_TOKENS = """INSERT INTO message_token (message_row, counter, tokens)
    SELECT row, ?, ? FROM message WHERE namespace = ? AND id = ?
    ON CONFLICT (message_row, counter) DO UPDATE SET tokens = excluded.tokens"""
_TOKENS = """SELECT m.id, t.tokens FROM message m
    JOIN message_token t ON t.message_row = m.row AND t.counter = ?
    WHERE m.namespace = ? AND m.id IN (SELECT value FROM json_each(?))"""
_FIRST_MESSAGES = 20  # looked at for the first one of a user

T = TypeVar("T")


def session_state_query(user: str) -> str:
    """Return SQL for all that a turn must know of a session, in one statement.

    Args:
        user: SQL of the user that a row `a` of `agent_step` names. Of `step_view` SQLite would walk
            all rows, not those that an index finds.
    """
    return f"""WITH state AS MATERIALIZED (
        SELECT s.branch_id AS tip, s.created_at, s.updated_at, s.forked_from, s.forked_at,
            s.user_id, s.checksum, b.id AS branch, b.session_id AS owner, b.fork_sequence AS fork,
            coalesce((SELECT max(sequence) FROM message WHERE branch_id = b.id), b.fork_sequence),
            n.epoch, coalesce((SELECT max(seq) FROM tombstone WHERE namespace = n.id), 0),
            (SELECT min({user}) FROM agent_step a WHERE a.namespace = s.namespace
                AND a.branch_id = b.id AND a.sequence > :users_after),
            (SELECT max({user}) FROM agent_step a WHERE a.namespace = s.namespace
                AND a.branch_id = b.id AND a.sequence > :users_after)
        FROM session s JOIN namespace n ON n.id = s.namespace
        LEFT JOIN branch b ON b.id = coalesce(CAST(:branch AS BIGINT), s.branch_id)
        WHERE s.namespace = :namespace AND s.id = :session)
    SELECT state.*, m.sequence, m.id, CAST(m.said AS BLOB), CAST(m.body AS BLOB), m.said_checksum,
        m.checksum
    FROM state LEFT JOIN message m
        ON m.branch_id = state.branch AND m.sequence > :after AND state.fork <= :after
    ORDER BY m.sequence"""  # noqa: S608 - columns are ours


class SessionTables(StepWriting):
    """Implements `SessionStore`, `SessionFollower` and `MessageTokenStore`; see protocols.py."""

    _session_state: str
    """What `session_state_query` returns."""

    def commit(
        self,
        session_id: str,
        messages: Sequence[Step],
        agent_steps: Sequence[AgentStep] = (),
        *,
        after: Sequence[int] | None = None,
        branch_id: int | None = None,
        expect_last: int | BranchPosition | None = None,
        idempotency_key: str | None = None,
        user_id: str | None = None,
    ) -> list[Step]:
        """Add messages and AgentSteps at the end, all or none."""
        check_names(session_id, messages, idempotency_key)
        written = [encode_message(message) for message in messages]
        own = {"session_id": session_id}
        steps = [
            step.model_copy(update=own) if step.session_id is None else step for step in agent_steps
        ]
        step_ids = [id_text(step.id) for step in steps]
        refuse_twice([message.id for message in messages])
        refuse_twice(step_ids)
        places = [0] * len(steps) if after is None else after
        alone = any(step.vector is not None for step in steps)  # as `append` does
        with self._db.writing(beside=None if alone else session_id) as connection:
            owner = user_id or first_user(messages, agent_steps)
            session, end = self._session_to_write(connection, session_id, branch_id, owner)
            session = session._replace(user_id=owner) if session.user_id is None else session
            if user_id is not None and session.user_id != user_id:
                raise NotAllowedError.of_session(session_id)
            if idempotency_key is not None:
                used = self._used(connection, session_id, idempotency_key, written)
                if used is not None:
                    return used
            check_end(session_id, end, expect_last)
            branch, last = end
            numbered = enumerate(zip(messages, written, strict=True), last + 1)
            added = [Row(number, one.id, *parts) for number, (one, parts) in numbered]
            for row in added:
                self._insert_message(connection, branch, row)
            pins = {
                step_id: BranchPosition(branch, last + 1 + place)
                for step_id, place in zip(step_ids, places, strict=True)
            }
            if steps:
                self._insert_all(connection, step_ids, steps, pins)
            if idempotency_key is not None:
                key = (self._namespace, session_id, idempotency_key)
                connection.execute(_USE, (*key, branch, last + 1, last + len(added)))
            if not added:
                take_number(connection)
            change_session(connection, self._namespace, session_id, session)
        return [
            message.model_copy(update={**own, "sequence": sequence})
            for sequence, message in enumerate(messages, last + 1)
        ]

    def messages(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[Step]:
        """Return the messages from `start` to `end`, with this session's id."""
        with self._readable(session_id):
            found = self._asked(rows, session_id, start, end, branch_id)
            return [decode_message(row.written, row.id, session_id, row.sequence) for row in found]

    def message_dicts(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the same messages as providers take them."""
        with self._readable(session_id):
            return message_dicts(self._asked(said, session_id, start, end, branch_id))

    def session_end(self, session_id: str, *, branch_id: int | None = None) -> BranchPosition:
        """Return where a session ends."""
        return self.session_state(session_id, branch_id=branch_id).end

    def session_state(
        self,
        session_id: str,
        *,
        branch_id: int | None = None,
        after: int | None = None,
        users_after: int | None = None,
    ) -> SessionState:
        """Return where a session, or one of its branches, stands, and what is new of it."""
        with self._readable(session_id), self._db.asking() as connection:
            found = self._state(connection, session_id, branch_id, after, users_after)
        if found is None:
            raise UnknownSessionError(session_id)
        return found[1]

    def session_owner(self, session_id: str) -> str | None:
        """Return whose a session is."""
        with self._db.asking() as connection:
            if found := session_row(connection, self._namespace, session_id):
                return found.user_id
        raise UnknownSessionError(session_id)

    def pinned_steps(
        self, session_id: str, *, branch_id: int | None = None
    ) -> list[tuple[int, str]]:
        """Return the AgentSteps pinned to a session's line."""
        with self._db.reading() as connection:
            if tip_of(connection, self._namespace, session_id) is None:
                return []
            branch = branch_of(connection, self._namespace, session_id, branch_id)
            return pinned(connection, self._namespace, branch)

    def place_of(self, message_id: str) -> tuple[str, int] | None:
        """Return a session that reads this message, and its sequence."""
        with self._db.reading() as connection:
            return place_of(connection, self._namespace, message_id)

    def sessions(
        self, *, limit: int, offset: int = 0, user_id: str | None = None, recorded: bool = False
    ) -> list[SessionSummary]:
        """Return sessions, the one written last first."""
        whose = [user_id] if user_id and is_storable(user_id) else []
        query = _SESSIONS.format("AND user_id = ?" if whose else "")
        page = (self._namespace, *whose, in_range(limit), in_range(offset))
        if user_id is not None and not whose:
            return []
        if recorded:
            return self._recorded(page)
        with self._db.reading() as connection:
            found = list(connection.execute(query, page))
            return [self._session(connection, *row) for row in found]

    def message_tokens(self, message_ids: Sequence[str], counter_id: str) -> dict[str, int]:
        """Return the counts known for these messages."""
        asked = many([text for text in message_ids if is_storable(text)])
        with self._db.asking() as connection:
            return dict(connection.execute(_TOKENS, (counter_id, self._namespace, asked)))

    def save_message_tokens(self, counts: Mapping[str, int], counter_id: str) -> None:
        """Remember counts; messages that are gone are skipped."""
        values = [
            (counter_id, count, self._namespace, message_id)
            for message_id, count in counts.items()
            if is_storable(message_id)
        ]
        with self._db.writing(beside=DERIVED) as connection:
            connection.executemany(_SAVE_TOKENS, values)

    def _asked(
        self,
        read: Callable[[Connection, int, int, int], Iterable[T]],
        session_id: str,
        start: int,
        end: int | None,
        branch_id: int | None,
    ) -> list[T]:
        """Return what `read` finds in the range asked for."""
        first, last = in_range(start), OPEN_END if end is None else in_range(end)
        with self._db.reading() as connection:
            branch = branch_of(connection, self._namespace, session_id, branch_id)
            return list(read(connection, branch, max(first, 1), last))

    @contextmanager
    def _readable(self, session_id: str) -> Generator[None]:
        """Say so when what the database gave us is no message."""
        try:
            yield
        except StepsError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(f"{self._db.name}: a message of session {session_id!r}", error) from error

    def _state(
        self,
        connection: Connection,
        session_id: str,
        branch_id: int | None,
        after: int | None = None,
        users_after: int | None = None,
    ) -> tuple[SessionRow, SessionState] | None:
        """Return a session and where it, or its branch, stands; None when it is unknown."""
        if not is_storable(session_id):
            return None
        after = OPEN_END if after is None else after
        asked: dict[str, int | str | None] = {
            "namespace": self._namespace,
            "session": session_id,
            "branch": branch_id and in_range(branch_id),
            "after": after,
            "users_after": OPEN_END if users_after is None else users_after,
        }
        found = connection.execute(self._session_state, asked).fetchall()
        if not found:
            return None
        tip, *known = found[0][:7]
        branch, owner, _, last, epoch, tombstone, *users = found[0][7:_OF_STATE]
        session = checked_session(self._namespace, session_id, tip, *known)
        if branch_id not in (None, tip) and owner != session_id:
            raise foreign_branch(session_id, branch_id)
        if branch is None:
            raise damaged(f"the branch {tip}", "it is not there")
        new = [row[_OF_STATE:] for row in found if row[_OF_STATE] is not None]
        messages = [
            decode_message(row.written, row.id, session_id, row.sequence)
            for row in checked_rows(Link(branch, after + 1, last), new)
        ]
        names = frozenset(name for name in users if name is not None)
        erasures = (self._restarts, epoch, tombstone)
        return session, SessionState(BranchPosition(branch, last), erasures, names, messages)

    def _session_to_write(
        self, connection: Connection, session_id: str, branch_id: int | None, owner: str | None
    ) -> tuple[SessionRow, BranchPosition]:
        """Return a session that is being written, and its end; an unknown one is created."""
        if (found := self._state(connection, session_id, branch_id)) is not None:
            return found[0], found[1].end
        if branch_id is not None:
            raise UnknownSessionError(session_id)
        session = self._create_session(connection, session_id, user_id=owner)
        return session, BranchPosition(session.branch_id, 0)

    def _create_session(
        self,
        connection: Connection,
        session_id: str,
        *,
        shares: BranchPosition | None = None,
        forked_from: str | None = None,
        user_id: str | None,
    ) -> SessionRow:
        """Add a session, empty or sharing messages with another."""
        reason = "start" if forked_from is None else "fork"
        branch = new_branch(
            connection, self._namespace, session_id, shares, reason=reason, pointed=True
        )
        now, forked_at = utc_now().isoformat(), shares.sequence if shares else None
        row = SessionRow(branch, now, now, forked_from, forked_at, user_id)
        insert_session(connection, self._namespace, session_id, row)
        return row

    def _used(
        self, connection: Connection, session_id: str, key: str, given: Sequence[Written]
    ) -> list[Step] | None:
        """Return what an earlier commit stored under this key; None when the key is new."""
        found = connection.execute(_USED, (self._namespace, session_id, key)).fetchone()
        if found is None:
            return None
        link = Link(*found)
        stored = list(own_rows(connection, link))
        whole = len(stored) == link.last - link.first + 1
        check_repeated(
            session_id,
            key,
            [row.written for row in stored],
            given,
            visible=whole and self._is_read(connection, session_id, link),
        )
        return [decode_message(row.written, row.id, session_id, row.sequence) for row in stored]

    def _is_read(self, connection: Connection, session_id: str, link: Link) -> bool:
        """Whether a session has what a commit stored, or it is an attempt under way."""
        if link.last < link.first:
            return True
        tip = tip_of(connection, self._namespace, session_id)
        owners = [] if tip is None else links(connection, tip, link.last, link.last)
        if owners and owners[0].branch_id == link.branch_id:
            return True
        sql = "SELECT 1 FROM branch WHERE id = ? AND pointed = 0"
        return connection.execute(sql, (link.branch_id,)).fetchone() is not None

    def _session(
        self, connection: Connection, session_id: str, branch_id: int, *values: Any
    ) -> SessionSummary:
        row = checked_session(self._namespace, session_id, branch_id, *values)
        with self._readable(session_id):
            first = self._first_message(connection, branch_id)
        last = end_of(connection, branch_id).sequence
        fork, times = (row.forked_from or None, row.forked_at), (row.created_at, row.updated_at)
        known = (*times, *fork, row.user_id or None)
        return SessionSummary(session_id, branch_id, last, first, *known)

    def _first_message(self, connection: Connection, branch_id: int) -> str:
        for row in rows(connection, branch_id, 1, _FIRST_MESSAGES):
            if (shown := preview(row.written)) is not None:
                return shown
        return ""
