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

import orjson
from pydantic import ValidationError

from hybridagi_steps.exchange import records as entries
from hybridagi_steps.exchange.records import Entry, Parsed, Record, Records, Skipped
from hybridagi_steps.messages.conversation import Conversation, content_key
from hybridagi_steps.messages.response_items import is_item
from hybridagi_steps.messages.turns import Message, openai_turns
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject
from hybridagi_steps.records.json_values import first_fault
from hybridagi_steps.records.message import Step


def recognises(value: object) -> bool:
    """Whether a record is a step, or a message of a session."""
    record = js.as_object(value)
    if "step_type" in record or is_session_line(record):
        return True
    return ("role" in record and "messages" not in record) or is_item(value)


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of records, and the messages of sessions that we wrote."""
    chat: list[Record] = []
    nameless: Counter[str] = Counter()
    scores, session_id = entries.RunScoresRead(), None
    for record in records:
        if isinstance(record, Skipped):
            yield record
            continue
        try:
            fields = _fields(record.value)
            if is_session_line(fields):
                for entry in _session_line(record.line, fields, session_id):
                    session_id = entry.session_id
                    yield entry
                continue
            if "step_type" not in fields:
                if chat and fields.get("session_id") != chat[0].value.get("session_id"):
                    yield from _chat_steps(chat)
                    chat = []
                chat.append(record)
                continue
            if "id" not in fields:
                fields = _named(fields, nameless)
            fields, embedder = entries.origin_of(fields)
            step = js.agent_step(scores.without(record.line, fields))
        except (BadRecordError, RecursionError) as error:
            yield entries.refused(record, error)
            continue
        place = None if session_id is None else entries.SessionPlace([], session_id)
        yield Parsed(record.line, step, place, embedder)
    if chat:
        yield from _chat_steps(chat)
    yield from scores.scores.values()


def step_line(step: AgentStep, *, vectors: bool = False) -> bytes:
    """Return one step as a line of JSON, newline included."""
    left_out = None if vectors else {"vector"}
    return step.model_dump_json(exclude=left_out).encode() + b"\n"


def _fields(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise BadRecordError(f"a step is an object, this is a JSON {type(value).__name__}")
    found = js.as_object(value)
    if not found.keys() & {"step_type", "role", RECORD} and not is_item(found):
        raise BadRecordError("neither a step (no step_type) nor a message (no role)")
    return found


def _named(fields: JsonObject, nameless: Counter[str]) -> JsonObject:
    """Give a step without an id the one that its content and its place among equals give."""
    key = content_key(fields)
    nameless[key] += 1
    return {**fields, "id": str(js.stable_id("step", key, str(nameless[key])))}


def _chat_steps(chat: list[Record]) -> Iterator[Parsed | Skipped]:
    return entries.read_each(
        chat[:1], lambda record: entries.record_steps(record, _conversation(chat))
    )


def _conversation(chat: list[Record]) -> Conversation:
    messages: list[Message] = [record.value for record in chat]
    session = messages[0].get("session_id")
    return Conversation(
        openai_turns(messages),
        key=f"session:{session}" if session else content_key(messages),
        session_id=str(session) if session else None,
        of_steps=not any(map(is_item, messages)),
    )


RECORD = "record"
"""Key by which a line says that it is a session's header or message."""


def is_session_line(fields: JsonObject) -> bool:
    """Whether a record is a session's header or message, as we write them."""
    return fields.get(RECORD) in ("session", "message")


def header_line(session_id: str, forks: str | None = None, last: Step | None = None) -> bytes:
    """Return the line that begins a session; `last` is the last message that it shares."""
    header: JsonObject = {RECORD: "session", "session_id": session_id}
    if last is not None:
        header |= {"forks": forks, "shares": last.sequence, "last": last.id}
    return orjson.dumps(header) + b"\n"


def message_line(message: Step) -> bytes:
    """Return the line of a message."""
    fields = message.model_dump(mode="json", exclude_none=True)
    return orjson.dumps({RECORD: "message", **fields}) + b"\n"


def _session_line(
    line: int, fields: JsonObject, inside: str | None
) -> Iterator[entries.ParsedMessages]:
    """Yield a session's header or message; `inside` is the session that the line before is of."""
    if fields[RECORD] == "session":
        yield _header(line, fields)
        return
    message = _message(fields)
    if message.session_id != inside:
        yield entries.ParsedMessages(line, message.session_id, [])  # its header is missing
    yield entries.ParsedMessages(line, message.session_id, [message])


def _header(line: int, fields: JsonObject) -> entries.ParsedMessages:
    session_id = fields.get("session_id")
    if not isinstance(session_id, str) or not session_id:
        raise BadRecordError("a session without a session_id")
    if not fields.keys() & {"forks", "shares", "last"}:
        return entries.ParsedMessages(line, session_id, [])
    shares, last = js.whole_number(fields.get("shares")), fields.get("last")
    if not shares or not isinstance(last, str):
        raise BadRecordError("a fork without the number of messages it shares, or the last's id")
    return entries.ParsedMessages(line, session_id, [], shares, last)


def _message(fields: JsonObject) -> Step:
    try:
        return Step.model_validate({name: fields[name] for name in fields if name != RECORD})
    except ValidationError as error:
        raise BadRecordError(f"a message whose {first_fault(error)}") from error
