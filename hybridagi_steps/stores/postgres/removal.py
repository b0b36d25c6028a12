"""Forgetting steps: the row and all that was derived from it, with a tombstone for followers.

What other rows show of a step goes with it; see windows.py. Sequences never go back, so a tombstone
always means the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.stores.postgres import windows
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
_FORGET_ALL = (
    "DELETE FROM tombstone WHERE namespace = :namespace",
    "DELETE FROM step_text WHERE namespace = :namespace",
    "DELETE FROM embedding WHERE namespace = :namespace",
    "DELETE FROM stale_text WHERE namespace = :namespace",
    "DELETE FROM run WHERE namespace = :namespace",
    "DELETE FROM agent_step WHERE namespace = :namespace",
    "DELETE FROM append_key WHERE namespace = :namespace",
    """DELETE FROM message_token WHERE message_row IN
       (SELECT row FROM message WHERE namespace = :namespace)""",
    "DELETE FROM message WHERE namespace = :namespace",
    "DELETE FROM session WHERE namespace = :namespace",
    "DELETE FROM branch WHERE namespace = :namespace",
    """UPDATE namespace SET epoch = epoch + 1, texts_through = 0, vectors_through = 0
       WHERE id = :namespace""",
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
    for statement in _FORGET_ALL:
        connection.execute(statement, {"namespace": namespace})
