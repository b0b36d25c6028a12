"""What a copy of a namespace consists of, as it is read to be written elsewhere and summed.

Numbers of rows and branches are a database's own, so rows are read by what both sides know: ids of
steps and messages, names of sessions, branches as the source numbers them. Every row is compared
with its checksum first. Words are handed on, not summed; keys and counts are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from zlib import crc32

from hybridagi_steps.records.store_values import MESSAGE_ROWS
from hybridagi_steps.stores.checked_tables import DamagedRow, is_given, pass_over, sound_texts
from hybridagi_steps.stores.checksums import (
    as_bytes,
    damaged,
    message_checksums,
    place_seed,
    row_checksum,
    session_checksum,
    vector_checksum,
)
from hybridagi_steps.stores.sql.admin import AdminTables
from hybridagi_steps.stores.sql.derived import DerivedTables, Words
from hybridagi_steps.stores.sql.tables import Connection, many

Values = tuple[Any, ...]
PAGE = 500
"""Rows that are compared and written at once."""
_EMBEDDINGS, _NO_ROWS = "embeddings of ", (0, 0)
_NO_BRANCH = -1
_ROWS = """SELECT row, id, branch_id, sequence, {table.checksums}, {table.texts}
    FROM {table.table}"""
_AFTER = "+namespace = ? AND row > ? ORDER BY row LIMIT ?"
_OF_IDS = """SELECT id, row FROM {table.table}
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_VECTORS = """SELECT row, dimension, text_hash, given, vector, scoped, checksum FROM embedding
    WHERE row IN (SELECT value FROM json_each(?))"""
# Words that show a step which is gone, or another than they should, are left to be made anew.
_WORDS = """SELECT o.row, o.id, p.id, t.checksum, t.row, t.parent_row, t.tokens, t.text_hash,
        t.purpose_hash, t.scoped
    FROM {table.table} o LEFT JOIN step_text t ON t.row = o.row + {table.offset}
        AND NOT EXISTS (SELECT 1 FROM stale_text s WHERE s.namespace = o.namespace
            AND s.row = t.row)
    LEFT JOIN {table.table} p ON p.row = t.parent_row - {table.offset}
    WHERE +o.namespace = ? AND o.row > ? ORDER BY o.row LIMIT ?"""
_BRANCHES = """SELECT id, parent_id, fork_sequence, reason, created_at, session_id, reach, pointed,
        checksum FROM branch WHERE namespace = ? ORDER BY id"""
_EMBEDDER = "SELECT embedder, dimension FROM namespace WHERE id = ?"
_REVOKED_THROUGH = """SELECT s.id FROM agent_step s JOIN namespace n ON n.id = s.namespace
    WHERE n.id = ? AND s.row <= n.revoked_through ORDER BY s.row DESC LIMIT 1"""
_NAMESPACES = """SELECT name FROM namespace n WHERE
    EXISTS (SELECT 1 FROM agent_step s WHERE s.namespace = n.id)
    OR EXISTS (SELECT 1 FROM branch b WHERE b.namespace = n.id)
    OR EXISTS (SELECT 1 FROM revocation r WHERE r.namespace = n.id) ORDER BY name"""
BRANCHES = "branches"
_SIZES = """SELECT (SELECT count(*) FROM agent_step WHERE namespace = ?),
    (SELECT count(*) FROM message WHERE namespace = ?)"""


class OrderedRow(NamedTuple):
    """A step or a message as it is copied."""

    row: int
    id: str
    branch_id: int | None
    """The branch in the source, also where it is read from the target."""
    sequence: int | None
    texts: tuple[bytes, ...]
    """The body; of a message what it says and the rest."""


class Ordered(NamedTuple):
    """A table whose rows stand in an order that users see."""

    what: str
    table: str
    texts: str
    checksums: str
    offset: int
    """What is added to a row to find its embedding."""


STEPS = Ordered("steps", "agent_step", "CAST(body AS BLOB)", "checksum", 0)
_SAID = "CAST(said AS BLOB), CAST(body AS BLOB)"
MESSAGES = Ordered("messages", "message", _SAID, "said_checksum, checksum", MESSAGE_ROWS)


class Named(NamedTuple):
    """A table whose rows have names of their own."""

    what: str
    table: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    checksum: Callable[..., int] | None = None
    """Of the namespace, keys and values; None: there is none, or it stands among the values."""
    order: tuple[str, ...] = ()
    """What the rows are ordered by, if users see that order; the first is a number that grows."""

    @property
    def branch(self) -> int | None:
        """Where a branch stands among the values."""
        return self.values.index("branch_id") if "branch_id" in self.values else None


class NamedRow(NamedTuple):
    """A row of such a table; branches are numbered as the source does it."""

    keys: Values
    values: Values


_LISTED = ("written", "updated_at")
_SESSION_VALUES = ("branch_id", "created_at", "updated_at", "forked_from", "forked_at", "user_id")
_REVOCATION_VALUES = ("filter", "reason", "created_at", "matched", "descended", "undone_at")
SESSIONS = Named("sessions", "session", ("id",), _SESSION_VALUES, session_checksum, _LISTED)
NAMED = (
    SESSIONS,
    Named("idempotency keys", "append_key", ("session_id", "key"), ("branch_id", "first", "last")),
    Named("scores of runs", "run", ("run_id",), ("score", "feedback"), row_checksum),
    Named("revocations", "revocation", ("id",), _REVOCATION_VALUES),
    Named("revoked steps", "revoked", ("step_id", "revocation"), ()),
    Named("prompts", "prompt", ("step_id",), ("body", "checksum")),
    Named("parts of prompts", "prompt_part", ("hash",), ("body",)),
    Named("uses of parts", "prompt_use", ("hash", "step_id"), ()),
)


class Page(NamedTuple):
    """Rows of one table, as every database numbers them."""

    table: Ordered | Named | str
    rows: Sequence[Any]
    vectors: Mapping[int, Values] = {}
    """Embeddings of steps or messages, by row."""


class Sums:
    """The count and the sum of the rows of each table; where users see an order, of that, too."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int]] = {}

    def add(self, page: Page) -> None:
        """Add the rows of a page."""
        for row in page.rows:
            match page.table:
                case Ordered(what=what):
                    self._follow(what, row[1:])
                    if (vector := page.vectors.get(row.row)) is not None:
                        self._follow(f"{_EMBEDDINGS}{what}", (row.id, vector))
                case Named(what=what, order=order):
                    entry = (row.keys, row.values)
                    self._follow(what, entry) if order else self._gather(what, entry)
                case str(what):
                    self._gather(what, row)

    def differing(self, other: Sums, *, derived: bool = True) -> dict[str, int]:
        """Return by table how many rows more or fewer the other has; 0 where other ones.

        Without `derived` embeddings are passed over, which whoever searches makes.
        """
        names = {*self._found, *other._found}
        return {
            name: abs(ours[0] - theirs[0])
            for name in sorted(names)
            if derived or not name.startswith(_EMBEDDINGS)
            for ours in (self._found.get(name, _NO_ROWS),)
            for theirs in (other._found.get(name, _NO_ROWS),)
            if ours != theirs
        }

    def count(self, name: str) -> int:
        """Return how many rows a table has."""
        return self._found.get(name, _NO_ROWS)[0]

    def _follow(self, name: str, row: Values) -> None:
        count, total = self._found.get(name, _NO_ROWS)
        self._found[name] = count + 1, hash((total, row))

    def _gather(self, name: str, row: Values) -> None:
        count, total = self._found.get(name, _NO_ROWS)
        self._found[name] = count + 1, total + hash(row)


def next_rows(named: Named) -> tuple[str, str]:
    """Return SQL for the first page of a table's rows, and for the page after some row.

    A row is its keys, its values, the checksum and what it is ordered by.
    """
    checksum = "checksum" if named.checksum else "NULL"
    order = (*named.order, *named.keys)
    columns = (*named.keys, *named.values, checksum, *named.order)
    after = f"({', '.join(order)}) > ({', '.join('?' * len(order))})"
    page = f"""SELECT {", ".join(columns)} FROM {named.table}
        WHERE namespace = ? AND {{}} ORDER BY {", ".join(order)} LIMIT ?"""  # noqa: S608 - names are ours
    return page.format("TRUE"), page.format(after)


def written(named: Named) -> str:
    """Return SQL that inserts a row."""
    columns = ["namespace", *named.keys, *named.values, *(["checksum"] if named.checksum else [])]
    places = ["?"] * len(columns)
    if named.order:
        columns.append(named.order[0])
        places.append("(SELECT number FROM next_write)")
    return f"INSERT INTO {named.table} ({', '.join(columns)}) VALUES ({', '.join(places)})"  # noqa: S608 - names are ours


class CopiedTables(AdminTables, DerivedTables):
    """A namespace as it is read to be compared."""

    def snapshot(self) -> AbstractContextManager[Connection]:
        """Give one state of the database, which what others write does not change."""
        return self._unhurried()

    def namespaces(self) -> list[str]:
        """Return the names of the namespaces that hold anything."""
        with self._db.asking() as connection:
            return self._column(connection, _NAMESPACES)

    def sizes(self, connection: Connection) -> tuple[int, int]:
        """Return how many steps and messages there are."""
        asked = (self._namespace, self._namespace)
        steps, messages = connection.execute(_SIZES, asked).fetchone()
        return steps, messages

    def pages(
        self, connection: Connection, originals: Mapping[int, int] | None = None
    ) -> Iterator[Page]:
        """Yield all that a copy has, a page at a time, messages before the steps pinned to them.

        `originals` are the numbers that the source of a copy gives its branches.
        """
        branches = self.branches(connection)
        names = {name: name for name in branches} if originals is None else originals
        rows = [(names.get(n), names.get(up), *rest) for n, (up, *rest) in branches.items()]
        yield Page(BRANCHES, rows)
        for table in (MESSAGES, STEPS):
            after = 0
            while rows := self._ordered_rows(connection, table, after, originals):
                after = rows[-1].row
                vectors = self._vectors(connection, table, [entry.row for entry in rows])
                yield Page(table, rows, vectors)
        for table in NAMED:
            for rows in self._named_rows(connection, table, originals):
                yield Page(table, rows)

    def embedder_in(self, connection: Connection) -> Values:
        """Return the embedder with its dimension; None for both when there is none."""
        return connection.execute(_EMBEDDER, (self._namespace,)).fetchone() or (None, None)

    def revoked_through(self, connection: Connection) -> str:
        """Return the last step that is known not to descend from a revoked one unmarked."""
        found = self._column(connection, _REVOKED_THROUGH, self._namespace)
        return found[0] if found else ""

    def branches(self, connection: Connection) -> dict[int, Values]:
        """Return the branches by their numbers, parents first.

        Of each the parent, where it forks, why, when, its session, its reach, whether pointed at.
        """
        found: dict[int, Values] = {}
        for branch, *values, checksum in connection.execute(_BRANCHES, (self._namespace,)):
            if checksum not in (None, row_checksum(self._namespace, *values[:4])):
                raise damaged(f"{self._db.name}: the branch {branch}")
            found[branch] = tuple(values)
        return found

    def rows_of_ids(
        self, connection: Connection, table: Ordered, ids: Sequence[str]
    ) -> dict[str, int]:
        """Return the rows of those that are there."""
        query = _OF_IDS.format(table=table)
        return dict(connection.execute(query, (self._namespace, many(ids))).fetchall())

    def _ordered_rows(
        self,
        connection: Connection,
        table: Ordered,
        after: int,
        originals: Mapping[int, int] | None,
    ) -> list[OrderedRow]:
        """Return the next steps or messages above a row."""
        query = f"{_ROWS.format(table=table)} WHERE {_AFTER}"
        sums = table.checksums.count(",") + 1
        found: list[OrderedRow] = []
        for row, name, branch, sequence, *rest in connection.execute(
            query, (self._namespace, after, PAGE)
        ):
            texts = tuple(map(as_bytes, rest[sums:]))
            made = (crc32(texts[0], self._namespace),)
            if table is MESSAGES:
                made = message_checksums(texts[0], texts[1], name, place_seed(branch, sequence))
            if any(kept not in (None, one) for kept, one in zip(rest[:sums], made, strict=True)):
                raise damaged(f"{self._db.name}: one of the {table.what}, {name!r},")
            if originals is not None and branch is not None:
                branch = originals.get(branch, _NO_BRANCH)
            found.append(OrderedRow(row, name, branch, sequence, texts))
        return found

    def _vectors(
        self, connection: Connection, table: Ordered, rows: Sequence[int]
    ) -> dict[int, Values]:
        """Return dimension, hash of the text, whether given, bytes and whether scoped, by row."""
        found, lost = dict[int, Values](), list[DamagedRow]()
        wanted = many([row + table.offset for row in rows])
        for row, width, words, given, blob, *rest in connection.execute(_VECTORS, (wanted,)):
            if rest[1] in (None, vector_checksum(row, words, given, blob)):
                found[row - table.offset] = (width, words, given, blob, bool(rest[0]))
            else:
                given = is_given(row, words, given, blob, rest[1])
                lost.append(DamagedRow("embedding", row, given))
        pass_over(self._db, self._namespace, lost)
        return found

    def words_after(self, connection: Connection, table: Ordered, row: int) -> list[Words]:
        """Return the next steps or messages above a row with their words, none of damaged ones."""
        found, asked = list[Words](), (self._namespace, row, PAGE)
        for values in connection.execute(_WORDS.format(table=table), asked):
            at, name, above, checksum, text_row, parent, *rest = values
            lost, text = list[DamagedRow](), None
            if text_row is not None and (parent is None) == (above is None):
                [text] = sound_texts([(checksum, text_row, parent, *rest)], lost.append)
            pass_over(self._db, self._namespace, lost)
            found.append((at, name, above, None if lost else text))
        return found

    def _named_rows(
        self, connection: Connection, named: Named, originals: Mapping[int, int] | None
    ) -> Iterator[list[NamedRow]]:
        """Yield pages of rows; `originals` as `pages` takes them."""
        (query, following), place = next_rows(named), named.branch
        keys, end = len(named.keys), len(named.keys) + len(named.values)
        after: Values = ()
        while rows := connection.execute(query, (self._namespace, *after, PAGE)).fetchall():
            page: list[NamedRow] = []
            for row in rows:
                checksum = named.checksum and named.checksum(self._namespace, *row[:end])
                if row[end] not in (None, checksum):
                    raise damaged(f"{self._db.name}: one of the {named.what}, {row[0]!r},")
                values = list(row[keys:end])
                if originals is not None and place is not None:
                    values[place] = originals.get(values[place], _NO_BRANCH)
                page.append(NamedRow(tuple(row[:keys]), tuple(values)))
            yield page
            query, after = following, (*rows[-1][end + 1 :], *page[-1].keys)
