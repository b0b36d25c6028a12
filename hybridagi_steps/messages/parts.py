"""Parts of messages in OpenAI's form: calls, texts, and times."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

from hybridagi_steps.exchange.records import BadRecordError, as_arguments, as_list, as_object

_TIME_KEYS = ("created_at", "timestamp", "created", "create_time")
_MILLISECONDS_FROM = 1e11
"""Epoch numbers above this are milliseconds: as seconds they would lie after the year 5100."""


def calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an assistant's calls: id, inputs (tool and arguments)."""
    given: Any = message.get("tool_calls") or []
    if not isinstance(given, list):
        raise BadRecordError("tool_calls is not a list")
    calls = cast("list[Any]", given)
    if legacy := message.get("function_call"):
        calls = [{"function": legacy}, *calls]
    return [_call(call) for call in calls]


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise BadRecordError("a tool call is not an object")
    known = as_object(call)
    body: Any = known.get("function") or known.get("custom") or {}
    if not isinstance(body, dict):
        raise BadRecordError("a tool call's function is not an object")
    function = as_object(body)
    given = function.get("arguments", function.get("input", {}))
    inputs = {"tool": str(function.get("name") or "unknown"), "arguments": as_arguments(given)}
    return {"id": known.get("id"), "inputs": inputs}


def text_of(content: Any) -> str:
    """Return the text of a message's content; parts that are no text are named in brackets."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    texts: list[str] = []
    for part in as_list(content):
        fields = as_object(part) or {"text": part}
        text = fields.get("text") or fields.get("refusal") or fields.get("content")
        texts.append(text if isinstance(text, str) else f"[{fields.get('type', 'part')}]")
    return "\n".join(texts)


def time_of(values: dict[str, Any], *keys: str) -> datetime | None:
    """Return when something was made, if it says so in a way that can be read."""
    value = next((values[key] for key in keys or _TIME_KEYS if values.get(key)), None)
    try:
        if isinstance(value, str):
            read = datetime.fromisoformat(value)
            return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1_000 if value > _MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None
