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
from typing import Any

from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidStepError,
    SequenceConflictError,
    UnknownSessionError,
)
from hybridagi_steps.messages.agent_steps import INTERRUPTED, IS_ERROR, result_text
from hybridagi_steps.messages.names import tool_name
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
from hybridagi_steps.running.metering import Meter
from hybridagi_steps.running.rounds import Round, Rounds, ToolTurn
from hybridagi_steps.running.session_line import SessionLine
from hybridagi_steps.running.streaming import Drafts
from hybridagi_steps.running.waiting_steps import WaitingSteps

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
