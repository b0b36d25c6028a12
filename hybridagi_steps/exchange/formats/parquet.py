"""Parquet, in and out: one row per step, with columns to query and everything to come back.

Values that have a shape of their own in every step (inputs, outputs, metadata, metrics, and keys
that are no field) are JSON in a column each; `purpose` and `tool` repeat what stands in `inputs`,
for queries. Rows are read and written in batches, so memory stays constant. Needs the extra
`parquet`; pyarrow is imported when it is used.
"""

# pyarrow ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportMissingImports=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from hybridagi_steps.errors import ExchangeError, MissingExtraError
from hybridagi_steps.exchange import records as entries
from hybridagi_steps.exchange.records import Parsed, Record, Skipped
from hybridagi_steps.records.agent_step import NAME_FIELDS, AgentStep, id_text
from hybridagi_steps.records.json_reading import BadRecordError, agent_step, as_object

MAGIC = b"PAR1"
"""What a Parquet file begins with."""
BATCH = 1_000
"""Rows read or written at once."""

_CHATS = {"messages", "conversations", "conversation", "instruction"}
_TEXTS = (*NAME_FIELDS, "status")
_JSON = ("inputs", "outputs", "metadata", "metrics")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def required() -> Any:
    """Return pyarrow with its Parquet part."""
    try:
        import pyarrow
        import pyarrow.parquet  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError("Parquet", "parquet") from error
    return pyarrow


def write(steps: Iterable[AgentStep], file: BinaryIO, *, vectors: bool = False) -> int:
    """Write steps and return how many."""
    pyarrow = required()
    schema = _schema(pyarrow, vectors=vectors)
    rest, count = iter(steps), 0
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := [_row(step, vectors=vectors) for step in islice(rest, BATCH)]:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def row_count(path: Path) -> int:
    """Return the number of rows in a file."""
    pyarrow = required()
    try:
        return pyarrow.parquet.read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ExchangeError(f"{path} is no sound Parquet file: {error}.") from error


def holds_steps(path: Path) -> bool:
    """Whether the rows of a file are steps, rather than conversations as `datasets` writes them."""
    pyarrow = required()
    with pyarrow.parquet.ParquetFile(path) as file:
        return not _CHATS & set(file.schema_arrow.names) or "step_type" in file.schema_arrow.names


def rows(path: Path) -> Iterator[Record]:
    """Yield the rows of a file as they are, without the fields that are null."""
    return (record._replace(value=_without_nulls(record.value)) for record in _records(path))


def _without_nulls(value: Any) -> Any:
    """Return a value as JSON would have it; a column of structures has every key in each."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _without_nulls(item) for name, item in items if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("list[Any]", value)]
    return value.isoformat() if isinstance(value, datetime) else value


def parse(path: Path) -> Iterator[Parsed | Skipped]:
    """Yield the steps of a file, each with the number of its row, from 1."""
    return entries.read_each(_records(path, _with_whole_times), _step)


def _records(path: Path, prepared: Callable[[Any], Any] | None = None) -> Iterator[Record]:
    """Yield the rows of a file, numbered from 1; `prepared` sees each batch first."""
    pyarrow, number = required(), 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if prepared and not {"id", "step_type", "created_at"} <= {*file.schema_arrow.names}:
                raise ExchangeError(f"{path} holds no steps: no column step_type.")
            for batch in file.iter_batches(batch_size=BATCH):
                for row in (prepared(batch) if prepared else batch).to_pylist():
                    number += 1
                    yield Record(number, row)
    except ExchangeError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise ExchangeError(f"{path} is no sound Parquet file: {error}.") from error


def _with_whole_times(batch: Any) -> Any:
    """Return a batch with its times as microseconds."""
    pyarrow = required()
    place = batch.schema.get_field_index("created_at")
    times = batch.column(place).cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.int64())
    return batch.set_column(place, "created_at", times)


def _schema(pyarrow: Any, *, vectors: bool) -> Any:
    text = pyarrow.string()
    fields: dict[str, Any] = {
        "id": text,
        "parent_id": text,
        "hop": pyarrow.int64(),
        "step_type": text,
        "purpose": text,
        "tool": text,
        **dict.fromkeys(_JSON, text),
        "created_at": pyarrow.timestamp("us", "UTC"),
        **dict.fromkeys(_TEXTS, text),
        "score": pyarrow.float64(),
        "extra": text,
    }
    if vectors:
        fields["vector"] = pyarrow.list_(pyarrow.float64())
        fields[entries.VECTOR_EMBEDDER] = text
    return pyarrow.schema(list(fields.items()))


def _row(step: AgentStep, *, vectors: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": id_text(step.id),
        "parent_id": None if step.parent_id is None else id_text(step.parent_id),
        "hop": step.hop,
        "step_type": str(step.step_type),
        "purpose": step.purpose,
        "tool": step.tool,
        **{name: _json(getattr(step, name)) for name in ("inputs", "outputs", "metadata")},
        "metrics": _json(step.metrics.model_dump() if step.metrics else None),
        "created_at": (step.created_at - _EPOCH) // _MICROSECOND,
        **{name: getattr(step, name) for name in _TEXTS},
        "score": step.score,
    }
    extra = dict(step.model_extra or {})
    if vectors:
        row["vector"] = step.vector
        if isinstance(extra.get(entries.VECTOR_EMBEDDER), str):
            row[entries.VECTOR_EMBEDDER] = extra.pop(entries.VECTOR_EMBEDDER)
    row["extra"] = _json(extra or None)
    return row


def _step(record: Record) -> list[Parsed | Skipped]:
    row: dict[str, Any] = {name: v for name, v in record.value.items() if v is not None}
    fields = {name: v for name, v in row.items() if name not in ("purpose", "tool", "extra")}
    for name in (*_JSON, "extra"):
        if isinstance(row.get(name), str):
            fields[name] = _value(row[name], name)
    extra = as_object(fields.pop("extra", {}))
    if isinstance(row.get("created_at"), int):
        fields["created_at"] = _EPOCH + row["created_at"] * _MICROSECOND
    fields, embedder = entries.origin_of({**extra, **fields})
    return [Parsed(record.line, agent_step(fields), embedder=embedder)]


def _value(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRecordError(f"{name}: not JSON: {error}") from error


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
