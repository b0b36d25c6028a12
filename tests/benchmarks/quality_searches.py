"""One question to one memory, with the aim that its task names, as `StepMemory.search` is asked."""

from __future__ import annotations

from inspect import signature
from typing import Any

from hybridagi_steps.dspy_types import QueryWithSteps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.filters import StepFilter, StepHit
from tests.benchmarks.retrieval_tasks import Aim, Question


class Searches:
    """Asks a memory benchmark questions."""

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        known = "aim" in signature(memory.search).parameters
        self.aims: tuple[Aim, ...] = ("next", "episode", "tool") if known else ()
        """The aims that can be named."""

    def hits(
        self, question: Question, k: int, aim: Aim | None = None, **options: Any
    ) -> list[StepHit]:
        """Return k hits; an aim that needs a state is left out where there is none."""
        query: str | QueryWithSteps = question.text
        if aim == "next" and question.state is not None:
            query = QueryWithSteps.from_hits(query, [StepHit(step=question.state, score=1.0)])
        if aim in self.aims and (aim != "next" or question.state is not None):
            options["aim"] = aim
        return self._memory.search(query, k, where=scope_of(question), **options)


def scope_of(question: Question) -> StepFilter:
    """Return what a question may see."""
    return StepFilter(exclude_run_id=[question.run_id] if question.unseen else None)
