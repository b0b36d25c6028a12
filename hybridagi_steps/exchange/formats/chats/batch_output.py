"""Answers of batches, in: lines of OpenAI's output files and of Anthropic's result files.

Each line is an answer without its question. Lines of an input file, which have the question only,
are read too. A request that failed is named with its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, message
from hybridagi_steps.messages.turns import anthropic_turns
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

_MESSAGES = ("choices", "messages", "output", "input", "content")


def _chats(value: Any) -> Iterator[Chat]:
    line = js.as_object(value)
    response, outcome = js.as_object(line.get("response")), js.as_object(line.get("result"))
    body = js.as_object(response.get("body") or line.get("body") or line.get("params"))
    answer = js.as_object(outcome.get("message"))
    if not (body or answer) or "error" in body:
        error = js.as_object(body.get("error") or line.get("error") or outcome.get("error"))
        why = js.text_of(error.get("message")) or outcome.get("type") or response.get("status_code")
        raise BadRecordError(f"request {line['custom_id']!r:.80} of the batch failed: {why}")
    if answer or "params" in line:
        yield Chat(
            [ChatMessage(m, m) for m in js.objects_in(body, "messages") or [answer]],
            id=js.text_in(answer, "id"),
            extras=js.without(line, "result"),
            turns=anthropic_turns,
        )
        return
    own = js.text_in(body, "id")
    extras = {**js.without(line, "response", "body"), "body": js.without(body, *_MESSAGES)}
    created_at = js.time_of(body, "created", "created_at")
    # Several choices are one conversation each; only the first has the name of the answer.
    for number, messages in enumerate(_choices(body)):
        chat_id = f"{own}@{number}" if own and number else own
        yield Chat(messages, id=chat_id, created_at=created_at, extras=extras)


def _choices(body: JsonObject) -> Iterator[list[ChatMessage]]:
    metrics = js.usage_metrics(body.get("usage"), model_name=js.text_in(body, "model"))
    for choice in js.as_list(body.get("choices")):
        answer = js.as_object(choice["message"])
        yield [ChatMessage(answer, answer, metrics=metrics)]
    if "choices" not in body:
        question = js.text_in(body, "input")
        before = [message("user", question, {"input": question})] if question else []
        items = [*js.objects_in(body, "messages", "input"), *js.objects_in(body, "output")]
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
