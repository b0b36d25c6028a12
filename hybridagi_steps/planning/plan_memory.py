"""Plans in memory: which one succeeded for a similar requirement, and what work was done before.

A plan's run is a ProgramCall of `Orchestrator` that holds the requirement, and a ProgramEnd that
holds the plan as it stood when it had succeeded. So a plan is found as any other step is; in a run
that is recorded for a user, only that user's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.planning.plan import PlanStep
from hybridagi_steps.recording_hooks import active_user_id, note_steps, unnoted
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.json_values import json_value

ORCHESTRATOR = "Orchestrator"
"""The program that a plan's run is in memory."""
WORK_KEY = "work_key"
"""Where the metadata of a step's ProgramEnd say what its outcome depended on."""
DIGEST_KEY = "handed_on_digest"
"""Where they say what was handed on, before memory redacted or cut it."""

_CANDIDATES = 10


def similar_plan(memory: StepMemory, requirement: str, min_similarity: float = 0.0) -> str | None:
    """Return the text of the plan that succeeded for the most similar requirement.

    Args:
        memory: Where plans were recorded.
        requirement: What is wanted now.
        min_similarity: How similar the requirements must be, 0 to 1.
    """
    if not requirement.strip():
        return None
    where = {"program": ORCHESTRATOR, "step_types": ["ProgramCall"], **_own(memory)}
    with unnoted():
        hits: Iterable[StepHit] = memory.search(requirement, k=_CANDIDATES, where=where)
    for hit in hits:
        if hit.score < min_similarity:
            break
        if (hit.step.inputs or {}).get("program") != ORCHESTRATOR:
            continue
        if (end := _end_of(memory, hit.step)) is not None:
            note_steps([hit.step, end])
            return str((end.outputs or {})["plan"])
    return None


def earlier_work(memory: StepMemory, key: str) -> AgentStep | None:
    """Return the newest ProgramEnd of the same work, if it succeeded and changed no file."""
    where = {"step_types": ["ProgramEnd"], "status": ["ok"], "metadata": {WORK_KEY: key}}
    where |= _own(memory)
    found = memory.find(where, limit=1, newest_first=True)
    steps: list[AgentStep] = list(found.steps)
    if not steps or (steps[0].outputs or {}).get("changed_files"):
        return None
    note_steps(steps)
    return steps[0]


def _own(memory: StepMemory) -> dict[str, Any]:
    """Return the condition that a step is of the user whose run this is, if it is anybody's."""
    user_id = active_user_id(memory)
    return {} if user_id is None else {"user_id": user_id}


def _end_of(memory: StepMemory, call: AgentStep) -> AgentStep | None:
    """Return the end of a plan's run that succeeded: it holds the plan."""
    if call.run_id is None:
        return None
    ends = {"run_id": str(call.run_id), "step_types": ["ProgramEnd"], "program": ORCHESTRATOR}
    found: list[AgentStep] = memory.find(ends).steps
    for end in found:
        plan = (end.outputs or {}).get("plan")
        if end.status == "ok" and str(end.program_id) == str(call.id) and isinstance(plan, str):
            return end
    return None


def work_key(requirement: str, step: PlanStep, artifacts: Mapping[str, Any], state: object) -> str:
    """Return a hash of all that the outcome of a step depends on."""
    data = [requirement, step.model_dump(mode="json"), dict(artifacts), state]
    encoded = orjson.dumps(json_value(data, []), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(encoded).hexdigest()


def handed_on_digest(key: str, summary: str, artifacts: Mapping[str, Any]) -> str:
    """Return a hash of what a step handed on, to see later whether a record of it is whole.

    The work key is in it, or equal secrets in different places would look equal.
    """
    data = [key, summary, json_value(dict(artifacts), [])]
    return hashlib.sha256(orjson.dumps(data, option=orjson.OPT_SORT_KEYS)).hexdigest()
