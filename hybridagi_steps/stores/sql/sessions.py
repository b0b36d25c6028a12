"""Messages of sessions in a database: read, listed, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import orjson

from hybridagi_steps.display.titles import title_of
from hybridagi_steps.errors import UnknownSessionError
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.records.store_values import BranchPosition, SessionState, SessionSummary
from hybridagi_steps.stores.body import Written, decode_message, message_dicts, preview
from hybridagi_steps.stores.sql.lineage import (
    OPEN_END,
    branch_of,
    checked_session,
    end_of,
    in_range,
    pinned,
    place_of,
    rows,
    said,
    session_row,
    tip_of,
)
from hybridagi_steps.stores.sql.session_commits import SessionCommits
from hybridagi_steps.stores.sql.tables import (
    DERIVED,
    OF_USER,
    SOME,
    Connection,
    is_storable,
    many,
)

_SESSIONS = """SELECT id, branch_id, created_at, updated_at, forked_from, forked_at, user_id,
        checksum FROM session
    WHERE namespace = ? {} ORDER BY written DESC, updated_at DESC LIMIT ? OFFSET ?"""
_RECORDED = """WITH found AS MATERIALIZED (
        SELECT v.session_id, v.run_id, v.row, v.user_id, v.created_at FROM step_view v
        WHERE v.namespace = ? AND v.session_id IS NOT NULL AND v.branch_id IS NULL
        AND v.session_id {} AND NOT EXISTS (
            SELECT 1 FROM session s WHERE s.namespace = v.namespace AND s.id = v.session_id))
    SELECT v.session_id, count(DISTINCT v.run_id), min(v.row), min(v.created_at),
        max(v.created_at), CASE WHEN count(v.user_id) = count(*) AND min(v.user_id) = max(v.user_id)
        THEN min(v.user_id) END
    FROM found v GROUP BY v.session_id HAVING {} ORDER BY max(v.row) DESC LIMIT ? OFFSET ?"""
_RECORDED_SINCE = """WITH found AS MATERIALIZED (
        SELECT CASE WHEN k.branch_id IS NULL THEN k.session_id END AS session_id, k.row
        FROM step_view k WHERE k.namespace = ? AND k.row >= ? {})
    SELECT f.session_id FROM found f WHERE f.session_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM session s WHERE s.namespace = ? AND s.id = f.session_id)
    GROUP BY f.session_id ORDER BY max(f.row) DESC"""
"""CASE: of a condition PostgreSQL may conclude to ask the index by session, which has all rows."""
_PAGE = " LIMIT ? OFFSET ?"
_BY_NAME = ">= ''"
"""What every name is, and what makes SQLite ask the index of steps without messages."""
_FEW_RECORDED = f"""SELECT count(*) < ? FROM (SELECT 1 FROM step_view
    WHERE namespace = ? AND session_id IS NOT NULL AND branch_id IS NULL AND session_id {_BY_NAME}
    LIMIT ?) some_steps"""  # noqa: S608 - no value in it
_FEW = 1_000
"""Steps without messages of which all sessions are found at once."""
_LAST_SAID = """SELECT m.said, m.body, m.id, s.id, m.sequence
    FROM (SELECT id, branch_id FROM session WHERE namespace = ?
        ORDER BY written DESC, updated_at DESC LIMIT ?) s
    JOIN message m ON m.branch_id = s.branch_id AND m.sequence = (
        SELECT max(o.sequence) FROM message o WHERE o.branch_id = s.branch_id)"""
_SAVE_TOKENS = """INSERT INTO message_token (message_row, counter, tokens)
    SELECT row, ?, ? FROM message WHERE namespace = ? AND id = ?
    ON CONFLICT (message_row, counter) DO UPDATE SET tokens = excluded.tokens"""
_TOKENS = """SELECT m.id, t.tokens FROM message m
    JOIN message_token t ON t.message_row = m.row AND t.counter = ?
    WHERE m.namespace = ? AND m.id IN (SELECT value FROM json_each(?))"""
_FIRST_MESSAGES = 20  # looked at for the first one of a user

T = TypeVar("T")


class SessionTables(SessionCommits):
    """Implements `SessionStore`, `SessionFollower` and `MessageTokenStore`; see protocols.py."""

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
            return self._recorded(whose, in_range(limit), in_range(offset))
        with self._db.reading() as connection:
            found = list(connection.execute(query, page))
            return [self._session(connection, *row) for row in found]

    def _recorded(self, whose: list[str], limit: int, offset: int) -> list[SessionSummary]:
        """Return sessions without messages, all or a user's."""
        self._catch_up()
        with self._db.reading() as connection:
            found = self._page_of_recorded(connection, whose, limit, offset)
            firsts = self._read(connection, [row for _, _, row, *_ in found])
        return [
            SessionSummary(
                *(session_id, 0, 0, str(title_of(vars(firsts[row])))),
                *(begun, written),
                user_id=user,
                runs=runs,
            )
            for session_id, runs, row, begun, written, user in found
        ]

    def _page_of_recorded(
        self, connection: Connection, whose: list[str], limit: int, offset: int
    ) -> list[Any]:
        """Return what is known of a page of them, from the newest steps alone if they hold it."""
        key, page = self._namespace, (limit, offset)
        query = _RECORDED.format(SOME, OF_USER if whose else "TRUE")
        if connection.execute(_FEW_RECORDED, (_FEW, key, _FEW)).fetchone()[0]:
            query = _RECORDED.format(_BY_NAME, OF_USER if whose else "TRUE")
            return connection.execute(query, (key, *whose, *page)).fetchall()
        if not whose:
            names = self._last_recorded(connection, limit, offset)
            return connection.execute(query, (key, many(names), limit, 0)).fetchall()
        since = _RECORDED_SINCE.format("AND k.user_id = ?")
        for row in chain(self._earlier_rows(connection, limit + offset, user=whose[0]), [0]):
            names = self._column(connection, since, key, row, *whose, key)
            if row and len(names) < limit + offset:
                continue  # and spare what there may be of steps in these
            found = connection.execute(query, (key, many(names), *whose, *page)).fetchall()
            if not row or len(found) == limit:
                return found
        return []

    def _last_recorded(self, connection: Connection, limit: int, offset: int) -> list[str]:
        """Return the names of a page of them; only these are looked into."""
        names, newest, key = list[str](), _RECORDED_SINCE.format("") + _PAGE, self._namespace
        for row in chain(self._earlier_rows(connection, limit + offset, part=1), [0]):
            names = self._column(connection, newest, key, row, key, limit, offset)
            if len(names) == limit:
                break
        return names

    def unanswered(self, limit: int) -> list[Step]:
        """Return the last messages of the sessions written last that are no model's answer."""
        with self._db.asking() as connection:
            found = connection.execute(_LAST_SAID, (self._namespace, limit)).fetchall()
        return [
            decode_message(Written(said, body), *place)
            for said, body, *place in found
            if (last := orjson.loads(said))["role"] != MessageRole.ASSISTANT
            or last.get("tool_calls")
        ]

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
