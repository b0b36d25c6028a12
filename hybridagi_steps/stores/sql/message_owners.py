"""Whose messages are, as the steps of their runs and sessions tell; functions on a connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import chain
from typing import Any

from hybridagi_steps.records.store_values import owner
from hybridagi_steps.stores.sql.tables import Connection, is_storable, many

_USERS_OF_RUNS = """SELECT DISTINCT run_id, user_id FROM step_view
    WHERE namespace = ? AND run_id <> '' AND run_id IN (SELECT value FROM json_each(?))
    AND user_id IS NOT NULL"""
_USERS_OF_SESSIONS = """SELECT b.session_id, k.user_id FROM branch b
    JOIN agent_step s ON s.namespace = b.namespace AND s.branch_id = b.id
    JOIN step_view k ON k.namespace = s.namespace AND k.row = s.row
    WHERE b.namespace = ? AND b.session_id IN (SELECT value FROM json_each(?))
    AND k.user_id IS NOT NULL"""
_USERS_OF_NAMES = """SELECT DISTINCT session_id, user_id FROM step_view
    WHERE namespace = ? AND session_id IS NOT NULL AND branch_id IS NULL
    AND session_id IN (SELECT value FROM json_each(?)) AND user_id IS NOT NULL"""
"""Of steps that name a session and were recorded before it had messages."""
_SESSIONS = """WITH RECURSIVE line(branch_id, id, parent_id, session_id) AS (
        SELECT id, id, parent_id, session_id FROM branch
            WHERE id IN (SELECT value FROM json_each(?))
        UNION ALL SELECT line.branch_id, b.id, b.parent_id, b.session_id
            FROM line JOIN branch b ON b.id = line.parent_id AND b.id < line.id)
    SELECT DISTINCT branch_id, session_id FROM line"""


def owners_of(
    connection: Connection, namespace: int, origins: Mapping[int, tuple[str | None, int]]
) -> dict[int, str | Set[str] | None]:
    """Return whose messages are, as `owner` has it, given by row with their run and branch."""
    lines = sessions_of(connection, {branch for _, branch in origins.values()})
    runs = {run for run, _ in origins.values() if run}
    sessions = set(chain.from_iterable(lines.values()))
    of_runs = _users_by(connection, namespace, runs, _USERS_OF_RUNS)
    of = _users_by(connection, namespace, sessions, _USERS_OF_SESSIONS, _USERS_OF_NAMES)
    of_lines = {branch: set(chain(*map(of.__getitem__, names))) for branch, names in lines.items()}
    return {
        row: owner(of_runs[run or ""], of_lines.get(branch, set()))
        for row, (run, branch) in origins.items()
    }


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
