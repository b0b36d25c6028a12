"""Results of tau-bench and tau2-bench, in: a session for each simulation.

The reward is the score of the run. What a simulated user does with tools of its own is told as
that user's words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage
from hybridagi_steps.messages.parts import called
from hybridagi_steps.messages.provider_shapes import shaped
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js


def _chats(value: Any) -> Iterator[Chat]:
    record = js.as_object(value)
    for run in js.objects_in(record, "simulations") if "simulations" in record else [record]:
        reward = (js.as_object(run.get("reward_info")) or run).get("reward")
        yield Chat(
            [_message(native) for native in js.objects_in(run, "traj", "messages")],
            id=js.text_in(run, "id"),
            title=f"task {run.get('task_id')}, trial {run.get('trial', 0)}",
            created_at=js.time_of(run, "start_time", "timestamp"),
            score=float(reward) if isinstance(reward, int | float) else None,
            feedback=js.text_in(run, "termination_reason"),
            extras=js.without(run, "traj", "messages"),
        )


def _message(native: Message) -> ChatMessage:
    view, role, text = dict(native), native.get("role"), js.text_of(native.get("content"))
    if role == "user" and native.get("tool_calls"):
        calls = js.objects_in(shaped({**native, "role": "assistant"}).message, "tool_calls")
        actions = ({"name": name, "arguments": args} for name, args in map(called, calls))
        words = (f"calls {js.as_json(action)}" for action in actions)
        view = {"role": "user", "content": js.joined(text, *words)}
    elif role == "tool" and native.get("requestor") == "user":
        view = {"role": "user", "content": f"sees {text}"}
    elif role == "tool":
        view["tool_call_id"] = native.get("tool_call_id") or native.get("id")
    metrics = js.usage_metrics(native.get("usage")) if role == "assistant" else None
    failed = native.get("error") is True
    return ChatMessage(view, native, js.time_of(native), metrics, failed=failed)


FORMAT = ChatFormat(
    "tau_bench",
    _chats,
    (
        {"task_id": ..., "traj": [...]},
        {"task_id": ..., "reward_info": ..., "messages": [...]},
        {"simulations": [...], "tasks": ...},
    ),
)
