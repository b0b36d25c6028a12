"""Chats of ChatGPT's data export, in: each conversation of `conversations.json` is a tree.

The line that was shown last is the session. Where a message was edited, or an answer made again,
the other lines become forks of it. A message to another recipient than `all` is a call of that
tool, what a tool says next its result; thoughts stay with the answer that they led to. What is
hidden from the reader (custom instructions, empty system messages) counts as a system message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.records import (
    Parsed,
    Record,
    Records,
    Skipped,
    read_each,
    record_steps,
)
from hybridagi_steps.messages.conversation import LONGEST_RUN_ID, Conversation, content_key
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message, Turn
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    as_text,
    is_one_of,
    known_fields,
    time_of,
    without,
)

_HIDDEN = "is_visually_hidden_from_conversation"
_THOUGHTS = ("thoughts", "reasoning_recap")
_TEXT_KEYS = ("text", "result", "content")
"""Where contents that have no parts keep their text."""
_ROLES = ("user", "assistant", "tool", "system")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a conversation of the export."""
    mapping = as_object(as_object(value).get("mapping"))
    return any("message" in as_object(node) for node in mapping.values())


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Yield the steps of conversations, each line of one after the other."""
    return read_each(records, _steps)


def _steps(record: Record) -> list[Parsed | Skipped]:
    if not recognises(record.value):
        raise BadRecordError("no conversation of ChatGPT's export: no mapping of messages")
    value = as_object(record.value)
    mapping = as_object(value["mapping"])
    nodes = {name: as_object(node) for name, node in mapping.items()}
    own = as_text(value.get("conversation_id")) or as_text(value.get("id"))
    key = own or f"chatgpt-{content_key(nodes)[:16]}"
    found: list[Parsed | Skipped] = []
    for leaf, path in _lines(nodes, as_text(value.get("current_node"))):
        if not (turns := _Line().turns(path)):
            continue
        line = f"{key}@{leaf}" if found else None
        run_id = line or key
        told = Conversation(
            turns,
            key=f"chatgpt:{key}",
            format="chatgpt",
            session_id=key,
            line=line,
            run_id=run_id if len(run_id) <= LONGEST_RUN_ID else None,
            created_at=time_of(value),
            extras=without(value, "mapping"),
        )
        title = as_text(value.get("title")) or None
        found += record_steps(record, told, title=None if line else title)
    if not found:
        raise BadRecordError("nothing was said in this conversation")
    return found


def _lines(
    nodes: dict[str, JsonObject], current: str | None
) -> Iterator[tuple[str, list[Message]]]:
    """Yield each line of a tree: its last node and its messages, that of the current one first."""
    parents = {as_text(node.get("parent")) for node in nodes.values()}
    paths = {leaf: _path(nodes, leaf) for leaf in nodes if leaf not in parents}
    shown = next((leaf for leaf, path in paths.items() if current in path), None)
    for leaf in sorted(paths, key=lambda leaf: leaf != (shown or next(reversed(paths)))):
        messages = (as_object(nodes[name].get("message")) for name in paths[leaf])
        yield leaf, [message for message in messages if message]


def _path(nodes: dict[str, JsonObject], leaf: str) -> list[str]:
    path: dict[str, None] = {}
    name: str | None = leaf
    while name is not None and name in nodes and name not in path:
        path[name] = None
        name = as_text(nodes[name].get("parent"))
    return list(reversed(path))


class _Line:
    """Reads the messages of one line."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._thoughts: list[Turn] = []
        self._calls: dict[str, object] = {}
        """The last call of each tool that waits for its result."""

    def turns(self, messages: list[Message]) -> list[Turn]:
        """Return what messages say; nothing where nobody but the system spoke."""
        for place, message in enumerate(messages):
            self._read(message, place)
        spoken = any(turn.view["role"] != "system" for turn in self._turns)
        return [*self._turns, *self._thoughts] if spoken else []

    def _read(self, message: Message, place: int) -> None:
        author, content = as_object(message.get("author")), as_object(message.get("content"))
        role, name = author.get("role"), as_text(author.get("name"))
        if not is_one_of(role, _ROLES):
            raise BadRecordError(f"message {place + 1} has the role {role!r:.60}")
        view: JsonObject = {"role": role, "content": _text(content)}
        if as_object(message.get("metadata")).get(_HIDDEN):
            view["role"] = "system"
        made = time_of(message, "create_time")
        if role == "assistant" and is_one_of(content.get("content_type"), _THOUGHTS):
            self._thoughts.append(Turn(view, place, message, made=made))
            return
        if view["role"] == "assistant":
            self._say(view, message)
        elif role == "tool":
            call_id = self._calls.pop(name or "", None)
            view |= known_fields(name=name, tool_call_id=call_id)
        also, self._thoughts = tuple(self._thoughts), []
        metrics = None
        if model := as_text(as_object(message.get("metadata")).get("model_slug")):
            metrics = {"model_name": model} if view["role"] == "assistant" else None
        self._turns.append(Turn(view, place, message, metrics, made=made, also=also))

    def _say(self, view: JsonObject, message: Message) -> None:
        """Tell what an assistant thought, and whether it spoke to a tool."""
        if thought := "\n".join(str(turn.view["content"]) for turn in self._thoughts).strip():
            view["reasoning_content"] = thought
        tool = as_text(message.get("recipient"))
        if tool in (None, "all"):
            return
        call = function_call(message.get("id"), tool, view["content"])
        self._calls[tool] = message.get("id")
        view |= {"content": None, "tool_calls": [call]}


def _text(content: JsonObject) -> str:
    """Return what a content says; parts that are no text are named in brackets."""
    if "parts" in content:
        return "\n".join(filter(None, map(_part, as_list(content["parts"]))))
    if thoughts := as_list(content.get("thoughts")):
        return "\n".join(_part(thought) for thought in thoughts)
    return next((text for key in _TEXT_KEYS if (text := as_text(content.get(key)))), "")


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    fields = as_object(part)
    told = next((text for key in _TEXT_KEYS if (text := as_text(fields.get(key)))), None)
    return told or f"[{fields.get('content_type', 'part')}]"
