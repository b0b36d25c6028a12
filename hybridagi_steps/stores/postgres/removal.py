"""Forgetting steps: the row and all that was derived from it, with a tombstone for followers.

What other rows show of a step goes with it; see windows.py. Sequences never go back, so a tombstone
always means the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.stores.postgres import windows
from hybridagi_steps.stores.sql.runs import FORGET_NAMESPACE
from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sql.values import many

_GONE = "namespace = :namespace AND row IN (SELECT value FROM json_each(:rows))"
_FORGET_ROWS = (
    f"""INSERT INTO tombstone (namespace, row) SELECT namespace, row FROM agent_step
        WHERE {_GONE} ORDER BY row""",  # noqa: S608 - no value in it
    f"DELETE FROM step_text WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM embedding WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM stale_text WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM agent_step WHERE {_GONE}",  # noqa: S608 - no value in it
)


def remove_rows(connection: Connection, namespace: int, rows: Sequence[int]) -> None:
    """Remove rows of one namespace inside the caller's transaction; runs stay."""
    if not rows:
        return
    shown = windows.showing(connection, namespace, rows)
    values = {"namespace": namespace, "rows": many(rows)}
    for statement in _FORGET_ROWS:
        connection.execute(statement, values)
    windows.empty(connection, shown)


def remove_all(connection: Connection, namespace: int) -> None:
    """Remove everything of one namespace; followers start again."""
    for statement in FORGET_NAMESPACE:
        connection.execute(statement, {"namespace": namespace})
