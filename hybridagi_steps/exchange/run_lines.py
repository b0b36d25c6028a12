"""How a run's score stands in our own JSONL: `{"record": "run", "run_id": …, "score": …}`.

Steps without a score of their own show their run's; written with it they would keep it for ever. So
the run's score has a line of its own, after its steps, and they are written without.
"""

from __future__ import annotations

from typing import Any

import orjson

from hybridagi_steps.exchange.records import BadRecordError, ParsedScore
from hybridagi_steps.protocols import RunSummary
from hybridagi_steps.records.agent_step import AgentStep

RUN = "run"
_PAGE = 1_000


class RunScores:
    """The scores of runs, as a memory knows them.

    Args:
        memory: One that has no `runs` has no scores.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._scored: dict[str, RunSummary] | None = None
        self._written: dict[str, RunSummary] = {}

    def of(self, run_id: str | None) -> RunSummary | None:
        """Return a run with a score; None when it has none."""
        if self._scored is None:
            self._scored = self._read()
        return None if run_id is None else self._scored.get(run_id)

    def own(self, step: AgentStep) -> AgentStep:
        """Return a step as it is without its run's score, which is to be written as well."""
        run = self.of(step.run_id) if step.score is not None else None
        if run is None or run.score != step.score:
            return step
        self._written[run.run_id] = run
        return step.model_copy(update={"score": None})

    def lines(self) -> list[bytes]:
        """Return the lines of the runs whose steps were written without."""
        return [_line(run) for run in self._written.values()]

    def _read(self) -> dict[str, RunSummary]:
        runs = getattr(self._memory, "runs", None)
        found: list[RunSummary] = []
        while runs is not None and (page := runs(limit=_PAGE, offset=len(found))):
            found += page
        return {run.run_id: run for run in found if run.score is not None}


def is_run_line(fields: dict[str, Any]) -> bool:
    """Whether a record is a run's score, as we write it."""
    return fields.get("record") == RUN


def read_run(line: int, fields: dict[str, Any]) -> ParsedScore:
    """Return the score that a line tells.

    Raises:
        BadRecordError: It tells none.
    """
    run_id, score, feedback = fields.get("run_id"), fields.get("score"), fields.get("feedback")
    if not isinstance(run_id, str) or not isinstance(score, int | float):
        raise BadRecordError("a run without a run_id, or without a score")
    return ParsedScore(line, run_id, float(score), feedback if isinstance(feedback, str) else None)


def _line(run: RunSummary) -> bytes:
    told = {"record": RUN, "run_id": run.run_id, "score": run.score}
    if run.feedback is not None:
        told["feedback"] = run.feedback
    return orjson.dumps(told) + b"\n"
