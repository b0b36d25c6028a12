"""Words and embeddings in a database: what is pending, what is saved, what followers must know.

`namespace.texts_through` and `vectors_through` say up to which row everything is saved, so asking
for what is pending looks only beyond them. A step whose parent arrived after its words were saved
stands in `stale_text` until its words are saved again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from hybridagi_steps.errors import DamagedFileError, EmbedderMismatchError, StorageBusyError
from hybridagi_steps.protocols import NEWEST
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.store_values import (
    Changes,
    Frontier,
    PendingText,
    Position,
    TextRow,
    VectorRow,
)
from hybridagi_steps.stores.checksums import (
    checked_vector,
    damaged,
    row_checksum,
    vector_checksum,
)
from hybridagi_steps.stores.sql.tables import Connection, Tables, many

# One lower bound, not two: SQLite would walk from whichever stands first.
_BEYOND = """+s.namespace = :namespace AND s.row <= :through AND s.row >
    (SELECT CASE WHEN {column} > :after THEN {column} ELSE :after END
    FROM namespace WHERE id = :namespace)"""
_PENDING_TEXT_ROWS = f"""SELECT row FROM (
    SELECT row FROM stale_text
        WHERE namespace = :namespace AND row > :after AND row <= :through
    UNION
    SELECT s.row FROM agent_step s WHERE {_BEYOND.format(column="texts_through")}
        AND NOT EXISTS (SELECT 1 FROM step_text t WHERE t.row = s.row)) pending
    ORDER BY row LIMIT :limit"""  # noqa: S608 - no value in it
_PENDING_VECTOR_ROWS = f"""SELECT s.row FROM agent_step s
    WHERE {_BEYOND.format(column="vectors_through")}
    AND NOT EXISTS (SELECT 1 FROM embedding e WHERE e.row = s.row)
    ORDER BY s.row LIMIT :limit"""  # noqa: S608 - no value in it
_NAMED_PARENTS = """SELECT k.row, p.row FROM step_view k
    JOIN agent_step p ON p.namespace = k.namespace AND p.id = k.parent_id AND p.row <> k.row
    WHERE k.namespace = ? AND k.row IN (SELECT value FROM json_each(?))"""
_OWNERS = """SELECT row, user_id, scope FROM step_view
    WHERE namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_PLACES = """SELECT row, run_id, hop FROM step_view
    WHERE namespace = ? AND run_id IS NOT NULL AND row IN (SELECT value FROM json_each(?))"""
_BEFORE_IN_RUN = """SELECT row, hop FROM step_view
    WHERE namespace = ? AND run_id = ? AND (hop, row) < (?, ?)
    ORDER BY hop DESC, row DESC LIMIT 1"""
_AFTER_IN_RUN = """SELECT row, hop FROM step_view
    WHERE namespace = ? AND run_id = ? AND (hop, row) > (?, ?)
    ORDER BY hop, row LIMIT 1"""
_CHILDREN = """SELECT k.row FROM agent_step s
    JOIN step_view k ON k.namespace = s.namespace AND k.parent_id = s.id
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""
_INDEXED_PARENTS = """SELECT row, parent_row FROM step_text
    WHERE row IN (SELECT value FROM json_each(?))"""
_LIVING = """SELECT row FROM agent_step
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_MARK = "INSERT INTO stale_text (namespace, row) VALUES (?, ?) ON CONFLICT DO NOTHING"
_FRESH = """DELETE FROM stale_text
    WHERE namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_ADVANCE = """UPDATE namespace SET {column} = coalesce(
    (SELECT s.row - 1 FROM agent_step s WHERE +s.namespace = :namespace
        AND s.row > {column} AND NOT EXISTS (SELECT 1 FROM {table} d WHERE d.row = s.row)
        ORDER BY s.row LIMIT 1),
    (SELECT max(row) FROM agent_step), {column}) WHERE id = :namespace"""
_TEXTS_ADVANCE = _ADVANCE.format(column="texts_through", table="step_text")
_VECTORS_ADVANCE = _ADVANCE.format(column="vectors_through", table="embedding")
_FRONTIER = """SELECT epoch,
    coalesce((SELECT max(seq) FROM step_text WHERE namespace = n.id), 0),
    coalesce((SELECT max(seq) FROM embedding WHERE namespace = n.id), 0),
    coalesce((SELECT max(seq) FROM tombstone WHERE namespace = n.id), 0),
    branches_moved, coalesce((SELECT max(row) FROM agent_step), 0)
    FROM namespace n WHERE id = ?"""
_TEXTS = """SELECT seq, checksum, row, parent_row, tokens, text_hash, purpose_hash, scoped
    FROM step_text
    WHERE namespace = ? AND seq > ? ORDER BY seq LIMIT ?"""
_VECTORS = """SELECT seq, row, text_hash, given, vector, checksum, scoped FROM embedding
    WHERE namespace = ? AND seq > ? ORDER BY seq LIMIT ?"""
_TOMBSTONES = "SELECT row FROM tombstone WHERE namespace = ? AND seq > ? ORDER BY seq"
_BODIES = """SELECT row, CAST(body AS BLOB), checksum FROM agent_step
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""


class DerivedTables(Tables):
    """Implements `IndexedStore`; see protocols.py for the contract."""

    _save_text: str
    """Saves the words of a row under a new `seq`, in place of those it has."""
    _save_vector: str
    """Saves the embedding of a row that has none under a new `seq`."""

    def waiting(self, seconds: float) -> AbstractContextManager[None]:
        """Let this thread wait no longer for other writers."""
        return self._db.patience.at_most(seconds)

    def pending_texts(
        self, limit: int, *, after: int = 0, through: int = NEWEST
    ) -> list[PendingText]:
        """Return the next steps without words, or with stale ones."""
        asked = self._bounds(limit, after, through)
        if not self._some(_PENDING_TEXT_ROWS, asked):
            return []
        with self._db.reading() as connection:
            rows: list[int] = [row for (row,) in connection.execute(_PENDING_TEXT_ROWS, asked)]
            self._keep_tail(connection)
            parents = self._parents(connection, rows)
            steps = self._steps(connection, {*rows, *parents.values()})
        found = zip(rows, self._listed(steps, rows), map(parents.get, rows), strict=True)
        return [
            PendingText(row, step, parent, None if parent is None else steps.get(parent))
            for row, step, parent in found
        ]

    def pending_vectors(
        self, limit: int, *, after: int = 0, through: int = NEWEST
    ) -> list[tuple[int, AgentStep]]:
        """Return the next steps without an embedding."""
        asked = self._bounds(limit, after, through)
        if not self._some(_PENDING_VECTOR_ROWS, asked):
            return []
        with self._db.reading() as connection:
            rows: list[int] = [row for (row,) in connection.execute(_PENDING_VECTOR_ROWS, asked)]
            steps = self._steps(connection, set(rows))
        return list(zip(rows, self._listed(steps, rows), strict=True))

    def save_derived(
        self, texts: Sequence[TextRow], vectors: Sequence[VectorRow], *, model_id: str | None = None
    ) -> int:
        """Save words and embeddings in one transaction; return how many windows went stale.

        Words that show a step which is gone meanwhile are not saved: their own stays pending.
        """
        with self._db.writing() as connection:
            stale = self._save_texts(connection, texts) if texts else 0
            if vectors or model_id is not None:
                self._save_vectors(connection, vectors, model_id)
        return stale

    def _save_texts(self, connection: Connection, texts: Sequence[TextRow]) -> int:
        texts = self._with_living_parents(connection, texts)
        rows = [int(text.row) for text in texts]
        connection.executemany(self._save_text, [self._text_values(text) for text in texts])
        connection.execute(_FRESH, (self._namespace, many(rows)))
        self._keep_up(connection)
        stale = [(self._namespace, row) for row in self._stale(connection, rows)]
        connection.executemany(_MARK, stale)
        connection.execute(_TEXTS_ADVANCE, {"namespace": self._namespace})
        self._mark_late(connection)
        return len(stale)

    def _save_vectors(
        self, connection: Connection, vectors: Sequence[VectorRow], model_id: str | None
    ) -> None:
        stored = self._embedder(connection)
        if stored is None and model_id is not None:
            raise StorageBusyError(
                f"{self._db.name} has not been told of the embedder {model_id} yet: somebody else "
                "wrote; try again."
            )
        if model_id not in (None, stored):
            raise EmbedderMismatchError(str(stored), str(model_id))
        connection.executemany(self._save_vector, [self._vector_values(row) for row in vectors])
        connection.execute(_VECTORS_ADVANCE, {"namespace": self._namespace})

    def frontier(self) -> Frontier:
        """Return the newest position and the newest row."""
        with self._db.asking() as connection:
            return self._frontier(connection)

    def changes(self, since: Position, *, limit: int = 100_000) -> Changes:
        """Return what happened after `since`, in one consistent view."""
        with self._db.reading() as connection:
            newest = self._frontier(connection).position
            if since.epoch != newest.epoch:
                since = newest._replace(text=0, vector=0)
            texts = connection.execute(_TEXTS, (self._namespace, since.text, limit)).fetchall()
            vectors = connection.execute(
                _VECTORS, (self._namespace, since.vector, limit)
            ).fetchall()
            removed = self._column(connection, _TOMBSTONES, self._namespace, since.tombstone)
        reached = Position(
            newest.epoch,
            texts[-1][0] if len(texts) == limit else newest.text,
            vectors[-1][0] if len(vectors) == limit else newest.vector,
            newest.tombstone,
            newest.branch,
        )
        return Changes(
            reached,
            [_text(*values) for _, *values in texts],
            [_vector(*values) for _, *values in vectors],
            removed,
        )

    def _bounds(self, limit: int, after: int, through: int) -> dict[str, int]:
        return {"namespace": self._namespace, "limit": limit, "after": after, "through": through}

    def _some(self, pending: str, asked: dict[str, int]) -> bool:
        """Tell whether a query finds any row; most of the time before a search none does."""
        with self._db.asking() as connection:
            return connection.execute(pending, {**asked, "limit": 1}).fetchone() is not None

    def _embedder(self, connection: Connection) -> str | None:
        sql = "SELECT embedder FROM namespace WHERE id = ?"
        found = connection.execute(sql, (self._namespace,)).fetchone()
        return found[0] if found else None

    def _frontier(self, connection: Connection) -> Frontier:
        found = connection.execute(_FRONTIER, (self._namespace,)).fetchone()
        *position, row = found or (1, 0, 0, 0, 0, 0)
        return Frontier(Position(*position), row)

    def _parents(self, connection: Connection, rows: Sequence[int]) -> dict[int, int]:
        """Return the parent's row of each row that has one: the named step, else the one before.

        A step of another user or scope is nobody's parent: its words are not for this one's window.
        """
        asked = (self._namespace, many(rows))
        parents: dict[int, int] = dict(connection.execute(_NAMED_PARENTS, asked).fetchall())
        nameless = [row for row in rows if row not in parents]
        parents.update(self._before_in_run(connection, nameless))
        asked = (self._namespace, many(sorted({*parents, *parents.values()})))
        owners = {row: owner for row, *owner in connection.execute(_OWNERS, asked)}
        same = {row for row, parent in parents.items() if owners.get(row) == owners.get(parent)}
        return {row: parents[row] for row in same}

    def _before_in_run(self, connection: Connection, rows: Sequence[int]) -> dict[int, int]:
        """Return the step before each row in its run, for those that have one."""
        return self._neighbours(connection, rows, _BEFORE_IN_RUN)

    def _after_in_run(self, connection: Connection, rows: Sequence[int]) -> dict[int, int]:
        """Return the step after each row in its run, for those that have one."""
        return self._neighbours(connection, rows, _AFTER_IN_RUN)

    def _neighbours(
        self, connection: Connection, rows: Sequence[int], query: str
    ) -> dict[int, int]:
        found: dict[int, int] = {}
        places = connection.execute(_PLACES, (self._namespace, many(rows))).fetchall()
        for row, run_id, hop in places:
            place = (self._namespace, run_id, hop, row)
            if neighbour := connection.execute(query, place).fetchone():
                found[row] = neighbour[0]
        return found

    def _with_living_parents(
        self, connection: Connection, texts: Sequence[TextRow]
    ) -> list[TextRow]:
        shown = {int(text.parent_row) for text in texts if text.parent_row is not None}
        asked = (self._namespace, many(sorted(shown)))
        living = {None, *self._column(connection, _LIVING, *asked)}
        return [text for text in texts if text.parent_row in living]

    def _stale(self, connection: Connection, saved: Sequence[int]) -> list[int]:
        """Return rows whose words show another parent than they have by now.

        Only a parent stored after its child can do that: earlier ones were there when the child's
        words were made. Looked at are the saved rows, their children and their followers.
        """
        asked = (self._namespace, many(saved))
        looked_at = {*saved, *self._column(connection, _CHILDREN, *asked)}
        looked_at.update(self._after_in_run(connection, saved).values())
        shown = dict(connection.execute(_INDEXED_PARENTS, (many(sorted(looked_at)),)))
        parents = self._parents(connection, sorted(shown))
        return [row for row, parent in parents.items() if parent > row and shown[row] != parent]

    def _steps(self, connection: Connection, rows: set[int]) -> dict[int, AgentStep]:
        asked = (self._namespace, many(sorted(rows)))
        return {row: self._sound(row, *read) for row, *read in connection.execute(_BODIES, asked)}

    def _sound(self, row: int, body: bytes | str, checksum: int | None) -> AgentStep:
        """Return the step in a row; for a damaged one a step without words.

        Else one damaged row that waits for its words would keep everybody from searching. Who reads
        the row itself is told.
        """
        try:
            return self._decoded(row, body, checksum)
        except DamagedFileError:
            return AgentStep(step_type=AgentStepType.Action)

    def _text_values(self, text: TextRow) -> tuple[int | str | None, ...]:
        parent = None if text.parent_row is None else int(text.parent_row)
        words = (text.tokens, int(text.text_hash), int(text.purpose_hash))
        checksum = row_checksum(int(text.row), parent, *words)
        return (parent, *words, checksum, self._namespace, int(text.row))

    def _vector_values(self, saved: VectorRow) -> tuple[int | bytes | None, ...]:
        key = (self._namespace, int(saved.row))
        vector, words = saved.vector, int(saved.text_hash)
        blob = None if vector is None else np.asarray(vector, dtype="<f4").tobytes()
        checksum = vector_checksum(int(saved.row), words, 0, blob)
        return (None if vector is None else len(vector), words, blob, checksum, *key)


def _text(checksum: int | None, *values: Any) -> TextRow:
    *known, scoped = values
    if checksum not in (None, row_checksum(*known)):
        raise damaged(f"the words of row {known[0]}")
    return TextRow(*known, scoped=bool(scoped))


def _vector(
    row: int, text_hash: int, given: int, blob: bytes | None, checksum: int | None, scoped: int
) -> VectorRow:
    vector = checked_vector(row, text_hash, given, blob, checksum)
    return VectorRow(row, text_hash, vector, bool(scoped))
