"""Trajectories of OpenHands, in: a list of events, or one event a line, as actions and what came.

Both the events of OpenHands 0.x (`action`, `observation`) and those of its agent SDK (`kind`) are
read. States of the agent and other events that nobody said are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import (
    Chat,
    ChatMessage,
    gathered,
    message,
    parse_chats,
    result,
    usage_metrics,
)
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

_SILENT = ("change_agent_state", "recall", "null", "agent_state_changed", "streaming_chunk")
_KINDS = ("ActionEvent", "ObservationEvent", "MessageEvent", "SystemPromptEvent", "AgentErrorEvent")


def recognises(value: JsonValue) -> bool:
    """Whether a record is an event, or an object that holds a list of them."""
    match value:
        case {"source": _, "action": str(), "args": dict()}:
            return True
        case {"source": _, "observation": str(), "content": _}:
            return True
        case {"kind": str(kind), "source": _}:
            return kind in _KINDS
        case {"trajectory": [first, *_]} | {"history": [first, *_]}:
            return recognises(first)
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of the trajectory in a file, or of each record that holds one."""
    return parse_chats(gathered(records, _trajectory), "openhands", _chats)


def _trajectory(record: JsonObject) -> str | None:
    return as_text(record.get("instance_id")) if "history" in record else "file"


def _chats(value: Any) -> Iterator[Chat]:
    events: list[JsonObject] = value
    about: JsonObject = {}
    if inner := events[0].get("trajectory") or events[0].get("history"):
        about, events = without(events[0], "trajectory", "history"), as_list(inner)
    own = as_text(about.get("instance_id"))
    messages = [said for event in events if (said := _message(as_object(event)))]
    yield Chat(messages, id=own, title=own, created_at=time_of(events[0]), extras=about)


def _message(event: JsonObject) -> ChatMessage | None:
    """Return what an event says; None where it says nothing."""
    said = _sdk_message(event) if "kind" in event else _said(event)
    return said and said._replace(made=time_of(event), metrics=_metrics(event))


def _said(event: JsonObject) -> ChatMessage | None:
    action, args = as_text(event.get("action")), as_object(event.get("args"))
    called = as_object(event.get("tool_call_metadata"))
    if (seen := as_text(event.get("observation"))) is not None:
        if seen in _SILENT:
            return None
        cause = called.get("tool_call_id") or f"call_{event.get('cause')}"
        failed = seen == "error" or bool(as_object(event.get("extras")).get("exit_code"))
        return result(cause, event.get("content"), event)._replace(failed=failed)
    if action is None or action in _SILENT:
        return None
    if action in ("message", "system"):
        role = {"user": "user", "agent": "assistant"}.get(str(event.get("source")), "system")
        role = "system" if action == "system" else role
        return message(role, args.get("content") or event.get("message") or "", event)
    if action in ("finish", "think"):
        text = args.get("final_thought") or args.get("thought") or event.get("message")
        return message("assistant", text or "", event)
    arguments = without(args, "thought", "confirmation_state", "security_risk")
    own = called.get("tool_call_id") or f"call_{event.get('id')}"
    tool = called.get("function_name") or args.get("name") or action
    call = function_call(own, tool, arguments)
    return message("assistant", args.get("thought") or None, event, tool_calls=[call])


def _sdk_message(event: JsonObject) -> ChatMessage | None:
    kind, call_id = event.get("kind"), event.get("tool_call_id")
    if kind == "MessageEvent":
        told = as_object(event.get("llm_message"))
        return message(str(told.get("role", "user")), told.get("content"), event)
    if kind == "SystemPromptEvent":
        return message("system", text_of(as_object(event.get("system_prompt")).get("text")), event)
    if kind == "ActionEvent":
        own = as_object(event.get("tool_call"))
        given = own.get("arguments") or as_object(own.get("function")).get("arguments")
        arguments = given or without(event.get("action"), "kind")
        call = function_call(call_id, event.get("tool_name"), arguments)
        thought = text_of(as_list(event.get("thought"))) or None
        return message(
            "assistant",
            thought,
            event,
            tool_calls=[call],
            reasoning_content=as_text(event.get("reasoning_content")),
        )
    if kind in ("ObservationEvent", "AgentErrorEvent"):
        seen = as_object(event.get("observation"))
        content = seen.get("content") or seen.get("output") or event.get("error") or seen
        failed = kind == "AgentErrorEvent" or seen.get("is_error") is True
        return result(call_id, content, event)._replace(failed=failed)
    return None


def _metrics(event: Message) -> JsonObject | None:
    response = as_object(as_object(event.get("tool_call_metadata")).get("model_response"))
    if "action" not in event or not response:
        return None
    return usage_metrics(response.get("usage"), model_name=as_text(response.get("model")))
