"""Parts of messages in OpenAI's form: calls, texts, and times."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

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


LONGEST_CALL_ID, LONGEST_NAME = 40, 64

_VALID = re.compile(r"[A-Za-z0-9_-]+")
_INVALID_RUN = re.compile(r"[^A-Za-z0-9_-]+")


def call_id(*parts: object) -> str:
    """Return the call id that these parts always give."""
    text = "\n".join(map(str, parts)).encode("utf-8", "replace")
    return f"call_{hashlib.sha256(text).hexdigest()[:24]}"


def is_call_id(value: object) -> bool:
    """Whether every provider takes this as the id of a call."""
    return (
        isinstance(value, str)
        and len(value) <= LONGEST_CALL_ID
        and _VALID.fullmatch(value) is not None
    )


def tool_name(name: object) -> str:
    """Return a tool's name, or a speaker's, as every provider takes it."""
    if isinstance(name, str) and len(name) <= LONGEST_NAME and _VALID.fullmatch(name):
        return name
    return _INVALID_RUN.sub("_", str(name or "")).strip("_")[:LONGEST_NAME] or "unnamed"


def json_text(value: Any) -> str:
    """Return a text as it is, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def field_lines(fields: dict[str, Any]) -> str:
    """Return one field as its text, several as a line each."""
    if len(fields) == 1:
        return json_text(next(iter(fields.values())))
    return "\n".join(f"{name}: {json_text(value)}" for name, value in fields.items())


Call = TypeVar("Call")


class OpenCalls(Generic[Call]):
    """The calls without a result, by id."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[int, deque[Call]]]] = {}

    def add(self, call_id: str, place: int, call: Call) -> None:
        """Let a call of the message at `place` wait."""
        groups = self._waiting.setdefault(call_id, [])
        if not groups or groups[-1][0] != place:
            groups.append((place, deque()))
        groups[-1][1].append(call)

    def answer(self, call_id: str) -> Call | None:
        """Return the call that a result with this id answers, if one waits; it waits no more."""
        groups = self._waiting.get(call_id)
        if not groups:
            return None
        calls = groups[-1][1]
        call = calls.popleft()
        if not calls:
            groups.pop()
        return call
