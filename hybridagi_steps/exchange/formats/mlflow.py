"""MLflow's traces, in: what `Trace.to_json` writes in MLflow 3, and in 2.

The table that `search_traces` gives, written by pandas' `to_json`, holds the same as text.

Attributes of a span are JSON in strings, and are read by the names of `span_dialects`. Ids stand in
base64 in version 3; they are used as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Record, Records, Skipped, read_each
from hybridagi_steps.exchange.spans import Span, Trace, read_span, trace_steps
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

KNOWN_SCHEMAS = {"1", "2", "3"}
"""Trace schemas whose form is known; others are read with a note."""


def recognises(value: JsonValue) -> bool:
    """Whether a record is a trace."""
    fields = js.as_object(value)
    trace = _traces(fields)[0] if fields.keys() & {"info", "trace"} else {}
    return "info" in trace and "spans" in js.as_object(js.json_or_text(trace.get("data")))


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of traces, one per record, or a table of them."""
    return read_each((each for record in records for each in _one_by_one(record)), _steps)


def _one_by_one(record: Record | Skipped) -> list[Record | Skipped]:
    if isinstance(record, Skipped):
        return [record]
    return [record._replace(value=trace) for trace in _traces(record.value)]


def _traces(value: object) -> list[JsonObject]:
    """Return the traces of a record, which may be a table by columns, or one row of it."""
    record = js.as_object(value)
    inner = js.as_object(js.json_or_text(record.get("trace")))
    if "info" in record or not inner:
        return [record]
    return (
        [inner]
        if "info" in inner
        else [js.as_object(js.json_or_text(row)) for row in inner.values()]
    )


def _steps(record: Record) -> Iterator[Parsed | Skipped]:
    value = js.as_object(record.value)
    info, data = js.as_object(value.get("info")), js.as_object(js.json_or_text(value.get("data")))
    natives: object = data.get("spans")
    if not isinstance(natives, list):
        raise BadRecordError("not a trace: no list of spans")
    about = js.as_object(info.get("trace_metadata") or info.get("request_metadata"))
    extras = {**js.without(value, "info", "data"), "info": info}
    schema = about.get("mlflow.trace_schema.version")
    if schema is not None and str(schema) not in KNOWN_SCHEMAS:
        extras["note"] = f"a trace of schema {schema!r:.20}, which is not known"
    trace = Trace(
        js.text_in(info, "trace_id", "request_id") or "",
        "mlflow",
        session_id=js.text_in(about, "mlflow.trace.session"),
        user_id=js.text_in(about, "mlflow.trace.user"),
        extras=extras,
    )
    for place, native in enumerate(map(js.as_object, js.as_list(natives)), start=1):
        try:
            trace.spans.append(_span(native, record))
        except BadRecordError as error:
            yield Skipped(record.line, f"{record.place}span {place}: {error}")
    trace.id = trace.id or str(trace.spans[0].native.get("trace_id") if trace.spans else "")
    yield from trace_steps(trace)


def _span(native: JsonObject, record: Record) -> Span:
    span = read_span(native, record)
    span.name, read = str(native.get("name") or "unnamed"), span.read
    if read.tool is not None:  # DSPy's spans say the name of a tool beside their own
        tool = js.json_or_text(js.as_object(native.get("attributes")).get("name"))
        read.tool = tool if isinstance(tool, str) and span.name == f"Tool.{tool}" else span.name
    if read.kind not in ("model", "program"):
        read.purpose = ""
    return span
