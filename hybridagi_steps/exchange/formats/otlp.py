"""OpenTelemetry's spans with the GenAI attributes, in.

A record is one OTLP request as JSON, or a single span, also as the SDK's `to_json` prints it.
Spans of one trace may stand in several requests: they are held until the file ends, or until
`MAX_HELD_SPANS` are held and the oldest trace is written out. Those of an earlier file are read
again from what is stored of them, so that all find their places. Spans that our own export wrote
carry the step itself and become it again; all others are read by the names of `span_dialects`.

An attribute is a key with a typed value: `{"key": "a", "value": {"intValue": "1"}}`; integers are
written as strings. A plain object of attributes is read too, as some tools write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, ParsedTrace, Record, Records, Skipped, refused
from hybridagi_steps.exchange.span_dialects import plain_attributes
from hybridagi_steps.exchange.spans import (
    Span,
    Trace,
    read_span,
    run_id_of,
    step_id,
    trace_id_of,
    trace_steps,
)
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

MAX_HELD_SPANS = 5_000
"""Spans held while their traces may still grow."""
STEP = "hybridagi_steps.step"
"""Our own attribute: the whole step as JSON, without its vector and its time."""
PROGRAM_END = "hybridagi_steps.program_end"
"""Our own event on a program's span: its ProgramEnd step."""


def recognises(value: JsonValue) -> bool:
    """Whether a record is an export request, or one span."""
    fields = js.as_object(value)
    return bool(fields.keys() & {"resourceSpans", "resource_spans"} or trace_id_of(fields))


def parse(records: Records) -> Iterator[Parsed | ParsedTrace | Skipped]:
    """Yield traces, and the steps that our own export wrote."""
    traces: dict[str, Trace] = {}
    count = 0
    for record in records:
        if isinstance(record, Skipped):
            yield record
            continue
        own: list[Parsed] = []
        for place, (native, resource) in enumerate(_native_spans(record.value), start=1):
            try:
                if steps := _own_steps(native, record):
                    own += steps
                    continue
                trace_id, span = _span(native, record)
            except (BadRecordError, RecursionError) as error:
                yield refused(record._replace(place=f"{record.place}span {place}: "), error)
                continue
            trace = traces.setdefault(trace_id, Trace(trace_id, "otlp", extras=resource))
            trace.spans.append(span)
            trace.session_id = trace.session_id or span.read.session_id
            trace.user_id = trace.user_id or span.read.user_id
            count += 1
        yield from sorted(own, key=lambda parsed: parsed.step.hop)
        while count > MAX_HELD_SPANS:
            oldest = traces.pop(next(iter(traces)))
            count -= len(oldest.spans)
            yield _parsed(oldest)
    yield from map(_parsed, traces.values())


def _parsed(trace: Trace) -> ParsedTrace:
    line, run_id = trace.spans[0].record.line, run_id_of(trace.id)
    return ParsedTrace(line, run_id, len(trace.spans), partial(_placed, trace))


def _placed(trace: Trace, stored: Iterable[AgentStep]) -> Iterator[Parsed | Skipped]:
    whole = replace(trace, spans=[replace(span, notes=[]) for span in trace.spans])
    span_ids = {span.id for span in trace.spans}
    for step in stored:
        whole.session_id = whole.session_id or step.session_id
        whole.user_id = whole.user_id or step.user_id
        for native in js.objects_in(step.model_extra, "messages"):
            if trace_id_of(native) != trace.id:
                continue
            _, span = _span(native, Record(0, native))
            # What `redact` has changed in a span may have been its id.
            if span.id not in span_ids and step_id(trace.id, span.id) == id_text(step.id):
                whole.spans.append(span)
    yield from trace_steps(whole)


def _native_spans(value: object) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield (span, what its resource says) for each span of a request."""
    request = js.as_object(value)
    if not request.keys() & {"resourceSpans", "resource_spans"}:
        yield request, _resource(request)
    for resource in js.objects_in(request, "resourceSpans", "resource_spans"):
        for scope in js.objects_in(resource, "scopeSpans", "scope_spans"):
            for span in js.objects_in(scope, "spans"):
                yield span, _resource(resource)


def _resource(fields: JsonObject) -> JsonObject:
    about = plain_attributes(js.as_object(fields.get("resource")))
    return {"resource": about} if about else {}


def _own_steps(native: JsonObject, record: Record) -> list[Parsed]:
    """Return the steps that our own export wrote into a span; none when it is a foreign one."""
    steps = [js.json_or_text(plain_attributes(native).get(STEP))]
    if "step_type" not in js.as_object(steps[0]):
        return []
    for event in js.objects_in(native, "events"):
        if event.get("name") == PROGRAM_END:
            steps.append(js.json_or_text(plain_attributes(event).get(STEP)))
    return [Parsed(record.line, js.agent_step(js.as_object(fields))) for fields in steps]


def _span(native: JsonObject, record: Record) -> tuple[str, Span]:
    trace_id = trace_id_of(native)
    if not trace_id:
        raise BadRecordError("it has no traceId and spanId")
    about: dict[str, Any] = {}
    if "context.span_id" in native:  # a row of Phoenix's table of spans
        columns = {key: value for key, value in native.items() if value is not None}
        about["attributes"] = {
            "openinference.span.kind": columns.get("span_kind"),
            **{
                key.removeprefix("attributes."): value
                for key, value in columns.items()
                if key.startswith("attributes.")
            },
        }
    return trace_id, read_span(native, record, **about)
