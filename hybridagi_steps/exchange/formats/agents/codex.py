"""Session logs of Codex, in: the `rollout-*.jsonl` files under `~/.codex/sessions`.

The items that went to and from the model (`response_item`) are the conversation; events repeat them
for the screen, but for the counts of tokens, and are passed over. What Codex tells the model of
its surroundings counts as a system message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_LINES = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
_SURROUNDINGS = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")


def _session(line: JsonObject) -> str | None:
    own = line.get("type") == "session_meta" and js.as_object(line.get("payload"))
    return js.text_in(own, "id") if own else None


def _chats(value: Any) -> Iterator[Chat]:
    messages: list[ChatMessage] = []
    meta: JsonObject = {}
    model = None
    for line in value:
        payload = js.as_object(line.get("payload"))
        if line.get("type") == "session_meta":
            meta = meta or payload
        elif line.get("type") == "turn_context":
            model = js.text_in(payload, "model") or model
        elif line.get("type") == "response_item":
            messages.append(ChatMessage(_view(payload), line, js.time_of(line)))
        elif payload.get("type") == "token_count" and messages:
            usage = js.as_object(js.as_object(payload.get("info")).get("last_token_usage"))
            _set_metrics(messages, usage and js.usage_metrics(usage, model_name=model))
    if messages:
        created_at = js.time_of(meta, "timestamp") or js.time_of(value[0])
        yield Chat(messages, id=js.text_in(meta, "id"), created_at=created_at, extras=meta)


def _view(item: Message) -> Message:
    """Return an item of the Responses API as it is, but for what no user typed."""
    if item.get("type") == "message" and item.get("role") == "user":
        text = js.text_of(item.get("content")).lstrip()
        return {**item, "role": "system"} if text.startswith(_SURROUNDINGS) else item
    output = js.as_object(item.get("output"))
    return {**item, "output": output.get("content")} if "content" in output else item


def _set_metrics(messages: list[ChatMessage], metrics: JsonObject | None) -> None:
    """Give what an answer cost to its first item, unless that has its metrics."""
    place = len(messages) - 1
    while place >= 0 and not _is_from_model(messages[place].view):
        place -= 1
    while place > 0 and _is_from_model(messages[place - 1].view):
        place -= 1
    if place >= 0 and metrics and not messages[place].metrics:
        messages[place] = messages[place]._replace(metrics=metrics)


def _is_from_model(item: Message) -> bool:
    role = item.get("role", "assistant")
    return role == "assistant" and not str(item.get("type")).endswith("_output")


FORMAT = ChatFormat(
    "codex", _chats, ({"type": _LINES, "payload": dict, "timestamp": ...},), session=_session
)
