"""Messages of OpenAI's and Anthropic's form, in: each becomes the Steps that say the same.

Which form a message has is seen from the message, so both may stand in one list. Calls come out in
OpenAI's form with ids that are unique in the list; a result follows its call, not the bare id,
because agents repeat ids from turn to turn. Content parts are kept as they came; what belongs to
neither form stays in `metadata.native`. What is no message is refused with its place and field,
where `turns`, which reads whatever a file holds, makes the best of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, cast

from hybridagi_steps.errors import MessageError
from hybridagi_steps.messages.agent_steps import IS_ERROR
from hybridagi_steps.messages.conversation import NOT_READ
from hybridagi_steps.messages.parts import (
    OpenCalls,
    cache_mark,
    call_id,
    function_call,
    json_text,
)
from hybridagi_steps.messages.provider_shapes import THINKING_BLOCKS, shaped, thinking_text
from hybridagi_steps.messages.response_items import is_item
from hybridagi_steps.messages.turns import openai_turns
from hybridagi_steps.messages.units import THINKING
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    as_text,
    time_of,
    without,
)
from hybridagi_steps.records.message import ROLES, MessageRole, Step, new_id, utc_now

NATIVE = "native"
"""Metadata key: what a message held beside its role, content and calls."""

_READ = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")

Message = Mapping[str, Any]
Parts = list[JsonObject]


def from_messages(
    messages: Iterable[Message] | Message, session_id: str | None = None
) -> list[Step]:
    """Return provider messages as Steps, without sequences: the store assigns those.

    Args:
        messages: A list of messages, or a request that holds one under `messages`, and perhaps
            Anthropic's `system`.
        session_id: The session they will belong to; by default a new one.

    Raises:
        MessageError: Something is no message; the text names its place and field.
    """
    reader, first = _Reader(session_id or str(new_id())), list[tuple[int, Message]]()
    if isinstance(messages, Mapping):
        request = cast("JsonObject", messages)
        if request.get("system"):
            first = [(0, {"role": "system", "content": request["system"]})]
        if "messages" not in request:
            raise MessageError(
                "messages are a list, or a request that holds one under 'messages', not a dict "
                f"with {', '.join(map(repr, request)) or 'nothing'}; put one message in a list."
            )
        messages = cast("Iterable[Message]", request["messages"])
    if isinstance(messages, str) or not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise MessageError(f"messages are a list, not {type(messages).__name__}.")
    for place, message in (*first, *enumerate(_without_items(messages), start=1)):
        try:
            reader.read(place, message)
        except BadRecordError as error:
            raise MessageError(f"message {place}: {error}") from error
    return reader.steps


def _without_items(messages: Iterable[Message]) -> Iterable[Message]:
    """Return items of the Responses API as the messages that they make up, if there are any."""
    given = list(messages)
    if not any(map(is_item, given)):
        return given
    try:
        turns = openai_turns([dict(item) for item in given])
    except BadRecordError as error:
        raise MessageError(str(error)) from error
    return [{**turn.view, **({NOT_READ: [*turn.unread]} if turn.unread else {})} for turn in turns]


class _Reader:
    """Reads messages in order; knows which calls wait for a result."""

    def __init__(self, session_id: str) -> None:
        self.steps: list[Step] = []
        self._session_id = session_id
        self._used: set[str] = set()
        self._open: OpenCalls[str] = OpenCalls()
        self._nameless: list[tuple[object, str]] = []
        """Calls without an id that wait: the tool, and the id that the call has now."""

    def read(self, place: int, message: object) -> None:
        if not isinstance(message, Mapping):
            raise BadRecordError(f"an object is wanted, not {_kind(message)}.")
        given = dict(cast("Message", message))
        if not isinstance(given.get("role"), str):
            raise BadRecordError(f"role: {given.get('role')!r:.60} is not {', '.join(ROLES)}.")
        if _is_divided(given):
            for turn in openai_turns([given]):
                self.read(place, turn.view)
            return
        fields, unread = shaped(given)
        role = ROLES.get(fields["role"])
        if role is None and fields.get("content") is None:
            raise BadRecordError(f"role: {given['role']!r:.60} is not {', '.join(ROLES)}.")
        fields = {**fields, **({NOT_READ: [*unread]} if unread else {})}
        content = _content(fields.get("content"))
        if role is MessageRole.ASSISTANT:
            self._assistant(place, fields, content)
        elif role is MessageRole.TOOL:
            answered = self._answered_call(place, fields)
            said = "" if content is None else content
            self._add(role, fields, said, _native(fields), tool_call_id=answered)
        elif role is None:
            metadata = _native(fields) | {"role": fields["role"]}
            self._add(MessageRole.TOOL, {"name": fields["role"], **fields}, content, metadata)
        else:
            self._other(place, role, fields, content)

    def _assistant(self, place: int, fields: JsonObject, content: str | Parts | None) -> None:
        calls, metadata = self._calls(place, fields), _native(fields)
        if isinstance(content, list):
            calls += [
                self._call(place, number, block.get("id"), block.get("name"), block.get("input"))
                | cache_mark(block)
                for number, block in enumerate(content)
                if block["type"] == "tool_use"
            ]
            thinking, content = _divided(content, THINKING_BLOCKS)
            if thinking:
                metadata[THINKING] = thinking
            content = _plain(_divided(content, ("tool_use",))[1])
        if content is None:
            content = as_text(fields.get("refusal"))
        self._add(
            MessageRole.ASSISTANT,
            fields,
            content if content or not calls else None,
            metadata,
            tool_calls=calls or None,
            reasoning_content=_reasoning(fields, metadata),
        )

    def _answered_call(self, place: int, fields: JsonObject) -> str:
        """Return the call that a tool's message answers: by its id, else by the tool's name."""
        given, name = fields.get("tool_call_id"), fields.get("name")
        by_id = given is not None or not (name or self._nameless)
        if by_id and fields.get("role") != "function":
            return self._answered("tool_call_id", given)
        found = next((call for call in self._nameless if not name or call[0] == name), None)
        if found is None:
            return call_id(place, name)
        self._nameless.remove(found)
        return found[1]

    def _answered(self, field: str, given: object) -> str:
        """Return the id of the call that a result answers; its own if none waits."""
        if not isinstance(given, str) or not given:
            raise BadRecordError(f"{field}: {given!r:.60} is no call's id.")
        return self._open.answer(given) or given

    def _other(
        self, place: int, role: MessageRole, fields: JsonObject, content: str | Parts | None
    ) -> None:
        if content is None:
            raise BadRecordError("content: missing.")
        metadata = _native(fields)
        if fields["role"] == "developer":
            metadata["role"] = "developer"
        if isinstance(content, list):
            results, rest = _divided(content, ("tool_result",))
            for block in results:
                self._block_result(place, without(fields, *_READ), block)
            if results and not rest:
                return
            content = _plain(rest)
        self._add(role, fields, content or "", metadata)

    def _block_result(self, place: int, fields: JsonObject, block: JsonObject) -> None:
        given = {"tool_call_id": block.get("tool_use_id"), "name": block.get("name")}
        if given["tool_call_id"] is None and not given["name"]:
            raise BadRecordError(f"tool_use_id: {None!r} is no call's id.")
        answered = self._answered_call(place, given)
        content = _content(block.get("content"))
        said = _plain(content) if isinstance(content, list) else content
        metadata = {IS_ERROR: True} if block.get("is_error") is True else {}
        metadata |= cache_mark(block)
        self._add(MessageRole.TOOL, fields, said or "", metadata, tool_call_id=answered)

    def _calls(self, place: int, fields: JsonObject) -> Parts:
        given: object = fields.get("tool_calls") or []
        if not isinstance(given, list):
            raise BadRecordError(f"tool_calls: a list is wanted, not {_kind(given)}.")
        calls: Parts = []
        for number, item in enumerate(as_list(given)):
            call = as_object(item)
            if not isinstance(call.get("function"), dict):
                raise BadRecordError(f"tool_calls[{number}].function: missing.")
            name, arguments = map(as_object(call["function"]).get, ("name", "arguments"))
            calls.append(self._call(place, number, call.get("id"), name, arguments))
        if isinstance(fields.get("function_call"), dict):
            name, arguments = map(as_object(fields["function_call"]).get, ("name", "arguments"))
            calls.append(self._call(place, len(calls), None, name, arguments))
        return calls

    def _call(
        self, place: int, number: int, given: object, name: object, arguments: object
    ) -> JsonObject:
        if not isinstance(name, str) or not name:
            raise BadRecordError(f"call {number + 1}: name: {name!r:.60} is none.")
        if given is not None and not isinstance(given, str):
            raise BadRecordError(f"call {number + 1}: id: {given!r:.60} is no text.")
        unique, attempt = given or call_id(place, number, name), 0
        while unique in self._used:
            unique, attempt = call_id(place, number, given, attempt), attempt + 1
        self._used.add(unique)
        if given:
            self._open.add(given, place, unique)
        else:
            self._nameless.append((name, unique))
        return function_call(unique, name, json_text({} if arguments is None else arguments))

    def _add(
        self,
        role: MessageRole,
        fields: JsonObject,
        content: str | Parts | None,
        metadata: JsonObject,
        **others: Any,
    ) -> None:
        step = Step(
            session_id=self._session_id,
            role=role,
            content=content,
            name=as_text(fields.get("name")) or None,
            metadata=metadata or None,
            created_at=time_of(fields) or utc_now(),
            **others,
        )
        self.steps.append(step)


def _content(content: object) -> str | Parts | None:
    """Return a message's content: a text, or its parts, each an object with a type."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRecordError(f"content: text or parts are wanted, not {_kind(content)}.")
    parts: Parts = []
    for number, part in enumerate(as_list(content)):
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(as_object(part).get("type"), str):
            parts.append(part)
        else:
            raise BadRecordError(f"content[{number}].type: missing.")
    return parts


def _divided(parts: Parts, kinds: Container[str]) -> tuple[Parts, Parts]:
    return [p for p in parts if p["type"] in kinds], [p for p in parts if p["type"] not in kinds]


def _plain(parts: Parts) -> str | Parts | None:
    """Return a single text part as its text, no parts as None, and others as they are."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        text = as_text(parts[0]["text"])
        return parts if text is None else text
    return parts or None


def _native(fields: JsonObject) -> JsonObject:
    """Return what a message holds beside what a Step has fields for, as metadata."""
    rest = without(fields, *_READ, "function_call", "parts", NOT_READ)
    rest = {name: value for name, value in rest.items() if value is not None}
    mark = cache_mark(rest)
    rest = without(rest, *mark)
    mark |= {NOT_READ: fields[NOT_READ]} if NOT_READ in fields else {}
    return {NATIVE: rest, **mark} if rest else mark


def _is_divided(message: JsonObject) -> bool:
    """Whether results stand as blocks where a message of its own answers: not in a user's."""
    parts = shaped(message).message
    blocks = as_list(parts.get("content")) if parts["role"] in ("assistant", "tool") else []
    return any(as_object(block).get("type") == "tool_result" for block in blocks)


def _reasoning(fields: JsonObject, metadata: JsonObject) -> str | None:
    given = fields.get("reasoning_content")
    if isinstance(given, str):
        return given
    return thinking_text(metadata.get(THINKING, [])) or None


def _kind(value: object) -> str:
    return type(value).__name__
