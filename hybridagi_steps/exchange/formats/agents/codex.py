"""Session logs of Codex, in: the `rollout-*.jsonl` files under `~/.codex/sessions`.

The items that went to and from the model (`response_item`) are the conversation; events repeat them
for the screen, but for the counts of tokens, and are passed over. What Codex tells the model of
its surroundings counts as a system message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, gathered, parse_chats, usage_metrics
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_object,
    as_text,
    text_of,
    time_of,
)

_LINES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_SURROUNDINGS = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a line of such a log."""
    match value:
        case {"type": str(kind), "payload": dict(), "timestamp": _}:
            return kind in _LINES
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of the sessions in a file."""
    return parse_chats(gathered(records, _session), "codex", _chats)


def _session(line: JsonObject) -> str | None:
    own = line.get("type") == "session_meta" and as_object(line.get("payload")).get("id")
    return own if isinstance(own, str) else None


def _chats(value: Any) -> Iterator[Chat]:
    lines: list[JsonObject] = value
    meta: JsonObject | None = next(
        (as_object(x["payload"]) for x in lines if x.get("type") == "session_meta"), None
    )
    meta = meta or {}
    messages: list[ChatMessage] = []
    model = None
    for line in lines:
        payload = as_object(line.get("payload"))
        if line.get("type") == "turn_context":
            model = as_text(payload.get("model")) or model
        elif line.get("type") == "response_item":
            messages.append(ChatMessage(_view(payload), line, time_of(line)))
        elif payload.get("type") == "token_count" and messages:
            usage = as_object(as_object(payload.get("info")).get("last_token_usage"))
            _count(messages, usage, model)
    if messages:
        created_at = time_of(meta, "timestamp") or time_of(lines[0])
        yield Chat(messages, id=as_text(meta.get("id")), created_at=created_at, extras=meta)


def _view(item: Message) -> Message:
    """Return an item of the Responses API as it is, but for what no user typed."""
    if item.get("type") == "message" and item.get("role") == "user":
        said = text_of(item.get("content")).lstrip()
        return {**item, "role": "system"} if said.startswith(_SURROUNDINGS) else item
    output = as_object(item.get("output"))
    return {**item, "output": output.get("content")} if "content" in output else item


def _count(messages: list[ChatMessage], usage: JsonObject, model: str | None) -> None:
    """Give what an answer cost to its first item that is not counted yet."""
    place = len(messages) - 1
    while place >= 0 and not _from_model(messages[place].view):
        place -= 1
    while place > 0 and _from_model(messages[place - 1].view):
        place -= 1
    if place < 0 or not usage or messages[place].metrics:
        return
    metrics = usage_metrics(usage, model_name=model)
    messages[place] = messages[place]._replace(metrics=metrics)


def _from_model(item: Message) -> bool:
    kind, role = str(item.get("type")), item.get("role", "assistant")
    return role == "assistant" and not kind.endswith("_output")
