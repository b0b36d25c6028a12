"""Steps in SQLite: how they are inserted, and what else SQLite says in its own way.

An append of one step is one INSERT in a transaction of its own: one row, one index entry. Rows are
numbered by hand, above every row ever used, because AUTOINCREMENT would write one more page per
append.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import numpy as np
import orjson

from hybridagi_steps.errors import DuplicateStepError
from hybridagi_steps.protocols import Rows, StepKey
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.session_protocols import BranchPosition
from hybridagi_steps.stores.body import encode_body
from hybridagi_steps.stores.sql.lineage import Row, row_checksums
from hybridagi_steps.stores.sql.tables import Connection, Encoded
from hybridagi_steps.stores.sql.where import Condition, PlainValue
from hybridagi_steps.stores.sql.writing import StepWriting
from hybridagi_steps.stores.sqlite.removal import remove_all, remove_rows
from hybridagi_steps.stores.sqlite.tables import SqliteTables
from hybridagi_steps.stores.sqlite.where import RECALLED, SOURCE, keys_query, of_metadata

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
_INSERT_AT = """INSERT INTO agent_step (row, namespace, id, body, checksum, branch_id, sequence)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
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
    (namespace, row, model, dimension, text_hash, given, vector, checksum, scoped)
    SELECT s.namespace, s.row, n.embedder, ?, ?, 0, ?, ?,
        json_extract(s.body, '$.scope') IS NOT NULL
    FROM step_json s JOIN namespace n ON n.id = +s.namespace
    WHERE +s.namespace = ? AND s.row = ?"""


class SqliteSteps(SqliteTables, StepWriting):
    """What SQLite says about steps and messages in its own way."""

    _runs = _RUNS
    _source, _recalled = SOURCE, RECALLED
    _save_text = _SAVE_TEXT
    _save_vector = _SAVE_VECTOR

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
        step_id, body = id_text(step.id), encode_body(step)
        values = (self._namespace, step_id, body, crc32(body.encode(), self._namespace))
        try:
            if step.session_id is None:
                return self._db.insert(_INSERT, values)
            return self._db.insert(_INSERT_IN_SESSION, (*values, step.session_id))
        except sqlite3.IntegrityError as error:
            raise DuplicateStepError(step_id) from error

    def _insert_all(
        self,
        connection: Connection,
        steps: Sequence[Encoded],
        pins: Mapping[str, BranchPosition],
    ) -> list[int]:
        """Insert steps, each after its id and body: pinned, or at the end of its session."""
        (first,) = connection.execute(_FIRST_ROW).fetchone()
        sessions = {step.session_id for step_id, _, step in steps if step_id not in pins}
        ends = {name: self._end_of(connection, name) for name in sessions}
        namespace = self._namespace
        values = (
            (
                *(row, namespace, step_id, body, crc32(body.encode(), namespace)),
                *(pins.get(step_id) or ends[step.session_id]),
            )
            for row, (step_id, body, step) in enumerate(steps, first)
        )
        try:
            connection.executemany(_INSERT_AT, values)
        except sqlite3.IntegrityError as error:
            stored = self._rows_of(connection, [step_id for step_id, _, _ in steps])
            twice = next(step_id for step_id, _, _ in steps if stored.get(step_id, first) < first)
            raise DuplicateStepError(twice) from error
        rows = list(range(first, first + len(steps)))
        self._insert_vectors(connection, rows, steps)
        return rows

    def _insert_message(self, connection: Connection, branch_id: int, row: Row) -> None:
        try:
            values = (self._namespace, branch_id, *row, *row_checksums(branch_id, row))
            connection.execute(_INSERT_MESSAGE, values)
        except sqlite3.IntegrityError as error:
            raise DuplicateStepError(row.id) from error

    def _forget(self, connection: Connection, rows: Sequence[int]) -> None:
        remove_rows(connection, self._namespace, rows)

    def _forget_all(self, connection: Connection) -> None:
        remove_all(connection, self._namespace)

    def _of_metadata(self, metadata: Mapping[str, PlainValue]) -> Iterable[Condition]:
        return of_metadata(metadata)
