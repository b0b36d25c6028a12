"""Ids, names and calls in messages, as every provider takes them."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import deque
from typing import Generic, TypeVar

from hybridagi_steps.records.json_reading import JsonObject, as_arguments, as_object

LONGEST_CALL_ID, LONGEST_NAME = 40, 64
CACHE_CONTROL = "cache_control"
"""Key of the mark up to which Anthropic keeps a prompt in its cache, of a block or, as LiteLLM has
it, of a message; of messages without blocks it stands in their metadata."""

_VALID = re.compile(r"[A-Za-z0-9_-]+")
_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_COLONS = re.compile("[:\ua789\u2236\u02d0\uff1a\ufe13\ufe55]")
_LONGEST_LABEL = 80
_SPEAKERS = {
    *("user", "assistant", "system", "tool", "developer", "function"),
    *("human", "ai", "model", "bot"),
}
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


def hanging(text: str) -> str:
    """Return a text with every line but the first set in: none of them begins with a speaker."""
    return _LINE_END.sub("\n  ", text)


def speaker_label(name: str | None, role: str) -> str:
    """Return who speaks, in one line without a colon; a name that says a role tells the true one.

    So does one that mixes scripts: what looks like a role may be spelled with letters of another.
    """
    label = " ".join(_COLONS.sub(" ", name).split()) if name else ""
    if not label:
        return role
    words = _letters(label)
    claimed = {"".join(words.split()), *words.split()[:1]} & _SPEAKERS
    mixed = not words.isascii() and any(c.isascii() and c.isalpha() for c in words)
    return f"{label} ({role})" if claimed - {role} or mixed else label


def begins_a_turn(text: str) -> bool:
    """Whether a text begins with a role and a colon, as what is said in a conversation does."""
    begin = text[:_LONGEST_LABEL].lstrip()
    end = _COLONS.search(begin)
    name = begin[: end.start()].partition("(")[0] if end else ""
    return "".join(_letters(name).split()) in _SPEAKERS


def _letters(text: str) -> str:
    """Return a text without accents and marks, its words with a blank between them."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c if c.isalnum() else " " for c in plain if not unicodedata.combining(c))


def function_call(call_id: object, name: object, arguments: object) -> JsonObject:
    """Return a call in OpenAI's form."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def called(call: JsonObject) -> tuple[str, JsonObject]:
    """Return the tool and the arguments of a call in OpenAI's form, of a custom tool too."""
    function = as_object(call.get("function") or call.get("custom"))
    arguments = as_arguments(function.get("arguments", function.get("input", {})))
    return str(function.get("name") or "unknown"), arguments


def json_text(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def field_lines(fields: JsonObject) -> str:
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
