"""MLflow's traces, in: what `Trace.to_json` writes in MLflow 3, and in 2.

The table that `search_traces` gives, written by pandas' `to_json`, holds the same as text.

Attributes of a span are JSON in strings, and are read by the names of `span_dialects`. Ids stand in
base64 in version 3; they are used as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Record, Records, Skipped, read_each
from hybridagi_steps.exchange.span_dialects import read_attributes
from hybridagi_steps.exchange.spans import Span, Trace, nanoseconds, trace_steps
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    as_text,
    first_number,
    json_or_text,
    time_of,
    without,
)

KNOWN_SCHEMAS = {"1", "2", "3"}
"""Trace schemas whose form is known; others are read with a note."""


def recognises(value: JsonValue) -> bool:
    """Whether a record is a trace."""
    match value:
        case {"info": _} | {"trace": _}:
            record = _traces(value)[0]
            return "info" in record and "spans" in as_object(json_or_text(record.get("data")))
        case _:
            return False


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of traces, one per record, or a table of them."""
    return read_each((each for record in records for each in _one_by_one(record)), _steps)


def _one_by_one(record: Record | Skipped) -> list[Record | Skipped]:
    if isinstance(record, Skipped):
        return [record]
    return [record._replace(value=trace) for trace in _traces(record.value)]


def _traces(value: object) -> list[JsonObject]:
    """Return the traces of a record, which may be a table by columns, or one row of it."""
    record = as_object(value)
    held = as_object(json_or_text(record.get("trace")))
    if "info" in record or not held:
        return [record]
    return [held] if "info" in held else [as_object(json_or_text(row)) for row in held.values()]


def _steps(record: Record) -> Iterator[Parsed | Skipped]:
    trace, skipped = _trace(record)
    yield from skipped
    yield from trace_steps(trace)


def _trace(record: Record) -> tuple[Trace, list[Skipped]]:
    value = as_object(record.value)
    info, data = as_object(value.get("info")), as_object(json_or_text(value.get("data")))
    spans: object = data.get("spans")
    if not isinstance(spans, list):
        raise BadRecordError("not a trace: no list of spans")
    about = as_object(info.get("trace_metadata") or info.get("request_metadata"))
    extras = {**without(value, "info", "data"), "info": info}
    schema = about.get("mlflow.trace_schema.version")
    if schema is not None and str(schema) not in KNOWN_SCHEMAS:
        extras["note"] = f"a trace of schema {schema!r:.20}, which is not known"
    trace_id = info.get("trace_id") or info.get("request_id")
    found, refused = list[Span](), list[Skipped]()
    for place, span in enumerate(as_list(spans), start=1):
        try:
            found.append(_span(as_object(span), record))
        except BadRecordError as error:
            refused.append(Skipped(record.line, f"{record.place}span {place}: {error}"))
    if not isinstance(trace_id, str):
        trace_id = str(as_object(as_list(spans)[0]).get("trace_id")) if found else ""
    return Trace(
        trace_id,
        "mlflow",
        found,
        session_id=as_text(about.get("mlflow.trace.session")),
        user_id=as_text(about.get("mlflow.trace.user")),
        extras=extras,
    ), refused


def _span(native: JsonObject, record: Record) -> Span:
    context = as_object(native.get("context"))
    span_id = native.get("span_id") or context.get("span_id")
    if not isinstance(span_id, str):
        raise BadRecordError("it has no span_id")
    attributes = as_object(native.get("attributes"))
    name = str(native.get("name") or "unnamed")
    read = read_attributes(attributes, name)
    return Span(
        id=span_id,
        parent=as_text(native.get("parent_span_id") or native.get("parent_id")),
        name=name,
        native=native,
        record=record,
        start=_time(native, "start_time_unix_nano", "start_time_ns", "start_time"),
        end=_time(native, "end_time_unix_nano", "end_time_ns", "end_time"),
        is_program=read.kind == "program",
        tool=read.tool and _tool(json_or_text(attributes.get("name")), name),
        purpose=read.purpose if read.kind in ("model", "program") else "",
        arguments=read.arguments,
        outputs=read.outputs,
        error=_error(native),
        metrics=read.metrics,
        label=read.label,
    )


def _tool(named: object, span: str) -> str:
    """Return the name of a tool, as DSPy's spans say it beside their own."""
    return named if isinstance(named, str) and span == f"Tool.{named}" else span


def _time(native: JsonObject, *names: str) -> int | None:
    if (found := first_number(native, *names)) is not None:
        return found
    read = time_of(native, *names)
    return nanoseconds(read.astimezone(UTC)) if read else None


def _error(native: JsonObject) -> dict[str, str] | None:
    status = as_object(native.get("status"))
    code = str(status.get("code") or native.get("status_code") or "")
    if code not in ("STATUS_CODE_ERROR", "ERROR", "2"):
        return None
    for event in as_list(native.get("events")):
        said = as_object(as_object(event).get("attributes"))
        if kind := said.get("exception.type"):
            return {"type": str(kind), "message": str(said.get("exception.message", ""))}
    message = status.get("message") or native.get("status_message") or ""
    return {"type": "Error", "message": str(message)}
