"""Own JSONL: one AgentStep or one message of a session per line, with everything it holds.

Reading knows steps (an object with `step_type`; keys that are no field of a step are kept on it)
and what we write of sessions (an object with `record`). Messages that others
wrote (an object with `role`) become the steps that the chat importer makes of them, one
conversation per stretch of records with the same session. Writing is one line per step, with
`vector` only on request, and then with the name of the embedder that made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.conversation import (
    Conversation,
    Message,
    content_key,
    record_steps,
)
from hybridagi_steps.exchange.formats.openai import turns
from hybridagi_steps.exchange.origins import origin_of
from hybridagi_steps.exchange.records import (
    BadRecordError,
    Entry,
    Parsed,
    Record,
    Records,
    Skipped,
    agent_step,
    as_object,
    read_each,
    refused,
    stable_id,
)
from hybridagi_steps.exchange.scores_of_runs import RunScoresRead
from hybridagi_steps.exchange.session_lines import RECORD, SessionReader, is_session_line
from hybridagi_steps.records.agent_step import AgentStep


def recognises(value: Any) -> bool:
    """Whether a record is a step, or a message of a session."""
    record = as_object(value)
    if "step_type" in record or is_session_line(record):
        return True
    return "role" in record and "messages" not in record


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of records, and the messages of sessions that we wrote."""
    chat: list[Record] = []
    nameless: Counter[str] = Counter()
    sessions, scores = SessionReader(), RunScoresRead()
    for record in records:
        if isinstance(record, Skipped):
            yield from sessions.messages_read()
            yield record
            continue
        try:
            fields = _fields(record.value)
            if is_session_line(fields):
                yield from sessions.read(record.line, fields)
                continue
            if "step_type" not in fields:
                if chat and fields.get("session_id") != chat[0].value.get("session_id"):
                    yield from _chat_steps(chat)
                    chat = []
                chat.append(record)
                continue
            if "id" not in fields:
                fields = _named(fields, nameless)
            fields, embedder = origin_of(fields)
            step = agent_step(scores.without(record.line, fields))
        except BadRecordError as error:
            yield refused(record, error)
            continue
        yield from sessions.messages_read()
        yield Parsed(record.line, step, sessions.place, embedder)
    yield from sessions.messages_read()
    if chat:
        yield from _chat_steps(chat)
    yield from scores.read()


def step_line(step: AgentStep, *, vectors: bool = False) -> bytes:
    """Return one step as a line of JSON, newline included."""
    left_out = None if vectors else {"vector"}
    return step.model_dump_json(exclude=left_out).encode() + b"\n"


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRecordError(f"a step is an object, this is a JSON {type(value).__name__}")
    found = as_object(value)
    if not found.keys() & {"step_type", "role", RECORD}:
        raise BadRecordError("neither a step (no step_type) nor a message (no role)")
    return found


def _named(fields: dict[str, Any], nameless: Counter[str]) -> dict[str, Any]:
    """Give a step without an id the one that its content and its place among equals give."""
    try:
        key = content_key(fields)
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error
    nameless[key] += 1
    return {**fields, "id": str(stable_id("step", key, str(nameless[key])))}


def _chat_steps(chat: list[Record]) -> Iterator[Parsed | Skipped]:
    return read_each(chat[:1], lambda record: record_steps(record, _conversation(chat)))


def _conversation(chat: list[Record]) -> Conversation:
    messages: list[Message] = [record.value for record in chat]
    session = messages[0].get("session_id")
    return Conversation(
        turns(messages),
        key=f"session:{session}" if session else content_key(messages),
        session_id=str(session) if session else None,
        of_steps=True,
    )
