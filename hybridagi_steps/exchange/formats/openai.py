"""Chats in OpenAI's forms, in: a list of messages or of items, or an object that holds one.

Items are those of the Responses API (`input`, `output`, an agent's session). A response of chat
completions goes behind the messages that stand beside it, or alone. What else stands there (tools,
model, ids) is kept on the first step. `AGENTS` reads sessions of OpenAI's Agents SDK, rows of the
SQLite file that its `SQLiteSession` writes: `databases` gives one record a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, has_shape, message_list
from hybridagi_steps.messages.conversation import Conversation
from hybridagi_steps.messages.turns import openai_turns
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_COMPLETION = {"object": {"chat.completion"}, "choices": [{"message": ...}]}


def _conversations(value: object) -> Iterator[Conversation]:
    record = js.as_object(value)
    answers: list[JsonObject] = []
    if "messages" not in record and _is_response(record):
        question: object = record.get("input") or []
        before = [{"role": "user", "content": question}] if question else []
        messages = [*(js.as_list(question) or before), *js.as_list(record["output"])]
        record = {**js.without(record, "input", "output"), "messages": messages}
    elif has_shape(record, _COMPLETION):
        answers = [
            js.as_object(choice.get("message")) for choice in js.objects_in(record, "choices")
        ]
        record = {**record, "messages": [*js.as_list(record.get("messages")), answers[0]]}
    conversation = message_list(record or value, "openai", openai_turns)
    conversation.unread = ("further choice of a completion",) * len(answers[1:])
    yield conversation


def _is_response(value: object) -> bool:
    """Whether a value is a call of the Responses API, with what came back."""
    fields = js.as_object(value)
    is_call = "input" in fields or fields.get("object") == "response"
    return is_call and isinstance(fields.get("output"), list)


def _sessions(value: Any) -> Iterator[Chat]:
    session = js.as_object(value)
    items = [
        (js.as_object(row.get("item")), js.time_of(row)) for row in js.objects_in(session, "items")
    ]
    yield Chat(
        [ChatMessage(item, item, time) for item, time in items],
        id=js.text_in(session, "agents_session"),
        created_at=js.time_of(session),
    )


FORMAT = ChatFormat(
    "openai",
    _conversations,
    (
        [{"role": ...}],
        [{"type": {"function_call", "reasoning"}}],
        {"messages": ...},
        _is_response,
        _COMPLETION,
    ),
)
AGENTS = ChatFormat("openai_agents", _sessions, ({"agents_session": ..., "items": ...},))
