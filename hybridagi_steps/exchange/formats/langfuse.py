"""Langfuse's traces, in: a trace with its observations, as its API and its exports write them.

An observation is a span with plain inputs and outputs; it is read by the names that Langfuse's own
OpenTelemetry attributes have. What the trace itself was asked and answered is a program around all.
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
    json_or_text,
    known_fields,
    time_of,
)

_TYPES = {"SPAN": None, "EVENT": None}
"""Observations that say nothing of their kind."""
_COLUMNS = {
    "trace_id": "traceId",
    "parent_observation_id": "parentObservationId",
    "start_time": "startTime",
    "end_time": "endTime",
    "status_message": "statusMessage",
    "session_id": "sessionId",
    "user_id": "userId",
    "provided_model_name": "model",
    "usage_details": "usageDetails",
    "total_cost": "totalCost",
}
"""Names in exported tables, and what the API calls the same."""
_TRACE = {"id", "timestamp", "name", "input", "output", "sessionId"}
"""What a trace without its observations has."""


def recognises(value: JsonValue) -> bool:
    """Whether a record is a trace with observations, or one observation."""
    fields = _fields(value)
    return (
        isinstance(fields.get("observations"), list)
        or fields.keys() >= {"traceId", "type", "startTime"}
        or (fields.keys() >= _TRACE and "step_type" not in fields)
    )


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Yield the steps of traces; observations without their trace are put together by its id."""
    alone: dict[str, list[Record]] = {}
    whole: list[Record | Skipped] = []
    for record in records:
        fields = {} if isinstance(record, Skipped) else _fields(record.value)
        if "traceId" not in fields or not isinstance(record, Record):
            whole.append(record)
        else:
            alone.setdefault(str(fields.get("traceId")), []).append(record)
    for trace_id, rows in alone.items():
        value = {"id": trace_id, "observations": [row.value for row in rows]}
        whole.append(rows[0]._replace(value=value))
    return read_each(whole, _steps)


def _steps(record: Record) -> Iterator[Parsed | Skipped]:
    value = as_object(record.value)
    about = _fields(value.get("trace") or value)
    trace_id = as_text(about.get("id"))
    if not trace_id:
        raise BadRecordError("a trace of Langfuse without an id")
    trace = Trace(
        trace_id,
        "langfuse",
        session_id=as_text(about.get("sessionId")),
        user_id=as_text(about.get("userId")),
    )
    root = _span({**about, "type": "AGENT", "startTime": about.get("timestamp")}, record)
    rows = map(_fields, as_list(value.get("observations")))
    observations = [_span(row, record) for row in rows if row]  # a list of traces names but ids
    speaks = bool(root.purpose or root.outputs)
    trace.spans += [root] if speaks else []
    for span in observations:
        span.parent = span.parent or (root.id if speaks else None)
    last = max((span.ends_at for span in observations), default=root.ends_at)
    root.end = max(root.ends_at, last)
    trace.spans += observations
    yield from trace_steps(trace)


def _fields(value: object) -> JsonObject:
    """Return the fields of a trace or an observation under the names of the API."""
    return {_COLUMNS.get(key, key): item for key, item in as_object(value).items()}


def _span(native: JsonObject, record: Record) -> Span:
    span_id = as_text(native.get("id"))
    if not span_id:
        raise BadRecordError("an observation of Langfuse without an id")
    name = str(native.get("name") or "unnamed")
    kind = str(native.get("type") or "")
    usage = as_object(json_or_text(native.get("usageDetails") or native.get("usage")))
    cost = native.get("calculatedTotalCost") or native.get("totalCost")
    attributes = known_fields(
        **{
            "langfuse.observation.type": _TYPES.get(kind, kind.lower()),
            "langfuse.observation.input": json_or_text(native.get("input")),
            "langfuse.observation.output": json_or_text(native.get("output")),
            "langfuse.observation.model.name": native.get("model"),
            "langfuse.observation.usage_details": usage or None,
            "langfuse.observation.cost_details": {"total": cost} if cost else None,
        }
    )
    read = read_attributes(attributes, name)
    failed = str(native.get("level")) == "ERROR"
    message = str(native.get("statusMessage") or "")
    return Span(
        id=span_id,
        parent=as_text(native.get("parentObservationId")),
        name=name,
        native=native,
        record=record,
        start=_time(native, "startTime"),
        end=_time(native, "endTime"),
        is_program=read.kind == "program",
        tool=read.tool,
        purpose=read.purpose,
        arguments=read.arguments,
        outputs=read.outputs,
        error={"type": "Error", "message": message} if failed else None,
        metrics=read.metrics,
        label=read.label,
    )


def _time(native: JsonObject, name: str) -> int | None:
    read = time_of(native, name)
    return nanoseconds(read.astimezone(UTC)) if read else None
