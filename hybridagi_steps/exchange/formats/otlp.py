"""OpenTelemetry's spans with the GenAI attributes, in.

A record is one OTLP request as JSON, or a single span, also as the SDK's `to_json` prints it.
Spans of one trace may stand in several requests: they are held until the file ends, or until
`MAX_HELD_SPANS` are held and the oldest trace is written out. Those of an earlier file are read
again from what is stored of them, so that all find their places. Spans that our own export wrote
carry the step itself and become it again; all others are read by the names of the conventions, old
and new.

An attribute is a key with a typed value: `{"key": "a", "value": {"intValue": "1"}}`; integers are
written as strings. A plain object of attributes is read too, as some tools write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, ParsedTrace, Record, Records, Skipped, refused
from hybridagi_steps.exchange.spans import Span, Trace, nanoseconds, run_id_of, step_id, trace_steps
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    agent_step,
    as_arguments,
    as_list,
    as_object,
    as_text,
    first_number,
    is_one_of,
    json_or_text,
    known_fields,
    last_user_text,
    text_of,
    time_of,
)

MAX_HELD_SPANS = 5_000
"""Spans held while their traces may still grow."""

OPERATION = "gen_ai.operation.name"
CHAT, EXECUTE_TOOL, INVOKE_AGENT = "chat", "execute_tool", "invoke_agent"
MODEL_OPERATIONS = {"chat", "text_completion", "generate_content", "completion"}
PROGRAM_OPERATIONS = {"invoke_agent", "create_agent", "invoke_workflow", "plan"}

CONVERSATION = "gen_ai.conversation.id"
AGENT_NAMES = ("gen_ai.agent.name", "gen_ai.workflow.name")
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_ARGUMENTS = ("gen_ai.tool.call.arguments", "gen_ai.tool.arguments")
TOOL_RESULT = ("gen_ai.tool.call.result", "gen_ai.tool.output", "gen_ai.tool.message")
INPUT_MESSAGES = ("gen_ai.input.messages", "gen_ai.prompt")
OUTPUT_MESSAGES = ("gen_ai.output.messages", "gen_ai.completion")
INPUT_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
PROMPT_EVENT, COMPLETION_EVENT = "gen_ai.content.prompt", "gen_ai.content.completion"
CHOICE_EVENT = "gen_ai.choice"

MODELS = ("gen_ai.response.model", "gen_ai.request.model")
REQUEST_MODEL = "gen_ai.request.model"
PROVIDERS = ("gen_ai.provider.name", "gen_ai.system")
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
TOTAL_TOKENS = ("llm.usage.total_tokens",)
CACHE_READ_TOKENS = ("gen_ai.usage.cache_read.input_tokens",)
CACHE_WRITE_TOKENS = ("gen_ai.usage.cache_creation.input_tokens",)

USER_ID = ("user.id", "enduser.id")
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
        case {"traceId": _} | {"trace_id": _} | {"context": _}:
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


def _span(kept: JsonObject, record: Record) -> tuple[str, Span]:
    native = _in_otlp(kept)
    trace_id, span_id = _id(native, "traceId", "trace_id"), _id(native, "spanId", "span_id")
    if not trace_id or not span_id:
        raise BadRecordError("it has no traceId and spanId")
    attributes = attributes_of(native)
    operation = attributes.get(OPERATION)
    asked, said = asked_and_said(native, attributes)
    is_model = is_one_of(operation, MODEL_OPERATIONS) or (operation is None and bool(asked))
    name = str(native.get("name") or operation or "unnamed")
    is_program = is_one_of(operation, PROGRAM_OPERATIONS)
    agent = _first_text(attributes, *AGENT_NAMES) if is_program else None
    return trace_id, Span(
        id=span_id,
        parent=_id(native, "parentSpanId", "parent_span_id") or None,
        name=agent or name,
        native=kept,
        record=record,
        start=first_number(native, "startTimeUnixNano", "start_time_unix_nano"),
        end=first_number(native, "endTimeUnixNano", "end_time_unix_nano"),
        is_program=is_program,
        tool=None if is_model else _first_text(attributes, TOOL_NAME) or name,
        purpose=last_user_text(asked),
        arguments={} if is_model else as_arguments(_first(attributes, TOOL_ARGUMENTS)),
        outputs=_outputs(attributes, said),
        error=_error(native, attributes),
        metrics=_metrics(attributes),
        session_id=as_text(attributes.get(CONVERSATION)),
        user_id=_first_text(attributes, *USER_ID),
    )


def _first_text(attributes: JsonObject, *keys: str) -> str | None:
    """Return the first text that stands under one of these names."""
    found = (attributes.get(key) for key in keys)
    return next((text for text in found if isinstance(text, str) and text), None)


def _first(attributes: JsonObject, keys: Sequence[str]) -> Any:
    """Return what stands under the first of these names that is there."""
    return next((attributes[key] for key in keys if key in attributes), None)


def _outputs(attributes: JsonObject, said: Sequence[Any]) -> JsonObject | None:
    for key in TOOL_RESULT:
        if key in attributes:
            return {"result": json_or_text(attributes[key])}
    if not said:
        return None
    message = as_object(said[-1])
    parts = message.get("parts") or message.get("content")
    text = text_of([p for p in as_list(parts) if _is_text(p)]) if isinstance(parts, list) else parts
    calls = message.get("tool_calls") or [
        {"name": part.get("name"), "arguments": part.get("arguments")}
        for part in map(as_object, as_list(parts))
        if part.get("type") == "tool_call"
    ]
    result: JsonObject = {"result": text or ""}
    return {**result, "tool_calls": calls} if calls else result


def _is_text(part: object) -> bool:
    return as_object(part).get("type", "text") == "text"


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


def _metrics(attributes: JsonObject) -> JsonObject:
    asked = first_number(attributes, *INPUT_TOKENS)
    said = first_number(attributes, *OUTPUT_TOKENS)
    total = first_number(attributes, *TOTAL_TOKENS)
    if total is None and asked is not None and said is not None:
        total = asked + said
    return known_fields(
        input_tokens=asked,
        output_tokens=said,
        total_tokens=total,
        cache_read_tokens=first_number(attributes, *CACHE_READ_TOKENS),
        cache_write_tokens=first_number(attributes, *CACHE_WRITE_TOKENS),
        model_name=_first_text(attributes, *MODELS),
        provider=_first_text(attributes, *PROVIDERS),
    )


def _id(native: JsonObject, *keys: str) -> str:
    """Return an id in lower case, as hexadecimal digits are written; base64 stays as it is."""
    found = (_first_text(native, *keys) or "").removeprefix("0x")
    if len(found) in (16, 32) and not set(found.lower()) - set("0123456789abcdef"):
        return found.lower()
    return found


Messages = list[JsonObject]


def asked_and_said(native: JsonObject, attributes: JsonObject) -> tuple[Messages, Messages]:
    """Return the messages that went in, and those that came out."""
    asked = _messages(_first(attributes, INPUT_MESSAGES), "user")
    said = _messages(_first(attributes, OUTPUT_MESSAGES), "assistant")
    from_events = _event_messages(native)
    asked = asked or from_events[0] or _flattened(attributes, "gen_ai.prompt.")
    said = said or from_events[1] or _flattened(attributes, "gen_ai.completion.")
    return asked, said


def _messages(given: object, role: str) -> Messages:
    """Return what a string, an object or a list says as messages."""
    value = json_or_text(given)
    if isinstance(value, dict):
        return [as_object(value)]
    if not isinstance(value, list):
        return [{"role": role, "content": str(value)}] if value else []
    return [as_object(item) or {"role": role, "content": str(item)} for item in as_list(value)]


def _event_messages(native: JsonObject) -> tuple[Messages, Messages]:
    asked: Messages = []
    said: Messages = []
    for item in as_list(native.get("events")):
        event = as_object(item)
        name, fields = str(event.get("name")), attributes_of(event)
        if name == PROMPT_EVENT:
            asked += _messages(fields.get("gen_ai.prompt"), "user")
        elif name == COMPLETION_EVENT:
            said += _messages(fields.get("gen_ai.completion"), "assistant")
        elif name in INPUT_EVENTS:
            asked.append({"role": INPUT_EVENTS[name], "content": fields.get("content")})
        elif name == CHOICE_EVENT:
            message = as_object(json_or_text(fields.get("message")))
            said.append(message or {"role": "assistant", "content": fields.get("content")})
    return asked, said


def _flattened(attributes: JsonObject, prefix: str) -> Messages:
    found: dict[int, JsonObject] = {}
    for key, value in attributes.items():
        number, _, field = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and number.isdecimal() and len(number) < 6 and field:
            found.setdefault(int(number), {})[field] = value
    return [found[number] for number in sorted(found)]


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
