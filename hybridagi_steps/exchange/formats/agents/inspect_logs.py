"""Logs of inspect_ai, in: a `.json` log, or the samples inside of an `.eval` file.

Each sample is a session of its own; its first score becomes that of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js

_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""The letters of inspect's scorers."""
_LONG = ("messages", "events", "attachments", "output", "store")


def _chats(value: Any) -> Iterator[Chat]:
    log = js.as_object(value)
    about = js.as_object(log.get("eval"))
    run = js.text_in(about, "eval_id", "run_id")
    for sample in js.objects_in(log, "samples") if "samples" in log else [log]:
        scores = js.as_object(sample.get("scores"))
        name = next(iter(scores), "")
        score = js.as_object(scores.get(name))
        yield Chat(
            [_message(native) for native in js.objects_in(sample, "messages")],
            id=js.text_in(sample, "uuid") or (run and f"{run}:{sample['id']}:{sample['epoch']}"),
            title=" ".join(filter(None, [js.text_in(about, "task"), f"{sample.get('id')}"])),
            created_at=js.time_of(sample, "started_at") or js.time_of(about, "created"),
            extras={**js.without(sample, *_LONG), **({"eval": about} if about else {})},
            score=_number(score.get("value")),
            feedback=js.text_of(score.get("explanation")) or name,
        )


def _message(native: Message) -> ChatMessage:
    view = dict(native)
    if isinstance(native.get("content"), list):
        parts = js.objects_in(native, "content")
        view["content"] = [
            {**part, "type": "reasoning", "text": part.get("reasoning")}
            if part.get("type") == "reasoning"
            else part
            for part in parts
        ]
    if calls := js.objects_in(native, "tool_calls"):
        view["tool_calls"] = [
            {**js.without(call, "function"), "name": call["function"]}
            if isinstance(call.get("function"), str)
            else call
            for call in calls
        ]
    error = js.as_object(native.get("error")) if native.get("role") == "tool" else {}
    if native.get("role") == "tool":
        view |= {"name": native.get("function")}
        view["content"] = native.get("content") or error.get("message")
    metrics = {"model_name": native["model"], "llm_calls": 1} if "model" in native else None
    return ChatMessage(view, native, js.time_of(native), metrics, failed=bool(error))


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    return float(value) if isinstance(value, bool | int | float) else None


FORMAT = ChatFormat(
    "inspect",
    _chats,
    (
        {"eval": dict, "samples": [...]},
        {"epoch": int, "input": ..., "target": ..., "messages": [...]},
    ),
)
