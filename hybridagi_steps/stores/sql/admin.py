"""Keeping a database in order: identity, deletion, counting, and what must hold among the rows.

How space is given back and how the database itself is checked is the back-end's affair.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybridagi_steps.errors import StorageBusyError, StorageError
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.store_values import MESSAGE_ROWS, StoreIdentity
from hybridagi_steps.stores.sql.branches import BranchTables
from hybridagi_steps.stores.sql.checked_tables import CHECKED_TABLES, changed_rows
from hybridagi_steps.stores.sql.revocations import RevocationTables
from hybridagi_steps.stores.sql.salvage import Salvaged
from hybridagi_steps.stores.sql.tables import (
    Connection,
    is_storable,
    remove_empty_runs,
    remove_marks,
    runs_of,
)

_IDENTITY = """SELECT (SELECT value FROM meta WHERE key = 'store_id'), n.embedder, n.dimension
    FROM (SELECT 1) one LEFT JOIN namespace n ON n.id = ?"""
_NOTHING_NEW = "UPDATE meta SET value = value WHERE key = 'store_id'"
_PLACES = "SELECT value FROM meta WHERE substr(key, 1, 6) = 'place:' ORDER BY key"
_NOTE_PLACE = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
_LEARNED = "SELECT value FROM meta WHERE key = ?"
_KEEP_LEARNED = """INSERT INTO meta VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""
_FORGET_LEARNED = "DELETE FROM meta WHERE key = ?"
_FORGET_ALL_LEARNED = "DELETE FROM meta WHERE substr(key, 1, ?) = ?"
_OTHER_EMBEDDER = (
    "DELETE FROM embedding WHERE namespace = ?",
    """UPDATE namespace SET epoch = epoch + 1, vectors_through = 0, message_vectors_through = 0
       WHERE id = ?""",
)
COUNTS = {
    "steps": "SELECT count(*) FROM agent_step WHERE namespace = :namespace",
    "runs": "SELECT count(DISTINCT run_id) FROM step_view WHERE namespace = :namespace",
    "sessions": """SELECT count(*) FROM (
        SELECT session_id FROM step_view
            WHERE namespace = :namespace AND session_id IS NOT NULL
        UNION SELECT id FROM session WHERE namespace = :namespace) known""",
    "messages": "SELECT count(*) FROM message WHERE namespace = :namespace",
    "embedded": """SELECT count(*) FROM embedding
        WHERE namespace = :namespace AND vector IS NOT NULL""",
    "text_only": """SELECT count(*) FROM embedding
        WHERE namespace = :namespace AND vector IS NULL""",
    "pending_texts": """SELECT (SELECT count(*) FROM agent_step WHERE namespace = n.id)
        + (SELECT count(*) FROM message WHERE namespace = n.id)
        - (SELECT count(*) FROM step_text WHERE namespace = n.id)
        + (SELECT count(*) FROM stale_text WHERE namespace = n.id)
        FROM namespace n WHERE id = :namespace""",
    "pending_vectors": """SELECT (SELECT count(*) FROM agent_step WHERE namespace = n.id)
        + (SELECT count(*) FROM message WHERE namespace = n.id)
        - (SELECT count(*) FROM embedding WHERE namespace = n.id)
        FROM namespace n WHERE id = :namespace""",
    "dangling_parents": """SELECT count(*) FROM step_view k
        WHERE namespace = :namespace AND parent_id IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM agent_step p WHERE p.namespace = k.namespace AND p.id = k.parent_id)""",
}
"""What `stats` counts."""
INVARIANTS = {
    "words without a step": f"""SELECT row FROM step_text t WHERE NOT EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = t.row AND s.namespace = t.namespace)
        AND NOT EXISTS (SELECT 1 FROM message m
            WHERE m.row = t.row - {MESSAGE_ROWS} AND m.namespace = t.namespace)""",  # noqa: S608 - no value in it
    "a step without words below the watermark": """SELECT s.row FROM agent_step s
        JOIN namespace n ON n.id = s.namespace WHERE s.row <= n.texts_through AND NOT EXISTS
        (SELECT 1 FROM step_text t WHERE t.row = s.row)""",
    "a message without words below the watermark": f"""SELECT m.row FROM message m
        JOIN namespace n ON n.id = m.namespace WHERE m.row <= n.message_texts_through
        AND NOT EXISTS (SELECT 1 FROM step_text t WHERE t.row = m.row + {MESSAGE_ROWS})""",  # noqa: S608 - no value in it
    "an embedding without a step": f"""SELECT row FROM embedding e WHERE NOT EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = e.row AND s.namespace = e.namespace)
        AND NOT EXISTS (SELECT 1 FROM message m
            WHERE m.row = e.row - {MESSAGE_ROWS} AND m.namespace = e.namespace)""",  # noqa: S608 - no value in it
    "a message without embedding below the watermark": f"""SELECT m.row FROM message m
        JOIN namespace n ON n.id = m.namespace WHERE m.row <= n.message_vectors_through
        AND NOT EXISTS (SELECT 1 FROM embedding e WHERE e.row = m.row + {MESSAGE_ROWS})""",  # noqa: S608 - no value in it
    "a step without embedding below the watermark": """SELECT s.row FROM agent_step s
        JOIN namespace n ON n.id = s.namespace WHERE s.row <= n.vectors_through AND NOT EXISTS
        (SELECT 1 FROM embedding e WHERE e.row = s.row)""",
    "an embedding of another length than it says": """SELECT row FROM embedding
        WHERE vector IS NOT NULL AND length(vector) <> coalesce(4 * dimension, -1)""",
    "words of another scope than their step's": """SELECT t.row FROM step_text t
        JOIN step_view k ON k.namespace = t.namespace AND k.row = t.row
        WHERE t.scoped <> (k.scope IS NOT NULL)""",
    "an embedding of another scope than its step's": """SELECT e.row FROM embedding e
        JOIN step_view k ON k.namespace = e.namespace AND k.row = e.row
        WHERE e.scoped <> (k.scope IS NOT NULL)""",
    "a stale mark without words": """SELECT row FROM stale_text m WHERE NOT EXISTS
        (SELECT 1 FROM step_text t WHERE t.row = m.row)""",
    "a tombstone of a living step": """SELECT row FROM tombstone d WHERE EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = d.row)""",
    "a step of no namespace": """SELECT row FROM agent_step s WHERE NOT EXISTS
        (SELECT 1 FROM namespace n WHERE n.id = s.namespace)""",
}
"""What must hold among steps and what is made of them; `verify` asks for rows that break it."""
_SHOWN_ROWS = 5


class AdminTables(BranchTables, RevocationTables):
    """Implements `StepStore`; see protocols.py for the contract."""

    def places(self) -> list[str]:
        """Return what was noted."""
        with self._db.asking() as connection:
            return self._column(connection, _PLACES)

    def note_place(self, place: str) -> None:
        """Note another file of texts of this store."""
        with self._db.writing() as connection:
            connection.execute(_NOTE_PLACE, (f"place:{place}", place))

    def learned(self, name: str) -> str | None:
        """Return what was kept under a name."""
        with self._db.asking() as connection:
            found = self._column(connection, _LEARNED, f"{self._learned_from}{name}")
        return found[0] if found else None

    def keep_learned(self, name: str, value: str | None) -> None:
        """Keep what was learned, or forget it."""
        key = f"{self._learned_from}{name}"
        with self._db.writing() as connection:
            if value is None:
                connection.execute(_FORGET_LEARNED, (key,))
            else:
                connection.execute(_KEEP_LEARNED, (key, value))

    def forget_learned(self) -> None:
        """Forget all that was learned from this namespace."""
        with self._db.writing() as connection:
            self._forget_learned(connection)

    def _forget_learned(self, connection: Connection) -> None:
        begin = self._learned_from
        connection.execute(_FORGET_ALL_LEARNED, (len(begin), begin))

    @property
    def _learned_from(self) -> str:
        """How the keys of all that was learned from this namespace begin."""
        return f"learned:{self._namespace}:"

    @abstractmethod
    def compact(self) -> tuple[str, ...]:
        """Give space back; nothing deleted is left in any file but those returned."""

    def identity(self) -> StoreIdentity:
        """Return the store's id and the namespace's embedder."""
        return StoreIdentity(*self._db.known(_IDENTITY, (self._namespace,)))

    def sync(self) -> None:
        """Make durable what was written without waiting for a disk."""
        with self._db.writing(synced=True) as connection:
            connection.execute(_NOTHING_NEW)

    def set_embedder(self, model_id: str, dimension: int) -> None:
        """Remember the embedder; another than before drops all embeddings."""
        if self.identity()[1:] == (model_id, dimension):
            return
        with self._db.writing() as connection:
            known = connection.execute(_IDENTITY, (self._namespace,)).fetchone()[1:]
            if known[0] is not None and tuple(known) != (model_id, dimension):
                for statement in _OTHER_EMBEDDER:
                    connection.execute(statement, (self._namespace,))
            update = "UPDATE namespace SET embedder = ?, dimension = ? WHERE id = ?"
            connection.execute(update, (model_id, dimension, self._namespace))

    def delete(self, ids: Sequence[str]) -> int:
        """Delete steps with text and embedding."""
        asked = [text for text in map(id_text, ids) if is_storable(text)]
        with self._db.writing() as connection:
            rows = sorted(self._rows_of(connection, asked).values())
            runs = runs_of(connection, self._namespace, rows)
            self._forget(connection, rows)
            remove_empty_runs(connection, self._namespace, runs)
            remove_marks(connection, self._namespace)
        return len(rows)

    def clear(self) -> None:
        """Delete everything of this namespace."""
        with self._db.writing() as connection:
            self._forget_all(connection)
            self._forget_learned(connection)

    def vacuum(self) -> None:
        """Delete what no session reads, and compact."""
        self.sweep()
        self.compact()

    def salvage(self, damaged: Callable[[str], None]) -> Salvaged:
        """Return what is whole of a damaged store, to be exported; see `Salvaged`.

        Args:
            damaged: Told of each thing that is not whole.
        """
        return Salvaged(self._db, self._namespace, self._decoded, damaged)

    def close(self) -> None:
        """Release everything."""
        self._db.close()

    def _counts(self, connection: Connection) -> dict[str, int]:
        """Return what `COUNTS` asks for; a namespace that is not there has nothing."""
        asked = {"namespace": self._namespace}
        found = {name: connection.execute(sql, asked).fetchone() for name, sql in COUNTS.items()}
        return {name: int(row[0]) if row else 0 for name, row in found.items()}

    def _broken(self, invariants: Mapping[str, str]) -> list[str]:
        """Return one line per invariant that some rows break, and per kind of row that changed."""
        lines = [
            self._line(what, lambda connection, query=query: self._column(connection, query))
            for what, query in invariants.items()
        ]
        lines += [
            self._line(
                f"{checked.what} that is not as it was written",
                lambda connection, checked=checked: [
                    key
                    for namespace in self._column(connection, "SELECT id FROM namespace")
                    for key in changed_rows(connection, namespace, checked)
                ],
            )
            for checked in CHECKED_TABLES
        ]
        return list(dict.fromkeys(line for line in lines if line))

    def _line(self, what: str, broken: Callable[[Connection], Sequence[Any]]) -> str:
        """Return what to say of rows that a query finds; nothing when it finds none."""
        try:
            with self._db.reading() as connection:
                rows = broken(connection)
        except StorageBusyError:
            raise
        except StorageError as error:
            return str(error)
        shown = ", ".join(map(str, rows[:_SHOWN_ROWS]))
        return f"{self._db.name}: {what}: {len(rows)} rows ({shown} …)" if rows else ""


_READ = """WITH RECURSIVE chain(branch_id, parent_id, below, last) AS (
    SELECT b.id, b.parent_id, b.fork_sequence, 9223372036854775807
    FROM session s JOIN branch b ON b.id = s.branch_id
    UNION ALL
    SELECT b.id, b.parent_id, b.fork_sequence, chain.below
    FROM chain JOIN branch b ON b.id = chain.parent_id AND b.id < chain.branch_id)
SELECT branch_id, max(last) AS last FROM chain GROUP BY branch_id"""

BRANCH_INVARIANTS = {
    "a branch with a gap, or one that does not begin after its fork": """SELECT b.id
        FROM branch b JOIN message m ON m.branch_id = b.id GROUP BY b.id
        HAVING min(m.sequence) <> b.fork_sequence + 1
            OR max(m.sequence) <> b.fork_sequence + count(*)""",
    "a message of no branch, or of another namespace": """SELECT m.row FROM message m WHERE NOT
        EXISTS (SELECT 1 FROM branch b WHERE b.id = m.branch_id AND b.namespace = m.namespace)""",
    "a branch that forks where its parent has no message of its own": """SELECT c.id FROM branch c
        LEFT JOIN message m ON m.branch_id = c.parent_id AND m.sequence = c.fork_sequence
        WHERE c.parent_id IS NOT NULL AND m.row IS NULL""",
    "a branch older than its parent, or of another namespace": """SELECT c.id FROM branch c
        JOIN branch p ON p.id = c.parent_id WHERE p.id >= c.id OR p.namespace <> c.namespace""",
    "a session that points at no branch of its own": """SELECT s.branch_id FROM session s
        WHERE NOT EXISTS (SELECT 1 FROM branch b WHERE b.id = s.branch_id
            AND b.namespace = s.namespace AND b.session_id = s.id AND b.pointed = 1)""",
    "a branch whose reach is not what sessions read": f"""SELECT b.id FROM branch b
        LEFT JOIN ({_READ}) r ON r.branch_id = b.id WHERE b.reach <> coalesce(r.last, 0)""",  # noqa: S608 - no value in it
    "a step pinned to no branch": """SELECT s.row FROM agent_step s WHERE s.branch_id IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM branch b
                        WHERE b.id = s.branch_id AND b.namespace = s.namespace)""",
    "tokens without a message": """SELECT message_row FROM message_token t WHERE NOT EXISTS
        (SELECT 1 FROM message m WHERE m.row = t.message_row)""",
}
