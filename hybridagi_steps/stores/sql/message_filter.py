"""Which messages of sessions match a filter, whose they are, and which are hidden.

A message has few of the keys that a step has: a run, a time, a source, metadata, and its user. If
it names none, it is of whom the question names that it answers (`speaker`), of the only user whose
steps its run has, else of the only one that steps of its session have, or of the session that this
was forked from. Where they have several, it is no named user's to find, and nobody's either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.json_reading import as_object, as_text
from hybridagi_steps.records.message import SUMMARY_OF
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.store_values import (
    ABANDONED,
    MESSAGE_ROWS,
    REVOKED,
    SEVERAL_USERS,
    Hidden,
    RowMetadata,
    Rows,
    owner,
)
from hybridagi_steps.stores.sql.lineage import (
    Named,
    ShownSteps,
    fields_of,
    links,
    some_unnamed,
    speakers_of,
    tip_of,
)
from hybridagi_steps.stores.sql.steps import StepReading
from hybridagi_steps.stores.sql.tables import Connection, is_storable, many
from hybridagi_steps.stores.sql.where import has_metadata

_USERS_OF_RUNS = """WITH named AS MATERIALIZED (SELECT run_id, user_id FROM step_view
        WHERE namespace = ? AND run_id <> '' AND run_id IN (SELECT value FROM json_each(?))
        AND user_id IS NOT NULL)
    SELECT DISTINCT run_id, user_id FROM named"""
"""DISTINCT beside the view itself would make SQLite read all steps there are."""
_USERS_OF_SESSIONS = """SELECT b.session_id, k.user_id FROM branch b
    JOIN agent_step s ON s.namespace = b.namespace AND s.branch_id = b.id
    JOIN step_view k ON k.namespace = s.namespace AND k.row = s.row
    WHERE b.namespace = ? AND b.session_id IN (SELECT value FROM json_each(?))
    AND k.user_id IS NOT NULL"""
_USERS_OF_NAMES = """WITH named AS MATERIALIZED (SELECT session_id, user_id FROM step_view
        WHERE namespace = ? AND session_id IS NOT NULL AND branch_id IS NULL
        AND session_id IN (SELECT value FROM json_each(?)) AND user_id IS NOT NULL)
    SELECT DISTINCT session_id, user_id FROM named"""
"""Of steps that name a session and were recorded before it had messages."""
_SESSIONS = """WITH RECURSIVE line(branch_id, id, parent_id, session_id) AS (
        SELECT id, id, parent_id, session_id FROM branch
            WHERE id IN (SELECT value FROM json_each(?))
        UNION ALL SELECT line.branch_id, b.id, b.parent_id, b.session_id
            FROM line JOIN branch b ON b.id = line.parent_id AND b.id < line.id)
    SELECT DISTINCT branch_id, session_id FROM line"""
_RUN_SCORES = "SELECT run_id, score FROM run WHERE namespace = ? AND score >= ?"
_PAGE_OF_BODIES = """SELECT row, CAST(body AS BLOB), branch_id FROM message
    WHERE +namespace = ? AND row > ? ORDER BY row LIMIT ?"""
_BODIES_OF = """SELECT row, CAST(body AS BLOB), branch_id FROM message
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_ROWS = "SELECT row FROM message WHERE namespace = ?"
_OF_LINK = "SELECT row FROM message WHERE branch_id = ? AND sequence BETWEEN ? AND ?"
_ABANDONED = """SELECT m.row FROM branch b
    JOIN message m ON m.branch_id = b.id AND m.sequence > b.reach
    WHERE b.namespace = ? AND b.reach < 9223372036854775807"""
_MARKED = """SELECT m.row FROM revoked r
    JOIN message m ON m.namespace = r.namespace AND m.id = r.step_id WHERE r.namespace = ?"""
_MARKS = "SELECT step_id FROM revoked WHERE namespace = ?"
_IDS_OF = """SELECT id FROM message
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?)) ORDER BY row"""
_NESTED = """SELECT CAST(body AS BLOB) FROM message
    WHERE +namespace = ? AND body LIKE ?"""
_NAMING_PARENTS = '%"parent_run_id"%'
_BODIES_AT_ONCE = 5_000
_NOT_IN_BODIES = {"session_id", "kinds", "scope", "exclude", "any_of"}

Owner = str | Set[str] | None
"""Whose a message is: one user's, any of several users', nobody's."""


class Origin(NamedTuple):
    """Where a message comes from."""

    run_id: str | None
    branch_id: int
    asked_by: str | None
    """As `Speaker` has it."""


class MessageFilter(StepReading):
    """Implements what `MessageIndex` says of keys and filters; see protocols.py."""

    @cached_property
    def _shown_steps(self) -> ShownSteps:
        return ShownSteps()

    @property
    def _restarts(self) -> int:
        """How often the database may have taken rows back since this was opened."""
        return 0

    def message_keys(
        self, names: Sequence[StepKey], *, after: int, limit: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        """Return the next messages above `after` with their keys."""
        with self._db.reading() as connection:
            page = (self._namespace, max(after - MESSAGE_ROWS, 0), limit)
            found = connection.execute(_PAGE_OF_BODIES, page).fetchall()
            branches = {branch_id for *_, branch_id in found} if "sessions" in names else set[int]()
            lines = sessions_of(connection, branches)
            keys = {row: keys_of(body) for row, body, _ in found} if names else {}
            if "author" in names:
                self._name_speakers(connection, keys)
        sessions = {branch: orjson.dumps(sorted(of)).decode() for branch, of in lines.items()}
        columns: dict[StepKey, list[str | None]] = {name: [] for name in names}
        for row, _, branch in found if columns else ():
            told = {**keys[row], "sessions": sessions.get(branch)}
            for name, column in columns.items():
                column.append(told.get(name))
        return np.array([row + MESSAGE_ROWS for row, *_ in found], np.int64), columns

    def message_metadata(self, *, after: int, through: int) -> RowMetadata:
        """Return the messages in a range of rows with their metadata."""
        found: RowMetadata = []
        with self._db.reading() as connection:
            for row, body, _ in self._bodies(connection, after - MESSAGE_ROWS):
                if row + MESSAGE_ROWS > through:
                    break
                if metadata := as_object(fields_of(body).get("metadata")):
                    found.append((row + MESSAGE_ROWS, metadata))
        return found

    def message_rows(self, where: StepFilter) -> Rows:
        """Return the rows of messages that match, ascending."""
        self._catch_up()
        with self._db.reading() as connection:
            rows = self._matching_messages(connection, where)
        return np.array(sorted(rows), np.int64) + MESSAGE_ROWS

    def runs_inside(self, run_ids: Set[str]) -> set[str]:
        """Return runs with those that agents used as tools began inside them."""
        with self._db.reading() as connection:
            known = map(
                fields_of, self._column(connection, _NESTED, self._namespace, _NAMING_PARENTS)
            )
        inside: dict[str, set[str]] = defaultdict(set)
        for fields in known:
            inside[str(fields.get("parent_run_id"))].add(str(fields.get("run_id")))
        found, new = {*run_ids}, {*run_ids}
        while new := set[str]().union(*(inside[run] for run in new)) - found:
            found |= new
        return found

    def hidden_messages(self) -> Hidden:
        """Return the rows of messages that recall leaves out."""
        if not any(self._some_hidden()):
            return Hidden(np.empty(0, np.int64), np.empty(0, np.int64))
        with self._db.reading() as connection:
            abandoned = self._column(connection, _ABANDONED, self._namespace)
            revoked = self._revoked_messages(connection)
        found = (np.array(sorted({*rows}), np.int64) for rows in (abandoned, revoked))
        return Hidden(*(rows + MESSAGE_ROWS for rows in found))

    def _message_ids(self, connection: Connection, where: StepFilter) -> list[str]:
        """Return the ids of the messages that match."""
        return self._ids_of(connection, self._matching_messages(connection, where))

    def _ids_of(self, connection: Connection, rows: Sequence[int]) -> list[str]:
        return self._column(connection, _IDS_OF, self._namespace, many(rows))

    def _name_speakers(self, connection: Connection, keys: dict[int, dict[str, Any]]) -> None:
        """Let keys of messages that name nobody have whom the question before them names."""
        if not some_unnamed(connection, self._namespace, (one["author"] for one in keys.values())):
            return
        known = {
            row: Named(one["author"], one["run_id"], SUMMARY_OF not in one["metadata"])
            for row, one in keys.items()
        }
        for row, (user_id, asked_by) in speakers_of(connection, self._namespace, known).items():
            keys[row] |= {"author": user_id, "asked_by": asked_by}

    def _matching_messages(
        self, connection: Connection, where: StepFilter, *, excluding: bool = False
    ) -> list[int]:
        """Return the rows of `message` that match a filter.

        Excluding, a user's are also those that any of several may have said, that user among them.
        """
        if not where.finds("message"):
            return []
        found = (
            self._rows_in(connection, where.session_id)
            if where.conditions <= _NOT_IN_BODIES
            else self._with_keys(connection, where, excluding)
        )
        if where.any_of is not None:
            either = self._matching_some(connection, where.alternatives(), excluding=excluding)
            found = [row for row in found if row in either]
        gone = self._matching_some(connection, where.excluded(), excluding=True)
        found = [row for row in found if row not in gone] if gone else found
        return self._in_scope(connection, where.scope, found)

    def _matching_some(
        self, connection: Connection, wheres: Iterable[StepFilter], *, excluding: bool
    ) -> set[int]:
        """Return the rows of `message` that match one of some filters."""
        return {
            row
            for each in wheres
            for row in self._matching_messages(connection, each, excluding=excluding)
        }

    def _with_keys(self, connection: Connection, where: StepFilter, excluding: bool) -> list[int]:
        """Return the rows of messages whose keys a filter asks for, whatever it excludes."""
        asked = list(self._candidates(connection, where))
        keys = {row: keys_of(body) for row, body, _ in asked}
        owners: dict[int, Owner] = {}
        if _names_user(where):
            self._name_speakers(connection, keys)
            origins = {
                row: Origin(keys[row]["run_id"], branch_id, keys[row]["asked_by"])
                for row, _, branch_id in asked
            }
            owners = owners_of(connection, self._namespace, origins)
        if excluding:
            owners = {row: _excluded_as(whose, where) for row, whose in owners.items()}
        rated = self._rated(connection, where.min_score)
        return [row for row, one in keys.items() if _matches(where, one, owners.get(row), rated)]

    def _rows_in(self, connection: Connection, session_id: str | None) -> list[int]:
        """Return the rows of all messages, or of a session's line."""
        if session_id is None:
            return self._column(connection, _ROWS, self._namespace)
        tip = tip_of(connection, self._namespace, session_id)
        lines = links(connection, tip) if tip is not None else []
        return [row for link in lines for row in self._column(connection, _OF_LINK, *link)]

    def _candidates(
        self, connection: Connection, where: StepFilter
    ) -> Iterator[tuple[int, bytes, int]]:
        """Yield the rows, bodies and branches of all messages, or of a session's line."""
        if where.session_id is not None:
            rows = self._rows_in(connection, where.session_id)
            yield from connection.execute(_BODIES_OF, (self._namespace, many(rows)))
        else:
            yield from self._bodies(connection, 0)

    def _bodies(self, connection: Connection, after: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield the rows above one, bodies and branches of all messages."""
        full = True
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
        return [*{*rows, *self._messages_showing(connection, ids)}]

    def _messages_showing(self, connection: Connection, ids: Iterable[str]) -> list[int]:
        """Return the rows of messages that show some steps."""
        return self._shown_steps.messages(connection, self._namespace, self._restarts, ids)


def owners_of(
    connection: Connection, namespace: int, origins: Mapping[int, Origin]
) -> dict[int, Owner]:
    """Return whose messages are that name nobody, as `owner` has it, by row."""
    lines = sessions_of(connection, {one.branch_id for one in origins.values()})
    runs = {one.run_id for one in origins.values() if one.run_id}
    sessions = set(chain.from_iterable(lines.values()))
    of_runs = _users_by(connection, namespace, runs, _USERS_OF_RUNS)
    of = _users_by(connection, namespace, sessions, _USERS_OF_SESSIONS, _USERS_OF_NAMES)
    of_lines = {branch: set(chain(*map(of.__getitem__, names))) for branch, names in lines.items()}
    return {
        row: owner(of_runs[run or ""], of_lines.get(branch, set()) | _asking(asked_by))
        for row, (run, branch, asked_by) in origins.items()
    }


def _asking(asked_by: str | None) -> set[str]:
    """Return the users that a session has for an answer that may be another's than who asked."""
    return set() if asked_by is None else {asked_by, SEVERAL_USERS}


def _excluded_as(whose: Owner, where: StepFilter) -> Owner:
    """Return whose a message is to a filter of what is left out."""
    several = whose if isinstance(whose, Set) else ()
    return next((user for user in where.users if user in several), whose)


def sessions_of(connection: Connection, branches: Collection[object]) -> Mapping[int, set[str]]:
    """Return by branch its session, and those that this was forked from."""
    known = sorted(branch for branch in branches if isinstance(branch, int))  # others are damaged
    return _gathered(connection.execute(_SESSIONS, (many(known),))) if known else _gathered(())


def _users_by(
    connection: Connection, namespace: int, names: Collection[str], *queries: str
) -> defaultdict[str, set[str]]:
    """Return by run, or by session, the users of its steps."""
    asked = (namespace, many(sorted(filter(is_storable, names))))
    rows = (connection.execute(query, asked) for query in (queries if names else ()))
    return _gathered(chain.from_iterable(rows))


def _gathered(pairs: Iterable[Any]) -> defaultdict[Any, set[str]]:
    found: defaultdict[Any, set[str]] = defaultdict(set)
    for key, value in pairs:
        if isinstance(value, str):
            found[key].add(value)
    return found


def _names_user(where: StepFilter) -> bool:
    return where.only_users is not None


def _matches(
    where: StepFilter,
    keys: Mapping[str, Any],
    whose: Owner,
    rated: set[str] | None,
) -> bool:
    """Whether a message has the keys that a filter asks for, but for scope and session."""
    run, made = keys["run_id"], keys["created_at"]
    own = {**keys, "user_id": keys["author"] or whose}
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
    return has_metadata(keys["metadata"], where)


def keys_of(body: Any) -> dict[str, Any]:
    """Return what filters compare of a message."""
    fields = fields_of(body)
    metadata: Any = fields.get("metadata")
    known = as_object(metadata)
    return {
        "run_id": as_text(fields.get("run_id")),
        "author": as_text(fields.get("user_id")),
        "asked_by": None,
        "created_at": as_text(fields.get("created_at")),
        "source": source_of(known),
        "metadata": known,
    }
