"""A namespace as the target of a copy: one state of another, written in one transaction.

The copy is there whole or not at all: it is read back, and its counts and sums are compared with
those of its source, before it is committed. Words are derived, so they are handed on afterwards,
and what is not there of them a search makes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

from hybridagi_steps.errors import CopyDiffersError, CopyError
from hybridagi_steps.stores.checksums import row_checksum, vector_checksum
from hybridagi_steps.stores.sql.copied_rows import (
    MESSAGES,
    STEPS,
    CopiedTables,
    Named,
    NamedRow,
    Ordered,
    OrderedRow,
    Page,
    Sums,
    Values,
    written,
)
from hybridagi_steps.stores.sql.lineage import Row, row_checksums, take_number
from hybridagi_steps.stores.sql.tables import Connection

_NEW_VECTOR = """INSERT INTO embedding (namespace, row, checksum,
    dimension, text_hash, given, vector, scoped) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_NEW_BRANCH = """INSERT INTO branch (namespace, parent_id, fork_sequence, reason, created_at,
        session_id, reach, pointed, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"""
_CHANGED = """UPDATE namespace SET epoch = epoch + 1, revoked_through = coalesce(
    (SELECT row FROM agent_step WHERE namespace = ? AND id = ?), 0) WHERE id = ?"""


class CopyTables(CopiedTables):
    """A namespace that is copied, or becomes a copy."""

    _add_message: str
    """Inserts a message as `Row` has it, at the end."""

    @abstractmethod
    def _insert_bodies(self, connection: Connection, steps: Sequence[OrderedRow]) -> list[int]:
        """Insert steps as their bodies say, under new rows at the end; return these."""

    def take(self, source: CopyTables, there: Connection, advance: Callable[[int], None]) -> Sums:
        """Become a copy of a state of another namespace; return its counts and sums.

        Args:
            source: The other namespace.
            there: A snapshot of it.
            advance: Called with how many rows were written, or read back.

        Raises:
            CopyError: This namespace holds something.
            CopyDiffersError: What was written is not what was read. Nothing is kept of it.
        """
        with self._db.writing() as here:
            if any(page.rows for page in self.pages(here)):
                raise CopyError(
                    f"the namespace holds something in {self._db.name}; a copy goes into an empty "
                    "one: name another address, or clear it."
                )
            model_id, dimension = source.embedder_in(there)
            if model_id is not None:
                self._change_embedder(here, model_id, dimension)
            sums, copies = Sums(), dict[int, int]()
            for page in source.pages(there):
                sums.add(page)
                self._write_page(here, page, copies)
                advance(len(page.rows) if isinstance(page.table, Ordered) else 0)
            revoked = source.revoked_through(there)
            here.execute(_CHANGED, (self._namespace, revoked, self._namespace))
            self._compare(here, sums, copies, advance)
        with self._db.writing() as here:
            self._advance_vectors(here)
        self._catch_up()
        for table in (STEPS, MESSAGES):
            self._take_words(source, there, table)
        return sums

    def sums(self, connection: Connection) -> Sums:
        """Return the counts and sums of what is here."""
        found = Sums()
        for page in self.pages(connection):
            found.add(page)
        return found

    def clear_copied(self, sums: Sums) -> bool:
        """Delete everything of this namespace, if it is still what was copied; tell whether."""
        with self._db.writing() as connection:
            if sums.differing(self.sums(connection), derived=False):
                return False
            self._clear(connection)
        return True

    def _compare(
        self,
        here: Connection,
        sums: Sums,
        copies: Mapping[int, int],
        advance: Callable[[int], None],
    ) -> None:
        """Compare what stands here by now with the sums of the source."""
        found = Sums()
        for page in self.pages(here, {copy: branch for branch, copy in copies.items()}):
            found.add(page)
            advance(len(page.rows) if isinstance(page.table, Ordered) else 0)
        if counts := sums.differing(found):
            raise CopyDiffersError(
                f"what was written to {self._db.name} is not what was read: {', '.join(counts)}. "
                "Nothing of it was kept; ask again.",
                counts,
            )

    def _write_page(self, here: Connection, page: Page, copies: dict[int, int]) -> None:
        """Write rows of a source; `copies` are the branches here, by the source's."""
        if isinstance(page.table, Ordered):
            rows = self._write_ordered(here, page.table, page.rows, copies)
            vectors = [(rows[entry.id], page.vectors.get(entry.row)) for entry in page.rows]
            self._write_vectors(here, page.table, vectors)
        elif isinstance(page.table, Named):
            self._write_named(here, page.table, page.rows, copies)
        else:
            for branch, parent, *values in page.rows:
                sealed = (self._namespace, copies.get(parent), *values[:3])
                new = (*sealed, *values[3:], row_checksum(*sealed))
                copies[branch] = here.execute(_NEW_BRANCH, new).fetchone()[0]

    def _write_ordered(
        self,
        here: Connection,
        table: Ordered,
        page: Sequence[OrderedRow],
        copies: Mapping[int, int],
    ) -> dict[str, int]:
        """Write steps or messages at the end; return their rows by id."""
        new = [
            entry._replace(branch_id=entry.branch_id and copies[entry.branch_id]) for entry in page
        ]
        if table is STEPS:
            rows = self._insert_bodies(here, new)
            return {entry.id: row for entry, row in zip(new, rows, strict=True)}
        here.executemany(self._add_message, [self._message_values(entry) for entry in new])
        return self.rows_of_ids(here, table, [entry.id for entry in new])

    def _message_values(self, entry: OrderedRow) -> Values:
        branch, (said, body) = int(entry.branch_id or 0), entry.texts
        row = Row(int(entry.sequence or 0), entry.id, said.decode(), body.decode())
        return (self._namespace, branch, *row, *row_checksums(branch, row))

    def _write_vectors(
        self, here: Connection, table: Ordered, vectors: Sequence[tuple[int, Values | None]]
    ) -> None:
        values: list[Values] = []
        for row, vector in vectors:
            if vector is not None:
                at, (width, *of, scoped) = row + table.offset, vector
                checksum = vector_checksum(at, *of)
                values.append((self._namespace, at, checksum, width, *of, scoped))
        here.executemany(_NEW_VECTOR, values)

    def _write_named(
        self, here: Connection, named: Named, page: Sequence[NamedRow], copies: Mapping[int, int]
    ) -> None:
        rows: list[Values] = []
        for keys, values in page:
            own = list(values)
            if named.branch is not None:
                own[named.branch] = copies[own[named.branch]]
            row = (self._namespace, *keys, *own)
            rows.append((*row, named.checksum(*row)) if named.checksum else row)
        if not named.order:
            here.executemany(written(named), rows)
            return
        for row in rows:
            take_number(here)
            here.execute(written(named), row)

    def _take_words(self, source: CopyTables, there: Connection, table: Ordered) -> None:
        """Save the words that the source has; the rest a search makes."""
        after: int | None = 0
        while after is not None:
            page = source.words_after(there, table, after)
            with self._db.asking() as here:
                names = [name for each in page for name in each[1:3] if name is not None]
                rows = self.rows_of_ids(here, table, names)
            self.save_words(page, {name: row + table.offset for name, row in rows.items()})
            after = page[-1][0] if page else None
