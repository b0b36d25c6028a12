"""Messages of OpenAI's, Anthropic's and LangChain's form as turns: what each says, in one form.

A turn shows what is said in the form of OpenAI's chat completions and keeps the native message
beside it. Other providers' names are `provider_shapes`' affair, items of the Responses API that of
`response_items`. Of Anthropic's blocks, text stays in the message, each `tool_use` is a call, each
`tool_result` answers one, and what a user says beside results is a turn of its own. LangChain's
messages are read in the three forms that people save: `{"type": "human", "data": {…}}`
(messages_to_dict), `{"lc": 1, "type": "constructor", …}` (dumpd) and the flat one of `model_dump`.
Nothing is ever constructed from what a file names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hybridagi_steps.messages.parts import cache_mark, function_call
from hybridagi_steps.messages.provider_shapes import THINKING_BLOCKS, Message, shaped, thinking_text
from hybridagi_steps.messages.provider_shapes import Turn as Turn
from hybridagi_steps.messages.response_items import ItemReader
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    as_text,
    first_number,
    is_one_of,
    text_in,
    usage_metrics,
)
from hybridagi_steps.records.message import ROLE_ALIASES

UNKNOWN_ROLE = "unknown"
"""Role of a message whose own is no text: what it says is data."""
_CALL_BLOCKS = {"tool_use", "server_tool_use", "mcp_tool_use"}


def openai_turns(messages: Sequence[Message]) -> list[Turn]:
    """Return messages as turns, most as one; items as the turns that they make up."""
    if not any("role" not in item and isinstance(item.get("type"), str) for item in messages):
        return [t for n, message in enumerate(messages) for t in _message_turns(message, n)]
    reader = ItemReader()
    for place, item in enumerate(messages):
        reader.read(item, place)
    return reader.end()


def anthropic_turns(messages: Iterable[Message]) -> list[Turn]:
    """Return messages as turns; a message with results and text gives several."""
    return [t for n, message in enumerate(messages) for t in _message_turns(message, n)]


def _checked(message: Message, place: int) -> Message:
    """Return a message that says something, or whose role may say nothing."""
    role = message.get("role")
    says = bool(message.keys() & {"content", "parts"})
    if not says and (not isinstance(role, str) or role.casefold() not in ROLE_ALIASES):
        raise BadRecordError(f"message {place + 1} has the role {role!r:.60}")
    if role == "user" and not says:
        raise BadRecordError(f"message {place + 1} is a user's and has no content")
    return message


class _Part(NamedTuple):
    """What a message says up to its next results: one may call tools of the provider and go on."""

    said: list[Any]
    calls: list[JsonObject]
    results: list[JsonObject]


def _message_turns(message: Message, place: int) -> Iterator[Turn]:
    view, unread = shaped(_checked(message, place))
    if not isinstance(view.get("role"), str):
        view = {**view, "role": UNKNOWN_ROLE}
    blocks = as_list(view.get("content"))
    if not any(_is_block(as_object(block).get("type")) for block in blocks):
        yield Turn(view, place, message, _metrics(message), unread=unread)
        return
    if view["role"] == "assistant" and "reasoning_content" not in view:
        thoughts = [as_object(b) for b in blocks if as_object(b).get("type") in THINKING_BLOCKS]
        if thought := thinking_text(thoughts):
            view = {**view, "reasoning_content": thought}
    native: Message | None = message
    for part in _parts(blocks, view["role"]):
        for turn in _part_turns(part, view, place, first=native is not None):
            yield turn._replace(native=native, unread=unread)
            native, unread = None, ()


def _is_block(kind: object) -> bool:
    """Whether Anthropic alone has blocks of this type, which are more than words."""
    name = str(kind)
    return name in _CALL_BLOCKS or name in THINKING_BLOCKS or name.endswith("tool_result")


def _parts(blocks: Sequence[Any], role: str) -> list[_Part]:
    """Return the parts of a message, one as a rule; a user's is never divided."""
    parts = [_Part([], [], [])]
    for block in blocks:
        fields = as_object(block)
        kind = str(fields.get("type"))
        if kind.endswith("tool_result"):
            parts[-1].results.append(fields)
            continue
        if role == "assistant" and parts[-1].results and kind not in THINKING_BLOCKS:
            parts.append(_Part([], [], []))
        if kind in _CALL_BLOCKS:
            call = function_call(fields.get("id"), fields.get("name"), fields.get("input"))
            parts[-1].calls.append({**call, **cache_mark(fields)})
        elif kind not in THINKING_BLOCKS:
            parts[-1].said.append(block)
    return parts


def _part_turns(part: _Part, message: Message, place: int, *, first: bool) -> Iterator[Turn]:
    """Yield the turns of a part: an assistant speaks before the results, a user after them."""
    role = message["role"]
    speaks_first = role == "assistant" or bool(part.calls)
    if speaks_first:
        view = {**message, "content": part.said or None, "tool_calls": part.calls}
        if not first:
            view.pop("reasoning_content", None)
        yield Turn(view, place, None, _metrics(message) if first else None)
    for result in part.results:
        view = {"tool_call_id": result.get("tool_use_id"), "content": result.get("content")}
        view |= {**cache_mark(result), **({"name": result["name"]} if result.get("name") else {})}
        error = as_text(as_object(result.get("content")).get("type")) or ""
        failed = result.get("is_error") is True or error.endswith("_error")
        yield Turn({"role": "tool", **view}, place, None, failed=failed)
    if role != "assistant" and (part.said or not (speaks_first or part.results)):
        yield Turn({"role": role, "content": part.said}, place, None)


def _metrics(message: Message) -> JsonObject | None:
    usage = as_object(message.get("usage"))
    if not usage:
        return None
    read = first_number(usage, "cache_read_input_tokens")
    written = first_number(usage, "cache_creation_input_tokens")
    fresh = first_number(usage, "input_tokens") or 0
    out = first_number(usage, "output_tokens")
    prompt = fresh + (read or 0) + (written or 0)  # Anthropic counts cached tokens apart
    return {
        "input_tokens": prompt,
        "output_tokens": out,
        "total_tokens": prompt + (out or 0),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "model_name": as_text(message.get("model")),
        "provider": "anthropic",
        "llm_calls": 1,
    }


_LANGCHAIN_ROLES = {
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
_REPEATED_BLOCKS = {"tool_use", "tool_call", "input_json_delta"}
"""Blocks of an assistant's content that repeat its calls."""


def is_langchain_message(value: object) -> bool:
    """Whether a value is a message in one of LangChain's forms."""
    fields = as_object(value)
    if "lc" in fields:
        return _langchain_role(fields) is not None
    says = isinstance(fields.get("data"), dict) or "content" in fields
    return says and "role" not in fields and is_one_of(fields.get("type"), _LANGCHAIN_ROLES)


def langchain_turns(messages: Sequence[Message]) -> list[Turn]:
    """Return LangChain's messages as turns."""
    return [_langchain_turn(message, place) for place, message in enumerate(messages)]


def langchain_id(message: object) -> str | None:
    """Return the id that LangGraph gave a message."""
    return as_text(_langchain_fields(as_object(message)).get("id"))


def _langchain_fields(message: Message) -> JsonObject:
    """Return what a message holds, whatever it is wrapped in."""
    if "lc" in message:
        return as_object(message.get("kwargs"))
    return as_object(message["data"]) if "data" in message else message


def _langchain_role(message: Message) -> str | None:
    if "lc" in message:  # a serialised constructor, which is never called
        path = as_list(message.get("id"))
        return _CONSTRUCTORS.get(str(path[-1]).removesuffix("Chunk")) if path else None
    fields, kind = _langchain_fields(message), message.get("type")
    if "chat" in (kind, fields.get("type")):
        return {"user": "user", "system": "system"}.get(str(fields.get("role")), "assistant")
    return _LANGCHAIN_ROLES.get(kind) if isinstance(kind, str) else None


def _langchain_turn(message: Message, place: int) -> Turn:
    fields, role = _langchain_fields(message), _langchain_role(message)
    if role is None:
        raise BadRecordError(f"message {place + 1} has the type {message.get('type')!r:.60}")
    view = {key: fields[key] for key in ("tool_call_id", "name", "id") if fields.get(key)}
    view |= {"role": role, "content": fields.get("content")}
    if role == "assistant":
        calls = [*as_list(fields.get("tool_calls")), *as_list(fields.get("invalid_tool_calls"))]
        calls = calls or as_list(as_object(fields.get("additional_kwargs")).get("tool_calls"))
        view["tool_calls"] = calls
        if isinstance(view["content"], list):
            parts = as_list(view["content"])
            types = (as_object(part).get("type") for part in parts)
            view["content"] = [
                part
                for part, kind in zip(parts, types, strict=True)
                if not is_one_of(kind, _REPEATED_BLOCKS)
            ]
    response = as_object(fields.get("response_metadata"))
    usage = as_object(fields.get("usage_metadata"))
    usage = usage or as_object(response.get("token_usage") or response.get("usage"))
    metrics = usage_metrics(
        usage,
        model_name=text_in(response, "model_name", "model"),
        provider=text_in(response, "model_provider"),
    )
    view, unread = shaped(view)
    failed = role == "tool" and fields.get("status") == "error"
    return Turn(view, place, message, metrics if usage else None, failed, unread=unread)
