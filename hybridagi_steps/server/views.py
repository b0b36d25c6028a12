"""What both servers say of steps and runs, as plain data: the calls behind search and run.

Knows no HTTP and no MCP. Vectors are left out everywhere: they are for machines only, and large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridagi_steps.errors import InvalidQueryError, UnknownStepError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.records.store_values import RunSummary

_LONGEST_TITLE = 200


def hits_for(
    memory: StepMemory,
    k: int,
    *,
    query: str | None = None,
    like: str | None = None,
    **options: Any,
) -> list[StepHit]:
    """Search by words, or `like` the step of an id, which is not among its own hits."""
    if (query is None) == (like is None):
        raise InvalidQueryError("name what to look for: either words or a step's id.")
    if like is None:
        return memory.search(query or "", k, **options)
    model = memory.get_steps([like])
    if not model:
        raise UnknownStepError(like)
    own = id_text(model[0].id)
    hits = memory.search(model[0], k + 1, **options)
    return [hit for hit in hits if id_text(hit.step.id) != own][:k]


def run_data(
    run_id: str, steps: Sequence[AgentStep], session_id: str | None = None
) -> dict[str, Any]:
    """Return a run, its steps by hop, and what they cost; `session_id` is for want of theirs."""
    metrics = RunMetrics.of(*(step.metrics for step in steps if step.metrics is not None))
    times = [step.created_at.isoformat() for step in steps]
    first = steps[0] if steps else None
    summary = RunSummary(
        run_id,
        session_id=next((step.session_id for step in steps if step.session_id), session_id),
        scope=first and first.scope,
        steps=len(steps),
        errors=sum(step.status == "error" for step in steps),
        first_step=id_text(first.id) if first else "",
        started_at=min(times, default=""),
        ended_at=max(times, default=""),
        score=first and first.score,
        feedback=None,
    )
    return {
        "run": listed_run(summary, first),
        "steps": without_vectors(steps),
        "metrics": metrics.model_dump(mode="json", exclude_none=True),
    }


def listed_run(summary: RunSummary, first: AgentStep | None) -> dict[str, Any]:
    """Return a run as listings show it; it begins with the step `first`."""
    return filled(**summary._asdict(), begins=_title_of(first))


def hit_data(hit: StepHit) -> dict[str, Any]:
    """Return one hit."""
    return filled(
        step=without_vectors([hit.step])[0],
        score=hit.score,
        dense_score=hit.dense_score,
        lexical_score=hit.lexical_score,
        why=hit.why,
        parts=hit.parts or None,
        context=without_vectors(hit.context),
        kind=hit.kind,
        session_id=hit.session_id,
        sequence=hit.sequence,
    )


def without_vectors(steps: Sequence[AgentStep]) -> list[dict[str, Any]]:
    """Return steps without their vectors and without members that have no value."""
    return [step.model_dump(mode="json", exclude={"vector"}, exclude_none=True) for step in steps]


def filled(**members: object) -> dict[str, Any]:
    """Return an object without the members that have no value."""
    return {key: value for key, value in members.items() if value is not None}


def _title_of(step: AgentStep | None) -> str:
    """Return what a run's first step does, in a line: what it was asked, else what it is for."""
    if step is None:
        return ""
    asked = next((value for value in step.arguments.values() if isinstance(value, str)), None)
    words = asked or step.purpose or step.program or step.step_type.value
    return " ".join(words.split())[:_LONGEST_TITLE]
