"""Training chats as ShareGPT, LLaMA-Factory, Hermes and Alpaca write them, in.

`conversations` of `from` and `value`, calls as `function_call` or between `<tool_call>` marks;
`instruction`, `input`, `output` with a `history` before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, message, parse_chats
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    as_text,
    json_or_text,
    text_of,
    without,
)

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "function_call": "call",
    "tool_call": "call",
    "observation": "tool",
    "tool": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
_CALL_MARKS = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESULT_MARKS = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_LISTS = ("conversations", "conversation")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a training chat."""
    match value:
        case {"instruction": str(), "output": _}:
            return True
        case {"conversations": [dict(), *_]} | {"conversation": [dict(), *_]}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of chats, one per record."""
    return parse_chats(records, "sharegpt", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    row = as_object(value)
    system = text_of(row.get("system") or row.get("system_prompt"))
    messages = [message("system", system)] if system else []
    messages += _alpaca(row) if "instruction" in row else _ShareGpt().messages(row)
    own = row.get("id")
    extras = without(row, *_LISTS, "instruction", "input", "output", "history")
    yield Chat(messages, id=as_text(own) or None, extras=extras)


def _alpaca(row: JsonObject) -> Iterator[ChatMessage]:
    for pair in as_list(row.get("history")):
        for role, text in zip(("user", "assistant"), as_list(pair), strict=False):
            yield message(role, text, {"role": role, "content": text})
    question = "\n".join(filter(None, map(text_of, (row.get("instruction"), row.get("input")))))
    native = {key: row[key] for key in ("instruction", "input") if key in row}
    yield message("user", question, native)
    yield message("assistant", text_of(row["output"]), {"output": row["output"]})


class _ShareGpt:
    """Reads one chat; a result answers the calls before it, in their order."""

    def __init__(self) -> None:
        self._calls: list[str] = []

    def messages(self, row: JsonObject) -> Iterator[ChatMessage]:
        items = as_list(row.get("conversations") or row.get("conversation"))
        for place, item in enumerate(items):
            yield from self._read(as_object(item), place)

    def _read(self, item: Message, place: int) -> Iterator[ChatMessage]:
        speaker = item.get("from", item.get("role"))
        text = text_of(item.get("value", item.get("content")))
        role = _ROLES.get(str(speaker))
        if role is None:
            raise BadRecordError(f"message {place + 1} is from {speaker!r:.60}")
        if role == "tool":
            native: Message | None = item
            for result in _RESULT_MARKS.findall(text) or [text]:
                call_id = self._calls.pop(0) if self._calls else None
                yield message("tool", result, native, tool_call_id=call_id)
                native = None
            return
        said = [text] if role == "call" else _CALL_MARKS.findall(text)
        calls = [_call(body) for given in said for body in _bodies(given)]
        if role == "call" or calls:
            words = "" if role == "call" else _CALL_MARKS.sub("", text).strip()
            self._calls = [f"call_{place}_{number}" for number in range(len(calls))]
            made = [{**call, "id": i} for call, i in zip(calls, self._calls, strict=True)]
            yield message("assistant", words or None, item, tool_calls=made)
        else:
            yield message(role, text, item)


def _bodies(text: str) -> list[Any]:
    body = json_or_text(text)
    return as_list(body) or [body]


def _call(body: Any) -> JsonObject:
    fields = as_object(as_object(body).get("function") or body)
    arguments = fields.get("arguments", fields.get("parameters", {} if fields else body))
    return function_call("", fields.get("name", fields.get("action", "unknown")), arguments)
