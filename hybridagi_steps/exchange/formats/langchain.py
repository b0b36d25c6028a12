"""LangChain's messages, in, in the three forms that people save them.

`{"type": "human", "data": {…}}` (messages_to_dict), `{"lc": 1, "type": "constructor", …}` (dumpd)
and the flat form of `model_dump`. Their type becomes OpenAI's role; tool calls, token use and the
status of a tool's answer are taken over. Nothing is ever constructed from what a file names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Records, Skipped, chat_of, read_chats
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message, Turn
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_json,
    as_list,
    as_object,
    as_text,
    first_number,
    is_one_of,
    known_fields,
)

_ROLES = {
    "human": "user",
    "user": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "AIMessageChunk": "assistant",
    "tool": "tool",
    "ToolMessageChunk": "tool",
    "function": "function",
    "system": "system",
    "developer": "developer",
}
_CONSTRUCTORS = {
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "SystemMessage": "system",
}
_CALL_BLOCKS = {"tool_use", "tool_call", "input_json_delta"}


def recognises(value: JsonValue) -> bool:
    """Whether a record is a list of LangChain messages, or an object with one."""
    match value:
        case [first, *_] | {"messages": [first, *_]}:
            return is_message(first)
        case _:
            return False


def is_message(value: JsonValue) -> bool:
    """Whether a value is a message in one of LangChain's forms."""
    match value:
        case {"lc": _}:
            return _constructor(as_object(value)) is not None
        case {"role": _}:
            return False
        case {"type": str(kind), "data": dict()} | {"type": str(kind), "content": _}:
            return kind in _ROLES
        case _:
            return False


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of conversations, one per record."""
    return read_chats(records, lambda value: chat_of(value, "langchain", turns))


def turns(messages: list[Message]) -> list[Turn]:
    """Return messages as turns."""
    return [_turn(message, place) for place, message in enumerate(messages)]


def message_id(message: object) -> str | None:
    """Return the id that LangGraph gave a message."""
    own = _fields(as_object(message)).get("id")
    return own if isinstance(own, str) else None


def _constructor(message: Message) -> str | None:
    """Return the role of a serialised constructor, without ever calling it."""
    path = as_list(message.get("id"))
    name = str(path[-1]).removesuffix("Chunk") if path else ""
    return _CONSTRUCTORS.get(name)


def _fields(message: Message) -> JsonObject:
    """Return what a message holds, whatever it is wrapped in."""
    if "lc" in message:
        return as_object(message.get("kwargs"))
    return as_object(message["data"]) if "data" in message else message


def _turn(message: Message, place: int) -> Turn:
    fields = _fields(message)
    kind = message.get("type")
    role = _ROLES.get(kind) if isinstance(kind, str) else None
    if "lc" in message:
        role = _constructor(message)
    if kind == "chat" or fields.get("type") == "chat":
        role = {"user": "user", "system": "system"}.get(str(fields.get("role")), "assistant")
    if role is None:
        raise BadRecordError(f"message {place + 1} has the type {kind!r:.60}")
    view: Message = {"role": role, "content": fields.get("content")}
    for key in ("tool_call_id", "name", "id"):
        if value := fields.get(key):
            view[key] = value
    if role == "assistant":
        view["tool_calls"] = _calls(fields)
        view["content"] = _said(fields.get("content"))
    failed = role == "tool" and fields.get("status") == "error"
    return Turn(view, place, message, _metrics(fields), failed)


def _said(content: object) -> object:
    """Return an assistant's content without the blocks that only repeat its calls."""
    if not isinstance(content, list):
        return content
    parts = as_list(content)
    return [part for part in parts if not is_one_of(as_object(part).get("type"), _CALL_BLOCKS)]


def _calls(fields: JsonObject) -> list[Any]:
    made = as_list(fields.get("tool_calls"))
    broken = as_list(fields.get("invalid_tool_calls"))
    if not made and not broken:
        return as_list(as_object(fields.get("additional_kwargs")).get("tool_calls"))
    return [_call(as_object(call)) for call in (*made, *broken)]


def _call(call: JsonObject) -> JsonObject:
    given = call.get("args")
    arguments = given if isinstance(given, str) else as_json(given or {})
    return function_call(call.get("id"), call.get("name"), arguments)


def _metrics(fields: JsonObject) -> JsonObject | None:
    response = as_object(fields.get("response_metadata"))
    usage = as_object(fields.get("usage_metadata"))
    if not usage:
        usage = as_object(response.get("token_usage") or response.get("usage"))
    if not usage:
        return None
    details = as_object(usage.get("input_token_details"))
    return known_fields(
        input_tokens=first_number(usage, "input_tokens", "prompt_tokens"),
        output_tokens=first_number(usage, "output_tokens", "completion_tokens"),
        total_tokens=first_number(usage, "total_tokens"),
        cache_read_tokens=first_number(details, "cache_read"),
        cache_write_tokens=first_number(details, "cache_creation"),
        model_name=as_text(response.get("model_name") or response.get("model")),
        provider=as_text(response.get("model_provider")),
        llm_calls=1,
    )
