"""Sessions for async callers: append, read, fork, retry, delete; nothing is ever overwritten.

SessionRepository has the calls that session code expects, over the store of a memory, whose
promises it shares: checked, redacted, durable on return. What the store does by itself is
synchronous and stands in `repository.store`. No agent is run here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import NotAllowedError, UnknownSequenceError, UnknownSessionError
from hybridagi_steps.protocols import StoreBackend
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.listings import Lines, Sessions
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.redaction import Redact
from hybridagi_steps.records.store_values import Attempt, BranchPosition
from hybridagi_steps.sessions.branch_compare import BranchComparison, compare
from hybridagi_steps.sessions.session_checks import (
    check_batch,
    check_owner,
    check_sequence,
    check_session,
    check_step_owner,
    checked_user,
    fork_point,
)
from hybridagi_steps.stores.listing import listed_sessions
from hybridagi_steps.validation import admitted, admitted_messages, check_id

log = logging.getLogger("hybridagi_steps")

Message = Step | Mapping[str, Any]
"""A Step, or a message in a provider's form: `{"role": "user", "content": "Hello"}`."""
_BETWEEN_CALLS = "fork of session %r at %d: between calls and results; the new one shares 1 to %d."
T = TypeVar("T")
M = TypeVar("M", Step, AgentStep)


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
        user_id: str | None = None,
    ) -> None:
        """Keep sessions in `store`; `memory.repository()` is how people get one.

        Args:
            store: The synchronous store, for callers that are not async.
            redact: Called with every text of a message before anything is stored.
            admit: Checks and redacts AgentSteps; by default as a memory does, vectors unchecked.
            stored: Told how many AgentSteps were stored.
            memory: The memory that the sessions belong to; its `redact` holds for them, too.
            user_id: Whom this acts for: messages are said by that user, and of another's session,
                or one that is not there, everything but a first message is a NotAllowedError.
        """
        self.store, self.memory, self.user_id = store, memory, checked_user(user_id)
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
        session_id, first = check_batch(steps)
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
        keep_times: bool = False,
    ) -> list[Step]:
        """Do as `commit` does from code that is not async, with messages admitted before.

        `after` and `keep_times` are those of the store.
        """
        self.check_allowed(session_id, new=True)
        if self.user_id is not None:
            messages = [self._own(message) for message in messages]
            agent_steps = [self._own(step) for step in agent_steps]
            check_step_owner(self.store, agent_steps, self.user_id)
        steps = self._admit(agent_steps) if agent_steps else []
        kept = self.store.commit(
            session_id,
            messages,
            steps,
            after=after,
            branch_id=branch_id,
            expect_last=expect_last,
            idempotency_key=idempotency_key,
            user_id=self.user_id,
            keep_times=keep_times,
        )
        if self._stored is not None and steps:
            self._stored(len(steps))
        return kept

    def check_allowed(self, session_id: str, *, new: bool = False) -> None:
        """Check that a session is the user's whom this acts for; may block.

        Args:
            session_id: The session.
            new: Whether it may be one that is not there.

        Raises:
            NotAllowedError: It is not, or it is not there.
        """
        if self.user_id is not None:
            check_owner(self.store, session_id, self.user_id, new=new)

    def _own(self, one: M) -> M:
        """Return what is written as this user's; what names another is refused."""
        if one.user_id not in (None, self.user_id):
            raise NotAllowedError(f"this acts for another user than {one.user_id!r}.")
        return one.model_copy(update={"user_id": self.user_id})

    async def _asked(self, session_id: str, call: Callable[[], T]) -> T:
        """Return what a call of the store returns about a session that is allowed."""

        def allowed() -> T:
            self.check_allowed(session_id)
            return call()

        return await in_thread(allowed)

    async def get_steps(
        self, session_id: str, start_seq: int | None = None, end_seq: int | None = None
    ) -> list[Step]:
        """Return a session's messages in order, both ends included; none for an unknown one."""
        check_session(session_id, *(n for n in (start_seq, end_seq) if n is not None))
        return await self._if_known(
            session_id,
            lambda: self.store.messages(session_id, start_seq or 1, end_seq),
            list[Step](),
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

        return await self._asked(session_id, read)

    async def get_last_step(self, session_id: str) -> Step | None:
        """Return the newest message; None when there is none."""
        check_session(session_id)

        def read() -> Step | None:
            branch, last = self.store.session_end(session_id)
            found = self.store.messages(session_id, last, last, branch_id=branch)
            return found[0] if found else None

        return await self._if_known(session_id, read, None)

    async def get_step_count(self, session_id: str) -> int:
        """Return the number of messages; 0 for an unknown session."""
        check_session(session_id)
        end = partial(self.store.session_end, session_id)
        return await self._if_known(session_id, lambda: end().sequence, 0)

    async def delete_steps(self, session_id: str, start_seq: int) -> int:
        """Hide the messages from `start_seq` on; return how many.

        They stay on their branch, where `attempts` shows it, until `memory.vacuum()`.
        """
        check_session(session_id, start_seq)
        hide = partial(self.store.hide_from, session_id, start_seq)
        return await self._if_known(session_id, hide, 0)

    async def sessions(
        self, *, limit: int = 100, offset: int = 0, user_id: str | None = None
    ) -> Sessions:
        """Return sessions, the one written last first; those that were only recorded, too.

        Args:
            limit: Most sessions wanted.
            offset: Sessions passed over.
            user_id: Whose; None: everybody's, or those of the user whom this acts for.

        Raises:
            InvalidQueryError: `limit` or `offset` is no number of sessions.
            NotAllowedError: This acts for another user.
        """
        whose = user_id if self.user_id is None else self.user_id
        if user_id not in (None, whose):
            raise NotAllowedError(f"this acts for another user than {user_id!r}.")
        return await in_thread(partial(listed_sessions, self.store, limit, offset, whose))

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
                log.warning(_BETWEEN_CALLS, session_id, sequence, shared)
            if new_session_id is not None:
                self.check_allowed(new_session_id, new=True)
            made = self.store.fork(session_id, shared, new_session_id, user_id=self.user_id)
            return Fork(made, shared, sequence)

        return await self._asked(session_id, write)

    async def branch_at(self, session_id: str, sequence: int, reason: str = "retry") -> int:
        """Start an attempt after `sequence`; the session stays as it is until `adopt`."""
        check_session(session_id, sequence)
        branch_at = partial(self.store.branch_at, session_id, sequence, reason)
        return await self._asked(session_id, branch_at)

    async def adopt(
        self, session_id: str, branch_id: int, *, expect_branch: int | None = None
    ) -> None:
        """Let the session point at one of its branches; the one it leaves stays in `attempts`.

        Raises:
            SequenceConflictError: It points elsewhere than `expect_branch`, or the branch is not
                one of this session.
        """
        check_session(session_id, branch_id, *([] if expect_branch is None else [expect_branch]))
        adopt = partial(self.store.adopt, session_id, branch_id, expect_branch=expect_branch)
        await self._asked(session_id, adopt)

    async def attempts(self, session_id: str) -> list[Attempt]:
        """Return all branches of a session, oldest first, abandoned ones too."""
        check_session(session_id)
        return Lines(await self._asked(session_id, partial(self.store.attempts, session_id)))

    async def _if_known(self, session_id: str, call: Callable[[], T], otherwise: T) -> T:
        """Return what a call of the store returns, or `otherwise` when there is no such session."""

        def known() -> T:
            try:
                return call()
            except UnknownSessionError:
                return otherwise

        return await self._asked(session_id, known)


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
        UnknownBranchError: A branch is not one of this session.
    """
    check_session(session_id, left, right)
    call = partial(compare, repo.store, session_id, left, right)
    return await repo._asked(session_id, call)  # noqa: SLF001 - a call of the repository, too  # pyright: ignore[reportPrivateUsage]
