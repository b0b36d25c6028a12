"""Ids, names, calls and media in messages, as every provider takes them.

Text, pictures and PDF documents exist in both providers' forms and are carried over; a document of
plain text goes where no document may as its text. A part that cannot go where it stands (a picture
in an assistant's turn, bytes that are no base64, a kind that only the other provider knows) is
named in brackets, so that a reader sees what stood there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from collections import deque
from typing import Generic, NamedTuple, TypeVar

from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_arguments,
    as_object,
    text_of,
    without,
)
from hybridagi_steps.records.message import MessageRole

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


def cache_mark(fields: JsonObject) -> JsonObject:
    """Return the mark of Anthropic's prompt cache that a block or a message has."""
    mark = as_object(fields.get(CACHE_CONTROL))
    return {CACHE_CONTROL: mark} if mark else {}


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


_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_OPENAI_PARTS = {"text", "image_url", "input_audio", "file"}
_ANTHROPIC_PARTS = {"text", "image", "document", "search_result"}
_ANTHROPIC_USER_PARTS = {*_ANTHROPIC_PARTS, "container_upload"}
_SERVER_SIDE = ("server_tool_use", "mcp_tool_use", "_tool_result")
_PICTURES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_LONGEST_TOLD = 100


class _Media(NamedTuple):
    """A picture or a document of either form."""

    kind: str
    media_type: str
    """Empty for an address."""
    data: str
    """Base64, or an address."""
    title: str


def openai_part(part: JsonObject, role: MessageRole = MessageRole.USER) -> JsonObject:
    """Return a content part as OpenAI takes it in a message of a role."""
    kind = str(part.get("type"))
    if kind == "text":
        return without(part, CACHE_CONTROL, "citations")
    if kind == "refusal" and role is MessageRole.ASSISTANT:
        return part
    media = _media(part)
    if role is not MessageRole.USER or (media is not None and not _is_sound(media)):
        return _named(part, media)
    if kind in _OPENAI_PARTS:
        return without(part, CACHE_CONTROL) if CACHE_CONTROL in part else part
    if media is None or (media.kind == "document" and not media.media_type):
        return _named(part, media)
    url = f"data:{media.media_type};base64,{media.data}" if media.media_type else media.data
    if media.kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": media.title or "document.pdf", "file_data": url}}


def anthropic_part(part: JsonObject, role: MessageRole = MessageRole.USER) -> JsonObject:
    """Return a content part as Anthropic takes it in a message of a role."""
    kind = str(part.get("type"))
    if kind == "text":
        return part
    media = _media(part)
    if role is MessageRole.ASSISTANT:
        return part if kind.endswith(_SERVER_SIDE) else _named(part, media)
    if media is not None and not _is_sound(media):
        return _named(part, media)
    if kind in (_ANTHROPIC_USER_PARTS if role is MessageRole.USER else _ANTHROPIC_PARTS):
        return part
    if media is None:
        return _named(part, media)
    source = {"type": "url", "url": media.data}
    if media.media_type:
        source = {"type": "base64", "media_type": media.media_type, "data": media.data}
    return {"type": media.kind, "source": source, **cache_mark(part)}


def not_sent(part: JsonObject, role: MessageRole) -> str | None:
    """Return what stands in OpenAI's form for a part that cannot go there, None if it can."""
    text = str(openai_part(part, role).get("text") or "")
    lost = part.get("type") not in ("text", "refusal") and text.startswith("[")
    return text if lost and not _text_inside(part) else None


def _named(part: JsonObject, media: _Media | None) -> JsonObject:
    """Return a text for a part: what it says, or its name in brackets."""
    said = part.get("text") or part.get("refusal") or _text_inside(part)
    if not isinstance(said, str):
        said = f"[{_told(media)}]" if media else f"[{part.get('type')}]"
    return {"type": "text", "text": said}


def _told(media: _Media) -> str:
    about = [media.title] if media.title else []
    if media.media_type:
        about += [media.media_type, f"{len(media.data) * 3 // 4:,} bytes"]
    elif not media.data.startswith("data:"):
        about.append(media.data)
    told = ", ".join(text[:_LONGEST_TOLD] for text in about)
    return f"{media.kind}: {told}" if told else media.kind


def _text_inside(part: JsonObject) -> str | None:
    """Return the text of a document or of a search's result, after its title; None without one."""
    if part.get("type") not in ("document", "search_result"):
        return None
    source = as_object(part.get("source"))
    kind = source.get("type")
    said = source.get("data") if kind == "text" else None
    if kind == "content" or part["type"] == "search_result":
        said = text_of(source.get("content") or part.get("content"))
    if not isinstance(said, str) or not said.strip():
        return None
    title = part.get("title")
    return f"{title}\n{said}" if isinstance(title, str) and title.strip() else said


def _media(part: JsonObject) -> _Media | None:
    """Return the picture or document that a part holds, None if it holds none of ours to read."""
    kind, title, source = part.get("type"), part.get("title"), as_object(part.get("source"))
    if kind in ("image", "document"):
        if source.get("type") == "base64":
            media_type, data = source.get("media_type"), source.get("data")
            return _Media(kind, str(media_type), str(data), str(title or ""))
        url = source.get("url")
    elif kind == "image_url":
        given = part.get("image_url")
        kind, url = "image", as_object(given).get("url") or given
    elif kind == "file":
        kind, url = "document", as_object(part.get("file")).get("file_data")
        title = as_object(part.get("file")).get("filename")
    else:
        return None
    if not isinstance(url, str):
        return None
    found = _DATA_URL.fullmatch(url)
    media_type, data = (found[1], found[2]) if found else ("", url)
    return _Media(str(kind), media_type, data, str(title or ""))


def _is_sound(media: _Media) -> bool:
    """Whether providers take a picture or a document: its media type, and its bytes or address."""
    if not media.media_type:
        return media.data.startswith(("https://", "http://"))
    known = _PICTURES if media.kind == "image" else {"application/pdf"}
    if media.media_type not in known:
        return False
    try:
        return bool(base64.b64decode(media.data, validate=True))
    except (binascii.Error, ValueError):
        return False
