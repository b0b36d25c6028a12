"""Chats of ChatGPT's data export, in: each conversation of `conversations.json` is a tree.

The line that was shown last is the session. Where a message was edited, or an answer made again,
the other lines become forks of it. A message to another recipient than `all` is a call of that
tool, what a tool says next its result; thoughts stay with the answer that they led to. What is
hidden from the reader (custom instructions, empty system messages) counts as a system message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, branches
from hybridagi_steps.messages.conversation import content_key
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

_HIDDEN = "is_visually_hidden_from_conversation"
_THOUGHTS = ("thoughts", "reasoning_recap")
_TEXT_KEYS = ("text", "result", "content")
"""Where contents that have no parts keep their text."""
_ROLES = ("user", "assistant", "tool", "system")


def _is_export(value: object) -> bool:
    mapping = js.as_object(js.as_object(value).get("mapping"))
    return any("message" in js.as_object(node) for node in mapping.values())


def _chats(value: Any) -> Iterator[Chat]:
    if not _is_export(value):
        raise BadRecordError("no conversation of ChatGPT's export: no mapping of messages")
    chat = js.as_object(value)
    nodes = {name: js.as_object(node) for name, node in js.as_object(chat["mapping"]).items()}
    own = js.text_in(chat, "conversation_id", "id") or f"chatgpt-{content_key(nodes)[:16]}"
    parents = {name: js.text_in(node, "parent") for name, node in nodes.items()}
    is_first = True
    for leaf, path in branches(parents, js.text_in(chat, "current_node")):
        natives = (js.as_object(nodes[name].get("message")) for name in path)
        messages = list(_messages(filter(None, natives)))
        if any(message.view["role"] != "system" for message in messages):
            yield Chat(
                messages,
                id=own,
                title=js.text_in(chat, "title") if is_first else None,
                created_at=js.time_of(chat),
                extras=js.without(chat, "mapping"),
                branch=None if is_first else f"{own}@{leaf}",
            )
            is_first = False
    if is_first:
        raise BadRecordError("nothing was said in this conversation")


def _messages(natives: Iterable[Message]) -> Iterator[ChatMessage]:
    """Yield the messages of one line."""
    thoughts: list[ChatMessage] = []
    calls: dict[str, object] = {}  # the last call of each tool that waits for its result
    for place, native in enumerate(natives):
        author, content = js.as_object(native.get("author")), js.as_object(native.get("content"))
        about = js.as_object(native.get("metadata"))
        role, name = author.get("role"), js.text_in(author, "name")
        view: JsonObject = {"role": role, "content": _text(content)}
        if not (js.is_one_of(role, _ROLES) or view["content"]):
            raise BadRecordError(f"message {place + 1} has the role {role!r:.60}")
        if about.get(_HIDDEN):
            view["role"] = "system"
        read = ChatMessage(view, native, js.time_of(native, "create_time"))
        if role == "assistant" and js.is_one_of(content.get("content_type"), _THOUGHTS):
            thoughts.append(read)
            continue
        if view["role"] == "assistant":
            thought = js.joined(*(str(each.view["content"]) for each in thoughts)).strip()
            view |= js.known_fields(reasoning_content=thought or None)
            if (tool := js.text_in(native, "recipient")) not in (None, "all"):
                call = function_call(native.get("id"), tool, view["content"])
                calls[tool] = native.get("id")
                view |= {"content": None, "tool_calls": [call]}
            if model := js.text_in(about, "model_slug"):
                read = read._replace(metrics={"model_name": model})
        elif role == "tool":
            view |= js.known_fields(name=name, tool_call_id=calls.pop(name or "", None))
        yield read._replace(also=tuple(each.native for each in thoughts if each.native))
        thoughts = []
    yield from thoughts


def _text(content: JsonObject) -> str:
    """Return what a content says; parts that are no text are named in brackets."""
    if "parts" in content:
        return js.joined(*map(_part, js.as_list(content["parts"])))
    if thoughts := js.as_list(content.get("thoughts")):
        return "\n".join(_part(thought) for thought in thoughts)
    return js.text_in(content, *_TEXT_KEYS) or ""


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    fields = js.as_object(part)
    return js.text_in(fields, *_TEXT_KEYS) or f"[{fields.get('content_type', 'part')}]"


FORMAT = ChatFormat("chatgpt", _chats, (_is_export,))
