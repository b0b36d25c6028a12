"""What may enter a session: every message is checked, repaired and redacted before it is stored.

The same promises as admission.py makes for AgentSteps. What holds a message together stays as it
is: its role, ids, and the `id` and `type` of tool calls and content parts. Arguments of a tool call
are JSON inside a text: redaction sees their values, so what is left is JSON still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import orjson
from pydantic import ValidationError

from hybridagi_steps.errors import InvalidStepError, MessageError, StepTooDeepError
from hybridagi_steps.records.json_values import MAX_DEPTH, is_json, json_value, too_deep
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics, from_local, in_utc
from hybridagi_steps.validation import (
    MAX_ID_LENGTH,
    Redact,
    has_lone_surrogate,
    redacted,
    refused_redaction,
)

_MESSAGE_IDS = ("id", "run_id", "tool_call_id", "agent_step_id", "parent_run_id")
_TEXTS = ("name", "content_for_user", "reasoning_content")
_MESSAGE_VALUES = ("content", "tool_calls", *_TEXTS, "metadata")
_STRUCTURE = frozenset(("id", "type", "tool_use_id", "index"))
"""Keys of tool calls and content parts whose values are no text of anybody."""
_NESTED = frozenset(("function", "content", "source", "image_url", "cache_control"))
"""Keys whose values are built in the same way."""
_KEYS = frozenset(
    """name arguments text thinking input url detail media_type data refusal annotations""".split()  # noqa: SIM905 - a paragraph reads better than its quotes
)
"""Other keys by which providers read a message; none of them is a secret."""


def admitted_messages(messages: object, session_id: str, redact: Redact | None) -> list[Step]:
    """Return messages as they may be stored in a session; the ones given are not changed.

    Args:
        messages: A Step, a message in a provider's form, or several of them.
        session_id: The session they go to.
        redact: Applied to every string of content, calls, reasoning, name and metadata.

    Raises:
        InvalidStepError: Not a message, or an id that is empty, too long or no text.
        MessageError: A dict that is no message.
        StepTooDeepError: Values nested deeper than 64 levels.
    """
    check_id("session_id", session_id)
    if isinstance(messages, Step | Mapping):
        return [_admitted_message(cast("object", messages), session_id, redact)]
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise InvalidStepError(f"expected Steps, got {type(messages).__name__}.")
    return [
        _admitted_message(item, session_id, redact) for item in cast("Iterable[object]", messages)
    ]


def check_id(name: str, value: object) -> None:
    """Check an id that is stored with a message.

    Raises:
        InvalidStepError: It is no text of 1 to 128 characters, or holds NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidStepError(f"{name} is a text, not {type(value).__name__}.")
    if not 0 < len(value) <= MAX_ID_LENGTH:
        raise InvalidStepError(
            f"{name} {value[:40]!r} has {len(value)} characters; 1 to {MAX_ID_LENGTH} are allowed."
        )
    if not value.isprintable() and ("\x00" in value or has_lone_surrogate(value)):
        raise InvalidStepError(f"{name} {value!r} holds NUL or a lone surrogate.")


def redacted_message(values: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """Return the fields of a message with `redact` applied to every text a person or model said."""
    metadata: dict[str, Any] = values.get("metadata") or {}
    links = {"agent_step_ids"} & metadata.keys()
    rest = {key: value for key, value in metadata.items() if key not in links}
    return {
        **{name: _redacted_part(value, redact) for name, value in values.items()},
        "metadata": {**{key: metadata[key] for key in links}, **redacted(rest, redact)} or None,
    }


def _admitted_message(message: object, session_id: str, redact: Redact | None) -> Step:
    step = message if isinstance(message, Step) else _from_dict(message, session_id)
    _check_shape(step)
    values = {name: getattr(step, name, None) for name in _MESSAGE_VALUES}
    for name, value in values.items():
        if (path := too_deep(value, name)) is not None:
            raise StepTooDeepError(step.id, path, MAX_DEPTH)
    fixed = _repaired(values)
    if redact is not None:
        try:
            fixed = _repaired(redacted_message(fixed, redact))
        except InvalidStepError:
            raise
        except Exception as error:
            raise refused_redaction(step.id, error) from None
    fixed["created_at"] = in_utc(from_local(step.created_at))
    fixed["metrics"] = _finite(step.metrics)
    fixed["role"] = MessageRole(step.role)
    return step.model_copy(update=fixed)


def _from_dict(message: object, session_id: str) -> Step:
    if not isinstance(message, Mapping):
        raise InvalidStepError(f"expected a Step, got {type(message).__name__}.")
    known = dict(cast("Mapping[str, Any]", message))
    # Before validation, which would refuse what can be repaired.
    known.update(_repaired({name: known.get(name) for name in _MESSAGE_VALUES}))
    try:
        return Step.model_validate({**known, "session_id": session_id})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MessageError(f"this is no message: {place}: {first['msg']}.") from error


def _check_shape(step: Step) -> None:
    """Check what a caller may have put into a Step after it was made.

    Raises:
        InvalidStepError: A field of another type than messages have.
    """
    for name in _MESSAGE_IDS:
        if (value := getattr(step, name, None)) is not None or name == "id":
            check_id(name, value)
    if step.role not in list(MessageRole):
        roles = ", ".join(MessageRole)
        raise InvalidStepError(f"message {step.id!r}: its role is {step.role!r}, not of {roles}.")
    wrong = [name for name in _TEXTS if not isinstance(getattr(step, name, None), str | None)]
    wrong += [] if isinstance(step.content, str | list | None) else ["content"]  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
    wrong += [] if isinstance(step.tool_calls, list | None) else ["tool_calls"]  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
    wrong += [] if isinstance(step.metadata, dict | None) else ["metadata"]  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
    wrong += [] if isinstance(step.metrics, StepMetrics | None) else ["metrics"]  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
    if wrong:
        raise InvalidStepError(
            f"message {step.id!r}: {', '.join(wrong)} is of another type than a Step has; "
            "build it with Step(…)."
        )


def _repaired(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them; each repair is named in `metadata["repairs"]`."""
    if all(map(is_json, values.values())):
        return dict(values)
    notes: list[str] = []
    fixed = {name: json_value(value, notes, name) for name, value in values.items()}
    kept: Any = fixed["metadata"] or {}
    if not isinstance(kept, dict):
        return fixed  # refused by whoever looks at its shape
    metadata = cast("dict[str, Any]", kept)
    before: Any = metadata.get("repairs", [])
    known = cast("list[Any]", before) if isinstance(before, list) else [before]
    fixed["metadata"] = {**metadata, "repairs": [*known, *notes]}
    return fixed


def _finite(metrics: StepMetrics | None) -> StepMetrics | None:
    """Return metrics without NaN and Inf: a figure that is no number was not measured."""
    if metrics is None or is_json(dict(vars(metrics))):
        return metrics
    plain = {name: json_value(value, [], name) for name, value in vars(metrics).items()}
    return StepMetrics.model_construct(**plain)


def _redacted_part(value: Any, redact: Redact) -> Any:
    """Redact a part of a message, leaving alone what says how it is built."""
    if isinstance(value, list):
        return [_redacted_part(item, redact) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return redacted(value, redact)
    kept: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for key, item in cast("dict[str, Any]", value).items():
        if key in _STRUCTURE and not isinstance(item, dict | list):
            kept[key] = item
        elif key == "arguments" and isinstance(item, str):
            kept[key] = _redacted_json(item, redact)
        elif key in _NESTED:
            kept[key] = _redacted_part(item, redact)
        elif key in _KEYS:
            kept[key] = redacted({key: item}, redact).popitem()[1]
        else:
            unknown[key] = item
    return {**kept, **redacted(unknown, redact)}


def _redacted_json(text: str, redact: Redact) -> str:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return redacted(text, redact)
    if not isinstance(value, dict | list):
        return redacted(text, redact)
    kept = redacted(value, redact)
    return text if kept == value else orjson.dumps(kept).decode()
