"""What is committed when: the messages of one turn, with the AgentSteps that led to them.

A turn is the user's message, rounds of tool calls, and the answer. The unit of commit is one answer
of a model (with its calls) or one tool result. Calls are stored before their tools run, so that a
crash never hides what was asked for; results are stored in the order of the calls. A second round
that begins while one is open waits on paper, not in practice: its tools run, its messages follow.
An AgentStep waits for no result: a tool that has ended is known to have, whenever a crash comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import orjson

from hybridagi_steps.errors import InvalidStepError
from hybridagi_steps.messages.agent_steps import INTERRUPTED, IS_ERROR, result_text
from hybridagi_steps.messages.names import tool_name
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.ids import new_id
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
from hybridagi_steps.running.drafts import Drafts
from hybridagi_steps.running.metering import Meter
from hybridagi_steps.running.session_line import SessionLine

_log = logging.getLogger("hybridagi_steps")
_MOST_KEPT = 50
"""AgentSteps that wait for a message; a long program without tools stores them in between."""
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

    def as_message_part(self) -> dict[str, Any]:
        """Return the call as providers write it."""
        arguments = orjson.dumps(json_value(self.arguments, [])).decode()
        function = {"name": tool_name(self.name), "arguments": arguments}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(slots=True, eq=False)
class Round:
    """An assistant's message with calls, and their results."""

    calls: list[ToolTurn]
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
        drafts: What the reader has seen of them.
        meter: What they cost.
        told: Is given each message once it is stored.
        interrupted: Is given each call that ends without a result.
    """

    def __init__(
        self,
        line: SessionLine,
        run_id: str,
        parent_run_id: str | None,
        drafts: Drafts,
        meter: Meter,
        told: Callable[[Step], None],
        interrupted: Callable[[ToolTurn], None],
    ) -> None:
        self._line, self._run_id, self._parent_run_id = line, run_id, parent_run_id
        self._drafts, self._meter = drafts, meter
        self._told, self._interrupted = told, interrupted
        self._rounds: list[Round] = []
        self._announced: Round | None = None
        self._steps: list[AgentStep] = []
        self._lock = threading.Lock()
        self._storing = threading.RLock()
        self.closed = False
        self.answered = False
        """Whether the run's own answer is stored."""
        self.ended = False
        """Whether its ProgramEnd says how it ended."""
        self.last_step_id: UUID | str | None = None
        """The AgentStep kept last."""
        self._step_ids: set[str] = set()
        self._ends: dict[str, AgentStep] = {}
        """The ProgramEnds, by their programs."""
        self.root_call: AgentStep | None = None
        """The call of the outermost program."""
        self.messages: list[Step] = []
        """What this run has stored, in order."""

    def keep(self, step: AgentStep) -> bool:
        """Keep an AgentStep for the next commit unless it comes too late; return whether it did.

        A thread that is left alone still tells what it does: after the turn was closed, or after
        its tool or program was told of as cut off.
        """
        with self._lock:
            ends = step.program_id if step.step_type is AgentStepType.ProgramEnd else None
            if self.closed or str(step.id) in self._step_ids or ends in self._ends:
                return False
            self._step_ids.add(str(step.id))
            if ends is not None:
                self._ends[ends] = step
            if step.step_type is AgentStepType.ProgramCall and step.program_id is None:
                self.root_call = step
            if step.metrics is not None and step.metrics.llm_calls:
                step.metrics.first_token_latency_ms = self._meter.first_token_ms
            self._steps.append(step)
            many = len(self._steps) >= _MOST_KEPT
            self.last_step_id = step.id
        if many and self._storing.acquire(blocking=False):
            try:
                self.store_rest()
            except Exception as error:  # nothing is lost: the next commit takes them, or says why
                _log.warning("AgentSteps wait for the next commit: %s", error)
            finally:
                self._storing.release()
        return True

    @property
    def root_end(self) -> AgentStep | None:
        """The end of the outermost program, if it has ended."""
        return None if self.root_call is None else self._ends.get(str(self.root_call.id))

    def kept(self) -> list[AgentStep]:
        """Return the AgentSteps that are not stored yet."""
        with self._lock:
            return list(self._steps)

    def store_user_message(self, content: Any, message_id: str | None = None) -> Step:
        """Store what the user said; nothing else comes before it.

        Raises:
            DuplicateStepError: The id is stored already.
        """
        named = {} if message_id is None else {"id": message_id}
        return self._store(self._step(MessageRole.USER, content=content, **named))

    def announce(self, calls: list[ToolTurn], content: str | None, reasoning: str | None) -> None:
        """Note which tools a model asked for; stored when the first of them begins.

        A model that is asked again has been told of its calls before; those that no tool began to
        serve (an unknown name) are answered here.
        """
        with self._lock:
            for call in (call for each in self._rounds for call in each.calls):
                if not call.begun and call.result is None:
                    call.result = self._result(call, NO_RESULT, None, {IS_ERROR: True})
            self._announced = Round(calls, content or None, reasoning or None)

    def begin_call(self, name: str, arguments: dict[str, Any]) -> ToolTurn:
        """Return the turn of a tool that begins, stored if its turn has come."""
        with self._lock:
            call = self._announced_call(name, arguments)
            if call is None:
                call = ToolTurn(name, arguments)
                self._rounds.append(Round([call], metrics=self._meter.message()))
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
        """Give a call its result; stored when all earlier ones are."""
        self._answer(call, self._result(call, content, metrics, metadata))

    def close_open_calls(self) -> None:
        """Answer calls that never got a result, so that the turn is whole."""
        with self._lock:
            self._announced = None
            calls = [call for each in self._rounds for call in each.calls]
        for call in calls:
            if call.result is None:
                self.interrupt(call)
        self._advance()

    def interrupt(self, call: ToolTurn) -> None:
        """Answer a call with a synthetic result: nobody knows how far its tool came."""
        if str(call.step_id) not in self._step_ids:
            self._interrupted(call)
        note = {"interrupted": True, IS_ERROR: True}
        self._answer(call, self._result(call, INTERRUPTED, None, note))

    def reopen(self, calls: list[ToolTurn]) -> list[ToolTurn]:
        """Take up calls of an earlier run that have no result; return those that nobody knows of.

        A result waits for those of earlier calls, its AgentStep does not: it may be stored.
        """
        ended = self._line.memory.get_steps([call.step_id for call in calls])
        steps = {str(step.id): step for step in ended}
        with self._lock:
            self._rounds.append(Round(calls, stored=True))
        for call in calls:
            if (step := steps.get(str(call.step_id))) is not None:
                text, failed = result_text(step)
                self.end_call(call, text, step.metrics, {IS_ERROR: True} if failed else None)
        return [call for call in calls if call.result is None]

    def store_answer(
        self,
        content: str | None,
        *,
        reasoning: str | None = None,
        tool_calls: list[dict[str, Any]] | None = None,
        metadata: dict[str, Any] | None = None,
        agent_step_id: str | None = None,
    ) -> Step:
        """Store what the assistant says, with all AgentSteps so far."""
        step = self._step(
            MessageRole.ASSISTANT,
            content=content,
            reasoning_content=reasoning,
            tool_calls=tool_calls,
            agent_step_id=agent_step_id,
            metadata=metadata,
            metrics=self._meter.message(),
        )
        return self._store(step)

    def close(self) -> None:
        """Store nothing more: what a thread left alone still does is no part of the run."""
        with self._storing:
            self.closed = True

    def store_rest(self) -> None:
        """Store AgentSteps that no message took along."""
        with self._storing:
            self._commit([])

    def rescue(self) -> list[Exception]:
        """Store AgentSteps that a refused commit left, each by itself; return what is refused."""
        refused: list[Exception] = []
        for step in self._take_steps():
            try:
                self._line.memory.add(step)
            except Exception as error:
                refused.append(error)
        return refused

    def _answer(self, call: ToolTurn, result: Step) -> None:
        """Give a call its result, the first one if a tool ends while it is cut off."""
        with self._lock:
            if call.result is None:
                call.result = result
        self._advance()
        with self._lock:
            waits = any(call in each.calls[each.answered :] for each in self._rounds)
        if waits and not self.closed:
            self.store_rest()  # a result waits for those of earlier calls, its AgentStep does not

    def _announced_call(self, name: str, arguments: dict[str, Any]) -> ToolTurn | None:
        """Return the call that a model asked for, its round being open from now on."""
        for each in (self._announced, *self._rounds):
            waiting = [] if each is None else [c for c in each.calls if not c.begun]
            fitting = [call for call in waiting if call.name == name]
            exact = [call for call in fitting if call.arguments == arguments]
            if not fitting or each is None:
                continue
            if each is self._announced:
                each.metrics, self._announced = self._meter.message(), None
                self._rounds.append(each)
            return (exact or fitting)[0]
        return None

    def _advance(self) -> None:
        """Store whatever has its turn."""
        with self._storing:
            while not self.closed and (due := self._next_due()) is not None:
                self._store_due(*due)

    def _next_due(self) -> tuple[Round, Step] | None:
        with self._lock:
            while self._rounds:
                first = self._rounds[0]
                if not first.stored:
                    return first, self._calls_message(first)
                if first.answered < len(first.calls):
                    result = first.calls[first.answered].result
                    return None if result is None else (first, result)
                self._rounds.pop(0)
            return None

    def _store_due(self, first: Round, step: Step) -> None:
        """Store the next message of a round; one that is refused holds up none behind it."""
        try:
            self._store(step)
        except Exception as error:
            if not first.stored:
                with self._lock:
                    self._rounds.remove(first)  # its tools do not run
            elif isinstance(error, InvalidStepError):
                call = first.calls[first.answered]
                call.result = self._result(call, f"Error: {error}", None, {IS_ERROR: True})
            raise
        if first.stored:
            first.answered += 1
        first.stored = True

    def _calls_message(self, opened: Round) -> Step:
        ids = [str(call.step_id) for call in opened.calls]
        return self._step(
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
        return self._step(
            MessageRole.TOOL,
            content=content,
            tool_call_id=call.call_id,
            name=tool_name(call.name),
            agent_step_id=str(call.step_id),
            metrics=metrics,
            metadata=metadata,
        )

    def _step(self, role: MessageRole, **fields: Any) -> Step:
        return Step(
            session_id=self._line.session_id,
            run_id=self._run_id,
            parent_run_id=self._parent_run_id,
            role=role,
            **fields,
        )

    def _take_steps(self) -> list[AgentStep]:
        """Take what is to be stored; the run's own ProgramEnd waits until it says how it ended."""
        with self._lock:
            waits = None if self.ended else self.root_end
            steps = [step for step in self._steps if step is not waits]
            self._steps = [step for step in self._steps if step is waits]
            return steps

    def _commit(self, messages: list[Step]) -> list[Step]:
        """Store messages with the AgentSteps so far, which wait on when that is refused."""
        steps = self._take_steps()
        if not messages and not steps:
            return []
        try:
            return self._line.commit(messages, steps)
        except BaseException:
            with self._lock:
                self._steps = [*steps, *self._steps]
            raise

    def _store(self, step: Step) -> Step:
        """Store one message with the AgentSteps so far; then tell of it."""
        with self._storing:
            step = self._line.admitted(step)
            if step.is_assistant_step():
                step = self._drafts.adopt(step)
            [stored] = self._commit([step])
            self.messages.append(stored)
            if stored.is_assistant_step():
                self._drafts.complete(stored)
        self._told(stored)
        return stored
