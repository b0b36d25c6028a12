"""A namespace as a copy of another: compared with its source, and brought to the same state.

Every page is a transaction of the target. Nothing is believed of an earlier run but what is found
there, and which branch a branch was copied from, which `meta` keeps: a copy that was killed is
continued by comparing all of it. Order is kept, since users see it: a row that stands before one
that it should follow is written anew, at the end. So does a step in the source that is replaced.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

import orjson

from hybridagi_steps.stores.body import decode_body
from hybridagi_steps.stores.checksums import row_checksum, vector_checksum
from hybridagi_steps.stores.sql.branches import forgetting_messages
from hybridagi_steps.stores.sql.copied_rows import (
    MESSAGES,
    NAMED,
    PAGE,
    STEPS,
    Differences,
    Named,
    NamedRow,
    Ordered,
    OrderedRow,
    Plan,
    Values,
    dropped,
    stays,
    written,
)
from hybridagi_steps.stores.sql.lineage import OPEN_END, Row, row_checksums, take_number
from hybridagi_steps.stores.sql.moved import MovedTables
from hybridagi_steps.stores.sql.tables import SOME, Connection, many

_NEW_VECTOR = """INSERT INTO embedding (namespace, row, checksum,
    dimension, text_hash, given, vector, scoped) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_DROP_VECTORS = "DELETE FROM embedding WHERE row IN (SELECT value FROM json_each(?))"
_DROP_MESSAGES = forgetting_messages(f"row {SOME}")
_NEW_BRANCH = """INSERT INTO branch (namespace, parent_id, fork_sequence, reason, created_at,
        session_id, reach, pointed, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"""
_CHANGE_BRANCH = "UPDATE branch SET session_id = ?, reach = ?, pointed = ? WHERE id = ?"
_DROP_BRANCHES = "DELETE FROM branch WHERE id IN (SELECT value FROM json_each(?))"
_CHANGED = """UPDATE namespace SET epoch = epoch + 1, revoked_through = coalesce(
    (SELECT row FROM agent_step WHERE namespace = ? AND id = ?), 0) WHERE id = ?"""


@dataclass
class Comparison:
    """A comparison under way, in one state of the source."""

    source: CopyTables
    there: Connection
    repairs: bool
    advance: Callable[[int], None]
    """Called with how many rows were compared since the last time."""
    unfinished: bool = False
    """Whether an earlier call may have ended before it closed what it wrote."""
    fresh: dict[Ordered, int] = field(default_factory=dict[Ordered, int])
    """Above which row of the source all stands that was written to the target."""
    found: Differences = field(default_factory=Differences)
    removed: int = 0
    """Rows of the target that the source has not."""
    copies: dict[int, int] = field(default_factory=dict[int, int])
    """The target's branches, by the source's."""
    originals: dict[int, int] = field(default_factory=dict[int, int])
    """The source's branches, by the target's."""


class CopyTables(MovedTables):
    """A namespace that is copied, or is a copy."""

    _add_message: str
    """Inserts a message as `Row` has it, at the end."""

    @abstractmethod
    def _insert_bodies(self, connection: Connection, steps: Sequence[OrderedRow]) -> list[int]:
        """Insert steps as their bodies say, under new rows at the end; return these."""

    def copy_note(self, name: str) -> str | None:
        """Return what was noted of this copy under a name."""
        with self._db.asking() as connection:
            return self._noted(connection, self._copy_key(name))

    def note_copy(self, name: str, value: str | None) -> None:
        """Note something of this copy, durably; None: no longer."""
        with self._db.writing(synced=True) as connection:
            self._note(connection, self._copy_key(name), value)

    def _copy_key(self, name: str) -> str:
        return f"copy:{self._namespace}:{name}"

    def compare(self, asked: Comparison) -> Comparison:
        """Compare with a source; where that is asked, be as it is afterwards."""
        self._match_embedder(asked)
        self._match_branches(asked)
        for table in (STEPS, MESSAGES):
            self._drop_extra(asked, table)
        for table in (MESSAGES, STEPS):
            self._match_ordered(asked, table)
        for named in NAMED:
            self._match_named(asked, named)
        self._drop_branches(asked)
        if asked.repairs and (asked.found or asked.unfinished):
            revoked = asked.source.revoked_through(asked.there)
            with self._db.writing(synced=False) as here:
                here.execute(_CHANGED, (self._namespace, revoked, self._namespace))
                self._advance_vectors(here)
            self._catch_up()
            for table in (STEPS, MESSAGES):
                self._take_words(asked, table)
        return asked

    def _match_embedder(self, asked: Comparison) -> None:
        wanted = asked.source.embedder_in(asked.there)
        if wanted[0] is not None and self.identity()[1:] != tuple(wanted):
            asked.found.add("embedders", [wanted[0]])
            if asked.repairs:
                self.set_embedder(*wanted)

    def _match_branches(self, asked: Comparison) -> None:
        """Find or make the copies of all branches; a branch comes after its parent."""
        with self._db.reading() as here:
            known = self.branches(here)
            for text in self.noted(here, f"copy:{self._namespace}:branches:").values():
                made: dict[str, int] = orjson.loads(text)
                asked.copies |= {int(name): copy for name, copy in made.items() if copy in known}
        copies = asked.copies
        wrong = [
            (branch, values)
            for branch, values in asked.source.branches(asked.there).items()
            if known.get(copies.get(branch, 0)) != (copies.get(values[0]), *values[1:])
        ]
        asked.found.add("branches", [branch for branch, _ in wrong])
        for start in range(0, len(wrong) if asked.repairs else 0, PAGE):
            with self._db.writing(synced=False) as here:
                self._write_branches(here, asked, wrong[start : start + PAGE])
        asked.originals |= {copy: branch for branch, copy in copies.items()}

    def _write_branches(
        self, here: Connection, asked: Comparison, page: Sequence[tuple[int, Values]]
    ) -> None:
        made: dict[str, int] = {}
        for branch, values in page:
            if branch in asked.copies:
                here.execute(_CHANGE_BRANCH, (*values[4:], asked.copies[branch]))
                continue
            sealed = (self._namespace, asked.copies.get(values[0]), *values[1:4])
            new = (*sealed, *values[4:], row_checksum(*sealed))
            made[str(branch)] = here.execute(_NEW_BRANCH, new).fetchone()[0]
            asked.copies[branch] = made[str(branch)]
        if made:
            name = self._copy_key(f"branches:{min(map(int, made)):020}")
            self._note(here, name, orjson.dumps(made).decode())

    def _drop_branches(self, asked: Comparison) -> None:
        originals = asked.source.branches(asked.there)
        kept = {copied for branch, copied in asked.copies.items() if branch in originals}
        with self._db.reading() as here:
            extra = {copied: copied for copied in self.branches(here) if copied not in kept}
        self._remove_extra(
            asked, "branches", extra, lambda here, rows: here.execute(_DROP_BRANCHES, (many(rows),))
        )

    def _remove_extra(
        self,
        asked: Comparison,
        what: str,
        extra: Mapping[Any, Any],
        drop: Callable[[Connection, list[Any]], object],
    ) -> None:
        """Remove what the source has not, and note that the space it took must be given back."""
        asked.found.add(f"{what} too many", [*extra])
        if extra and asked.repairs:
            asked.removed += len(extra)
            with self._db.writing(synced=False) as here:
                self._note(here, self._copy_key("removed"), "1")
                drop(here, [*extra.values()])

    def _drop_extra(self, asked: Comparison, table: Ordered) -> None:
        """Remove the rows of the target that are not in the source."""
        page: list[tuple[int, str]] = [(0, "")]
        while page:
            with self._db.asking() as here:
                page = self.ids_after(here, table, page[-1][0])
            there = asked.source.rows_of_ids(asked.there, table, [name for _, name in page])
            extra = {name: row for row, name in page if name not in there}
            self._remove_extra(asked, table.what, extra, partial(self._drop_rows, table=table))

    def _drop_rows(self, here: Connection, rows: list[int], table: Ordered) -> None:
        if table is STEPS:
            self._forget(here, rows)
        else:
            for statement in _DROP_MESSAGES:
                here.execute(statement, (many(rows),))

    def _match_ordered(self, asked: Comparison, table: Ordered) -> None:
        """Compare steps or messages with their embeddings, a page at a time, in their order."""
        source, after, last = asked.source, 0, 0
        while page := source.ordered_rows_after(asked.there, table, after):
            before, after = after, page[-1].row
            vectors = source.vectors(asked.there, table, [entry.row for entry in page])
            with self._db.reading() as here:
                plan = self._planned(here, asked, table, page, last)
                wrong = self._wrong_vectors(here, table, page, vectors, plan.rows)
            rows = plan.rows
            names = [entry.id for entry in (*plan.missing, *(entry for _, entry in plan.changed))]
            asked.found.add(table.what, names)
            asked.found.add(f"embeddings of {table.what}", [*wrong])
            if asked.repairs and (names or wrong):
                asked.fresh.setdefault(table, 0 if asked.unfinished else before)
                with self._db.writing(synced=False) as here:
                    plan = self._planned(here, asked, table, page, last)
                    rows = plan.rows | self._carried_out(here, asked, table, plan)
                    wrong = self._wrong_vectors(here, table, page, vectors, rows)
                    self._write_vectors(here, table, wrong.values())
            last = max(rows.values(), default=last)
            asked.advance(len(page))

    def _planned(
        self,
        here: Connection,
        asked: Comparison,
        table: Ordered,
        page: Sequence[OrderedRow],
        last: int,
    ) -> Plan:
        """Say what must be done so that a page stands in the target, behind the row `last`."""
        known = self.ordered_rows_of(here, table, [entry.id for entry in page], asked.originals)
        plan = Plan({}, [], [], [])
        for entry in page:
            old = known.get(entry.id)
            same = old is not None and old[2:] == entry[2:]
            if old is not None and old.row > last and (same or stays(table, old, entry)):
                plan.rows[entry.id] = last = old.row
                if not same:
                    plan.changed.append((old.row, entry))
                continue
            plan.missing.append(entry)
            if old is not None:
                plan.stale.append(old.row)
            if asked.repairs:
                last = OPEN_END  # it goes to the end, so all that follow it must, too
        return plan

    def _carried_out(
        self, here: Connection, asked: Comparison, table: Ordered, plan: Plan
    ) -> dict[str, int]:
        """Write what a page lacks; return the new rows by id."""
        if plan.stale:
            self._drop_rows(here, plan.stale, table)
        for row, entry in plan.changed:
            self._change_step(here, row, entry)
        new = [
            each._replace(branch_id=each.branch_id and asked.copies[each.branch_id])
            for each in plan.missing
        ]
        if not new:
            return {}
        if table is STEPS:
            rows = self._insert_bodies(here, new)
            return {entry.id: row for entry, row in zip(new, rows, strict=True)}
        here.executemany(self._add_message, [self._message_values(entry) for entry in new])
        return self.rows_of_ids(here, table, [entry.id for entry in new])

    def _message_values(self, entry: OrderedRow) -> Values:
        branch, (said, body) = int(entry.branch_id or 0), entry.texts
        row = Row(int(entry.sequence or 0), entry.id, said.decode(), body.decode())
        return (self._namespace, branch, *row, *row_checksums(branch, row))

    def _change_step(self, here: Connection, row: int, entry: OrderedRow) -> None:
        body = entry.texts[0]
        score = decode_body(body).score
        self._write_score(here, row, (body.decode(), crc32(body, self._namespace)), score)
        for statement in self._unpin_rows if entry.branch_id is None else ():
            here.execute(statement, {"namespace": self._namespace, "rows": many([row])})

    def _wrong_vectors(
        self,
        here: Connection,
        table: Ordered,
        page: Sequence[OrderedRow],
        vectors: Mapping[int, Values],
        rows: Mapping[str, int],
    ) -> dict[str, tuple[int, Values]]:
        """Return by id where an embedding is missing or another, and which should be there."""
        stored = self.vectors(here, table, [*rows.values()])
        wanted = {entry.id: vectors[entry.row] for entry in page if entry.row in vectors}
        return {
            name: (rows[name], vector)
            for name, vector in wanted.items()
            if name in rows and stored.get(rows[name]) != vector
        }

    def _write_vectors(
        self, here: Connection, table: Ordered, wanted: Iterable[tuple[int, Values]]
    ) -> None:
        values = [
            (self._namespace, at, vector_checksum(at, *of), width, *of, scoped)
            for row, (width, *of, scoped) in wanted
            for at in (row + table.offset,)
        ]
        here.execute(_DROP_VECTORS, (many([each[1] for each in values]),))
        here.executemany(_NEW_VECTOR, values)

    def _take_words(self, asked: Comparison, table: Ordered) -> None:
        """Save the words that the source has of rows that have none; the rest a search makes."""
        after = asked.fresh.get(table, 0 if asked.unfinished else None)
        while after is not None:
            page = asked.source.words_after(asked.there, table, after)
            with self._db.asking() as here:
                names = [name for each in page for name in each[1:3] if name is not None]
                rows = self.rows_of_ids(here, table, names)
            self.save_words(page, {name: row + table.offset for name, row in rows.items()})
            after = page[-1][0] if page else None

    def _match_named(self, asked: Comparison, named: Named) -> None:
        """Compare a table by its names; of the target's values only hashes are held."""
        with self._db.reading() as here:
            stored = {
                row.keys: (hash(row.values), row.number)
                for page in self.named_rows(here, named, asked.originals)
                for row in page
            }
        last = -1
        for page in asked.source.named_rows(asked.there, named):
            fresh: list[NamedRow] = []
            for row in page:
                known, number = stored.pop(row.keys, (None, 0))
                if known == hash(row.values) and (number > last or not named.number):
                    last = number
                    continue
                fresh.append(row)
                if asked.repairs:
                    last = OPEN_END  # it gets the next number, so all that follow it must, too
            asked.found.add(named.what, [row.keys[0] for row in fresh])
            if fresh and asked.repairs:
                with self._db.writing(synced=False) as here:
                    self._write_named(here, asked, named, fresh)
        self._remove_extra(
            asked,
            named.what,
            {"/".join(key): (self._namespace, *key) for key in stored},
            lambda here, keys: here.executemany(dropped(named), keys),
        )

    def _write_named(
        self, here: Connection, asked: Comparison, named: Named, fresh: Sequence[NamedRow]
    ) -> None:
        rows: list[Values] = []
        for keys, values, _ in fresh:
            own = list(values)
            if named.branch is not None:
                own[named.branch] = asked.copies[own[named.branch]]
            row = (self._namespace, *keys, *own)
            rows.append((*row, named.checksum(*row)) if named.checksum else row)
        if not named.number:
            here.executemany(written(named), rows)
            return
        for row in rows:
            take_number(here)
            here.execute(written(named), row)
