"""OpenTelemetry's spans with the GenAI attributes, out.

A program is one span with its ProgramEnd as an event, any other step a span of its own. Each
carries its whole step in an attribute of ours, so that it becomes that step again when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import sha256

from hybridagi_steps.exchange import span_dialects as names
from hybridagi_steps.exchange.formats import otlp
from hybridagi_steps.exchange.span_dialects import CHAT, EXECUTE_TOOL, INVOKE_AGENT, OPERATION
from hybridagi_steps.exchange.spans import nanoseconds
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.json_reading import JsonObject

SPANS_PER_REQUEST = 500
"""Spans in one request, which is one line."""
SERVICE = "hybridagi-steps"
"""The `service.name` of what we write."""

_INTERNAL, _CLIENT = 1, 3
_OK, _ERROR = 1, 2
_LATEST = 2**63 - 1
_HEXADECIMAL = set("0123456789abcdef")


def request_lines(steps: Sequence[AgentStep]) -> Iterator[bytes]:
    """Yield the steps of one run as OTLP export requests, a line each."""
    spans = list(_spans(steps))
    resource = {"attributes": _attributes({"service.name": SERVICE})}
    for place in range(0, len(spans), SPANS_PER_REQUEST):
        page = spans[place : place + SPANS_PER_REQUEST]
        scoped = [{"scope": {"name": "hybridagi_steps"}, "spans": page}]
        request = {"resourceSpans": [{"resource": resource, "scopeSpans": scoped}]}
        yield js.as_json(request).encode() + b"\n"


def question_text(step: AgentStep) -> str:
    """Return what a program or model was asked: its arguments, else why it was called."""
    given = step.arguments
    if not given:
        return step.purpose
    [first, *others] = given.values()
    if others:
        return js.as_json(given)
    return first if isinstance(first, str) else js.last_user_text(first) or js.as_json(given)


def answer_text(step: AgentStep) -> str:
    """Return what a model or program gave back as text: its result, its choice, or its fields."""
    outputs = step.outputs or {}
    found = outputs.get("result", outputs.get("choice"))
    if found is None:
        found = js.without(outputs, "error", "tool_calls") or ""
    return found if isinstance(found, str) else js.as_json(found)


def _spans(steps: Sequence[AgentStep]) -> Iterator[JsonObject]:
    ends = _ends(steps)
    ended = {id(end) for end in ends.values()}
    known = {id_text(step.id) for step in steps}
    for step in steps:
        if id(step) in ended:
            continue
        span = _span(step, ends.get(id_text(step.id)))
        if step.program_id in known and step.program_id != id_text(step.id):
            span["parentSpanId"] = _span_id(step.program_id)
        yield span


def _ends(steps: Sequence[AgentStep]) -> dict[str, AgentStep]:
    """Return the ProgramEnd of each ProgramCall, by the call's id."""
    open_calls: list[AgentStep] = []
    ends: dict[str, AgentStep] = {}
    for step in steps:
        if step.step_type is AgentStepType.ProgramCall:
            open_calls.append(step)
        if step.step_type is not AgentStepType.ProgramEnd:
            continue
        for call in reversed(open_calls):
            inside = (None, call.program_id, id_text(call.id))
            if call.program == step.program and step.program_id in inside:
                ends[id_text(call.id)] = step
                open_calls.remove(call)
                break
    return ends


def _span(step: AgentStep, end: AgentStep | None) -> JsonObject:
    attributes, name, kind = _described(step, end)
    last = end or step
    error = _error_of(last) if last.status == "error" else {}
    attributes |= _measured(last)
    attributes |= {
        names.SESSIONS[0]: step.session_id,
        names.USERS[0]: step.user_id,
        names.ERROR_TYPE: error.get("type"),
        otlp.STEP: step.model_dump_json(exclude={"vector"}),
    }
    start, finish = _times(step, end)
    span: JsonObject = {
        "traceId": _trace_id(step.run_id or id_text(step.id)),
        "spanId": _span_id(id_text(step.id)),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(finish),
        "attributes": _attributes(attributes),
        "status": {"code": _OK} if last.status == "ok" else {},
    }
    if last.status == "error":
        span["status"] = {"code": _ERROR, "message": str(error.get("message", ""))}
    if end is not None:
        whole = _attributes({otlp.STEP: end.model_dump_json(exclude={"vector"})})
        event = {"timeUnixNano": str(finish), "name": otlp.PROGRAM_END, "attributes": whole}
        span["events"] = [event]
    return span


def _described(step: AgentStep, end: AgentStep | None) -> tuple[JsonObject, str, int]:
    """Return what the conventions say about a step: attributes, name and kind of its span."""
    is_program = step.step_type in (AgentStepType.ProgramCall, AgentStepType.ProgramEnd)
    if step.tool is not None and not is_program:
        attributes: JsonObject = {
            OPERATION: EXECUTE_TOOL,
            names.TOOL_NAMES[0]: step.tool,
            names.ARGUMENTS[0]: js.as_json(step.arguments),
            names.RESULT[0]: None if step.result is None else js.as_json(step.result),
        }
        return attributes, f"{EXECUTE_TOOL} {step.tool}", _INTERNAL
    last = end or step
    calls = js.objects_in(last.outputs, "tool_calls")
    answer = [*_text_parts(answer_text(last)), *map(_call_part, calls)]
    attributes = {
        names.INPUT_MESSAGES[0]: _messages("user", _text_parts(question_text(step))),
        names.OUTPUT_MESSAGES[0]: _messages("assistant", answer, finish_reason="stop"),
    }
    if is_program:
        program = step.program or "program"
        about = {OPERATION: INVOKE_AGENT, names.NAMES[0]: program}
        return {**about, **attributes}, f"{INVOKE_AGENT} {program}", _INTERNAL
    model = step.metrics.model_name if step.metrics else None
    name = f"{CHAT} {model}" if model else CHAT
    return {OPERATION: CHAT, **attributes}, name, _CLIENT


def _measured(step: AgentStep) -> JsonObject:
    metrics = step.metrics.model_dump() if step.metrics else {}
    fields = {"model_name": names.MODELS[1], "provider": names.PROVIDERS[0]}
    fields |= {name: names.COUNTS[name][0] for name in names.COUNTS if name != "total_tokens"}
    return {attribute: metrics.get(name) for name, attribute in fields.items()}


def _times(step: AgentStep, end: AgentStep | None) -> tuple[int, int]:
    """Return start and end, nanoseconds since 1970; a step is dated when it was over."""
    made, last = (min(max(nanoseconds(s.created_at), 0), _LATEST) for s in (step, end or step))
    if end is not None:
        return made, max(made, last)
    duration = step.metrics.duration_ms if step.metrics else None
    if duration is None or not math.isfinite(duration) or duration < 0:
        return made, made
    return max(0, made - int(duration * 1e6)), made


def _error_of(step: AgentStep) -> JsonObject:
    found: object = (step.outputs or {}).get("error") or ""
    return js.as_object(found if isinstance(found, dict) else {"type": "Error", "message": found})


def _text_parts(text: str) -> list[JsonObject]:
    return [{"type": "text", "content": text}] if text else []


def _messages(role: str, parts: list[JsonObject], **about: str) -> str | None:
    """Return a message as the conventions write it, None when it says nothing."""
    return js.as_json([{"role": role, "parts": parts, **about}]) if parts else None


def _call_part(call: JsonObject) -> JsonObject:
    body = js.as_object(call.get("function")) or call
    fields = {key: body.get(key) for key in ("name", "arguments")}
    return {"type": "tool_call", "id": call.get("id"), **fields}


def _trace_id(run_id: str) -> str:
    """Return the run's id when it is a trace's already, else one made from it."""
    bare = run_id.removeprefix("tr-")
    if len(bare) == 32 and not set(bare) - _HEXADECIMAL and set(bare) != {"0"}:
        return bare
    return sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _span_id(step_id: str) -> str:
    return sha256(step_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _attributes(values: JsonObject) -> list[JsonObject]:
    """Return plain values as OTLP attributes; those that are None are left out."""
    return [{"key": k, "value": _typed(v)} for k, v in values.items() if v is not None]


def _typed(value: object) -> JsonObject:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
