"""Steps in a database: read, filter, runs. How they are written is the back-end's own affair.

Bodies are read in pages, never under a transaction that outlives a call.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hybridagi_steps.errors import DamagedFileError, InvalidStepError, UnknownRunError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filter_fields import StepKey, operators_asked
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import Hidden, Rows, RunSummary
from hybridagi_steps.stores.body import MAX_STEP_BYTES
from hybridagi_steps.stores.checked_tables import DamagedRow, is_given, pass_over
from hybridagi_steps.stores.checksums import checked_vector, damaged, row_checksum
from hybridagi_steps.stores.sql.lineage import steps_of
from hybridagi_steps.stores.sql.tables import (
    DERIVED,
    SOME,
    Connection,
    Tables,
    is_storable,
    many,
)
from hybridagi_steps.stores.sql.where import (
    HIDDEN_ROWS,
    REVOKED_ROWS,
    SOME_HIDDEN,
    Condition,
    Lines,
    OfMetadata,
    condition,
    meeting,
    whose_runs,
)

_ROWS_BY_ID = """SELECT id, row FROM agent_step
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
READ_STEPS = """SELECT s.row, CAST(s.body AS BLOB), s.checksum FROM agent_step s
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""
_VECTORS = """SELECT row, text_hash, given, vector, checksum FROM embedding
    WHERE namespace = ? AND vector IS NOT NULL AND row IN (SELECT value FROM json_each(?))"""
_RUN_SCORES = """SELECT run_id, score, feedback, checksum FROM run
    WHERE namespace = ? AND score IS NOT NULL AND run_id IN (SELECT value FROM json_each(?))"""
_SUMMARY = """SELECT max(session_id), CASE WHEN count(scope) = count(*) THEN max(scope) END,
        count(*),
        sum(CASE WHEN status = 'error' THEN 1 ELSE 0 END), min(created_at), max(created_at),
        sum(CASE step_type WHEN 'ProgramCall' THEN 1 WHEN 'ProgramEnd' THEN -1 ELSE 0 END)
    FROM step_view WHERE namespace = ? AND run_id = ?"""
_FIRST_STEP = """SELECT s.id FROM step_view k JOIN agent_step s ON s.row = k.row
    WHERE k.namespace = ? AND k.run_id = ? ORDER BY k.hop, k.row LIMIT 1"""
_LAST_STATUS = """SELECT status FROM step_view WHERE namespace = ? AND run_id = ?
    ORDER BY CASE step_type WHEN 'ProgramEnd' THEN 1 ELSE 0 END DESC, hop DESC, row DESC LIMIT 1"""
_RUN_STATUS = {"error": "failed", "cancelled": "cancelled", "paused": "paused"}
"""By the status of its last step."""
_RUN = "SELECT run_id, score, feedback, checksum FROM run WHERE namespace = ? AND run_id = ?"
_RUNS_OF = """WITH found AS MATERIALIZED (SELECT k.run_id FROM step_view k
        WHERE {} AND k.run_id IS NOT NULL)
    SELECT DISTINCT run_id FROM found"""
_RUNS_IF = """WITH found AS MATERIALIZED (
        SELECT v.run_id, v.row, v.user_id, v.scope FROM step_view v
        WHERE v.namespace = ? AND v.run_id {})
    SELECT v.run_id FROM found v GROUP BY v.run_id HAVING {}
    ORDER BY min(v.row) DESC LIMIT ? OFFSET ?"""
"""MATERIALIZED, since SQLite asks the view by no index where it groups what it reads."""
_KNOWN_RUN = "SELECT 1 FROM step_view WHERE namespace = ? AND run_id = ? LIMIT 1"
_SCORE_RUN = """INSERT INTO run (namespace, run_id, score, feedback, checksum)
    VALUES (?, ?, ?, ?, ?) ON CONFLICT (namespace, run_id) DO UPDATE
    SET score = excluded.score, feedback = excluded.feedback, checksum = excluded.checksum"""
_PAGE = 500

_SCORED_ROWS = """SELECT k.row, k.score FROM step_view k
    WHERE k.namespace = ? AND k.row > ? AND k.row <= ? AND k.score IS NOT NULL ORDER BY k.row"""
_RATED_RUNS = "SELECT run_id FROM run WHERE namespace = ? AND score >= ? ORDER BY run_id"


class StepReading(Tables):
    """Implements what `StepStore` and `StepStore` read; see protocols.py for the contract."""

    _runs: str
    """Names the runs of a namespace, the one begun last first; `:limit`, `:offset`."""
    _columns: Mapping[StepKey, str]
    """SQL of each step key for a row `k` of `step_view`."""
    _of_metadata: OfMetadata

    @abstractmethod
    def _late_revoked(self, connection: Connection) -> list[str]:
        """Return the ids of steps that descend from revoked ones, and are not marked yet."""

    @abstractmethod
    def _metadata_of(
        self, connection: Connection, those: Condition, key: str, *, lists: bool
    ) -> Iterable[tuple[int, Any]]:
        """Yield some rows with their text or number under a key of metadata, or their list."""

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[AgentStep]:
        """Return the steps with these ids in the order asked."""
        wanted = [id_text(step_id) for step_id in ids]
        if not wanted:
            return []
        rows, steps = self._named(wanted, vectors=vectors)
        found: list[AgentStep] = []
        for step_id in wanted:
            if (row := rows.get(step_id)) is not None:
                step = steps.get(row)
                if step is None or id_text(step.id) != step_id:
                    raise damaged(f"{self._db.name}: the step {step_id!r}", "another stands there")
                found.append(step)
        return found

    def _named(
        self, ids: Sequence[str], *, vectors: bool
    ) -> tuple[dict[str, int], dict[int, AgentStep]]:
        """Return the rows of those of some ids that are there, and the steps in them."""
        with self._db.reading() as connection:
            rows = self._rows_of(connection, ids)
            steps = self._read(connection, list(rows.values()))
            lost = self._add_vectors(connection, steps) if vectors else []
        pass_over(self._db, self._namespace, lost)
        return rows, steps

    def find(
        self, where: StepFilter, *, limit: int, offset: int = 0, newest_first: bool = False
    ) -> list[AgentStep]:
        """Return one page of the steps that match."""
        self._catch_up()
        down = " DESC" if newest_first else ""
        order = f"k.hop{down}, k.row{down}" if len(where.runs) == 1 else f"k.row{down}"
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
            found = self._matching(connection, where)
        try:
            return np.array(found, dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise damaged("the number of a step's row", error) from error

    def users(self, where: StepFilter, *, limit: int) -> list[str]:
        """Return users that the steps name which match, each once."""
        self._catch_up()
        with self._db.reading() as connection:
            sql, values = self._condition(connection, where)
            # A DISTINCT over the view itself would make SQLite walk the whole namespace.
            query = f"""WITH found AS MATERIALIZED (SELECT k.user_id FROM step_view k WHERE {sql})
                SELECT DISTINCT user_id FROM found WHERE user_id IS NOT NULL LIMIT ?"""  # noqa: S608 - parts are ours, values are bound
            return self._column(connection, query, *values, limit)

    def scored_rows(self, *, after: int, through: int) -> list[tuple[int, float]]:
        """Return the steps in a range of rows that have a score of their own."""
        with self._db.asking() as connection:
            return connection.execute(_SCORED_ROWS, (self._namespace, after, through)).fetchall()

    def rated_runs(self, least: float) -> list[str]:
        """Return the runs whose score is at least this."""
        with self._db.asking() as connection:
            return self._column(connection, _RATED_RUNS, self._namespace, least)

    def hidden_rows(self) -> Hidden:
        """Return the rows that recall leaves out."""
        abandoned, revoked = list[int](), list[int]()
        if not any(self._some_hidden()):
            return Hidden(np.empty(0, np.int64), np.empty(0, np.int64))
        with self._db.reading() as connection:
            lines = self._lines(connection)
            if lines.hides:
                abandoned = self._column(connection, HIDDEN_ROWS, self._namespace)
            if lines.late is not None:
                asked = (self._namespace, self._namespace, many(lines.late))
                revoked = self._column(connection, REVOKED_ROWS, *asked)
        return Hidden(*(np.array(sorted({*rows}), np.int64) for rows in (abandoned, revoked)))

    def _some_hidden(self) -> tuple[bool, bool]:
        """Return whether branches hide anything, and whether anything is revoked."""
        hides, revokes = self._db.known(SOME_HIDDEN, (self._namespace, self._namespace))
        return bool(hides), bool(revokes)

    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows."""
        return self._found([int(row) for row in rows]) if len(rows) else {}

    def _found(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        with self._db.reading() as connection:
            return self._read(connection, rows)

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

    def runs(
        self, *, limit: int, offset: int = 0, where: StepFilter | None = None
    ) -> list[RunSummary]:
        """Return runs, the one begun last first."""
        asked = where or StepFilter(scope=EVERY_SCOPE)
        if not all(is_storable(name) for name in (*asked.users, asked.scope) if name):
            return []
        self._catch_up()
        with self._db.reading() as connection:
            found = self._page_of_runs(connection, asked, limit, offset)
            return [self._summary(connection, run_id) for run_id in found]

    def _page_of_runs(
        self, connection: Connection, where: StepFilter, limit: int, offset: int
    ) -> list[str]:
        """Return the ids of a page of runs, from the newest steps alone if they hold it.

        A run that began before these cannot come before one that began among them.
        """
        whose, values = whose_runs(where)
        anyhow = where.model_copy(update={"scope": EVERY_SCOPE})
        some, asked = self._condition(connection, anyhow)
        newest, whom = _RUNS_OF.format("k.namespace = ? AND k.row >= ?"), list[str]()
        if where.users:
            newest = newest.replace("row >= ?", f"row >= ? AND k.user_id {SOME}")
            whom = [many(where.users)]
        # The + keeps SQLite from walking all earlier rows where an index has those of a run.
        older = _RUNS_OF.format(f"k.namespace = ? AND +k.row < ? AND k.run_id {SOME}")
        of_these = _RUNS_OF.format(f"{some} AND k.run_id {SOME}")
        query, page = _RUNS_IF.format(SOME, whose), (*values, limit, offset)
        key, filters = self._namespace, where.conditions - {"scope"}
        by_index = {"run_id", "session_id"} & filters
        user = where.user_id if isinstance(where.user_id, str) else None
        earlier = self._earlier_rows(connection, limit + offset, user=user)
        for row in () if by_index else earlier:
            runs = {*self._column(connection, newest, key, row, *whom)}
            runs.difference_update(self._column(connection, older, key, row, many(runs)))
            if filters:
                runs = self._column(connection, of_these, *asked, many(runs))
            found = self._column(connection, query, key, many(runs), *page)
            if len(found) == limit:
                return found
        if not filters and where.scope not in (None, EVERY_SCOPE):
            some, asked = "k.namespace = ? AND k.scope = ?", [key, where.scope]
            filters = {"scope"}
        if filters:
            runs = self._column(connection, _RUNS_OF.format(some), *asked)
            return self._column(connection, query, key, many(runs), *page)
        if where.scope is None:
            return self._column(connection, _RUNS_IF.format("IS NOT NULL", whose), key, *page)
        every = {"namespace": key, "limit": limit, "offset": offset}
        return [run_id for (run_id,) in connection.execute(self._runs, every)]

    def score_run(self, run_id: str, value: float, feedback: str | None) -> None:
        """Set a run's score."""
        if feedback is not None and not isinstance(feedback, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidStepError(f"the feedback on run {run_id!r} is {feedback!r}; give a text.")
        if feedback is not None and not (
            is_storable(feedback) and len(feedback.encode()) <= MAX_STEP_BYTES
        ):
            raise InvalidStepError(
                f"the feedback on run {run_id!r} holds a lone surrogate, or is longer than "
                f"{MAX_STEP_BYTES:,} bytes; give another text."
            )
        if not math.isfinite(value):
            raise InvalidStepError(f"the score of run {run_id!r} is {value}; give a finite number.")
        self._catch_up()
        with self._db.writing(beside=DERIVED) as connection:
            key = (self._namespace, run_id)
            if not is_storable(run_id) or not connection.execute(_KNOWN_RUN, key).fetchone():
                raise UnknownRunError(run_id)
            checksum = row_checksum(*key, value, feedback)
            connection.execute(_SCORE_RUN, (*key, value, feedback, checksum))

    def run_scores(self, run_ids: Sequence[str]) -> dict[str, tuple[float, str | None]]:
        """Return the scores of runs, with what was said of them in words."""
        asked = list(dict.fromkeys(filter(is_storable, run_ids)))
        if not asked:
            return {}
        self._catch_up()
        with self._db.asking() as connection:
            found = connection.execute(_RUN_SCORES, (self._namespace, many(asked))).fetchall()
        return {run_id: self._score(run_id, *values) for run_id, *values in found}

    def _rows_of(self, connection: Connection, ids: Sequence[str]) -> dict[str, int]:
        asked = many([step_id for step_id in ids if is_storable(step_id)])
        if not asked:
            return {}
        return dict(connection.execute(_ROWS_BY_ID, (self._namespace, asked)).fetchall())

    def _condition(self, connection: Connection, where: StepFilter) -> Condition:
        """Return the WHERE clause, given what is hidden in this transaction."""
        lines, asked = self._lines(connection), where.session_id
        if asked is not None:
            lines = lines._replace(pinned=steps_of(connection, self._namespace, asked))
        sql, values = condition(where, self._namespace, lines, self._of_metadata, self._columns)
        for each in where.excluded():
            gone, more = self._condition(connection, each)
            sql, values = f"{sql} AND NOT coalesce(({gone}), FALSE)", [*values, *more]
        if either := [self._condition(connection, each) for each in where.alternatives()]:
            sql = f"{sql} AND ({' OR '.join(f'({part})' for part, _ in either)})"
            values += [value for _, more in either for value in more]
        for key, operators in operators_asked(where.metadata).items():
            lists, meets = "contains" in operators, meeting(operators)
            found = self._metadata_of(connection, (sql, values), key, lists=lists)
            sql, values = f"k.row {SOME}", [many({row for row, value in found if meets(value)})]
        return sql, values

    def _lines(self, connection: Connection) -> Lines:
        key = (self._namespace, self._namespace)
        hides, revokes = connection.execute(SOME_HIDDEN, key).fetchone()
        return Lines(bool(hides), self._late_revoked(connection) if revokes else None, [])

    def _matching(self, connection: Connection, where: StepFilter) -> list[int]:
        sql, values = self._condition(connection, where)
        query = f"SELECT k.row FROM step_view k WHERE {sql} ORDER BY k.row"  # noqa: S608 - parts are ours, values are bound
        return self._column(connection, query, *values)

    def _add_vectors(
        self, connection: Connection, steps: Mapping[int, AgentStep]
    ) -> list[DamagedRow]:
        """Give steps their embeddings; return those that are damaged, which they get none of."""
        lost: list[DamagedRow] = []
        asked = (self._namespace, many([*steps]))
        for row, *embedding in connection.execute(_VECTORS, asked):
            try:
                vector = checked_vector(row, *embedding)
            except DamagedFileError:
                lost.append(DamagedRow("embedding", row, is_given(row, *embedding)))
                continue
            if vector is not None:
                single, given = vector.astype(np.float32), embedding[1]
                length = 1.0 if given else np.linalg.norm(single)  # as an embedder gives it
                steps[row].vector = (single / length).tolist()
        return lost

    def _read(self, connection: Connection, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows, showing their run's score where they have none."""
        found = connection.execute(READ_STEPS, (self._namespace, many(rows)))
        steps = {row: self._decoded(row, body, checksum) for row, body, checksum in found}
        unscored = {s.run_id for s in steps.values() if s.score is None and s.run_id is not None}
        if unscored:
            scores = self._run_scores(connection, unscored)
            for step in steps.values():
                if scores and step.score is None and step.run_id in scores:
                    step.score = scores[step.run_id]
        return steps

    def _run_scores(self, connection: Connection, runs: Iterable[str]) -> dict[str, float]:
        """Return the scores of those runs that have one."""
        asked = (self._namespace, many(list(runs)))
        found = connection.execute(_RUN_SCORES, asked).fetchall()
        return {run_id: self._score(run_id, *values)[0] for run_id, *values in found}

    def _score(
        self, run_id: str, score: float, feedback: str | None, checksum: int | None
    ) -> tuple[float, str | None]:
        """Return what was said about a run, if it is what was written."""
        expected = row_checksum(self._namespace, run_id, score, feedback)
        if checksum not in (None, expected):
            raise damaged(f"{self._db.name}: the score of run {run_id!r}")
        return score, feedback

    def _summary(self, connection: Connection, run_id: str) -> RunSummary:
        key = (self._namespace, run_id)
        session_id, scope, steps, errors, started_at, ended_at, open_calls = connection.execute(
            _SUMMARY, key
        ).fetchone()
        first = next(iter(self._column(connection, _FIRST_STEP, *key)), "")
        last = next(iter(self._column(connection, _LAST_STATUS, *key)), "")
        status = "interrupted" if open_calls > 0 else _RUN_STATUS.get(last, "completed")
        run = connection.execute(_RUN, key).fetchone()
        score, feedback = self._score(*run) if run else (None, None)
        known = (run_id, session_id, scope, steps, errors, first, started_at, ended_at)
        return RunSummary(*known, score, feedback, status)
