"""What a copy of a namespace consists of, and how it is read to be compared with another.

Numbers of rows and branches are a database's own, so rows are read by what both sides know: ids of
steps and messages, names of sessions, branches as the source numbers them. Every row is compared
with its checksum first. Words are handed on, not compared; keys and counts are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from hybridagi_steps.records.store_values import MESSAGE_ROWS
from hybridagi_steps.stores.body import decode_body, encode_body
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
_NAMES_SHOWN = 3
_NO_BRANCH = -1
_ROWS = """SELECT row, id, branch_id, sequence, {table.checksums}, {table.texts}
    FROM {table.table}"""
_AFTER = "+namespace = ? AND row > ? ORDER BY row LIMIT ?"
_OF_IDS = "namespace = ? AND id IN (SELECT value FROM json_each(?))"
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
_NOTED = "SELECT key, value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY key"
_EMBEDDER = "SELECT embedder, dimension FROM namespace WHERE id = ?"
_REVOKED_THROUGH = """SELECT s.id FROM agent_step s JOIN namespace n ON n.id = s.namespace
    WHERE n.id = ? AND s.row <= n.revoked_through ORDER BY s.row DESC LIMIT 1"""
_NAMESPACES = """SELECT name FROM namespace n WHERE
    EXISTS (SELECT 1 FROM agent_step s WHERE s.namespace = n.id)
    OR EXISTS (SELECT 1 FROM branch b WHERE b.namespace = n.id)
    OR EXISTS (SELECT 1 FROM revocation r WHERE r.namespace = n.id) ORDER BY name"""
_SIZES = """SELECT (SELECT count(*) FROM agent_step WHERE namespace = :namespace),
    (SELECT count(*) FROM message WHERE namespace = :namespace),
    (SELECT count(*) FROM session WHERE namespace = :namespace)"""
_SUM = "(SELECT CAST(coalesce(sum(checksum), 0) AS BIGINT) FROM {} WHERE namespace = n.id)"
_STATE = f"""SELECT rows_gone, sessions_moved, branches_moved,
    (SELECT count(*) FROM agent_step WHERE namespace = n.id),
    (SELECT count(*) FROM message WHERE namespace = n.id),
    {_SUM.format("run")}, {_SUM.format("prompt")}, {_SUM.format("session")},
    (SELECT count(*) FROM append_key WHERE namespace = n.id),
    (SELECT count(*) FROM branch WHERE namespace = n.id) FROM namespace n WHERE n.id = ?"""  # noqa: S608 - names are ours


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
    number: str = ""
    """What the rows are ordered by, if users see that order."""

    @property
    def branch(self) -> int | None:
        """Where a branch stands among the values."""
        return self.values.index("branch_id") if "branch_id" in self.values else None


class NamedRow(NamedTuple):
    """A row of such a table; branches are numbered as the source does it."""

    keys: Values
    values: Values
    number: int


_SESSION_VALUES = ("branch_id", "created_at", "updated_at", "forked_from", "forked_at", "user_id")
_REVOCATION_VALUES = ("filter", "reason", "created_at", "matched", "descended", "undone_at")
SESSIONS = Named("sessions", "session", ("id",), _SESSION_VALUES, session_checksum, "written")
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


@dataclass
class Differences:
    """What a comparison found, by what it is; a few of each by name."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    names: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, what: str, found: Sequence[object]) -> None:
        """Count some, and keep the first names."""
        if found:
            self.counts[what] = self.counts.get(what, 0) + len(found)
            kept = self.names.setdefault(what, [])
            kept += map(str, found[: _NAMES_SHOWN - len(kept)])

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return "; ".join(
            f"{number:,} {what} ({', '.join(self.names[what])}{' …' * (number > _NAMES_SHOWN)})"
            for what, number in self.counts.items()
        )


class Plan(NamedTuple):
    """What a page of the target lacks."""

    rows: dict[str, int]
    """The rows of those that stay, by id."""
    missing: list[OrderedRow]
    stale: list[int]
    """Rows that must go, since they differ or stand before what they should follow."""
    changed: list[tuple[int, OrderedRow]]
    """Rows that stay, and what is to stand there."""


def stays(table: Ordered, old: OrderedRow, new: OrderedRow) -> bool:
    """Tell whether a row that is another by now was changed where it stands.

    Steps are, when they get a score, or go from the place of a message that is gone.
    """
    if table is not STEPS or new.branch_id not in (None, old.branch_id):
        return False
    if new.branch_id is not None and new.sequence != old.sequence:
        return False
    if old.texts == new.texts:
        return True
    before, after = (decode_body(each.texts[0]) for each in (old, new))
    before.score = after.score
    return encode_body(before) == encode_body(after)


def next_rows(named: Named) -> tuple[str, str]:
    """Return SQL for the first page of a table's rows, and for the page after some row.

    A row is its keys, its values, the checksum and the number.
    """
    checksum = "checksum" if named.checksum else "NULL"
    columns = (*named.keys, *named.values, checksum, named.number or "0")
    order = (named.number, *named.keys) if named.number else named.keys
    after = f"({', '.join(order)}) > ({', '.join('?' * len(order))})"
    page = f"""SELECT {", ".join(columns)} FROM {named.table}
        WHERE namespace = ? AND {{}} ORDER BY {", ".join(order)} LIMIT ?"""  # noqa: S608 - names are ours
    return page.format("TRUE"), page.format(after)


def written(named: Named) -> str:
    """Return SQL that inserts a row, or puts other values in the place of those it has."""
    changed = [*named.values, *(["checksum"] if named.checksum else [])]
    columns = ["namespace", *named.keys, *changed]
    places = ["?"] * len(columns)
    if named.number:
        changed.append(named.number)
        columns.append(named.number)
        places.append("(SELECT number FROM next_write)")
    updates = ", ".join(f"{name} = excluded.{name}" for name in changed)
    return f"""INSERT INTO {named.table} ({", ".join(columns)}) VALUES ({", ".join(places)})
        ON CONFLICT (namespace, {", ".join(named.keys)})
        DO {f"UPDATE SET {updates}" if updates else "NOTHING"}"""  # noqa: S608 - names are ours


def dropped(named: Named) -> str:
    """Return SQL that deletes a row."""
    keys = " AND ".join(f"{key} = ?" for key in named.keys)
    return f"DELETE FROM {named.table} WHERE namespace = ? AND {keys}"  # noqa: S608 - names are ours


class CopiedTables(AdminTables, DerivedTables):
    """A namespace as it is read to be compared."""

    def snapshot(self) -> AbstractContextManager[Connection]:
        """Give one state of the database, which what others write does not change."""
        return self._unhurried()

    def namespaces(self) -> list[str]:
        """Return the names of the namespaces that hold anything."""
        with self._db.asking() as connection:
            return self._column(connection, _NAMESPACES)

    def sizes(self, connection: Connection) -> tuple[int, int, int]:
        """Return how many steps, messages and sessions there are."""
        steps, messages, sessions = connection.execute(
            _SIZES, {"namespace": self._namespace}
        ).fetchone()
        return steps, messages, sessions

    def state(self, connection: Connection) -> list[int]:
        """Return numbers that are others as soon as somebody writes what a copy has, too."""
        return list(connection.execute(_STATE, (self._namespace,)).fetchone() or ())

    def state_now(self) -> list[int]:
        """Return the same of what is committed by now."""
        with self._db.asking() as connection:
            return self.state(connection)

    def noted(self, connection: Connection, begin: str) -> dict[str, str]:
        """Return what `meta` has under keys with this beginning, which is left out."""
        found = connection.execute(_NOTED, (len(begin), begin)).fetchall()
        return {key[len(begin) :]: value for key, value in found}

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

    def ids_after(self, connection: Connection, table: Ordered, row: int) -> list[tuple[int, str]]:
        """Return the next rows above one with their ids."""
        query = f"SELECT row, id FROM {table.table} WHERE {_AFTER}"  # noqa: S608 - names are ours
        return connection.execute(query, (self._namespace, row, PAGE)).fetchall()

    def rows_of_ids(
        self, connection: Connection, table: Ordered, ids: Sequence[str]
    ) -> dict[str, int]:
        """Return the rows of those that are there."""
        query = f"SELECT id, row FROM {table.table} WHERE {_OF_IDS}"  # noqa: S608 - names are ours
        return dict(connection.execute(query, (self._namespace, many(ids))).fetchall())

    def ordered_rows_after(
        self, connection: Connection, table: Ordered, row: int
    ) -> list[OrderedRow]:
        """Return the next steps or messages above a row."""
        return self._ordered_rows(connection, table, _AFTER, (row, PAGE), None)

    def ordered_rows_of(
        self,
        connection: Connection,
        table: Ordered,
        ids: Sequence[str],
        originals: Mapping[int, int],
    ) -> dict[str, OrderedRow]:
        """Return the steps or messages that are there, by id.

        `originals` are the numbers that the source of the copy gives its branches.
        """
        found = self._ordered_rows(connection, table, _OF_IDS, (many(ids),), originals)
        return {entry.id: entry for entry in found}

    def _ordered_rows(
        self,
        connection: Connection,
        table: Ordered,
        condition: str,
        asked: Values,
        originals: Mapping[int, int] | None,
    ) -> list[OrderedRow]:
        query = f"{_ROWS.format(table=table)} WHERE {condition}"
        sums = table.checksums.count(",") + 1
        found: list[OrderedRow] = []
        for row, name, branch, sequence, *rest in connection.execute(
            query, (self._namespace, *asked)
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

    def vectors(
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

    def named_rows(
        self, connection: Connection, named: Named, originals: Mapping[int, int] | None = None
    ) -> Iterator[list[NamedRow]]:
        """Yield pages of rows; `originals` as `ordered_rows_of` takes them."""
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
                page.append(NamedRow(tuple(row[:keys]), tuple(values), row[-1]))
            yield page
            last = page[-1]
            query, after = following, (last.number, *last.keys) if named.number else last.keys
