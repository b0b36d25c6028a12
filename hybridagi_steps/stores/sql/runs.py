"""Which runs steps belong to, and forgetting those that no step is left of."""

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


def runs_of(connection: Connection, namespace: int, rows: Sequence[int]) -> list[str]:
    """Return the runs that these rows belong to."""
    found = connection.execute(_RUNS_OF, (namespace, many(rows)))
    return sorted({run_id for (run_id,) in found})


def remove_empty_runs(connection: Connection, namespace: int, runs: Sequence[str]) -> None:
    """Remove those of `runs` that no step is left of."""
    if runs:
        connection.execute(_FORGET_RUNS, (namespace, many(runs)))
