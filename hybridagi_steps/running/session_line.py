"""The line of messages that one run writes to: a branch of a session, and where it ends.

Every commit says where the run believes the branch ends. So a second writer is noticed before
anything of it is mixed in, and each message of a run is stored once or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hybridagi_steps.errors import UnknownSessionError
from hybridagi_steps.message_admission import admitted_messages
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step
from hybridagi_steps.session_protocols import BranchPosition
from hybridagi_steps.sessions.repository import SessionRepository


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
        """Look where the line ends; 0 for a session that does not exist.

        Raises:
            UnknownSessionError: A branch was asked for, of a session that does not exist.
        """
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
        """Add admitted messages and AgentSteps at the end, all or none; return them as stored.

        Raises:
            SequenceConflictError: Somebody else has written to this branch.
        """
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
        """Add an AgentStep to this branch, wherever it ends by now.

        Raises:
            UnknownSessionError: The session is gone.
            SequenceConflictError: The session is another one by now.
        """
        if (branch := self.branch_id) is None:
            raise UnknownSessionError(self.session_id)
        self._repository.commit_now(self.session_id, [], [step], branch_id=branch)
