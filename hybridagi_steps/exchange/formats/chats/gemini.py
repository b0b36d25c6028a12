"""Chats in Gemini's form, in: `contents` of parts, requests and responses, sessions of Gemini CLI.

A `functionResponse` answers the first open call of its name. What a model gave with `thought` set
is its reasoning. Gemini CLI writes `~/.gemini/tmp/*/chats/session-*.json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import (
    Chat,
    ChatMessage,
    message,
    parse_chats,
    result,
    usage_metrics,
)
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    text_of,
    time_of,
    without,
)


def recognises(value: JsonValue) -> bool:
    """Whether a record is a list of contents, a request, a response, or a session of the CLI."""
    match value:
        case [{"parts": [*_], **others}, *_] | {"contents": [{"parts": [*_], **others}, *_]}:
            return "kind" not in others
        case {"candidates": [{"content": {"parts": [*_]}}, *_]}:
            return True
        case {"sessionId": _, "messages": [{"type": "user" | "gemini" | "info"}, *_]}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of chats, one per record."""
    return parse_chats(records, "gemini", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    chat = as_object(value)
    if "sessionId" in chat:
        messages = [m for said in as_list(chat["messages"]) for m in _cli(as_object(said))]
        yield Chat(
            messages,
            id=as_text(chat["sessionId"]),
            title=as_text(chat.get("summary")),
            created_at=time_of(chat, "startTime"),
            extras=without(chat, "messages"),
        )
        return
    contents = list(as_list(value) or as_list(chat.get("contents")))
    metrics = _metrics(chat)
    for candidate in as_list(chat.get("candidates"))[:1]:
        contents.append({"role": "model", **as_object(as_object(candidate).get("content"))})
    told = as_object(chat.get("systemInstruction") or chat.get("system_instruction"))
    system = text_of(as_list(told.get("parts")))
    reader = _Reader()
    messages = [m for content in contents for m in reader.read(as_object(content))]
    if "candidates" in chat and messages:
        messages[-1] = messages[-1]._replace(metrics=metrics)
    yield Chat(
        [*([message("system", system)] if system else []), *messages],
        id=as_text(chat.get("responseId") or chat.get("id")),
        created_at=time_of(chat, "createTime", "created_at"),
        extras=without(chat, "contents"),
    )


class _Reader:
    """Reads contents; pairs calls with what came back by their names."""

    def __init__(self) -> None:
        self._open: list[tuple[object, object]] = []
        self._count = 0

    def read(self, content: Message) -> Iterator[ChatMessage]:
        parts = [as_object(part) for part in as_list(content.get("parts"))]
        native: Message | None = content
        for part in parts:
            if answer := as_object(part.get("functionResponse") or part.get("function_response")):
                yield result(self._answered(answer), answer.get("response"), native)
                native = None
        calls = [self._call(as_object(c)) for p in parts if (c := _called(p))]
        thoughts = [text_of(part.get("text")) for part in parts if part.get("thought") is True]
        said = [_part(part) for part in parts if _is_said(part)]
        if said or calls or native is not None:
            yield message(
                "assistant" if content.get("role") == "model" else "user",
                said or (None if calls else ""),
                native,
                tool_calls=calls or None,
                reasoning_content="\n".join(thoughts) or None,
            )

    def _call(self, call: JsonObject) -> JsonObject:
        self._count += 1
        own = call.get("id") or f"call_{self._count}"
        self._open.append((call.get("name"), own))
        return function_call(own, call.get("name"), call.get("args") or {})

    def _answered(self, answer: JsonObject) -> object:
        for place, (name, own) in enumerate(self._open):
            if own == answer.get("id") or (not answer.get("id") and name == answer.get("name")):
                return self._open.pop(place)[1]
        return None


def _called(part: JsonObject) -> object:
    return part.get("functionCall") or part.get("function_call")


def _is_said(part: JsonObject) -> bool:
    inner = {"functionCall", "function_call", "functionResponse", "function_response"}
    return part.get("thought") is not True and not inner & part.keys()


def _part(part: JsonObject) -> JsonObject:
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    data = as_object(part.get("inlineData") or part.get("inline_data"))
    media = str(data.get("mimeType") or data.get("mime_type"))
    if media.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data['data']}"}}
    return {"type": next(iter(part), "part"), **part}


def _cli(said: Message) -> Iterator[ChatMessage]:
    """Yield what one message of Gemini CLI's says."""
    kind, content = said.get("type"), said.get("content")
    if kind != "gemini":
        yield message("user" if kind == "user" else "system", text_of(content), said)
        return
    calls = [as_object(call) for call in as_list(said.get("toolCalls"))]
    made = [function_call(c.get("id"), c.get("name"), c.get("args") or {}) for c in calls]
    thoughts = [text_of(as_object(t).get("description")) for t in as_list(said.get("thoughts"))]
    words = text_of(content) or None
    thought = "\n".join(thoughts) or None
    view = message("assistant", words, said, tool_calls=made or None, reasoning_content=thought)
    yield view._replace(metrics=_metrics(said))
    for call in calls:
        if "result" in call:
            failed = call.get("status") in ("error", "cancelled")
            content = call.get("resultDisplay") or call["result"]
            yield result(call.get("id"), content)._replace(made=time_of(call), failed=failed)


def _metrics(chat: JsonObject) -> JsonObject | None:
    usage = chat.get("usageMetadata") or chat.get("usage_metadata") or chat.get("tokens")
    model = chat.get("modelVersion") or chat.get("model_version") or chat.get("model")
    return usage_metrics(usage, model_name=as_text(model))
