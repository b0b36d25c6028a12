"""Results of tau-bench and tau2-bench, in: a session for each simulation.

The reward is the score of the run. What a simulated user does with tools of its own is told as
that user's words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, parse_chats, usage_metrics
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_json,
    as_list,
    as_object,
    as_text,
    text_of,
    time_of,
    without,
)


def recognises(value: JsonValue) -> bool:
    """Whether a record is a result of tau-bench, or the results of tau2-bench."""
    match value:
        case {"task_id": _, "traj": [*_]} | {"task_id": _, "reward_info": _, "messages": [*_]}:
            return True
        case {"simulations": [*_], "tasks": _}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of simulations."""
    return parse_chats(records, "tau_bench", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    record = as_object(value)
    for item in as_list(record.get("simulations")) if "simulations" in record else [record]:
        run = as_object(item)
        rewarded = as_object(run.get("reward_info")) or run
        reward = rewarded.get("reward")
        said = as_list(run.get("traj") or run.get("messages"))
        yield Chat(
            [_message(as_object(each)) for each in said],
            id=as_text(run.get("id")),
            title=f"task {run.get('task_id')}, trial {run.get('trial', 0)}",
            created_at=time_of(run, "start_time", "timestamp"),
            score=float(reward) if isinstance(reward, int | float) else None,
            feedback=as_text(run.get("termination_reason")),
            extras=without(run, "traj", "messages"),
        )


def _message(said: Message) -> ChatMessage:
    view = dict(said)
    calls = [_call(as_object(call)) for call in as_list(said.get("tool_calls"))]
    by_user = said.get("requestor") == "user"
    if said.get("role") == "user" and calls:
        words = [f"calls {as_json(call['function'])}" for call in calls]
        view = {"role": "user", "content": "\n".join([text_of(said.get("content")), *words])}
    elif said.get("role") == "tool" and by_user:
        view = {"role": "user", "content": f"sees {text_of(said.get('content'))}"}
    elif said.get("role") == "tool":
        view["tool_call_id"] = said.get("tool_call_id") or said.get("id")
    elif calls:
        view["tool_calls"] = calls
    metrics = usage_metrics(said.get("usage")) if view["role"] == "assistant" else None
    return ChatMessage(view, said, time_of(said), metrics, failed=said.get("error") is True)


def _call(call: JsonObject) -> JsonObject:
    if "function" in call:
        return call
    return function_call(call.get("id"), call.get("name"), call.get("arguments") or {})
