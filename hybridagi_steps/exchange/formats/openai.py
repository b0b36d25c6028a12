"""Chats in OpenAI's forms, in: a list of messages or of items, or an object that holds one.

Items are those of the Responses API (`input`, `output`, an agent's session), which `turns` tells
from messages. A response of chat completions goes behind the messages that stand beside it, or
alone. What else stands there (tools, model, ids) is kept on the first step. The steps that a
conversation becomes are made by `conversation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hybridagi_steps.exchange.conversation import (
    Conversation,
    Message,
    Turn,
    conversation_of,
    message_list,
    record_steps,
)
from hybridagi_steps.exchange.records import (
    BadRecordError,
    Parsed,
    Records,
    Skipped,
    as_list,
    as_object,
    read_each,
)
from hybridagi_steps.messages.parts import text_of

ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
"""Who speaks, in OpenAI's words."""


def recognises(value: Any) -> bool:
    """Whether a record is a conversation: a list of messages, or an object with one."""
    if isinstance(value, list):
        first = as_object(next(iter(as_list(value)), None))
        return "role" in first or first.get("type") in ("function_call", "reasoning")
    record = as_object(value)
    known = "messages" in record or _is_response(record) or bool(_spoken(record))
    return known and "step_type" not in record


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of conversations, one per record."""
    return read_each(records, lambda record: record_steps(record, _conversation(record.value)))


def turns(messages: list[Message]) -> list[Turn]:
    """Return messages as they are, each one turn; items as the turns that they make up."""
    if are_items(messages):
        return turns_of_items(messages, ROLES)
    return [Turn(checked(message, place), place, message) for place, message in enumerate(messages)]


def checked(message: Message, place: int) -> Message:
    """Return a message whose role is known."""
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRecordError(f"message {place + 1} has the role {role!r:.60}")
    return message


def _conversation(value: Any) -> Conversation:
    record = as_object(value) if isinstance(value, dict) else {"messages": as_list(value) or None}
    if "messages" not in record and _is_response(record):
        record = _response(record)
    elif spoken := _spoken(record):
        record = {**record, "messages": [*as_list(record.get("messages")), spoken]}
    messages = message_list(record)
    return conversation_of(record, messages, turns(messages), "openai")


def _is_response(record: dict[str, Any]) -> bool:
    """Whether an object is a call of the Responses API, with what came back."""
    asked = "input" in record or record.get("object") == "response"
    return asked and isinstance(record.get("output"), list)


def _spoken(record: dict[str, Any]) -> dict[str, Any]:
    """Return the message of a response of chat completions; an empty one when it is none."""
    if record.get("object") != "chat.completion":
        return {}
    return as_object(as_object(next(iter(as_list(record.get("choices"))), None)).get("message"))


def _response(record: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its input and output as one list of items."""
    given: Any = record.get("input") or []
    asked = as_list(given) or ([{"role": "user", "content": given}] if given else [])
    rest = {name: item for name, item in record.items() if name not in ("input", "output")}
    return {**rest, "messages": [*asked, *as_list(record["output"])]}


_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_TEXTS = {"input_text", "output_text", "summary_text"}


def are_items(messages: Sequence[Message]) -> bool:
    """Whether a list holds items that are no messages."""
    return any("role" not in item and isinstance(item.get("type"), str) for item in messages)


def turns_of_items(items: Sequence[Message], roles: set[str]) -> list[Turn]:
    """Return items as turns.

    Args:
        items: Messages, calls, outputs, reasoning and others.
        roles: Who may speak.
    """
    reader = _Items(roles)
    for place, item in enumerate(items):
        reader.take(item, place)
    return reader.end()


class _Items:
    """Gathers what a model gives at once."""

    def __init__(self, roles: set[str]) -> None:
        self._roles = roles
        self._turns: list[Turn] = []
        self._parts: list[Turn] = []
        self._view: Message = {}

    def take(self, item: Message, place: int) -> None:
        """Read the next item."""
        kind, role = item.get("type"), item.get("role")
        if isinstance(kind, str) and kind.endswith("call_output"):
            content = item.get("output")
            view = {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
            self._close()
            self._turns.append(Turn(view, place, item))
        elif role == "assistant":
            if "content" in self._view or "tool_calls" in self._view:
                self._close()
            self._add(item, place, content=_content(item.get("content")))
        elif isinstance(role, str) and role in self._roles:
            self._close()
            view = {"role": role, "content": _content(item.get("content"))}
            self._turns.append(Turn(view, place, item))
        elif role is not None or not isinstance(kind, str):
            raise BadRecordError(f"item {place + 1} has the role {role!r:.60}")
        elif kind in _CALLS:
            function = {"name": item.get("name"), "arguments": item.get(_CALLS[kind])}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            self._add(item, place, tool_calls=[*self._view.get("tool_calls", []), call])
        elif kind == "reasoning" and (thought := text_of(item.get("summary"))):
            self._add(item, place, reasoning_content=thought)
        else:
            self._add(item, place)

    def end(self) -> list[Turn]:
        """Return all turns."""
        self._close()
        return self._turns

    def _add(self, item: Message, place: int, **said: Any) -> None:
        self._parts.append(Turn({}, place, item))
        self._view |= said

    def _close(self) -> None:
        """End what the model gives at once."""
        parts, view = self._parts, self._view
        self._parts, self._view = [], {}
        if not parts:
            return
        first, *others = parts
        self._turns.append(first._replace(view={"role": "assistant", **view}, also=tuple(others)))


def _content(content: Any) -> Any:
    """Return a message's parts under the names that they have in a chat."""
    if not isinstance(content, list):
        return content
    parts = [as_object(part) or {"type": "text", "text": str(part)} for part in as_list(content)]
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in _TEXTS:
        return {"type": "text", "text": str(part.get("text", ""))}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part
