"""Messages of Letta, in: lists as its API gives them, and agent files (`.af`).

Reasoning stays with the call or the answer that it led to. A `send_message` call of older agents is
an assistant's message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, message, result
from hybridagi_steps.messages.parts import called, function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_ROLES = {"user_message": "user", "assistant_message": "assistant"}
_THOUGHTS = ("reasoning_message", "hidden_reasoning_message")
_SEND = "send_message"


def _chats(value: Any) -> Iterator[Chat]:
    file = js.as_object(value)
    for agent in js.objects_in(file, "agents"):
        messages = [_openai_message(native) for native in js.objects_in(agent, "messages")]
        about = js.without(agent, "messages")
        yield Chat(messages, js.text_in(agent, "id"), js.text_in(agent, "name"), extras=about)
    if "agents" not in file:
        natives = js.objects_in(value) or js.objects_in(file, "messages")
        dated = sorted(natives, key=lambda native: str(native.get("date") or ""))
        yield Chat(list(_messages(dated)), extras=js.without(file, "messages"))


def _openai_message(native: Message) -> ChatMessage:
    """Return a message of an agent file, which is in OpenAI's form."""
    view = dict(native)
    calls = js.objects_in(native, "tool_calls")
    if calls and all(called(call)[0] == _SEND for call in calls):
        view["content"] = "\n".join(_sent_text(called(call)[1]) for call in calls)
        view.pop("tool_calls")
    return ChatMessage(view, native, js.time_of(native))


def _messages(natives: Iterable[Message]) -> Iterator[ChatMessage]:
    thoughts: list[Message] = []
    for native in natives:
        if native.get("message_type") in _THOUGHTS:
            thoughts.append(native)
            continue
        read = _message(native, str(native.get("message_type")))
        if thoughts and read.view["role"] == "assistant":
            read.view["reasoning_content"] = js.joined(*map(_thought, thoughts))
            read = read._replace(also=tuple(thoughts))
        else:
            yield from map(_lone_thought, thoughts)
        thoughts = []
        yield read._replace(time=js.time_of(native, "date"))
    yield from map(_lone_thought, thoughts)


def _thought(native: Message) -> str:
    return js.text_of(native.get("reasoning") or native.get("hidden_reasoning"))


def _lone_thought(native: Message) -> ChatMessage:
    return message("assistant", "", native, reasoning_content=_thought(native))


def _message(native: Message, kind: str) -> ChatMessage:
    if kind in ("tool_call_message", "approval_request_message"):
        fields = js.as_object(native.get("tool_call"))
        call = function_call(
            fields.get("tool_call_id"), fields.get("name"), fields.get("arguments")
        )
        if fields.get("name") == _SEND:
            return message("assistant", _sent_text(called(call)[1]), native)
        return message("assistant", None, native, tool_calls=[call])
    if kind == "tool_return_message":
        call_id, name, failed = map(native.get, ("tool_call_id", "name", "status"))
        answer = native.get("tool_return")
        return result(call_id, answer, native, name=name, failed=failed == "error")
    content = native.get("content")
    packed = js.as_object(js.json_or_text(content))
    if kind == "user_message" and packed.get("type") == "user_message":
        content = packed.get("message")
    return message(_ROLES.get(kind, "system"), content or js.text_of(native.get("message")), native)


def _sent_text(arguments: JsonObject) -> str:
    return js.text_of(arguments.get("message"))


_MESSAGE = {"message_type": str}
FORMAT = ChatFormat(
    "letta",
    _chats,
    ([_MESSAGE], {"messages": [_MESSAGE]}, {"agents": [{"messages": [...]}], "blocks": ...}),
)
