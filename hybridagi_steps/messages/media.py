"""Content parts of one provider in the form of the other.

Text, pictures and PDF documents exist in both forms and are carried over; a part that only one
provider knows is named in brackets for the other, so that a reader sees that something stood there.
"""

from __future__ import annotations

import re
from typing import Any, cast

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_OPENAI_PARTS = {"text", "image_url", "input_audio", "file", "refusal"}
_ANTHROPIC_PARTS = {"text", "image", "document", "search_result", "container_upload"}
_SERVER_SIDE = ("server_tool_use", "mcp_tool_use", "_tool_result")


def openai_part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a content part in OpenAI's form."""
    kind = str(part.get("type"))
    if kind == "image":
        url = _url(part)
        return {"type": "image_url", "image_url": {"url": url}} if url else _named(part)
    if kind == "document":
        url = _url(part)
        named = {"filename": str(part.get("title") or "document.pdf"), "file_data": url}
        return {"type": "file", "file": named} if url and url.startswith("data:") else _named(part)
    if kind == "text":
        return _without(part, "cache_control", "citations")
    return part if kind in _OPENAI_PARTS else _named(part)


def anthropic_part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a content part in Anthropic's form."""
    kind = str(part.get("type"))
    if kind == "image_url":
        given: Any = part.get("image_url")
        return _sourced("image", _field(given, "url") or given) or _named(part)
    if kind == "file":
        return _sourced("document", _field(part.get("file"), "file_data")) or _named(part)
    if kind == "refusal":
        return {"type": "text", "text": str(part.get("refusal") or "")}
    known = kind in _ANTHROPIC_PARTS or kind.endswith(_SERVER_SIDE)
    return part if known else _named(part)


def text_parts(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts as OpenAI takes them from assistants and tools: text only."""
    return [part if part.get("type") in ("text", "refusal") else _named(part) for part in parts]


def _named(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    return {"type": "text", "text": text if isinstance(text, str) else f"[{part.get('type')}]"}


def _url(part: dict[str, Any]) -> str | None:
    """Return the address of Anthropic's media, or its bytes as one."""
    source = part.get("source")
    if _field(source, "type") == "base64":
        return f"data:{_field(source, 'media_type')};base64,{_field(source, 'data')}"
    url = _field(source, "url")
    return url if isinstance(url, str) else None


def _sourced(kind: str, url: Any) -> dict[str, Any] | None:
    if not isinstance(url, str):
        return None
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return {"type": kind, "source": {"type": "url", "url": url}}
    source = {"type": "base64", "media_type": found[1], "data": found[2]}
    return {"type": kind, "source": source}


def _field(value: Any, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _without(part: dict[str, Any], *names: str) -> dict[str, Any]:
    if not any(name in part for name in names):
        return part
    return {key: value for key, value in part.items() if key not in names}
