"""Forgetting steps: the row and all that was derived from it, with a tombstone for followers.

What other rows show of a step goes with it; see windows.py.

With `secure_delete` on, SQLite overwrites what is deleted; `vacuum` then clears the write-ahead
log. A row number is never used again, so a tombstone always means the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.stores.sql.lineage import take_number
from hybridagi_steps.stores.sql.runs import FORGET_NAMESPACE, runs_of
from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sql.values import many
from hybridagi_steps.stores.sqlite import windows

_GONE = "row IN (SELECT value FROM json_each(:rows))"
_RAISE_FLOOR = """UPDATE meta SET value = max(value, coalesce(
    (SELECT max(row) FROM agent_step), 0)) WHERE key = 'row_floor'"""
_FORGET_ROWS = (
    "INSERT INTO tombstone (namespace, row) SELECT :namespace, value FROM json_each(:rows)",
    f"DELETE FROM step_text WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM embedding WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM stale_text WHERE namespace = :namespace AND {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM step_key WHERE namespace = :namespace AND {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM agent_step WHERE {_GONE}",  # noqa: S608 - no value in it
)
_FORGET_ALL = (
    "DELETE FROM step_key WHERE namespace = :namespace",
    "UPDATE namespace SET keys_through = 0 WHERE id = :namespace",
    *FORGET_NAMESPACE,
)


def remove_rows(connection: Connection, namespace: int, rows: Sequence[int]) -> None:
    """Remove rows of one namespace inside the caller's transaction; runs stay."""
    if not rows:
        return
    connection.execute(_RAISE_FLOOR)
    shown = windows.showing(connection, namespace, rows, runs_of(connection, namespace, rows))
    values = {"namespace": namespace, "rows": many(rows)}
    for statement in _FORGET_ROWS:
        connection.execute(statement, values)
    windows.empty(connection, shown)


def remove_all(connection: Connection, namespace: int) -> None:
    """Remove everything of one namespace; followers start again."""
    connection.execute(_RAISE_FLOOR)
    take_number(connection)
    for statement in _FORGET_ALL:
        connection.execute(statement, {"namespace": namespace})
