"""What a StepFilter means for one step, in plain Python; the SQL of a database must agree.

The conformance tests hold both to the same answers. Names compare as text; a metadata value equals
one of the same JSON kind (`True` is not 1, while 1 is 1.0), and None equals a stored null, not a
missing key. Nothing here knows how steps are kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, NamedTuple

from hybridagi_steps.protocols import ABANDONED, REVOKED, UNREVOKED
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.provenance import source_of

Scalar = str | int | float | bool | None
ScalarKind = Literal["null", "true", "false", "number", "text", "other"]

_CALL_TYPES = ("ProgramCall", "ProgramEnd")
_INTEGERS = range(-(2**63), 2**63)


def scalar_kind(value: object) -> tuple[ScalarKind, str | int | float | None]:
    """Return the JSON kind of a value and the value to compare within that kind.

    Integers that a database column cannot hold are compared as floats everywhere.
    """
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return ("true", None) if value else ("false", None)
    if isinstance(value, int):
        return "number", value if value in _INTEGERS else _as_float(value)
    if isinstance(value, float):
        return "number", value
    return ("text", value) if isinstance(value, str) else ("other", None)


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def program_called(step: AgentStep) -> str | None:
    """Return the program that a ProgramCall or ProgramEnd names."""
    name = (step.inputs or {}).get("program")
    return name if str(step.step_type) in _CALL_TYPES and isinstance(name, str) else None


def tool_used(step: AgentStep) -> str | None:
    """Return the tool that an Action names, if it is a text."""
    name = (step.inputs or {}).get("tool")
    return name if isinstance(name, str) else None


class Standing(NamedTuple):
    """Where a step stands, as its session's branches have it."""

    in_session: bool
    """Whether it belongs to the lineage of the session asked for, if any."""
    hidden: bool
    """Whether it stands on a branch that no session reads that far."""
    revoked: bool = False
    """Whether it was revoked, or descends from a step that was."""


def matches(
    step: AgentStep,
    where: StepFilter,
    standing: Standing,
    *,
    score: float | None,
    calls: Collection[str],
) -> bool:
    """Tell whether a step passes a filter.

    Args:
        step: The step.
        where: The filter.
        standing: Where it stands among the branches.
        score: The step's own score, else its run's.
        calls: Ids of the ProgramCalls that name `where.program`.
    """
    return (
        _in_scope(step, where.scope, standing)
        and standing.in_session
        and (where.run_id is None or step.run_id == where.run_id)
        and (where.user_id is None or step.user_id == where.user_id)
        and (where.step_types is None or step.step_type in where.step_types)
        and (where.status is None or step.status in where.status)
        and (where.exclude_run_id is None or step.run_id not in where.exclude_run_id)
        and (where.min_score is None or (score is not None and score >= where.min_score))
        and (where.since is None or step.created_at >= where.since)
        and (where.until is None or step.created_at < where.until)
        and (where.tools is None or tool_used(step) in where.tools)
        and _in_program(step, where, calls)
        and _has_metadata(step, where)
        and _from_source(step, where)
    )


def _in_scope(step: AgentStep, scope: str | None, standing: Standing) -> bool:
    if scope == REVOKED:
        return standing.revoked or step.scope == scope
    if standing.revoked and scope != EVERY_SCOPE:
        return False
    if scope is None:
        return step.scope is None and not standing.hidden
    if scope == ABANDONED:
        return standing.hidden or step.scope == scope
    return scope in (EVERY_SCOPE, UNREVOKED, step.scope)


def _from_source(step: AgentStep, where: StepFilter) -> bool:
    source = source_of(step.metadata)
    return (
        (where.sources is None or source in where.sources)
        and (where.trust in (None, "imported") or source is None)
        and (where.trust != "own" or step.user_id == where.user_id)
    )


def _in_program(step: AgentStep, where: StepFilter, calls: Collection[str]) -> bool:
    if where.program_id is not None:
        asked = {where.program_id, id_text(where.program_id)}
        if step.program_id not in asked:
            return False
    return (
        where.program is None or program_called(step) == where.program or step.program_id in calls
    )


def _has_metadata(step: AgentStep, where: StepFilter) -> bool:
    metadata = step.metadata or {}
    return all(
        key in metadata and scalar_kind(metadata[key]) == scalar_kind(value)
        for key, value in (where.metadata or {}).items()
    )
