"""One question to one memory, with the aim that its task names, as `StepMemory.search` is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from hybridagi_steps.dspy_types import QueryWithSteps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.filters import StepFilter, StepHit
from tests.benchmarks.retrieval_tasks import Aim, Question


class Searches:
    """Asks a memory benchmark questions."""

    aims: tuple[Aim, ...] = get_args(Aim)

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory

    def hits(
        self,
        question: Question,
        k: int,
        aim: Aim | None = None,
        *,
        tools: Sequence[str] | None = None,
        **options: Any,
    ) -> list[StepHit]:
        """Return k hits; an aim that needs a state is left out where there is none."""
        where = scope_of(question).model_copy(update={"tools": tools and list(tools)})
        if aim != "next":
            return self._memory.search(question.text, k, where=where, aim=aim, **options)
        if question.state is None:
            return self._memory.search(question.text, k, where=where, **options)
        state = StepHit(step=question.state, score=1.0)
        query = QueryWithSteps.from_hits(question.text, [state])
        return self._memory.search(query, k, where=where, aim=aim, **options)


def scope_of(question: Question) -> StepFilter:
    """Return what a question may see."""
    return StepFilter(exclude_run_id=[question.run_id] if question.unseen else None)
