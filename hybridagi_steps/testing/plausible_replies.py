"""What a DSPy request asks a model for, and an answer of the right form to it.

DSPy tells the form of each output field in the system prompt: as a kind, as options, or as a JSON
schema, of which the least value that it allows is given.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dspy.lm15 import Request

_TEXTS = {
    "date": "2026-01-02",
    "date-time": "2026-01-02T03:04:05Z",
    "time": "03:04:05Z",
    "duration": "PT1H",
    "uuid": "7f3b6c1e-2d4a-4e8b-9c5f-1a2b3c4d5e6f",
    "uri": "https://example.org/",
    "email": "some@example.org",
}
"""Texts of the formats that JSON schemas name."""


class ToolCall(NamedTuple):
    """A native tool call, as a model makes it."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


Reply = str | Mapping[str, Any] | Sequence[str | ToolCall] | BaseException
"""Text as it is; fields, rendered the way the request asks; texts and tool calls; or an error."""


def request_text(request: Request) -> str:
    """Return the text of the last message, which is what the model is asked."""
    return request.messages[-1].text or ""


def asked_fields(request: Request) -> dict[str, str]:
    """Return the output fields a DSPy request asks for, each with what it says about their form."""
    system = _system_text(request)
    begins = system.find("Your output fields are:")
    if begins < 0:
        return {}
    listed = system[begins : system.find("All interactions will be structured", begins)]
    forms: dict[str, str] = {}
    for name, form, told in re.findall(r"^\d+\. `(\w+)` \((.*?)\): *(.*)", listed, re.MULTILINE):
        note = re.search(rf"\{{{name}\}}\s+# note: (.*)", system)
        options = told if told.startswith("one of: ") else ""
        forms[name] = "; ".join(part for part in (form, note[1] if note else "", options) if part)
    return forms


def plausible_reply(request: Request) -> Reply:
    """Return an answer of the right form to a DSPy request: the first option, True, some text.

    Of a type that DSPy describes by a JSON schema it is the least that the schema allows. What no
    schema says is not met: patterns of texts, validators of your own, and the call with which
    `dspy.ReActV2` ends; nor are enums of numbers, of which DSPy reads only the names.
    """
    fields = asked_fields(request)
    if not fields:
        return "plain text"
    return {name: _plausible(name, form) for name, form in fields.items()}


def _plausible(name: str, form: str) -> Any:
    if (schema := _schema_in(form)) is not None:
        return _least(schema, schema.get("$defs", {}), name)
    literal = re.match(r"Literal\[(['\"])(.*?)\1", form)
    if literal:
        return literal[2]
    options = re.search(r"one of: ([^;,]+)", form)
    if options:
        return options[1].strip()
    simple = {"bool": True, "int": 1, "float": 1.0}
    kind = form.split(";")[0]
    if kind.startswith(("dict", "list")):
        return {} if kind.startswith("dict") else []
    return simple.get(kind, f"some {name}")


def _schema_in(form: str) -> dict[str, Any] | None:
    """Return the JSON schema that DSPy tells of a field; inside another JSON text it is escaped."""
    _, told, text = form.partition("adhere to the JSON schema: ")
    if not told:
        return None
    if text.startswith('{\\"'):
        text, _ = json.JSONDecoder().raw_decode(f'"{text}')
    schema, _ = json.JSONDecoder().raw_decode(text)
    return schema


def _least(schema: dict[str, Any], defined: Mapping[str, Any], name: str) -> Any:
    """Return the least value that a JSON schema allows."""
    if "$ref" in schema:
        return _least(defined[schema["$ref"].rpartition("/")[2]], defined, name)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return _least(schema[several][0], defined, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {})
        return {key: _least(fields[key], defined, key) for key in schema.get("required", ())}
    if kind == "array":
        first = schema.get("prefixItems", [])
        more = max(0, schema.get("minItems", 0) - len(first)) * [schema.get("items", {})]
        return [_least(item, defined, name) for item in (*first, *more)]
    if kind in ("integer", "number"):
        return _least_number(schema)
    if kind == "string":
        text = _TEXTS.get(schema.get("format", ""), f"some {name}")
        return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return f"some {name}"


def _least_number(schema: Mapping[str, Any]) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf) - 1)
    step = schema.get("multipleOf")
    return min(low, high) if step is None else math.ceil(low / step) * step


def _system_text(request: Request) -> str:
    system = request.system
    if system is None or isinstance(system, str):
        return system or ""
    return "".join(getattr(part, "text", "") for part in system)
