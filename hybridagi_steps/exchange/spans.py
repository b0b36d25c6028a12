"""Spans of a trace as steps: what the readers of tracing formats have in common.

A span that holds others (or says it is an agent) becomes a ProgramCall and a ProgramEnd, any other
an Action. `program_id` follows the tree of spans, `parent_id` the order of time: spans that overlap
share the last step before them, and what comes after joins them. A span whose parent is not among
them has the `program_id` that the parent's step will have, and the first of those hangs on that
step, so that a memory counts a parent that it misses. As in a recording, an
Action's time is its end. The native span stands unchanged in the step's `messages`. Ids come from
the ids of trace and span: importing twice gives the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hybridagi_steps.exchange.records import Parsed, Record, Skipped
from hybridagi_steps.exchange.span_dialects import (
    ERROR_TYPE,
    OPERATION,
    Reading,
    event_messages,
    plain_attributes,
    read_attributes,
    short_name,
)
from hybridagi_steps.messages.conversation import LONGEST_RUN_ID, NOT_READ
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

MAX_SPAN_DEPTH = 100
"""Spans nested more deeply are shown at this depth, with a note."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Span:
    """One span, read but not yet placed."""

    id: str
    parent: str | None
    """The span around it, among those that are placed together."""
    name: str
    native: JsonObject
    record: Record
    read: Reading
    """What its attributes say."""
    start: int | None = None
    """Nanoseconds since 1970."""
    end: int | None = None
    """Nanoseconds since 1970."""
    error: dict[str, str] | None = None
    """type and message of what it failed with."""
    notes: list[str] = field(default_factory=list[str])
    elsewhere: str | None = None
    """The span around it, where that one is not among those that are placed together."""

    @property
    def is_empty(self) -> bool:
        """Whether neither words, arguments, result nor error were understood, nor a program."""
        read = self.read
        is_program = read.kind == "program"
        return not (read.purpose or read.arguments or read.outputs or self.error or is_program)

    @property
    def starts_at(self) -> int:
        """Where it stands in time; without a start, at its end."""
        return self.start if self.start is not None else self.end or 0

    @property
    def ends_at(self) -> int:
        """When it was over; without an end, at its start."""
        return max(self.end or 0, self.starts_at)


@dataclass(slots=True)
class Trace:
    """The spans of one run."""

    id: str
    format: str
    spans: list[Span] = field(default_factory=list[Span])
    session_id: str | None = None
    user_id: str | None = None
    extras: JsonObject = field(default_factory=dict[str, Any])
    """What the file says about the trace as a whole."""


_IDS = ("spanId", "span_id", "context.span_id")
_TRACE_IDS = ("traceId", "trace_id", "context.trace_id")
_PARENT_IDS = ("parentSpanId", "parent_span_id", "parent_id")
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR", "ERROR")
_NANOSECONDS_FROM = 10**16
"""Times below are seconds or milliseconds: as nanoseconds they would lie in April 1970."""


def read_span(native: JsonObject, record: Record, **about: object) -> Span:
    """Return the span that an object tells, under OTLP's names or those of an SDK.

    `about` are members in OTLP's names that its format calls otherwise; the native stays as it is.

    Raises:
        BadRecordError: It has no id.
    """
    fields = {**js.as_object(native.get("context")), **native, **about}
    span_id = id_in(fields, *_IDS)
    if not span_id:
        raise BadRecordError("it has no span_id")
    attributes = plain_attributes(fields)
    name = str(fields.get("name") or attributes.get(OPERATION) or "unnamed")
    read = read_attributes(attributes, name, event_messages(fields, attributes))
    return Span(
        id=span_id,
        parent=id_in(fields, *_PARENT_IDS) or None,
        name=read.name or short_name(name),
        native=native,
        record=record,
        read=read,
        start=_time(fields, "start"),
        end=_time(fields, "end"),
        error=_error(fields, attributes),
    )


def trace_id_of(native: JsonObject) -> str | None:
    """Return the trace that a span is of; None for what is no span."""
    fields = {**js.as_object(native.get("context")), **native}
    return id_in(fields, *_TRACE_IDS) if id_in(fields, *_IDS) else None


def id_in(fields: JsonObject, *names: str) -> str:
    """Return an id in lower case, as hexadecimal digits are written; base64 stays as it is."""
    own = (js.text_in(fields, *names) or "").removeprefix("0x")
    is_hexadecimal = len(own) in (16, 32) and not set(own.lower()) - set("0123456789abcdef")
    return own.lower() if is_hexadecimal else own


def _time(fields: JsonObject, edge: str) -> int | None:
    names = (f"{edge}TimeUnixNano", f"{edge}_time_unix_nano", f"{edge}_time_ns")
    if (number := js.first_number(fields, *names)) is not None:
        return number
    names = (f"{edge}_time", f"{edge}Time")
    number = js.first_number(fields, *names)
    if number is not None and number >= _NANOSECONDS_FROM:
        return number
    read = js.time_of(fields, *names)
    return nanoseconds(read) if read else None


def _error(fields: JsonObject, attributes: JsonObject) -> dict[str, str] | None:
    status = js.as_object(fields.get("status"))
    codes = (status.get("code"), status.get("status_code"), fields.get("status_code"))
    if not any(code in _ERROR_CODES for code in codes):
        return None
    message = js.text_in(status, "message", "description") or js.text_in(fields, "status_message")
    error = {"type": str(attributes.get(ERROR_TYPE) or "Error"), "message": message or ""}
    for event in js.objects_in(fields, "events"):
        raised = plain_attributes(event)
        if kind := raised.get("exception.type"):
            error = {"type": str(kind), "message": str(raised.get("exception.message", message))}
    return error


def trace_steps(trace: Trace) -> Iterator[Parsed | Skipped]:
    """Yield the steps of a trace in order, and the spans that could not be taken."""
    spans: dict[str, Span] = {}
    for span in trace.spans:
        if span.id not in spans:
            spans[span.id] = span
        elif span.native != spans[span.id].native:
            reason = f"the id of span {span.id} is taken by another span of its trace"
            yield Skipped(span.record.line, span.record.place + reason)
    if spans:
        yield from _Walk(trace, spans).steps()


class _Walk:
    """Goes through the tree of spans in the order of time."""

    def __init__(self, trace: Trace, spans: dict[str, Span]) -> None:
        self._trace, self._spans = trace, spans
        self._steps: list[Parsed | Skipped] = []
        self._hop = 0
        self._children: dict[str | None, list[Span]] = {}
        parents = _shown_parents(spans, _placed(spans))
        for span in spans.values():
            self._children.setdefault(parents[span.id], []).append(span)
        for siblings in self._children.values():
            siblings.sort(key=lambda span: span.starts_at)
        self._run_id = run_id_of(trace.id)

    def steps(self) -> list[Parsed | Skipped]:
        self._siblings(self._children.get(None, []), [], None, "")
        return self._steps

    def _siblings(
        self, spans: Sequence[Span], before: list[str], program_id: str | None, question: str
    ) -> list[str]:
        """Place spans after `before`; return the ids that what follows joins."""
        for together in _overlapping(spans):
            first, *others = together
            tails = self._span(first, before, program_id, question)
            for span in others:
                tails += self._span(span, before[-1:], program_id, question)
            before = tails
        return before

    def _span(
        self, span: Span, before: list[str], program_id: str | None, question: str
    ) -> list[str]:
        children = self._children.get(span.id, [])
        if span.elsewhere is not None:
            program_id = step_id(self._trace.id, span.elsewhere)
            before = before or [program_id]
        read, purpose = span.read, span.read.purpose or question
        if not (children or read.kind == "program"):
            inputs: JsonObject = {"purpose": purpose}
            if read.tool is not None:
                inputs["tool"] = read.tool
            inputs["arguments"] = read.arguments
            return self._add(span, "Action", inputs, before, program_id, span.ends_at)
        inputs = {
            "program": span.name,
            "purpose": self._question(span) or span.name,
            "arguments": read.arguments,
        }
        called = self._add(span, "ProgramCall", inputs, before, program_id, span.starts_at)
        inner = called[0] if called else program_id
        after = self._siblings(children, called or before, inner, purpose)
        end = {"program": span.name}
        return self._add(span, "ProgramEnd", end, after, program_id, span.ends_at) or after

    def _question(self, span: Span) -> str:
        """Return what a span, or the first one in it that says so, was asked."""
        inner = (self._question(child) for child in self._children.get(span.id, []))
        return span.read.purpose or next(filter(None, inner), "")

    def _add(
        self,
        span: Span,
        kind: str,
        inputs: JsonObject,
        before: list[str],
        program_id: str | None,
        time: int,
    ) -> list[str]:
        """Keep one step; return its id in a list, which is empty when it could not be made."""
        opens, closes = kind != "ProgramEnd", kind != "ProgramCall"
        fields: JsonObject = {
            "id": step_id(self._trace.id, span.id, end=not opens),
            "parent_id": before[-1] if before else None,
            "hop": self._hop,
            "step_type": kind,
            "inputs": inputs,
            "outputs": _outputs(span) if closes else None,
            "metadata": self._metadata(span, before, opens=opens),
            "session_id": span.read.session_id or self._trace.session_id,
            "user_id": span.read.user_id or self._trace.user_id,
            "run_id": self._run_id,
            "program_id": program_id,
            "status": "error" if closes and span.error else "ok",
            "metrics": _metrics(span) if closes else None,
        }
        if opens:
            fields["messages"] = [span.native]
        if created_at := utc_time(time):
            fields["created_at"] = created_at
        try:
            step = js.agent_step(fields)
        except BadRecordError as error:
            reason = f"{span.record.place}span {span.id}: {error}"
            self._steps.append(Skipped(span.record.line, reason))
            return []
        self._hop += 1
        self._steps.append(Parsed(span.record.line, step))
        return [str(step.id)]

    def _metadata(self, span: Span, before: list[str], *, opens: bool) -> JsonObject:
        metadata: JsonObject = {"format": self._trace.format}
        if opens and span.is_empty:
            kind = f"of {span.read.label}" if span.read.label else "without a known attribute"
            metadata[NOT_READ] = [f"span {kind}"]
        if span.notes and opens:
            metadata["note"] = "; ".join(span.notes)
        if len(before) > 1:
            metadata["joins"] = before[:-1]
        if self._hop == 0 and self._trace.extras:
            metadata["trace"] = self._trace.extras
        return metadata


def run_id_of(trace_id: str) -> str:
    """Return the run that a trace becomes."""
    if 0 < len(trace_id) <= LONGEST_RUN_ID and trace_id.isprintable():
        return trace_id
    return f"trace-{js.stable_id(trace_id).hex[:16]}"


def step_id(trace_id: str, span_id: str, *, end: bool = False) -> str:
    """Return the id of the step that a span becomes."""
    return str(js.stable_id("span", trace_id, span_id, *(["end"] if end else [])))


def utc_time(nanoseconds: int | None) -> datetime | None:
    """Return a time in UTC, to the microsecond; None when there is none that a clock shows."""
    if not nanoseconds:
        return None
    try:
        return _EPOCH + timedelta(microseconds=nanoseconds // 1_000)
    except OverflowError:
        return None


def nanoseconds(time: datetime) -> int:
    """Return a time as nanoseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1) * 1_000


def _outputs(span: Span) -> JsonObject | None:
    if span.error is None:
        return span.read.outputs
    return {**(span.read.outputs or {}), "error": span.error}


def _metrics(span: Span) -> JsonObject | None:
    metrics = dict(span.read.metrics)
    if span.start is not None and span.end is not None and span.end >= span.start:
        metrics["duration_ms"] = (span.end - span.start) / 1e6
    return metrics or None


def _placed(spans: dict[str, Span]) -> dict[str, int]:
    """Repair parents that are missing or go in a circle; return each span's depth."""
    depths: dict[str, int] = {}
    for span in sorted(spans.values(), key=lambda s: s.starts_at):
        path: list[Span] = []
        on_path: set[str] = set()
        here = span
        while here.id not in depths:
            path.append(here)
            on_path.add(here.id)
            if here.parent is None:
                break
            if here.parent not in spans:
                here.notes.append(f"its parent span {here.parent:.80} stands elsewhere")
                here.elsewhere, here.parent = here.parent, None
                break
            if here.parent in on_path:
                here.notes.append(f"its parent span {here.parent:.80} stands below it")
                here.parent = None
                break
            here = spans[here.parent]
        for node in reversed(path):
            depths[node.id] = depths[node.parent] + 1 if node.parent is not None else 0
    return depths


def _shown_parents(spans: dict[str, Span], depths: dict[str, int]) -> dict[str, str | None]:
    parents: dict[str, str | None] = {}
    for span_id in sorted(spans, key=lambda node: depths[node]):
        span = spans[span_id]
        parents[span_id] = span.parent
        if span.parent is not None and depths[span_id] > MAX_SPAN_DEPTH:
            parents[span_id] = parents[span.parent]
            span.notes.append(f"{depths[span_id]} levels deep, shown at level {MAX_SPAN_DEPTH}")
    return parents


def _overlapping(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Yield spans, sorted by start, in groups that ran at the same time."""
    group: list[Span] = []
    until = 0
    for span in spans:
        if group and span.starts_at >= until:
            yield group
            group = []
        until = max(until, span.ends_at) if group else span.ends_at
        group.append(span)
    if group:
        yield group
