"""Retention in a database: which sessions and runs are old as wholes, and their removal.

A batch is looked at in a reading transaction, without any lock, and removed in a writing one that
compares the rows first: what was added to, pinned or begun anew meanwhile stays until the next
call. So writers wait for a removal, never for the looking.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import (
    CALL_STEP,
    DENIALS,
    DETAILS,
    MESSAGE_ROWS,
    QUESTIONS,
    RULES,
    USER_QUESTIONS,
    answer_ids,
    details_id,
)
from hybridagi_steps.stores.hygiene import PINNED
from hybridagi_steps.stores.retention import Expired, Expiry, Units
from hybridagi_steps.stores.sql.branches import BranchTables
from hybridagi_steps.stores.sql.message_filter import keys_of
from hybridagi_steps.stores.sql.revocations import RevocationTables
from hybridagi_steps.stores.sql.tables import (
    SOME,
    Connection,
    many,
    remove_empty_runs,
    remove_marks,
    runs_of,
)

_STANDING = (RULES, DENIALS, DETAILS)
"""Scopes of what is said to a user or about a session; it goes with its session alone."""
_PAGE = 5_000
# What a step belongs to: a session that is there, else its run, else itself. One on a branch that
# only forks of a deleted session read belongs to '', which is no session.
_HOMES = f"""SELECT coalesce(b.session_id, s.id), k.run_id, k.row FROM step_view k
    LEFT JOIN branch b ON b.id = k.branch_id
    LEFT JOIN session s ON s.namespace = k.namespace AND s.id = k.session_id
    WHERE k.namespace = ? AND k.row {SOME} AND NOT coalesce(k.scope, '') {SOME}
    ORDER BY k.row"""  # noqa: S608 - no value in it
_SESSIONS_OF_MESSAGES = f"""SELECT DISTINCT b.session_id FROM message m
    JOIN branch b ON b.id = m.branch_id WHERE m.namespace = ? AND m.row {SOME}"""  # noqa: S608 - no value in it
_OWNERS = f"SELECT id, user_id FROM session WHERE namespace = ? AND id {SOME}"  # noqa: S608 - no value in it
_BRANCHES = f"""SELECT session_id, id, reason, created_at FROM branch
    WHERE namespace = ? AND session_id {SOME} ORDER BY id"""  # noqa: S608 - no value in it
_MESSAGES = f"""SELECT branch_id, row, CAST(body AS BLOB) FROM message
    WHERE branch_id {SOME} ORDER BY branch_id, sequence"""  # noqa: S608 - no value in it
_MESSAGE_ROWS = f"SELECT branch_id, row FROM message WHERE branch_id {SOME}"  # noqa: S608 - no value in it
_COLUMNS = "k.row, k.created_at, k.user_id, k.run_id, k.scope"
_ON_BRANCHES = f"""SELECT k.branch_id, {_COLUMNS} FROM agent_step s
    JOIN step_view k ON k.namespace = s.namespace AND k.row = s.row
    WHERE s.namespace = ? AND s.branch_id {SOME}"""  # noqa: S608 - no value in it
_NAMING = f"""SELECT k.session_id, {_COLUMNS} FROM step_view k
    WHERE k.namespace = ? AND k.branch_id IS NULL AND k.session_id {SOME}"""  # noqa: S608 - no value in it
_OF_RUNS = f"""SELECT k.run_id, {_COLUMNS} FROM step_view k
    WHERE k.namespace = ? AND k.run_id {SOME}"""  # noqa: S608 - no value in it
_ALONE = f"SELECT k.row, {_COLUMNS} FROM step_view k WHERE k.namespace = ? AND k.row {SOME}"  # noqa: S608 - no value in it
_RUNS_IN_SESSIONS = f"""WITH named AS MATERIALIZED (SELECT k.run_id FROM step_view k
        WHERE k.namespace = ? AND k.run_id {SOME} AND (k.branch_id IS NOT NULL OR EXISTS (
            SELECT 1 FROM session s WHERE s.namespace = k.namespace AND s.id = k.session_id)))
    SELECT DISTINCT run_id FROM named"""  # noqa: S608 - no value in it
_NEWER_RUNS = f"""WITH named AS MATERIALIZED (SELECT run_id, created_at FROM step_view
        WHERE namespace = ? AND run_id {SOME})
    SELECT run_id FROM named GROUP BY run_id HAVING max(created_at) >= ?"""  # noqa: S608 - no value in it
_PINNED_STEPS = StepFilter(metadata={PINNED: True}, scope=EVERY_SCOPE)


class _Member(NamedTuple):
    """What is asked of a step."""

    row: int
    created_at: str
    user_id: str | None
    run_id: str | None
    scope: str | None


class _Rows(NamedTuple):
    """What a unit consists of: if it is the same later, nothing was added and nothing changed."""

    steps: frozenset[int]
    pinned: frozenset[int] = frozenset()
    """Those of them that stand at a message."""
    messages: frozenset[int] = frozenset()
    branches: frozenset[int] = frozenset()


class _Sessions(NamedTuple):
    """What sessions consist of."""

    branches: Mapping[str, list[tuple[int, str, str]]]
    """By session each branch with its reason and time."""
    pinned: Mapping[str, list[_Member]]
    named: Mapping[str, list[_Member]]


class RetentionTables(BranchTables, RevocationTables):
    """Implements `RetentionStore`; see stores/retention.py."""

    def old_units(self, where: StepFilter) -> Units:
        """Return what matching steps and messages belong to."""
        sessions: dict[str, None] = {}
        runs: dict[str, None] = {}
        alone: list[int] = []
        with_messages = where.kinds is None or "message" in where.kinds
        for page in _pages(self.rows(where).tolist()):
            asked = (self._namespace, many(page), many(_STANDING))
            with self._db.asking() as connection:
                for session, run, row in connection.execute(_HOMES, asked):
                    if session is None and run is None:
                        alone.append(row)
                    elif session is None:
                        runs[run] = None
                    elif with_messages and session:
                        sessions[session] = None
        for page in _pages((self.message_rows(where) - MESSAGE_ROWS).tolist()):
            with self._db.asking() as connection:
                found = self._column(connection, _SESSIONS_OF_MESSAGES, self._namespace, many(page))
            sessions |= dict.fromkeys(filter(None, found))
        if where.session_id is not None:  # a filter by session sees what this was forked from
            sessions = {name: None for name in sessions if name == where.session_id}
        excluded = [self.message_rows(each).tolist() for each in where.excluded()]
        return Units([*sessions], [*runs], alone, frozenset(chain.from_iterable(excluded)))

    def expire(self, units: Units, expiry: Expiry, *, dry_run: bool = False) -> Expired:
        """Remove those units that are old as wholes."""
        self._catch_up()
        with self._db.reading() as connection:
            sessions = self._old_sessions(connection, units, expiry)
            runs = self._old_runs(connection, units.runs, expiry)
            alone = self._old_steps(connection, units.steps, expiry)
        if dry_run:
            return _counted(sessions, runs, alone)
        with self._db.writing() as connection:
            now = self._rows_of_sessions(connection, [*sessions])
            sessions = {name: rows for name, rows in sessions.items() if now[name] == rows}
            runs = self._unchanged(connection, _OF_RUNS, runs)
            alone = self._unchanged(connection, _ALONE, alone)
            return self._remove(connection, sessions, runs, alone)

    def _remove(
        self,
        connection: Connection,
        sessions: Mapping[str, _Rows],
        runs: Mapping[str, _Rows],
        alone: Mapping[int, _Rows],
    ) -> Expired:
        gone = _counted(sessions, runs, alone)
        rows = _rows(sessions, runs, alone)
        of_runs = runs_of(connection, self._namespace, rows)
        messages, pinned = self._delete_sessions(connection, gone.sessions) if sessions else (0, 0)
        self._forget(connection, rows)
        remove_empty_runs(connection, self._namespace, of_runs)
        remove_marks(connection, self._namespace)
        titles = self._rows_of(connection, list(map(details_id, sessions)))
        self._forget(connection, sorted(titles.values()))
        return gone._replace(messages=messages, steps=gone.steps + pinned)

    def _old_sessions(
        self, connection: Connection, units: Units, expiry: Expiry
    ) -> dict[str, _Rows]:
        if not (names := units.sessions):
            return {}
        owners = dict(connection.execute(_OWNERS, (self._namespace, many(names))).fetchall())
        of = self._sessions_of(connection, names)
        steps = {name: [*of.pinned[name], *of.named[name]] for name in names}
        spared = self._spared(connection, steps.values(), expiry)
        homes = {branch: name for name in names for branch, *_ in of.branches[name]}
        messages: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        written: set[int] = set()
        for branch, row, body in connection.execute(_MESSAGES, (many(homes),)):
            messages[homes[branch]].append((row, keys_of(body)))
            written.add(branch)
        before, users = _time(expiry), expiry.where.only_users
        old: dict[str, _Rows] = {}
        for name in owners:
            said = messages[name]
            # A branch without messages is a fork, an attempt or a session that was just begun.
            empty = [each for each in of.branches[name] if each[0] not in written]
            begun = (at for _, why, at in empty if why != "start" or not said)
            times = [*begun, *(str(keys["created_at"] or "") for _, keys in said)]
            whose = {owners[name], *(keys["author"] for _, keys in said)}
            whole = users is None or whose <= {None, *users}
            free = (
                name not in expiry.busy_sessions
                and expiry.busy_runs.isdisjoint(keys["run_id"] for _, keys in said)
                and units.excluded_messages.isdisjoint(row + MESSAGE_ROWS for row, _ in said)
                and spared.isdisjoint(_of(steps[name]))
            )
            if free and whole and max(times, default=before) < before:
                old[name] = _held(of, name, (row for row, _ in said))
        return old

    def _old_runs(
        self, connection: Connection, names: list[str], expiry: Expiry
    ) -> dict[str, _Rows]:
        if not names:
            return {}
        members = self._members(connection, _OF_RUNS, names)
        asked = (self._namespace, many(names))
        inside = {*self._column(connection, _RUNS_IN_SESSIONS, *asked)} | expiry.busy_runs
        spared = self._spared(connection, members.values(), expiry)
        return {
            name: _Rows(frozenset(_of(steps)))
            for name, steps in members.items()
            if name not in inside and spared.isdisjoint(_of(steps))
        }

    def _old_steps(
        self, connection: Connection, rows: list[int], expiry: Expiry
    ) -> dict[int, _Rows]:
        if not rows:
            return {}
        members = self._members(connection, _ALONE, rows)
        spared = self._spared(connection, members.values(), expiry)
        return {row: _Rows(frozenset([row])) for row in members if row not in spared}

    def _spared(
        self, connection: Connection, units: Iterable[Collection[_Member]], expiry: Expiry
    ) -> set[int]:
        """Return the rows that keep their unit."""
        members = [member for unit in units for member in unit]
        where, before, users = expiry.where, _time(expiry), expiry.where.only_users
        runs = sorted({member.run_id for member in members if member.run_id is not None})
        newer = {*self._column(connection, _NEWER_RUNS, self._namespace, many(runs), before)}
        spared = {
            member.row
            for member in members
            if member.created_at >= before
            or member.run_id in newer
            or member.run_id in expiry.busy_runs
            or (users is not None and member.user_id not in {None, *users})
        }
        free = [member.row for member in members if member.scope not in _STANDING]
        for each in (_PINNED_STEPS, *where.excluded()):
            spared |= self._matching_among(connection, each, free)
        asked = [each.row for each in members if each.scope in (QUESTIONS, USER_QUESTIONS)]
        return spared | self._waiting(connection, asked)

    def _matching_among(
        self, connection: Connection, where: StepFilter, rows: list[int]
    ) -> set[int]:
        sql, values = self._condition(connection, where)
        query = f"SELECT k.row FROM step_view k WHERE {sql} AND k.row {SOME}"  # noqa: S608 - parts are ours, values are bound
        return {*self._column(connection, query, *values, many(rows))}

    def _waiting(self, connection: Connection, rows: list[int]) -> set[int]:
        """Return the questions about calls that have no result, of consent without an answer."""
        waiting: set[int] = set()
        for row, question in self._read(connection, rows).items() if rows else ():
            call = (question.metadata or {}).get(CALL_STEP)
            if call is not None and (question.outputs or {}).get("choice") is None:
                settled = [str(call), *map(id_text, answer_ids(question))]
                if not self._rows_of(connection, settled):
                    waiting.add(row)
        return waiting

    def _members(
        self, connection: Connection, query: str, names: Iterable[Any]
    ) -> dict[Any, list[_Member]]:
        """Return the steps that a query finds, by what it says first."""
        found: dict[Any, list[_Member]] = defaultdict(list)
        for name, *values in connection.execute(query, (self._namespace, many(names))):
            found[name].append(_Member(*values))
        return found

    def _sessions_of(self, connection: Connection, names: Iterable[str]) -> _Sessions:
        branches: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        for name, *values in connection.execute(_BRANCHES, (self._namespace, many(names))):
            branches[name].append((values[0], values[1], values[2]))
        homes = {branch: name for name, every in branches.items() for branch, *_ in every}
        pinned: dict[str, list[_Member]] = defaultdict(list)
        for branch, steps in self._members(connection, _ON_BRANCHES, homes).items():
            pinned[homes[branch]] += steps
        named = self._members(connection, _NAMING, names)
        return _Sessions(branches, pinned, named)

    def _rows_of_sessions(self, connection: Connection, names: list[str]) -> dict[str, _Rows]:
        if not names:
            return {}
        of = self._sessions_of(connection, names)
        homes = {branch: name for name in names for branch, *_ in of.branches[name]}
        messages: dict[str, list[int]] = defaultdict(list)
        for branch, row in connection.execute(_MESSAGE_ROWS, (many(homes),)):
            messages[homes[branch]].append(row)
        return {name: _held(of, name, messages[name]) for name in names}

    def _unchanged(
        self, connection: Connection, query: str, units: Mapping[Any, _Rows]
    ) -> dict[Any, _Rows]:
        """Return those runs, or steps, that consist of the same rows as before."""
        now = self._members(connection, query, units) if units else {}
        return {
            name: rows for name, rows in units.items() if rows.steps == frozenset(_of(now[name]))
        }


def _pages(rows: list[int]) -> Iterable[list[int]]:
    return (rows[start : start + _PAGE] for start in range(0, len(rows), _PAGE))


def _time(expiry: Expiry) -> str:
    """Return the time that all of a unit must be before, as bodies write times."""
    return expiry.where.until.isoformat() if expiry.where.until is not None else ""


def _of(members: Iterable[_Member]) -> Iterable[int]:
    return (member.row for member in members)


def _held(of: _Sessions, name: str, messages: Iterable[int]) -> _Rows:
    named = frozenset(_of(of.named[name]))
    pinned = frozenset(_of(of.pinned[name]))
    branches = frozenset(branch for branch, *_ in of.branches[name])
    return _Rows(named, pinned, frozenset(messages), branches)


def _rows(*units: Mapping[Any, _Rows]) -> list[int]:
    return sorted(row for each in units for held in each.values() for row in held.steps)


def _counted(
    sessions: Mapping[str, _Rows], runs: Mapping[str, _Rows], alone: Mapping[int, _Rows]
) -> Expired:
    """Return what goes, but for what stands at messages."""
    steps = len(_rows(sessions, runs, alone))
    return Expired([*sessions], len(runs), len(alone), steps, 0)
