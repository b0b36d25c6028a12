"""Which runs steps belong to, and the statements that forget runs, marks, whole namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sql.values import many

# A DISTINCT here would make SQLite walk the whole namespace.
_RUNS_OF = """SELECT run_id FROM step_view
    WHERE namespace = ? AND row IN (SELECT value FROM json_each(?)) AND run_id IS NOT NULL"""
_FORGET_RUNS = """DELETE FROM run
    WHERE namespace = ? AND run_id IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM step_view k
                    WHERE k.namespace = run.namespace AND k.run_id = run.run_id)"""
_FORGET_MARKS = (
    """DELETE FROM revoked WHERE namespace = ? AND NOT EXISTS (SELECT 1 FROM agent_step s
       WHERE s.namespace = revoked.namespace AND s.id = revoked.step_id)""",
    """DELETE FROM revocation WHERE namespace = ? AND undone_at IS NULL
       AND id NOT IN (SELECT m.revocation FROM revoked m
                      WHERE m.namespace = revocation.namespace)""",
)
FORGET_NAMESPACE = (
    "DELETE FROM revoked WHERE namespace = :namespace",
    "DELETE FROM revocation WHERE namespace = :namespace",
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
    """UPDATE namespace SET epoch = epoch + 1, texts_through = 0, vectors_through = 0,
       revoked_through = 0 WHERE id = :namespace""",
)
"""Forgets everything of a namespace that every database keeps; followers start again."""


def runs_of(connection: Connection, namespace: int, rows: Sequence[int]) -> list[str]:
    """Return the runs that these rows belong to."""
    found = connection.execute(_RUNS_OF, (namespace, many(rows)))
    return sorted({run_id for (run_id,) in found})


def remove_empty_runs(connection: Connection, namespace: int, runs: Sequence[str]) -> None:
    """Remove those of `runs` that no step is left of."""
    if runs:
        connection.execute(_FORGET_RUNS, (namespace, many(runs)))


def remove_marks(connection: Connection, namespace: int) -> None:
    """Remove the marks of revoked steps that are gone, and revocations that hide none any more."""
    for statement in _FORGET_MARKS:
        connection.execute(statement, (namespace,))
