"""Logs of inspect_ai, in: a `.json` log, or the samples inside of an `.eval` file.

Each sample is a session of its own; its score becomes that of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, parse_chats
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    text_of,
    time_of,
    without,
)

_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""The letters of inspect's scorers."""
_LONG = ("messages", "events", "attachments", "output", "store")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a log or one of its samples."""
    match value:
        case {"eval": dict(), "samples": [*_]}:
            return True
        case {"epoch": int(), "input": _, "target": _, "messages": [*_]}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of samples."""
    return parse_chats(records, "inspect", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    log = as_object(value)
    about = as_object(log.get("eval"))
    run = as_text(about.get("eval_id")) or as_text(about.get("run_id"))
    for item in as_list(log.get("samples")) if "samples" in log else [log]:
        sample = as_object(item)
        chat = Chat(
            [_message(as_object(said), sample) for said in as_list(sample.get("messages"))],
            id=as_text(sample.get("uuid")) or (run and f"{run}:{sample['id']}:{sample['epoch']}"),
            title=" ".join(filter(None, [as_text(about.get("task")), f"{sample.get('id')}"])),
            created_at=time_of(sample, "started_at") or time_of(about, "created"),
            extras={**without(sample, *_LONG), **({"eval": about} if about else {})},
        )
        for name, given in as_object(sample.get("scores")).items():
            score = as_object(given)
            chat.score = _number(score.get("value"))
            chat.feedback = text_of(score.get("explanation")) or name
            break
        yield chat


def _message(said: Message, sample: JsonObject) -> ChatMessage:
    view = dict(said)
    if isinstance(content := view.get("content"), list):
        thoughts = [as_object(part).get("reasoning") for part in as_list(content)]
        view["content"] = [p for p in as_list(content) if as_object(p).get("type") != "reasoning"]
        if thought := "\n".join(text for text in thoughts if isinstance(text, str)):
            view["reasoning_content"] = thought
    if calls := as_list(view.get("tool_calls")):
        view["tool_calls"] = [_call(as_object(call)) for call in calls]
    if view.get("role") == "tool":
        view["name"] = view.get("function")
        failed = as_object(view.get("error"))
        if failed and not view.get("content"):
            view["content"] = failed.get("message")
        return ChatMessage(view, said, time_of(said), failed=bool(failed))
    usage = as_object(as_object(sample.get("model_usage")).get(str(view.get("model"))))
    metrics = (
        {"model_name": view.get("model"), "llm_calls": 1} if usage or "model" in view else None
    )
    return ChatMessage(view, said, time_of(said), metrics)


def _call(call: JsonObject) -> JsonObject:
    function = call.get("function")
    if isinstance(function, dict):
        return call
    return function_call(call.get("id"), function, call.get("arguments") or {})


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    return float(value) if isinstance(value, bool | int | float) else None
