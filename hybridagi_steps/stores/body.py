"""The JSON body of a step: how every store writes a step down and reads it back.

A body holds the whole step except its vector, a status "ok", and fields that are None, as is their
default. An imported step carries the messages that it was made of: where those or its arguments
repeat its purpose or its result, a reference stands, and `{"=": 1` at the very beginning, where
else the id stands, says so. A body was validated when it was written, so reading builds the step
without validating again: ids that look like UUIDs become UUIDs, unknown step types stay text and
unknown fields stay data. Nothing is ever revived as a class. This module knows nothing about where
bodies are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from hybridagi_steps.errors import InvalidStepError, StepTooLargeError
from hybridagi_steps.records.agent_step import ID_FIELDS, AgentStep, AgentStepType, as_id, id_text
from hybridagi_steps.records.json_reading import as_object
from hybridagi_steps.records.json_values import defaults_of, transformed, unvalidated
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics

MAX_STEP_BYTES = 8 * 1024 * 1024
"""Larger payloads belong elsewhere, with a reference in the step."""

_FIELDS = frozenset(AgentStep.model_fields)
_DEFAULTS = defaults_of(AgentStep)
_IN_ORDER = {name: _DEFAULTS.get(name) for name in AgentStep.model_fields}
_LEFT_OUT = tuple(name for name, default in _DEFAULTS.items() if default is None)
"""Fields that a body lacks when they are None."""
_OK = _DEFAULTS["status"]
_FIGURES = tuple(StepMetrics.model_fields)
_AS = "="
"""Marks a reference: {"=": "result"}."""
_WORTH_REFERRING = 64
"""Characters of a text from which a reference to it is written."""
_TYPES: dict[str, AgentStepType] = {kind.value: kind for kind in AgentStepType}


def encode_body(step: AgentStep) -> str:
    """Return the step as JSON text, without its vector."""
    return _encoded(step).decode()


def checked_body(step: AgentStep, namespace: int) -> tuple[str, int]:
    """Return what `encode_body` does, and the checksum of a row that holds it in a namespace."""
    body = _encoded(step)
    return body.decode(), crc32(body, namespace)


def _encoded(step: AgentStep) -> bytes:
    values = step.__dict__.copy()
    for name in _LEFT_OUT:
        if values.get(name, _AS) is None:
            del values[name]
    values.pop("vector", None)
    if values.get("status") == _OK:
        del values["status"]
    if extra := step.__pydantic_extra__:
        values = {**values, **extra}
        if extra.get("messages") and _AS not in extra:
            values = _said_once(values)
    try:
        body = orjson.dumps(values, default=_plain)
    except TypeError as error:
        raise InvalidStepError(
            f"step {id_text(step.id)!r} holds a value that JSON cannot: {error}. "
            "Build it with AgentStep(…), which repairs such values, or store text instead."
        ) from error
    if len(body) > MAX_STEP_BYTES:
        raise StepTooLargeError(id_text(step.id), len(body), MAX_STEP_BYTES)
    if b"\\" in body:  # JSON has no NUL without one, and most bodies have none
        _refuse_nul(step.__dict__)
    return body


def decode_body(body: str | bytes) -> AgentStep:
    """Return the step a body was written from; nothing is validated."""
    values: dict[str, Any] = orjson.loads(body)
    if _AS in values and next(iter(values)) == _AS:
        values = _said_again(values)
    values["id"] = as_id(values["id"])
    if (parent_id := values.get("parent_id")) is not None:
        values["parent_id"] = as_id(parent_id)
    values["step_type"] = _TYPES.get(values["step_type"], values["step_type"])
    values["created_at"] = datetime.fromisoformat(values["created_at"])
    if (metrics := values.get("metrics")) is not None:
        values["metrics"] = _metrics(metrics)
    fields = _IN_ORDER | values
    if len(fields) == len(_FIELDS):
        return unvalidated(AgentStep, fields, {})
    extra = {name: fields.pop(name) for name in fields.keys() - _FIELDS}
    return unvalidated(AgentStep, fields, extra)


def _texts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step says itself, by the names that references have."""
    inputs, outputs = as_object(values.get("inputs")), as_object(values.get("outputs"))
    return {"purpose": inputs.get("purpose"), "result": outputs.get("result")}


def _said_once(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an imported step with references where it repeats its long texts."""
    names = {
        text: name
        for name, text in _texts(values).items()
        if isinstance(text, str) and len(text) >= _WORTH_REFERRING
    }

    def short(value: Any, _: str) -> Any:
        return {_AS: names[value]} if isinstance(value, str) and value in names else value

    once = {_AS: 1, **_repeating(values, short)}
    # What looks like a reference and is none would be read as one: such a step is left as it is.
    return once if names and _said_again(once) == values else values


def _said_again(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that `_said_once` was given."""
    texts = _texts(values)

    def long(value: Any, _: str) -> Any:
        return next((text for name, text in texts.items() if value == {_AS: name}), value)

    again = _repeating(values, long)
    del again[_AS]
    return again


def _repeating(values: dict[str, Any], replace: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return fields with values replaced where a step repeats itself: messages and arguments."""
    again = {**values, "messages": transformed(values["messages"], replace)}
    inputs = as_object(values.get("inputs"))
    if "arguments" in inputs:
        again["inputs"] = {**inputs, "arguments": transformed(inputs["arguments"], replace)}
    return again


def _metrics(figures: dict[str, Any]) -> StepMetrics:
    """Return metrics as they were written, at a tenth of what `model_construct` takes."""
    return unvalidated(StepMetrics, {name: figures.get(name) for name in _FIGURES})


def _plain(value: object) -> Any:
    """Turn the only model a step or a message holds into data; anything else is an error."""
    if isinstance(value, StepMetrics):
        return {name: figure for name, figure in value.__dict__.items() if figure is not None}
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse_nul(fields: Mapping[str, Any]) -> None:
    for name in ID_FIELDS:
        value = fields.get(name)
        if isinstance(value, str) and "\x00" in value:
            raise InvalidStepError(
                f"the {name} of step {id_text(fields['id'])!r} holds a NUL character, which "
                "databases cannot compare. Use another name."
            )


PREVIEW_LENGTH = 120
"""Characters of a message that a listing shows."""

_SAID = ("role", "content", "tool_calls", "tool_call_id", "name")
_ELSEWHERE = frozenset(("id", "session_id", "sequence", *_SAID))
_MESSAGE_FIELDS = frozenset(Step.model_fields)
_ABSENT: dict[str, Any] = dict.fromkeys(Step.model_fields)
_ROLES: dict[str, MessageRole] = {role.value: role for role in MessageRole}


class Written(NamedTuple):
    """A message as it is stored."""

    said: str | bytes
    """The message in its provider's form, as JSON."""
    body: str | bytes
    """All else that is known of it, as JSON."""


def encode_message(message: Step) -> Written:
    """Return a message as JSON text, without its place."""
    values = {
        name: value
        for name, value in vars(message).items()
        if value is not None and name not in _ELSEWHERE
    }
    try:
        said = orjson.dumps(message.to_message_dict())
        body = orjson.dumps(values, default=_plain)
    except TypeError as error:
        raise InvalidStepError(
            f"message {message.id!r} holds a value that JSON cannot: {error}. Write it through a "
            "SessionRepository, which repairs such values, or store text instead."
        ) from error
    if len(said) + len(body) > MAX_STEP_BYTES:
        raise StepTooLargeError(message.id, len(said) + len(body), MAX_STEP_BYTES)
    return Written(said.decode(), body.decode())


def decode_message(written: Written, message_id: str, session_id: str, sequence: int) -> Step:
    """Return the message that was written, at the place given; nothing is validated."""
    values: dict[str, Any] = orjson.loads(written.body)
    for unknown in values.keys() - _MESSAGE_FIELDS:
        del values[unknown]
    values.update(orjson.loads(written.said))
    values["role"] = _ROLES[values["role"]]
    values["created_at"] = datetime.fromisoformat(values["created_at"])
    if (metrics := values.get("metrics")) is not None:
        values["metrics"] = _metrics(metrics)
    values["id"], values["session_id"], values["sequence"] = message_id, session_id, sequence
    return unvalidated(Step, _ABSENT | values)


def message_dicts(said: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return messages as providers take them; the same as `Step.to_message_dict` of each."""
    return orjson.loads(b"[%b]" % b",".join(said))


def preview(written: Written) -> str | None:
    """Return the beginning of what a user says, in one line; None when it is no user."""
    said: dict[str, Any] = orjson.loads(written.said)
    if said["role"] != MessageRole.USER:
        return None
    shown: Any = orjson.loads(written.body).get("content_for_user")
    content: Any = shown or said["content"] or ""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        content = " ".join(text for text in texts if isinstance(text, str))  # pyright: ignore[reportUnknownVariableType]
    return " ".join(str(content)[: 2 * PREVIEW_LENGTH].split())[:PREVIEW_LENGTH]
