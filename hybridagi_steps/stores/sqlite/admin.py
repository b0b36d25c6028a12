"""Keeping a SQLite store in order: identity, deletion, compaction, checking, counting."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.protocols import StoreIdentity
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.stores.sqlite.branch_checks import BRANCH_INVARIANTS
from hybridagi_steps.stores.sqlite.branches import BranchTables
from hybridagi_steps.stores.sqlite.removal import (
    remove_all,
    remove_empty_runs,
    remove_rows,
    runs_of,
)
from hybridagi_steps.stores.sqlite.schema import latest_version
from hybridagi_steps.stores.sqlite.where import is_storable, json_array
from hybridagi_steps.stores.sqlite.windows import LEFTOVERS, empty_leftovers

_ROWS = """SELECT row FROM agent_step
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_IDENTITY = """SELECT (SELECT value FROM meta WHERE key = 'store_id'), n.embedder, n.dimension
    FROM (SELECT 1) LEFT JOIN namespace n ON n.id = ?"""
_OTHER_EMBEDDER = (
    "DELETE FROM embedding WHERE namespace = ?",
    "UPDATE namespace SET epoch = epoch + 1, vectors_through = 0 WHERE id = ?",
)
_COUNTS = {
    "steps": "SELECT count(*) FROM agent_step WHERE namespace = ?",
    "runs": "SELECT count(DISTINCT run_id) FROM step_view WHERE namespace = ?",
    "sessions": """SELECT count(*) FROM (
        SELECT session_id FROM step_view WHERE namespace = ?1 AND session_id IS NOT NULL
        UNION SELECT id FROM session WHERE namespace = ?1)""",
    "messages": "SELECT count(*) FROM message WHERE namespace = ?",
    "embedded": "SELECT count(*) FROM embedding WHERE namespace = ? AND vector IS NOT NULL",
    "text_only": "SELECT count(*) FROM embedding WHERE namespace = ? AND vector IS NULL",
    "pending_texts": """SELECT (SELECT count(*) FROM agent_step WHERE namespace = n.id)
        - (SELECT count(*) FROM step_text WHERE namespace = n.id)
        + (SELECT count(*) FROM stale_text WHERE namespace = n.id)
        FROM namespace n WHERE id = ?""",
    "pending_vectors": """SELECT (SELECT count(*) FROM agent_step WHERE namespace = n.id)
        - (SELECT count(*) FROM embedding WHERE namespace = n.id)
        FROM namespace n WHERE id = ?""",
    "dangling_parents": """SELECT count(*) FROM step_view k
        WHERE namespace = ? AND parent_id IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM agent_step p WHERE p.namespace = k.namespace AND p.id = k.parent_id)""",
}
_INVARIANTS = {
    "a body that is no JSON, or not of its id": """SELECT row FROM agent_step
        WHERE CASE WHEN json_valid(body) THEN json_extract(body, '$.id') END IS NOT id""",
    "keys without a step": """SELECT row FROM step_key k WHERE NOT EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = k.row AND s.namespace = k.namespace)""",
    "a step without keys": """SELECT s.row FROM agent_step s JOIN namespace n ON n.id = s.namespace
        WHERE s.row <= n.keys_through AND NOT EXISTS
        (SELECT 1 FROM step_key k WHERE k.namespace = s.namespace AND k.row = s.row)""",
    "words without a step": """SELECT row FROM step_text t WHERE NOT EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = t.row AND s.namespace = t.namespace)""",
    "a step without words below the watermark": """SELECT s.row FROM agent_step s
        JOIN namespace n ON n.id = s.namespace WHERE s.row <= n.texts_through AND NOT EXISTS
        (SELECT 1 FROM step_text t WHERE t.row = s.row)""",
    "an embedding without a step": """SELECT row FROM embedding e WHERE NOT EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = e.row AND s.namespace = e.namespace)""",
    "a step without embedding below the watermark": """SELECT s.row FROM agent_step s
        JOIN namespace n ON n.id = s.namespace WHERE s.row <= n.vectors_through AND NOT EXISTS
        (SELECT 1 FROM embedding e WHERE e.row = s.row)""",
    "an embedding of another length than it says": """SELECT row FROM embedding
        WHERE vector IS NOT NULL AND length(vector) IS NOT 4 * dimension""",
    "a stale mark without words": """SELECT row FROM stale_text m WHERE NOT EXISTS
        (SELECT 1 FROM step_text t WHERE t.row = m.row)""",
    "words of a step that is gone or another user's, until vacuum": LEFTOVERS,
    "a tombstone of a living step": """SELECT row FROM tombstone d WHERE EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = d.row)""",
    "a step of no namespace": """SELECT row FROM agent_step s WHERE NOT EXISTS
        (SELECT 1 FROM namespace n WHERE n.id = s.namespace)""",
    **BRANCH_INVARIANTS,
}
_SHOWN_ROWS = 5
_WAL_RESET_FIXED = (3, 51, 3)


class AdminTables(BranchTables):
    """Implements `StoreAdmin`; see protocols.py for the contract."""

    def identity(self) -> StoreIdentity:
        """Return the store's id and the namespace's embedder."""
        with self._db.reading() as connection:
            return StoreIdentity(*connection.execute(_IDENTITY, (self._namespace,)).fetchone())

    def set_embedder(self, model_id: str, dimension: int) -> None:
        """Remember the embedder; another than before drops all embeddings."""
        _, known_model, known_dimension = self.identity()
        if (known_model, known_dimension) == (model_id, dimension):
            return
        with self._db.writing() as connection:
            if known_model is not None:
                for statement in _OTHER_EMBEDDER:
                    connection.execute(statement, (self._namespace,))
            update = "UPDATE namespace SET embedder = ?, dimension = ? WHERE id = ?"
            connection.execute(update, (model_id, dimension, self._namespace))

    def delete(self, ids: Sequence[str]) -> int:
        """Delete steps with text and embedding."""
        asked = json_array([text for text in map(id_text, ids) if is_storable(text)])
        with self._db.writing() as connection:
            rows = self._column(connection, _ROWS, self._namespace, asked)
            runs = runs_of(connection, self._namespace, rows)
            remove_rows(connection, self._namespace, rows)
            remove_empty_runs(connection, self._namespace, runs)
        return len(rows)

    def clear(self) -> None:
        """Delete everything of this namespace."""
        with self._db.writing() as connection:
            remove_all(connection, self._namespace)

    def vacuum(self) -> None:
        """Delete what no session reads, and compact."""
        self.sweep()
        self.compact()

    def compact(self) -> None:
        """Give space back. Nothing deleted is left in any file."""
        with self._db.writing() as connection:
            empty_leftovers(connection)
        self._db.compact()

    def verify(self) -> list[str]:
        """Check the file as SQLite does, then what this library relies on, in all namespaces."""
        try:
            return self._problems()
        except DamagedFileError as error:
            return [str(error)]

    def _problems(self) -> list[str]:
        with self._db.reading() as connection:
            checked = self._column(connection, "PRAGMA integrity_check")
            problems = [f"{self._db.path}: {line}" for line in checked if line != "ok"]
            if problems:
                return problems  # what SQLite cannot read is not worth asking about
            for what, query in _INVARIANTS.items():
                if rows := self._column(connection, query):
                    shown = ", ".join(map(str, rows[:_SHOWN_ROWS]))
                    problems.append(f"{self._db.path}: {what}: {len(rows)} rows ({shown} …)")
        return problems

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes, and what guards against the WAL-reset bug."""
        with self._db.reading() as connection:
            counts = {name: self._count(connection, sql) for name, sql in _COUNTS.items()}
        fixed = sqlite3.sqlite_version_info >= _WAL_RESET_FIXED
        return {
            **counts,
            "bytes": self._db.file_bytes(),
            "backend": "sqlite",
            "path": str(self._db.path),
            "durability": self._db.durability,
            "schema_version": latest_version(),
            "sqlite_version": sqlite3.sqlite_version,
            "wal_reset_bug": "fixed" if fixed else "avoided: writers and checkpoints take turns",
        }

    def close(self) -> None:
        """Release everything."""
        self._db.close()

    def _count(self, connection: sqlite3.Connection, sql: str) -> int:
        found = connection.execute(sql, (self._namespace,)).fetchone()
        return int(found[0]) if found else 0
