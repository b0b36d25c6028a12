"""Steps in a database: append and forget. The statements are the back-end's, their order is not.

A step recorded into a session that has messages works towards its next one; a step that is replaced
stays where it stood.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.errors import InvalidStepError, UnknownStepError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.step_text import own_text, text_hash
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.stores.body import checked_body
from hybridagi_steps.stores.checksums import vector_blob, vector_checksum
from hybridagi_steps.stores.commits import refuse_twice
from hybridagi_steps.stores.sql.prompt_tables import PromptTables
from hybridagi_steps.stores.sql.steps import READ_STEPS
from hybridagi_steps.stores.sql.tables import (
    ANYWHERE,
    SOME,
    Connection,
    is_storable,
    many,
    remove_empty_runs,
    runs_of,
)

_ENDS_OF_SESSIONS = """SELECT s.id, s.branch_id, 1 + coalesce(
        (SELECT max(sequence) FROM message WHERE branch_id = b.id), b.fork_sequence)
    FROM session s JOIN branch b ON b.id = s.branch_id
    WHERE s.namespace = ? AND s.id IN (SELECT value FROM json_each(?))"""
NOWHERE = (None, None)
_PINS = """SELECT id, branch_id, sequence FROM agent_step
    WHERE branch_id IS NOT NULL AND row IN (SELECT value FROM json_each(?))"""
INSERT_GIVEN = """INSERT INTO embedding
    (namespace, row, dimension, text_hash, given, scoped, vector, checksum)
    VALUES (?, ?, ?, ?, 1, ?, ?, ?)"""
_RESCORED = """UPDATE namespace SET branches_moved = branches_moved + 1 WHERE id = ?
    RETURNING branches_moved"""
"""Followers that keep scores learn from it that they may be others since."""
_RESCORINGS_KEPT = 256
_CALLS = f"""SELECT s.id, k.run_id FROM step_view k JOIN agent_step s ON s.row = k.row
    WHERE k.namespace = ? AND k.row {SOME} AND k.step_type = 'ProgramCall'"""  # noqa: S608 - no value in it
_ENDS = f"""SELECT k.row FROM step_view k
    WHERE k.namespace = ? AND k.step_type = 'ProgramEnd' AND k.program_id {SOME}"""  # noqa: S608 - no value in it
_FORGET_VECTORS = f"DELETE FROM embedding WHERE given = 0 AND row {SOME}"  # noqa: S608 - no value in it
_VECTORS_FROM = """UPDATE namespace SET vectors_through =
    CASE WHEN vectors_through > :row THEN :row ELSE vectors_through END WHERE id = :namespace"""
_COUNTED_THROUGH = """SELECT t.through FROM namespace n
    JOIN tally t ON t.namespace = n.id AND t.rows_gone = n.rows_gone WHERE n.id = ?"""
_STAYS = (
    f"o.namespace = :namespace AND +o.row <= :through AND NOT (+o.row {SOME.replace('?', ':rows')})"
)
_LESS = f"""WITH gone AS MATERIALIZED (SELECT s.id, k.parent_id, k.run_id, k.session_id
        FROM step_view k JOIN agent_step s ON s.row = k.row
        WHERE k.namespace = :namespace AND k.row {SOME.replace("?", ":rows")}),
    children AS MATERIALIZED (SELECT o.row FROM step_view o
        WHERE {_STAYS} AND o.parent_id IN (SELECT id FROM gone))
    SELECT (SELECT count(*) FROM gone) AS steps,
        (SELECT count(*) FROM (SELECT DISTINCT run_id FROM gone WHERE run_id IS NOT NULL) r
            WHERE NOT EXISTS (SELECT 1 FROM step_view o
                WHERE {_STAYS} AND o.run_id = r.run_id)) AS runs,
        (SELECT count(*) FROM gone g WHERE g.parent_id IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM agent_step p
                WHERE p.namespace = :namespace AND p.id = g.parent_id AND +p.row <= :through))
        - (SELECT count(*) FROM children) AS dangling_parents,
        (SELECT count(*) FROM (SELECT DISTINCT session_id FROM gone
                WHERE session_id IS NOT NULL) f
            WHERE NOT EXISTS (SELECT 1 FROM session s
                    WHERE s.namespace = :namespace AND s.id = f.session_id)
                AND NOT EXISTS (SELECT 1 FROM step_view o
                    WHERE {_STAYS} AND o.session_id = f.session_id AND o.branch_id IS NULL)
        ) AS sessions"""  # noqa: S608 - no value in it
"""How much less `stats` counts without some rows; they may be the last that name a session."""
_COUNT_LESS = """UPDATE tally
    SET rows_gone = (SELECT rows_gone FROM namespace WHERE id = ?), steps = steps - ?,
        runs = runs - ?, dangling_parents = dangling_parents - ?, sessions = sessions - ?,
        sessions_moved = CASE WHEN EXISTS (SELECT 1 FROM agent_step
                WHERE ? > 0 AND namespace = tally.namespace AND branch_id IS NOT NULL)
            THEN -1 ELSE sessions_moved END
    WHERE namespace = ?"""
"""Whether a step that stands in a session names another, no index says: then count them anew."""
_MARK = """INSERT INTO stale_text (namespace, row) SELECT namespace, row FROM step_text
    WHERE row IN (SELECT value FROM json_each(?)) ON CONFLICT DO NOTHING"""


class Rescorings:
    """The last scores that one process gave to steps, by what `branches_moved` was after each."""

    def __init__(self) -> None:
        self._scores: dict[tuple[int, int], dict[int, float]] = {}

    def note(self, moved: tuple[int, int], scores: dict[int, float]) -> None:
        """Take note of scores that are committed, and of how often the database had come back."""
        kept = [*self._scores.items(), (moved, scores)]
        self._scores = dict(kept[-_RESCORINGS_KEPT:])

    def between(self, restarts: int, since: int, through: int) -> dict[int, float] | None:
        """Return all scores given between, if every move was one of these."""
        known, found = self._scores, dict[int, float]()
        if through - since > _RESCORINGS_KEPT:
            return None
        for moved in range(since + 1, through + 1):
            if (scores := known.get((restarts, moved))) is None:
                return None
            found |= scores
        return found


class StepWriting(PromptTables):
    """Implements what `StepStore` writes; see protocols.py for the contract."""

    _forget_rows: tuple[str, ...]
    """Forget rows with all that was derived from them; `:namespace`, `:rows`."""
    _forget_namespace: tuple[str, ...]
    """Forget everything of a `:namespace`."""
    _score_step: tuple[str, ...]
    """Write a `:body` with its `:checksum` and `:score` into a `:row` of a `:namespace`."""
    _unpin_rows: tuple[str, ...]
    """Let the steps in `:rows` of a `:namespace` stand at no message."""
    _empty_rows: str
    """Takes all words out of rows, under a new `seq`."""

    @abstractmethod
    def _showing(self, connection: Connection, rows: Sequence[int]) -> set[int]:
        """Return the rows whose words show one of some rows."""

    @abstractmethod
    def _append_one(self, step: AgentStep) -> int:
        """Store one step without a vector in a transaction of its own; return its row."""

    def append(self, steps: Sequence[AgentStep], *, replace: bool = False) -> list[int]:
        """Store steps, all or none."""
        if len(steps) == 1 and not replace and steps[0].vector is None:
            return [self._append_one(steps[0])]
        ids = [id_text(step.id) for step in steps]
        refuse_twice(ids)
        if not ids:
            return []
        # Followers read embeddings in the order of their numbers, which those drawn beside lack.
        alone = replace or any(step.vector is not None for step in steps)
        with self._db.writing(beside=None if alone else ANYWHERE) as connection:
            prompts = self._prompts_that_stay(connection, steps) if replace else {}
            runs, pins = self._remove_old(connection, ids) if replace else ([], {})
            rows = self._insert_all(connection, ids, steps, pins)
            self._insert_prompts(connection, prompts)
            remove_empty_runs(connection, self._namespace, runs)
        return rows

    def score_steps(self, scores: Mapping[str, float]) -> None:
        """Set the scores of steps, all or none."""
        wanted = {id_text(step_id): value for step_id, value in scores.items()}
        for step_id, value in wanted.items():
            if not math.isfinite(value):
                raise InvalidStepError(
                    f"the score of step {step_id!r} is {value}; give a finite number."
                )
        if not wanted:
            return
        with self._db.writing() as connection:
            rows = self._rows_of(connection, list(wanted))
            if missing := wanted.keys() - rows.keys():
                raise UnknownStepError(min(missing))
            asked = (self._namespace, many(list(rows.values())))
            for row, body, checksum in connection.execute(READ_STEPS, asked).fetchall():
                step = self._decoded(row, body, checksum)
                step.score = wanted[id_text(step.id)]
                body = checked_body(step, self._namespace)
                self._write_score(connection, row, body, step.score)
            (moved,) = connection.execute(_RESCORED, (self._namespace,)).fetchone()
        self._rescored.note(
            (self._restarts, moved), {row: float(wanted[name]) for name, row in rows.items()}
        )

    def _write_score(
        self, connection: Connection, row: int, body: tuple[str, int], score: float | None
    ) -> None:
        """Put a body, with its checksum and its score, in the place of a row's."""
        values = dict(zip(("body", "checksum"), body, strict=True))
        for statement in self._score_step:
            asked = {"row": row, "namespace": self._namespace, **values, "score": score}
            connection.execute(statement, asked)

    @cached_property
    def _rescored(self) -> Rescorings:
        return Rescorings()

    def rescored(self, since: int, through: int) -> Mapping[int, float] | None:
        """Return the steps scored here between two moves of branches; None if others moved any."""
        return self._rescored.between(self._restarts, since, through)

    def _remove_old(
        self, connection: Connection, ids: Sequence[str]
    ) -> tuple[list[str], dict[str, BranchPosition]]:
        """Remove the steps that are being replaced; return their runs, and where they stood."""
        rows = sorted(self._rows_of(connection, ids).values())
        runs = runs_of(connection, self._namespace, rows)
        pinned = connection.execute(_PINS, (many(rows),)).fetchall()
        self._forget(connection, rows)
        return runs, {step_id: BranchPosition(*pin) for step_id, *pin in pinned}

    def _ends_of(
        self, connection: Connection, session_ids: Iterable[str | None]
    ) -> dict[str | None, tuple[Any, Any]]:
        """Return where sessions go on, nowhere when they have no messages.

        Of a name that no database can hold it is nowhere, too: its step is refused when encoded.
        """
        ends: dict[str | None, tuple[Any, Any]] = dict.fromkeys(session_ids, NOWHERE)
        if names := sorted(name for name in ends if name is not None and is_storable(name)):
            found = connection.execute(_ENDS_OF_SESSIONS, (self._namespace, many(names)))
            ends.update((name, (branch_id, sequence)) for name, branch_id, sequence in found)
        return ends

    def _insert_vectors(
        self, connection: Connection, rows: Sequence[int], steps: Sequence[AgentStep]
    ) -> None:
        """Insert the embeddings that steps brought along."""
        given = [
            self._given(row, step)
            for row, step in zip(rows, steps, strict=True)
            if step.vector is not None
        ]
        if given:
            connection.executemany(INSERT_GIVEN, given)

    def _given(self, row: int, step: AgentStep) -> tuple[Any, ...]:
        vector = step.vector or []
        scoped, words = step.scope is not None, text_hash(own_text(step))
        blob = vector_blob(vector)
        checksum = vector_checksum(row, words, 1, blob)
        return (self._namespace, row, len(vector), words, scoped, blob, checksum)

    def _forget(self, connection: Connection, rows: Sequence[int]) -> None:
        """Remove steps with all that was derived from them; their runs stay."""
        if not rows:
            return
        self._forget_prompts_in(connection, rows)
        ends = self._ends_of_calls(connection, rows)
        shown = self._showing(connection, rows) | ends
        values = {"namespace": self._namespace, "rows": many(rows)}
        less = self._counted_less(connection, rows)
        for statement in self._forget_rows:
            connection.execute(statement, values)
        if less is not None:
            at = self._namespace
            connection.execute(_COUNT_LESS, (at, *less, less[-1], at))
        self._empty(connection, shown)
        if ends:
            connection.execute(_FORGET_VECTORS, (many(sorted(ends)),))
            asked = {"row": min(ends) - 1, "namespace": self._namespace}
            connection.execute(_VECTORS_FROM, asked)

    def _counted_less(self, connection: Connection, rows: Sequence[int]) -> Sequence[int] | None:
        """Return how much less there is without some steps; None where no count is kept."""
        known = connection.execute(_COUNTED_THROUGH, (self._namespace,)).fetchone()
        if known is None:
            return None
        through = int(known[0])
        counted = many(row for row in rows if row <= through)
        if not counted:
            return 0, 0, 0, 0
        asked = {"namespace": self._namespace, "through": through, "rows": counted}
        return connection.execute(_LESS, asked).fetchone()

    def _ends_of_calls(self, connection: Connection, rows: Sequence[int]) -> set[int]:
        """Return the ends of the programs whose calls stand in rows: they tell what was asked."""
        calls = connection.execute(_CALLS, (self._namespace, many(rows))).fetchall()
        if not calls:
            return set()
        asked = (self._namespace, many([name for name, _ in calls]))
        runs = many(sorted({run for _, run in calls if run is not None}))
        ends = {*self._column(connection, f"{_ENDS} AND k.run_id {SOME}", *asked, runs)}
        if any(run is None for _, run in calls):  # no index has these
            ends.update(self._column(connection, f"{_ENDS} AND k.run_id IS NULL", *asked))
        return ends - {*rows}

    def _forget_all(self, connection: Connection) -> None:
        """Remove everything of this namespace; followers start again."""
        for statement in self._forget_namespace:
            connection.execute(statement, {"namespace": self._namespace})

    def _empty(self, connection: Connection, rows: Iterable[int]) -> None:
        """Take all words out of these rows and mark them stale; rows without words are skipped."""
        if asked := sorted(rows):
            connection.execute(self._empty_rows, (many(asked),))
            connection.execute(_MARK, (many(asked),))
