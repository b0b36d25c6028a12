"""SessionHandle: one session, for code that does not await.

It stores nothing and runs nothing itself: reading and writing is the repository's, answering that
of a `StepRunner`, each call in an event loop of its own where none can be awaited.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from hybridagi_steps._concurrency import run_sync
from hybridagi_steps.errors import InvalidSettingError, UnknownSequenceError
from hybridagi_steps.lazy import public_name
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.run import RunResult
from hybridagi_steps.records.store_values import Attempt, BranchPosition
from hybridagi_steps.sessions.repository import Message, SessionRepository
from hybridagi_steps.validation import check_id

UserMessage = str | list[dict[str, Any]]
"""What a user says: a text, or a provider's content parts."""


class SessionRunner(Protocol):
    """What answers in sessions: a `StepRunner`."""

    def ask(
        self, session: Any, message: UserMessage, *, inputs: Mapping[str, Any] | None = None
    ) -> RunResult:
        """Say something in a session and wait for the end."""
        ...

    def retry(
        self, session: Any, sequence: int, *, repository: SessionRepository | None = None
    ) -> AsyncGenerator[StepEvent, None]:
        """Answer a message once more."""
        ...

    def edit(
        self,
        session: Any,
        sequence: int,
        message: UserMessage,
        *,
        inputs: Mapping[str, Any] | None = None,
        repository: SessionRepository | None = None,
    ) -> AsyncGenerator[StepEvent, None]:
        """Replace a message of the user and answer that."""
        ...


class SessionHandle:
    """One session, for code that does not await; `memory.session(id, program)` makes it.

    Every call waits until it is done, in a notebook too, where the kernel's event loop stands
    still meanwhile. Errors are those of the repository and of `StepRunner`.
    """

    def __init__(
        self, repository: SessionRepository, session_id: str, program: object = None
    ) -> None:
        """Speak of a session, which need not be there yet.

        Args:
            repository: Where it is; of one user, if that acts for one.
            session_id: The session.
            program: What answers in it: a StepRunner, or a program for one with the usual config.

        Raises:
            InvalidStepError: The id is no text, or none that can be stored.
        """
        check_id("session_id", session_id)
        self.repository, self.session_id, self._program = repository, session_id, program

    @property
    def user_id(self) -> str | None:
        """The user for whom it reads, writes and asks; None: everybody."""
        return self.repository.user_id

    @property
    def messages(self) -> list[Step]:
        """The messages in order; none of a session that is not there."""
        return run_sync(partial(self.repository.get_steps, self.session_id))

    @property
    def attempts(self) -> list[Attempt]:
        """All branches, oldest first, abandoned ones too."""
        return run_sync(partial(self.repository.attempts, self.session_id))

    def append(
        self,
        messages: Message | Sequence[Message],
        expect_last: int | BranchPosition | None = None,
        idempotency_key: str | None = None,
    ) -> list[Step]:
        """Add messages at the end, all or none; nobody answers. See `SessionRepository.append`."""
        more = (expect_last, idempotency_key)
        return run_sync(partial(self.repository.append, self.session_id, messages, *more))

    def ask(self, message: UserMessage, *, inputs: Mapping[str, Any] | None = None) -> RunResult:
        """Say something and return how it was answered; see `StepRunner.run`.

        Raises:
            RunFailedError: The run failed, or was cancelled.
            InvalidSettingError: There is no program.
        """
        return self._runner().ask(self, message, inputs=inputs)

    def retry(self, sequence: int | None = None) -> RunResult:
        """Answer a message once more, by default the last; see `StepRunner.retry`."""
        at = self._last() if sequence is None else sequence
        return _finished(self._runner().retry(self, at))

    def edit(
        self, sequence: int, message: UserMessage, *, inputs: Mapping[str, Any] | None = None
    ) -> RunResult:
        """Replace a message of the user and answer that; see `StepRunner.edit`."""
        return _finished(self._runner().edit(self, sequence, message, inputs=inputs))

    def fork(self, sequence: int | None = None) -> SessionHandle:
        """Start a session that shares the messages up to `sequence`, by default all of them."""
        at = self._last() if sequence is None else sequence
        fork = run_sync(partial(self.repository.fork, self.session_id, at))
        return SessionHandle(self.repository, fork.session_id, self._program)

    def context(
        self, query: str | None = None, *, system_prompt: str | None = None, **options: Any
    ) -> Any:
        """Return its messages under a budget and what it recalls, a `Context` with its receipt.

        Args:
            query: What older steps are recalled for; by default the newest messages.
            system_prompt: Put before everything.
            options: Of `ContextBuilder`, such as `budget` and `k`.

        Raises:
            NotAllowedError: The session is another user's.
            UnknownSessionError: It is not there.
        """
        self.repository.check_allowed(self.session_id)
        builder = public_name("ContextBuilder")(self.repository.memory, **options)
        return builder.build(session_id=self.session_id, query=query, system_prompt=system_prompt)

    def __repr__(self) -> str:
        return f"<session {self.session_id!r}>"

    def _last(self) -> int:
        last = run_sync(partial(self.repository.get_last_step, self.session_id))
        if last is None:
            raise UnknownSequenceError(self.session_id, 1, 0)
        return last.sequence

    def _runner(self) -> SessionRunner:
        program = self._program
        if program is None:
            raise InvalidSettingError(
                f"nothing answers in session {self.session_id!r}: write "
                f"memory.session({self.session_id!r}, program), a DSPy module or a StepRunner."
            )
        if not hasattr(program, "run_stream"):
            program = self._program = public_name("StepRunner")(program, self.repository.memory)
        return cast("SessionRunner", program)


def _finished(events: AsyncGenerator[StepEvent, None]) -> RunResult:
    return run_sync(partial(RunResult.of, events)).checked()


def retry_from_sequence(
    session_id: Any, sequence: int, repo: SessionRepository, runner: SessionRunner
) -> AsyncGenerator[StepEvent, None]:
    """Answer what the user said, or make the message at `sequence` again; see `StepRunner.retry`.

    An AgentSession with a user lets the run act for that one, not whom the turn was recorded for.
    """
    return runner.retry(session_id, sequence, repository=repo)


def edit_from_sequence(
    session_id: Any,
    sequence: int,
    message: UserMessage,
    repo: SessionRepository,
    runner: SessionRunner,
) -> AsyncGenerator[StepEvent, None]:
    """Replace the user's message at `sequence` and answer the new one; see `StepRunner.edit`."""
    return runner.edit(session_id, sequence, message, repository=repo)
