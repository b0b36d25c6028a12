"""Messages of OpenAI's and Anthropic's form, in: each becomes the Steps that say the same.

Which form a message has is seen from the message, so both may stand in one list. Calls come out in
OpenAI's form with ids that are unique in the list; a result follows its call, not the bare id,
because agents repeat ids from turn to turn. Content parts are kept as they came; what belongs to
neither form stays in `metadata.native`. What is no message is refused with its place and field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from hybridagi_steps.errors import MessageError
from hybridagi_steps.messages.agent_steps import IS_ERROR
from hybridagi_steps.messages.parts import OpenCalls, call_id, json_text
from hybridagi_steps.messages.units import THINKING
from hybridagi_steps.records.json_reading import text_of, time_of
from hybridagi_steps.records.message import MessageRole, Step, new_id, utc_now

NATIVE = "native"
"""Metadata key: what a message held beside its role, content and calls."""

_ROLES = {
    "system": MessageRole.SYSTEM,
    "developer": MessageRole.SYSTEM,
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
    "tool": MessageRole.TOOL,
    "function": MessageRole.TOOL,
}
_READ = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"}
_THINKING = ("thinking", "redacted_thinking")

Message = Mapping[str, Any]


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
    reader = _Reader(session_id or str(new_id()))
    if isinstance(messages, Mapping):
        request = cast("dict[str, Any]", messages)
        if request.get("system"):
            reader.read(0, {"role": "system", "content": request["system"]})
        if "messages" not in request:
            raise MessageError(
                "messages are a list, or a request that holds one under 'messages', not a dict "
                f"with {', '.join(map(repr, request)) or 'nothing'}; put one message in a list."
            )
        messages = cast("Iterable[Message]", request["messages"])
    if isinstance(messages, str) or not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise MessageError(f"messages are a list, not {type(messages).__name__}.")
    for place, message in enumerate(messages, start=1):
        reader.read(place, message)
    return reader.steps


class _Reader:
    """Reads messages in order; knows which calls wait for a result."""

    def __init__(self, session_id: str) -> None:
        self.steps: list[Step] = []
        self._session_id = session_id
        self._used: set[str] = set()
        self._open: OpenCalls[str] = OpenCalls()
        self._open_names: dict[str, list[str]] = {}

    def read(self, place: int, message: Any) -> None:
        """Read one message."""
        if not isinstance(message, Mapping):
            raise MessageError(f"message {place}: an object is wanted, not {_kind(message)}.")
        fields = dict(cast("Message", message))
        role = _ROLES.get(str(fields.get("role")))
        if role is None:
            wanted = ", ".join(_ROLES)
            raise MessageError(
                f"message {place}: role: {fields.get('role')!r:.60} is not {wanted}."
            )
        parts = _content(place, fields.get("content"))
        if role is MessageRole.ASSISTANT:
            self._assistant(place, fields, parts)
        elif role is MessageRole.TOOL:
            self._tool(place, fields, parts)
        else:
            self._other(place, role, fields, parts)

    def _assistant(self, place: int, fields: dict[str, Any], parts: Any) -> None:
        calls = self._calls(place, fields)
        metadata, said = _native(fields), parts
        if isinstance(parts, list):
            blocks = cast("list[dict[str, Any]]", parts)
            calls += [
                self._call(place, number, block.get("id"), block.get("name"), block.get("input"))
                for number, block in enumerate(blocks)
                if block.get("type") == "tool_use"
            ]
            if thinking := [block for block in blocks if block.get("type") in _THINKING]:
                metadata[THINKING] = thinking
            kept = (*_THINKING, "tool_use")
            said = _plain([block for block in blocks if block.get("type") not in kept])
        if said is None and isinstance(fields.get("refusal"), str):
            said = fields["refusal"]
        self._add(
            MessageRole.ASSISTANT,
            fields,
            said if said or not calls else None,
            metadata,
            tool_calls=calls or None,
            reasoning_content=_reasoning(fields, metadata),
        )

    def _tool(self, place: int, fields: dict[str, Any], content: Any) -> None:
        given, name = fields.get("tool_call_id"), fields.get("name")
        if fields.get("role") == "function":
            waiting = self._open_names.get(str(name)) or []
            answered: Any = waiting.pop(0) if waiting else call_id(place, name)
        elif isinstance(given, str) and given:
            answered = self._answered(given)
        else:
            raise MessageError(f"message {place}: tool_call_id: {given!r:.60} is no call's id.")
        content = "" if content is None else content
        self._add(MessageRole.TOOL, fields, content, _native(fields), tool_call_id=answered)

    def _other(self, place: int, role: MessageRole, fields: dict[str, Any], parts: Any) -> None:
        if parts is None:
            raise MessageError(f"message {place}: content: missing.")
        metadata = _native(fields)
        if fields["role"] == "developer":
            metadata["role"] = "developer"
        said = parts
        if isinstance(parts, list):
            blocks = cast("list[dict[str, Any]]", parts)
            results = [block for block in blocks if block.get("type") == "tool_result"]
            for block in results:
                self._block_result(place, fields, block)
            said = _plain([block for block in blocks if block.get("type") != "tool_result"])
            if results and said is None:
                return
        self._add(role, fields, said if said is not None else "", metadata)

    def _block_result(self, place: int, fields: dict[str, Any], block: dict[str, Any]) -> None:
        given = block.get("tool_use_id")
        if not isinstance(given, str) or not given:
            raise MessageError(f"message {place}: tool_use_id: {given!r:.60} is no call's id.")
        content = _content(place, block.get("content"))
        said = _plain(content) if isinstance(content, list) else content
        metadata: dict[str, Any] = {IS_ERROR: True} if block.get("is_error") is True else {}
        call = self._answered(given)
        made = {key: fields[key] for key in fields if key not in _READ}
        self._add(
            MessageRole.TOOL, made, said if said is not None else "", metadata, tool_call_id=call
        )

    def _calls(self, place: int, fields: dict[str, Any]) -> list[dict[str, Any]]:
        given: Any = fields.get("tool_calls") or []
        if not isinstance(given, list):
            raise MessageError(
                f"message {place}: tool_calls: a list is wanted, not {_kind(given)}."
            )
        calls: list[dict[str, Any]] = []
        for number, call in enumerate(cast("list[Any]", given)):
            body: Any = call.get("function") if isinstance(call, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if not isinstance(body, dict):
                raise MessageError(f"message {place}: tool_calls[{number}].function: missing.")
            function, known = cast("dict[str, Any]", body), cast("dict[str, Any]", call)
            arguments = function.get("arguments")
            calls.append(
                self._call(place, number, known.get("id"), function.get("name"), arguments)
            )
        if isinstance(legacy := fields.get("function_call"), dict):
            function = cast("dict[str, Any]", legacy)
            call = self._call(
                place, len(calls), None, function.get("name"), function.get("arguments")
            )
            self._open_names.setdefault(function["name"], []).append(call["id"])
            calls.append(call)
        return calls

    def _call(
        self, place: int, number: int, given: Any, name: Any, arguments: Any
    ) -> dict[str, Any]:
        if not isinstance(name, str) or not name:
            raise MessageError(f"message {place}: call {number + 1}: name: {name!r:.60} is none.")
        if given is not None and not isinstance(given, str):
            raise MessageError(f"message {place}: call {number + 1}: id: {given!r:.60} is no text.")
        unique, attempt = given or call_id(place, number, name), 0
        while unique in self._used:
            unique, attempt = call_id(place, number, given, attempt), attempt + 1
        self._used.add(unique)
        if given:
            self._open.add(given, place, unique)
        function = {"name": name, "arguments": json_text({} if arguments is None else arguments)}
        return {"id": unique, "type": "function", "function": function}

    def _answered(self, given: str) -> str:
        """Return the id of the call that a result answers; its own if none waits."""
        return self._open.answer(given) or given

    def _add(
        self,
        role: MessageRole,
        fields: dict[str, Any],
        content: Any,
        metadata: dict[str, Any],
        **others: Any,
    ) -> None:
        name = fields.get("name")
        self.steps.append(
            Step(
                session_id=self._session_id,
                role=role,
                content=content,
                name=name if isinstance(name, str) and name else None,
                metadata=metadata or None,
                created_at=time_of(fields) or utc_now(),
                **others,
            )
        )


def _content(place: int, content: Any) -> str | list[dict[str, Any]] | None:
    """Return a message's content: a text, or its parts, each an object with a type."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MessageError(
            f"message {place}: content: text or parts are wanted, not {_kind(content)}."
        )
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(cast("list[Any]", content)):
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, dict) and isinstance(part.get("type"), str):  # pyright: ignore[reportUnknownMemberType]
            parts.append(cast("dict[str, Any]", part))
        else:
            raise MessageError(f"message {place}: content[{number}].type: missing.")
    return parts


def _plain(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    """Return a single text part as its text, no parts as None, and others as they are."""
    if not parts:
        return None
    (first, *others) = parts
    text = first.get("text")
    if not others and first.keys() == {"type", "text"} and isinstance(text, str):
        return text
    return parts


def _native(fields: dict[str, Any]) -> dict[str, Any]:
    """Return what a message holds beside what a Step has fields for, as metadata."""
    rest = {
        key: value
        for key, value in fields.items()
        if key not in _READ and key != "function_call" and value is not None
    }
    return {NATIVE: rest} if rest else {}


def _reasoning(fields: dict[str, Any], metadata: dict[str, Any]) -> str | None:
    given = fields.get("reasoning_content")
    if isinstance(given, str):
        return given
    blocks: list[dict[str, Any]] = metadata.get(THINKING, [])
    thoughts = [
        text_of([{"text": block.get("thinking")}]) for block in blocks if block.get("thinking")
    ]
    return "\n".join(thoughts) or None


def _kind(value: Any) -> str:
    return type(value).__name__
