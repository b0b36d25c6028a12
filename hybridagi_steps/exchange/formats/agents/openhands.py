"""Trajectories of OpenHands, in: a list of events, or one event a line, as actions and what came.

Both the events of OpenHands 0.x (`action`, `observation`) and those of its agent SDK (`kind`) are
read. States of the agent and other events that nobody said are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, message, result
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_SILENT = ("change_agent_state", "recall", "null", "agent_state_changed", "streaming_chunk")
_KINDS = {"ActionEvent", "ObservationEvent", "MessageEvent", "SystemPromptEvent", "AgentErrorEvent"}


def _trajectory(record: JsonObject) -> str | None:
    return js.text_in(record, "instance_id") if "history" in record else "file"


def _chats(value: Any) -> Iterator[Chat]:
    events: list[JsonObject] = value
    about: JsonObject = {}
    if inner := js.objects_in(events[0], "trajectory", "history"):
        about, events = js.without(events[0], "trajectory", "history"), inner
    own = js.text_in(about, "instance_id")
    messages = [read for event in events if (read := _message(event))]
    yield Chat(messages, id=own, title=own, created_at=js.time_of(events[0]), extras=about)


def _message(event: JsonObject) -> ChatMessage | None:
    """Return what an event says; None where it says nothing."""
    if "kind" in event:
        return _sdk_message(event)
    if "observation" in event:
        return _observation(event)
    return _action(event)


def _observation(event: JsonObject) -> ChatMessage | None:
    kind = event["observation"]
    if kind in _SILENT:
        return None
    call_id = js.as_object(event.get("tool_call_metadata")).get("tool_call_id")
    failed = kind == "error" or js.as_object(event.get("extras")).get("exit_code")
    cause = call_id or f"call_{event.get('cause')}"
    return result(cause, event.get("content"), event, failed=failed)


def _action(event: JsonObject) -> ChatMessage | None:
    action, args = js.text_in(event, "action"), js.as_object(event.get("args"))
    call = js.as_object(event.get("tool_call_metadata"))
    if action is None or action in _SILENT:
        return None
    if action in ("message", "system"):
        role = {"user": "user", "agent": "assistant"}.get(str(event.get("source")), "system")
        role = "system" if action == "system" else role
        read = message(role, args.get("content") or event.get("message") or "", event)
    elif action in ("finish", "think"):
        text = args.get("final_thought") or args.get("thought") or event.get("message")
        read = message("assistant", text or "", event)
    else:
        arguments = js.without(args, "thought", "confirmation_state", "security_risk")
        call_id = call.get("tool_call_id") or f"call_{event.get('id')}"
        tool = call.get("function_name") or args.get("name") or action
        calls = [function_call(call_id, tool, arguments)]
        read = message("assistant", args.get("thought") or None, event, tool_calls=calls)
    response = js.as_object(call.get("model_response"))
    metrics = js.usage_metrics(response.get("usage"), model_name=js.text_in(response, "model"))
    return read._replace(metrics=metrics)


def _sdk_message(event: JsonObject) -> ChatMessage | None:
    kind, call_id = event.get("kind"), event.get("tool_call_id")
    if kind == "MessageEvent":
        inner = js.as_object(event.get("llm_message"))
        return message(str(inner.get("role", "user")), inner.get("content"), event)
    if kind == "SystemPromptEvent":
        return message(
            "system", js.text_of(js.as_object(event.get("system_prompt")).get("text")), event
        )
    if kind == "ActionEvent":
        call = js.as_object(event.get("tool_call"))
        arguments = call.get("arguments") or js.as_object(call.get("function")).get("arguments")
        arguments = arguments or js.without(event.get("action"), "kind")
        return message(
            "assistant",
            js.text_of(js.as_list(event.get("thought"))) or None,
            event,
            tool_calls=[function_call(call_id, event.get("tool_name"), arguments)],
            reasoning_content=js.text_in(event, "reasoning_content"),
        )
    if kind in ("ObservationEvent", "AgentErrorEvent"):
        inner = js.as_object(event.get("observation"))
        content = inner.get("content") or inner.get("output") or event.get("error") or inner
        failed = kind == "AgentErrorEvent" or inner.get("is_error") is True
        return result(call_id, content, event, failed=failed)
    return None


_EVENTS = (
    {"source": ..., "action": str, "args": dict},
    {"source": ..., "observation": str, "content": ...},
    {"kind": _KINDS, "source": ...},
)
FORMAT = ChatFormat(
    "openhands",
    _chats,
    (*_EVENTS, *({key: [event]} for key in ("trajectory", "history") for event in _EVENTS)),
    session=_trajectory,
)
