"""Ids and names as strict providers take them, and texts of JSON values.

OpenAI takes call ids of up to 40 characters, Anthropic letters, digits, `_` and `-`; a tool's name
is up to 64 of these. What does not fit is replaced by something that always comes out the same, so
that a prompt cache is not disturbed.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

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
