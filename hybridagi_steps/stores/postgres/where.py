"""What of a filter PostgreSQL says in its own way: metadata, and step keys as arrays.

Metadata is compared by texts that are made when a step is written and when a filter is asked: one
for each top-level key with a plain value, the same for values that are the same to a filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from hybridagi_steps.protocols import StepKey
from hybridagi_steps.stores.matching import scalar_kind
from hybridagi_steps.stores.sql.values import is_storable, many
from hybridagi_steps.stores.sql.where import KEY_COLUMNS, Condition, PlainValue

_COLUMNS: dict[StepKey, str] = {
    **KEY_COLUMNS,
    "call_id": "CASE WHEN k.step_type = 'ProgramCall' THEN k.id END",
}
_INTEGERS = range(-(2**63), 2**63)


def metadata_texts(metadata: Mapping[str, Any] | None) -> list[str] | None:
    """Return what a filter may look for in a step's metadata; None when there is nothing."""
    if not metadata:
        return None
    # As the body has it: whatever JSON makes of a value is what a filter looks at.
    plain: dict[str, Any] = orjson.loads(orjson.dumps(metadata, default=str))
    texts = (_comparable_text(key, value) for key, value in plain.items())
    return [text for text in texts if text is not None] or None


def of_metadata(metadata: Mapping[str, PlainValue]) -> Iterator[Condition]:
    """Yield the condition that metadata keys have values: one, however many they are."""
    if not metadata:
        return
    texts = [text for item in metadata.items() for text in item if isinstance(text, str)]
    numbers = [value for value in metadata.values() if isinstance(value, float)]
    if all(map(is_storable, texts)) and all(map(math.isfinite, numbers)):
        asked = many(_comparable_text(key, value) for key, value in metadata.items())
        yield "k.metadata @> CAST(? AS TEXT[])", [asked]
    else:
        yield "FALSE", []


def keys_query(names: Sequence[StepKey]) -> str:
    """Return SQL for the next rows of a namespace above one: an array of each column.

    An array is read several times as fast as so many rows.
    """
    asked = ", ".join(["k.row AS row", *(f"{_COLUMNS[name]} AS {name}" for name in names)])
    arrays = ", ".join(f"array_agg({name} ORDER BY row)" for name in ("row", *names))
    return f"""SELECT {arrays} FROM (SELECT {asked}
        FROM step_view k WHERE k.namespace = ? AND k.row > ? ORDER BY k.row LIMIT ?) page"""  # noqa: S608 - columns are ours


def _comparable_text(key: str, value: Any) -> str | None:
    """Return one text for a key and all values that are the same to a filter."""
    kind, comparable = scalar_kind(value)
    if kind == "other":
        return None
    if isinstance(comparable, float) and comparable.is_integer() and int(comparable) in _INTEGERS:
        comparable = int(comparable)
    return orjson.dumps([key, kind, comparable]).decode()
