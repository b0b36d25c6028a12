"""Runs of LangSmith, in: as its client and its bulk export write them, nested or one per record.

A run becomes a span with the GenAI names, and is read as one: model calls with their messages,
tools with arguments and result, chains as programs. The run itself stands in an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange import span_dialects as names
from hybridagi_steps.exchange.chats import has_shape
from hybridagi_steps.exchange.formats import otlp
from hybridagi_steps.exchange.records import Entry, Record, Records, Skipped
from hybridagi_steps.messages.turns import is_langchain_message, langchain_turns
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

_OPERATIONS = {"llm": names.CHAT, "tool": names.EXECUTE_TOOL, "retriever": names.EXECUTE_TOOL}
"""Operations of the types of run; every other one is a program."""
_LONG = ("inputs", "outputs", "child_runs", "events", "serialized")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a run."""
    return has_shape(value, {"run_type": str, "inputs": ..., "id": ...})


def parse(records: Records) -> Iterator[Entry]:
    """Yield the traces of runs."""
    return otlp.parse(map(_request, records))


def _request(record: Record | Skipped) -> Record | Skipped:
    spans = [] if isinstance(record, Skipped) else list(_spans(js.as_object(record.value)))
    if isinstance(record, Skipped):
        return record
    if not spans:
        return Skipped(record.line, f"{record.place}no run of LangSmith: no run_type")
    return record._replace(value={"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


def _spans(run: JsonObject, parent: str | None = None, trace: str | None = None) -> Iterator[Any]:
    if not recognises(run):
        return
    own, error = str(run["id"]), run.get("error")
    trace = js.text_in(run, "trace_id") or trace or own
    yield {
        "traceId": trace,
        "spanId": own,
        "parentSpanId": js.text_in(run, "parent_run_id") or parent,
        "name": str(run.get("name") or run["run_type"]),
        **{key: run[key] for key in ("start_time", "end_time") if run.get(key)},
        "attributes": _attributes(run),
        "status": {"code": 2, "message": js.text_of(error)} if error else {},
    }
    for child in js.objects_in(run, "child_runs"):
        yield from _spans(child, own, trace)


def _attributes(run: JsonObject) -> JsonObject:
    kind, name = str(run["run_type"]), run.get("name")
    inputs, outputs = (js.as_object(js.json_or_text(run.get(key))) for key in ("inputs", "outputs"))
    about = js.as_object(js.as_object(run.get("extra")).get("metadata"))
    usage = js.usage_metrics(outputs.get("usage_metadata") or run) or {}
    read: JsonObject = {
        names.OPERATION: _OPERATIONS.get(kind, names.INVOKE_AGENT),
        names.SESSIONS[0]: js.text_in(about, "session_id", "thread_id", "conversation_id"),
        names.MODELS[1]: js.text_in(about, "ls_model_name"),
        names.PROVIDERS[0]: js.text_in(about, "ls_provider"),
        names.USERS[0]: js.text_in(about, "user_id"),
        **{names.COUNTS[key][0]: usage.get(key) for key in ("input_tokens", "output_tokens")},
        "langsmith.run": js.as_json(js.without(run, *_LONG)),
    }
    if kind in ("tool", "retriever"):
        arguments = js.json_or_text(inputs.get("input", inputs))
        answer = outputs.get("output", outputs.get("documents", outputs))
        read |= {names.TOOL_NAMES[0]: name, names.ARGUMENTS[0]: js.as_json(arguments)}
        read[names.RESULT[0]] = _content(answer) if run.get("outputs") else None
    else:
        answers = _messages(outputs)
        read[names.NAMES[0]] = str(name or kind)
        read[names.INPUT_MESSAGES[0]] = _messages(inputs) or None
        read[names.OUTPUT_MESSAGES[0]] = (answers if kind == "llm" else answers[-1:]) or None
    return js.known_fields(**read)


def _content(answer: Any) -> str:
    """Return what a tool answered, of a message what it says."""
    fields = js.as_object(answer)
    inner = js.as_object(fields.get("kwargs")) or fields
    return js.text_of(inner.get("content", answer))


def _messages(fields: JsonObject) -> list[JsonObject]:
    """Return the messages of inputs or outputs; a plain text is one message."""
    if generations := js.as_list(fields.get("generations")):
        first = js.as_object((js.as_list(generations[0]) or generations)[0])
        return [_message(js.as_object(first.get("message")) or first, "assistant")]
    if choices := js.objects_in(fields, "choices"):
        return [js.as_object(choices[0].get("message"))]
    messages = js.as_list(fields.get("messages"))
    messages = js.as_list(messages[0]) if messages and isinstance(messages[0], list) else messages
    if messages:
        return [_message(js.as_object(message), "user") for message in messages]
    if "content" in fields:
        return [_message(fields, "assistant")]
    texts = [value for value in fields.values() if isinstance(value, str)]
    role = "assistant" if fields.keys() & {"output", "answer"} else "user"
    return [{"role": role, "content": text} for text in texts[:1]]


def _message(native: JsonObject, role: str) -> JsonObject:
    """Return a message of LangChain's or OpenAI's form in OpenAI's."""
    if is_langchain_message(native):
        try:
            return langchain_turns([native])[0].view
        except BadRecordError:
            pass  # a role that LangChain does not have: its text is told below
    content = native.get("content", native.get("text"))
    return {"role": native.get("role") or role, "content": content}
