"""Steps in a database: read, filter, runs. How they are written is the back-end's own affair.

Bodies are read in pages, never under a transaction that outlives a call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from hybridagi_steps.errors import UnknownRunError
from hybridagi_steps.protocols import Rows, RunSummary
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.run_scores import check_score
from hybridagi_steps.stores.sql.lineage import steps_of
from hybridagi_steps.stores.sql.tables import Connection, Tables
from hybridagi_steps.stores.sql.values import is_storable, many
from hybridagi_steps.stores.sql.where import (
    HIDDEN_ROWS,
    SOME_HIDDEN,
    Condition,
    Lines,
    condition,
)

_ROWS_BY_ID = """SELECT id, row FROM agent_step
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_READ = """SELECT s.row, s.body, NULL FROM agent_step s
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""
_READ_WITH_VECTORS = """SELECT s.row, s.body, e.vector FROM agent_step s
    LEFT JOIN embedding e ON e.row = s.row
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""
_RUN_SCORES = """SELECT run_id, score FROM run
    WHERE namespace = ? AND score IS NOT NULL AND run_id IN (SELECT value FROM json_each(?))"""
_SUMMARY = """SELECT max(session_id), max(scope), count(*),
        sum(CASE WHEN status = 'error' THEN 1 ELSE 0 END), min(created_at), max(created_at)
    FROM step_view WHERE namespace = ? AND run_id = ?"""
_FIRST_STEP = """SELECT s.id FROM step_view k JOIN agent_step s ON s.row = k.row
    WHERE k.namespace = ? AND k.run_id = ? ORDER BY k.hop, k.row LIMIT 1"""
_RUN = "SELECT score, feedback FROM run WHERE namespace = ? AND run_id = ?"
_KNOWN_RUN = "SELECT 1 FROM step_view WHERE namespace = ? AND run_id = ? LIMIT 1"
_SCORE_RUN = """INSERT INTO run (namespace, run_id, score, feedback) VALUES (?, ?, ?, ?)
    ON CONFLICT (namespace, run_id)
    DO UPDATE SET score = excluded.score, feedback = excluded.feedback"""
_PAGE = 500


class StepReading(Tables):
    """Implements what `AgentStepStore` and `RunStore` read; see protocols.py for the contract."""

    _runs: str
    """Names the runs of a namespace, the one begun last first; `:limit`, `:offset`."""

    @abstractmethod
    def _of_metadata(self, key: str, value: str | int | float | bool | None) -> Condition:
        """Return the condition that a metadata key has a value."""

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
        with self._db.asking() as connection:
            found = self._column(connection, HIDDEN_ROWS, self._namespace)
        return np.array(sorted(found), dtype=np.int64)

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
            rows = self._column(connection, query, self._namespace, many(parents))
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
            page = {"namespace": self._namespace, "limit": limit, "offset": offset}
            found = [run_id for (run_id,) in connection.execute(self._runs, page)]
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

    def _rows_of(self, connection: Connection, ids: Sequence[str]) -> dict[str, int]:
        asked = many([step_id for step_id in ids if is_storable(step_id)])
        return dict(connection.execute(_ROWS_BY_ID, (self._namespace, asked)).fetchall())

    def _condition(self, connection: Connection, where: StepFilter) -> Condition:
        """Return the WHERE clause, given what the branches say in this transaction."""
        hides = connection.execute(SOME_HIDDEN, (self._namespace,)).fetchone() is not None
        asked = where.session_id
        pinned = [] if asked is None else steps_of(connection, self._namespace, asked)
        return condition(where, self._namespace, Lines(hides, pinned), self._of_metadata)

    def _matching(self, connection: Connection, where: StepFilter) -> list[int]:
        sql, values = self._condition(connection, where)
        query = f"SELECT k.row FROM step_view k WHERE {sql} ORDER BY k.row"  # noqa: S608 - parts are ours, values are bound
        return self._column(connection, query, *values)

    def _read(
        self, connection: Connection, rows: Sequence[int], *, vectors: bool = False
    ) -> dict[int, AgentStep]:
        """Return the steps in these rows, showing their run's score where they have none."""
        steps: dict[int, AgentStep] = {}
        query = _READ_WITH_VECTORS if vectors else _READ
        for row, body, vector in connection.execute(query, (self._namespace, many(rows))):
            steps[row] = step = self._decoded(row, body)
            if vector is not None:
                step.vector = np.frombuffer(vector, dtype="<f4").tolist()
        unscored = {step.run_id for step in steps.values() if step.score is None and step.run_id}
        if unscored:
            asked = (self._namespace, many(list(unscored)))
            scores = dict(connection.execute(_RUN_SCORES, asked).fetchall())
            for step in steps.values():
                if scores and step.score is None and step.run_id in scores:
                    step.score = scores[step.run_id]
        return steps

    def _summary(self, connection: Connection, run_id: str) -> RunSummary:
        key = (self._namespace, run_id)
        session_id, scope, steps, errors, started_at, ended_at = connection.execute(
            _SUMMARY, key
        ).fetchone()
        first = next(iter(self._column(connection, _FIRST_STEP, *key)), "")
        score, feedback = connection.execute(_RUN, key).fetchone() or (None, None)
        return RunSummary(
            run_id, session_id, scope, steps, errors, first, started_at, ended_at, score, feedback
        )
