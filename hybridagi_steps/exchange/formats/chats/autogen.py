"""Messages of AutoGen, in: those of a team (`TaskResult`, `messages`), and saved states of agents.

Teams write `type` and `source`; in the state of an agent the model's context is read. What a user
or another agent said to the agent is a user's message, with its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, message, result
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js

_TRANSIENT = ("ModelClientStreamingChunkEvent", "UserInputRequestedEvent")
"""Events that other messages repeat."""
_KINDS = {
    *("TextMessage", "MultiModalMessage", "StopMessage", "HandoffMessage", "StructuredMessage"),
    *("ToolCallRequestEvent", "ToolCallExecutionEvent", "ToolCallSummaryMessage", "ThoughtEvent"),
    *("MemoryQueryEvent", "SystemMessage", "UserMessage", "AssistantMessage", *_TRANSIENT),
    "FunctionExecutionResultMessage",
}
_MESSAGE = {"type": _KINDS}


def _chats(value: Any) -> Iterator[Chat]:
    state = js.as_object(value)
    lists = [("", js.objects_in(value) or js.objects_in(state, "messages"))]
    agents: dict[str, Any] = js.as_object(state.get("agent_states")) or {"": state}
    for name, agent in agents.items():
        inner = js.as_object(js.as_object(agent).get("agent_state")) or js.as_object(agent)
        lists.append((name, js.objects_in(inner.get("llm_context"), "messages")))
    extras = js.without(value, "messages", "agent_states", "llm_context")
    for name, natives in lists:
        if natives:
            messages = [m for native in natives for m in _messages(native)]
            yield Chat(messages, title=name.split("/")[0] or None, extras=extras)


def _messages(native: Message) -> Iterator[ChatMessage]:
    kind, source, content = (
        str(native.get("type")),
        js.text_in(native, "source"),
        native.get("content"),
    )
    metrics = js.usage_metrics(native.get("models_usage"))
    first: Message | None = native
    if kind in _TRANSIENT:
        return
    if kind in ("FunctionExecutionResultMessage", "ToolCallExecutionEvent"):
        for item in js.objects_in(content):
            failed = item.get("is_error") is True
            yield result(item.get("call_id"), item.get("content"), first, failed=failed)
            first = None
    elif kind == "SystemMessage":
        yield message("system", content, native)
    elif kind == "UserMessage" or source == "user":
        yield message("user", _content(content), native, name=source)
    elif isinstance(content, list) and kind != "MultiModalMessage":
        calls, thought = js.objects_in(native, "content"), js.text_in(native, "thought")
        view = message("assistant", None, native, tool_calls=calls, reasoning_content=thought)
        yield view._replace(metrics=metrics)
    elif kind == "ThoughtEvent":
        yield message("assistant", "", native, reasoning_content=js.text_of(content))
    else:
        view = message("assistant", _content(content), native, name=source)
        yield view._replace(metrics=metrics)


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return js.text_of(content)
    return [
        part if isinstance(part, str) else {"type": "image", **js.as_object(part)}
        for part in js.as_list(content)
    ]


FORMAT = ChatFormat(
    "autogen",
    _chats,
    (
        [_MESSAGE],
        {"messages": [_MESSAGE]},
        {"llm_context": {"messages": [_MESSAGE]}},
        {"agent_state": {"llm_context": {"messages": [_MESSAGE]}}},
        {"type": {"TeamState"}, "agent_states": dict},
    ),
)
