"""Words and embeddings in a database: what is pending, what is saved, what followers must know.

`namespace.texts_through` and `vectors_through` say up to which row everything is saved, so asking
for what is pending looks only beyond them. A step whose parent arrived after its words were saved
stands in `stale_text` until its words are saved again. Messages of sessions have watermarks of
their own; what they show never changes, so their words are never stale.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, NamedTuple

from hybridagi_steps.errors import DamagedFileError, EmbedderMismatchError, StorageBusyError
from hybridagi_steps.protocols import NEWEST
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.step_identity import (
    may_repeat_a_call,
    only_recalls,
    same_owner,
    told_alone,
    told_with,
)
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    Changes,
    Frontier,
    PendingText,
    Position,
    TextRow,
    VectorRow,
)
from hybridagi_steps.stores.checked_tables import (
    DERIVED_TABLES,
    EMBEDDINGS,
    WORDS,
    DamagedRow,
    damaged_rows,
    forget_damage,
    made_by_embedder,
    note_damage,
    noted_damage,
    refused_rows,
    sound_texts,
    sound_vectors,
)
from hybridagi_steps.stores.checksums import (
    packed_words,
    vector_blob,
    vector_checksum,
    words_checksum,
)
from hybridagi_steps.stores.sql.lineage import in_range
from hybridagi_steps.stores.sql.message_units import NOTHING, MessageUnits
from hybridagi_steps.stores.sql.steps import READ_STEPS
from hybridagi_steps.stores.sql.tables import DERIVED, Connection, many

# One lower bound, not two: SQLite would walk from whichever stands first. The rows that are not to
# be there have it, too: else PostgreSQL merges two whole indexes.
_BEGIN = """(SELECT CASE WHEN {column} > :after THEN {column} ELSE :after END
    FROM namespace WHERE id = :namespace)"""
_BEYOND = f"""+s.namespace = :namespace AND s.row <= :through AND s.row > {_BEGIN}
    AND NOT EXISTS (SELECT 1 FROM {{table}} d WHERE d.row = s.row AND d.row > {_BEGIN})"""  # noqa: S608 - no value in it
# Each part has a limit of its own: a union without is made of all that is pending, for each batch.
PENDING_TEXT_ROWS = f"""SELECT row FROM (
    SELECT row FROM stale_text WHERE namespace = :namespace AND row > :after
        AND row <= :through ORDER BY row LIMIT :limit) late
    UNION SELECT row FROM (SELECT s.row FROM agent_step s
        WHERE {_BEYOND.format(column="texts_through", table="step_text")}
        ORDER BY s.row LIMIT :limit) fresh ORDER BY row LIMIT :limit"""  # noqa: S608 - no value in it
_PENDING_VECTOR_ROWS = f"""SELECT s.row FROM agent_step s
    WHERE {_BEYOND.format(column="vectors_through", table="embedding")}
    ORDER BY s.row LIMIT :limit"""  # noqa: S608 - no value in it
_PENDING_MESSAGES = f"""SELECT m.row FROM message m
    WHERE +m.namespace = :namespace AND m.row <= :through AND m.row > {_BEGIN}
    AND NOT EXISTS (SELECT 1 FROM {{table}} d
        WHERE d.row = m.row + {MESSAGE_ROWS} AND d.row > {MESSAGE_ROWS} + {_BEGIN})
    ORDER BY m.row LIMIT :limit"""  # noqa: S608 - no value in it
_PENDING_MESSAGE_TEXTS = _PENDING_MESSAGES.format(column="message_texts_through", table="step_text")
_PENDING_MESSAGE_VECTORS = _PENDING_MESSAGES.format(
    column="message_vectors_through", table="embedding"
)
_LINKS = """SELECT row, parent_id, run_id, hop, user_id, scope FROM step_view
    WHERE namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_EARLIER_CHILDREN = """SELECT k.row FROM agent_step s
    JOIN step_view k ON k.namespace = s.namespace AND k.parent_id = s.id AND k.row < s.row
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""
_LAST_TEXT = f"SELECT max(row) FROM step_text WHERE row < {MESSAGE_ROWS}"  # noqa: S608 - no value in it
_INDEXED_PARENTS = """SELECT row, parent_row FROM step_text
    WHERE row IN (SELECT value FROM json_each(?))"""
_LIVING = """SELECT row FROM agent_step
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_MARK = "INSERT INTO stale_text (namespace, row) VALUES (?, ?) ON CONFLICT DO NOTHING"
_FRESH = """DELETE FROM stale_text
    WHERE namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_ADVANCE = """{column} = coalesce(
    (SELECT s.row - 1 FROM agent_step s WHERE +s.namespace = :namespace AND s.row > {column}
        AND s.row <= :settled
        AND NOT EXISTS (SELECT 1 FROM {table} d WHERE d.row = s.row AND d.row > {column})
        ORDER BY s.row LIMIT 1),
    (SELECT max(row) FROM agent_step WHERE row > {column} AND row <= :settled), {column})"""
_MESSAGES_ADVANCE = f"""{{column}} = coalesce(
    (SELECT m.row - 1 FROM message m WHERE +m.namespace = :namespace AND m.row > {{column}}
        AND m.row <= :settled_messages AND NOT EXISTS (SELECT 1 FROM {{table}} d
            WHERE d.row = m.row + {MESSAGE_ROWS} AND d.row > {MESSAGE_ROWS} + {{column}})
        ORDER BY m.row LIMIT 1),
    (SELECT max(row) FROM message WHERE row > {{column}} AND row <= :settled_messages),
    {{column}})"""  # noqa: S608 - no value in it
_TEXTS_ADVANCE = _ADVANCE.format(column="texts_through", table="step_text")
_VECTORS_ADVANCE = _ADVANCE.format(column="vectors_through", table="embedding")
_MESSAGE_TEXTS_ADVANCE = _MESSAGES_ADVANCE.format(column="message_texts_through", table="step_text")
_MESSAGE_VECTORS_ADVANCE = _MESSAGES_ADVANCE.format(
    column="message_vectors_through", table="embedding"
)
_ADVANCES = (_TEXTS_ADVANCE, _VECTORS_ADVANCE, _MESSAGE_TEXTS_ADVANCE, _MESSAGE_VECTORS_ADVANCE)
_FROM_NOTHING = """texts_through = 0, vectors_through = 0,
    message_texts_through = 0, message_vectors_through = 0"""
FRONTIER = """SELECT epoch,
    coalesce((SELECT max(seq) FROM step_text WHERE namespace = n.id), 0),
    coalesce((SELECT max(seq) FROM embedding WHERE namespace = n.id), 0),
    coalesce((SELECT max(seq) FROM tombstone WHERE namespace = n.id), 0),
    branches_moved, coalesce((SELECT max(row) FROM agent_step), 0) AS newest,
    coalesce((SELECT max(row) FROM message), 0) AS newest_message
    FROM namespace n WHERE id = ?"""
"""Epoch, newest text, vector and tombstone, moves of branches, newest row of a step, a message."""
_TEXTS = """SELECT seq, checksum, row, parent_row, tokens, text_hash, purpose_hash, scoped
    FROM step_text
    WHERE namespace = ? AND seq > ? ORDER BY seq LIMIT ?"""
_VECTORS = """SELECT seq, row, text_hash, given, vector, checksum, scoped FROM embedding
    WHERE namespace = ? AND seq > ? ORDER BY seq LIMIT ?"""
_TOMBSTONES = "SELECT row FROM tombstone WHERE namespace = ? AND seq > ? ORDER BY seq"
_LIVING_MESSAGES = f"""SELECT row + {MESSAGE_ROWS} FROM message
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""  # noqa: S608 - no value in it
_WORDED = "SELECT row FROM step_text WHERE row IN (SELECT value FROM json_each(?))"

Words = tuple[int, str, str | None, TextRow | None]
"""A row, its id, that of the one shown before it, and its words; None: they are to be made."""


class StepLink(NamedTuple):
    """What says which step stands before another."""

    parent_id: str | None
    run_id: str | None
    hop: int
    user_id: str | None
    scope: str | None

    @property
    def owner(self) -> tuple[str | None, str | None]:
        """Whose words it shows."""
        return self.user_id, self.scope


class DerivedTables(MessageUnits):
    """Implements `IndexedStore`; see protocols.py for the contract."""

    _save_text: str
    """Saves the words of a row under a new `seq`, in place of those it has."""
    _save_vector: str
    """Saves the embedding of a row that has none under a new `seq`."""
    _save_message_text: str
    """Does for a message as `_save_text`."""
    _packs_words = False
    """Whether words are stored deflated, in a column that takes bytes as well as text."""
    _save_message_vector: str
    """Does for a message as `_save_vector`."""

    def waiting(self, seconds: float) -> AbstractContextManager[None]:
        """Let this thread wait no longer for other writers."""
        return self._db.patience.at_most(seconds)

    def pending_texts(
        self, limit: int, *, after: int = 0, through: int = NEWEST
    ) -> list[PendingText]:
        """Return the next steps and messages without words, or with stale ones."""
        asked = self._bounds(limit, after, min(through, MESSAGE_ROWS - 1))
        found = self._pending_step_texts(asked) if after < MESSAGE_ROWS else []
        asked = self._message_bounds(limit - len(found), after, through)
        if asked is not None:
            found += self._pending_message_texts(asked)
        return found

    def _pending_step_texts(self, asked: dict[str, int]) -> list[PendingText]:
        with self._db.reading() as connection:
            rows, steps, named = self._pending_steps(connection, asked)
            if not rows:
                return []

            def links_of(others: Collection[int]) -> dict[int, StepLink]:
                steps.update(self._steps(connection, {*others} - steps.keys()))
                return {row: _link(steps[row]) for row in others if row in steps}

            parents = self._parents(connection, links_of({*rows}), links_of, named)
            steps.update(self._steps(connection, {*parents.values()} - steps.keys()))
            calls = self._calls_of(connection, steps)
        found = zip(rows, self._listed(steps, rows), map(parents.get, rows), strict=True)
        told = {row: told_with(step, calls.get(row)) for row, step in steps.items()}
        return [
            PendingText(
                *(row, None if only_recalls(step, calls.get(row)) else told[row]),
                *(parent, None if parent is None else told.get(parent)),
                asked=calls.get(row),
            )
            for row, step, parent in found
        ]

    def _pending_steps(
        self, connection: Connection, asked: dict[str, int]
    ) -> tuple[list[int], dict[int, AgentStep], Mapping[str, int] | None]:
        """Return the rows of the next steps without words, these and other steps, rows by id.

        Those are at least what the steps name as parents, as far as it is there; None: not asked.
        """
        rows = self._asked_rows(connection, PENDING_TEXT_ROWS, asked)
        return rows, self._steps(connection, rows), None

    def _pending_message_texts(self, asked: dict[str, int]) -> list[PendingText]:
        with self._db.reading() as connection:
            rows = self._asked_rows(connection, _PENDING_MESSAGE_TEXTS, asked)
            if not rows:
                return []
            found = self._units(connection, rows)
            shown = self._shown(connection, [one.content for one in found.values()])
            calls = self._calls_of(connection, dict(shown.values()))
        pending: list[PendingText] = []
        for row in rows:
            one = found.get(row, NOTHING)
            stored = shown.get(id(one.content))
            step = None if stored is None else told_with(stored[1], calls.get(stored[0]))
            call = None if stored is None else calls.get(stored[0])
            window = (one.step, one.before_row, one.before)
            told = PendingText(row + MESSAGE_ROWS, *window, one.asked, step, call)
            pending.append(told)
        return pending

    def pending_vectors(
        self,
        limit: int,
        *,
        after: int = 0,
        through: int = NEWEST,
        known: Mapping[int, AgentStep | None] | None = None,
    ) -> list[tuple[int, AgentStep | None]]:
        """Return the next steps and messages without an embedding."""
        told = dict(known or {})
        asked = self._bounds(limit, after, min(through, MESSAGE_ROWS - 1))
        rows: list[int] = []
        if after < MESSAGE_ROWS:
            with self._db.asking() as connection:
                rows = self._asked_rows(connection, _PENDING_VECTOR_ROWS, asked)
        if unknown := {*rows} - told.keys():
            with self._db.reading() as connection:
                steps = self._steps(connection, unknown)
                calls = self._calls_of(connection, steps)
            told |= {row: told_alone(step, calls.get(row)) for row, step in steps.items()}
        asked = self._message_bounds(limit - len(rows), after, through)
        if asked is not None:
            rows += self._pending_messages(asked, told)
        # One that is gone by now is nobody's to embed.
        return [(row, told[row]) for row in rows if row in told]

    def _pending_messages(
        self, asked: dict[str, int], told: dict[int, AgentStep | None]
    ) -> list[int]:
        """Return the next messages without an embedding; `told` gets what they tell."""
        with self._db.asking() as connection:
            rows = self._asked_rows(connection, _PENDING_MESSAGE_VECTORS, asked)
        if unknown := [row for row in rows if row + MESSAGE_ROWS not in told]:
            with self._db.reading() as connection:
                units = self._units(connection, unknown)
            told |= {row + MESSAGE_ROWS: units.get(row, NOTHING).step for row in unknown}
        return [row + MESSAGE_ROWS for row in rows]

    def save_derived(
        self, texts: Sequence[TextRow], vectors: Sequence[VectorRow], *, model_id: str | None = None
    ) -> int:
        """Save words and embeddings in one transaction; return how many windows went stale.

        Words that show a step which is gone meanwhile are not saved: their own stays pending.
        """
        with self._db.writing(synced=False, beside=DERIVED) as connection:
            advances, settled = list[str](), self._settled(connection)
            stale = self._save_texts(connection, texts, advances) if texts else 0
            if vectors or model_id is not None:
                self._save_vectors(connection, vectors, model_id, advances)
            if advances:
                self._set_watermarks(connection, ", ".join(advances), settled)
        return stale

    def save_words(self, page: Sequence[Words], rows: Mapping[str, int]) -> None:
        """Save words of another store for those that have none; `rows` are theirs here, by id."""
        texts = {
            row: text._replace(row=row, parent_row=None if above is None else rows[above])
            for _, name, above, text in page
            if text is not None and (row := rows.get(name)) is not None
            if above is None or above in rows
        }
        with self._db.asking() as connection:
            done = {*self._column(connection, _WORDED, many([*texts]))}
        if missing := [text for row, text in texts.items() if row not in done]:
            self.save_derived(missing, ())

    def _save_texts(
        self, connection: Connection, texts: Sequence[TextRow], advances: list[str]
    ) -> int:
        """Save words; `advances` gets which watermarks have moved by that."""
        texts = self._with_living_parents(connection, texts)
        messages = [text for text in texts if text.row >= MESSAGE_ROWS]
        if messages:
            values = [self._text_values(text) for text in messages]
            connection.executemany(self._save_message_text, values)
            advances.append(_MESSAGE_TEXTS_ADVANCE)
            texts = [text for text in texts if text.row < MESSAGE_ROWS]
        if not texts:  # what messages show is never stale
            return 0
        rows = [int(text.row) for text in texts]
        connection.executemany(self._save_text, [self._text_values(text) for text in texts])
        connection.execute(_FRESH, (self._namespace, many(rows)))
        self._keep_up(connection)
        stale = [(self._namespace, row) for row in self._stale(connection, rows)]
        if stale:
            connection.executemany(_MARK, stale)
        advances.append(_TEXTS_ADVANCE)
        self._mark_late(connection)
        return len(stale)

    def _save_vectors(
        self,
        connection: Connection,
        vectors: Sequence[VectorRow],
        model_id: str | None,
        advances: list[str],
    ) -> None:
        stored = self._embedder(connection)
        if stored is None and model_id is not None:
            raise StorageBusyError(
                f"{self._db.name} has not been told of the embedder {model_id} yet: somebody else "
                "wrote; try again."
            )
        if model_id not in (None, stored):
            raise EmbedderMismatchError(str(stored), str(model_id))
        values = [self._vector_values(row) for row in vectors if row.row < MESSAGE_ROWS]
        connection.executemany(self._save_vector, values)
        advances.append(_VECTORS_ADVANCE)
        if messages := [self._vector_values(row) for row in vectors if row.row >= MESSAGE_ROWS]:
            connection.executemany(self._save_message_vector, messages)
            advances.append(_MESSAGE_VECTORS_ADVANCE)

    def _advance_anew(self, connection: Connection) -> None:
        """Move the watermarks to where rows are missing by now."""
        settled = self._settled(connection)
        for sets in (_FROM_NOTHING, ", ".join(_ADVANCES)):
            self._set_watermarks(connection, sets, settled)

    def _advance_vectors(self, connection: Connection) -> None:
        """Move the watermarks of embeddings that were written one by one."""
        advance = f"{_VECTORS_ADVANCE}, {_MESSAGE_VECTORS_ADVANCE}"
        self._set_watermarks(connection, advance, self._settled(connection))

    def _set_watermarks(self, connection: Connection, sets: str, settled: tuple[int, int]) -> None:
        bounds = zip(("settled", "settled_messages"), settled, strict=True)
        update = f"UPDATE namespace SET {sets} WHERE id = :namespace"  # noqa: S608 - ours
        connection.execute(update, {"namespace": self._namespace, **dict(bounds)})

    def frontier(self) -> Frontier:
        """Return the newest position and the newest row."""
        return self._frontier_of(self._db.known(FRONTIER, (self._namespace,)))

    def changes(self, since: Position, *, limit: int = 100_000) -> Changes:
        """Return what happened after `since`, in one consistent view."""
        with self._db.reading() as connection:
            found = connection.execute(FRONTIER, (self._namespace,)).fetchone()
            newest = self._frontier_of(found).position
            if since.epoch != newest.epoch:
                since = newest._replace(text=0, vector=0)
            key = self._namespace
            texts = connection.execute(_TEXTS, (key, since.text, limit)).fetchall()
            vectors = connection.execute(_VECTORS, (key, since.vector, limit)).fetchall()
            removed = self._column(connection, _TOMBSTONES, key, since.tombstone)
        reached = Position(
            newest.epoch,
            texts[-1][0] if len(texts) == limit else newest.text,
            vectors[-1][0] if len(vectors) == limit else newest.vector,
            newest.tombstone,
            newest.branch,
        )
        return self._changes(reached, texts, vectors, removed)

    def _changes(
        self, reached: Position, texts: Iterable[Any], vectors: Iterable[Any], removed: list[int]
    ) -> Changes:
        """Return what is sound of the rows of words and embeddings, each after its `seq`."""
        damaged: list[DamagedRow] = []
        sound = (
            sound_texts((values for _, *values in texts), damaged.append),
            [*sound_vectors((values for _, *values in vectors), damaged.append)],
        )
        self._tell_damage(damaged)
        return Changes(reached, *sound, removed)

    def _tell_damage(self, damaged: Sequence[DamagedRow]) -> None:
        if damaged:
            note_damage(self._db, self._namespace, damaged)

    def mend(self, *, everything: bool = False) -> int:
        """Forget what is derived and damaged where it can be made again: it is pending then."""
        asked = noted_damage(self._db)
        if not (asked or everything):
            return 0
        with self._db.reading() as connection:
            if everything:
                for checked in (WORDS, EMBEDDINGS):
                    asked += damaged_rows(connection, self._namespace, checked)
                asked += refused_rows(connection, self._namespace)
            rows = {
                table: self._mendable(connection, {one.row for one in asked if one.table == table})
                for table in DERIVED_TABLES
            }
            rows["embedding"] &= made_by_embedder(connection, [*rows["embedding"]])
        if not any(rows.values()):
            return 0
        with self._db.writing(synced=False, beside=DERIVED) as connection:
            if rows["step_text"]:
                self._recount(connection)
                connection.execute(_FRESH, (self._namespace, many(rows["step_text"])))
            for table in DERIVED_TABLES:
                delete = f"DELETE FROM {table} WHERE row IN (SELECT value FROM json_each(?))"  # noqa: S608 - ours
                connection.execute(delete, (many(rows[table]),))
            self._advance_anew(connection)
        forget_damage(self._db, [one for one in asked if one.row in rows[one.table]])
        return sum(map(len, rows.values()))

    def _mendable(self, connection: Connection, rows: Collection[int]) -> set[int]:
        """Return those rows of this namespace whose step, or message, is whole."""
        asked = many(row for row in rows if row < MESSAGE_ROWS)
        whole: set[int] = set()
        for row, *read in connection.execute(READ_STEPS, (self._namespace, asked)).fetchall():
            with suppress(DamagedFileError):
                self._decoded(row, *read)
                whole.add(row)
        messages = [row - MESSAGE_ROWS for row in rows if row >= MESSAGE_ROWS]
        return whole | {row + MESSAGE_ROWS for row in self._whole_messages(connection, messages)}

    def _recount(self, connection: Connection) -> None:
        """Have words counted from the first on, before some of them go that were not written so."""

    def _bounds(self, limit: int, after: int, through: int) -> dict[str, int]:
        return {"namespace": self._namespace, "limit": limit, "after": after, "through": through}

    def _message_bounds(self, limit: int, after: int, through: int) -> dict[str, int] | None:
        """Return the bounds among messages; None when none are asked for."""
        if limit < 1 or through < MESSAGE_ROWS:
            return None
        return self._bounds(limit, max(after - MESSAGE_ROWS, 0), through - MESSAGE_ROWS)

    def _asked_rows(self, connection: Connection, sql: str, asked: dict[str, int]) -> list[int]:
        return [row for (row,) in connection.execute(sql, asked)]

    def _calls_of(
        self, connection: Connection, steps: Mapping[int, AgentStep]
    ) -> dict[int, AgentStep]:
        """Return, by row, the ProgramCall around each step that needs it to be told."""
        asked = {row: s.program_id for row, s in steps.items() if may_repeat_a_call(s)}
        ids = sorted({step_id for step_id in asked.values() if step_id is not None})
        rows = self._rows_of(connection, ids) if ids else {}
        known = {row: step for row, step in steps.items() if row in {*rows.values()}}
        known |= self._steps(connection, {*rows.values()} - known.keys())
        return {
            row: known[rows[step_id]]
            for row, step_id in asked.items()
            if step_id in rows and same_owner(known[rows[step_id]], steps[row])
        }

    def _embedder(self, connection: Connection) -> str | None:
        sql = "SELECT embedder FROM namespace WHERE id = ?"
        found = connection.execute(sql, (self._namespace,)).fetchone()
        return found[0] if found else None

    def _frontier_of(self, found: Sequence[int] | None) -> Frontier:
        *position, row, message = found or (1, 0, 0, 0, 0, 0, 0)
        return Frontier(Position(*position), row, MESSAGE_ROWS + message if message else 0)

    def _parents(
        self,
        connection: Connection,
        links: Mapping[int, StepLink],
        links_of: Callable[[Collection[int]], Mapping[int, StepLink]],
        stored: Mapping[str, int] | None = None,
    ) -> dict[int, int]:
        """Return the parent's row of each row that has one: the named step, else the one before.

        A step of another user or scope is nobody's parent: its words are not for this one's window.
        """
        names = {row: link.parent_id for row, link in links.items() if link.parent_id is not None}
        if stored is None:
            stored = self._rows_of(connection, sorted({*names.values()}))
        named = {row: stored[name] for row, name in names.items() if stored.get(name, row) != row}
        owners = {row: link.owner for row, link in links.items()}
        others = links_of({*named.values()} - links.keys())
        owners.update((row, link.owner) for row, link in others.items())
        parents = {row: one for row, one in named.items() if owners[row] == owners.get(one)}
        nameless = {row: link for row, link in links.items() if row not in named}
        return parents | self._neighbours(connection, nameless, before=True)

    @abstractmethod
    def _neighbours(
        self, connection: Connection, links: Mapping[int, StepLink], *, before: bool
    ) -> dict[int, int]:
        """Return the step before, or after, each in its run, of its user and scope."""

    def _stored_links(self, connection: Connection, rows: Collection[int]) -> dict[int, StepLink]:
        if not rows:
            return {}
        found = connection.execute(_LINKS, (self._namespace, many(sorted(rows))))
        return {row: StepLink(*values) for row, *values in found}

    def _with_living_parents(
        self, connection: Connection, texts: Sequence[TextRow]
    ) -> list[TextRow]:
        shown = {int(text.parent_row) for text in texts if text.parent_row is not None}
        living: set[int | None] = {None}
        for sql, base in ((_LIVING, 0), (_LIVING_MESSAGES, MESSAGE_ROWS)):
            rows = sorted(row - base for row in shown if (row >= MESSAGE_ROWS) == (base > 0))
            if rows:
                living.update(self._column(connection, sql, self._namespace, many(rows)))
        return [text for text in texts if text.parent_row in living]

    def _stale(self, connection: Connection, saved: Sequence[int]) -> list[int]:
        """Return rows whose words show another parent than they have by now.

        Only a parent stored after its child can do that: earlier ones were there when the child's
        words were made. Looked at are children and followers stored before a saved row, and the
        saved rows themselves where words of later ones were saved meanwhile.
        """
        looked_at, links, last = self._around_saved(connection, saved)
        after = self._neighbours(connection, links, before=False)
        looked_at.update(follower for row, follower in after.items() if follower < row)
        if saved and last is not None and last > max(saved):
            looked_at.update(saved)
        if not looked_at:
            return []
        shown = dict(connection.execute(_INDEXED_PARENTS, (many(sorted(looked_at)),)))
        links_of = partial(self._stored_links, connection)
        parents = self._parents(connection, links_of(shown), links_of)
        return [row for row, parent in parents.items() if parent > row and shown[row] != parent]

    def _around_saved(
        self, connection: Connection, saved: Sequence[int]
    ) -> tuple[set[int], dict[int, StepLink], int | None]:
        """Return children stored before their parent was, links of saved rows, the last text."""
        asked = (self._namespace, many(saved))
        children = {*self._column(connection, _EARLIER_CHILDREN, *asked)}
        (last,) = connection.execute(_LAST_TEXT).fetchone()
        return children, self._stored_links(connection, saved), last

    def _steps(self, connection: Connection, rows: Collection[int]) -> dict[int, AgentStep]:
        if not rows:
            return {}
        asked = (self._namespace, many(sorted(rows)))
        return {
            row: self._sound(row, *read) for row, *read in connection.execute(READ_STEPS, asked)
        }

    def _sound(self, row: int, body: bytes | str, checksum: int | None) -> AgentStep:
        """Return the step in a row; for a damaged one a step without words.

        Else one damaged row that waits for its words would keep everybody from searching. Who reads
        the row itself is told.
        """
        try:
            return self._decoded(row, body, checksum)
        except DamagedFileError:
            return AgentStep(step_type=AgentStepType.Action)

    def _text_values(self, text: TextRow) -> tuple[int | str | bytes | None, ...]:
        parent = None if text.parent_row is None else int(text.parent_row)
        tokens = packed_words(text.tokens) if self._packs_words else text.tokens
        words = (tokens, int(text.text_hash), int(text.purpose_hash))
        checksum = words_checksum(int(text.row), parent, *words)
        return (parent, *words, checksum, self._namespace, int(text.row))

    def _vector_values(self, saved: VectorRow) -> tuple[int | bytes | None, ...]:
        key = (self._namespace, int(saved.row))
        vector, words = saved.vector, int(saved.text_hash)
        blob = None if vector is None else vector_blob(vector)
        checksum = vector_checksum(int(saved.row), words, 0, blob)
        return (None if vector is None else len(vector), words, blob, checksum, *key)


def _link(step: AgentStep) -> StepLink:
    """Return what the columns say of a step that says it itself."""
    parent, hop = step.parent_id, in_range(step.hop)
    parent_id = None if parent is None else str(parent)
    return StepLink(parent_id, step.run_id, hop, step.user_id, step.scope)
