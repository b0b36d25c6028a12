"""The words a step shows of the step before it, and forgetting them with that step.

`step_text.parent_row` says whose words a row shows besides its own: a living step of the same user
and scope. When that step goes, its words leave the rows that show them in the same transaction; the
emptied row gets a new `seq`, so that followers drop the words too, and stands in `stale_text` until
its words are made again.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sql.values import many

# Rows with words always have their keys, so these need no step_view.
_SHOWN_BY_CHILDREN = """SELECT t.row FROM agent_step s
    JOIN step_key k ON k.namespace = s.namespace AND k.parent_id = s.id
    JOIN step_text t ON t.row = k.row AND t.parent_row = s.row
    WHERE +s.namespace = :namespace AND s.row IN (SELECT value FROM json_each(:rows))"""
_SHOWN_IN_RUNS = """SELECT t.row FROM step_key k JOIN step_text t ON t.row = k.row
    WHERE k.namespace = :namespace AND k.run_id IN (SELECT value FROM json_each(:runs))
        AND t.parent_row IN (SELECT value FROM json_each(:rows))"""
_EMPTY = """INSERT OR REPLACE INTO step_text
    (namespace, row, parent_row, tokens, text_hash, purpose_hash, scoped)
    SELECT namespace, row, NULL, '', text_hash, purpose_hash, scoped FROM step_text
    WHERE row IN (SELECT value FROM json_each(?))"""
_MARK = """INSERT OR IGNORE INTO stale_text (namespace, row) SELECT namespace, row FROM step_text
    WHERE row IN (SELECT value FROM json_each(?))"""

LEFTOVERS = """SELECT t.row FROM step_text t WHERE t.parent_row IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM step_key k JOIN step_key p ON p.namespace = k.namespace
    WHERE k.namespace = t.namespace AND k.row = t.row AND p.row = t.parent_row
        AND p.user_id IS k.user_id AND p.scope IS k.scope)"""
"""Rows that show words they must not, in any namespace; files of older versions may have some."""


def showing(
    connection: Connection, namespace: int, rows: Sequence[int], runs: Sequence[str]
) -> list[int]:
    """Return the rows whose words show one of `rows`: their children, and others of their runs."""
    values = {"namespace": namespace, "rows": many(rows), "runs": many(runs)}
    found = {row for (row,) in connection.execute(_SHOWN_BY_CHILDREN, values)}
    found.update(row for (row,) in connection.execute(_SHOWN_IN_RUNS, values))
    return sorted(found)


def empty(connection: Connection, rows: Sequence[int]) -> None:
    """Take all words out of these rows and mark them stale; rows without words are skipped."""
    if rows:
        asked = (many(rows),)
        connection.execute(_EMPTY, asked)
        connection.execute(_MARK, asked)


def empty_leftovers(connection: Connection) -> None:
    """Empty the rows that show words they must not."""
    empty(connection, [row for (row,) in connection.execute(LEFTOVERS)])
