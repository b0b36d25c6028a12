"""Steps in PostgreSQL: how they are inserted, and what else PostgreSQL says in its own way.

An append of one step is one statement in a transaction of its own, with the writer's locks taken
inside it, before its row is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID
from zlib import crc32

import orjson
from psycopg.errors import UniqueViolation
from psycopg.types.numeric import Int8

from hybridagi_steps.errors import DuplicateStepError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filter_fields import Plain
from hybridagi_steps.records.json_reading import as_object
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    BranchPosition,
    line_of,
)
from hybridagi_steps.stores.body import checked_body, decode_body
from hybridagi_steps.stores.postgres.database import PostgresDatabase
from hybridagi_steps.stores.postgres.positions import SETTLED, STEPS
from hybridagi_steps.stores.postgres.schema import DURABLY
from hybridagi_steps.stores.postgres.spelling import SpellingConnection, Texts
from hybridagi_steps.stores.sql.copied_rows import OrderedRow
from hybridagi_steps.stores.sql.lineage import Row, in_range, row_checksums
from hybridagi_steps.stores.sql.session_commits import session_state_query
from hybridagi_steps.stores.sql.tables import (
    FORGET_NAMESPACE,
    Connection,
    Tables,
    is_storable,
    many,
    namespace_id,
)
from hybridagi_steps.stores.sql.where import (
    Condition,
    key_columns,
    program_called,
    scalar_kind,
    tool_used,
)
from hybridagi_steps.stores.sql.writing import StepWriting


class PostgresTables(Tables):
    """A database seen from one namespace."""

    def __init__(self, database: PostgresDatabase, namespace: str) -> None:
        self._database = database
        self._namespace = database.turn = namespace_id(database, namespace, DURABLY)

    @property
    def _db(self) -> PostgresDatabase:
        return self._database

    def _settled(self, connection: Connection) -> tuple[int, int]:
        return connection.execute(SETTLED, {"namespace": self._namespace}).fetchone()


KEYS = """parent_id run_id hop session_id user_id program_id program tool
    step_type scope status score created_at metadata source""".split()  # noqa: SIM905 - names read better so
"""The columns of a step that filters look at."""
_COLUMNS = ("namespace", "id", "body", "checksum", *KEYS)
"""In the order of `_values`."""
PINNED = ("branch_id", "sequence", *_COLUMNS)
_NAMES = ", ".join(_COLUMNS)
_MARKS = ", ".join(f":{name}" for name in _COLUMNS)
_INSERT = f"""INSERT INTO agent_step ({_NAMES}) SELECT {_MARKS} FROM turn
    ON CONFLICT (namespace, id) DO NOTHING RETURNING row"""  # noqa: S608 - no value in it
_INSERT_IN_SESSION = f"""INSERT INTO agent_step (branch_id, sequence, {_NAMES})
    SELECT b.id, coalesce((SELECT max(sequence) FROM message WHERE branch_id = b.id),
        b.fork_sequence) + 1, {_MARKS}
    FROM turn LEFT JOIN session s ON s.namespace = :namespace AND s.id = :session_id
    LEFT JOIN branch b ON b.id = s.branch_id
    ON CONFLICT (namespace, id) DO NOTHING RETURNING row"""  # noqa: S608 - no value in it
_NEXT_ROWS = """SELECT (SELECT array_agg(nextval('step_row')) FROM generate_series(1, ?)),
    (SELECT array_agg(id) FROM agent_step
        WHERE namespace = ? AND id IN (SELECT value FROM json_each(?)))"""
_INSERT_MESSAGE = """INSERT INTO message
    (namespace, branch_id, sequence, id, said, body, said_checksum, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, id) DO NOTHING"""
_SCORED = """SELECT s.id, s.row, s.body, s.checksum, r.run_id, r.score, r.feedback, r.checksum
    FROM agent_step s LEFT JOIN run r
        ON r.namespace = s.namespace AND r.run_id = s.run_id AND r.score IS NOT NULL
    WHERE s.namespace = ? AND s.{} IN (SELECT value FROM json_each(?))"""
_SCORED_BY_ROW, _SCORED_BY_ID = map(_SCORED.format, ("row", "id"))
_RUNS = """SELECT run_id FROM step_view WHERE namespace = :namespace AND run_id IS NOT NULL
    GROUP BY run_id ORDER BY min(row) DESC LIMIT :limit OFFSET :offset"""
_SAVE_TEXT = """INSERT INTO step_text
    (parent_row, tokens, text_hash, purpose_hash, checksum, namespace, row, scoped)
    SELECT CAST(? AS BIGINT), ?, ?, ?, ?, s.namespace, s.row, s.scope IS NOT NULL
    FROM agent_step s WHERE s.namespace = ? AND s.row = ?
    ON CONFLICT (row) DO UPDATE SET seq = excluded.seq, parent_row = excluded.parent_row,
        tokens = excluded.tokens, text_hash = excluded.text_hash,
        purpose_hash = excluded.purpose_hash, checksum = excluded.checksum,
        scoped = excluded.scoped"""
_SAVE_VECTOR = """INSERT INTO embedding
    (dimension, text_hash, vector, checksum, namespace, row, model, given, scoped)
    SELECT CAST(? AS INTEGER), ?, CAST(? AS BYTEA), ?, s.namespace, s.row, n.embedder, 0,
        s.scope IS NOT NULL
    FROM agent_step s JOIN namespace n ON n.id = s.namespace
    WHERE s.namespace = ? AND s.row = ? ON CONFLICT (row) DO NOTHING"""
_SAVE_MESSAGE_TEXT = f"""INSERT INTO step_text
    (parent_row, tokens, text_hash, purpose_hash, checksum, namespace, row, scoped)
    SELECT CAST(? AS BIGINT), ?, ?, ?, ?, m.namespace, m.row + {MESSAGE_ROWS}, FALSE
    FROM message m WHERE m.namespace = ? AND m.row = ? - {MESSAGE_ROWS}
    ON CONFLICT (row) DO UPDATE SET seq = excluded.seq, parent_row = excluded.parent_row,
        tokens = excluded.tokens, text_hash = excluded.text_hash,
        purpose_hash = excluded.purpose_hash, checksum = excluded.checksum"""  # noqa: S608 - no value in it
_SAVE_MESSAGE_VECTOR = f"""INSERT INTO embedding
    (dimension, text_hash, vector, checksum, namespace, row, model, given, scoped)
    SELECT CAST(? AS INTEGER), ?, CAST(? AS BYTEA), ?, m.namespace, m.row + {MESSAGE_ROWS},
        n.embedder, 0, FALSE
    FROM message m JOIN namespace n ON n.id = m.namespace
    WHERE m.namespace = ? AND m.row = ? - {MESSAGE_ROWS} ON CONFLICT (row) DO NOTHING"""  # noqa: S608 - no value in it
# PostgreSQL reads no JSON with a NUL in any text (its backslash may be an escaped one), and chr(26)
# is escaped in what a text is compared with, as `database.teach` writes it.
_BODY = r"CAST(replace(replace(replace(s.body, '\\', chr(1)), '\u0000', ''), chr(1), '\\') AS json)"
_IN_BODY = f"""(SELECT CASE WHEN strpos(s.body, '"{{key}}":"') > 0
        AND json_typeof({_BODY} -> '{{key}}') = 'string'
        THEN replace({_BODY} ->> '{{key}}', chr(26), chr(26) || '1') END
    FROM agent_step s WHERE s.row = k.row)"""  # noqa: S608 - keys are ours
KEY_COLUMNS = key_columns(_IN_BODY, call_id="CASE WHEN k.step_type = 'ProgramCall' THEN k.id END")
_RECALLED = """CASE WHEN strpos(s.body, '"recalled":[') > 0
    THEN CAST(s.body AS json) -> 'metadata' ->> 'recalled' END"""
_PLAIN_VALUES = """SELECT k.row, m.told FROM step_view k, unnest(k.metadata) AS m(told)
    WHERE {} AND starts_with(m.told, ?)"""
_WITH_LISTS = """SELECT k.row, s.body FROM step_view k JOIN agent_step s ON s.row = k.row
    WHERE {} AND strpos(s.body, ?) > 0"""
_GONE = "namespace = :namespace AND row IN (SELECT value FROM json_each(:rows))"
_FORGET_ROWS = (
    f"""INSERT INTO tombstone (namespace, row) SELECT namespace, row FROM agent_step
        WHERE {_GONE} ORDER BY row""",  # noqa: S608 - no value in it
    f"DELETE FROM step_text WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM embedding WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM stale_text WHERE {_GONE}",  # noqa: S608 - no value in it
    f"DELETE FROM agent_step WHERE {_GONE}",  # noqa: S608 - no value in it
)
_FORGET_NAMESPACE = (
    "DELETE FROM search_state WHERE namespace = :namespace",  # first: nothing is counted any more
    "DELETE FROM stem_count WHERE namespace = :namespace",
    *FORGET_NAMESPACE,
)
_SHOWING = """SELECT t.row FROM step_text t
    WHERE t.namespace = ? AND t.parent_row IN (SELECT value FROM json_each(?))"""
_EMPTY = """UPDATE step_text
    SET seq = nextval(pg_get_serial_sequence('step_text', 'seq')), parent_row = NULL, tokens = '',
        checksum = NULL
    WHERE row IN (SELECT value FROM json_each(?))"""
LEFTOVERS = f"""SELECT t.row FROM step_text t WHERE t.parent_row IS NOT NULL
    AND t.row < {MESSAGE_ROWS} AND NOT EXISTS (
    SELECT 1 FROM step_view k JOIN step_view p ON p.namespace = k.namespace
    WHERE k.namespace = t.namespace AND k.row = t.row AND p.row = t.parent_row
        AND p.user_id IS NOT DISTINCT FROM k.user_id AND p.scope IS NOT DISTINCT FROM k.scope)"""  # noqa: S608 - no value in it
"""Rows that show words they must not, in any namespace."""


def of_metadata(metadata: Mapping[str, Sequence[Plain]]) -> Iterator[Condition]:
    """Yield the conditions that metadata keys have values: one, and one for each of several."""
    asked = [
        [_comparable_text(key, value) for value in values if _is_comparable(key, value)]
        for key, values in metadata.items()
    ]
    if not all(asked):
        yield "FALSE", []
        return
    if alone := [texts[0] for texts in asked if len(texts) == 1]:
        yield "k.metadata @> CAST(? AS TEXT[])", [many(alone)]
    for texts in asked:
        if len(texts) > 1:
            yield "k.metadata && CAST(? AS TEXT[])", [many(texts)]


def _is_comparable(key: str, value: Plain) -> bool:
    finite = not isinstance(value, float) or math.isfinite(value)
    return finite and is_storable(f"{key}{value}")


class PostgresSteps(PostgresTables, StepWriting):
    """What PostgreSQL says about steps and messages in its own way."""

    _runs, _of_metadata = _RUNS, staticmethod(of_metadata)
    _session_state = session_state_query("a.user_id")
    _columns, _recalled = KEY_COLUMNS, _RECALLED
    _recalling = "step_view k JOIN agent_step s ON s.row = k.row"
    _save_text, _add_message = _SAVE_TEXT, _INSERT_MESSAGE
    _save_vector = _SAVE_VECTOR
    _save_message_text, _save_message_vector = _SAVE_MESSAGE_TEXT, _SAVE_MESSAGE_VECTOR
    _forget_rows, _forget_namespace, _empty_rows = _FORGET_ROWS, _FORGET_NAMESPACE, _EMPTY
    _score_step = (
        """UPDATE agent_step SET body = :body, checksum = :checksum, score = :score
        WHERE namespace = :namespace AND row = :row""",
    )
    _unpin_rows = (
        f"UPDATE agent_step SET branch_id = NULL, sequence = NULL WHERE {_GONE}",  # noqa: S608 - no value in it
    )

    def _found(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        return self._scored_steps(self._db.few(_SCORED_BY_ROW, (self._namespace, many(rows))))

    def _read(self, connection: Connection, rows: Sequence[int]) -> dict[int, AgentStep]:
        found = connection.execute(_SCORED_BY_ROW, (self._namespace, many(rows)))
        return self._scored_steps(found.fetchall())

    def _named(
        self, ids: Sequence[str], *, vectors: bool
    ) -> tuple[dict[str, int], dict[int, AgentStep]]:
        if vectors:
            return super()._named(ids, vectors=True)
        found = self._db.few(_SCORED_BY_ID, (self._namespace, many(filter(is_storable, ids))))
        return {step_id: row for step_id, row, *_ in found}, self._scored_steps(found)

    def _scored_steps(self, found: Iterable[Any]) -> dict[int, AgentStep]:
        """Return steps by row, showing their run's score where they have none."""
        steps: dict[int, AgentStep] = {}
        for _, row, body, checksum, *run in found:
            steps[row] = step = self._decoded(row, body, checksum)
            if step.score is None and run[0] is not None:
                step.score = self._score(*run)[0]
        return steps

    def _append_one(self, step: AgentStep) -> int:
        step_id = id_text(step.id)
        reads = line_of(step) is not None
        insert = _INSERT_IN_SESSION if reads else _INSERT
        values = self._values(step_id, step)
        values["checksum"] = Int8(values["checksum"])  # one type: one prepared statement
        inserted = self._db.insert(insert, values, draws=(STEPS,), reads=reads)
        if inserted is None:
            raise DuplicateStepError(step_id)
        return int(inserted[0])

    def _insert_all(
        self,
        connection: Connection,
        ids: Sequence[str],
        steps: Sequence[AgentStep],
        pins: Mapping[str, BranchPosition],
    ) -> list[int]:
        """Insert steps under their ids: pinned, or at the end of their session."""
        asked = (len(steps), self._namespace, many([one for one in ids if is_storable(one)]))
        rows, stored = connection.execute(_NEXT_ROWS, asked).fetchone()
        if stored:
            raise DuplicateStepError(next(one for one in ids if one in stored))
        given = list(zip(ids, steps, strict=True))
        sessions = {line_of(step) for step_id, step in given if step_id not in pins}
        ends = self._ends_of(connection, sessions)
        table = "agent_step", ("row", *PINNED)
        copied = (
            (
                row,
                *(pins.get(step_id) or ends[line_of(step)]),
                *self._values(step_id, step).values(),
            )
            for row, (step_id, step) in zip(rows, given, strict=True)
        )
        try:
            cast("SpellingConnection", connection).copy(*table, copied)
        except UniqueViolation as error:  # somebody beside us stored one since
            raise DuplicateStepError(self._stored_meanwhile(ids)) from error
        self._insert_vectors(connection, rows, steps)
        return rows

    def _insert_bodies(self, connection: Connection, steps: Sequence[OrderedRow]) -> list[int]:
        """Insert steps as their bodies say, under new rows at the end."""
        asked = (len(steps), self._namespace, many([]))
        rows, _ = connection.execute(_NEXT_ROWS, asked).fetchone()
        checks = [crc32(step.texts[0], self._namespace) for step in steps]
        keys = [self._keys(decode_body(step.texts[0])).values() for step in steps]
        cast("SpellingConnection", connection).copy(
            "agent_step",
            ("row", *PINNED),
            (
                (row, *step[2:4], self._namespace, step.id, step.texts[0].decode(), check, *values)
                for row, step, check, values in zip(rows, steps, checks, keys, strict=True)
            ),
        )
        return rows

    def _stored_meanwhile(self, ids: Sequence[str]) -> str:
        with self._db.asking() as connection:
            stored = self._rows_of(connection, ids)
        return next((one for one in ids if one in stored), ids[0])

    def _insert_message(self, connection: Connection, branch_id: int, row: Row) -> None:
        values = (self._namespace, branch_id, *row, *row_checksums(branch_id, row))
        inserted = connection.execute(_INSERT_MESSAGE, values)
        if not inserted.rowcount:
            raise DuplicateStepError(row.id)

    def _showing(self, connection: Connection, rows: Sequence[int]) -> set[int]:
        return {*self._column(connection, _SHOWING, self._namespace, many(rows))} - set(rows)

    def _metadata_of(
        self, connection: Connection, those: Condition, key: str, *, lists: bool
    ) -> Iterable[tuple[int, Any]]:
        if not is_storable(key):
            return
        name = orjson.dumps(key).decode()
        asked = [*those[1], f"[{name},"]
        for row, text in connection.execute(_PLAIN_VALUES.format(those[0]), asked):
            yield row, orjson.loads(text)[2]
        if lists:
            asked = [*those[1], f"{name}:["]
            for row, body in connection.execute(_WITH_LISTS.format(those[0]), asked):
                yield row, as_object(orjson.loads(body)["metadata"]).get(key)

    def _values(self, step_id: str, step: AgentStep) -> dict[str, Any]:
        """Return a step as a row."""
        body, checksum = checked_body(step, self._namespace)
        return {
            "namespace": self._namespace,
            "id": step_id,
            "body": body,
            "checksum": checksum,
            **self._keys(step),
        }

    def _keys(self, step: AgentStep) -> dict[str, Any]:
        """Return a step's keys, taken from it as SQLite takes them from the body."""
        return {
            "parent_id": _text(step.parent_id),
            "run_id": _text(step.run_id),
            "hop": in_range(step.hop),
            "session_id": _text(step.session_id),
            "user_id": _text(step.user_id),
            "program_id": _text(step.program_id),
            "program": program_called(step),
            "tool": tool_used(step),
            "step_type": _text(step.step_type),
            "scope": _text(step.scope),
            "status": _text(step.status),
            "score": _number(step.score),
            "created_at": step.created_at.isoformat(),
            "metadata": metadata_texts(step.metadata),
            "source": source_of(step.metadata),
        }


def _text(value: UUID | str | None) -> str | None:
    """Return a name as JSON has it; a member of an enum is its value."""
    return None if value is None else str(value)


def _number(score: float | None) -> float | None:
    """Return a score as JSON has it: no NaN, no infinity."""
    return None if score is None or not math.isfinite(score) else float(score)


_INTEGERS = range(-(2**63), 2**63)


def metadata_texts(metadata: Mapping[str, Any] | None) -> Texts | None:
    """Return what a filter may look for in a step's metadata; None when there is nothing."""
    if not metadata:
        return None
    # As the body has it: whatever JSON makes of a value is what a filter looks at.
    plain: dict[str, Any] = orjson.loads(orjson.dumps(metadata, default=str))
    texts = (_comparable_text(key, value) for key, value in plain.items())
    return Texts(text for text in texts if text is not None) or None


def _comparable_text(key: str, value: Any) -> str | None:
    """Return one text for a key and all values that are the same to a filter."""
    kind, comparable = scalar_kind(value)
    if kind == "other":
        return None
    if isinstance(comparable, float) and comparable.is_integer() and int(comparable) in _INTEGERS:
        comparable = int(comparable)
    return orjson.dumps([key, kind, comparable]).decode()
