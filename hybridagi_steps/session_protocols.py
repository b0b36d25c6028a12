"""The contracts of sessions: lines of messages in branches that never lose anything.

A session points at one branch. A branch is an append-only line that knows its parent and the last
sequence it shares with it; so fork, retry and delete add one row and copy nothing. Every back-end
of protocols.py keeps these, too; they stand apart because nothing that searches steps needs them.

An AgentStep can be pinned to a position, (branch, sequence): the message it works towards. Then it
belongs to every session whose lineage reads that branch that far, and to no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step


class BranchPosition(NamedTuple):
    """Where a line of messages ends.

    Unlike a bare sequence it tells "delete two, append two" apart.
    """

    branch_id: int
    sequence: int


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session."""

    session_id: str
    branch_id: int
    """The branch it points at."""
    messages: int
    """How many messages it has."""
    first_message: str
    """Beginning of its first user message."""
    created_at: str
    updated_at: str
    forked_from: str | None = None  # also when that session is deleted
    """The session it was forked from."""
    forked_at: int | None = None
    """The last sequence they share."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One branch of a session."""

    branch_id: int
    forked_at: int
    """The last sequence it shares with the branch it came from."""
    messages: int
    """Messages of its own."""
    reason: str
    """start, fork, retry, edit or delete."""
    created_at: str
    current: bool
    """Whether the session points at it."""


class SessionStore(Protocol):
    """Keeps sessions: gap-free lines of messages, in branches that never lose anything."""

    def commit(
        self,
        session_id: str,
        messages: Sequence[Step],
        agent_steps: Sequence[AgentStep] = (),
        *,
        after: Sequence[int] | None = None,
        branch_id: int | None = None,
        expect_last: int | BranchPosition | None = None,
        idempotency_key: str | None = None,
    ) -> list[Step]:
        """Add messages at the end with the next sequences, and their AgentSteps; all or none.

        An unknown session is created. With `branch_id` they go to that branch of the session, which
        need not be its current one. AgentSteps are pinned to the branch and to the sequence of the
        first message here, or of the next one when there is none; `after` says for each how many of
        these messages stand before its own. One that names no session gets this one. A key used
        before in this session returns what it stored then, and stores nothing: the same key must
        come with messages that say the same (ids and times may differ).
        """
        ...

    def messages(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[Step]:
        """Return the messages from `start` to `end`, both inclusive, with this session's id.

        A range outside the session is empty.
        """
        ...

    def message_dicts(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the same messages as providers take them, without validating any."""
        ...

    def session_end(self, session_id: str, *, branch_id: int | None = None) -> BranchPosition:
        """Return where a session ends; sequence 0 when it is empty."""
        ...

    def pinned_steps(
        self, session_id: str, *, branch_id: int | None = None
    ) -> list[tuple[int, str]]:
        """Return (sequence, id) of the AgentSteps pinned to a session's line, in that order.

        Steps of the same sequence stand as they were stored. An unknown session has none.
        """
        ...

    def place_of(self, message_id: str) -> tuple[str, int] | None:
        """Return a session that reads this message, and its sequence; None when none does."""
        ...

    def sessions(self, *, limit: int, offset: int = 0) -> list[SessionSummary]:
        """Return sessions, the one written last first."""
        ...


class BranchStore(Protocol):
    """Fork, retry and delete: each adds one branch and copies nothing.

    All of them raise `UnknownSessionError` for a session that is not there.
    """

    def fork(self, session_id: str, sequence: int, new_session_id: str | None = None) -> str:
        """Start a session that shares messages 1 to `sequence` with this one; return its id."""
        ...

    def branch_at(self, session_id: str, sequence: int, reason: str = "retry") -> int:
        """Start a branch after `sequence` to write an attempt to; the session stays as it is."""
        ...

    def adopt(self, session_id: str, branch_id: int, *, expect_branch: int | None = None) -> None:
        """Let the session point at one of its branches from now on."""
        ...

    def hide_from(self, session_id: str, start: int) -> int:
        """Hide the messages from `start` on, in this session only; return how many."""
        ...

    def attempts(self, session_id: str) -> list[Attempt]:
        """Return all branches of a session, oldest first, abandoned ones too."""
        ...


class SessionRemoval(Protocol):
    """Forgets what was said for good, which nothing but an explicit request does."""

    def delete_session(self, session_id: str) -> tuple[int, int]:
        """Delete a session with its attempts, and what no other session reads of it.

        Messages and AgentSteps that a fork still reads stay with the fork. Idempotency keys and
        token counts go too, and forks no longer name it. An unknown session is no error.

        Returns:
            How many messages and how many AgentSteps were deleted.
        """
        ...

    def rewrite_messages(self, changed: Mapping[str, Step]) -> int:
        """Put other messages in the place of some, by the ids of these; return how many there were.

        The place stays: session, branch and sequence are those of the message before. It is what
        erasing needs where another session reads on; nothing else changes a stored message.
        """
        ...


class MessageTokenStore(Protocol):
    """Remembers how many tokens each message has, by the counter that said so."""

    def message_tokens(self, message_ids: Sequence[str], counter_id: str) -> dict[str, int]:
        """Return the counts known for these messages."""
        ...

    def save_message_tokens(self, counts: Mapping[str, int], counter_id: str) -> None:
        """Remember counts; messages that are gone are skipped."""
        ...


class SessionBackend(SessionStore, BranchStore, SessionRemoval, MessageTokenStore, Protocol):
    """All of it: what a back-end implements beside `StepStore`."""
