"""Runs of LangSmith, in: as its client and its bulk export write them, nested or one per record.

A run becomes a span with the GenAI names, and is read as one: model calls with their messages,
tools with arguments and result, chains as programs. The run itself stands in an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange import span_dialects as names
from hybridagi_steps.exchange.formats import otlp
from hybridagi_steps.exchange.records import Entry, Record, Records, Skipped
from hybridagi_steps.messages.turns import is_langchain_message, langchain_turns
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_json,
    as_list,
    as_object,
    as_text,
    first_number,
    json_or_text,
    known_fields,
    text_of,
    time_of,
    without,
)

_OPERATIONS = {"llm": names.CHAT, "tool": names.EXECUTE_TOOL, "retriever": names.EXECUTE_TOOL}
"""Operations of the types of run; every other one is a program."""
_SESSIONS = ("session_id", "thread_id", "conversation_id")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a run."""
    match value:
        case {"run_type": str(), "inputs": _, "id": _}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the traces of runs."""
    return otlp.parse(_requests(records))


def _requests(records: Records) -> Iterator[Record | Skipped]:
    for record in records:
        if isinstance(record, Skipped):
            yield record
            continue
        spans = list(_spans(as_object(record.value)))
        if not spans:
            yield Skipped(record.line, f"{record.place}no run of LangSmith: no run_type")
            continue
        yield record._replace(value={"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


def _spans(run: JsonObject, parent: str | None = None, trace: str | None = None) -> Iterator[Any]:
    if not recognises(run):
        return
    own, kind = str(run["id"]), str(run["run_type"])
    trace = as_text(run.get("trace_id")) or trace or own
    failed = run.get("error")
    yield {
        "traceId": trace,
        "spanId": own,
        **known_fields(parentSpanId=as_text(run.get("parent_run_id")) or parent),
        "name": str(run.get("name") or kind),
        **_times(run),
        "attributes": _attributes(run, kind),
        "status": {"code": 2, "message": text_of(failed)} if failed else {},
    }
    for child in as_list(run.get("child_runs")):
        yield from _spans(as_object(child), own, trace)


def _times(run: JsonObject) -> JsonObject:
    times = {"startTimeUnixNano": "start_time", "endTimeUnixNano": "end_time"}
    read = {name: time_of(run, key) for name, key in times.items()}
    return {name: str(int(at.timestamp() * 1e6) * 1_000) for name, at in read.items() if at}


def _attributes(run: JsonObject, kind: str) -> JsonObject:
    inputs, outputs = _packed(run.get("inputs")), _packed(run.get("outputs"))
    extra = as_object(run.get("extra"))
    about = as_object(extra.get("metadata"))
    usage = as_object(outputs.get("usage_metadata")) or run
    operation = _OPERATIONS.get(kind, names.INVOKE_AGENT)
    found = known_fields(
        **{
            names.OPERATION: operation,
            names.SESSIONS[0]: next((as_text(about[k]) for k in _SESSIONS if k in about), None),
            names.MODELS[1]: as_text(about.get("ls_model_name")),
            names.PROVIDERS[0]: as_text(about.get("ls_provider")),
            names.INPUT_TOKENS[0]: first_number(usage, "input_tokens", "prompt_tokens"),
            names.OUTPUT_TOKENS[0]: first_number(usage, "output_tokens", "completion_tokens"),
            names.USERS[0]: as_text(about.get("user_id")),
        }
    )
    if kind in ("tool", "retriever"):
        arguments = json_or_text(inputs.get("input", inputs))
        answer = outputs.get("output", outputs.get("documents", outputs))
        found |= {names.TOOL_NAMES[0]: run.get("name"), names.ARGUMENTS[0]: as_json(arguments)}
        found |= {names.RESULT[0]: _content(answer)} if run.get("outputs") else {}
    else:
        found[names.NAMES[0]] = str(run.get("name") or kind)
        if asked := _messages(inputs):
            found[names.INPUT_MESSAGES[0]] = as_json(asked)
        if said := _messages(outputs):
            found[names.OUTPUT_MESSAGES[0]] = as_json(said if kind == "llm" else said[-1:])
    rest = without(run, "inputs", "outputs", "child_runs", "events", "serialized")
    return {**found, "langsmith.run": as_json(rest)}


def _packed(value: Any) -> JsonObject:
    return as_object(json_or_text(value))


def _content(answer: Any) -> str:
    """Return what a tool answered, of a message what it says."""
    fields = as_object(answer)
    inner = as_object(fields.get("kwargs")) or fields
    return text_of(inner.get("content", answer))


def _messages(given: JsonObject) -> list[JsonObject]:
    """Return the messages of inputs or outputs; a plain text is one message."""
    if generations := as_list(given.get("generations")):
        first = as_list(generations[0]) or generations
        answers = [as_object(item).get("message") or as_object(item) for item in first[:1]]
        return [_message(as_object(answer), "assistant") for answer in answers]
    if choices := as_list(given.get("choices")):
        return [as_object(as_object(choices[0]).get("message"))]
    messages = as_list(given.get("messages"))
    messages = as_list(messages[0]) if messages and isinstance(messages[0], list) else messages
    if messages:
        return [_message(as_object(message), "user") for message in messages]
    if "content" in given:
        return [_message(given, "assistant")]
    told = [v for v in given.values() if isinstance(v, str)]
    role = "assistant" if "output" in given or "answer" in given else "user"
    return [{"role": role, "content": told[0]}] if told else []


def _message(native: JsonObject, role: str) -> JsonObject:
    """Return a message of LangChain's or OpenAI's form in OpenAI's."""
    if is_langchain_message(native):
        try:
            return langchain_turns([native])[0].view
        except BadRecordError:
            pass  # a role that LangChain does not have: its text is told below
    return {
        "role": native.get("role") or role,
        "content": native.get("content", native.get("text")),
    }
