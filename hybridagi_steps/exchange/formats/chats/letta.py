"""Messages of Letta, in: lists as its API gives them, and agent files (`.af`).

Reasoning stays with the call or the answer that it led to. A `send_message` call of older agents is
what the assistant said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, message, parse_chats
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.parts import called, function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    json_or_text,
    text_of,
    time_of,
    without,
)

_ROLES = {
    "user_message": "user",
    "system_message": "system",
    "assistant_message": "assistant",
    "summary_message": "system",
    "event_message": "system",
}
_SEND = "send_message"


def recognises(value: JsonValue) -> bool:
    """Whether a record is a list of messages, an object with one, or an agent file."""
    match value:
        case [{"message_type": str()}, *_] | {"messages": [{"message_type": str()}, *_]}:
            return True
        case {"agents": [{"messages": [*_]}, *_], "blocks": _}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of conversations; an agent file has one for each agent."""
    return parse_chats(records, "letta", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    file = as_object(value)
    for agent in map(as_object, as_list(file.get("agents"))):
        messages = [_stored(as_object(m)) for m in as_list(agent.get("messages"))]
        about = without(agent, "messages")
        yield Chat(messages, as_text(agent.get("id")), as_text(agent.get("name")), extras=about)
    if "agents" not in file:
        natives = as_list(value) or as_list(file.get("messages"))
        dated = sorted(map(as_object, natives), key=lambda m: str(m.get("date") or ""))
        yield Chat(list(_messages(dated)), extras=without(file, "messages"))


def _stored(native: Message) -> ChatMessage:
    """Return a message of an agent file, which is in OpenAI's form."""
    view = dict(native)
    calls = [as_object(call) for call in as_list(native.get("tool_calls"))]
    if calls and all(called(call)[0] == _SEND for call in calls):
        view["content"] = "\n".join(_sent(called(call)[1]) for call in calls)
        view.pop("tool_calls")
    return ChatMessage(view, native, time_of(native))


def _messages(natives: list[Message]) -> Iterator[ChatMessage]:
    thought: list[ChatMessage] = []
    for native in natives:
        kind, made = str(native.get("message_type")), time_of(native, "date")
        if kind in ("reasoning_message", "hidden_reasoning_message"):
            text = text_of(native.get("reasoning") or native.get("hidden_reasoning"))
            thought.append(message("assistant", "", native, reasoning_content=text))
            continue
        said = _said(native, kind)._replace(made=made)
        if thought and said.view["role"] == "assistant":
            texts = [text for t in thought if (text := t.view.get("reasoning_content"))]
            said.view["reasoning_content"] = "\n".join(texts)
            said = said._replace(native={**native, "reasoning": [t.native for t in thought]})
        elif thought:
            yield from thought
        thought = []
        yield said
    yield from thought


def _said(native: Message, kind: str) -> ChatMessage:
    if kind in ("tool_call_message", "approval_request_message"):
        call = as_object(native.get("tool_call"))
        made = function_call(call.get("tool_call_id"), call.get("name"), call.get("arguments"))
        if call.get("name") == _SEND:
            return message("assistant", _sent(called(made)[1]), native)
        return message("assistant", None, native, tool_calls=[made])
    if kind == "tool_return_message":
        content, own = native.get("tool_return"), native.get("tool_call_id")
        said = message("tool", content, native, tool_call_id=own, name=native.get("name"))
        return said._replace(failed=native.get("status") == "error")
    content = native.get("content")
    packed = as_object(json_or_text(content))
    if kind == "user_message" and packed.get("type") == "user_message":
        content = packed.get("message")
    return message(_ROLES.get(kind, "system"), content or text_of(native.get("message")), native)


def _sent(arguments: JsonObject) -> str:
    return text_of(arguments.get("message"))
