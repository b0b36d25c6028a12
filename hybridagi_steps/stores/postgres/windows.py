"""The words a step shows of the step before it, and forgetting them with that step.

See `stores/sqlite/windows.py`, which does the same: the emptied row gets a new `seq`, so that
followers drop the words too, and stands in `stale_text` until its words are made again.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sql.values import many

_SHOWING = """SELECT t.row FROM step_text t
    WHERE t.namespace = ? AND t.parent_row IN (SELECT value FROM json_each(?))"""
_EMPTY = """UPDATE step_text
    SET seq = nextval(pg_get_serial_sequence('step_text', 'seq')), parent_row = NULL, tokens = '',
        checksum = NULL
    WHERE row IN (SELECT value FROM json_each(?))"""
_MARK = """INSERT INTO stale_text (namespace, row) SELECT namespace, row FROM step_text
    WHERE row IN (SELECT value FROM json_each(?)) ON CONFLICT DO NOTHING"""

LEFTOVERS = """SELECT t.row FROM step_text t WHERE t.parent_row IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM step_view k JOIN step_view p ON p.namespace = k.namespace
    WHERE k.namespace = t.namespace AND k.row = t.row AND p.row = t.parent_row
        AND p.user_id IS NOT DISTINCT FROM k.user_id AND p.scope IS NOT DISTINCT FROM k.scope)"""
"""Rows that show words they must not, in any namespace."""


def showing(connection: Connection, namespace: int, rows: Sequence[int]) -> list[int]:
    """Return the rows whose words show one of `rows`."""
    found = connection.execute(_SHOWING, (namespace, many(rows)))
    return sorted({row for (row,) in found} - set(rows))


def empty(connection: Connection, rows: Sequence[int]) -> None:
    """Take all words out of these rows and mark them stale; rows without words are skipped."""
    if rows:
        asked = (many(rows),)
        connection.execute(_EMPTY, asked)
        connection.execute(_MARK, asked)
