"""Trajectories of SWE-agent (`.traj`) and mini-swe-agent (`.traj.json`), in.

The history that the model saw is the conversation. Where a command stands in the text of an answer
and not in a call of a tool, it is a call of `bash`, and what was observed next its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import CallQueue, Chat, ChatFormat, ChatMessage, message, result
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_COMMAND = re.compile(r"```(?:bash|mswea_bash_command|sh)\s*\n(.*?)\n?```", re.DOTALL)
_TOOL = "bash"


def _chats(value: Any) -> Iterator[Chat]:
    run = js.as_object(value)
    natives = js.objects_in(run, "messages", "history") or list(_history(run))
    yield Chat(
        list(_messages(natives)),
        id=js.text_in(run, "instance_id"),
        title=js.text_in(run, "instance_id", "environment"),
        extras=js.without(run, "messages", "history", "trajectory", "replay_config"),
    )


def _history(run: JsonObject) -> Iterator[JsonObject]:
    """Yield a history of steps, where the file has none."""
    for step in js.objects_in(run, "trajectory"):
        answer = step.get("response") or step.get("thought")
        yield {"role": "assistant", "content": answer, "action": step.get("action")}
        yield {"role": "user", "content": step.get("observation"), "message_type": "observation"}


def _messages(natives: list[Message]) -> Iterator[ChatMessage]:
    queue = CallQueue()
    for place, native in enumerate(natives):
        call_id, role, content = queue.answered(), native.get("role"), native.get("content")
        read = ChatMessage(native, native)
        if role == "exit":
            read = message("assistant", js.text_of(content) or "exit", native)
        elif role == "user" and call_id:
            read = result(call_id, content, native, name=_TOOL)
        elif role == "tool" and not native.get("tool_call_id"):
            ids = js.as_list(native.get("tool_call_ids"))
            read = ChatMessage({**native, "tool_call_id": next(iter(ids), None)}, native)
        elif role == "assistant" and not native.get("tool_calls"):
            view = js.without(native, "tool_calls")
            if (command := _command(native)) is not None:
                call = queue.call(_TOOL, {"command": command}, f"call_{place}")
                view["tool_calls"] = [call]
            read = ChatMessage(view, native)
        yield read._replace(
            time=js.time_of(native) or js.time_of(js.as_object(native.get("extra")))
        )


def _command(native: Message) -> str | None:
    """Return the command that stands in the text of an answer."""
    if action := js.text_in(native, "action"):
        return action.strip()
    commands = _COMMAND.findall(js.text_of(native.get("content")))
    return commands[0].strip() if len(commands) == 1 else None


FORMAT = ChatFormat(
    "swe_agent",
    _chats,
    (
        {"trajectory": [...], "history": [...]},
        {"trajectory": [{"action": ...}]},
        {"messages": [...], "trajectory_format": str},
        {"messages": [...], "info": {"exit_status": ...}},
    ),
)
