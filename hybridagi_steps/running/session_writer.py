"""The one place where a run writes: messages and the AgentSteps behind them, in one commit.

It knows where its line of the session ends, and keeps AgentSteps until a message takes them along.
What a refused commit leaves waits for the next one, or is rescued step by step when the run ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from uuid import UUID

from hybridagi_steps.errors import (
    DuplicateStepError,
    MessageError,
    SequenceConflictError,
    StorageBusyError,
    StorageError,
    UnknownSessionError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.recording.call_steps import NODE
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.sessions.lines import History, history_of, look_at, only_user

_log = logging.getLogger("hybridagi_steps")
LOST = (SequenceConflictError, UnknownSessionError)
_PAGE = 256
_MOST_KEPT = 50
"""AgentSteps that wait for a message; a long program without tools stores them in between."""


class SessionWriter:
    """Where a run reads and writes: a line of a session, and the AgentSteps for the next commit.

    AgentSteps wait in the order they were told; each id once, each program's end once. A thread
    that is left alone still tells what it does, after its tool or program was told of as cut off:
    who tells first is believed.

    Args:
        memory: The memory that holds the session.
        session_id: The session; it need not exist yet.
        branch_id: A branch of it; by default the one that it points at now.
    """

    def __init__(self, memory: StepMemory, session_id: str, branch_id: int | None = None) -> None:
        self.memory, self.session_id = memory, session_id
        self.repository = memory.repository()
        self._asked_branch = branch_id
        self._end: BranchPosition | None = None
        self.writing = threading.RLock()
        """Held by who stores something."""
        self._lock = threading.Lock()
        self._waiting: list[AgentStep] = []
        self._prompts: dict[UUID, Sequence[LMCall]] = {}
        self._known: set[str] = set()
        self._ends: dict[str | None, AgentStep] = {}
        self.last_id: UUID | str | None = None
        """The AgentStep told last."""
        self.root_call: AgentStep | None = None
        """The call of the outermost program."""
        self.ended = False
        """Whether the outermost program's end says how the run ended; until then it waits."""
        self.closed = False
        self.lost: Exception | None = None
        """Why nothing more can be stored: the line is gone, or goes on with somebody else's."""

    @property
    def branch_id(self) -> int | None:
        """The branch it writes to; None while the session does not exist."""
        return self._end.branch_id if self._end is not None else self._asked_branch

    @property
    def last(self) -> int:
        """The last sequence."""
        return self._end.sequence if self._end is not None else 0

    @property
    def root_end(self) -> AgentStep | None:
        """The end of the outermost program, if it has ended."""
        return None if self.root_call is None else self._ends.get(str(self.root_call.id))

    def find_end(self) -> int:
        """Look where the line ends; 0 for a session that does not exist."""
        try:
            self._end = look_at(self.repository.store, self.session_id, self._asked_branch)
        except UnknownSessionError:
            if self._asked_branch is not None:
                raise
        return self.last

    def look_again(self) -> None:
        """Let `history` know of what was erased since the end was found."""
        if self._end is not None:
            look_at(self.repository.store, self.session_id, self._end.branch_id)

    def only_user(self) -> str | None:
        """Return the only user that the session's steps name."""
        return only_user(self.repository.store, self.session_id, self._end)

    def messages(self, start: int, end: int) -> list[Step]:
        """Return messages of this line, both ends included."""
        if self._end is None or end < start:
            return []
        store = self.repository.store
        return store.messages(self.session_id, start, end, branch_id=self._end.branch_id)

    def last_turn(self) -> list[Step]:
        """Return the newest message of a user and all that follows it."""
        turn: list[Step] = []
        for last in range(self.last, 0, -_PAGE):
            page = self.messages(max(1, last - _PAGE + 1), last)
            turn = page + turn
            for place in reversed(range(len(page))):
                if turn[place].is_user_step():
                    return turn[place:]
        raise MessageError(f"session {self.session_id!r} has no message of a user to answer.")

    def awaits(self, turn_id: object, branch_id: object) -> bool:
        """Whether a turn that began in a branch is the newest here, and has no answer.

        A later branch is a retry in flight, which the session has not taken over yet.
        """
        if isinstance(branch_id, int) and branch_id != (own := self.branch_id):
            return own is None or branch_id > own
        try:
            first, *since = self.last_turn()
        except MessageError:
            return True  # no user has said anything that could be answered
        is_answered = bool(since) and since[-1].is_assistant_step()
        return first.id == turn_id and not (is_answered and not since[-1].has_tool_calls())

    def history(self, last: int, most: int) -> History | None:
        """Return the newest messages of this line up to `last`; None when there are none."""
        if self._end is None or last < 1:
            return None
        end = BranchPosition(self._end.branch_id, last)
        return history_of(self.repository.store, self.session_id, end, most)

    def keep(self, step: AgentStep) -> bool:
        """Keep an AgentStep for the next commit; return False when it is known or too late."""
        with self._lock:
            ends = step.program_id if step.step_type is AgentStepType.ProgramEnd else None
            if self.closed or str(step.id) in self._known or ends in self._ends:
                return False
            self._known.add(str(step.id))
            if ends is not None:
                self._ends[ends] = step
            if step.step_type is AgentStepType.ProgramCall and step.program_id is None:
                self.root_call = step
            self._waiting.append(step)
            self.last_id = step.id
        # A node of a graph program is where a run is taken up that a crash cut off.
        soon = NODE in (step.metadata or {}) or len(self._waiting) >= _MOST_KEPT
        if soon and self.writing.acquire(blocking=False):
            try:
                self.commit()
            except Exception as error:  # nothing is lost: the next commit takes them, or says why
                _log.warning("AgentSteps wait for the next commit: %s", error)
            finally:
                self.writing.release()
        return True

    def keep_prompts(self, prompts: Mapping[UUID, Sequence[LMCall]]) -> None:
        """Keep what models were asked for AgentSteps, until these are stored."""
        with self._lock:
            self._prompts.update(prompts)

    def knows(self, step_id: UUID | str) -> bool:
        """Tell whether an AgentStep with this id was ever kept."""
        return str(step_id) in self._known

    def waiting(self) -> list[AgentStep]:
        """Return the AgentSteps that wait."""
        with self._lock:
            return list(self._waiting)

    def commit(self, *messages: Step) -> list[Step]:
        """Store admitted messages and the AgentSteps so far, or nothing; then the steps wait."""
        with self.writing:
            steps = self._take()
            if not messages and not steps:
                return []
            try:
                if self.lost is not None:
                    raise self.lost
                stored = self._write(messages, steps)
            except BaseException as error:
                if isinstance(error, LOST):
                    self.lost = error
                with self._lock:
                    self._waiting = [*steps, *self._waiting]
                raise
            self._store_prompts()
            return stored

    def store(self, steps: Sequence[AgentStep]) -> None:
        """Store AgentSteps by themselves, wherever the line ends by now.

        Raises:
            UnknownSessionError: The line is gone: it was erased.
        """
        if self.branch_id is None:
            raise UnknownSessionError(self.session_id)
        self.repository.commit_now(self.session_id, [], steps, branch_id=self.branch_id)

    def rescue(self) -> list[Exception]:
        """Store AgentSteps that a refused commit left, each by itself; return what is refused.

        Nothing is stored in a session that is gone. A step that stands there already was told by
        whoever has taken the turn up.
        """
        refused: list[Exception] = []
        for step in self._take():
            try:
                self.store([step])
            except LOST as error:
                self.lost = self.lost or error
                break
            except Exception as error:
                if self.lost is None or not isinstance(error, DuplicateStepError):
                    refused.append(error)
        self._store_prompts()
        return refused

    def close(self) -> None:
        """Store nothing more: what a thread left alone still does is no part of the run."""
        with self.writing:
            self.closed = True

    def close_at_once(self) -> bool:
        """Close if nothing is being stored; return whether it is closed."""
        if self.writing.acquire(blocking=False):
            self.closed = True
            self.writing.release()
        return self.closed

    def _take(self) -> list[AgentStep]:
        with self._lock:
            stays = None if self.ended else self.root_end
            taken = [step for step in self._waiting if step is not stays]
            self._waiting = [step for step in self._waiting if step is stays]
            return taken

    def _store_prompts(self) -> None:
        """Store the prompts of AgentSteps that wait no more; without them the run goes on."""
        if not self._prompts:
            return
        with self._lock:
            waiting = {step.id for step in self._waiting}
            ready = {name: calls for name, calls in self._prompts.items() if name not in waiting}
            self._prompts = {name: self._prompts[name] for name in self._prompts if name in waiting}
        try:
            if ready:
                self.memory.keep_prompts(ready)
        except Exception as error:
            _log.warning("prompts of %d steps were not kept: %s", len(ready), error)

    def _write(self, messages: Sequence[Step], steps: Sequence[AgentStep]) -> list[Step]:
        try:
            stored = self._commit(messages, steps)
        except StorageBusyError:
            raise
        except StorageError as error:
            # It may be stored, and only the answer lost with a server that a standby stands in for.
            _log.warning("a commit to session %s is tried again: %s", self.session_id, error)
            stored = self._found(messages, steps)
            if stored is None:
                stored = self._commit(messages, steps)
        if self._end is None:
            self._end = self.repository.store.session_end(self.session_id)
        if stored:
            self._end = BranchPosition(self._end.branch_id, stored[-1].sequence)
        return stored

    def _commit(self, messages: Sequence[Step], steps: Sequence[AgentStep]) -> list[Step]:
        return self.repository.commit_now(
            self.session_id,
            messages,
            steps,
            branch_id=self._asked_branch,
            expect_last=self._end if self._end is not None else 0,
        )

    def _found(self, messages: Sequence[Step], steps: Sequence[AgentStep]) -> list[Step] | None:
        """Return what a commit has stored, which stores all or nothing; None: nothing."""
        if not messages:
            return [] if self.memory.get_steps(str(steps[0].id)) else None
        store = self.repository.store
        if (place := store.place_of(messages[0].id)) is None:
            return None
        start, end = place[1], place[1] + len(messages) - 1
        return store.messages(self.session_id, start, end, branch_id=self.branch_id)
