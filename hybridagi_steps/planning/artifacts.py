"""What steps hand on: whether it is what was promised, and what of it the next step sees.

Artifacts are plain JSON values under names. A plan may demand a shape of them (artifact_types.py);
a program may demand a Python type, which pydantic checks. Where they are kept is no concern of this
module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from hybridagi_steps.errors import ArtifactError
from hybridagi_steps.planning.artifact_types import shape_problem
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.records.json_values import json_value

_MOST_FAULTS = 10

ArtifactTypes = Mapping[str, Any]
"""Types that artifacts must have, by name: pydantic models, or whatever a TypeAdapter takes."""


def checked_artifacts(
    step: PlanStep, given: Mapping[str, Any], types: ArtifactTypes | None = None
) -> dict[str, Any]:
    """Return the artifacts of a step as plain JSON values, once they are what was promised.

    What was not promised is left out: nobody downstream asked for it.
    """
    faults: list[str] = []
    found: dict[str, Any] = {}
    for name in step.artifacts:
        if name not in given:
            faults.append(f"the artifact {name!r} is missing")
            continue
        repairs: list[str] = []
        value = json_value(given[name], repairs, name)
        problem = shape_problem(step.shapes.get(name), value) or _type_problem(name, value, types)
        if problem:
            changed = f" (it cannot be kept as given: {'; '.join(repairs)})" if repairs else ""
            faults.append(f"the artifact {name!r} has the wrong shape: {problem}{changed}")
        found[name] = value
    if faults:
        shown = "; ".join(faults[:_MOST_FAULTS])
        raise ArtifactError(f"step {step.id!r}: {shown}")
    return found


def artifacts_for(
    step: PlanStep, plan: Plan, made: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what a step sees of earlier steps: each artifact once, by `step.artifact`.

    Those of its direct dependencies, and those it names in `needs` from further back.

    Args:
        step: The step that is about to run.
        plan: The plan it belongs to.
        made: Artifacts by the id of the step that made them.
    """
    direct = list(dict.fromkeys(step.dependencies))
    seen = {
        f"{maker}.{name}": value for maker in direct for name, value in made.get(maker, {}).items()
    }
    near = {name for maker in direct for name in made.get(maker, {})}
    further = [name for name in step.needs if name not in near]
    if further:
        upstream = plan.upstream(step.id)
        for maker in (other.id for other in plan.steps if other.id in upstream):
            own = made.get(maker, {})
            seen |= {f"{maker}.{name}": own[name] for name in further if name in own}
    return seen


def work_key(requirement: str, step: PlanStep, artifacts: Mapping[str, Any], state: Any) -> str:
    """Return a hash of all that the outcome of a step depends on.

    Args:
        requirement: What the user asked for.
        step: The step.
        artifacts: What it sees of earlier steps.
        state: What the workspace holds, as JSON data.
    """
    data = [requirement, step.model_dump(mode="json"), dict(artifacts), state]
    encoded = orjson.dumps(json_value(data, []), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(encoded).hexdigest()


def handed_on_digest(key: str, summary: str, artifacts: Mapping[str, Any]) -> str:
    """Return a hash of what a step handed on, to see later whether a record of it is whole.

    Args:
        key: The step's work key; without it equal secrets in different places would look equal.
        summary: What was done.
        artifacts: As they were handed on.
    """
    data = [key, summary, json_value(dict(artifacts), [])]
    return hashlib.sha256(orjson.dumps(data, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _type_problem(name: str, value: Any, types: ArtifactTypes | None) -> str | None:
    if types is None or name not in types:
        return None
    try:
        TypeAdapter[Any](types[name]).validate_python(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or name}: {fault['msg']}" for fault in faults
        )
    return None
