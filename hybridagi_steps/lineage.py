"""Walks along the links between stored steps: what led here, what followed, what program it was.

Links come from outside and may be broken or form a circle; every walk is bounded and visits a step
once.
"""

from __future__ import annotations

from typing import Literal

from hybridagi_steps.protocols import AgentStepStore
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter

Expand = Literal["parents", "following", "program"]
"""What a hit may bring along."""

FOLLOWING = 3
PROGRAM_STEPS = 50
_ANCESTORS = 10_000


def ancestors(store: AgentStepStore, step_id: str, limit: int = _ANCESTORS) -> list[AgentStep]:
    """Return the steps that led to this one, nearest first; a missing parent ends the walk."""
    found: list[AgentStep] = []
    seen = {step_id}
    here = store.get([step_id])
    while here and len(found) < limit and here[0].parent_id is not None:
        parent_id = id_text(here[0].parent_id)
        if parent_id in seen:
            break
        seen.add(parent_id)
        here = store.get([parent_id])
        found.extend(here)
    return found


def following(store: AgentStepStore, step_id: str, limit: int = FOLLOWING) -> list[AgentStep]:
    """Return the next steps along parent links, nearest first."""
    found: list[AgentStep] = []
    seen, edge = {step_id}, [step_id]
    while edge and len(found) < limit:
        fresh = [step for step in store.children(edge) if id_text(step.id) not in seen]
        edge = [id_text(step.id) for step in fresh]
        seen.update(edge)
        found.extend(fresh)
    return found[:limit]


def enclosing_program(
    store: AgentStepStore, step: AgentStep, limit: int = PROGRAM_STEPS
) -> list[AgentStep]:
    """Return the call a step stands in with all its direct steps, in order.

    A ProgramCall stands for itself; a step outside any program brings its whole run.
    """
    call_id = step.program_id
    if str(getattr(step.step_type, "value", step.step_type)) == "ProgramCall":
        call_id = id_text(step.id)
    if call_id is None:
        if step.run_id is None:
            return []
        return store.find(StepFilter(run_id=step.run_id, scope=EVERY_SCOPE), limit=limit)
    inside = store.find(StepFilter(program_id=call_id, scope=EVERY_SCOPE), limit=limit)
    return [*store.get([call_id]), *inside][:limit]


def context_of(store: AgentStepStore, step: AgentStep, expand: Expand) -> list[AgentStep]:
    """Return what `expand` asks for around a step."""
    if expand == "parents":
        return ancestors(store, id_text(step.id), PROGRAM_STEPS)
    if expand == "following":
        return following(store, id_text(step.id))
    return enclosing_program(store, step)
