"""OTLP's way of writing values in JSON, in both directions.

An attribute is a key with a typed value: `{"key": "a", "value": {"intValue": "1"}}`; integers are
written as strings. A plain object of attributes is read too, as some tools write it.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.records.json_reading import JsonObject, as_list, as_object

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def attributes_of(native: JsonObject) -> JsonObject:
    """Return the attributes of a span, event or resource as plain values."""
    given: object = native.get("attributes")
    if isinstance(given, dict):
        return as_object(given)
    return _pairs(given)


def attribute_list(values: JsonObject) -> list[JsonObject]:
    """Return plain values as OTLP attributes; those that are None are left out."""
    return [{"key": k, "value": _typed(v)} for k, v in values.items() if v is not None]


def _pairs(given: object) -> JsonObject:
    pairs = [as_object(pair) for pair in as_list(given)]
    return {str(pair.get("key")): _plain(pair.get("value")) for pair in pairs}


def _plain(value: JsonValue) -> Any:
    if not isinstance(value, dict):
        return value
    for key, found in as_object(value).items():
        match key:
            case "intValue":
                whole = isinstance(found, str) and _INTEGER.fullmatch(found)
                return int(found) if whole else found
            case "arrayValue":
                return [_plain(item) for item in as_list(as_object(found).get("values"))]
            case "kvlistValue":
                return _pairs(as_object(found).get("values"))
            case "stringValue" | "boolValue" | "doubleValue" | "bytesValue":
                return found
            case _:
                continue
    return None


def _typed(value: object) -> JsonObject:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}


OPERATION = "gen_ai.operation.name"
CHAT, EXECUTE_TOOL, INVOKE_AGENT = "chat", "execute_tool", "invoke_agent"
MODEL_OPERATIONS = {"chat", "text_completion", "generate_content", "completion"}
PROGRAM_OPERATIONS = {"invoke_agent", "create_agent", "invoke_workflow", "plan"}

CONVERSATION = "gen_ai.conversation.id"
AGENT_NAMES = ("gen_ai.agent.name", "gen_ai.workflow.name")
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_ARGUMENTS = ("gen_ai.tool.call.arguments", "gen_ai.tool.arguments")
TOOL_RESULT = ("gen_ai.tool.call.result", "gen_ai.tool.output", "gen_ai.tool.message")
INPUT_MESSAGES = ("gen_ai.input.messages", "gen_ai.prompt")
OUTPUT_MESSAGES = ("gen_ai.output.messages", "gen_ai.completion")
INPUT_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
PROMPT_EVENT, COMPLETION_EVENT = "gen_ai.content.prompt", "gen_ai.content.completion"
CHOICE_EVENT = "gen_ai.choice"

MODELS = ("gen_ai.response.model", "gen_ai.request.model")
REQUEST_MODEL = "gen_ai.request.model"
PROVIDERS = ("gen_ai.provider.name", "gen_ai.system")
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
TOTAL_TOKENS = ("llm.usage.total_tokens",)
CACHE_READ_TOKENS = ("gen_ai.usage.cache_read.input_tokens",)
CACHE_WRITE_TOKENS = ("gen_ai.usage.cache_creation.input_tokens",)

USER_ID = ("user.id", "enduser.id")
ERROR_TYPE = "error.type"

STEP = "hybridagi_steps.step"
"""Our own attribute: the whole step as JSON, without its vector and its time."""
PROGRAM_END = "hybridagi_steps.program_end"
"""Our own event on a program's span: its ProgramEnd step."""
