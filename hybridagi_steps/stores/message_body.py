"""The JSON of a message: how every store writes a Step down and reads it back.

It is written in two parts. `said` is the message as providers take it, so a context is read by
parsing texts one after the other, without a conversion; `body` is all else that is known of it.
Where it stands (id, session, sequence) is the store's to know, so a fork shows the same message in
another session. It was checked when it was written: reading validates nothing. Fields that are None
are left out of `body`. This module knows nothing about where the parts are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from hybridagi_steps.errors import InvalidStepError, StepTooLargeError
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
from hybridagi_steps.records.unvalidated import unvalidated
from hybridagi_steps.stores.body import MAX_STEP_BYTES

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
        said = orjson.dumps(message.to_message_dict())
        body = orjson.dumps(values, default=_plain_part)
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
        values["metrics"] = StepMetrics.model_construct(**metrics)
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


def _plain_part(value: object) -> Any:
    """Turn the only model a message holds into data; anything else is an error."""
    if isinstance(value, StepMetrics):
        return {name: figure for name, figure in value.__dict__.items() if figure is not None}
    raise TypeError(f"{type(value).__name__} is not JSON")
