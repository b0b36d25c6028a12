"""Steps in SQLite: append, read, filter, runs.

An append of one step is one INSERT in a transaction of its own: one row, one index entry. Rows are
numbered by hand, above every row ever used, because AUTOINCREMENT would write one more page per
append. Bodies are read in pages, never under a transaction that outlives a call.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from hybridagi_steps.errors import DuplicateStepError, UnknownRunError
from hybridagi_steps.protocols import Rows, RunSummary, StepKey
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_text import own_text, text_hash
from hybridagi_steps.session_protocols import BranchPosition
from hybridagi_steps.stores.body import encode_body
from hybridagi_steps.stores.commits import refuse_twice
from hybridagi_steps.stores.run_scores import check_score
from hybridagi_steps.stores.sqlite.lineage import steps_of
from hybridagi_steps.stores.sqlite.removal import remove_empty_runs, remove_rows, runs_of
from hybridagi_steps.stores.sqlite.tables import Tables
from hybridagi_steps.stores.sqlite.where import (
    HIDDEN_ROWS,
    SOME_HIDDEN,
    Condition,
    Lines,
    condition,
    is_storable,
    json_array,
    keys_query,
)

_NEXT_ROW = """max(coalesce((SELECT max(row) FROM agent_step), 0),
    (SELECT value FROM meta WHERE key = 'row_floor')) + 1"""
_INSERT = f"INSERT INTO agent_step (row, namespace, id, body) VALUES ({_NEXT_ROW}, ?, ?, ?)"  # noqa: S608 - no value in it
# A step recorded into a session that has messages works towards its next one. Both values are
# looked up by themselves: joined, they made the INSERT take 9 µs more.
_INSERT_IN_SESSION = f"""INSERT INTO agent_step (row, namespace, id, body, branch_id, sequence)
    VALUES ({_NEXT_ROW}, ?1, ?2, ?3,
        (SELECT branch_id FROM session WHERE namespace = ?1 AND id = ?4),
        (SELECT 1 + coalesce(
                (SELECT max(sequence) FROM message WHERE branch_id = b.id), b.fork_sequence)
            FROM session s JOIN branch b ON b.id = s.branch_id
            WHERE s.namespace = ?1 AND s.id = ?4))"""  # noqa: S608 - no value in it
# Several steps in one transaction: what those look up for each is looked up once.
_FIRST_ROW = f"SELECT {_NEXT_ROW}"
_END_OF_SESSION = """SELECT s.branch_id, 1 + coalesce(
        (SELECT max(sequence) FROM message WHERE branch_id = b.id), b.fork_sequence)
    FROM session s JOIN branch b ON b.id = s.branch_id WHERE s.namespace = ? AND s.id = ?"""
_INSERT_AT = """INSERT INTO agent_step (row, namespace, id, body, branch_id, sequence)
    VALUES (?, ?, ?, ?, ?, ?)"""
_NOWHERE = (None, None)
_PINS = """SELECT id, branch_id, sequence FROM agent_step
    WHERE branch_id IS NOT NULL AND row IN (SELECT value FROM json_each(?))"""
_INSERT_GIVEN = """INSERT INTO embedding
    (namespace, row, model, dimension, text_hash, given, scoped, vector)
    VALUES (?, ?, (SELECT embedder FROM namespace WHERE id = ?), ?, ?, 1, ?, ?)"""
_ROWS_BY_ID = """SELECT id, row FROM agent_step
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_READ = """SELECT s.row, s.body, NULL FROM agent_step s
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""
_READ_WITH_VECTORS = """SELECT s.row, s.body, e.vector FROM agent_step s
    LEFT JOIN embedding e ON e.row = s.row
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""
_RUN_SCORES = """SELECT run_id, score FROM run
    WHERE namespace = ? AND score IS NOT NULL AND run_id IN (SELECT value FROM json_each(?))"""
_RUNS = """SELECT run_id FROM (
        SELECT run_id, min(row) AS row FROM step_key
        WHERE namespace = ? AND run_id IS NOT NULL GROUP BY run_id
        UNION ALL
        SELECT run_id, row FROM step_tail WHERE namespace = ? AND run_id IS NOT NULL)
    GROUP BY run_id ORDER BY min(row) DESC LIMIT ? OFFSET ?"""
_SUMMARY = """SELECT max(session_id), max(scope), count(*),
        sum(coalesce(status, '') = 'error'), min(created_at), max(created_at)
    FROM step_view WHERE namespace = ? AND run_id = ?"""
_FIRST_STEP = """SELECT s.id FROM step_view k JOIN agent_step s ON s.row = k.row
    WHERE k.namespace = ? AND k.run_id = ? ORDER BY k.hop, k.row LIMIT 1"""
_RUN = "SELECT score, feedback FROM run WHERE namespace = ? AND run_id = ?"
_KNOWN_RUN = "SELECT 1 FROM step_view WHERE namespace = ? AND run_id = ? LIMIT 1"
_SCORE_RUN = """INSERT INTO run (namespace, run_id, score, feedback) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET score = excluded.score, feedback = excluded.feedback"""
_PAGE = 500


class StepTables(Tables):
    """Implements `AgentStepStore` and `RunStore`; see protocols.py for the contract."""

    def append(self, steps: Sequence[AgentStep], *, replace: bool = False) -> list[int]:
        """Store steps, all or none."""
        if len(steps) == 1 and not replace and steps[0].vector is None:
            return [self._append_one(steps[0])]
        encoded = [(id_text(step.id), encode_body(step), step) for step in steps]
        refuse_twice([step_id for step_id, _, _ in encoded])
        if not encoded:
            return []
        with self._db.writing() as connection:
            ids = [step_id for step_id, _, _ in encoded]
            runs, pins = self._remove_old(connection, ids) if replace else ([], {})
            rows = self._insert_all(connection, encoded, pins)
            remove_empty_runs(connection, self._namespace, runs)
        return rows

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[AgentStep]:
        """Return the steps with these ids in the order asked."""
        wanted = [id_text(step_id) for step_id in ids]
        with self._db.reading() as connection:
            rows = self._rows_of(connection, wanted)
            steps = self._read(connection, list(rows.values()), vectors=vectors)
        return self._listed(steps, [rows[step_id] for step_id in wanted if step_id in rows])

    def find(
        self, where: StepFilter, *, limit: int, offset: int = 0, newest_first: bool = False
    ) -> list[AgentStep]:
        """Return one page of the steps that match."""
        self._catch_up()
        down = " DESC" if newest_first else ""
        order = f"k.row{down}" if where.run_id is None else f"k.hop{down}, k.row{down}"
        with self._db.reading() as connection:
            sql, values = self._condition(connection, where)
            query = f"""SELECT k.row, k.hop FROM step_view k
                WHERE {sql} ORDER BY {order} LIMIT ? OFFSET ?"""  # noqa: S608 - parts are ours, values are bound
            rows = [row for row, _ in connection.execute(query, (*values, limit, offset))]
            steps = self._read(connection, rows)
        return self._listed(steps, rows)

    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending."""
        self._catch_up()
        with self._db.reading() as connection:
            return np.array(self._matching(connection, where), dtype=np.int64)

    def hidden_rows(self) -> Rows:
        """Return the rows on branches that no session reads, ascending."""
        with self._db.reading() as connection:
            found = self._column(connection, HIDDEN_ROWS, self._namespace)
        return np.array(sorted(found), dtype=np.int64)

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

    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows."""
        with self._db.reading() as connection:
            return self._read(connection, [int(row) for row in rows])

    def children(self, ids: Sequence[str]) -> list[AgentStep]:
        """Return the steps whose parent is one of `ids`, by row."""
        self._catch_up()
        parents = [text for text in map(id_text, ids) if is_storable(text)]
        query = """SELECT row FROM step_view
            WHERE namespace = ? AND parent_id IN (SELECT value FROM json_each(?)) ORDER BY row"""
        with self._db.reading() as connection:
            rows = self._column(connection, query, self._namespace, json_array(parents))
            steps = self._read(connection, rows)
        return self._listed(steps, rows)

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        """Yield all matching steps by row; those deleted meanwhile are left out."""
        rows = self.rows(where).tolist()
        for start in range(0, len(rows), _PAGE):
            page = rows[start : start + _PAGE]
            steps = self.read(page)
            yield from (steps[row] for row in page if row in steps)

    def runs(self, *, limit: int, offset: int = 0) -> list[RunSummary]:
        """Return runs, the one begun last first."""
        self._catch_up()
        with self._db.reading() as connection:
            page = (self._namespace, self._namespace, limit, offset)
            found = self._column(connection, _RUNS, *page)
            return [self._summary(connection, run_id) for run_id in found]

    def score_run(self, run_id: str, value: float, feedback: str | None) -> None:
        """Set a run's score."""
        check_score(run_id, value, feedback)
        self._catch_up()
        with self._db.writing() as connection:
            key = (self._namespace, run_id)
            if not is_storable(run_id) or not connection.execute(_KNOWN_RUN, key).fetchone():
                raise UnknownRunError(run_id)
            connection.execute(_SCORE_RUN, (*key, value, feedback))

    def _append_one(self, step: AgentStep) -> int:
        step_id, body = id_text(step.id), encode_body(step)
        try:
            if step.session_id is None:
                return self._db.insert(_INSERT, (self._namespace, step_id, body))
            values = (self._namespace, step_id, body, step.session_id)
            return self._db.insert(_INSERT_IN_SESSION, values)
        except sqlite3.IntegrityError as error:
            raise DuplicateStepError(step_id) from error

    def _remove_old(
        self, connection: sqlite3.Connection, ids: Sequence[str]
    ) -> tuple[list[str], dict[str, BranchPosition]]:
        """Remove the steps that are being replaced; return their runs, and where they stood."""
        rows = sorted(self._rows_of(connection, ids).values())
        runs = runs_of(connection, self._namespace, rows)
        pinned = connection.execute(_PINS, (json_array(rows),)).fetchall()
        remove_rows(connection, self._namespace, rows)
        return runs, {step_id: BranchPosition(*pin) for step_id, *pin in pinned}

    def _insert_all(
        self,
        connection: sqlite3.Connection,
        steps: Sequence[tuple[str, str, AgentStep]],
        pins: Mapping[str, BranchPosition],
    ) -> list[int]:
        """Insert steps, each after its id and body: pinned, or at the end of its session."""
        (first,) = connection.execute(_FIRST_ROW).fetchone()
        sessions = {step.session_id for step_id, _, step in steps if step_id not in pins}
        ends = {name: self._end_of(connection, name) for name in sessions}
        values = (
            (row, self._namespace, step_id, body, *(pins.get(step_id) or ends[step.session_id]))
            for row, (step_id, body, step) in enumerate(steps, first)
        )
        try:
            connection.executemany(_INSERT_AT, values)
        except sqlite3.IntegrityError as error:
            stored = self._rows_of(connection, [step_id for step_id, _, _ in steps])
            twice = next(step_id for step_id, _, _ in steps if stored.get(step_id, first) < first)
            raise DuplicateStepError(twice) from error
        for row, (_, _, step) in enumerate(steps, first):
            if step.vector is not None:
                self._insert_vector(connection, row, step)
        return list(range(first, first + len(steps)))

    def _end_of(self, connection: sqlite3.Connection, session_id: str | None) -> tuple[Any, Any]:
        """Return where a session goes on, nowhere when it has no messages."""
        if session_id is None:
            return _NOWHERE
        return connection.execute(_END_OF_SESSION, (self._namespace, session_id)).fetchone() or (
            _NOWHERE
        )

    def _insert_vector(self, connection: sqlite3.Connection, row: int, step: AgentStep) -> None:
        vector = np.asarray(step.vector, dtype="<f4")
        scoped, words = step.scope is not None, text_hash(own_text(step))
        given = (self._namespace, row, self._namespace, len(vector), words, scoped)
        connection.execute(_INSERT_GIVEN, (*given, vector.tobytes()))

    def _rows_of(self, connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
        asked = json_array([step_id for step_id in ids if is_storable(step_id)])
        return dict(connection.execute(_ROWS_BY_ID, (self._namespace, asked)).fetchall())

    def _condition(self, connection: sqlite3.Connection, where: StepFilter) -> Condition:
        """Return the WHERE clause, given what the branches say in this transaction."""
        hides = connection.execute(SOME_HIDDEN, (self._namespace,)).fetchone() is not None
        asked = where.session_id
        pinned = [] if asked is None else steps_of(connection, self._namespace, asked)
        return condition(where, self._namespace, Lines(hides, pinned))

    def _matching(self, connection: sqlite3.Connection, where: StepFilter) -> list[int]:
        sql, values = self._condition(connection, where)
        query = f"SELECT k.row FROM step_view k WHERE {sql} ORDER BY k.row"  # noqa: S608 - parts are ours, values are bound
        return self._column(connection, query, *values)

    def _read(
        self, connection: sqlite3.Connection, rows: Sequence[int], *, vectors: bool = False
    ) -> dict[int, AgentStep]:
        """Return the steps in these rows, showing their run's score where they have none."""
        steps: dict[int, AgentStep] = {}
        query = _READ_WITH_VECTORS if vectors else _READ
        for row, body, vector in connection.execute(query, (self._namespace, json_array(rows))):
            steps[row] = step = self._decoded(row, body)
            if vector is not None:
                step.vector = np.frombuffer(vector, dtype="<f4").tolist()
        unscored = {step.run_id for step in steps.values() if step.score is None and step.run_id}
        if unscored:
            asked = (self._namespace, json_array(list(unscored)))
            scores = dict(connection.execute(_RUN_SCORES, asked).fetchall())
            for step in steps.values():
                if scores and step.score is None and step.run_id in scores:
                    step.score = scores[step.run_id]
        return steps

    def _summary(self, connection: sqlite3.Connection, run_id: str) -> RunSummary:
        key = (self._namespace, run_id)
        session_id, scope, steps, errors, started_at, ended_at = connection.execute(
            _SUMMARY, key
        ).fetchone()
        first = next(iter(self._column(connection, _FIRST_STEP, *key)), "")
        score, feedback = connection.execute(_RUN, key).fetchone() or (None, None)
        return RunSummary(
            run_id, session_id, scope, steps, errors, first, started_at, ended_at, score, feedback
        )
