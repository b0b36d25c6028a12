"""What of a filter SQLite says in its own way: metadata, and step keys as JSON lists."""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.protocols import StepKey
from hybridagi_steps.stores.matching import scalar_kind
from hybridagi_steps.stores.sql.values import is_storable
from hybridagi_steps.stores.sql.where import KEY_COLUMNS, Condition

_METADATA = """EXISTS (
    SELECT 1 FROM json_each(k.metadata) m WHERE m.key = ? AND """
_KINDS = {
    "null": "m.type = 'null'",
    "true": "m.type = 'true'",
    "false": "m.type = 'false'",
    "number": "m.type IN ('integer', 'real') AND m.atom = ?",
    "text": "m.type = 'text' AND m.atom = ?",
}


def of_metadata(key: str, value: str | int | float | bool | None) -> Condition:
    """Return the condition that a metadata key has a value."""
    kind, comparable = scalar_kind(value)
    if not is_storable(key) or (isinstance(comparable, str) and not is_storable(comparable)):
        return "FALSE", []
    sql = f"{_METADATA}{_KINDS[kind]})"
    return sql, [key] if comparable is None else [key, comparable]


def keys_query(names: Sequence[StepKey]) -> str:
    """Return SQL for the next rows of a namespace above one: a JSON list of each column.

    A list is read several times as fast as so many rows.
    """
    asked = ", ".join(["k.row AS row", *(f"{KEY_COLUMNS[name]} AS {name}" for name in names)])
    lists = ", ".join(f"json_group_array({name})" for name in ("row", *names))
    return f"""SELECT {lists} FROM (SELECT {asked}
        FROM step_view k WHERE k.namespace = ? AND k.row > ? ORDER BY k.row LIMIT ?)"""  # noqa: S608 - columns are ours
