"""Answers of batches, in: lines of OpenAI's output files and of Anthropic's result files.

Each line is an answer without its question. Lines of an input file, which have the question only,
are read too. A request that failed is named with its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, message
from hybridagi_steps.messages.turns import anthropic_turns
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    objects_in,
    text_in,
    text_of,
    time_of,
    usage_metrics,
    without,
)

_MESSAGES = ("choices", "messages", "output", "input", "content")


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
            [ChatMessage(m, m) for m in objects_in(body, "messages") or [answer]],
            id=text_in(answer, "id"),
            extras=without(line, "result"),
            turns=anthropic_turns,
        )
        return
    own = text_in(body, "id")
    extras = {**without(line, "response", "body"), "body": without(body, *_MESSAGES)}
    created_at = time_of(body, "created", "created_at")
    # Several choices are one conversation each; only the first has the name of the answer.
    for number, messages in enumerate(_choices(body)):
        chat_id = f"{own}@{number}" if own and number else own
        yield Chat(messages, id=chat_id, created_at=created_at, extras=extras)


def _choices(body: JsonObject) -> Iterator[list[ChatMessage]]:
    metrics = usage_metrics(body.get("usage"), model_name=text_in(body, "model"))
    for choice in as_list(body.get("choices")):
        answer = as_object(choice["message"])
        yield [ChatMessage(answer, answer, metrics=metrics)]
    if "choices" not in body:
        question = text_in(body, "input")
        before = [message("user", question, {"input": question})] if question else []
        items = [*objects_in(body, "messages", "input"), *objects_in(body, "output")]
        yield [*before, *(ChatMessage(item, item, metrics=metrics) for item in items)]


FORMAT = ChatFormat(
    "batch_output",
    _chats,
    tuple(
        {"custom_id": ..., **member}
        for member in (
            {"response": ...},
            {"result": {"type": ...}},
            {"body": dict},
            {"params": dict},
        )
    ),
)
