"""Messages of pydantic-ai, in: `all_messages_json()` or `ModelMessagesTypeAdapter.dump_json`.

A request holds what a user said, prompts, and what tools returned; a response what the model said,
thought and called. One of these messages may become several of ours; the first carries it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, message, result
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_CALLS = ("tool-call", "builtin-tool-call")
_RESULTS = ("tool-return", "builtin-tool-return", "retry-prompt")
_MESSAGE = {"kind": {"request", "response"}, "parts": [...]}


def _chats(value: Any) -> Iterator[Chat]:
    about = js.without(value, "messages")
    messages: list[ChatMessage] = []
    for native in js.objects_in(value) or js.objects_in(value, "messages"):
        read = _response if native.get("kind") == "response" else _request
        carrier: Message | None = native
        for part in read(native):
            messages.append(part._replace(native=carrier, time=part.time or js.time_of(native)))
            carrier = None
    yield Chat(messages, id=js.text_in(about, "session_id", "conversation_id"), extras=about)


def _request(native: Message) -> Iterator[ChatMessage]:
    for part in js.objects_in(native, "parts"):
        if part.get("part_kind") in _RESULTS and part.get("tool_name"):
            yield _result(part)
        else:
            role = "system" if part.get("part_kind") == "system-prompt" else "user"
            yield message(role, _content(part.get("content")))._replace(time=js.time_of(part))


def _response(native: Message) -> Iterator[ChatMessage]:
    parts = js.objects_in(native, "parts")
    texts = [{"type": "text", "text": p["content"]} for p in parts if p.get("part_kind") == "text"]
    others = [part for part in parts if part.get("part_kind") in ("file", "compaction")]
    thoughts = [js.text_in(p, "content") for p in parts if p.get("part_kind") == "thinking"]
    calls = [
        function_call(part.get("tool_call_id"), part.get("tool_name"), part.get("args") or {})
        for part in parts
        if part.get("part_kind") in _CALLS
    ]
    yield message(
        "assistant",
        [*texts, *others] or None,
        reasoning_content=js.joined(*thoughts) or None,
        tool_calls=calls or None,
    )._replace(metrics=js.usage_metrics(native.get("usage"), model_name=native.get("model_name")))
    yield from (_result(part) for part in parts if part.get("part_kind") == "builtin-tool-return")


def _result(part: JsonObject) -> ChatMessage:
    failed = part.get("part_kind") == "retry-prompt" or part.get("outcome") == "failed"
    call_id, content = part.get("tool_call_id"), part.get("content")
    answer = result(call_id, content, name=part["tool_name"], failed=failed)
    return answer._replace(time=js.time_of(part))


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content if content is not None else ""
    return [
        part if isinstance(part, str) else _part(js.as_object(part)) for part in js.as_list(content)
    ]


def _part(part: JsonObject) -> JsonObject:
    kind, media_type = str(part.get("kind", "part")), str(part.get("media_type"))
    if kind == "text":
        return {"type": "text", "text": part.get("content")}
    url = part.get("url") if kind == "image-url" else None
    if kind == "binary" and media_type.startswith("image/"):
        url = f"data:{media_type};base64,{part.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}} if url else {"type": kind, **part}


FORMAT = ChatFormat("pydantic_ai", _chats, ([_MESSAGE], {"messages": [_MESSAGE]}))
