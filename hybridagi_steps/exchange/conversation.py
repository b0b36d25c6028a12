"""A conversation as steps: what the readers of message formats have in common.

A conversation becomes one run. A user's message is a ProgramCall of `chat`; an assistant's tool
calls are Actions with what the tool answered (matched by `tool_call_id`), its text an Action
without tool; the end is a ProgramEnd. A reader shows each native message as turns in OpenAI's
form, which become the messages of a session; the native message itself stands unchanged in the
`messages` of one step, its place in `metadata.message_indexes`, so nothing is lost. Ids come from
the conversation's own id, else from its content: importing twice gives the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from hybridagi_steps.exchange.records import (
    BadRecordError,
    Parsed,
    Record,
    Said,
    Skipped,
    agent_step,
    as_list,
    as_object,
    stable_id,
)
from hybridagi_steps.messages.parts import calls_of, text_of, time_of
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics

NO_RESULT = "no result for this call"
"""The note of an Action whose tool has not answered, as far as the file goes."""
PROGRAM = "chat"
"""Name of the program that an imported conversation is."""
LONGEST_RUN_ID = 128
"""Longer ids of a conversation do not become the run's."""

_ID_KEYS = ("id", "conversation_id", "session_id", "thread_id")

Message = dict[str, Any]


class Turn(NamedTuple):
    """What one message says, in OpenAI's form; a message with two results is two turns."""

    view: Message
    """role, content, tool_calls, tool_call_id, name."""
    place: int
    """Place of the native message in the conversation."""
    native: Message | None
    """The native message; None when an earlier turn carries it."""
    metrics: dict[str, Any] | None = None
    """Fields of StepMetrics."""
    failed: bool = False
    """Whether a tool's result is an error."""
    made: datetime | None = None
    """When it was said, where the message does not say so itself."""
    also: tuple[Turn, ...] = ()
    """Further native messages that are part of what it says."""

    @property
    def said_at(self) -> datetime | None:
        """When it was said, as far as anybody knows."""
        return self.made or time_of(self.native or {})


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
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """What stood beside the messages."""
    line: str | None = None
    """The session that the messages go to, where it is a fork of `session_id`."""
    of_steps: bool = False
    """Whether the messages are Steps, which keep their ids."""


def content_key(value: Any) -> str:
    """Return a digest of a JSON value, for what has no id of its own."""
    text = json.dumps(value, sort_keys=True)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def conversation_of(
    record: dict[str, Any], messages: list[Message], turns: list[Turn], format_name: str
) -> Conversation:
    """Return turns with what an object holding `messages` says about them."""
    extras = {key: item for key, item in record.items() if key != "messages"}
    own_id = next((extras[key] for key in _ID_KEYS if isinstance(extras.get(key), str)), None)
    session = extras.get("session_id")
    return Conversation(
        turns,
        key=f"conversation:{own_id}" if own_id else content_key(messages),
        format=format_name,
        session_id=session if isinstance(session, str) else None,
        run_id=own_id if own_id and len(own_id) <= LONGEST_RUN_ID else None,
        created_at=time_of(extras),
        extras=extras,
    )


def message_list(record: dict[str, Any]) -> list[Message]:
    """Return the messages of an object."""
    messages: Any = record.get("messages")
    if not isinstance(messages, list):
        raise BadRecordError("no list of messages")
    if not messages:
        raise BadRecordError("an empty list of messages")
    for place, message in enumerate(cast("list[Any]", messages), start=1):
        if not isinstance(message, dict):
            raise BadRecordError(f"message {place} is not an object")
    return cast("list[Message]", messages)


def record_steps(record: Record, conversation: Conversation) -> list[Parsed | Skipped]:
    """Return the steps of a record's conversation."""
    reader = _Reader(conversation)
    steps = reader.read()
    line, anywhere = conversation.line, conversation.of_steps
    return [
        Parsed(record.line, step, Said(reader.said.get(place, []), line, place == 0, anywhere))
        for place, step in enumerate(steps)
    ]


def conversation_steps(conversation: Conversation) -> list[AgentStep]:
    """Return the steps of one conversation, in order."""
    return _Reader(conversation).read()


class _Reader:
    """Reads one conversation; holds the calls that wait for an answer."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._run_id = conversation.run_id or f"chat-{stable_id(conversation.key).hex[:16]}"
        self._steps: list[AgentStep] = []
        self._ids: set[str] = set()
        self._parent: str | None = None
        self._joins: list[str] = []
        self._program_id: str | None = None
        self._question = ""
        self._answer: Turn | None = None
        self._unanswered: dict[str, AgentStep] = {}
        self._held: list[Turn] = []
        self._calls: list[dict[str, Any]] = []
        self._messages = MessageWriter(conversation, self._run_id)
        self._unit = (0, 0)
        self.said: dict[int, list[Step]] = {}
        """Messages of each unit, by the place of its last step."""

    def read(self) -> list[AgentStep]:
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
            else:
                self._assistant_message(turn)
        self._close_calls()
        self._end()
        self._close_unit(len(self._conversation.turns))
        self._keep_rest()
        return self._steps

    def _close_unit(self, through: int) -> None:
        """Give the messages up to a turn to the step that was made last, if they made any."""
        turns_given, steps_then = self._unit
        if len(self._steps) == steps_then:
            return
        turns = self._conversation.turns[turns_given:through]
        self.said[len(self._steps) - 1] = self._messages.messages(turns)
        self._unit = (through, len(self._steps))

    def _keep_rest(self) -> None:
        """Give what stands behind everything that a step tells of to the last step."""
        if not self._steps:
            self._add("end", "ProgramEnd", {"program": PROGRAM}, None, [])
        rest = self._conversation.turns[self._unit[0] :]
        self.said.setdefault(len(self._steps) - 1, []).extend(self._messages.messages(rest))
        self._carry(self._steps[-1], self._held)

    def _carry(self, step: AgentStep, turns: Sequence[Turn]) -> None:
        """Keep native messages with a step that was made before."""
        natives = _natives(turns)
        (step.model_extra or {})["messages"].extend(turn.native for turn in natives)
        (step.metadata or {})["message_indexes"].extend(turn.place for turn in natives)

    def _user_message(self, turn: Turn) -> None:
        text = text_of(turn.view.get("content"))
        self._question = text
        inputs = {"program": PROGRAM, "purpose": text, "arguments": {"message": text}}
        self._program_id = None
        self._program_id = self._add(f"{turn.place}", "ProgramCall", inputs, None, [turn])
        self._messages.link(turn, self._program_id)

    def _assistant_message(self, turn: Turn) -> None:
        text = _spoken(turn)
        if calls := calls_of(turn.view):
            self._answer = None
            for place, call in enumerate(calls):
                inputs = {"purpose": text or self._question, **call["inputs"]}
                mark = f"{turn.place}.{place}"
                turns = [turn] if place == 0 else []
                known = {"mark": mark, "inputs": inputs, "turns": turns, "asked": turn}
                self._calls.append({**call, **known})
            return
        self._answer = turn
        inputs: dict[str, Any] = {"purpose": self._question, "arguments": {}}
        self._messages.link(
            turn, self._add(f"{turn.place}", "Action", inputs, {"result": text}, [turn])
        )

    def _tool_result(self, turn: Turn) -> None:
        call_id, name = turn.view.get("tool_call_id"), turn.view.get("name")
        for call in self._calls:
            same = call["id"] == call_id if call_id else call["inputs"].get("tool") == name
            if same and "answer" not in call:
                call["answer"] = turn
                call["turns"].append(turn)
                return
        if isinstance(call_id, str) and (step := self._unanswered.pop(call_id, None)):
            self._late_result(step, turn)
            return
        tool = name if isinstance(name, str) and name else "unknown"
        self._calls.append(
            {
                "id": None,
                "mark": f"{turn.place}" if turn.native else f"{turn.place}:{call_id}",
                "inputs": {"purpose": self._question, "tool": tool, "arguments": {}},
                "turns": [turn],
                "answer": turn,
                "note": "a result without a call",
            }
        )

    def _late_result(self, step: AgentStep, turn: Turn) -> None:
        """Give a call the result that stands behind other messages."""
        step.outputs, step.status = _outputs(turn), "error" if turn.failed else "ok"
        (step.metadata or {}).pop("note")
        self._carry(step, [turn])
        self._messages.link(turn, str(step.id))

    def _close_calls(self) -> None:
        """Turn the calls of the last assistant message into Actions that share one parent."""
        before, made = self._parent, list[str]()
        for call in self._calls:
            self._parent = before
            answer: Turn | None = call.get("answer")
            note = call.get("note") or ("" if answer else NO_RESULT)
            outputs = _outputs(answer) if answer else None
            step_id = self._add(
                call["mark"],
                "Action",
                call["inputs"],
                outputs,
                call["turns"],
                note,
                named=call.get("asked"),
            )
            if not answer and isinstance(call["id"], str):
                self._unanswered[call["id"]] = self._steps[-1]
            for turn in filter(None, (call.get("asked"), answer)):
                self._messages.link(turn, step_id)
            made.append(step_id)
        if made:
            self._parent, self._joins = made[-1], made[:-1]
        self._calls = []

    def _end(self) -> None:
        """End what a user asked for, if the last word on it is an answer."""
        if (answer := self._answer) is None:
            return
        outputs = {"result": _spoken(answer)}
        mark = f"end:{self._messages.key_of(answer)}"
        self._add(mark, "ProgramEnd", {"program": PROGRAM}, outputs, [], made=answer.said_at)
        self._answer = None

    def _add(
        self,
        mark: str,
        kind: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any] | None,
        turns: list[Turn],
        note: str = "",
        *,
        named: Turn | None = None,
        made: datetime | None = None,
    ) -> str:
        """Make a step that carries turns; `named` is the one that its id comes from."""
        carried = _natives((*self._held, *turns))
        self._held = []
        failed = kind == "Action" and any(turn.failed for turn in turns)
        fields: dict[str, Any] = {
            "id": self._step_id(mark, named or next(iter(turns), None)),
            "parent_id": self._parent,
            "hop": len(self._steps),
            "step_type": kind,
            "inputs": inputs,
            "outputs": outputs,
            "metadata": self._metadata(carried, note),
            "session_id": self._conversation.session_id,
            "run_id": self._run_id,
            "program_id": self._program_id,
            "status": "partial" if note else "error" if failed else "ok",
            "metrics": next((turn.metrics for turn in turns if turn.metrics), None),
            "messages": [turn.native for turn in carried],
        }
        made = made or next((turn.said_at for turn in turns if turn.said_at), None)
        if created_at := made or self._conversation.created_at:
            fields["created_at"] = created_at
        step = agent_step(fields)
        self._steps.append(step)
        self._parent = str(step.id)
        return self._parent

    def _metadata(self, carried: Sequence[Turn], note: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "format": self._conversation.format,
            "message_indexes": [turn.place for turn in carried],
        }
        if note:
            metadata["note"] = note
        if self._joins:
            metadata["joins"], self._joins = self._joins, []
        if not self._steps and self._conversation.extras:
            metadata["conversation"] = self._conversation.extras
        return metadata

    def _step_id(self, mark: str, turn: Turn | None) -> str:
        """Name a step by its place, by what a turn says, and by all that was said before."""
        key = self._messages.key_of(turn) if turn else self._conversation.key
        while (found := str(stable_id(key, mark))) in self._ids:
            mark += "+"  # one message may hold several things that are no call's result
        self._ids.add(found)
        return found


def _natives(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns that carry a native message, each before those that belong to it."""
    return [each for turn in turns for each in (turn, *turn.also) if each.native is not None]


def _spoken(turn: Turn) -> str:
    return text_of(turn.view.get("content")) or text_of(turn.view.get("refusal"))


def _outputs(answer: Turn) -> dict[str, Any]:
    result = _result(answer.view.get("content"))
    if answer.failed:
        return {"error": {"type": "ToolError", "message": text_of(result)}}
    return {"result": result}


def _result(content: Any) -> Any:
    return text_of(content) if content is None or isinstance(content, str | list) else content


_ROLES = {"developer": "system", "function": "tool"}
_LEGACY_CALL = "function_call"
_SAID = ("role", "content", "refusal", "name", "tool_calls", "tool_call_id", _LEGACY_CALL)
_LONGEST_ID = 128


class MessageWriter:
    """Makes the messages of one conversation, unit by unit.

    Args:
        conversation: What is imported.
        run_id: The run that its AgentSteps belong to.
    """

    def __init__(self, conversation: Conversation, run_id: str) -> None:
        self._conversation, self._run_id = conversation, run_id
        self._links: dict[int, list[str]] = {}
        self._keys = _chain(conversation)
        self._legacy_call: str | None = None

    def key_of(self, turn: Turn) -> str:
        """Return what tells a turn from every other: what it says, and all before it."""
        return self._keys[id(turn)]

    def link(self, turn: Turn, step_id: str) -> None:
        """Note that an AgentStep tells what a turn says."""
        self._links.setdefault(id(turn), []).append(step_id)

    def messages(self, turns: Sequence[Turn]) -> list[Step]:
        """Return the messages of these turns; what they are linked to is known by now."""
        return [self._own_step(turn) or self._message(turn) for turn in turns]

    def _own_step(self, turn: Turn) -> Step | None:
        """Return a message that was written as a Step; None when it was not."""
        fields = as_object(turn.native)
        if not self._conversation.of_steps or not isinstance(fields.get("id"), str):
            return None
        linked = self._links.get(id(turn), [])
        place = {"session_id": self._session_id(), "run_id": fields.get("run_id") or self._run_id}
        try:
            step = Step.model_validate({**fields, **place})
        except ValidationError:
            return None
        if step.agent_step_id is None and len(linked) == 1:
            step.agent_step_id = linked[0]
        return step

    def _message(self, turn: Turn) -> Step:
        view = turn.view
        role = MessageRole(_ROLES.get(view["role"], view["role"]))
        linked = self._links.get(id(turn), [])
        metadata: dict[str, Any] = {"format": self._conversation.format}
        calls = self._calls(turn) if role is MessageRole.ASSISTANT else None
        if calls:
            metadata["agent_step_ids"] = linked
        fields: dict[str, Any] = {
            "id": self.key_of(turn),
            "session_id": self._session_id(),
            "run_id": self._run_id,
            "role": role,
            "content": _content(view.get("content") or view.get("refusal")),
            "tool_calls": calls,
            "tool_call_id": self._answered(turn) if role is MessageRole.TOOL else None,
            "name": _text(view.get("name")),
            "reasoning_content": _text(view.get("reasoning_content")),
            "agent_step_id": linked[0] if len(linked) == 1 else None,
            "metadata": metadata,
            "metrics": StepMetrics.model_validate(turn.metrics) if turn.metrics else None,
        }
        if made := turn.said_at or self._conversation.created_at:
            fields["created_at"] = made
        return Step(**fields)

    def _session_id(self) -> str:
        return self._conversation.session_id or self._run_id

    def _calls(self, turn: Turn) -> list[dict[str, Any]] | None:
        given: list[Any] = turn.view.get("tool_calls") or []
        calls = [_call(cast("dict[str, Any]", call)) for call in given]
        if legacy := turn.view.get(_LEGACY_CALL):
            self._legacy_call = f"call_{turn.place}"
            calls.insert(0, {"id": self._legacy_call, "type": "function", "function": legacy})
        return calls or None

    def _answered(self, turn: Turn) -> str | None:
        """Return the call that a result answers; in the oldest form it is the one before."""
        if turn.view["role"] == "function":
            return self._legacy_call
        return _short(_text(turn.view.get("tool_call_id")))


def _chain(conversation: Conversation) -> dict[int, str]:
    """Return a key for each turn, made of the one before and of what it says."""
    keys: dict[int, str] = {}
    key = conversation.key
    for turn in conversation.turns:
        named = (turn.native or {}).get("id"), (turn.native or {}).get("sequence")
        said = [turn.view.get(name) for name in _SAID]
        content = json.dumps([*named, *said], sort_keys=True, default=str)
        key = keys[id(turn)] = str(stable_id(key, content))
    return keys


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call whose arguments are text, as they are in OpenAI's form."""
    if isinstance(call.get("id"), str):
        call = {**call, "id": _short(call["id"])}
    function = as_object(call.get("function"))
    if "arguments" not in function or isinstance(function["arguments"], str):
        return call
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _content(given: Any) -> str | list[dict[str, Any]] | None:
    """Return a message's content in one of the two forms there are."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, list):
        return json.dumps(given, ensure_ascii=False)
    parts = as_list(given)
    first = as_object(parts[0]) if len(parts) == 1 else {}
    if first.keys() == {"type", "text"} and isinstance(first["text"], str):
        return first["text"]
    return [as_object(part) or {"type": "text", "text": str(part)} for part in parts]


def _short(call_id: str | None) -> str | None:
    """Return the id of a call, or for a longer one than can be kept what it always gives."""
    if call_id is None or len(call_id) <= _LONGEST_ID:
        return call_id
    return f"call_{stable_id(call_id).hex}"


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) and given else None
