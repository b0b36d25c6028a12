"""Keeping a database in order: identity, deletion, counting, and what must hold among the rows.

Space given back, and checks of the database itself, are the back-end's affair.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hybridagi_steps.errors import StorageBusyError, StorageError
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.store_values import MESSAGE_ROWS, StoreIdentity
from hybridagi_steps.stores.checked_tables import CHECKED_TABLES, changed_anywhere, note_damage
from hybridagi_steps.stores.sql.expiry import RetentionTables
from hybridagi_steps.stores.sql.salvage import Damaged, Salvaged
from hybridagi_steps.stores.sql.tables import (
    DERIVED,
    Connection,
    is_storable,
    remove_empty_runs,
    remove_marks,
    runs_of,
)

_IDENTITY = """SELECT (SELECT value FROM meta WHERE key = 'store_id'), n.embedder, n.dimension
    FROM (SELECT 1) one LEFT JOIN namespace n ON n.id = ?"""
_NOTHING_NEW = "UPDATE namespace SET epoch = epoch WHERE id = ?"
_PLACES = """SELECT value FROM meta WHERE substr(key, 1, 6) = 'place:'
    AND key IN ('place:' || CAST(? AS TEXT) || ':' || value, 'place:' || value) ORDER BY key"""
"""Without a namespace in files of earlier versions."""
_NOTE_PLACE = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
_OTHER_EMBEDDER = (
    "DELETE FROM embedding WHERE namespace = ?",
    """UPDATE namespace SET epoch = epoch + 1, vectors_through = 0, message_vectors_through = 0
       WHERE id = ?""",
)
_TALLY = """SELECT n.rows_gone, n.sessions_moved,
        coalesce((SELECT max(row) FROM agent_step), 0), coalesce((SELECT max(row) FROM message), 0),
        t.through, t.messages_through, t.steps, t.runs, t.dangling_parents,
        CASE WHEN t.sessions_moved = n.sessions_moved THEN t.sessions END, t.messages
    FROM namespace n LEFT JOIN tally t ON t.namespace = n.id AND t.rows_gone = n.rows_gone
    WHERE n.id = ?"""
_KEEP_TALLY = """INSERT INTO tally (rows_gone, sessions_moved, through, messages_through,
        steps, runs, dangling_parents, sessions, messages, namespace)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace) DO UPDATE
    SET rows_gone = excluded.rows_gone, sessions_moved = excluded.sessions_moved,
        through = excluded.through, messages_through = excluded.messages_through,
        steps = excluded.steps, runs = excluded.runs, messages = excluded.messages,
        dangling_parents = excluded.dangling_parents, sessions = excluded.sessions"""
_FRESH = """WITH fresh AS MATERIALIZED (SELECT run_id, session_id, parent_id FROM step_view
    WHERE namespace = :namespace AND row > :after AND row <= :through)"""
# The + keeps SQLite from walking all earlier rows where an index says which are asked for.
_EARLIER = "o.namespace = :namespace AND +o.row <= :after"
_MORE_STEPS = f"""{_FRESH} SELECT (SELECT count(*) FROM fresh),
    (SELECT count(*) FROM (SELECT DISTINCT run_id FROM fresh WHERE run_id IS NOT NULL) r
        WHERE :after = 0 OR NOT EXISTS
            (SELECT 1 FROM step_view o WHERE {_EARLIER} AND o.run_id = r.run_id)),
    (SELECT count(*) FROM fresh f WHERE f.parent_id IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM agent_step p
             WHERE p.namespace = :namespace AND p.id = f.parent_id AND +p.row <= :through))"""  # noqa: S608 - no value in it
_NOW_WITH_PARENT = """SELECT k.row FROM agent_step s
    JOIN step_view k ON k.namespace = s.namespace AND k.parent_id = s.id AND +k.row <= :after
    WHERE +s.namespace = :namespace AND s.row > :after AND s.row <= :through"""
_MORE_SESSIONS = f"""{_FRESH} SELECT count(*)
    FROM (SELECT DISTINCT session_id FROM fresh WHERE session_id IS NOT NULL) f
    WHERE NOT EXISTS (SELECT 1 FROM session s
            WHERE s.namespace = :namespace AND s.id = f.session_id)
        AND NOT EXISTS (SELECT 1 FROM step_view o
            WHERE {_EARLIER} AND o.session_id = f.session_id AND o.branch_id IS NULL)"""  # noqa: S608 - no value in it
_SESSIONS = """SELECT count(*) FROM (
    SELECT session_id FROM step_view
        WHERE namespace = :namespace AND session_id IS NOT NULL AND +row <= :through
    UNION SELECT id FROM session WHERE namespace = :namespace) known"""
_SOME_PINNED = """SELECT 1 FROM agent_step
    WHERE namespace = :namespace AND branch_id IS NOT NULL LIMIT 1"""
_MORE_MESSAGES = """SELECT count(*) FROM message
    WHERE +namespace = :namespace AND row > :after AND row <= :through"""
_ALL_MESSAGES = "SELECT count(*) FROM message WHERE namespace = :namespace AND row <= :through"
_WITHOUT = """(SELECT count(*) FROM {table} s WHERE +s.namespace = :namespace
        AND s.row > (SELECT {mark} FROM namespace WHERE id = :namespace)
        AND NOT EXISTS (SELECT 1 FROM {derived} d WHERE d.row = s.row + {offset}
            AND d.row > {offset} + (SELECT {mark} FROM namespace WHERE id = :namespace)))"""


def _without(derived: str, mark: str) -> str:
    steps = _WITHOUT.format(table="agent_step", derived=derived, mark=mark, offset=0)
    offset = MESSAGE_ROWS
    return f"""{steps} + {
        _WITHOUT.format(table="message", derived=derived, mark=f"message_{mark}", offset=offset)
    }"""


_PENDING = f"""SELECT {_without("step_text", "texts_through")}
        + (SELECT count(*) FROM stale_text WHERE namespace = :namespace),
    {_without("embedding", "vectors_through")},
    (SELECT count(*) FROM embedding WHERE namespace = :namespace AND vector IS NULL)"""  # noqa: S608 - no value in it
_FEW = 64
"""Rows that are counted each time rather than that their count is kept: less than 1 ms."""
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
        WHERE NOT coalesce(length(vector) IN (4 * dimension, 2 * dimension + 1), vector IS NULL)""",
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
    "a count of steps that is not theirs": """SELECT t.namespace FROM tally t
        JOIN namespace n ON n.id = t.namespace AND n.rows_gone = t.rows_gone WHERE t.steps <>
        (SELECT count(*) FROM agent_step s WHERE s.namespace = n.id AND s.row <= t.through)""",
    "a step of no namespace": """SELECT row FROM agent_step s WHERE NOT EXISTS
        (SELECT 1 FROM namespace n WHERE n.id = s.namespace)""",
}
"""What must hold among steps and what is made of them; `verify` asks for rows that break it."""
_SHOWN_ROWS = 5


_COUNTED = ("steps", "runs", "sessions", "messages", "dangling_parents")


class Tally(NamedTuple):
    """How many there are up to a row of each kind."""

    through: int = 0
    messages_through: int = 0
    steps: int = 0
    runs: int = 0
    dangling_parents: int = 0
    sessions: int | None = None
    messages: int = 0


class AdminTables(RetentionTables):
    """Implements `StepStore`; see protocols.py for the contract."""

    def places(self) -> list[str]:
        """Return what was noted."""
        with self._db.asking() as connection:
            return self._column(connection, _PLACES, self._namespace)

    def note_place(self, place: str) -> None:
        """Note another file of texts of this store."""
        with self._db.writing() as connection:
            connection.execute(_NOTE_PLACE, (f"place:{self._namespace}:{place}", place))

    @abstractmethod
    def compact(self) -> tuple[str, ...]:
        """Give space back; nothing deleted is left in any file but those returned."""

    def identity(self) -> StoreIdentity:
        """Return the store's id and the namespace's embedder."""
        return StoreIdentity(*self._db.known(_IDENTITY, (self._namespace,)))

    def sync(self) -> None:
        """Make durable what was written without waiting for a disk."""
        with self._db.writing(synced=True) as connection:
            connection.execute(_NOTHING_NEW, (self._namespace,))

    def set_embedder(self, model_id: str, dimension: int) -> None:
        """Remember the embedder; another than before drops all embeddings."""
        if self.identity()[1:] == (model_id, dimension):
            return
        with self._db.writing() as connection:
            self._change_embedder(connection, model_id, dimension)

    def _change_embedder(self, connection: Connection, model_id: str, dimension: int) -> None:
        known = connection.execute(_IDENTITY, (self._namespace,)).fetchone()[1:]
        if known[0] is not None and tuple(known) != (model_id, dimension):
            for statement in _OTHER_EMBEDDER:
                connection.execute(statement, (self._namespace,))
        update = "UPDATE namespace SET embedder = ?, dimension = ? WHERE id = ?"
        connection.execute(update, (model_id, dimension, self._namespace))

    def clear(self) -> None:
        """Delete everything of this namespace."""
        with self._db.writing() as connection:
            self._clear(connection)

    def _clear(self, connection: Connection) -> None:
        self._forget_all(connection)

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

    def vacuum(self) -> None:
        """Delete what no session reads, and compact."""
        self.sweep()
        self.compact()

    def salvage(self, damaged: Damaged) -> Salvaged:
        """Return what is whole of a damaged store, to be exported; see `Salvaged`."""
        return Salvaged(self._db, self._namespace, self._decoded, damaged)

    def close(self) -> None:
        """Release everything."""
        self._db.close()

    def _counts(self) -> dict[str, int]:
        """Return how many there are; what was counted once is not counted again."""
        self._catch_up()
        with self._db.asking() as connection:
            settled = self._settled(connection)
        with self._db.reading() as connection:
            found = connection.execute(_TALLY, (self._namespace,)).fetchone()
            if found is None:  # a namespace that is not there has nothing
                found = (0,) * 11
            marks, through, known = found[:2], found[2:4], Tally(*(found[4:] if found[4] else ()))
            # What is kept ends where no row appears any more.
            done = [*map(max, known[:2], map(min, settled, through))]
            tally = kept = self._counted_on(connection, known, *done)
            if (newest := [*map(max, through, done)]) != done:
                tally = self._counted_on(connection, kept, *newest)
            asked = {"namespace": self._namespace}
            texts, vectors, text_only = connection.execute(_PENDING, asked).fetchone()
        new = kept.through - known.through + kept.messages_through - known.messages_through
        if new > _FEW or known.sessions is None:
            self._keep_tally(marks, kept)
        counts: dict[str, int] = {name: int(getattr(tally, name)) for name in _COUNTED}
        return {
            **counts,
            "embedded": tally.steps + tally.messages - vectors - text_only,
            "text_only": text_only,
            "pending_texts": texts,
            "pending_vectors": vectors,
        }

    def _counted_on(
        self, connection: Connection, known: Tally, through: int, messages_through: int
    ) -> Tally:
        asked = {"namespace": self._namespace, "after": known.through, "through": through}
        steps, runs, dangling = connection.execute(_MORE_STEPS, asked).fetchone()
        if known.through:
            dangling -= len(connection.execute(_NOW_WITH_PARENT, asked).fetchall())
        sessions = self._sessions_counted(connection, known, asked)
        after = {**asked, "after": known.messages_through, "through": messages_through}
        count = _MORE_MESSAGES if known.messages_through else _ALL_MESSAGES
        (messages,) = connection.execute(count, after).fetchone()
        return Tally(
            through,
            messages_through,
            known.steps + steps,
            known.runs + runs,
            known.dangling_parents + dangling,
            sessions,
            known.messages + messages,
        )

    def _sessions_counted(self, connection: Connection, known: Tally, asked: dict[str, int]) -> int:
        """Return how many sessions there are.

        Whether a step that stands in a session named another one before is in no index.
        """
        if known.sessions is not None:
            (more,) = connection.execute(_MORE_SESSIONS, asked).fetchone()
            if not more or connection.execute(_SOME_PINNED, asked).fetchone() is None:
                return known.sessions + more
        (sessions,) = connection.execute(_SESSIONS, asked).fetchone()
        return sessions

    def _keep_tally(self, marks: Sequence[int], tally: Tally) -> None:
        """Keep a count if nobody else writes just now; if rows went since, it is void."""
        if not self._db.writable:
            return
        try:
            with (
                self._db.patience.at_most(0),
                self._db.writing(synced=False, beside=DERIVED) as connection,
            ):
                connection.execute(_KEEP_TALLY, (*marks, *tally, self._namespace))
        except StorageError:
            return  # whoever asks next counts again; a damaged file says so on reading

    def _broken(self, invariants: Mapping[str, str]) -> list[str]:
        """Return one line per invariant that some rows break, and per kind of row that changed."""
        lines = [
            self._line(what, lambda connection, query=query: self._column(connection, query))
            for what, query in invariants.items()
        ]
        derived: list[Any] = []
        lines += [
            self._line(
                f"{checked.what} that is not as it was written",
                partial(changed_anywhere, self._namespace, checked, derived),
            )
            for checked in CHECKED_TABLES
        ]
        note_damage(self._db, self._namespace, derived)
        prompts = "a prompt, or a part of one, that is not as it was written"
        lines.append(self._line(prompts, self._changed_prompts))
        return list(dict.fromkeys(line for line in lines if line))

    def _line(self, what: str, broken: Callable[[Connection], Sequence[Any]]) -> str:
        """Return what to say of rows that a query finds; nothing when it finds none."""
        try:
            with self._unhurried() as connection:
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
