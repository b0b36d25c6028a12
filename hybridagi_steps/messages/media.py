"""Content parts of one provider in the form of the other.

Text, pictures and PDF documents exist in both forms and are carried over; a document of plain text
goes where no document may as its text. A part that cannot go where it stands (a picture in an
assistant's turn, bytes that are no base64, a media type that nobody takes, a kind that only the
other provider knows) is named in brackets, so that a reader sees what stood there.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from hybridagi_steps.messages.parts import CACHE_CONTROL
from hybridagi_steps.records.json_reading import JsonObject, as_object, text_of, without
from hybridagi_steps.records.message import MessageRole

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
    mark = {CACHE_CONTROL: part[CACHE_CONTROL]} if CACHE_CONTROL in part else {}
    return {"type": media.kind, "source": source, **mark}


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
