"""The JSON body of a step: how every store writes a step down and reads it back.

A body holds the whole step except its vector, fields that are None included: leaving those out
would save a tenth of the bytes and triple the time to write. It was validated when it was written,
so reading builds the step without validating again: ids that look like UUIDs become UUIDs, unknown
step types stay text and unknown fields stay data. Nothing is ever revived as a class. This module
knows nothing about where bodies are kept.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from hybridagi_steps.errors import InvalidStepError, StepTooLargeError
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, as_id, id_text
from hybridagi_steps.records.message import StepMetrics
from hybridagi_steps.records.unvalidated import defaults_of, unvalidated

MAX_STEP_BYTES = 8 * 1024 * 1024
"""Larger payloads belong elsewhere, with a reference in the step."""

_FIELDS = frozenset(AgentStep.model_fields)
_DEFAULTS = defaults_of(AgentStep)
_TYPES: dict[str, AgentStepType] = {kind.value: kind for kind in AgentStepType}
_NAMES = ("parent_id", "run_id", "session_id", "user_id", "program_id", "scope")


def encode_body(step: AgentStep) -> str:
    """Return the step as JSON text, without its vector.

    Raises:
        InvalidStepError: The step holds what JSON cannot, or a name holds a NUL character.
        StepTooLargeError: It is over 8 MiB as JSON.
    """
    values = vars(step)
    if step.vector is not None:
        values = {**values, "vector": None}
    if extra := step.__pydantic_extra__:
        values = {**values, **extra}
    try:
        body = orjson.dumps(values, default=_plain)
    except TypeError as error:
        raise InvalidStepError(
            f"step {id_text(step.id)!r} holds a value that JSON cannot: {error}. "
            "Build it with AgentStep(…), which repairs such values, or store text instead."
        ) from error
    if len(body) > MAX_STEP_BYTES:
        raise StepTooLargeError(id_text(step.id), len(body), MAX_STEP_BYTES)
    if b"\\u0000" in body:
        _refuse_nul(step)
    return body.decode()


def decode_body(body: str | bytes) -> AgentStep:
    """Return the step a body was written from; nothing is validated."""
    values: dict[str, Any] = orjson.loads(body)
    values["id"] = as_id(values["id"])
    if (parent_id := values.get("parent_id")) is not None:
        values["parent_id"] = as_id(parent_id)
    values["step_type"] = _TYPES.get(values["step_type"], values["step_type"])
    values["created_at"] = datetime.fromisoformat(values["created_at"])
    if (metrics := values.get("metrics")) is not None:
        values["metrics"] = StepMetrics.model_construct(**metrics)
    if values.keys() == _FIELDS:
        return unvalidated(AgentStep, values, {})
    extra = {name: values.pop(name) for name in values.keys() - _FIELDS}
    return unvalidated(AgentStep, _DEFAULTS | values, extra)


def _plain(value: object) -> Any:
    """Turn the only model a step holds into data; anything else is an error."""
    if isinstance(value, StepMetrics):
        return {name: figure for name, figure in value.__dict__.items() if figure is not None}
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse_nul(step: AgentStep) -> None:
    for name in ("id", *_NAMES):
        if "\x00" in str(getattr(step, name)):
            raise InvalidStepError(
                f"the {name} of step {id_text(step.id)!r} holds a NUL character, which databases "
                "cannot compare. Use another name."
            )
