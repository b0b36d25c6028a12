"""Own JSONL: one AgentStep per line, with everything it holds.

Reading knows two kinds of lines: steps (an object with `step_type`; keys that are no field of a
step are kept on it) and messages of a session (an object with `role`), which become the steps that
the chat importer makes of them, one conversation per stretch of lines with the same session.
Writing is one line per step, with `vector` only on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from hybridagi_steps.exchange.openai_messages import Conversation, conversation_steps
from hybridagi_steps.exchange.records import (
    BadRecordError,
    Lines,
    Parsed,
    Skipped,
    agent_step,
    json_record,
)
from hybridagi_steps.records.agent_step import AgentStep


def parse(lines: Lines) -> Iterator[Parsed | Skipped]:
    """Yield the steps on numbered lines; empty lines are passed over."""
    chat: list[dict[str, Any]] = []
    chat_line = 0
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = _object(line)
            if "step_type" not in record and "role" in record:
                if chat and record.get("session_id") != chat[0].get("session_id"):
                    yield from _chat_steps(chat, chat_line)
                    chat = []
                chat_line = chat_line if chat else number
                chat.append(record)
                continue
            step = agent_step(record)
        except BadRecordError as error:
            yield Skipped(number, str(error))
            continue
        yield Parsed(number, step)
    if chat:
        yield from _chat_steps(chat, chat_line)


def step_line(step: AgentStep, *, vectors: bool = False) -> bytes:
    """Return one step as a line of JSON, newline included."""
    left_out = None if vectors else {"vector"}
    return step.model_dump_json(exclude=left_out).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    record = json_record(line)
    if not isinstance(record, dict):
        raise BadRecordError(f"a step is an object, this is a JSON {type(record).__name__}")
    found = cast("dict[str, Any]", record)
    if "step_type" not in found and "role" not in found:
        raise BadRecordError("neither a step (no step_type) nor a message (no role)")
    return found


def _chat_steps(messages: list[dict[str, Any]], line: int) -> Iterator[Parsed | Skipped]:
    session = messages[0].get("session_id")
    key = f"session:{session}" if session else None
    conversation = Conversation(messages, key=key, session_id=str(session) if session else None)
    try:
        yield from [Parsed(line, step) for step in conversation_steps(conversation)]
    except BadRecordError as error:
        yield Skipped(line, str(error))
