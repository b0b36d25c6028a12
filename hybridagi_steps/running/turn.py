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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import orjson

from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidStepError,
    SequenceConflictError,
    UnknownSessionError,
)
from hybridagi_steps.messages.agent_steps import INTERRUPTED, IS_ERROR, result_text
from hybridagi_steps.messages.parts import tool_name
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics, new_id
from hybridagi_steps.running.limits import Meter
from hybridagi_steps.running.streaming import Drafts
from hybridagi_steps.session_protocols import BranchPosition
from hybridagi_steps.sessions.repository import SessionRepository
from hybridagi_steps.validation import admitted_messages

_log = logging.getLogger("hybridagi_steps")
_LOST = (SequenceConflictError, UnknownSessionError)
_MOST_KEPT = 50
"""AgentSteps that wait for a message; a long program without tools stores them in between."""
NO_RESULT = "Error: no tool answered this call."


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
        self._rounds = Rounds()
        self._storing = threading.RLock()
        self.steps = WaitingSteps()
        """The AgentSteps it was told of."""
        self.closed = False
        self.answered = False
        """Whether the run's own answer is stored."""
        self.ended = False
        """Whether its ProgramEnd says how it ended."""
        self.messages: list[Step] = []
        """What this run has stored, in order."""
        self.lost: Exception | None = None
        """Why it can store no more messages: its line is gone, or goes on with somebody else's."""

    def keep(self, step: AgentStep) -> bool:
        """Keep an AgentStep for the next commit unless it comes too late; return whether it did."""
        if step.metrics is not None and step.metrics.llm_calls:
            step.metrics.first_token_latency_ms = self._meter.first_token_ms
        if self.closed or not self.steps.keep(step):
            return False
        if len(self.steps) >= _MOST_KEPT and self._storing.acquire(blocking=False):
            try:
                self.store_rest()
            except Exception as error:  # nothing is lost: the next commit takes them, or says why
                _log.warning("AgentSteps wait for the next commit: %s", error)
            finally:
                self._storing.release()
        return True

    def store_user_message(self, content: Any, message_id: str | None = None) -> Step:
        """Store what the user said; nothing else comes before it."""
        named = {} if message_id is None else {"id": message_id}
        return self._store(self._step(MessageRole.USER, content=content, **named))

    def announce(self, calls: list[ToolTurn], content: str | None, reasoning: str | None) -> None:
        """Note which tools a model asked for; stored when the first of them begins.

        A model that is asked again has been told of its calls before; those that no tool began to
        serve (an unknown name) are answered here.
        """
        asked = Round(calls, content or None, reasoning or None)
        self._rounds.announce(asked, lambda call: self._error(call, NO_RESULT))

    def begin_call(self, name: str, arguments: dict[str, Any]) -> ToolTurn:
        """Return the turn of a tool that begins, stored if its turn has come."""
        call = self._rounds.begin(name, arguments, self._meter.message)
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
        for call in self._rounds.end():
            self.interrupt(call)
        self._advance()

    def interrupt(self, call: ToolTurn) -> None:
        """Answer a call with a synthetic result: nobody knows how far its tool came."""
        if not self.steps.was_told(call.step_id):
            self._interrupted(call)
        note = {"interrupted": True, IS_ERROR: True}
        self._answer(call, self._result(call, INTERRUPTED, None, note))

    def reopen(self, calls: list[ToolTurn]) -> list[ToolTurn]:
        """Take up calls of an earlier run that have no result; return those that nobody knows of.

        A result waits for those of earlier calls, its AgentStep does not: it may be stored.
        """
        ended = self._line.memory.get_steps([call.step_id for call in calls])
        steps = {str(step.id): step for step in ended}
        self._rounds.reopen(calls)
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
        """Store AgentSteps that a refused commit left, each by itself; return what is refused.

        Nothing is stored in a session that is gone. A step that stands there already was told by
        whoever has taken the turn up.
        """
        refused: list[Exception] = []
        for step in self.steps.take(root_end=self.ended):
            try:
                self._line.add_alone(step)
            except _LOST as error:
                self.lost = self.lost or error
                break
            except Exception as error:
                if self.lost is None or not isinstance(error, DuplicateStepError):
                    refused.append(error)
        return refused

    def _answer(self, call: ToolTurn, result: Step) -> None:
        self._rounds.answer(call, result)
        self._advance()
        if not self.closed and self._rounds.waits(call):
            self.store_rest()  # a result waits for those of earlier calls, its AgentStep does not

    def _advance(self) -> None:
        """Store whatever has its turn."""
        with self._storing:
            while not self.closed and (due := self._rounds.next_due()) is not None:
                self._store_due(*due)

    def _store_due(self, first: Round, result: Step | None) -> None:
        """Store the next message of a round; one that is refused holds up none behind it."""
        if result is None:
            try:
                self._store(self._calls_message(first))
            except Exception:
                self._rounds.drop(first)
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

    def _error(self, call: ToolTurn, text: str) -> Step:
        return self._result(call, text, None, {IS_ERROR: True})

    def _step(self, role: MessageRole, **fields: Any) -> Step:
        return Step(
            session_id=self._line.session_id,
            run_id=self._run_id,
            parent_run_id=self._parent_run_id,
            role=role,
            **fields,
        )

    def _commit(self, messages: Sequence[Step]) -> list[Step]:
        """Store messages with the AgentSteps so far, which wait on when that is refused.

        The run's own ProgramEnd waits until it says how the run ended.
        """
        steps = self.steps.take(root_end=self.ended)
        if not messages and not steps:
            return []
        try:
            if self.lost is not None:
                raise self.lost
            return self._line.commit(messages, steps)
        except BaseException as error:
            if isinstance(error, _LOST):
                self.lost = error
            self.steps.put_back(steps)
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


class Rounds:
    """The rounds of one run that are not wholly stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Round] = []
        self._announced: Round | None = None

    def announce(self, asked: Round, unserved: Callable[[ToolTurn], Step]) -> None:
        """Note what a model asks for; its round is open when the first of its tools begins.

        Calls of open rounds that no tool has begun to serve are given the result of `unserved`.
        """
        with self._lock:
            for call in self._calls():
                if not call.begun and call.result is None:
                    call.result = unserved(call)
            self._announced = asked

    def begin(
        self, name: str, arguments: dict[str, Any], metrics: Callable[[], StepMetrics | None]
    ) -> ToolTurn:
        """Return the call that a tool begins to serve; one that nobody asked for is a round.

        `metrics` is called when a round opens: what its model took.
        """
        with self._lock:
            call = self._asked_for(name, arguments, metrics)
            if call is None:
                call = ToolTurn(name, arguments)
                self._open.append(Round([call], metrics=metrics()))
            call.begun = True
            return call

    def reopen(self, calls: Sequence[ToolTurn]) -> None:
        """Take up calls whose message is stored already."""
        with self._lock:
            self._open.append(Round(list(calls), stored=True))

    def answer(self, call: ToolTurn, result: Step) -> None:
        """Give a call its result, the first one if a tool ends while it is cut off."""
        with self._lock:
            if call.result is None:
                call.result = result

    def waits(self, call: ToolTurn) -> bool:
        """Tell whether a call's result is still to be stored."""
        with self._lock:
            return any(call in each.calls[each.answered :] for each in self._open)

    def end(self) -> list[ToolTurn]:
        """Open no round any more; return the calls without a result."""
        with self._lock:
            self._announced = None
            return [call for call in self._calls() if call.result is None]

    def next_due(self) -> tuple[Round, Step | None] | None:
        """Return whose message is to be stored next, a result or (None) that of its calls."""
        with self._lock:
            while self._open:
                first = self._open[0]
                if not first.stored:
                    return first, None
                if first.answered < len(first.calls):
                    result = first.calls[first.answered].result
                    return None if result is None else (first, result)
                self._open.pop(0)
            return None

    def drop(self, refused: Round) -> None:
        """Forget a round whose calls were not stored: its tools do not run."""
        with self._lock:
            self._open.remove(refused)

    def _calls(self) -> list[ToolTurn]:
        return [call for each in self._open for call in each.calls]

    def _asked_for(
        self, name: str, arguments: dict[str, Any], metrics: Callable[[], StepMetrics | None]
    ) -> ToolTurn | None:
        """Return the call that a model asked for, its round being open from now on."""
        for each in (self._announced, *self._open):
            waiting = [] if each is None else [c for c in each.calls if not c.begun]
            fitting = [call for call in waiting if call.name == name]
            exact = [call for call in fitting if call.arguments == arguments]
            if not fitting or each is None:
                continue
            if each is self._announced:
                each.metrics, self._announced = metrics(), None
                self._open.append(each)
            return (exact or fitting)[0]
        return None


class WaitingSteps:
    """Keeps steps in the order they were told; each id once, each program's end once.

    A thread that is left alone still tells what it does, after its tool or program was told of as
    cut off: who tells first is believed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[AgentStep] = []
        self._told: set[str] = set()
        self._ends: dict[str, AgentStep] = {}
        self.last_id: UUID | str | None = None
        """The step told last."""
        self.root_call: AgentStep | None = None
        """The call of the outermost program."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def keep(self, step: AgentStep) -> bool:
        """Keep a step; return False for one that was told of before."""
        with self._lock:
            ends = step.program_id if step.step_type is AgentStepType.ProgramEnd else None
            if str(step.id) in self._told or ends in self._ends:
                return False
            self._told.add(str(step.id))
            if ends is not None:
                self._ends[ends] = step
            if step.step_type is AgentStepType.ProgramCall and step.program_id is None:
                self.root_call = step
            self._waiting.append(step)
            self.last_id = step.id
            return True

    def was_told(self, step_id: UUID | str) -> bool:
        """Tell whether a step with this id was ever kept."""
        return str(step_id) in self._told

    @property
    def root_end(self) -> AgentStep | None:
        """The end of the outermost program, if it has ended."""
        return None if self.root_call is None else self._ends.get(str(self.root_call.id))

    def waiting(self) -> list[AgentStep]:
        """Return those that wait."""
        with self._lock:
            return list(self._waiting)

    def take(self, *, root_end: bool) -> list[AgentStep]:
        """Take those that wait, the outermost program's end only if `root_end` says so."""
        with self._lock:
            stays = None if root_end else self.root_end
            taken = [step for step in self._waiting if step is not stays]
            self._waiting = [step for step in self._waiting if step is stays]
            return taken

    def put_back(self, steps: Sequence[AgentStep]) -> None:
        """Let steps wait again that were not stored, before all others."""
        with self._lock:
            self._waiting = [*steps, *self._waiting]


class SessionLine:
    """Where a run reads and writes.

    Args:
        memory: The memory that holds the session.
        session_id: The session; it need not exist yet.
        branch_id: A branch of it; by default the one that it points at now.
    """

    def __init__(self, memory: Any, session_id: str, branch_id: int | None = None) -> None:
        self.session_id = session_id
        self._memory = memory
        self._repository: SessionRepository = memory.repository()
        self._store = self._repository.store
        self._asked_branch = branch_id
        self._end: BranchPosition | None = None
        self._lock = threading.Lock()

    @property
    def memory(self) -> Any:
        """The memory that holds the session."""
        return self._memory

    @property
    def branch_id(self) -> int | None:
        """The branch it writes to; None while the session does not exist."""
        return self._end.branch_id if self._end is not None else self._asked_branch

    @property
    def last(self) -> int:
        """The last sequence."""
        return self._end.sequence if self._end is not None else 0

    def find_end(self) -> int:
        """Look where the line ends; 0 for a session that does not exist."""
        try:
            self._end = self._store.session_end(self.session_id, branch_id=self._asked_branch)
        except UnknownSessionError:
            if self._asked_branch is not None:
                raise
            self._end = None
        return self.last

    def messages(self, start: int, end: int) -> list[Step]:
        """Return messages of this line, both ends included."""
        if self._end is None or end < start:
            return []
        return self._store.messages(self.session_id, start, end, branch_id=self._end.branch_id)

    def admitted(self, message: Step) -> Step:
        """Return a message as it may be stored: checked, repaired, redacted."""
        return admitted_messages([message], self.session_id, self._memory.redact)[0]

    def commit(self, messages: Sequence[Step], agent_steps: Sequence[AgentStep]) -> list[Step]:
        """Add admitted messages and AgentSteps at the end, all or none; return them as stored."""
        with self._lock:
            stored = self._repository.commit_now(
                self.session_id,
                messages,
                agent_steps,
                branch_id=self._asked_branch,
                expect_last=self._end if self._end is not None else 0,
            )
            if self._end is None:
                self._end = self._store.session_end(self.session_id)
            if stored:
                self._end = BranchPosition(self._end.branch_id, stored[-1].sequence)
            return stored

    def add_alone(self, step: AgentStep) -> None:
        """Add an AgentStep to this branch, wherever it ends by now."""
        if (branch := self.branch_id) is None:
            raise UnknownSessionError(self.session_id)
        self._repository.commit_now(self.session_id, [], [step], branch_id=branch)
