"""The JSON body of a message: how every store writes a Step down and reads it back.

A body holds what the message says and whatever else is known of it; where it stands (id, session,
sequence) is the store's to know, so a fork shows the same body in another session. It was checked
when it was written: reading validates nothing, and a message for a provider is made from the body
directly. Fields that are None are left out. This module knows nothing about where bodies are kept.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from hybridagi_steps.errors import InvalidStepError, StepTooLargeError
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
from hybridagi_steps.stores.body import MAX_STEP_BYTES

PREVIEW_LENGTH = 120
"""Characters of a message that a listing shows."""

_ELSEWHERE = ("id", "session_id", "sequence")
_FIELDS = frozenset(Step.model_fields)
_ROLES: dict[str, MessageRole] = {role.value: role for role in MessageRole}
_SENT = ("tool_calls", "tool_call_id", "name")


def encode_message(message: Step) -> str:
    """Return a message as JSON text, without its place.

    Raises:
        InvalidStepError: It holds what JSON cannot.
        StepTooLargeError: It is over 8 MiB as JSON.
    """
    values = {
        name: value
        for name, value in vars(message).items()
        if value is not None and name not in _ELSEWHERE
    }
    try:
        body = orjson.dumps(values, default=_plain)
    except TypeError as error:
        raise InvalidStepError(
            f"message {message.id!r} holds a value that JSON cannot: {error}. Write it through a "
            "SessionRepository, which repairs such values, or store text instead."
        ) from error
    if len(body) > MAX_STEP_BYTES:
        raise StepTooLargeError(message.id, len(body), MAX_STEP_BYTES)
    return body.decode()


def decode_message(body: str | bytes, message_id: str, session_id: str, sequence: int) -> Step:
    """Return the message a body was written from, at the place given; nothing is validated."""
    values: dict[str, Any] = orjson.loads(body)
    values["role"] = _ROLES[values["role"]]
    values["created_at"] = datetime.fromisoformat(values["created_at"])
    if (metrics := values.get("metrics")) is not None:
        values["metrics"] = StepMetrics.model_construct(**metrics)
    for unknown in values.keys() - _FIELDS:
        del values[unknown]
    values["id"], values["session_id"], values["sequence"] = message_id, session_id, sequence
    return Step.model_construct(**values)


def message_dict(body: str | bytes) -> dict[str, Any]:
    """Return a message as providers take it; the same as `Step.to_message_dict`."""
    values: dict[str, Any] = orjson.loads(body)
    message: dict[str, Any] = {"role": values["role"], "content": values.get("content")}
    for name in _SENT:
        if value := values.get(name):
            message[name] = value
    return message


def preview(body: str | bytes) -> str:
    """Return the beginning of what a message says, in one line."""
    values: dict[str, Any] = orjson.loads(body)
    content: Any = values.get("content_for_user") or values.get("content") or ""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        content = " ".join(text for text in texts if isinstance(text, str))  # pyright: ignore[reportUnknownVariableType]
    return " ".join(str(content)[: 2 * PREVIEW_LENGTH].split())[:PREVIEW_LENGTH]


def _plain(value: object) -> Any:
    """Turn the only model a message holds into data; anything else is an error."""
    if isinstance(value, StepMetrics):
        return {name: figure for name, figure in value.__dict__.items() if figure is not None}
    raise TypeError(f"{type(value).__name__} is not JSON")
