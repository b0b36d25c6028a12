"""Chats of claude.ai's data export, in: `conversations.json`, or the zip that holds it.

Each conversation is one session with its name as title. The text that was extracted from an
attachment is part of its message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, message
from hybridagi_steps.messages.turns import Message, anthropic_turns
from hybridagi_steps.records.json_reading import as_object, objects_in, text_in, time_of, without


def _chats(value: Any) -> Iterator[Chat]:
    chat = as_object(value)
    yield Chat(
        [_message(native) for native in objects_in(chat, "chat_messages")],
        id=text_in(chat, "uuid"),
        title=text_in(chat, "name"),
        user_id=text_in(as_object(chat.get("account")), "uuid"),
        created_at=time_of(chat),
        extras=without(chat, "chat_messages"),
        turns=anthropic_turns,
    )


def _message(native: Message) -> ChatMessage:
    role = "user" if native.get("sender") == "human" else "assistant"
    blocks, text = objects_in(native, "content"), native.get("text") or ""
    attached = [text_in(item, "extracted_content") for item in objects_in(native, "attachments")]
    if texts := [{"type": "text", "text": extracted} for extracted in attached if extracted]:
        blocks = [*(blocks or [{"type": "text", "text": text}]), *texts]
    return message(role, blocks or text, native)


FORMAT = ChatFormat("claude_ai", _chats, ({"chat_messages": list},))
