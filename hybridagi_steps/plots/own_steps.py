"""Whose steps a plot shows: a user's own, unless a scope is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.validation import Where


def own_steps(memory: StepMemory, where: Where) -> Iterator[AgentStep]:
    """Yield the steps that match; those of trial runs only when `where` names a scope."""
    asked = StepFilter.of(where)
    for step in memory.iter_steps(asked):
        if asked.scope is not None or step.scope is None:
            yield step
