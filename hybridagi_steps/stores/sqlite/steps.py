"""Steps in SQLite: how they are inserted, and what else SQLite says in its own way.

An append of one step is one INSERT in a transaction of its own: one row, one index entry. Rows are
numbered by hand, above every row ever used, because AUTOINCREMENT would write one more page per
append.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, count, islice
from typing import Any
from zlib import crc32

import numpy as np
import orjson

from hybridagi_steps.errors import DuplicateStepError, StorageError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filter_fields import Plain, StepKey
from hybridagi_steps.records.provenance import CHAT_FORMATS
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    BranchPosition,
    Rows,
    line_of,
)
from hybridagi_steps.stores.body import checked_body
from hybridagi_steps.stores.checksums import damaged
from hybridagi_steps.stores.sql.copied_rows import OrderedRow
from hybridagi_steps.stores.sql.lineage import OPEN_END, TAKE_NUMBER, Row, row_checksums
from hybridagi_steps.stores.sql.session_commits import session_state_query
from hybridagi_steps.stores.sql.tables import (
    FORGET_NAMESPACE,
    SOME,
    Connection,
    Tables,
    is_storable,
    many,
    namespace_id,
    runs_of,
)
from hybridagi_steps.stores.sql.where import Condition, key_columns, scalar_kind
from hybridagi_steps.stores.sql.writing import NOWHERE, StepWriting
from hybridagi_steps.stores.sqlite.database import Database
from hybridagi_steps.stores.sqlite.in_memory import InMemoryDatabase

KEYS_PER_TRANSACTION = 5_000
"""Keys written at once: about 60 ms of write lock."""
_LONGEST_TAIL = 64
"""Steps without keys that a read puts up with: less than 1 ms. With 256 an append and a find of a
run took 1.4 times as long together."""

_TAIL = """SELECT last.row - keys_through, last.row
    FROM namespace, (SELECT coalesce(max(row), 0) AS row FROM agent_step) last WHERE id = ?"""
_WRITE_KEYS = """INSERT INTO step_key
    SELECT namespace, row, parent_id, run_id, hop, session_id, user_id, program_id, program, tool,
           step_type, scope, status, score, created_at, metadata, branch_id
    FROM step_tail WHERE namespace = ? AND row <= ?"""


class SqliteTables(Tables):
    """A file seen from one namespace."""

    def __init__(self, database: Database | InMemoryDatabase, namespace: str) -> None:
        self._database = database
        self._namespace = namespace_id(database, namespace)

    @property
    def _db(self) -> Database | InMemoryDatabase:
        return self._database

    def _catch_up(self) -> None:
        """Write the keys of new steps when there are many and nobody else writes."""
        if not self._db.writable:
            return
        long = self._tail(self._db.known(_TAIL, (self._namespace,)))[0] > _LONGEST_TAIL
        while long:
            try:
                with self._db.patience.at_most(0), self._db.writing() as connection:
                    long = self._write_keys(connection)
            except StorageError:
                return  # the tail answers as well, only slower; a damaged file says so on reading

    def _keep_up(self, connection: Connection) -> None:
        """Write all keys that are missing."""
        while self._write_keys(connection):
            continue

    def _write_keys(self, connection: Connection) -> bool:
        """Write one batch of keys inside a transaction; return whether more are left."""
        length, last = self._tail(connection.execute(_TAIL, (self._namespace,)).fetchone())
        through = last - max(length - KEYS_PER_TRANSACTION, 0)
        connection.execute(_WRITE_KEYS, (self._namespace, through))
        update = "UPDATE namespace SET keys_through = ? WHERE id = ?"
        connection.execute(update, (through, self._namespace))
        return through < last

    def _tail(self, found: Any) -> tuple[int, int]:
        """Return how many rows have no keys, and the last row of all."""
        if found is None or found[0] is None:
            raise damaged(f"{self._db.name}: namespace {self._namespace}", "it is not there")
        return int(found[0]), int(found[1])


_METADATA = """EXISTS (
    SELECT 1 FROM json_each(k.metadata) m WHERE m.key = ? AND ({}))"""
_KINDS = {
    "null": "m.type = 'null'",
    "true": "m.type = 'true'",
    "false": "m.type = 'false'",
    "number": f"m.type IN ('integer', 'real') AND m.atom {SOME}",
    "text": f"m.type = 'text' AND m.atom {SOME}",
}

SOURCE = f"""CASE WHEN json_type(k.metadata, '$.source.kind') = 'text' THEN coalesce(
        CASE WHEN json_type(k.metadata, '$.source.name') = 'text'
             THEN nullif(json_extract(k.metadata, '$.source.name'), '') END,
        json_extract(k.metadata, '$.source.kind'))
    WHEN json_extract(k.metadata, '$.format') IN ({", ".join(map(repr, CHAT_FORMATS))})
    THEN json_extract(k.metadata, '$.format') END"""
"""Where a step comes from, as `source_of` says."""
RECALLED = """CASE WHEN instr(k.metadata, '"recalled"')
    THEN json_extract(k.metadata, '$.recalled') END"""
"""What a step recalled."""
_IN_BODY = """(SELECT CASE WHEN instr(s.body, '"{key}":"')
        AND json_type(s.body, '$.{key}') = 'text' THEN json_extract(s.body, '$.{key}') END
    FROM agent_step s WHERE s.row = k.row)"""
_CALL_ID = """CASE WHEN k.step_type = 'ProgramCall'
    THEN (SELECT s.id FROM agent_step s WHERE s.row = k.row) END"""
_COLUMNS = key_columns(_IN_BODY, source=SOURCE, call_id=_CALL_ID)


_MOST_TERMS = 100
"""SQLite takes 1,000 nested conditions, and 32,766 parameters."""
_ALL_OF_METADATA = """NOT EXISTS (SELECT 1 FROM json_each(?) w WHERE NOT EXISTS (
    SELECT 1 FROM json_each(k.metadata) m JOIN json_each(w.value, '$[1]') v
    WHERE m.key = w.value ->> 0 AND CASE v.value ->> 0
        WHEN 'number' THEN m.type IN ('integer', 'real') AND m.atom = v.value ->> 1
        WHEN 'text' THEN m.type = 'text' AND m.atom = v.value ->> 1
        ELSE m.type = v.value ->> 0 END))"""


def of_metadata(metadata: Mapping[str, Sequence[Plain]]) -> Iterator[Condition]:
    """Yield the conditions that metadata keys have values: one a key, or one for many."""
    asked = [
        (key, [each for each in map(scalar_kind, values) if is_storable(str(each[1]))])
        for key, values in metadata.items()
    ]
    if not all(values and is_storable(key) for key, values in asked):
        yield "FALSE", []
    elif len(asked) > _MOST_TERMS:
        yield _ALL_OF_METADATA, [many(asked)]
    else:
        for key, values in asked:
            kinds = {name: [value for kind, value in values if kind == name] for name, _ in values}
            sql = " OR ".join(_KINDS[kind] for kind in kinds)
            compared = [many(each) for each in kinds.values() if each[0] is not None]
            yield _METADATA.format(sql), [key, *compared]


def keys_query(names: Sequence[StepKey]) -> str:
    """Return SQL for the next rows of a namespace above one: a JSON list of each column.

    A list is read several times as fast as so many rows.
    """
    asked = ", ".join(["k.row AS row", *(f"{_COLUMNS[name]} AS {name}" for name in names)])
    lists = ", ".join(f"json_group_array({name})" for name in ("row", *names))
    return f"""SELECT {lists} FROM (SELECT {asked}
        FROM step_view k WHERE k.namespace = ? AND k.row > ? ORDER BY k.row LIMIT ?)"""  # noqa: S608 - columns are ours


_COMPARABLE = """SELECT k.row, m.type, m.value FROM step_view k, json_each(k.metadata) m
    WHERE {} AND m.key = ? AND m.type IN ('integer', 'real', 'text', ?)"""


_NEXT_ROW = """max(coalesce((SELECT max(row) FROM agent_step), 0),
    (SELECT value FROM meta WHERE key = 'row_floor')) + 1"""
_INSERT = f"""INSERT INTO agent_step (row, namespace, id, body, checksum)
    VALUES ({_NEXT_ROW}, ?, ?, ?, ?)"""  # noqa: S608 - no value in it
# A step recorded into a session that has messages works towards its next one. Both values are
# looked up by themselves: joined, they made the INSERT take 9 µs more.
_INSERT_IN_SESSION = f"""INSERT INTO agent_step
    (row, namespace, id, body, checksum, branch_id, sequence)
    VALUES ({_NEXT_ROW}, ?1, ?2, ?3, ?4,
        (SELECT branch_id FROM session WHERE namespace = ?1 AND id = ?5),
        (SELECT 1 + coalesce(
                (SELECT max(sequence) FROM message WHERE branch_id = b.id), b.fork_sequence)
            FROM session s JOIN branch b ON b.id = s.branch_id
            WHERE s.namespace = ?1 AND s.id = ?5))"""  # noqa: S608 - no value in it
# Several steps in one transaction: what those look up for each is looked up once.
_FIRST_ROW = f"SELECT {_NEXT_ROW}"
_PART = 20
"""Steps of a batch that one statement inserts: a tenth less CPU than one by one."""
_FEW = 8
"""Steps that one statement inserts, their rows numbered by itself: those of a turn."""
_INSERT_MESSAGE = """INSERT INTO message
    (row, namespace, branch_id, sequence, id, said, body, said_checksum, checksum)
    VALUES ((SELECT number FROM next_write), ?, ?, ?, ?, ?, ?, ?, ?)"""
_RUNS = """SELECT run_id FROM (
        SELECT run_id, min(row) AS row FROM step_key
        WHERE namespace = :namespace AND run_id IS NOT NULL GROUP BY run_id
        UNION ALL
        SELECT run_id, row FROM step_tail WHERE namespace = :namespace AND run_id IS NOT NULL)
    GROUP BY run_id ORDER BY min(row) DESC LIMIT :limit OFFSET :offset"""
_SAVE_TEXT = """INSERT OR REPLACE INTO step_text
    (namespace, row, parent_row, tokens, text_hash, purpose_hash, checksum, scoped)
    SELECT s.namespace, s.row, ?, ?, ?, ?, ?, json_extract(s.body, '$.scope') IS NOT NULL
    FROM step_json s WHERE +s.namespace = ? AND s.row = ?"""
_SAVE_VECTOR = """INSERT OR IGNORE INTO embedding
    (namespace, row, dimension, text_hash, given, vector, checksum, scoped)
    SELECT s.namespace, s.row, ?, ?, 0, ?, ?, json_extract(s.body, '$.scope') IS NOT NULL
    FROM step_json s WHERE +s.namespace = ? AND s.row = ?"""
_SAVE_MESSAGE_TEXT = f"""INSERT OR REPLACE INTO step_text
    (namespace, row, parent_row, tokens, text_hash, purpose_hash, checksum, scoped)
    SELECT m.namespace, m.row + {MESSAGE_ROWS}, ?, ?, ?, ?, ?, 0
    FROM message m WHERE +m.namespace = ? AND m.row = ? - {MESSAGE_ROWS}"""  # noqa: S608 - no value in it
_SAVE_MESSAGE_VECTOR = f"""INSERT OR IGNORE INTO embedding
    (namespace, row, dimension, text_hash, given, vector, checksum, scoped)
    SELECT m.namespace, m.row + {MESSAGE_ROWS}, ?, ?, 0, ?, ?, 0
    FROM message m WHERE +m.namespace = ? AND m.row = ? - {MESSAGE_ROWS}"""  # noqa: S608 - no value in it
_GONE = "row IN (SELECT value FROM json_each(:rows))"
_RAISE_FLOOR = """UPDATE meta SET value = max(value, coalesce(
    (SELECT max(row) FROM agent_step), 0)) WHERE key = 'row_floor'"""
_FORGET_ROWS = (
    _RAISE_FLOOR,
    "INSERT INTO tombstone (namespace, row) SELECT :namespace, value FROM json_each(:rows)",
    f"DELETE FROM step_text WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM embedding WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM stale_text WHERE namespace = :namespace AND {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM step_key WHERE namespace = :namespace AND {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM agent_step WHERE {_GONE}",  # noqa: S608 - no value in it
)
_FORGET_ALL = (
    _RAISE_FLOOR,
    TAKE_NUMBER,
    "DELETE FROM step_key WHERE namespace = :namespace",
    "UPDATE namespace SET keys_through = 0 WHERE id = :namespace",
    *FORGET_NAMESPACE,
)
_BY_CHILDREN = """SELECT t.row FROM agent_step s
    JOIN step_key k ON k.namespace = s.namespace AND k.parent_id = s.id
    JOIN step_text t ON t.row = k.row AND t.parent_row = s.row
    WHERE +s.namespace = :namespace AND s.row IN (SELECT value FROM json_each(:rows))"""
_IN_RUNS = """SELECT t.row FROM step_key k JOIN step_text t ON t.row = k.row
    WHERE k.namespace = :namespace AND k.run_id IN (SELECT value FROM json_each(:runs))
        AND t.parent_row IN (SELECT value FROM json_each(:rows))"""
_EMPTY = """INSERT OR REPLACE INTO step_text
    (namespace, row, parent_row, tokens, text_hash, purpose_hash, scoped)
    SELECT namespace, row, NULL, '', text_hash, purpose_hash, scoped FROM step_text
    WHERE row IN (SELECT value FROM json_each(?))"""
LEFTOVERS = f"""SELECT t.row FROM step_text t WHERE t.parent_row IS NOT NULL
    AND t.row < {MESSAGE_ROWS} AND NOT EXISTS (
    SELECT 1 FROM step_key k JOIN step_key p ON p.namespace = k.namespace
    WHERE k.namespace = t.namespace AND k.row = t.row AND p.row = t.parent_row
        AND p.user_id IS k.user_id AND p.scope IS k.scope)"""  # noqa: S608 - no value in it
"""Rows that show words they must not, in any namespace; files of older versions may have some."""


def _insert_many(
    connection: Connection, values: Iterator[tuple[Any, ...]], *, placed: bool = True
) -> None:
    """Insert rows of agent_step: row, namespace, id, body, checksum, and where `placed` that."""
    while len(part := [*islice(values, _PART)]) == _PART:
        connection.execute(_insert_at(_PART, placed=placed), [*chain(*part)])
    connection.executemany(_insert_at(1, placed=placed), part)


@cache
def _insert_at(steps: int, *, placed: bool) -> str:
    # sqlite3 looks for an adapter of each None: two of them would take a sixth of an INSERT.
    more, marks = (", branch_id, sequence", ", ?, ?") if placed else ("", "")
    rows = ", ".join([f"(?, ?, ?, ?, ?{marks})"] * steps)
    return f"INSERT INTO agent_step (row, namespace, id, body, checksum{more}) VALUES {rows}"  # noqa: S608 - no value in it


@cache
def _insert_few(steps: int) -> str:
    """Return SQL that inserts so many steps in their order, and returns their rows."""
    places = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * steps)
    return f"""WITH next(row) AS MATERIALIZED (SELECT {_NEXT_ROW}),
        given(place, namespace, id, body, checksum, branch_id, sequence) AS (VALUES {places})
        INSERT INTO agent_step (row, namespace, id, body, checksum, branch_id, sequence)
        SELECT next.row + place, namespace, id, body, checksum, branch_id, sequence
        FROM next, given RETURNING row"""  # noqa: S608 - no value in it


class SqliteSteps(SqliteTables, StepWriting):
    """What SQLite says about steps and messages in its own way."""

    _runs, _of_metadata = _RUNS, staticmethod(of_metadata)
    _session_state = session_state_query("json_extract(a.body, '$.user_id')")
    _columns, _recalled = _COLUMNS, RECALLED
    _save_text, _packs_words, _add_message = _SAVE_TEXT, True, _INSERT_MESSAGE
    _save_vector = _SAVE_VECTOR
    _save_message_text, _save_message_vector = _SAVE_MESSAGE_TEXT, _SAVE_MESSAGE_VECTOR
    _forget_rows, _forget_namespace, _empty_rows = _FORGET_ROWS, _FORGET_ALL, _EMPTY
    _score_step = (
        "UPDATE agent_step SET body = :body, checksum = :checksum WHERE row = :row",
        "UPDATE step_key SET score = :score WHERE namespace = :namespace AND row = :row",
    )
    _unpin_rows = (
        f"UPDATE agent_step SET branch_id = NULL, sequence = NULL WHERE {_GONE}",  # noqa: S608 - no value in it
        f"UPDATE step_key SET branch_id = NULL WHERE namespace = :namespace AND {_GONE}",  # noqa: S608 - no value in it
    )

    def step_keys(
        self, names: Sequence[StepKey], *, after: int, limit: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        """Return the next rows above `after` with their keys."""
        self._catch_up()
        with self._db.reading() as connection:
            asked = (self._namespace, after, limit)
            rows, *columns = map(
                orjson.loads, connection.execute(keys_query(names), asked).fetchone()
            )
        return np.array(rows, np.int64), dict(zip(names, columns, strict=True))

    def _append_one(self, step: AgentStep) -> int:
        step_id = id_text(step.id)
        values = (self._namespace, step_id, *checked_body(step, self._namespace))
        try:
            if (line := line_of(step)) is None:
                return self._db.insert(_INSERT, values)
            return self._db.insert(_INSERT_IN_SESSION, (*values, line))
        except sqlite3.IntegrityError as error:
            raise DuplicateStepError(step_id) from error

    def _insert_all(
        self,
        connection: Connection,
        ids: Sequence[str],
        steps: Sequence[AgentStep],
        pins: Mapping[str, BranchPosition],
    ) -> list[int]:
        """Insert steps under their ids: pinned, or at the end of their session."""
        namespace, few = self._namespace, len(ids) <= _FEW
        given = zip(ids, steps, strict=True)
        lines = [None if step_id in pins else line_of(step) for step_id, step in given]
        ends = self._ends_of(connection, lines)
        nowhere = not few and not pins and {*ends.values()} == {NOWHERE}
        at = zip(ids, lines, strict=True)
        places = [() if nowhere else pins.get(step_id) or ends[line] for step_id, line in at]
        first = 0 if few else connection.execute(_FIRST_ROW).fetchone()[0]
        values = (
            (row, namespace, step_id, *checked_body(step, namespace), *place)
            for row, step_id, step, place in zip(count(first), ids, steps, places, strict=False)
        )
        try:
            if few:
                inserted = connection.execute(_insert_few(len(ids)), [*chain(*values)])
                first = min(inserted)[0]
            else:
                _insert_many(connection, values, placed=not nowhere)
        except sqlite3.IntegrityError as error:
            stored = self._rows_of(connection, ids)
            before = first or OPEN_END  # what one statement inserts is not there when it fails
            twice = next(step_id for step_id in ids if stored.get(step_id, OPEN_END) < before)
            raise DuplicateStepError(twice) from error
        rows = list(range(first, first + len(steps)))
        self._insert_vectors(connection, rows, steps)
        return rows

    def _insert_bodies(self, connection: Connection, steps: Sequence[OrderedRow]) -> list[int]:
        """Insert steps as their bodies say, under new rows at the end."""
        (first,), namespace = connection.execute(_FIRST_ROW).fetchone(), self._namespace
        rows = list(range(first, first + len(steps)))
        values = (
            (row, namespace, step.id, body.decode(), crc32(body, namespace), *step[2:4])
            for row, step in zip(rows, steps, strict=True)
            for body in step.texts
        )
        _insert_many(connection, values)
        return rows

    def _insert_message(self, connection: Connection, branch_id: int, row: Row) -> None:
        try:
            values = (self._namespace, branch_id, *row, *row_checksums(branch_id, row))
            connection.execute(_INSERT_MESSAGE, values)
        except sqlite3.IntegrityError as error:
            raise DuplicateStepError(row.id) from error

    def _showing(self, connection: Connection, rows: Sequence[int]) -> set[int]:
        """Their children, and others of their runs: rows with words always have their keys."""
        runs = runs_of(connection, self._namespace, rows)
        values = {"namespace": self._namespace, "rows": many(rows), "runs": many(runs)}
        found = (*connection.execute(_BY_CHILDREN, values), *connection.execute(_IN_RUNS, values))
        return {row for (row,) in found}

    def _metadata_of(
        self, connection: Connection, those: Condition, key: str, *, lists: bool
    ) -> Iterable[tuple[int, Any]]:
        if is_storable(key):
            asked = [*those[1], key, "array" if lists else "text"]
            for row, kind, value in connection.execute(_COMPARABLE.format(those[0]), asked):
                yield row, orjson.loads(value) if kind == "array" else value
