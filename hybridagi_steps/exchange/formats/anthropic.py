"""Chats in Anthropic's message form, in: requests, responses and lists of both.

The system prompt stands beside the messages and is kept there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridagi_steps.exchange.chats import ChatFormat, message_list
from hybridagi_steps.messages.conversation import Conversation
from hybridagi_steps.messages.turns import Message, Turn, anthropic_turns
from hybridagi_steps.records.json_reading import as_object, is_one_of, objects_in

_BLOCKS = {
    *("tool_use", "server_tool_use", "mcp_tool_use", "thinking", "redacted_thinking"),
    *("tool_result", "mcp_tool_result", "web_search_tool_result"),
}
PROMPT_PLACE = -1
"""Place of the prompt: before the first message."""


def _is_from_anthropic(value: object) -> bool:
    fields = as_object(value)
    messages = objects_in(value) or objects_in(fields, "messages")
    return bool(messages) and (
        bool(fields.keys() & {"system", "stop_reason"}) or any(map(_is_own, messages))
    )


def _is_own(message: Message) -> bool:
    types = (block.get("type") for block in objects_in(message, "content"))
    return "stop_reason" in message or any(is_one_of(kind, _BLOCKS) for kind in types)


def _conversations(value: object) -> Iterator[Conversation]:
    system: object = as_object(value).get("system")

    def turns(messages: Sequence[Message]) -> list[Turn]:
        read = anthropic_turns(messages)
        if not system or not isinstance(system, str | list):
            return read
        # The prompt is said first, and carried by what stands beside the messages.
        return [Turn({"role": "system", "content": system}, PROMPT_PLACE, None), *read]

    yield message_list(value, "anthropic", turns)


FORMAT = ChatFormat("anthropic", _conversations, (_is_from_anthropic,))
