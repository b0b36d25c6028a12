"""Stored runs as whatever learns from them reads them: a user's own history, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridagi_steps.errors import InvalidMemoryError, InvalidStepError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import all_of
from hybridagi_steps.optimize.exclusion import of_served_user
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter, StepHit
from hybridagi_steps.records.store_values import CLOSING
from hybridagi_steps.validation import Steps, Where, for_recall

GOOD = 0.5
"""The least score of a run that ended well."""
_EVERYTHING = 2**62


def runs_of(
    memory: StepMemory, where: Where = None, *, closed: bool = False
) -> dict[str, list[AgentStep]]:
    """Return the steps that match by run, runs in the order they began, steps as `in_order`.

    Trial runs and what is revoked are left out unless `where` names their scope; inside a run that
    names a user so are those of others, unless `where` says whose. `closed` adds the Actions that
    closed the loop of an agent, which recall does not see.
    """
    check_memory(memory)
    asked = of_served_user(memory, for_recall(where))
    runs: dict[str, list[AgentStep]] = {}
    every = [] if asked is None else [asked]
    if closed and asked is not None and asked.scope is None:
        every.append(asked.model_copy(update={"scope": CLOSING}))
    with unnoted():
        found = [step for each in every for step in memory.find(each, limit=_EVERYTHING).steps]
    for step in found:
        if step.run_id is not None:
            runs.setdefault(step.run_id, []).append(step)
    return {run_id: in_order(steps) for run_id, steps in runs.items()}


def run_in_order(memory: StepMemory, run_id: str) -> list[AgentStep]:
    """Return all steps of a run, as `in_order`."""
    return in_order(list(memory.iter_steps({"run_id": run_id})))


def in_order(stored: list[AgentStep]) -> list[AgentStep]:
    """Return steps by hop; as stored where hops repeat, as the depths of a search tree do."""
    hops = {step.hop for step in stored}
    return sorted(stored, key=lambda step: step.hop) if len(hops) == len(stored) else stored


def closed_after(
    memory: StepMemory,
    like: Sequence[StepHit],
    hits: Sequence[StepHit],
    where: StepFilter | None,
    most: int,
) -> list[StepHit]:
    """Return what closed a run after one of some steps, scored beside other hits, if it passes.

    It stands in a scope of its own, so no index links it to the step before it. Its score is the
    best of the hits', times how much better that step is than those that the hits came after.
    """
    if where is None or not like:
        return []
    scores = {id_text(hit.step.id): hit.score for hit in like}
    others = max((scores.get(str(hit.step.parent_id), 0.0) for hit in hits), default=0.0)
    unit = max((hit.score for hit in hits), default=1.0) / (others or like[0].score or 1.0)
    children = memory.repository().store.children([*scores])
    closing = {str(step.parent_id): step for step in children if step.scope == CLOSING}
    found: list[StepHit] = []
    for hit in like:
        step = closing.get(id_text(hit.step.id))
        if step is None or len(found) == most:
            continue
        with unnoted():
            passing = memory.find(where.and_(StepFilter(run_id=step.run_id))).steps
        if any(each.id == step.id for each in passing):
            why, score = f"closed a run after a step like this state: {hit.why}", unit * hit.score
            told: dict[str, Any] = {"step": step, "why": why, "score": score, "parts": {}}
            found.append(hit.model_copy(update=told))
    return found


def ending_of(memory: StepMemory, run_id: str | None) -> tuple[str, float | None]:
    """Return how a run ended, and how good it was found."""
    where = StepFilter(run_id=run_id, scope=EVERY_SCOPE)
    runs = memory.repository().store.runs(limit=1, where=where) if run_id is not None else []
    return (runs[0].status, runs[0].score) if runs else ("", None)


def check_memory(memory: object) -> None:
    """Refuse what is no memory."""
    if not isinstance(memory, StepMemory):
        raise InvalidMemoryError(f"a StepMemory is wanted, not {type(memory).__name__}.")


def steps_given(steps: Steps) -> list[AgentStep]:
    """Return one step, several, or those that something holds, as a list."""
    if isinstance(steps, AgentStep):
        return [steps]
    wanted = "AgentSteps, such as memory.run(run_id),"
    return all_of(AgentStep, getattr(steps, "steps", steps), wanted, InvalidStepError)


def action_of(step: AgentStep) -> str | None:
    """Return what a step did, in a word: its tool, else what it chose, else its predictor."""
    if step.step_type == AgentStepType.Decision:
        return str((step.outputs or {}).get("choice", "")) or None
    return (step.tool or step.predictor) if step.step_type == AgentStepType.Action else None
