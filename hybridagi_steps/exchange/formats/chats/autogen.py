"""Messages of AutoGen, in: those of a team (`TaskResult`, `messages`), and saved states of agents.

Teams write `type` and `source`; in the state of an agent the model's context is read. What a user
or another agent said to the agent is a user's message, with its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import (
    Chat,
    ChatMessage,
    message,
    parse_chats,
    result,
    usage_metrics,
)
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    text_of,
    without,
)

_KINDS = {
    "TextMessage",
    "MultiModalMessage",
    "StopMessage",
    "HandoffMessage",
    "StructuredMessage",
    "ToolCallRequestEvent",
    "ToolCallExecutionEvent",
    "ToolCallSummaryMessage",
    "ThoughtEvent",
    "MemoryQueryEvent",
    "UserInputRequestedEvent",
    "ModelClientStreamingChunkEvent",
    "SystemMessage",
    "UserMessage",
    "AssistantMessage",
    "FunctionExecutionResultMessage",
}
_REPEATED = ("ModelClientStreamingChunkEvent", "UserInputRequestedEvent")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a list of messages, a result, or a saved state."""
    return any(_is_message(first) for first in (messages[0] for _, messages in _lists(value)))


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of conversations; a team's state has one for each agent."""
    return parse_chats(records, "autogen", _chats)


def _is_message(value: object) -> bool:
    kind = as_object(value).get("type")
    return isinstance(kind, str) and kind in _KINDS


def _lists(value: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of messages that a value holds, each with the agent's name."""
    if messages := as_list(value):
        yield "", messages
    state = as_object(value)
    if messages := as_list(state.get("messages")):
        yield "", messages
    agents: dict[str, Any] = as_object(state.get("agent_states")) or {"": state}
    for name, agent in agents.items():
        inner = as_object(as_object(agent).get("agent_state")) or as_object(agent)
        if messages := as_list(as_object(inner.get("llm_context")).get("messages")):
            yield name, messages


def _chats(value: Any) -> Iterator[Chat]:
    for name, natives in _lists(value):
        messages = [m for native in natives for m in _messages(as_object(native))]
        extras = without(value, "messages", "agent_states", "llm_context")
        yield Chat(messages, title=name.split("/")[0] or None, extras=extras)


def _messages(native: Message) -> Iterator[ChatMessage]:
    kind, content = str(native.get("type")), native.get("content")
    source = as_text(native.get("source"))
    first: Message | None = native
    if kind in _REPEATED:
        return
    if kind in ("FunctionExecutionResultMessage", "ToolCallExecutionEvent"):
        for item in map(as_object, as_list(content)):
            failed = item.get("is_error") is True
            said = result(item.get("call_id"), item.get("content"), first)
            yield said._replace(failed=failed)
            first = None
    elif kind == "SystemMessage":
        yield message("system", content, native)
    elif kind == "UserMessage" or source == "user":
        yield message("user", _parts(content), native, name=source)
    elif isinstance(content, list) and kind != "MultiModalMessage":
        calls = [_call(as_object(call)) for call in as_list(content)]
        thought = as_text(native.get("thought"))
        view = message("assistant", None, native, tool_calls=calls, reasoning_content=thought)
        yield view._replace(metrics=usage_metrics(native.get("models_usage")))
    elif kind == "ThoughtEvent":
        yield message("assistant", "", native, reasoning_content=text_of(content))
    else:
        view = message("assistant", _parts(content), native, name=source)
        yield view._replace(metrics=usage_metrics(native.get("models_usage")))


def _parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content if isinstance(content, str) else text_of(content)
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", **as_object(part)}
        for part in as_list(content)
    ]


def _call(call: JsonObject) -> JsonObject:
    return function_call(call.get("id"), call.get("name"), call.get("arguments"))
