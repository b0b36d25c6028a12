"""Langfuse's traces, in: a trace with its observations, as its API and its exports write them.

An observation is a span with plain inputs and outputs; it is read by the names that Langfuse's own
OpenTelemetry attributes have. What the trace itself was asked and answered is a program around all.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Record, Records, Skipped, read_each
from hybridagi_steps.exchange.spans import Span, Trace, read_span, trace_steps
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

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
    value = js.as_object(record.value)
    about = _fields(value.get("trace") or value)
    trace_id = js.text_in(about, "id")
    if not trace_id:
        raise BadRecordError("a trace of Langfuse without an id")
    root = _span({**about, "type": "AGENT", "startTime": about.get("timestamp")}, record)
    rows = map(_fields, js.objects_in(value, "observations"))
    observations = [_span(row, record) for row in rows if row]  # a list of traces names but ids
    if root.read.purpose or root.read.outputs:
        for span in observations:
            span.parent = span.parent or root.id
        root.end = max(root.ends_at, *(span.ends_at for span in observations), 0)
        observations = [root, *observations]
    session_id, user_id = js.text_in(about, "sessionId"), js.text_in(about, "userId")
    yield from trace_steps(Trace(trace_id, "langfuse", observations, session_id, user_id))


def _fields(value: object) -> JsonObject:
    """Return the fields of a trace or an observation under the names of the API."""
    return {_COLUMNS.get(key, key): item for key, item in js.as_object(value).items()}


def _span(native: JsonObject, record: Record) -> Span:
    span_id = js.text_in(native, "id")
    if not span_id:
        raise BadRecordError("an observation of Langfuse without an id")
    kind = str(native.get("type") or "").lower()
    usage = js.as_object(js.json_or_text(native.get("usageDetails") or native.get("usage")))
    cost = native.get("calculatedTotalCost") or native.get("totalCost")
    attributes = {
        "type": None if kind in ("span", "event") else kind,  # these say nothing of the kind
        "input": js.json_or_text(native.get("input")),
        "output": js.json_or_text(native.get("output")),
        "model.name": native.get("model"),
        "usage_details": usage or None,
        "cost_details": {"total": cost} if cost else None,
    }
    return read_span(
        native,
        record,
        spanId=span_id,
        parentSpanId=js.text_in(native, "parentObservationId"),
        name=native.get("name"),
        attributes=js.known_fields(
            **{f"langfuse.observation.{k}": v for k, v in attributes.items()}
        ),
        status={"code": native.get("level"), "message": native.get("statusMessage")},
    )
