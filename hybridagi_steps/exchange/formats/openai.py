"""Chats in OpenAI's forms, in: a list of messages or of items, or an object that holds one.

Items are those of the Responses API (`input`, `output`, an agent's session), which `turns` tells
from messages. A response of chat completions goes behind the messages that stand beside it, or
alone. What else stands there (tools, model, ids) is kept on the first step. The steps that a
conversation becomes are made by `conversation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.conversation import (
    Conversation,
    Message,
    Turn,
    conversation_of,
    message_list,
    record_steps,
)
from hybridagi_steps.exchange.openai_responses import are_items, turns_of_items
from hybridagi_steps.exchange.records import (
    BadRecordError,
    Parsed,
    Records,
    Skipped,
    as_list,
    as_object,
    read_each,
)

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
    """Return messages as they are, each one turn; items as the turns that they make up.

    Raises:
        BadRecordError: One of them has no role.
    """
    if are_items(messages):
        return turns_of_items(messages, ROLES)
    return [Turn(checked(message, place), place, message) for place, message in enumerate(messages)]


def checked(message: Message, place: int) -> Message:
    """Return a message whose role is known.

    Raises:
        BadRecordError: It is not.
    """
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
