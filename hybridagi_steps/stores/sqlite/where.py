"""What of a filter SQLite says in its own way: metadata, and step keys as JSON lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hybridagi_steps.protocols import StepKey
from hybridagi_steps.records.provenance import CHAT_FORMATS
from hybridagi_steps.stores.matching import scalar_kind
from hybridagi_steps.stores.sql.values import is_storable, many
from hybridagi_steps.stores.sql.where import KEY_COLUMNS, Condition, PlainValue

_METADATA = """EXISTS (
    SELECT 1 FROM json_each(k.metadata) m WHERE m.key = ? AND """
_KINDS = {
    "null": "m.type = 'null'",
    "true": "m.type = 'true'",
    "false": "m.type = 'false'",
    "number": "m.type IN ('integer', 'real') AND m.atom = ?",
    "text": "m.type = 'text' AND m.atom = ?",
}

SOURCE = f"""CASE WHEN json_type(k.metadata, '$.source.kind') = 'text' THEN coalesce(
        CASE WHEN json_type(k.metadata, '$.source.name') = 'text'
             THEN nullif(json_extract(k.metadata, '$.source.name'), '') END,
        json_extract(k.metadata, '$.source.kind'))
    WHEN json_extract(k.metadata, '$.format') IN ({", ".join(map(repr, CHAT_FORMATS))})
    THEN json_extract(k.metadata, '$.format') END"""
"""Where a step comes from, as `source_of` says."""
RECALLED = """CASE WHEN instr(k.metadata, '"recalled"')
    THEN json_extract(k.metadata, '$.recalled') END"""
"""What a step recalled."""
_COLUMNS: dict[StepKey, str] = {**KEY_COLUMNS, "source": SOURCE}


_MOST_TERMS = 100
"""SQLite takes 1,000 nested conditions, and 32,766 parameters."""
_ALL_OF_METADATA = """NOT EXISTS (SELECT 1 FROM json_each(?) w WHERE NOT EXISTS (
    SELECT 1 FROM json_each(k.metadata) m WHERE m.key = w.value ->> 0 AND CASE w.value ->> 1
        WHEN 'number' THEN m.type IN ('integer', 'real') AND m.atom = w.value ->> 2
        WHEN 'text' THEN m.type = 'text' AND m.atom = w.value ->> 2
        ELSE m.type = w.value ->> 1 END))"""


def of_metadata(metadata: Mapping[str, PlainValue]) -> Iterator[Condition]:
    """Yield the conditions that metadata keys have values: one a key, or one for many."""
    asked = [(key, *scalar_kind(value)) for key, value in metadata.items()]
    if not all(is_storable(text) for each in asked for text in each if isinstance(text, str)):
        yield "FALSE", []
    elif len(asked) > _MOST_TERMS:
        yield _ALL_OF_METADATA, [many(asked)]
    else:
        for key, kind, comparable in asked:
            sql = f"{_METADATA}{_KINDS[kind]})"
            yield sql, [key] if comparable is None else [key, comparable]


def keys_query(names: Sequence[StepKey]) -> str:
    """Return SQL for the next rows of a namespace above one: a JSON list of each column.

    A list is read several times as fast as so many rows.
    """
    asked = ", ".join(["k.row AS row", *(f"{_COLUMNS[name]} AS {name}" for name in names)])
    lists = ", ".join(f"json_group_array({name})" for name in ("row", *names))
    return f"""SELECT {lists} FROM (SELECT {asked}
        FROM step_view k WHERE k.namespace = ? AND k.row > ? ORDER BY k.row LIMIT ?)"""  # noqa: S608 - columns are ours
