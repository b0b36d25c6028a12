"""Trajectories of SWE-agent (`.traj`) and mini-swe-agent (`.traj.json`), in.

The history that the model saw is the conversation. Where a command stands in the text of an answer
and not in a call of a tool, it is a call of `bash`, and what was observed next its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, message, parse_chats
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

_COMMAND = re.compile(r"```(?:bash|mswea_bash_command|sh)\s*\n(.*?)\n?```", re.DOTALL)
_TOOL = "bash"


def recognises(value: JsonValue) -> bool:
    """Whether a record is a trajectory."""
    match value:
        case {"trajectory": [*_], "history": [*_]} | {"trajectory": [{"action": _}, *_]}:
            return True
        case {"messages": [*_], "trajectory_format": str()}:
            return True
        case {"messages": [*_], "info": {"exit_status": _}}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of trajectories, one per record."""
    return parse_chats(records, "swe_agent", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    run = as_object(value)
    natives = as_list(run.get("messages") or run.get("history")) or _history(run)
    reader = _Reader()
    yield Chat(
        [reader.read(as_object(native), place) for place, native in enumerate(natives)],
        id=as_text(run.get("instance_id")),
        title=as_text(run.get("instance_id")) or as_text(run.get("environment")),
        extras=without(run, "messages", "history", "trajectory", "replay_config"),
    )


def _history(run: JsonObject) -> Iterator[JsonObject]:
    """Yield a history of steps, where the file has none."""
    for step in map(as_object, as_list(run.get("trajectory"))):
        said = step.get("response") or step.get("thought")
        yield {"role": "assistant", "content": said, "action": step.get("action")}
        yield {"role": "user", "content": step.get("observation"), "message_type": "observation"}


class _Reader:
    """Reads a history; a command in a text waits for what was observed."""

    def __init__(self) -> None:
        self._call_id: str | None = None

    def read(self, native: Message, place: int) -> ChatMessage:
        waiting, self._call_id = self._call_id, None
        role, content = native.get("role"), native.get("content")
        made = time_of(native) or time_of(as_object(native.get("extra")))
        if role == "exit":
            return message("assistant", text_of(content) or "exit", native)._replace(made=made)
        if role == "user" and waiting:
            said = message("tool", content, native, tool_call_id=waiting, name=_TOOL)
            return said._replace(made=made)
        view = dict(native)
        if role == "tool" and not view.get("tool_call_id"):
            view["tool_call_id"] = next(iter(as_list(native.get("tool_call_ids"))), None)
        if role == "assistant":
            view = _spoken(native)
            command = None if view.get("tool_calls") else _command(native)
            if command is not None:
                self._call_id = f"call_{place}"
                call = function_call(self._call_id, _TOOL, {"command": command})
                view["tool_calls"] = [call]
        return ChatMessage(view, native, made)


def _spoken(native: Message) -> Message:
    """Return what an assistant says, without lists of calls that are empty."""
    view = dict(native)
    if not native.get("tool_calls"):
        view.pop("tool_calls", None)
    return view


def _command(native: Message) -> str | None:
    """Return the command that stands in the text of an answer."""
    if action := as_text(native.get("action")):
        return action.strip()
    found = _COMMAND.findall(text_of(native.get("content")))
    return found[0].strip() if len(found) == 1 else None
