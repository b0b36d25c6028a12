"""Answers of batches, in: lines of OpenAI's output files and of Anthropic's result files.

Each line is an answer without its question. Lines of an input file, which have the question only,
are read too. A request that failed is named with its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, message, parse_chats, usage_metrics
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.turns import anthropic_turns
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    as_text,
    text_of,
    time_of,
    without,
)

_MESSAGES = ("choices", "messages", "output", "input", "content")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a line of a batch."""
    match value:
        case {"custom_id": _, "response": _} | {"custom_id": _, "result": {"type": _}}:
            return True
        case {"custom_id": _, "body": dict()} | {"custom_id": _, "params": dict()}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of answers, one per record."""
    return parse_chats(records, "batch_output", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    line = as_object(value)
    response, outcome = as_object(line.get("response")), as_object(line.get("result"))
    body = as_object(response.get("body") or line.get("body") or line.get("params"))
    answer = as_object(outcome.get("message"))
    if not (body or answer) or "error" in body:
        error = as_object(body.get("error") or line.get("error") or outcome.get("error"))
        why = text_of(error.get("message")) or outcome.get("type") or response.get("status_code")
        raise BadRecordError(f"request {line['custom_id']!r:.80} of the batch failed: {why}")
    if answer or "params" in line:
        yield Chat(
            [ChatMessage(m, m) for m in as_list(body.get("messages")) or [answer]],
            id=as_text(answer.get("id")),
            extras=without(line, "result"),
            turns=anthropic_turns,
        )
        return
    # Several choices are one conversation each; only the first has the name of the answer.
    for number, messages in enumerate(_choices(body)):
        extras = {**without(line, "response", "body"), "body": without(body, *_MESSAGES)}
        own = as_text(body.get("id"))
        chat_id = f"{own}@{number}" if own and number else own
        yield Chat(messages, id=chat_id, created_at=_created(body), extras=extras)


def _choices(body: JsonObject) -> Iterator[list[ChatMessage]]:
    metrics = usage_metrics(body.get("usage"), model_name=as_text(body.get("model")))
    for choice in as_list(body.get("choices")):
        said = as_object(as_object(choice).get("message"))
        yield [ChatMessage(said, said, metrics=metrics)]
    if "choices" not in body:
        asked = body.get("input")
        before = [message("user", asked, {"input": asked})] if isinstance(asked, str) else []
        items = [*as_list(body.get("messages") or asked), *as_list(body.get("output"))]
        yield [*before, *(ChatMessage(as_object(i), as_object(i), metrics=metrics) for i in items)]


def _created(body: JsonObject) -> Any:
    return time_of(body, "created", "created_at")
