"""StepRunner: a program as the agent of sessions; each run a stream of events.

The runner itself holds no run's state: it knows a program, a memory and the rules. What is in
flight stands in a register that every runner of the same memory shares, so that a session has one
run at a time, whoever began it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import dspy

from hybridagi_steps.errors import (
    InvalidMemoryError,
    InvalidSettingError,
    LimitReachedError,
    SequenceConflictError,
    UnknownSessionError,
)
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import Step
from hybridagi_steps.running import programs_called as called
from hybridagi_steps.running.answering import Agent, tools_of
from hybridagi_steps.running.config import AgentSession, StepRunnerConfig
from hybridagi_steps.running.execution import Start, execute
from hybridagi_steps.running.run import RUN, ActiveRun
from hybridagi_steps.running.session_line import SessionLine
from hybridagi_steps.running.starting import where_it_stands, with_message
from hybridagi_steps.running.stopping import Stop
from hybridagi_steps.running.tool_gate import watch_tools


class _Register:
    """The runs in flight on one memory."""

    def __init__(self) -> None:
        self.runs: dict[str, ActiveRun] = {}
        self.sessions: dict[str, str] = {}
        self.lock = threading.Lock()


_registers: WeakKeyDictionary[Any, _Register] = WeakKeyDictionary()
_registering = threading.Lock()


class StepRunner:
    """Runs a program in sessions.

    Args:
        program: A DSPy module, sync or async, or a callable over provider messages that returns or
            yields its answer.
        memory: Where sessions and steps are kept.
        hooks: Told of each run; see `RunHook`.
        config: Limits and habits.
        input_field: The input that takes the user's message; needed when there are several.
        output_field: The output that is the answer; by default the one that reads like it.
        tools: Tools for a callable that asks for them in its messages.
        agent: The program, by the name that older code uses.
        repository: The sessions of a memory in place of the memory; then hooks may come second.

    Raises:
        InvalidSettingError: No program, or no telling which input takes the message.
        InvalidMemoryError: Not a step memory.

    Example:
        `async for event in hs.StepRunner(program, memory).run_stream("chat", "Hello"): ...`
    """

    def __init__(
        self,
        program: Any = None,
        memory: Any = None,
        hooks: Sequence[Any] | None = None,
        config: StepRunnerConfig | None = None,
        *,
        input_field: str | None = None,
        output_field: str | None = None,
        tools: Sequence[Any] = (),
        agent: Any = None,
        repository: Any = None,
    ) -> None:
        program = agent if program is None else program
        if repository is not None:
            if isinstance(memory, Sequence):
                hooks, memory = memory, None
            memory = getattr(repository, "memory", None) if memory is None else memory
        if not callable(getattr(memory, "repository", None)):
            raise InvalidMemoryError(memory, "repository()")
        if not callable(program):
            raise InvalidSettingError("StepRunner needs a program: a DSPy module or a callable.")
        self.program, self.memory = program, memory
        self.hooks, self.config = tuple(hooks or ()), config or StepRunnerConfig()
        module = isinstance(program, dspy.Module)
        self._agent = Agent(
            program,
            called.input_field_of(program, input_field) if module else None,
            called.output_field_of(program, output_field) if module else output_field,
            tools_of(program, tools),
        )
        watch_tools()

    async def run_stream(
        self,
        session: str | AgentSession,
        message: str | list[dict[str, Any]],
        *,
        inputs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[StepEvent]:
        """Say something in a session and stream what the program does.

        The first event is RUN_STARTED, the last RUN_COMPLETED, RUN_FAILED or RUN_CANCELLED; what
        goes wrong in between becomes events. A reader that closes the stream cancels the run.

        Args:
            session: The session, a new one if it does not exist.
            message: What the user says: a text, or a provider's content parts.
            inputs: Further inputs of a DSPy program.

        Raises:
            SequenceConflictError: The session has a run already; nothing was stored.
            LimitReachedError: Agents are nested deeper than `max_depth`.
        """
        start = with_message(message, inputs or {})
        async for event in self._stream(_session(session), start):
            yield event

    async def resume_from_user_step(
        self, session: str | AgentSession, last_step: Step
    ) -> AsyncGenerator[StepEvent]:
        """Answer what stands at the end of a session, as after deleting an answer.

        Args:
            session: The session.
            last_step: Its last message.

        Raises:
            SequenceConflictError: The session ends elsewhere, or has a run already.
            UnknownSessionError: No such session.
        """
        start = where_it_stands({}, data={"resumed_at": last_step.sequence})
        async for event in self._stream(_session(session), start, expect_last=last_step.sequence):
            yield event

    async def cancel(self, run_id: str) -> bool:
        """Stop a run gracefully, from any event loop; return whether it was in flight.

        What was stored stays; what was being said is kept as a partial message.
        """
        run = self._register.runs.get(run_id)
        return run is not None and run.stop(Stop("cancelled", "the run was cancelled."))

    async def answer_consent(self, run_id: str, call_id: str, allowed: bool) -> bool:
        """Answer a TOOL_AUTH_REQUIRED event; return whether the question still stood."""
        run = self._register.runs.get(run_id)
        return run is not None and run.consents.answer(call_id, allowed)

    def active_runs(self) -> dict[str, str]:
        """Return the sessions of the runs in flight on this memory, by run id."""
        with self._register.lock:
            return {run_id: run.info.session_id for run_id, run in self._register.runs.items()}

    @property
    def _register(self) -> _Register:
        with _registering:
            return _registers.setdefault(self.memory, _Register())

    async def _stream(
        self,
        session: AgentSession,
        start: Start,
        *,
        branch_id: int | None = None,
        expect_last: int | None = None,
    ) -> AsyncGenerator[StepEvent]:
        """Run and yield the events."""
        line = SessionLine(self.memory, session.session_id, branch_id)
        last = line.find_end()
        if expect_last is not None and last != expect_last:
            if last == 0:
                raise UnknownSessionError(session.session_id)
            raise SequenceConflictError(
                f"session {session.session_id!r} ends at {last}, not at {expect_last}; read its "
                "last message again."
            )
        run = ActiveRun(session, line, self.config, self.hooks, self._parent())
        with self._registered(run):
            work = asyncio.get_running_loop().create_task(execute(run, self._agent, start))
            try:
                async for event in run.events.events():
                    yield event
            finally:
                run.stop(Stop("cancelled", "the reader closed the stream."))
                await _finished(work)

    def _parent(self) -> ActiveRun | None:
        parent: ActiveRun | None = dspy.settings.get(RUN)
        depth = 1 if parent is None else parent.info.depth + 1
        if depth > self.config.max_depth:
            raise LimitReachedError(
                f"agents are nested {depth} deep; max_depth is {self.config.max_depth}.",
                limit="max_depth",
            )
        return parent

    @contextlib.contextmanager
    def _registered(self, run: ActiveRun) -> Any:
        register, info = self._register, run.info
        with register.lock:
            other = register.sessions.setdefault(info.session_id, info.run_id)
            if other != info.run_id:
                raise SequenceConflictError(
                    f"session {info.session_id!r} has a run in flight, {other}; wait for its end "
                    "or cancel it."
                )
            register.runs[info.run_id] = run
        try:
            yield
        finally:
            with register.lock:
                del register.runs[info.run_id], register.sessions[info.session_id]


async def _finished(work: asyncio.Task[None]) -> None:
    """Wait for a run to end, however often the waiting is cancelled; then let that through."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as error:
            if not work.done():
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _session(session: str | AgentSession) -> AgentSession:
    if isinstance(session, AgentSession):
        return session
    if isinstance(session, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        return AgentSession(session)
    given = getattr(session, "session_id", None)
    if isinstance(given, str):
        return AgentSession(given, getattr(session, "user_id", None))
    raise InvalidSettingError(f"a session is an id or an AgentSession, not {session!r:.80}.")
