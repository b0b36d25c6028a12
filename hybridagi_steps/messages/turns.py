"""Messages of OpenAI's and Anthropic's form as turns: what each says, in one form.

A turn shows what is said in the form of OpenAI's chat completions and keeps the native message
beside it. Items of the Responses API that a model gives at once make up one turn. Of Anthropic's
blocks, text stays in the message, each `tool_use` is a call, each `tool_result` answers one, and
what a user says beside results is a turn of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from hybridagi_steps.messages.parts import cache_mark, function_call
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    as_text,
    first_number,
    text_of,
)
from hybridagi_steps.records.message import MessageRole

Message = JsonObject

ROLES = {
    "system": MessageRole.SYSTEM,
    "developer": MessageRole.SYSTEM,
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
    "tool": MessageRole.TOOL,
    "function": MessageRole.TOOL,
}
"""Who speaks, in OpenAI's words and in ours."""
THINKING_BLOCKS = ("thinking", "redacted_thinking")

_CALL_ITEMS = {"function_call": "arguments", "custom_tool_call": "input"}
_TEXT_ITEMS = {"input_text", "output_text", "summary_text"}
_CALL_BLOCKS = {"tool_use", "server_tool_use", "mcp_tool_use"}


class Turn(NamedTuple):
    """What one message says, in OpenAI's form; a message with two results is two turns."""

    view: Message
    """role, content, tool_calls, tool_call_id, name."""
    place: int
    """Place of the native message in the conversation."""
    native: Message | None
    """The native message; None when an earlier turn carries it."""
    metrics: JsonObject | None = None
    """Fields of StepMetrics."""
    failed: bool = False
    """Whether a tool's result is an error."""
    made: datetime | None = None
    """When it was said, where the message does not say so itself."""
    also: tuple[Turn, ...] = ()
    """Further native messages that are part of what it says."""


def openai_turns(messages: Sequence[Message]) -> list[Turn]:
    """Return messages as they are, each one turn; items as the turns that they make up."""
    if not any("role" not in item and isinstance(item.get("type"), str) for item in messages):
        return [Turn(_checked(message, n), n, message) for n, message in enumerate(messages)]
    reader = _ItemReader()
    for place, item in enumerate(messages):
        reader.read(item, place)
    return reader.end()


def anthropic_turns(messages: Iterable[Message]) -> list[Turn]:
    """Return messages as turns; a message with results and text gives several."""
    return [t for n, message in enumerate(messages) for t in _message_turns(message, n)]


def _checked(message: Message, place: int) -> Message:
    """Return a message whose role is known, and that says something if it is a user's."""
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRecordError(f"message {place + 1} has the role {role!r:.60}")
    if role == "user" and "content" not in message:
        raise BadRecordError(f"message {place + 1} is a user's and has no content")
    return message


class _ItemReader:
    """Reads items of the Responses API; gathers what a model gives at once."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._parts: list[Turn] = []
        self._view: Message = {}

    def read(self, item: Message, place: int) -> None:
        kind, role = item.get("type"), item.get("role")
        if isinstance(kind, str) and kind.endswith("call_output"):
            content = item.get("output")
            view = {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
            self.end().append(Turn(view, place, item))
        elif role == "assistant":
            if "content" in self._view or "tool_calls" in self._view:
                self.end()
            self._gather(item, place, content=_item_content(item.get("content")))
        elif isinstance(role, str) and role in ROLES:
            view = {"role": role, "content": _item_content(item.get("content"))}
            self.end().append(Turn(view, place, item))
        elif role is not None or not isinstance(kind, str):
            raise BadRecordError(f"item {place + 1} has the role {role!r:.60}")
        elif kind in _CALL_ITEMS:
            arguments = item.get(_CALL_ITEMS[kind])
            call = function_call(item.get("call_id"), item.get("name"), arguments)
            self._gather(item, place, tool_calls=[*self._view.get("tool_calls", []), call])
        elif kind == "reasoning" and (thought := text_of(item.get("summary"))):
            self._gather(item, place, reasoning_content=thought)
        else:
            self._gather(item, place)

    def end(self) -> list[Turn]:
        """End what the model gives at once; return all turns."""
        if self._parts:
            first, *others = self._parts
            view = {"role": "assistant", **self._view}
            self._turns.append(first._replace(view=view, also=tuple(others)))
            self._parts, self._view = [], {}
        return self._turns

    def _gather(self, item: Message, place: int, **said: object) -> None:
        self._parts.append(Turn({}, place, item))
        self._view |= said


def _item_content(content: object) -> object:
    """Return a message's parts under the names that they have in a chat."""
    if not isinstance(content, list):
        return content
    return [
        _item_part(as_object(part) or {"type": "text", "text": str(part)})
        for part in as_list(content)
    ]


def _item_part(part: JsonObject) -> JsonObject:
    if part.get("type") in _TEXT_ITEMS:
        return {"type": "text", "text": str(part.get("text", ""))}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


class _Part(NamedTuple):
    """What a message says up to its next results: one may call tools of the provider and go on."""

    said: list[Any]
    calls: list[JsonObject]
    results: list[JsonObject]


def _message_turns(message: Message, place: int) -> Iterator[Turn]:
    blocks: object = _checked(message, place).get("content")
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
        yield Turn(view, place, None, _metrics(message) if first else None)
    for result in part.results:
        view = {"tool_call_id": result.get("tool_use_id"), "content": result.get("content")}
        view |= cache_mark(result)
        failed = result.get("is_error") is True
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
