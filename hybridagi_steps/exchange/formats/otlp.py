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

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, ParsedTrace, Record, Records, Skipped, refused
from hybridagi_steps.exchange.span_dialects import (
    Messages,
    first_text,
    messages_in,
    read_attributes,
    short_name,
)
from hybridagi_steps.exchange.spans import Span, Trace, nanoseconds, run_id_of, step_id, trace_steps
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    agent_step,
    as_list,
    as_object,
    first_number,
    json_or_text,
    time_of,
)

MAX_HELD_SPANS = 5_000
"""Spans held while their traces may still grow."""

INPUT_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
PROMPT_EVENT, COMPLETION_EVENT = "gen_ai.content.prompt", "gen_ai.content.completion"
CHOICE_EVENT = "gen_ai.choice"
ERROR_TYPE = "error.type"

STEP = "hybridagi_steps.step"
"""Our own attribute: the whole step as JSON, without its vector and its time."""
PROGRAM_END = "hybridagi_steps.program_end"
"""Our own event on a program's span: its ProgramEnd step."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR")
_SDK_CODES = {"ERROR": 2}


def recognises(value: JsonValue) -> bool:
    """Whether a record is an export request, or one span."""
    match value:
        case {"resourceSpans": _} | {"resource_spans": _}:
            return True
        case {"traceId": _} | {"trace_id": _} | {"context": _} | {"context.span_id": _}:
            return bool(_trace_of(value))
        case _:
            return False


def parse(records: Records) -> Iterator[Parsed | ParsedTrace | Skipped]:
    """Yield traces, and the steps that our own export wrote."""
    held: dict[str, Trace] = {}
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
            trace = held.setdefault(trace_id, Trace(trace_id, "otlp", extras=resource))
            _take(trace, span)
            count += 1
        yield from sorted(own, key=lambda parsed: parsed.step.hop)
        while count > MAX_HELD_SPANS:
            oldest = held.pop(next(iter(held)))
            count -= len(oldest.spans)
            yield _parsed(oldest)
    for trace in held.values():
        yield _parsed(trace)


def _parsed(trace: Trace) -> ParsedTrace:
    line, run_id = trace.spans[0].record.line, run_id_of(trace.id)
    return ParsedTrace(line, run_id, len(trace.spans), partial(_placed, trace))


def _placed(trace: Trace, stored: Iterable[AgentStep]) -> Iterator[Parsed | Skipped]:
    whole = replace(trace, spans=[replace(span, notes=[]) for span in trace.spans])
    given = {span.id for span in trace.spans}
    for step in stored:
        whole.session_id = whole.session_id or step.session_id
        whole.user_id = whole.user_id or step.user_id
        for native in as_list((step.model_extra or {}).get("messages")):
            if _trace_of(native) != trace.id:
                continue
            _, span = _span(as_object(native), Record(0, native))
            # What `redact` has changed in a span may have been its id.
            if span.id not in given and step_id(trace.id, span.id) == id_text(step.id):
                whole.spans.append(span)
    yield from trace_steps(whole)


def _trace_of(native: object) -> str | None:
    """Return the trace that a span is of; None for what is no span."""
    span = _in_otlp(as_object(native))
    return _id(span, "traceId", "trace_id") if _id(span, "spanId", "span_id") else None


def _take(trace: Trace, span: Span) -> None:
    trace.spans.append(span)
    trace.session_id = trace.session_id or span.session_id
    trace.user_id = trace.user_id or span.user_id


def _native_spans(value: object) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield (span, what its resource says) for each span of a request."""
    request = as_object(value)
    resources: object = request.get("resourceSpans", request.get("resource_spans"))
    if resources is None:
        about = attributes_of(as_object(request.get("resource")))
        yield request, {"resource": about} if about else {}
        return
    for item in as_list(resources):
        resource = as_object(item)
        about = attributes_of(as_object(resource.get("resource")))
        extras = {"resource": about} if about else {}
        for part in as_list(resource.get("scopeSpans", resource.get("scope_spans"))):
            for span in as_list(as_object(part).get("spans")):
                yield as_object(span), extras


def _own_steps(native: JsonObject, record: Record) -> list[Parsed]:
    """Return the steps that our own export wrote into a span; none when it is a foreign one."""
    steps = [json_or_text(attributes_of(native).get(STEP))]
    if "step_type" not in as_object(steps[0]):
        return []
    for event in map(as_object, as_list(native.get("events"))):
        if event.get("name") == PROGRAM_END:
            steps.append(json_or_text(attributes_of(event).get(STEP)))
    return [Parsed(record.line, agent_step(as_object(fields))) for fields in steps]


def _in_otlp(native: JsonObject) -> JsonObject:
    """Return a span with OTLP's names, also when the SDK's `to_json` wrote it."""
    native = _of_table(native)
    context, status = as_object(native.get("context")), as_object(native.get("status"))
    if not context:
        return native
    times = {"startTimeUnixNano": "start_time", "endTimeUnixNano": "end_time"}
    read = {name: time_of(native, key) for name, key in times.items()}
    return {
        **native,
        "traceId": context.get("trace_id"),
        "spanId": context.get("span_id"),
        "parentSpanId": native.get("parent_id"),
        **{name: nanoseconds(time) for name, time in read.items() if time is not None},
        "status": {"code": _SDK_CODES.get(str(status.get("status_code"))), **status},
    }


def _of_table(native: JsonObject) -> JsonObject:
    """Return a row of Phoenix's table of spans as the SDK would print the span."""
    if "context.span_id" not in native:
        return native
    columns = {key: value for key, value in native.items() if value is not None}
    attributes = {
        key.removeprefix("attributes."): value
        for key, value in columns.items()
        if key.startswith("attributes.")
    }
    kind = columns.get("span_kind")
    return {
        **native,
        "context": {
            "trace_id": columns.get("context.trace_id"),
            "span_id": columns.get("context.span_id"),
        },
        "status": {"status_code": columns.get("status_code")},
        "attributes": {**({"openinference.span.kind": kind} if kind else {}), **attributes},
    }


def _span(kept: JsonObject, record: Record) -> tuple[str, Span]:
    native = _in_otlp(kept)
    trace_id, span_id = _id(native, "traceId", "trace_id"), _id(native, "spanId", "span_id")
    if not trace_id or not span_id:
        raise BadRecordError("it has no traceId and spanId")
    attributes = attributes_of(native)
    name = str(native.get("name") or attributes.get("gen_ai.operation.name") or "unnamed")
    read = read_attributes(attributes, name, _event_messages(native, attributes))
    span = Span(
        id=span_id,
        parent=_id(native, "parentSpanId", "parent_span_id") or None,
        name=read.name or short_name(name),
        native=kept,
        record=record,
        start=first_number(native, "startTimeUnixNano", "start_time_unix_nano"),
        end=first_number(native, "endTimeUnixNano", "end_time_unix_nano"),
        is_program=read.kind == "program",
        tool=read.tool,
        purpose=read.purpose,
        arguments=read.arguments,
        outputs=read.outputs,
        error=_error(native, attributes),
        metrics=read.metrics,
        session_id=read.session_id,
        user_id=read.user_id,
        label=read.label,
    )
    return trace_id, span


def _error(native: JsonObject, attributes: JsonObject) -> dict[str, str] | None:
    status = as_object(native.get("status"))
    if status.get("code") not in _ERROR_CODES:
        return None
    kind = attributes.get(ERROR_TYPE)
    message = str(status.get("message") or status.get("description") or "")
    for event in as_list(native.get("events")):
        said = attributes_of(as_object(event))
        if "exception.type" in said:
            kind, message = said["exception.type"], str(said.get("exception.message", message))
    return {"type": str(kind or "Error"), "message": message}


def _id(native: JsonObject, *keys: str) -> str:
    """Return an id in lower case, as hexadecimal digits are written; base64 stays as it is."""
    found = (first_text(native, keys) or "").removeprefix("0x")
    if len(found) in (16, 32) and not set(found.lower()) - set("0123456789abcdef"):
        return found.lower()
    return found


def _event_messages(native: JsonObject, attributes: JsonObject) -> tuple[Messages, Messages]:
    """Return the messages in and out that a span's events tell, or an attribute of events."""
    asked: Messages = []
    answered: Messages = []
    within = as_list(json_or_text(attributes.get("events")))
    for event in map(as_object, [*as_list(native.get("events")), *within]):
        fields = attributes_of(event) or event
        name = str(event.get("name") or event.get("event.name"))
        if name == PROMPT_EVENT:
            asked += messages_in(json_or_text(fields.get("gen_ai.prompt")), "user")
        elif name == COMPLETION_EVENT:
            answered += messages_in(json_or_text(fields.get("gen_ai.completion")), "assistant")
        elif name in INPUT_EVENTS:
            asked.append({"role": INPUT_EVENTS[name], "content": fields.get("content")})
        elif name == CHOICE_EVENT:
            message = as_object(json_or_text(fields.get("message")))
            answered.append(message or {"role": "assistant", "content": fields.get("content")})
        elif name == "gen_ai.client.inference.operation.details":
            for key, messages in (("input", asked), ("output", answered)):
                value = fields.get(f"gen_ai.{key}.messages")
                messages += messages_in(json_or_text(value), "user") if value else []
    return asked, answered


def attributes_of(native: JsonObject) -> JsonObject:
    """Return the attributes of a span, event or resource as plain values."""
    given: object = native.get("attributes")
    return as_object(given) or _pairs(given)


def _pairs(given: object) -> JsonObject:
    pairs = [as_object(pair) for pair in as_list(given)]
    return {str(pair.get("key")): _plain(pair.get("value")) for pair in pairs}


def _plain(value: JsonValue) -> Any:
    match value:
        case {"intValue": str(text)} if _INTEGER.fullmatch(text):
            return int(text)
        case {"arrayValue": found}:
            return [_plain(item) for item in as_list(as_object(found).get("values"))]
        case {"kvlistValue": found}:
            return _pairs(as_object(found).get("values"))
        case {"intValue": found} | {"stringValue": found} | {"boolValue": found}:
            return found
        case {"doubleValue": found} | {"bytesValue": found}:
            return found
        case dict():
            return None
        case _:
            return value
