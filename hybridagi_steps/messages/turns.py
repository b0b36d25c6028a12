"""Messages of OpenAI's and Anthropic's form as turns: what each says, in one form.

A turn shows what is said in the form of OpenAI's chat completions and keeps the native message
beside it. Other providers' names are `provider_shapes`' affair, items of the Responses API that of
`response_items`. Of Anthropic's blocks, text stays in the message, each `tool_use` is a call, each
`tool_result` answers one, and what a user says beside results is a turn of its own.
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
)
from hybridagi_steps.records.message import ROLE_ALIASES

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
    """Return a message that has a role, and that says something if it is a user's."""
    role = message.get("role")
    says = bool(message.keys() & {"content", "parts"})
    if not isinstance(role, str) or (not says and role.casefold() not in ROLE_ALIASES):
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
