"""Messages of pydantic-ai, in: `all_messages_json()` or `ModelMessagesTypeAdapter.dump_json`.

A request holds what a user said, prompts, and what tools returned; a response what the model said,
thought and called. One of these messages may become several of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, message, parse_chats, usage_metrics
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    time_of,
    without,
)

_CALLS = ("tool-call", "builtin-tool-call")
_RESULTS = ("tool-return", "builtin-tool-return", "retry-prompt")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a list of messages, or an object with one."""
    match value:
        case [{"kind": "request" | "response", "parts": [*_]}, *_]:
            return True
        case {"messages": [{"kind": "request" | "response", "parts": [*_]}, *_]}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of conversations, one per record."""
    return parse_chats(records, "pydantic_ai", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    about = without(value, "messages")
    natives = as_list(value) or as_list(as_object(value).get("messages"))
    messages = [m for native in natives for m in _messages(as_object(native))]
    own = as_text(about.get("session_id")) or as_text(about.get("conversation_id"))
    yield Chat(messages, id=own, extras=about)


def _messages(native: Message) -> Iterator[ChatMessage]:
    """Yield what a message says; the first one carries it."""
    parts = [as_object(part) for part in as_list(native.get("parts"))]
    rest: Message | None = native
    for said in _response(native, parts) if native.get("kind") == "response" else _request(parts):
        made = said.made or time_of(native)
        yield said._replace(native=rest, made=made)
        rest = None


def _request(parts: list[JsonObject]) -> Iterator[ChatMessage]:
    instructed = {"system-prompt": "system", "user-prompt": "user"}
    for part in parts:
        kind, content = str(part.get("part_kind")), part.get("content")
        if kind in _RESULTS and part.get("tool_name"):
            yield _result(part)
        else:
            said = message(instructed.get(kind, "user"), _content(content))
            yield said._replace(made=time_of(part))


def _response(native: Message, parts: list[JsonObject]) -> Iterator[ChatMessage]:
    texts = [{"type": "text", "text": p["content"]} for p in parts if p.get("part_kind") == "text"]
    thoughts = [as_text(p.get("content")) for p in parts if p.get("part_kind") == "thinking"]
    calls = [
        function_call(part.get("tool_call_id"), part.get("tool_name"), part.get("args") or {})
        for part in parts
        if part.get("part_kind") in _CALLS
    ]
    others = [p for p in parts if p.get("part_kind") in ("file", "compaction")]
    said = message(
        "assistant",
        [*texts, *others] or None,
        reasoning_content="\n".join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )
    yield said._replace(
        metrics=usage_metrics(native.get("usage"), model_name=native.get("model_name"))
    )
    yield from (_result(part) for part in parts if part.get("part_kind") == "builtin-tool-return")


def _result(part: JsonObject) -> ChatMessage:
    content = part.get("content")
    view = message("tool", content, tool_call_id=part.get("tool_call_id"), name=part["tool_name"])
    failed = part.get("part_kind") == "retry-prompt" or part.get("outcome") == "failed"
    return view._replace(made=time_of(part), failed=failed)


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content if content is not None else ""
    return [_part(part) for part in as_list(content)]


def _part(part: Any) -> JsonObject:
    fields = as_object(part)
    if isinstance(part, str) or fields.get("kind") == "text":
        return {"type": "text", "text": part if isinstance(part, str) else fields.get("content")}
    if fields.get("kind") == "image-url":
        return {"type": "image_url", "image_url": {"url": fields.get("url")}}
    if fields.get("kind") == "binary" and str(fields.get("media_type")).startswith("image/"):
        url = f"data:{fields['media_type']};base64,{fields.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": str(fields.get("kind", "part")), **fields}
