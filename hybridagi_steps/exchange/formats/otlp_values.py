"""OTLP's way of writing values in JSON, in both directions.

An attribute is a key with a typed value: `{"key": "a", "value": {"intValue": "1"}}`; integers are
written as strings. A plain object of attributes is read too, as some tools write it.
"""

from __future__ import annotations

import re
from typing import Any

from hybridagi_steps.exchange.records import as_list, as_object

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def attributes_of(native: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span, event or resource as plain values."""
    given: Any = native.get("attributes")
    if isinstance(given, dict):
        return as_object(given)
    return _pairs(given)


def attribute_list(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return plain values as OTLP attributes; those that are None are left out."""
    return [{"key": k, "value": _typed(v)} for k, v in values.items() if v is not None]


def _pairs(given: Any) -> dict[str, Any]:
    pairs = [as_object(pair) for pair in as_list(given)]
    return {str(pair.get("key")): _plain(pair.get("value")) for pair in pairs}


def _plain(value: Any) -> Any:
    """Return an AnyValue as JSON data."""
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


def _typed(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
