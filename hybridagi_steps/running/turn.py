"""What is committed when: the messages of one turn, with the AgentSteps that led to them.

A turn is the user's message, rounds of tool calls, and the answer. The unit of commit is one answer
of a model (with its calls) or one tool result. Calls are stored before their tools run, so that a
crash never hides what was asked for; results are stored in the order of the calls. A second round
that begins while one is open waits on paper, not in practice: its tools run, its messages follow.
An AgentStep waits for no result: a tool that has ended is known to have, whenever a crash comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4

import orjson

from hybridagi_steps.errors import InvalidStepError
from hybridagi_steps.messages.agent_steps import INTERRUPTED, IS_ERROR, result_text
from hybridagi_steps.messages.parts import tool_name
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics, new_id
from hybridagi_steps.running.limits import Meter
from hybridagi_steps.running.session_writer import SessionWriter
from hybridagi_steps.running.streaming import EventStream
from hybridagi_steps.validation import admitted_messages

NO_RESULT = "Error: no tool answered this call."


@dataclass(slots=True, eq=False)
class ToolTurn:
    """One tool call and its result."""

    name: str
    arguments: dict[str, Any]
    call_id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")
    step_id: UUID = field(default_factory=new_id)
    """The AgentStep that tells it."""
    begun: bool = False
    result: Step | None = None
    """The message to be stored, once there is one."""

    @classmethod
    def of(cls, call: Mapping[str, Any]) -> ToolTurn:
        """Return the turn of a call as providers write it."""
        function: Mapping[str, Any] = call.get("function") or {}
        arguments: Any = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = orjson.loads(arguments)
            except orjson.JSONDecodeError:
                arguments = {"arguments": arguments}
        own = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
        turn = cls(str(function.get("name")), own)
        if isinstance(call.get("id"), str) and call["id"]:
            turn.call_id = call["id"]
        return turn

    def as_message_part(self) -> dict[str, Any]:
        """Return the call as providers write it."""
        arguments = orjson.dumps(json_value(self.arguments, [])).decode()
        function = {"name": tool_name(self.name), "arguments": arguments}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(slots=True, eq=False)
class _Round:
    """An assistant's message with calls, and their results."""

    calls: Sequence[ToolTurn]
    content: str | None = None
    reasoning: str | None = None
    metrics: StepMetrics | None = None
    stored: bool = False
    answered: int = 0
    """Results stored."""


class Turn:
    """The messages of one run.

    Args:
        line: Where they are stored.
        run_id: The run.
        parent_run_id: The run around it.
        user_id: Whom it acts for.
        events: What the reader has seen of them.
        meter: What they cost.
        stored: Is given each message once it is stored.
        interrupted: Is given each call that ends without a result and without an AgentStep.
    """

    def __init__(
        self,
        line: SessionWriter,
        run_id: str,
        parent_run_id: str | None,
        user_id: str | None,
        events: EventStream,
        meter: Meter,
        stored: Callable[[Step], None],
        interrupted: Callable[[ToolTurn], None],
    ) -> None:
        self._line = line
        self._ids = {"run_id": run_id, "parent_run_id": parent_run_id, "user_id": user_id}
        self._events, self._meter = events, meter
        self._stored, self._interrupted = stored, interrupted
        self._lock = threading.Lock()
        self._rounds: list[_Round] = []
        """Those that are not wholly stored, oldest first."""
        self._announced: _Round | None = None
        self._call_ids: set[str] = set()
        self.answered = False
        """Whether the run's own answer is stored."""
        self.messages: list[Step] = []
        """What this run has stored, in order."""

    def store_user_message(self, content: object, message_id: str | None = None) -> Step:
        """Store what the user said; nothing else comes before it."""
        named = {} if message_id is None else {"id": message_id}
        return self._store(self._message(MessageRole.USER, content=content, **named))

    def announce(self, calls: list[ToolTurn], content: str | None, reasoning: str | None) -> None:
        """Note which tools a model asked for; stored when the first of them begins.

        A model that is asked again has been told of its calls before; those that no tool began to
        serve (an unknown name) are answered here. An id that the run knows already is made anew:
        who answers a call by its id must not answer another one.
        """
        with self._lock:
            for call in calls:
                if call.call_id in self._call_ids:
                    call.call_id = ToolTurn(call.name, call.arguments).call_id
                self._call_ids.add(call.call_id)
            for call in self._open_calls():
                if not call.begun:
                    call.result = self._error(call, NO_RESULT)
            self._announced = _Round(calls, content or None, reasoning or None)

    def begin_call(self, name: str, arguments: dict[str, Any]) -> ToolTurn:
        """Return the turn of a tool that begins, stored if its turn has come."""
        with self._lock:
            call = self._asked_for(name, arguments)
            if call is None:
                call = ToolTurn(name, arguments)
                self._rounds.append(_Round([call], metrics=self._meter.message()))
            call.begun = True
        self._advance()
        return call

    def end_call(
        self,
        call: ToolTurn,
        content: str,
        metrics: StepMetrics | None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Give a call its result, if it has none; stored when all earlier ones are."""
        result = self._result(call, content, metrics, metadata)
        with self._lock:
            if call.result is None:
                call.result = result
        self._advance()
        with self._lock:
            waits = any(call in each.calls[each.answered :] for each in self._rounds)
        if waits and not self._line.closed:
            self._line.commit()  # a result waits for those of earlier calls, its AgentStep does not

    def close_open_calls(self) -> None:
        """Answer calls that never got a result, so that the turn is whole."""
        with self._lock:
            self._announced = None
            unanswered = self._open_calls()
        for call in unanswered:
            self.interrupt(call)
        self._advance()

    def interrupt(self, call: ToolTurn) -> None:
        """Answer a call with a synthetic result: nobody knows how far its tool came."""
        if not self._line.knows(call.step_id):
            self._interrupted(call)
        self.end_call(call, INTERRUPTED, None, {"interrupted": True, IS_ERROR: True})

    def reopen(self, calls: list[ToolTurn]) -> list[ToolTurn]:
        """Take up calls of an earlier run that have no result; return those that nobody knows of.

        A result waits for those of earlier calls, its AgentStep does not: it may be stored.
        """
        ended = self._line.memory.get_steps([call.step_id for call in calls])
        steps = {str(step.id): step for step in ended}
        with self._lock:
            self._rounds.append(_Round(calls, stored=True))
            self._call_ids.update(call.call_id for call in calls)
        for call in calls:
            if (step := steps.get(str(call.step_id))) is not None:
                text, failed = result_text(step)
                self.end_call(call, text, step.metrics, {IS_ERROR: True} if failed else None)
        return [call for call in calls if call.result is None]

    def store_answer(self, content: str | None, **fields: Any) -> Step:
        """Store what the assistant says, with all AgentSteps so far; `fields` are the message's."""
        metrics = self._meter.message()
        return self._store(
            self._message(MessageRole.ASSISTANT, content=content, metrics=metrics, **fields)
        )

    def open_calls(self) -> list[ToolTurn]:
        """Return the stored calls that have no result."""
        with self._lock:
            return self._open_calls()

    def _open_calls(self) -> list[ToolTurn]:
        """Return the calls of open rounds that have no result."""
        calls = [call for each in self._rounds for call in each.calls]
        return [call for call in calls if call.result is None]

    def is_asked_for(self, name: str) -> bool:
        """Whether a model has asked for a tool that has not begun."""
        with self._lock:
            rounds = [each for each in (self._announced, *self._rounds) if each is not None]
            waiting = (c for each in rounds for c in each.calls if not c.begun and c.result is None)
            return any(call.name == name for call in waiting)

    def _asked_for(self, name: str, arguments: dict[str, Any]) -> ToolTurn | None:
        """Return the call that a model asked for, its round being open from now on."""
        for each in (self._announced, *self._rounds):
            calls = () if each is None else each.calls
            waiting = [call for call in calls if not call.begun and call.result is None]
            fitting = [call for call in waiting if call.name == name]
            if each is None or not fitting:
                continue
            if each is self._announced:
                each.metrics, self._announced = self._meter.message(), None
                self._rounds.append(each)
            exact = (call for call in fitting if call.arguments == arguments)
            return next(exact, fitting[0])
        return None

    def _advance(self) -> None:
        """Store whatever has its turn."""
        with self._line.writing:
            while not self._line.closed and (due := self._next_due()) is not None:
                self._store_due(*due)

    def _next_due(self) -> tuple[_Round, Step | None] | None:
        """Return whose message is to be stored next, a result or (None) that of its calls."""
        with self._lock:
            while self._rounds:
                first = self._rounds[0]
                if not first.stored:
                    return first, None
                if first.answered < len(first.calls):
                    result = first.calls[first.answered].result
                    return None if result is None else (first, result)
                self._rounds.pop(0)
            return None

    def _store_due(self, first: _Round, result: Step | None) -> None:
        """Store the next message of a round; one that is refused holds up none behind it."""
        if result is None:
            try:
                self._store(self._calls_message(first))
            except Exception:
                with self._lock:  # its tools do not run
                    self._rounds.remove(first)
                raise
            first.stored = True
            return
        try:
            self._store(result)
        except InvalidStepError as error:
            call = first.calls[first.answered]
            call.result = self._error(call, f"Error: {error}")
            raise
        first.answered += 1

    def _calls_message(self, opened: _Round) -> Step:
        ids = [str(call.step_id) for call in opened.calls]
        return self._message(
            MessageRole.ASSISTANT,
            content=opened.content,
            reasoning_content=opened.reasoning,
            tool_calls=[call.as_message_part() for call in opened.calls],
            agent_step_id=ids[0] if len(ids) == 1 else None,
            metadata={"agent_step_ids": ids},
            metrics=opened.metrics,
        )

    def _result(
        self,
        call: ToolTurn,
        content: str,
        metrics: StepMetrics | None,
        metadata: dict[str, Any] | None,
    ) -> Step:
        return self._message(
            MessageRole.TOOL,
            content=content,
            tool_call_id=call.call_id,
            name=tool_name(call.name),
            agent_step_id=str(call.step_id),
            metrics=metrics,
            metadata=metadata,
        )

    def _error(self, call: ToolTurn, text: str) -> Step:
        return self._result(call, text, None, {IS_ERROR: True})

    def _message(self, role: MessageRole, **fields: Any) -> Step:
        return Step(session_id=self._line.session_id, role=role, **self._ids, **fields)

    def _store(self, message: Step) -> Step:
        """Store one message with the AgentSteps so far; then tell of it."""
        line, says = self._line, message.role is MessageRole.ASSISTANT
        with line.writing:
            [message] = admitted_messages([message], line.session_id, line.memory.redact)
            [stored] = line.commit(self._events.adopt(message) if says else message)
            self.messages.append(stored)
            if says:
                self._events.complete(stored)
        self._stored(stored)
        return stored
