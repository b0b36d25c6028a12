"""Training chats as ShareGPT, LLaMA-Factory, Hermes and Alpaca write them, in.

`conversations` of `from` and `value`, calls as `function_call` or between `<tool_call>` marks;
`instruction`, `input`, `output` with a `history` before them. A result answers the calls before it,
in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import CallQueue, Chat, ChatFormat, ChatMessage, message, result
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
    "system": "system",
    **dict.fromkeys(("function_call", "tool_call"), "call"),
    **dict.fromkeys(("observation", "tool", "tool_response", "function_response"), "tool"),
    "ipython": "tool",
}
_CALL_MARKS = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESULT_MARKS = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_LISTS = ("conversations", "conversation")


def _chats(value: Any) -> Iterator[Chat]:
    row = js.as_object(value)
    system = js.text_of(row.get("system") or row.get("system_prompt"))
    messages = [message("system", system)] if system else []
    messages += _alpaca(row) if "instruction" in row else _sharegpt(row)
    extras = js.without(row, *_LISTS, "instruction", "input", "output", "history")
    yield Chat(messages, id=js.text_in(row, "id"), extras=extras)


def _alpaca(row: JsonObject) -> Iterator[ChatMessage]:
    for pair in js.as_list(row.get("history")):
        for role, text in zip(("user", "assistant"), js.as_list(pair), strict=False):
            yield message(role, text, {"role": role, "content": text})
    native = {key: row[key] for key in ("instruction", "input") if key in row}
    yield message("user", js.joined(*map(js.text_of, native.values())), native)
    yield message("assistant", js.text_of(row["output"]), {"output": row["output"]})


def _sharegpt(row: JsonObject) -> Iterator[ChatMessage]:
    queue = CallQueue()
    for place, item in enumerate(js.objects_in(row, *_LISTS)):
        speaker = item.get("from", item.get("role"))
        text = js.text_of(item.get("value", item.get("content")))
        role = _ROLES.get(str(speaker), speaker)
        if role == "tool":
            native: Message | None = item
            for answer in _RESULT_MARKS.findall(text) or [text]:
                yield result(queue.answered(), answer, native)
                native = None
            continue
        bodies = [text] if role == "call" else _CALL_MARKS.findall(text)
        if not bodies:
            yield message(role, text, item)
            continue
        queue = CallQueue()  # what no result answered before is never answered
        pairs = [call for body in bodies for call in _calls(js.json_or_text(body))]
        calls = [queue.call(*call, f"call_{place}_{n}") for n, call in enumerate(pairs)]
        words = "" if role == "call" else _CALL_MARKS.sub("", text).strip()
        yield message("assistant", words or None, item, tool_calls=calls)


def _calls(body: Any) -> Iterator[tuple[object, object]]:
    """Yield names and arguments."""
    for item in js.as_list(body) or [body]:
        fields = js.as_object(js.as_object(item).get("function") or item)
        arguments = fields.get("arguments", fields.get("parameters", {} if fields else item))
        yield fields.get("name", fields.get("action", "unknown")), arguments


FORMAT = ChatFormat(
    "sharegpt",
    _chats,
    ({"instruction": str, "output": ...}, *({name: [dict]} for name in _LISTS)),
)
