"""What messages of a session tell: each as an AgentStep that can be found, and read by anybody.

A user's message with its answer is one unit, found at the answer; a question that nobody has
answered stands alone, and gives way to its answer when that comes. A tool's result stands with its
call. Nothing is stored here: a unit follows from the message, from what stands before it in its
line, which never changes, and from whose both are: words of one owner never stand in what another's
message tells. It reads as an importer of conversations reads the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from hybridagi_steps.messages.agent_steps import CARRIED, IS_ERROR, SHOWN, shown_steps
from hybridagi_steps.messages.parts import called
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, as_id
from hybridagi_steps.records.json_reading import JsonObject, as_object, as_text, text_of
from hybridagi_steps.records.json_values import defaults_of, unvalidated
from hybridagi_steps.records.message import ERASED, SUMMARY_OF, MessageRole, Step
from hybridagi_steps.records.step_text import CHAT, SAID_BY

_DEFAULTS = defaults_of(AgentStep)
_Inputs: TypeAlias = "JsonObject | Callable[[], JsonObject]"
"""Inputs of a step, or what makes them."""


@dataclass(slots=True)
class MessageStep:
    """One message as a step, made when it is first asked for: most only say what others mean."""

    kind: AgentStepType | None = None
    """None of a message that says nothing of its own: empty, erased, a summary, an instruction."""
    asked: int | None = None
    """The place in the line of what it answers."""
    before: int | None = None
    """The place of the message whose unit stands before this one."""
    user_id: str | None = None
    """Whose it is told to be."""
    _shows: Step | None = None
    _made: Callable[[], AgentStep] | None = None
    _step: AgentStep | None = None

    @property
    def step(self) -> AgentStep | None:
        """The step; None as `kind` is."""
        if self._step is None and self._made is not None:
            self._step = self._made()
            self._step.user_id = self.user_id
        return self._step

    @property
    def shown(self) -> list[str]:
        """Ids of the AgentSteps that it shows, those that answer last."""
        return [] if self._shows is None else shown_steps(self._shows)

    @property
    def is_question(self) -> bool:
        """Whether a user asks, or says something else that begins a turn."""
        return self.kind is AgentStepType.ProgramCall


@dataclass(slots=True)
class _Call:
    place: int
    inputs: Callable[[], JsonObject]


class _Teller:
    """Goes through a line; knows the question and the calls that wait."""

    def __init__(self, line: Sequence[Step], owners: Sequence[object]) -> None:
        self._line, self._owners = line, owners
        self._steps: list[MessageStep] = []
        self._question: int | None = None
        self._calls: dict[str, _Call] = {}
        self._last: int | None = None

    def tell(self) -> list[MessageStep]:
        for place, message in enumerate(self._line):
            found = self._of(message, place)
            if found.kind is not None:
                self._last = place
            self._steps.append(found)
        return self._steps

    def _of(self, message: Step, place: int) -> MessageStep:
        text = text_of(message.content)
        if SUMMARY_OF in (message.metadata or {}) or text == ERASED:
            return MessageStep()
        if message.role is MessageRole.SYSTEM:
            return MessageStep()  # to recall what instructs would be to obey it elsewhere
        if message.role is MessageRole.TOOL:
            return self._result(message, text, place)
        if message.role is MessageRole.ASSISTANT and message.tool_calls:
            return self._calling(message, text, place)
        if not text.strip():
            return MessageStep()
        if message.role is MessageRole.USER:
            self._question, self._calls = place, {}
            asked: JsonObject = {"program": CHAT, "purpose": text, "arguments": {"message": text}}
            made = self._maker(message, AgentStepType.ProgramCall, asked, None)
            return MessageStep(AgentStepType.ProgramCall, before=self._last, _made=made)
        question = self._question_of(place)
        if message.role is MessageRole.ASSISTANT and question is not None:
            return self._answer(message, text, question)
        inputs: JsonObject = {"purpose": "", "arguments": {}}
        made = self._maker(message, AgentStepType.Action, inputs, {"result": text})
        return _action(made, before=self._last, shows=message)

    def _answer(self, message: Step, text: str, question: int) -> MessageStep:
        asked = self._line[question]
        # An Action, as an importer makes one of it: that is shown with purpose and result.
        inputs: JsonObject = {"purpose": text_of(asked.content), "arguments": {}}
        outputs: JsonObject = {"result": text}
        kind, by = AgentStepType.Action, _speaker(asked)
        made = self._maker(message, kind, inputs, outputs, asked=by)
        # Its window shows what stands before the question, which it says itself.
        before = self._steps[question].before if self._last == question else self._last
        return _action(made, question, before, message)

    def _calling(self, message: Step, text: str, place: int) -> MessageStep:
        purpose = text or self._asked(place)
        calls = [as_object(call) for call in message.tool_calls or []]
        for call in calls:
            self._calls[as_text(call.get("id")) or ""] = _Call(
                place, partial(_inputs_of, purpose, call)
            )
        inputs = partial(_inputs_of, purpose, *calls)
        made = self._maker(message, AgentStepType.Action, inputs, None, said=None)
        return _action(made, before=self._last)

    def _result(self, message: Step, text: str, place: int) -> MessageStep:
        call = self._calls.pop(message.tool_call_id or "", None)
        if call is not None and self._owners[call.place] != self._owners[place]:
            call = None
        tool = message.name or "unknown"
        inputs: _Inputs = {"purpose": self._asked(place), "tool": tool, "arguments": {}}
        if call is not None:
            inputs = call.inputs
        failed = (message.metadata or {}).get(IS_ERROR) is True
        outputs: JsonObject = {"result": text}
        if failed:
            outputs = {"error": {"type": "ToolError", "message": text}}
        kind, status = AgentStepType.Action, "error" if failed else None
        made = self._maker(message, kind, inputs, outputs, said=None, status=status)
        before = self._last if call is None else self._steps[call.place].before
        return _action(made, call and call.place, before, message)

    def _question_of(self, place: int) -> int | None:
        """Return the place of the question before a message, if both are of one owner."""
        asked = self._question
        same = asked is not None and self._owners[asked] == self._owners[place]
        return asked if same else None

    def _asked(self, place: int) -> str:
        question = self._question_of(place)
        return "" if question is None else text_of(self._line[question].content)

    def _maker(self, *what: Any, **how: Any) -> Callable[[], AgentStep]:
        """Return what makes a step of a message, given what `_step_of` takes besides."""
        before = None if self._last is None else self._line[self._last].id
        return partial(_step_of, before, *what, **how)


def _action(
    made: Callable[[], AgentStep],
    asked: int | None = None,
    before: int | None = None,
    shows: Step | None = None,
) -> MessageStep:
    return MessageStep(AgentStepType.Action, asked, before, _shows=shows, _made=made)


def _inputs_of(purpose: str, *calls: JsonObject) -> JsonObject:
    """Return what some calls of one message ask for, as inputs of a step."""
    named: list[JsonObject] = [
        {"purpose": purpose, "tool": tool, "arguments": arguments}
        for tool, arguments in map(called, calls)
    ]
    if len(named) == 1:
        return named[0]
    each = {f"{n} {i['tool']}": i["arguments"] for n, i in enumerate(named, 1)}
    return {"purpose": purpose, "arguments": each}


def _step_of(
    before: str | None,
    message: Step,
    kind: AgentStepType,
    inputs: _Inputs,
    outputs: JsonObject | None,
    *,
    asked: str | None = None,
    said: str | None = "result",
    status: str | None = None,
) -> AgentStep:
    """Return a message as a step, behind the message of an id."""
    speaker = _speaker(message)
    notes = {k: v for k, v in (message.metadata or {}).items() if k != CARRIED}
    if shown := shown_steps(message):
        notes[SHOWN] = shown
    if said is not None:
        parts = {"purpose": speaker} if kind is AgentStepType.ProgramCall else {said: speaker}
        notes[SAID_BY] = {"purpose": asked, **parts} if asked else parts
    values: dict[str, Any] = {
        "id": as_id(message.id),
        "parent_id": None if before is None else as_id(before),
        "hop": max(message.sequence - 1, 0),
        "step_type": kind,
        "inputs": inputs() if callable(inputs) else inputs,
        "outputs": outputs,
        "metadata": notes,
        "created_at": message.created_at,
        "session_id": message.session_id,
        "run_id": message.run_id,
        "status": status or ("partial" if notes.get("partial") is True else "ok"),
        "metrics": message.metrics,
    }
    ordered = {name: values.get(name, _DEFAULTS.get(name)) for name in AgentStep.model_fields}
    return unvalidated(AgentStep, ordered, {})


def message_steps(line: Sequence[Step], owners: Sequence[object]) -> list[MessageStep]:
    """Return what each message of a line tells. Complexity: linear in their number.

    A line that begins in the middle should begin with a user's message, since what stands before is
    not known. A question and its answer, a call and its result are told together if their owners
    are equal.
    """
    return _Teller(line, owners).tell()


def around(line: Sequence[MessageStep], place: int) -> dict[str, list[int]]:
    """Return the places of what stands around a message in its line, by what `expand` asks for.

    `parents` are those before it, nearest first; `following` those after it that nothing answers;
    `program` is its turn, the question first.
    """
    answered = {one.asked for one in line}
    parents: list[int] = []
    here = line[place].before
    while here is not None:
        parents.append(here)
        here = line[here].before
    telling = [n for n, one in enumerate(line) if one.kind is not None]
    asks = [n for n in telling if line[n].is_question]
    first = max((n for n in asks if n <= place), default=0)
    end = min((n for n in asks if n > place), default=len(line))
    return {
        "parents": parents,
        "following": [n for n in telling if n > place and n not in answered],
        "program": [n for n in telling if first <= n < end and (n == first or n not in answered)],
    }


def _speaker(message: Step) -> str:
    return message.name or message.role.value
