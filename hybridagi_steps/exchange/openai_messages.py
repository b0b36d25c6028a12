"""Chats in OpenAI's message form, in: a list of messages, or `{"messages": […]}`.

A conversation becomes one run. A user's message is a ProgramCall of `chat`; an assistant's tool
calls are Actions with what the tool answered (matched by `tool_call_id`), its text an Action
without tool; the end is a ProgramEnd. Each native message stands unchanged in the `messages` of
one step, its place in `metadata.message_indexes`, so nothing is lost. Ids come from the
conversation's own id, else from its content: importing twice gives the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast
from uuid import UUID, uuid5

from hybridagi_steps.exchange.records import (
    BadRecordError,
    Lines,
    Parsed,
    Skipped,
    agent_step,
    json_record,
)
from hybridagi_steps.records.agent_step import AgentStep

PROGRAM = "chat"
"""Name of the program that an imported conversation is."""

_NAMESPACE = UUID("6d1f0f43-0c39-5b8e-9c0d-6a5d5c1f7a52")
_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
_ID_KEYS = ("id", "conversation_id", "session_id", "thread_id")
_TIME_KEYS = ("created_at", "timestamp", "created", "create_time")
_LONGEST_RUN_ID = 128
_MILLISECONDS_FROM = 1e11
"""Epoch numbers above this are milliseconds: as seconds they would lie after the year 5100."""

Message = dict[str, Any]


@dataclass(slots=True)
class Conversation:
    """Messages in order, and what is known about them as a whole."""

    messages: list[Message]
    key: str | None = None
    """Identifies the conversation; None: its content does."""
    session_id: str | None = None
    run_id: str | None = None
    created_at: datetime | None = None
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """What stood beside the messages."""


def parse(lines: Lines) -> Iterator[Parsed | Skipped]:
    """Yield the steps of conversations, one conversation per line; empty lines are passed over."""
    for number, line in lines:
        if line.strip():
            yield from _record_steps(number, line)


def parse_document(text: bytes) -> Iterator[Parsed | Skipped]:
    """Yield the steps of a whole JSON document: one conversation, or a list of them.

    Raises:
        BadRecordError: The document is not JSON.
    """
    document = json_record(text)
    if isinstance(document, list) and document and not _is_message(cast("list[Any]", document)[0]):
        for place, item in enumerate(cast("list[Any]", document), start=1):
            yield from _value_steps(1, item, f"conversation {place}: ")
        return
    yield from _value_steps(1, document)


def conversation_steps(conversation: Conversation) -> list[AgentStep]:
    """Return the steps of one conversation, in order.

    Raises:
        BadRecordError: A message is not a message; the text names it.
    """
    for place, message in enumerate(conversation.messages):
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise BadRecordError(f"message {place + 1} has the role {role!r:.60}")
    try:
        return _Reader(conversation).read()
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error


def _record_steps(number: int, line: bytes) -> Iterator[Parsed | Skipped]:
    try:
        value = json_record(line)
    except BadRecordError as error:
        yield Skipped(number, str(error))
        return
    yield from _value_steps(number, value)


def _value_steps(number: int, value: Any, prefix: str = "") -> Iterator[Parsed | Skipped]:
    try:
        steps = conversation_steps(_conversation(value))
    except BadRecordError as error:
        yield Skipped(number, prefix + str(error))
        return
    for step in steps:
        yield Parsed(number, step)


def _conversation(value: Any) -> Conversation:
    record = cast("dict[str, Any]", value) if isinstance(value, dict) else {"messages": value}
    messages: Any = record.get("messages")
    if not isinstance(messages, list):
        raise BadRecordError("no list of messages")
    if not messages:
        raise BadRecordError("an empty list of messages")
    for place, message in enumerate(cast("list[Any]", messages), start=1):
        if not isinstance(message, dict):
            raise BadRecordError(f"message {place} is not an object")
    extras = {key: item for key, item in record.items() if key != "messages"}
    own_id = next((extras[key] for key in _ID_KEYS if isinstance(extras.get(key), str)), None)
    session = extras.get("session_id")
    return Conversation(
        messages=cast("list[Message]", messages),
        key=f"conversation:{own_id}" if own_id else None,
        session_id=session if isinstance(session, str) else None,
        run_id=own_id if own_id and len(own_id) <= _LONGEST_RUN_ID else None,
        created_at=_time(extras),
        extras=extras,
    )


class _Reader:
    """Reads one conversation; holds the calls that wait for an answer."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        content = json.dumps(conversation.messages, sort_keys=True)
        digest = sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        self._key = conversation.key or digest
        self._run_id = conversation.run_id or f"chat-{uuid5(_NAMESPACE, self._key).hex[:16]}"
        self._steps: list[AgentStep] = []
        self._parent: str | None = None
        self._joins: list[str] = []
        self._program_id: str | None = None
        self._question = self._answer = ""
        self._held: list[tuple[int, Message]] = []
        self._calls: list[dict[str, Any]] = []

    def read(self) -> list[AgentStep]:
        for index, message in enumerate(self._conversation.messages):
            role = message["role"]
            if role in ("tool", "function"):
                self._tool_result(index, message)
                continue
            self._close_calls()
            if role in ("system", "developer"):
                self._held.append((index, message))
            elif role == "user":
                self._user_message(index, message)
            else:
                self._assistant_message(index, message)
        self._close_calls()
        self._end()
        return self._steps

    def _user_message(self, index: int, message: Message) -> None:
        text = _text(message.get("content"))
        self._question = text
        inputs = {"program": PROGRAM, "purpose": text, "arguments": {"message": text}}
        self._program_id = None
        self._program_id = self._add(f"{index}", "ProgramCall", inputs, None, [(index, message)])

    def _assistant_message(self, index: int, message: Message) -> None:
        text = _text(message.get("content")) or _text(message.get("refusal"))
        if calls := _calls(message):
            for place, call in enumerate(calls):
                inputs = {"purpose": text or self._question, **call["inputs"]}
                native = [(index, message)] if place == 0 else []
                self._calls.append(
                    {**call, "mark": f"{index}.{place}", "inputs": inputs, "native": native}
                )
            return
        self._answer = text
        inputs: dict[str, Any] = {"purpose": self._question, "arguments": {}}
        self._add(f"{index}", "Action", inputs, {"result": text}, [(index, message)])

    def _tool_result(self, index: int, message: Message) -> None:
        call_id, name = message.get("tool_call_id"), message.get("name")
        for call in self._calls:
            same = call["id"] == call_id if call_id else call["inputs"].get("tool") == name
            if same and "result" not in call:
                call["result"] = _result(message.get("content"))
                call["native"].append((index, message))
                return
        self._calls.append(
            {
                "id": None,
                "mark": f"{index}",
                "inputs": {"purpose": self._question, "tool": name or "unknown", "arguments": {}},
                "native": [(index, message)],
                "result": _result(message.get("content")),
                "note": "a result without a call",
            }
        )

    def _close_calls(self) -> None:
        """Turn the calls of the last assistant message into Actions that share one parent."""
        before, made = self._parent, list[str]()
        for call in self._calls:
            self._parent = before
            answered = "result" in call
            note = call.get("note") or ("" if answered else "no result for this call")
            outputs = {"result": call["result"]} if answered else None
            made.append(
                self._add(call["mark"], "Action", call["inputs"], outputs, call["native"], note)
            )
        if made:
            self._parent, self._joins = made[-1], made[:-1]
        self._calls = []

    def _end(self) -> None:
        mark = f"end:{len(self._conversation.messages)}"
        self._add(mark, "ProgramEnd", {"program": PROGRAM}, {"result": self._answer}, [])

    def _add(
        self,
        mark: str,
        kind: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any] | None,
        native: list[tuple[int, Message]],
        note: str = "",
    ) -> str:
        messages = [*self._held, *native]
        self._held = []
        metadata: dict[str, Any] = {
            "format": "openai",
            "message_indexes": [index for index, _ in messages],
        }
        if note:
            metadata["note"] = note
        if self._joins:
            metadata["joins"], self._joins = self._joins, []
        if not self._steps and self._conversation.extras:
            metadata["conversation"] = self._conversation.extras
        fields: dict[str, Any] = {
            "id": self._step_id(mark, native),
            "parent_id": self._parent,
            "hop": len(self._steps),
            "step_type": kind,
            "inputs": inputs,
            "outputs": outputs,
            "metadata": metadata,
            "session_id": self._conversation.session_id,
            "run_id": self._run_id,
            "program_id": self._program_id,
            "status": "partial" if note else "ok",
            "messages": [message for _, message in messages],
        }
        made = next((t for _, message in native if (t := _time(message))), None)
        if created_at := made or self._conversation.created_at:
            fields["created_at"] = created_at
        step = agent_step(fields)
        self._steps.append(step)
        self._parent = str(step.id)
        return self._parent

    def _step_id(self, mark: str, native: list[tuple[int, Message]]) -> str:
        """Name a step by its place; messages that know their own place are named by that."""
        message = native[0][1] if native else {}
        own = [str(message[key]) for key in ("sequence", "id") if message.get(key)]
        return str(uuid5(_NAMESPACE, "\n".join([self._key, mark, *own])))


def _calls(message: Message) -> list[dict[str, Any]]:
    """Return an assistant's calls: id, inputs (tool and arguments)."""
    given: Any = message.get("tool_calls") or []
    if not isinstance(given, list):
        raise BadRecordError("tool_calls is not a list")
    calls = cast("list[Any]", given)
    if legacy := message.get("function_call"):
        calls = [{"function": legacy}, *calls]
    return [_call(call) for call in calls]


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise BadRecordError("a tool call is not an object")
    known = cast("dict[str, Any]", call)
    body: Any = known.get("function") or known.get("custom") or {}
    if not isinstance(body, dict):
        raise BadRecordError("a tool call's function is not an object")
    function = cast("dict[str, Any]", body)
    given = function.get("arguments", function.get("input", {}))
    inputs = {"tool": str(function.get("name") or "unknown"), "arguments": _arguments(given)}
    return {"id": known.get("id"), "inputs": inputs}


def _arguments(given: Any) -> dict[str, Any]:
    """Return a call's arguments as an object; what is none stands under `value`."""
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            return {"value": given}
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {"value": given}


def _result(content: Any) -> Any:
    return _text(content) if content is None or isinstance(content, str | list) else content


def _text(content: Any) -> str:
    """Return the text of a message's content; parts that are no text are named in brackets."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    texts: list[str] = []
    for part in cast("list[Any]", content):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {"text": part}
        text = fields.get("text") or fields.get("refusal")
        texts.append(text if isinstance(text, str) else f"[{fields.get('type', 'part')}]")
    return "\n".join(texts)


def _time(values: dict[str, Any]) -> datetime | None:
    """Return when something was made, if it says so in a way that can be read."""
    value = next((values[key] for key in _TIME_KEYS if values.get(key)), None)
    try:
        if isinstance(value, str):
            read = datetime.fromisoformat(value)
            return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1_000 if value > _MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value
