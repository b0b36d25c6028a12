"""Chats in Gemini's form, in: `contents` of parts, requests and responses, sessions of Gemini CLI.

A `functionResponse` answers the first open call of its name. What a model gave with `thought` set
is its reasoning. Gemini CLI writes `~/.gemini/tmp/*/chats/session-*.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hybridagi_steps.exchange.chats import CallQueue, Chat, ChatFormat, ChatMessage, message, result
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_CONTENT = {"parts": [...]}
_CALLS, _RESULTS = ("functionCall", "function_call"), ("functionResponse", "function_response")


def _chats(value: Any) -> Iterator[Chat]:
    chat = js.as_object(value)
    if "sessionId" in chat:
        yield Chat(
            [m for native in js.objects_in(chat, "messages") for m in _cli_messages(native)],
            id=js.text_in(chat, "sessionId"),
            title=js.text_in(chat, "summary"),
            created_at=js.time_of(chat, "startTime"),
            extras=js.without(chat, "messages"),
        )
        return
    answers = [js.as_object(c.get("content")) for c in js.objects_in(chat, "candidates")[:1]]
    contents = [*(js.objects_in(value) or js.objects_in(chat, "contents"))]
    messages = list(_messages([*contents, *({"role": "model", **a} for a in answers)]))
    if answers and messages:
        messages[-1] = messages[-1]._replace(metrics=_metrics(chat))
    prompt = js.as_object(chat.get("systemInstruction") or chat.get("system_instruction"))
    system = js.text_of(js.objects_in(prompt, "parts"))
    yield Chat(
        [*([message("system", system)] if system else []), *messages],
        id=js.text_in(chat, "responseId", "id"),
        created_at=js.time_of(chat, "createTime", "created_at"),
        extras=js.without(chat, "contents"),
    )


def _messages(contents: Iterable[Message]) -> Iterator[ChatMessage]:
    """Yield what contents say; the first message of each carries it."""
    queue = CallQueue()
    for content in contents:
        parts = js.objects_in(content, "parts")
        native: Message | None = content
        for answer in _members(parts, _RESULTS):
            call_id = queue.answered(answer.get("name"), answer.get("id"))
            yield result(call_id, answer.get("response"), native)
            native = None
        calls = [
            queue.call(call.get("name"), call.get("args") or {}, call.get("id"))
            for call in _members(parts, _CALLS)
        ]
        thoughts = [js.text_of(part.get("text")) for part in parts if part.get("thought") is True]
        words = [p for p in parts if p.get("thought") is not True and _is_content(p)]
        if words or calls or native is not None:
            yield message(
                "assistant" if content.get("role") == "model" else "user",
                words or (None if calls else ""),
                native,
                tool_calls=calls or None,
                reasoning_content=js.joined(*thoughts) or None,
            )


def _members(parts: list[JsonObject], names: tuple[str, ...]) -> Iterator[JsonObject]:
    for part in parts:
        yield from filter(None, (js.as_object(part.get(name)) for name in names))


def _is_content(part: JsonObject) -> bool:
    return not part.keys() & {*_CALLS, *_RESULTS}


def _cli_messages(native: Message) -> Iterator[ChatMessage]:
    kind, words = native.get("type"), js.text_of(native.get("content"))
    if kind != "gemini":
        yield message("user" if kind == "user" else "system", words, native)
        return
    calls = js.objects_in(native, "toolCalls")
    thoughts = [
        js.text_of(thought.get("description")) for thought in js.objects_in(native, "thoughts")
    ]
    yield message(
        "assistant",
        words or None,
        native,
        tool_calls=[function_call(c.get("id"), c.get("name"), c.get("args") or {}) for c in calls]
        or None,
        reasoning_content=js.joined(*thoughts) or None,
    )._replace(metrics=_metrics(native))
    for call in calls:
        if "result" in call:
            failed = call.get("status") in ("error", "cancelled")
            answer = result(call.get("id"), call.get("resultDisplay") or call["result"])
            yield answer._replace(time=js.time_of(call), failed=failed)


def _metrics(chat: JsonObject) -> JsonObject | None:
    usage = chat.get("usageMetadata") or chat.get("usage_metadata") or chat.get("tokens")
    return js.usage_metrics(
        usage, model_name=js.text_in(chat, "modelVersion", "model_version", "model")
    )


FORMAT = ChatFormat(
    "gemini",
    _chats,
    (
        [_CONTENT],
        {"contents": [_CONTENT]},
        {"candidates": [{"content": _CONTENT}]},
        {"sessionId": ..., "messages": [{"type": {"user", "gemini", "info"}}]},
    ),
)
