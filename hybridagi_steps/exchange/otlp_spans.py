"""OpenTelemetry's spans, out: a run as OTLP in JSON with the GenAI names, ready for a collector.

A program is a span `invoke_agent` from its ProgramCall to its ProgramEnd, a tool a span
`execute_tool`, everything else a model did a span `chat`; spans stand in the span of their program.
Each also carries the step itself in one attribute of ours (the ProgramEnd in an event), all but its
vector, so that an import gives back what was exported. No library of OpenTelemetry is needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from hybridagi_steps.exchange import otlp_names as names
from hybridagi_steps.exchange.formats.otlp_values import attribute_list
from hybridagi_steps.exchange.records import as_list, as_object
from hybridagi_steps.exchange.spans import last_user_text, nanoseconds
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text

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
    for place in range(0, len(spans), SPANS_PER_REQUEST):
        request = {
            "resourceSpans": [
                {
                    "resource": {"attributes": attribute_list({"service.name": SERVICE})},
                    "scopeSpans": [
                        {
                            "scope": {"name": "hybridagi_steps"},
                            "spans": spans[place : place + SPANS_PER_REQUEST],
                        }
                    ],
                }
            ]
        }
        yield json.dumps(request, ensure_ascii=False).encode() + b"\n"


def _spans(steps: Sequence[AgentStep]) -> Iterator[dict[str, Any]]:
    ends = _ends(steps)
    ended = {id(end) for end in ends.values()}
    known = {id_text(step.id) for step in steps}
    for step in steps:
        if id(step) in ended:
            continue
        end = ends.get(id_text(step.id))
        span = _step_span(step, end)
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


def _step_span(step: AgentStep, end: AgentStep | None) -> dict[str, Any]:
    attributes, name, kind = _described(step, end)
    last = end or step
    attributes |= _measured(last)
    attributes |= {
        names.CONVERSATION: step.session_id,
        names.USER_ID[0]: step.user_id,
        names.ERROR_TYPE: _error_of(last).get("type") if last.status == "error" else None,
        names.STEP: _step_json(step),
    }
    start, finish = _times(step, end)
    span: dict[str, Any] = {
        "traceId": _trace_id(step.run_id or id_text(step.id)),
        "spanId": _span_id(id_text(step.id)),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(finish),
        "attributes": attribute_list(attributes),
        "status": _status(last),
    }
    if end is not None:
        event = attribute_list({names.STEP: _step_json(end)})
        span["events"] = [
            {"timeUnixNano": str(finish), "name": names.PROGRAM_END, "attributes": event}
        ]
    return span


def _described(step: AgentStep, end: AgentStep | None) -> tuple[dict[str, Any], str, int]:
    """Return what the conventions say about a step: attributes, name and kind of its span."""
    if step.step_type in (AgentStepType.ProgramCall, AgentStepType.ProgramEnd):
        said = end if end is not None else step
        program = step.program or "program"
        attributes = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT_NAME: program,
            names.INPUT_MESSAGES[0]: _asked(step),
            names.OUTPUT_MESSAGES[0]: _said(said),
        }
        return attributes, f"{names.INVOKE_AGENT} {program}", _INTERNAL
    if step.tool is not None:
        attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: step.tool,
            names.TOOL_ARGUMENTS[0]: _json(step.arguments),
            names.TOOL_RESULT[0]: None if step.result is None else _json(step.result),
        }
        return attributes, f"{names.EXECUTE_TOOL} {step.tool}", _INTERNAL
    model = step.metrics.model_name if step.metrics else None
    attributes = {
        names.OPERATION: names.CHAT,
        names.INPUT_MESSAGES[0]: _asked(step),
        names.OUTPUT_MESSAGES[0]: _said(step),
    }
    return attributes, f"{names.CHAT} {model}" if model else names.CHAT, _CLIENT


def asked_text(step: AgentStep) -> str:
    """Return what a program or model was asked: its arguments, else why it was called."""
    given = step.arguments
    if not given:
        return step.purpose
    [first, *others] = given.values()
    if others:
        return _json(given)
    return first if isinstance(first, str) else last_user_text(first) or _json(given)


def said_text(step: AgentStep) -> str:
    """Return what a model or program gave back as text: its result, its choice, or its fields."""
    outputs = step.outputs or {}
    found = outputs.get("result", outputs.get("choice"))
    if found is None:
        found = {k: v for k, v in outputs.items() if k not in ("error", "tool_calls")} or ""
    return found if isinstance(found, str) else _json(found)


def _measured(step: AgentStep) -> dict[str, Any]:
    if step.metrics is None:
        return {}
    return {
        names.REQUEST_MODEL: step.metrics.model_name,
        names.PROVIDERS[0]: step.metrics.provider,
        names.INPUT_TOKENS[0]: step.metrics.input_tokens,
        names.OUTPUT_TOKENS[0]: step.metrics.output_tokens,
        names.CACHE_READ_TOKENS[0]: step.metrics.cache_read_tokens,
        names.CACHE_WRITE_TOKENS[0]: step.metrics.cache_write_tokens,
    }


def _times(step: AgentStep, end: AgentStep | None) -> tuple[int, int]:
    """Return start and end, nanoseconds since 1970; a step is dated when it was over."""
    made = _clock(nanoseconds(step.created_at))
    if end is not None:
        return made, max(made, _clock(nanoseconds(end.created_at)))
    duration = step.metrics.duration_ms if step.metrics else None
    if duration is None or not math.isfinite(duration) or duration < 0:
        return made, made
    return max(0, made - int(duration * 1e6)), made


def _clock(time: int) -> int:
    return min(max(time, 0), _LATEST)


def _status(step: AgentStep) -> dict[str, Any]:
    if step.status == "ok":
        return {"code": _OK}
    if step.status == "error":
        return {"code": _ERROR, "message": str(_error_of(step).get("message", ""))}
    return {}


def _error_of(step: AgentStep) -> dict[str, Any]:
    found: Any = (step.outputs or {}).get("error")
    return found if isinstance(found, dict) else {"type": "Error", "message": str(found or "")}  # pyright: ignore[reportUnknownVariableType]


def _asked(step: AgentStep) -> str | None:
    if not (asked := asked_text(step)):
        return None
    parts = [{"type": "text", "content": asked}]
    return _json([{"role": "user", "parts": parts}])


def _said(step: AgentStep) -> str | None:
    """Return what was answered as the conventions write it, None when nothing was."""
    parts: list[dict[str, Any]] = []
    if text := said_text(step):
        parts.append({"type": "text", "content": text})
    for call in map(as_object, as_list((step.outputs or {}).get("tool_calls"))):
        body = as_object(call.get("function")) or call
        found = {"name": body.get("name"), "arguments": body.get("arguments")}
        parts.append({"type": "tool_call", "id": call.get("id"), **found})
    if not parts:
        return None
    return _json([{"role": "assistant", "parts": parts, "finish_reason": "stop"}])


def _step_json(step: AgentStep) -> str:
    return step.model_dump_json(exclude={"vector"})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _trace_id(run_id: str) -> str:
    """Return the run's id when it is a trace's already, else one made from it."""
    bare = run_id.removeprefix("tr-")
    if len(bare) == 32 and not set(bare) - _HEXADECIMAL and set(bare) != {"0"}:
        return bare
    return sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _span_id(step_id: str) -> str:
    return sha256(step_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
