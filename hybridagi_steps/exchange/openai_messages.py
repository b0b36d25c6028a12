"""Chats in OpenAI's message form, in: a list of messages, or `{"messages": […]}`.

What stands beside the messages (tools, model, ids) is kept on the first step. The steps that a
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
        return "role" in as_object(value[0]) if value else False
    record = as_object(value)
    return "messages" in record and "step_type" not in record


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of conversations, one per record."""
    return read_each(records, lambda record: record_steps(record, _conversation(record.value)))


def turns(messages: list[Message]) -> list[Turn]:
    """Return messages as they are, each one turn.

    Raises:
        BadRecordError: One of them has no role.
    """
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
    messages = message_list(record)
    return conversation_of(record, messages, turns(messages), "openai")
