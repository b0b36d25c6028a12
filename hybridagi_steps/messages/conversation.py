"""A conversation as AgentSteps, and as the messages of a session.

A conversation becomes one run. A user's message is a ProgramCall of `chat`; an assistant's tool
calls are Actions with what the tool answered (matched by `tool_call_id`), its text an Action
without tool; the end is a ProgramEnd. Every turn becomes a message of the session; the native
message itself stands unchanged in the `messages` of one AgentStep, its place in
`metadata.message_indexes`, so nothing is lost. Ids come from the conversation's own id, else from
its content: reading twice gives the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, cast

from pydantic import JsonValue, ValidationError

from hybridagi_steps.messages.parts import cache_mark, called
from hybridagi_steps.messages.turns import Message, Turn
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    agent_step,
    as_json,
    as_object,
    as_text,
    has_unread_time,
    stable_id,
    text_of,
    time_of,
)
from hybridagi_steps.records.message import ROLES, MessageRole, Step, StepMetrics
from hybridagi_steps.records.step_text import CHAT

UNANSWERED = "no result for this call"
"""The note of an Action whose tool has not answered, as far as the file goes."""
NOT_READ = "not_read"
"""Metadata key: what of a step's messages has no reader, by type; they are kept as they came."""
LONGEST_RUN_ID = 128
"""Longer ids of a conversation do not become the run's."""

UNREAD_TIME = "time"
"""Stands among what was not understood, for a message that says when it was made in odd words."""
_LEGACY_CALL = "function_call"
_SAID = ("role", "content", "refusal", "name", "tool_calls", "tool_call_id", _LEGACY_CALL)
_TEXTS = ("name", "reasoning_content")
_LONGEST_CALL_ID = 128


@dataclass(slots=True)
class Conversation:
    """Turns in order, and what is known about them as a whole."""

    turns: list[Turn]
    key: str
    """Identifies the conversation: its own id, or a digest of its content."""
    format: str = "openai"
    session_id: str | None = None
    run_id: str | None = None
    created_at: datetime | None = None
    extras: JsonObject = field(default_factory=dict[str, Any])
    """What stood beside the messages."""
    line: str | None = None
    """The session that the messages go to, where it is a fork of `session_id`."""
    unread: tuple[str, ...] = ()
    """What stood beside the messages and has no reader."""
    of_steps: bool = False
    """Whether the messages are Steps, which keep their ids."""


def content_key(value: object) -> str:
    """Return a digest of a JSON value, for what has no id of its own."""
    text = json.dumps(value, sort_keys=True)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def conversation_steps(conversation: Conversation) -> list[tuple[AgentStep, list[Step]]]:
    """Return the AgentSteps of one conversation, each with the messages that end with it."""
    reader = _Reader(conversation)
    reader.read()
    return [(step, reader.messages.get(place, [])) for place, step in enumerate(reader.steps)]


@dataclass(slots=True)
class _Call:
    """A tool call of the last assistant message, or a result whose call is missing."""

    id: object
    mark: str
    """What tells its step from others of the same message."""
    inputs: JsonObject
    turns: list[Turn]
    """Those whose native messages its step carries."""
    asked: Turn | None = None
    answer: Turn | None = None
    note: str = ""


class _Reader:
    """Reads one conversation; holds the calls that wait for an answer."""

    def __init__(self, conversation: Conversation) -> None:
        self.steps: list[AgentStep] = []
        self.messages: dict[int, list[Step]] = {}
        """Messages of each unit, by the place of its last step."""
        self._conversation = conversation
        self._run_id = conversation.run_id or f"chat-{stable_id(conversation.key).hex[:16]}"
        self._ids: set[str] = set()
        self._parent: str | None = None
        self._joins: list[str] = []
        self._program_id: str | None = None
        self._question = ""
        self._answer: tuple[Turn, str] | None = None
        """The last word, and its text."""
        self._unanswered: dict[str, AgentStep] = {}
        self._held: list[Turn] = []
        self._calls: list[_Call] = []
        self._writer = _MessageWriter(conversation, self._run_id)
        self._unit = (0, 0)

    def read(self) -> None:
        for place, turn in enumerate(self._conversation.turns):
            role = turn.view["role"]
            if role in ("tool", "function"):
                self._tool_result(turn)
                continue
            self._close_calls()
            if role == "user":
                self._end()
            self._close_unit(place)
            if role in ("system", "developer"):
                self._held.append(turn)
            elif role == "user":
                self._user_message(turn)
            elif role not in ROLES:
                self._data(turn)
            else:
                self._assistant_message(turn)
        self._close_calls()
        self._end()
        self._close_unit(len(self._conversation.turns))
        self._keep_rest()

    def _close_unit(self, through: int) -> None:
        """Give the messages up to a turn to the step that was made last, if they made any."""
        first_turn, steps_before = self._unit
        if len(self.steps) > steps_before:
            turns = self._conversation.turns[first_turn:through]
            self.messages[len(self.steps) - 1] = self._writer.messages(turns)
            self._unit = (through, len(self.steps))

    def _keep_rest(self) -> None:
        """Give what stands behind everything that a step tells of to the last step."""
        if not self.steps:
            self._add("end", "ProgramEnd", {"program": CHAT}, None, [])
        rest = self._conversation.turns[self._unit[0] :]
        self.messages.setdefault(len(self.steps) - 1, []).extend(self._writer.messages(rest))
        self._carry(self.steps[-1], self._held)

    def _carry(self, step: AgentStep, turns: Sequence[Turn]) -> None:
        """Keep native messages with a step that was made before."""
        natives = _natives(turns)
        (step.model_extra or {})["messages"].extend(turn.native for turn in natives)
        (step.metadata or {})["message_indexes"].extend(turn.place for turn in natives)

    def _user_message(self, turn: Turn) -> None:
        text = self._question = text_of(turn.view.get("content"))
        inputs = {"program": CHAT, "purpose": text, "arguments": {"message": text}}
        self._program_id = None
        self._program_id = self._add(f"{turn.place}", "ProgramCall", inputs, None, [turn])

    def _data(self, turn: Turn) -> None:
        """Keep what somebody says whose part in the conversation nobody knows."""
        outputs = {"result": text_of(turn.view.get("content"))}
        inputs: JsonObject = {"purpose": self._question, "arguments": {}}
        self._add(f"{turn.place}", "Action", inputs, outputs, [turn])

    def _assistant_message(self, turn: Turn) -> None:
        text = text_of(turn.view.get("content")) or text_of(turn.view.get("refusal"))
        calls = _calls_of(turn.view)
        for number, (call_id, inputs) in enumerate(calls):
            inputs = {"purpose": text or self._question, **inputs}
            turns = [turn] if number == 0 else []
            self._calls.append(_Call(call_id, f"{turn.place}.{number}", inputs, turns, turn))
        self._answer = None if calls else (turn, text)
        if not calls:
            inputs: JsonObject = {"purpose": self._question, "arguments": {}}
            self._add(f"{turn.place}", "Action", inputs, {"result": text}, [turn])

    def _tool_result(self, turn: Turn) -> None:
        call_id, name = turn.view.get("tool_call_id"), turn.view.get("name")
        for call in self._calls:
            same = call.id == call_id if call_id else not name or call.inputs.get("tool") == name
            if same and call.answer is None:
                call.answer = turn
                call.turns.append(turn)
                return
        if isinstance(call_id, str) and (step := self._unanswered.pop(call_id, None)):
            self._late_result(step, turn)
            return
        tool = name if isinstance(name, str) and name else "unknown"
        inputs: JsonObject = {"purpose": self._question, "tool": tool, "arguments": {}}
        mark = f"{turn.place}" if turn.native else f"{turn.place}:{call_id}"
        note = "a result without a call"
        self._calls.append(_Call(None, mark, inputs, [turn], answer=turn, note=note))

    def _late_result(self, step: AgentStep, turn: Turn) -> None:
        """Give a call the result that stands behind other messages."""
        step.outputs, step.status = _outputs(turn), "error" if turn.failed else "ok"
        (step.metadata or {}).pop("note")
        self._carry(step, [turn])
        self._writer.link(turn, str(step.id))

    def _close_calls(self) -> None:
        """Turn the calls of the last assistant message into Actions that share one parent."""
        before, made = self._parent, list[str]()
        for call in self._calls:
            self._parent = before
            note = call.note or ("" if call.answer else UNANSWERED)
            outputs = _outputs(call.answer) if call.answer else None
            step_id = self._add(
                call.mark, "Action", call.inputs, outputs, call.turns, note, named=call.asked
            )
            if not call.answer and isinstance(call.id, str):
                self._unanswered[call.id] = self.steps[-1]
            made.append(step_id)
        if made:
            self._parent, self._joins = made[-1], made[:-1]
        self._calls = []

    def _end(self) -> None:
        """End what a user asked for, if the last word on it is an answer."""
        if self._answer is not None:
            (turn, text), self._answer = self._answer, None
            mark, made = f"end:{self._writer.key_of(turn)}", self._writer.time_of(turn)
            self._add(mark, "ProgramEnd", {"program": CHAT}, {"result": text}, [], made=made)

    def _add(
        self,
        mark: str,
        kind: str,
        inputs: JsonObject,
        outputs: JsonObject | None,
        turns: list[Turn],
        note: str = "",
        *,
        named: Turn | None = None,
        made: datetime | None = None,
    ) -> str:
        """Make a step that carries turns; `named` is the one that its id comes from."""
        carried = _natives((*self._held, *turns))
        self._held = []
        metadata = self._metadata(carried, note, turns)
        made = made or next(filter(None, map(self._writer.time_of, turns)), None)
        failed = kind == "Action" and any(turn.failed for turn in turns)
        fields: JsonObject = {
            "parent_id": self._parent,
            "hop": len(self.steps),
            "step_type": kind,
            "inputs": inputs,
            "outputs": outputs,
            "metadata": metadata,
            "session_id": self._conversation.session_id,
            "run_id": self._run_id,
            "program_id": self._program_id,
            "status": "partial" if note else "error" if failed else "ok",
            "metrics": next((turn.metrics for turn in turns if turn.metrics), None),
            "messages": [turn.native for turn in carried],
        }
        if created_at := made or self._conversation.created_at:
            fields["created_at"] = created_at
        fields["id"] = self._step_id(mark, named or next(iter(turns), None))
        step = agent_step(fields)
        self.steps.append(step)
        self._parent = str(step.id)
        for turn in turns if named is None or named in turns else [named, *turns]:
            self._writer.link(turn, self._parent)
        return self._parent

    def _metadata(self, carried: Sequence[Turn], note: str, turns: Sequence[Turn]) -> JsonObject:
        metadata: JsonObject = {
            "format": self._conversation.format,
            "message_indexes": [turn.place for turn in carried],
        }
        if note:
            metadata["note"] = note
        unread = [kind for turn in turns for kind in turn.unread]
        natives = (turn.native for turn in turns if self._writer.time_of(turn) is None)
        unread += [UNREAD_TIME for native in natives if native and has_unread_time(native)]
        if not self.steps:
            unread += self._conversation.unread
        if unread:
            metadata[NOT_READ] = unread
        if self._joins:
            metadata["joins"], self._joins = self._joins, []
        if not self.steps and self._conversation.extras:
            metadata["conversation"] = self._conversation.extras
        return metadata

    def _step_id(self, mark: str, turn: Turn | None) -> str:
        """Name a step by its place, by what a turn says, and by all that was said before."""
        key = self._writer.key_of(turn) if turn else self._conversation.key
        while (found := str(stable_id(key, mark))) in self._ids:
            mark += "+"  # one message may hold several things that are no call's result
        self._ids.add(found)
        return found


def _natives(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns that carry a native message, each before those that belong to it."""
    return [each for turn in turns for each in (turn, *turn.also) if each.native is not None]


def _outputs(answer: Turn) -> JsonObject:
    result: object = answer.view.get("content")
    if result is None or isinstance(result, str | list):
        result = text_of(result)
    if answer.failed:
        return {"error": {"type": "ToolError", "message": text_of(result)}}
    return {"result": result}


def _calls_of(message: Message) -> list[tuple[object, JsonObject]]:
    """Return an assistant's calls: id, inputs (tool and arguments)."""
    given, legacy = message.get("tool_calls"), message.get(_LEGACY_CALL)
    if given and not isinstance(given, list):
        raise BadRecordError("tool_calls is not a list")
    calls = cast("list[object]", given or [])
    return [_call_of(call) for call in ([{"function": legacy}, *calls] if legacy else calls)]


def _call_of(call: object) -> tuple[object, JsonObject]:
    if not isinstance(call, dict):
        raise BadRecordError("a tool call is not an object")
    known = as_object(call)
    if not isinstance(known.get("function") or known.get("custom") or {}, dict):
        raise BadRecordError("a tool call's function is not an object")
    tool, arguments = called(known)
    return known.get("id"), {"tool": tool, "arguments": arguments}


class _MessageWriter:
    """Makes the messages of one conversation, unit by unit."""

    def __init__(self, conversation: Conversation, run_id: str) -> None:
        self._conversation, self._run_id = conversation, run_id
        self._session_id = conversation.session_id or run_id
        self._links: dict[int, list[str]] = {}
        self._legacy_call: str | None = None
        self._keys: dict[int, str] = {}
        self._times: dict[int, datetime | None] = {}
        key = conversation.key
        for turn in conversation.turns:
            native = turn.native or {}
            said = [native.get("id"), native.get("sequence"), *map(turn.view.get, _SAID)]
            key = str(stable_id(key, json.dumps(said, sort_keys=True, default=str)))
            self._keys[id(turn)] = key
            self._times[id(turn)] = turn.made or time_of(native)

    def key_of(self, turn: Turn) -> str:
        """Return what tells a turn from every other: what it says, and all before it."""
        return self._keys[id(turn)]

    def time_of(self, turn: Turn) -> datetime | None:
        """Return when a turn was said, as far as anybody knows."""
        return self._times[id(turn)]

    def link(self, turn: Turn, step_id: str) -> None:
        """Note that an AgentStep tells what a turn says."""
        self._links.setdefault(id(turn), []).append(step_id)

    def messages(self, turns: Sequence[Turn]) -> list[Step]:
        """Return the messages of these turns; what they are linked to is known by now."""
        return [self._own_step(turn) or self._message(turn) for turn in turns]

    def _own_step(self, turn: Turn) -> Step | None:
        """Return a message that was written as a Step; None when it was not."""
        fields = turn.native or {}
        if not self._conversation.of_steps or not isinstance(fields.get("id"), str):
            return None
        linked = self._links.get(id(turn), [])
        place = {"session_id": self._session_id, "run_id": fields.get("run_id") or self._run_id}
        try:
            step = Step.model_validate({**fields, **place})
        except ValidationError:
            return None
        if step.agent_step_id is None and len(linked) == 1:
            step.agent_step_id = linked[0]
        return step

    def _message(self, turn: Turn) -> Step:
        view = turn.view
        role = ROLES.get(view["role"])
        linked = self._links.get(id(turn), [])
        metadata: JsonObject = {"format": self._conversation.format}
        if role is None:  # quoted to a model as data, see units.py
            role, metadata["role"] = MessageRole.TOOL, view["role"]
            view = {"name": view["role"], **view}
        calls = self._calls(turn) if role is MessageRole.ASSISTANT else None
        if calls:
            metadata["agent_step_ids"] = linked
        metadata |= cache_mark(view)
        fields: JsonObject = {
            "id": self._keys[id(turn)],
            "session_id": self._session_id,
            "run_id": self._run_id,
            "role": role,
            "content": _content(view.get("content") or view.get("refusal")),
            "tool_calls": calls,
            "tool_call_id": self._answered(turn),
            **{name: view[name] for name in _TEXTS if view.get(name) and type(view[name]) is str},
            "agent_step_id": linked[0] if len(linked) == 1 else None,
            "metadata": metadata,
            "metrics": StepMetrics.model_validate(turn.metrics) if turn.metrics else None,
        }
        if made := self._times[id(turn)] or self._conversation.created_at:
            fields["created_at"] = made
        return Step(**fields)

    def _calls(self, turn: Turn) -> list[JsonObject] | None:
        calls = [_native_call(call) for call in turn.view.get("tool_calls") or ()]
        if legacy := turn.view.get(_LEGACY_CALL):
            self._legacy_call = f"call_{turn.place}"
            calls.insert(0, {"id": self._legacy_call, "type": "function", "function": legacy})
        return calls or None

    def _answered(self, turn: Turn) -> str | None:
        """Return the call that a result answers; in the oldest form it is the one before."""
        if ROLES.get(turn.view["role"]) is not MessageRole.TOOL:
            return None
        if turn.view["role"] == "function":
            return self._legacy_call
        call_id = as_text(turn.view.get("tool_call_id"))
        return _short(call_id) if call_id else None


def _native_call(call: JsonObject) -> JsonObject:
    """Return a call whose arguments are text, as they are in OpenAI's form."""
    if isinstance(call.get("id"), str):
        call = {**call, "id": _short(call["id"])}
    function = as_object(call.get("function"))
    if "arguments" not in function or isinstance(function["arguments"], str):
        return call
    return {**call, "function": {**function, "arguments": as_json(function["arguments"])}}


def _content(given: JsonValue) -> str | list[JsonObject] | None:
    """Return a message's content in one of the two forms there are."""
    if given is None or isinstance(given, str):
        return given
    match given:
        case [{"type": _, "text": str(text), **others}] if not others:
            return text
        case [*parts]:
            return [as_object(part) or {"type": "text", "text": str(part)} for part in parts]
        case _:
            return as_json(given)


def _short(call_id: str) -> str:
    """Return the id of a call, or for a longer one than can be kept what it always gives."""
    return call_id if len(call_id) <= _LONGEST_CALL_ID else f"call_{stable_id(call_id).hex}"
