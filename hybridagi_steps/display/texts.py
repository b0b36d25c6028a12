"""Any value as text: nothing here raises on odd data, because what is shown may be anybody's."""

from __future__ import annotations

import json
from typing import Any, cast

LINE = 160
"""Most characters of a text on a line."""


def line(value: object, length: int = LINE) -> str:
    """Return any value as one line of at most `length` characters."""
    said = value if isinstance(value, str) else json_text(value, indent=None)
    flat = " ".join(said[: length * 4].split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def fields(value: object) -> dict[str, Any]:
    """Return fields by name; what has none is shown as the one it is."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {} if value is None else {"value": value}


def as_text(value: object) -> str:
    """Return any value as text, nothing for None."""
    try:
        return "" if value is None else str(value)
    except Exception as error:  # noqa: BLE001, RUF100 - what is shown may be anybody's class
        return f"<{type(value).__name__}: {type(error).__name__} in str()>"


def json_text(value: object, indent: int | None) -> str:
    """Return any value as JSON, what that cannot hold as text."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=as_text)
    except Exception:  # noqa: BLE001, RUF100 - keys that are no text, cycles, odd mappings
        return as_text(value)
