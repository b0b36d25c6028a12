"""Chats in Anthropic's message form, in: requests, responses and lists of both.

A message's content is a text or a list of blocks. Text and thinking stay in the message, each
`tool_use` is a call, each `tool_result` of a user's message answers one; what a user says beside
results is a turn of its own. The system prompt stands beside the messages and is kept there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hybridagi_steps.exchange.conversation import (
    Conversation,
    Message,
    Turn,
    conversation_of,
    message_list,
    record_steps,
)
from hybridagi_steps.exchange.formats.openai import checked
from hybridagi_steps.exchange.records import (
    Parsed,
    Records,
    Skipped,
    as_list,
    as_object,
    first_number,
    is_one_of,
    read_each,
)

_BLOCKS = {
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_result",
    "web_search_tool_result",
}
PROMPT_PLACE = -1
"""Place of the prompt: before the first message."""
_CALLS = {"tool_use", "server_tool_use", "mcp_tool_use"}
_HIDDEN = {"thinking", "redacted_thinking"}


def recognises(value: Any) -> bool:
    """Whether a record is a conversation in Anthropic's form rather than OpenAI's."""
    record = as_object(value)
    messages = as_list(value) or as_list(record.get("messages"))
    if any(_is_own(as_object(message)) for message in messages):
        return True
    return bool(messages) and ("system" in record or "stop_reason" in record)


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of conversations, one per record."""
    return read_each(records, lambda record: record_steps(record, _conversation(record.value)))


def turns(messages: list[Message]) -> list[Turn]:
    """Return messages as turns; a message with results and text gives several."""
    found: list[Turn] = []
    for place, message in enumerate(messages):
        checked(message, place)
        found += _message_turns(message, place)
    return found


def _is_own(message: Message) -> bool:
    if "stop_reason" in message:
        return True
    return any(
        is_one_of(as_object(b).get("type"), _BLOCKS) for b in as_list(message.get("content"))
    )


def _conversation(value: Any) -> Conversation:
    record = as_object(value) if isinstance(value, dict) else {"messages": as_list(value) or None}
    messages = message_list(record)
    said = [*_prompt(record.get("system")), *turns(messages)]
    return conversation_of(record, messages, said, "anthropic")


def _prompt(system: Any) -> Iterator[Turn]:
    """Yield the prompt, which stands beside the messages, as the first thing that is said."""
    if system and isinstance(system, str | list):
        yield Turn({"role": "system", "content": system}, PROMPT_PLACE, None)


class _Part(NamedTuple):
    """What a message says up to its next results: one may call tools of the provider and go on."""

    said: list[Any]
    calls: list[dict[str, Any]]
    results: list[dict[str, Any]]


def _message_turns(message: Message, place: int) -> Iterator[Turn]:
    blocks: Any = message.get("content")
    if not isinstance(blocks, list):
        yield Turn(message, place, message, _metrics(message))
        return
    native: Message | None = message
    for part in _parts(as_list(blocks), message["role"]):
        for turn in _part_turns(part, message, place, first=native is not None):
            yield turn._replace(native=native)
            native = None


def _parts(blocks: Sequence[Any], role: str) -> list[_Part]:
    """Return the parts of a message, one as a rule; a user's is never divided."""
    parts = [_Part([], [], [])]
    for block in blocks:
        fields = as_object(block)
        kind = str(fields.get("type"))
        if kind.endswith("tool_result"):
            parts[-1].results.append(fields)
            continue
        if role == "assistant" and parts[-1].results and kind not in _HIDDEN:
            parts.append(_Part([], [], []))
        if kind in _CALLS:
            parts[-1].calls.append(_call(fields))
        elif kind not in _HIDDEN:
            parts[-1].said.append(block)
    return parts


def _part_turns(part: _Part, message: Message, place: int, *, first: bool) -> Iterator[Turn]:
    """Yield the turns of a part: an assistant speaks before the results, a user after them."""
    role = message["role"]
    speaks_first = role == "assistant" or bool(part.calls)
    if speaks_first:
        view = {**message, "content": part.said or None, "tool_calls": part.calls}
        yield Turn(view, place, None, _metrics(message) if first else None)
    for result in part.results:
        yield _result_turn(result, place)
    if role != "assistant" and (part.said or not (speaks_first or part.results)):
        yield Turn({"role": role, "content": part.said}, place, None)


def _call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": block.get("input")}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result_turn(block: dict[str, Any], place: int) -> Turn:
    view = {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id"),
        "content": block.get("content"),
    }
    return Turn(view, place, None, failed=block.get("is_error") is True)


def _metrics(message: Message) -> dict[str, Any] | None:
    usage = as_object(message.get("usage"))
    if not usage:
        return None
    read = first_number(usage, "cache_read_input_tokens")
    written = first_number(usage, "cache_creation_input_tokens")
    fresh = first_number(usage, "input_tokens") or 0
    out = first_number(usage, "output_tokens")
    prompt = fresh + (read or 0) + (written or 0)  # Anthropic counts cached tokens apart
    model = message.get("model")
    return {
        "input_tokens": prompt,
        "output_tokens": out,
        "total_tokens": prompt + (out or 0),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "model_name": model if isinstance(model, str) else None,
        "provider": "anthropic",
        "llm_calls": 1,
    }
