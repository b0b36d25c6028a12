"""Chats in Anthropic's message form, in: requests, responses and lists of both.

The system prompt stands beside the messages and is kept there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Records, Skipped, chat_of, read_chats
from hybridagi_steps.messages.conversation import Conversation
from hybridagi_steps.messages.turns import Message, Turn, anthropic_turns
from hybridagi_steps.records.json_reading import as_object, is_one_of

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


def recognises(value: JsonValue) -> bool:
    """Whether a record is a conversation in Anthropic's form rather than OpenAI's."""
    match value:
        case [_, *_] as messages:
            return any(map(_is_own, messages))
        case {"messages": [_, *_] as messages}:
            return "system" in value or "stop_reason" in value or any(map(_is_own, messages))
        case _:
            return False


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of conversations, one per record."""
    return read_chats(records, _conversation)


def _is_own(message: JsonValue) -> bool:
    match message:
        case {"stop_reason": _}:
            return True
        case {"content": [*blocks]}:
            return any(is_one_of(as_object(block).get("type"), _BLOCKS) for block in blocks)
        case _:
            return False


def _conversation(value: object) -> Conversation:
    system: object = as_object(value).get("system")

    def turns(messages: Sequence[Message]) -> list[Turn]:
        found = anthropic_turns(messages)
        if not system or not isinstance(system, str | list):
            return found
        # The prompt is said first, and carried by what stands beside the messages.
        return [Turn({"role": "system", "content": system}, PROMPT_PLACE, None), *found]

    return chat_of(value, "anthropic", turns)
