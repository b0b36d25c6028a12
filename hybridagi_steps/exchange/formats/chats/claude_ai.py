"""Chats of claude.ai's data export, in: `conversations.json`, or the zip that holds it.

Each conversation is one session with its name as title. What was attached stands in the native
message; its extracted text is said with the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, message, parse_chats
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.turns import Message, anthropic_turns
from hybridagi_steps.records.json_reading import (
    as_list,
    as_object,
    as_text,
    time_of,
    without,
)


def recognises(value: JsonValue) -> bool:
    """Whether a record is a conversation of the export."""
    return isinstance(value, dict) and isinstance(value.get("chat_messages"), list)


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of conversations, one per record."""
    return parse_chats(records, "claude_ai", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    chat = as_object(value)
    yield Chat(
        [_message(as_object(said)) for said in as_list(chat.get("chat_messages"))],
        id=as_text(chat.get("uuid")),
        title=as_text(chat.get("name")) or None,
        user_id=as_text(as_object(chat.get("account")).get("uuid")),
        created_at=time_of(chat),
        extras=without(chat, "chat_messages"),
        turns=anthropic_turns,
    )


def _message(said: Message) -> ChatMessage:
    role = "user" if said.get("sender") == "human" else "assistant"
    content: object = as_list(said.get("content")) or said.get("text") or ""
    attached = [as_text(as_object(a).get("extracted_content")) for a in _attachments(said)]
    if texts := [{"type": "text", "text": text} for text in attached if text]:
        content = [*(as_list(content) or [{"type": "text", "text": content}]), *texts]
    return message(role, content, said)


def _attachments(said: Message) -> list[Any]:
    return as_list(said.get("attachments"))
