"""What a span's model was asked and what it said, in all the places conventions have put it.

Newest first: `gen_ai.input.messages` and `gen_ai.output.messages` (JSON in a string), one event per
message, the two content events, and flattened attributes `gen_ai.prompt.0.content`. Each gives
message objects with a role and content or parts.
"""

from __future__ import annotations

from typing import Any

from hybridagi_steps.exchange import otlp_names as names
from hybridagi_steps.exchange.formats.otlp_values import attributes_of
from hybridagi_steps.exchange.records import as_list, as_object, json_or_text

Messages = list[dict[str, Any]]


def asked_and_said(native: dict[str, Any], attributes: dict[str, Any]) -> tuple[Messages, Messages]:
    """Return the messages that went in, and those that came out."""
    asked = _stated(attributes, names.INPUT_MESSAGES, "user")
    said = _stated(attributes, names.OUTPUT_MESSAGES, "assistant")
    from_events = _event_messages(native)
    asked = asked or from_events[0] or _flattened(attributes, "gen_ai.prompt.")
    said = said or from_events[1] or _flattened(attributes, "gen_ai.completion.")
    return asked, said


def _stated(attributes: dict[str, Any], keys: tuple[str, ...], role: str) -> Messages:
    for key in keys:
        if key in attributes:
            return _messages(attributes[key], role)
    return []


def _messages(given: Any, role: str) -> Messages:
    """Return what a string, an object or a list says as messages."""
    value = json_or_text(given)
    if isinstance(value, dict):
        return [as_object(value)]
    if not isinstance(value, list):
        return [{"role": role, "content": str(value)}] if value else []
    return [as_object(item) or {"role": role, "content": str(item)} for item in as_list(value)]


def _event_messages(native: dict[str, Any]) -> tuple[Messages, Messages]:
    asked: Messages = []
    said: Messages = []
    for item in as_list(native.get("events")):
        event = as_object(item)
        name, fields = str(event.get("name")), attributes_of(event)
        if name == names.PROMPT_EVENT:
            asked += _messages(fields.get("gen_ai.prompt"), "user")
        elif name == names.COMPLETION_EVENT:
            said += _messages(fields.get("gen_ai.completion"), "assistant")
        elif name in names.INPUT_EVENTS:
            asked.append({"role": names.INPUT_EVENTS[name], "content": fields.get("content")})
        elif name == names.CHOICE_EVENT:
            message = as_object(json_or_text(fields.get("message")))
            said.append(message or {"role": "assistant", "content": fields.get("content")})
    return asked, said


def _flattened(attributes: dict[str, Any], prefix: str) -> Messages:
    found: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        number, _, field = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and number.isdecimal() and len(number) < 6 and field:
            found.setdefault(int(number), {})[field] = value
    return [found[number] for number in sorted(found)]
