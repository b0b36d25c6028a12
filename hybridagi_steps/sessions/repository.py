"""Sessions for async callers: append, read, fork, retry, delete; nothing is ever overwritten.

SessionRepository has the calls that session code expects, over the store of a memory, whose
promises it shares: checked, redacted, durable on return. What the store does by itself is
synchronous and stands in `repository.store`. Running an agent in a session is not done here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import (
    InvalidSettingError,
    InvalidStepError,
    SequenceConflictError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.protocols import SessionStore, StoreBackend
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.redaction import Redact
from hybridagi_steps.records.store_values import Attempt, BranchPosition, SessionSummary
from hybridagi_steps.sessions.branch_compare import BranchComparison, compare
from hybridagi_steps.validation import admitted, admitted_messages, check_id, checked_page

log = logging.getLogger("hybridagi_steps")

Message = Step | Mapping[str, Any]
"""A Step, or a message in a provider's form: `{"role": "user", "content": "Hello"}`."""
T = TypeVar("T")
_LONGEST_BATCH = 256
"""Messages around a fork point that are looked at."""


class Fork(NamedTuple):
    """A session made from another one."""

    session_id: str
    sequence: int
    """The last message they share."""
    asked: int
    """The last message that was asked for; bigger when that stood inside a batch of tool calls."""


class SessionRepository:
    """The sessions of a memory.

    Example:
        >>> import asyncio
        >>> from hybridagi_steps import StepMemory
        >>> repo = StepMemory(":memory:", embedder="hashing").repository()
        >>> said = repo.append("chat", [{"role": "user", "content": "Hello"}])
        >>> [step.sequence for step in asyncio.run(said)]
        [1]
    """

    def __init__(
        self,
        store: StoreBackend,
        *,
        redact: Redact | None = None,
        admit: Callable[[Sequence[AgentStep]], list[AgentStep]] | None = None,
        stored: Callable[[int], None] | None = None,
        memory: object = None,
    ) -> None:
        """Keep sessions in `store`; `memory.repository()` is how people get one.

        Args:
            store: The synchronous store, for callers that are not async.
            redact: Called with every text of a message before anything is stored.
            admit: Checks and redacts AgentSteps; by default as a memory does, vectors unchecked.
            stored: Told how many AgentSteps were stored.
            memory: The memory that the sessions belong to; its `redact` holds for them, too.
        """
        self.store, self.memory = store, memory
        self._redact = redact = redact or getattr(memory, "redact", None)
        self._admit = admit or partial(admitted, redact=redact)
        self._stored = stored

    async def save_step(self, step: Step) -> Step:
        """Store one message, which must be the session's next.

        Raises:
            SequenceConflictError: Its sequence is not the last one + 1.
        """
        return (await self.save_steps_batch([step]))[0]

    async def save_steps_batch(self, steps: Sequence[Step]) -> list[Step]:
        """Store messages of one session, all or none; their sequences must be the next ones.

        Raises:
            SequenceConflictError: They do not follow on the session's end, or have gaps.
            InvalidStepError: They belong to several sessions.
        """
        if not steps:
            return []
        for step in steps:
            check_sequence(step.sequence)
        session_id, first = steps[0].session_id, steps[0].sequence
        if any(step.session_id != session_id for step in steps):
            raise InvalidStepError("a batch is of one session; save each session's by itself.")
        wanted = list(range(first, first + len(steps)))
        if first < 1 or [step.sequence for step in steps] != wanted:
            raise SequenceConflictError(
                f"session {session_id!r}: sequences {[step.sequence for step in steps][:5]} do not "
                "count 1, 2, 3 …; append() gives messages the next ones by itself."
            )
        return await self.append(session_id, steps, expect_last=first - 1)

    async def append(
        self,
        session_id: str,
        messages: Message | Sequence[Message],
        expect_last: int | BranchPosition | None = None,
        idempotency_key: str | None = None,
    ) -> list[Step]:
        """Add messages at the end of a session, all or none; an unknown session is created.

        Args:
            session_id: The session.
            messages: What to add; sequences they bring along are replaced.
            expect_last: Where the session must end, a sequence or a position.
            idempotency_key: Repeating one returns what its first use stored.

        Returns:
            The messages as stored.

        Raises:
            SequenceConflictError: The session ends elsewhere, or the key stored something else.
            DuplicateStepError: A message with this id is stored already.
            InvalidStepError: A message that cannot be kept; nothing was stored.
        """
        return await self.commit(
            session_id, messages, expect_last=expect_last, idempotency_key=idempotency_key
        )

    async def commit(
        self,
        session_id: str,
        messages: Message | Sequence[Message],
        agent_steps: Sequence[AgentStep] = (),
        *,
        branch_id: int | None = None,
        expect_last: int | BranchPosition | None = None,
        idempotency_key: str | None = None,
    ) -> list[Step]:
        """Add messages and the AgentSteps behind them, all or none; see `append`.

        With `branch_id` they go to that branch of the session, such as an attempt under way.
        """
        ends = expect_last if isinstance(expect_last, tuple) else (expect_last,)
        for number in (branch_id, *ends):
            if number is not None:
                check_sequence(number)
        if idempotency_key is not None:
            check_id("idempotency_key", idempotency_key)

        def write() -> list[Step]:
            return self.commit_now(
                session_id,
                admitted_messages(messages, session_id, self._redact),
                agent_steps,
                branch_id=branch_id,
                expect_last=expect_last,
                idempotency_key=idempotency_key,
            )

        return await in_thread(write)

    def commit_now(
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
        """Do as `commit` does from code that is not async, with messages admitted before.

        `after` says for each AgentStep how many of the messages stand before its own.
        """
        steps = self._admit(agent_steps) if agent_steps else []
        kept = self.store.commit(
            session_id,
            messages,
            steps,
            after=after,
            branch_id=branch_id,
            expect_last=expect_last,
            idempotency_key=idempotency_key,
        )
        if self._stored is not None and steps:
            self._stored(len(steps))
        return kept

    async def get_steps(
        self, session_id: str, start_seq: int | None = None, end_seq: int | None = None
    ) -> list[Step]:
        """Return a session's messages in order, both ends included; none for an unknown one."""
        check_session(session_id, *(n for n in (start_seq, end_seq) if n is not None))
        return await _if_known(
            lambda: self.store.messages(session_id, start_seq or 1, end_seq), list[Step]()
        )

    async def get_step(self, session_id: str, sequence: int) -> Step:
        """Return one message.

        Raises:
            UnknownSessionError: No such session.
            UnknownSequenceError: It has no message there.
        """
        check_session(session_id, sequence)

        def read() -> Step:
            found = self.store.messages(session_id, sequence, sequence) if sequence > 0 else []
            if found:
                return found[0]
            last = self.store.session_end(session_id).sequence
            raise UnknownSequenceError(session_id, sequence, last)

        return await in_thread(read)

    async def get_last_step(self, session_id: str) -> Step | None:
        """Return the newest message; None when there is none."""
        check_session(session_id)

        def read() -> Step | None:
            branch, last = self.store.session_end(session_id)
            found = self.store.messages(session_id, last, last, branch_id=branch)
            return found[0] if found else None

        return await _if_known(read, None)

    async def get_step_count(self, session_id: str) -> int:
        """Return the number of messages; 0 for an unknown session."""
        check_session(session_id)
        return await _if_known(lambda: self.store.session_end(session_id).sequence, 0)

    async def delete_steps(self, session_id: str, start_seq: int) -> int:
        """Hide the messages from `start_seq` on; return how many.

        They stay on their branch, where `attempts` shows it, until `memory.vacuum()`.
        """
        check_session(session_id, start_seq)
        return await _if_known(lambda: self.store.hide_from(session_id, start_seq), 0)

    async def sessions(self, *, limit: int = 100, offset: int = 0) -> list[SessionSummary]:
        """Return sessions, the one written last first.

        Raises:
            InvalidQueryError: `limit` or `offset` is no number of sessions.
        """
        limit, offset = checked_page(limit, offset)
        return await in_thread(lambda: self.store.sessions(limit=limit, offset=offset))

    async def fork(self, session_id: str, sequence: int, new_session_id: str | None = None) -> Fork:
        """Start a session that shares this one's messages up to `sequence`; nothing is copied.

        Between tool calls and their results no provider takes a history, so a fork asked for there
        goes back to before the calls; the answer says where it went.

        Raises:
            UnknownSessionError: No such session.
            UnknownSequenceError: It has no message at `sequence`.
            InvalidSettingError: `sequence` is no whole number.
            InvalidStepError: `new_session_id` is no id that can be kept.
            SequenceConflictError: `new_session_id` is taken.
        """
        check_session(session_id, sequence)
        if new_session_id is not None:
            check_id("new_session_id", new_session_id)

        def write() -> Fork:
            shared = fork_point(self.store, session_id, sequence)
            if shared != sequence:
                log.warning(
                    "fork of session %r at %d: that is between tool calls and their results; "
                    "the new session shares 1 to %d.",
                    session_id,
                    sequence,
                    shared,
                )
            made = self.store.fork(session_id, shared, new_session_id)
            return Fork(made, shared, sequence)

        return await in_thread(write)

    async def branch_at(self, session_id: str, sequence: int, reason: str = "retry") -> int:
        """Start an attempt after `sequence`; the session stays as it is until `adopt`."""
        check_session(session_id, sequence)
        return await in_thread(lambda: self.store.branch_at(session_id, sequence, reason))

    async def adopt(
        self, session_id: str, branch_id: int, *, expect_branch: int | None = None
    ) -> None:
        """Let the session point at one of its branches; the one it leaves stays in `attempts`.

        Raises:
            SequenceConflictError: It points elsewhere than `expect_branch`, or the branch is not
                one of this session.
        """
        check_session(session_id, branch_id, *([] if expect_branch is None else [expect_branch]))
        await in_thread(
            lambda: self.store.adopt(session_id, branch_id, expect_branch=expect_branch)
        )

    async def attempts(self, session_id: str) -> list[Attempt]:
        """Return all branches of a session, oldest first, abandoned ones too."""
        check_session(session_id)
        return await in_thread(lambda: self.store.attempts(session_id))


async def _if_known(call: Callable[[], T], otherwise: T) -> T:
    """Return what a call of the store returns, or `otherwise` when there is no such session."""

    def known() -> T:
        try:
            return call()
        except UnknownSessionError:
            return otherwise

    return await in_thread(known)


async def fork_session(session_id: str, sequence: int, repo: SessionRepository) -> str:
    """Start a session with the steps 1 to `sequence` of another; return its id.

    Nothing is copied. A fork inside a batch of tool calls goes back to before the calls and says so
    in the log; `repo.fork` returns where it went.

    Raises:
        UnknownSessionError: No such session.
        UnknownSequenceError: It has no message at `sequence`.
    """
    return (await repo.fork(session_id, sequence)).session_id


async def compare_branches(
    repo: SessionRepository, session_id: str, left: int, right: int
) -> BranchComparison:
    """Compare two branches of a session, such as an answer and its retry; `attempts` names them.

    Raises:
        UnknownSessionError: No such session.
        SequenceConflictError: A branch is not one of this session.
    """
    check_session(session_id, left, right)
    return await in_thread(lambda: compare(repo.store, session_id, left, right))


def check_session(session_id: object, *numbers: object) -> None:
    """Check the name of a session, and numbers of its messages or branches."""
    if not isinstance(session_id, str):
        raise InvalidSettingError(f"the id of a session is a text, not {session_id!r:.80}.")
    for number in numbers:
        check_sequence(number)


def check_sequence(sequence: object) -> None:
    """Check that something can be the number of a message."""
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise InvalidSettingError(f"a sequence is a whole number, not {sequence!r:.80}.")


def fork_point(store: SessionStore, session_id: str, sequence: int) -> int:
    """Return the last sequence up to `sequence` at which no tool call waits for its result."""
    around = store.messages(session_id, max(sequence - _LONGEST_BATCH, 1), sequence)
    results: set[str | None] = set()
    for step in reversed(around):
        if step.is_tool_step():
            results.add(step.tool_call_id)
            continue
        open_calls = {call.get("id") for call in step.tool_calls or []} - results
        return step.sequence - 1 if open_calls else sequence
    return sequence
