"""Chats in OpenAI's forms, in: a list of messages or of items, or an object that holds one.

Items are those of the Responses API (`input`, `output`, an agent's session). A response of chat
completions goes behind the messages that stand beside it, or alone. What else stands there (tools,
model, ids) is kept on the first step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Records, Skipped, chat_of, read_chats
from hybridagi_steps.messages.conversation import Conversation
from hybridagi_steps.messages.turns import openai_turns
from hybridagi_steps.records.json_reading import JsonObject, as_list, as_object, without


def recognises(value: JsonValue) -> bool:
    """Whether a record is a conversation: a list of messages, or an object with one."""
    match value:
        case [{"role": _}, *_] | [{"type": "function_call" | "reasoning"}, *_]:
            return True
        case {"step_type": _}:
            return False
        case {"messages": _}:
            return True
        case dict():
            return _is_response(record := as_object(value)) or bool(_spoken(record))
        case _:
            return False


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of conversations, one per record."""
    return read_chats(records, _conversation)


def _conversation(value: object) -> Conversation:
    if not isinstance(value, dict):
        return chat_of(value, "openai", openai_turns)
    record = cast("JsonObject", value)
    if "messages" not in record and _is_response(record):
        asked: object = record.get("input") or []
        messages = as_list(asked) or ([{"role": "user", "content": asked}] if asked else [])
        messages = [*messages, *as_list(record["output"])]
        record = {**without(record, "input", "output"), "messages": messages}
    elif spoken := _spoken(record):
        record = {**record, "messages": [*as_list(record.get("messages")), spoken]}
    conversation = chat_of(record, "openai", openai_turns)
    others = len(as_list(record.get("choices"))) - 1 if _spoken(record) else 0
    conversation.unread = ("further choice of a completion",) * others
    return conversation


def _is_response(record: JsonObject) -> bool:
    """Whether an object is a call of the Responses API, with what came back."""
    asked = "input" in record or record.get("object") == "response"
    return asked and isinstance(record.get("output"), list)


def _spoken(record: JsonObject) -> JsonObject:
    """Return the message of a response of chat completions; an empty one when it is none."""
    match record:
        case {"object": "chat.completion", "choices": [{"message": message}, *_]}:
            return as_object(message)
        case _:
            return {}
