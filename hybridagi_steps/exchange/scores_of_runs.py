"""How a run's score stands in our own JSONL: as `run_score` of the first of its steps.

Steps without a score of their own show their run's, in a file too; there they would keep it for
ever. So the first step of a run says `{"value": …, "feedback": …}`, and steps of that run with this
very score are read as having none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.records import ParsedScore, as_object
from hybridagi_steps.protocols import RunSummary
from hybridagi_steps.records.agent_step import AgentStep

RUN_SCORE = "run_score"
_PAGE = 1_000


class RunScores:
    """The scores of runs, as a memory knows them.

    Args:
        memory: One that has no `runs` has no scores.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._scored: dict[str, RunSummary] | None = None
        self._told: set[str] = set()

    def of(self, run_id: str | None) -> RunSummary | None:
        """Return a run with a score; None when it has none."""
        if self._scored is None:
            self._scored = self._read()
        return None if run_id is None else self._scored.get(run_id)

    def told_with(self, step: AgentStep) -> AgentStep:
        """Return a step as it is to be written: the first of its run says the run's score."""
        run = self.of(step.run_id)
        if run is None or run.run_id in self._told:
            return step
        self._told.add(run.run_id)
        said = {"value": run.score, "feedback": run.feedback}
        return step.model_copy(update={RUN_SCORE: {k: v for k, v in said.items() if v is not None}})

    def _read(self) -> dict[str, RunSummary]:
        runs = getattr(self._memory, "runs", None)
        found: list[RunSummary] = []
        while runs is not None and (page := runs(limit=_PAGE, offset=len(found))):
            found += page
        return {run.run_id: run for run in found if run.score is not None}


class RunScoresRead:
    """The scores of runs, as the lines of a file tell them."""

    def __init__(self) -> None:
        self._told: dict[str, ParsedScore] = {}

    def without(self, line: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a step without the score of its run."""
        run_id, said = fields.get("run_id"), as_object(fields.get(RUN_SCORE))
        if not isinstance(run_id, str):
            return fields
        value, feedback = said.get("value"), said.get("feedback")
        if isinstance(value, int | float):
            words = feedback if isinstance(feedback, str) else None
            self._told.setdefault(run_id, ParsedScore(line, run_id, float(value), words))
            fields = {name: fields[name] for name in fields if name != RUN_SCORE}
        told = self._told.get(run_id)
        inherits = told is not None and fields.get("score") == told.score
        return {**fields, "score": None} if inherits else fields

    def read(self) -> Iterator[ParsedScore]:
        """Yield them, when all steps were read."""
        yield from self._told.values()
