"""StepRunner: a program as the agent of sessions; each run a stream of events.

The runner itself holds no run's state, only a program, a memory and the rules. What is in flight
stands in a register that all runners of a memory share: so a session has one run at a time.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Self

import dspy

from hybridagi_steps._concurrency import in_thread, run_sync
from hybridagi_steps.errors import (
    InvalidMemoryError,
    InvalidSettingError,
    LimitReachedError,
    UnknownSessionError,
)
from hybridagi_steps.recording.scopes import RUN
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.run import RunResult
from hybridagi_steps.running.active_run import ActiveRun, register_of
from hybridagi_steps.running.execution import execute
from hybridagi_steps.running.limits import AgentSession, StepRunnerConfig, checked_answers
from hybridagi_steps.running.pending_calls import (
    PendingCall,
    answered_meanwhile,
    ask_inside,
    pending_calls,
    resume_with_answers,
)
from hybridagi_steps.running.program_adapter import Agent
from hybridagi_steps.running.starting import (
    Start,
    begin_run,
    check_message,
    check_unanswered,
    config_of,
    end_of_session,
    hooks_of,
    new_attempt,
    own_session,
    session_of,
    where_it_stands,
    with_message,
)
from hybridagi_steps.running.stopping import Stop, finished
from hybridagi_steps.running.streaming import FINAL_EVENTS, HomeLoop
from hybridagi_steps.running.tool_calls import watch_tools
from hybridagi_steps.sessions.repository import SessionRepository

Events = AsyncGenerator[StepEvent, None]
Message = str | list[dict[str, Any]]
"""What a user says: a text, or a provider's content parts."""


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
        keep_prompts: Whether what models are sent and give is kept, whatever `config` says.
        repository: The sessions of a memory in place of the memory; then hooks may come second.

    Raises:
        InvalidSettingError: No program, hooks or config that are none, or no telling which input
            takes the message.
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
        agent: object = None,
        keep_prompts: bool = False,
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
        self.hooks, self.config = hooks_of(hooks), config_of(config, keep_prompts)
        self._register = register_of(memory)
        self._agent = Agent.of(program, input_field, output_field, tools)
        watch_tools()

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a runner of a copied program; memory, hooks and config are shared."""
        made, agent = self.__copy__(), self._agent
        program = made.program = copy.deepcopy(self.program, memo)
        tools = list(agent.tools.values())
        made._agent = Agent.of(program, agent.input_field, agent.output_field, tools)  # noqa: SLF001 - of its own kind
        return made

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a StepRunner cannot be pickled: pickle its program and make a new StepRunner with the "
            "memory where it is needed."
        )

    def run_stream(
        self,
        session: str | AgentSession,
        message: Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        message_id: str | None = None,
    ) -> Events:
        """Say something in a session and stream what the program does.

        The first event is RUN_STARTED, the last RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED or
        RUN_PAUSED; what goes wrong in between becomes events. A reader that closes the stream
        cancels the run.

        Args:
            session: The session, a new one if it does not exist.
            message: What the user says: a text, or a provider's content parts.
            inputs: Further inputs of a DSPy program.
            message_id: The id of the user's message; a run that repeats one fails before it asks.

        Raises:
            MessageError: The message is empty, or neither text nor parts; nothing was stored.
            SequenceConflictError: The session has a run already; nothing was stored.
            LimitReachedError: Agents are nested deeper than `max_depth`.
            NotAllowedError: The session is another's than the user whom it names.
        """

        async def start() -> Start:
            check_message(message)
            named = session_of(session)
            return with_message(message, inputs or {}, message_id=message_id, session=named)

        return self._stream(start)

    async def run(
        self,
        session: str | AgentSession,
        message: Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        raise_on_failure: bool = True,
    ) -> RunResult:
        """Say something in a session and wait for the end, or a pause; see `run_stream`.

        Raises:
            RunFailedError: The run failed, or was cancelled; its `result` is what there is of it.
                `raise_on_failure=False` returns that.
        """
        events = self.run_stream(session, message, inputs=inputs)
        first = await anext(events)
        run = self._register.find(first.run_id)
        result = await RunResult.of(events, first=first)
        if not raise_on_failure:
            return result
        return result.checked(None if run is None else run.error)

    def ask(
        self,
        session: str | AgentSession,
        message: Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        raise_on_failure: bool = True,
    ) -> RunResult:
        """Do as `run` does for code that does not await, in a notebook too.

        An event loop that runs here stands still meanwhile: async tools that live on it need `run`.
        """
        more: dict[str, Any] = {"inputs": inputs, "raise_on_failure": raise_on_failure}
        return run_sync(partial(self.run, session, message, **more))

    def as_tool(self, name: str, description: str) -> dspy.Tool:
        """Return a `dspy.Tool` that asks this agent, each time in a new session.

        The run is a child of the one whose program calls the tool: its messages name that run, its
        cost counts there too, and `max_depth` holds. When a tool of it needs consent, the outer
        stream says so, with `nested_run_id`; when it pauses, so does the outer run. Async programs
        call it; a sync one needs `allow_tool_async_sync_conversion` of DSPy's settings.
        """

        async def ask(message: str) -> str:
            parent: ActiveRun | None = dspy.settings.get(RUN)
            if parent is not None:
                return await ask_inside(self, parent, message)
            return (await RunResult.of(self.run_stream(AgentSession(), message))).checked().text

        return dspy.Tool(ask, name=name, desc=description)

    def resume_from_user_step(self, session: str | AgentSession, last_step: Step) -> Events:
        """Answer what stands at the end of a session, `last_step`, as after deleting an answer.

        Raises:
            MessageError: An answer stands there.
            SequenceConflictError: The session ends elsewhere, or has a run already.
            UnknownSessionError: No such session.
        """

        async def start() -> Start:
            check_unanswered(last_step)
            named = await own_session(self.memory, session)
            return end_of_session(named, last_step, {})

        return self._stream(start)

    async def pending(self, session: str | AgentSession) -> list[PendingCall]:
        """Return what a session's last turn waits for: calls that have no result, and questions.

        Of a run that has paused, or whose process has died, `resume` takes the answers.
        """
        named = await own_session(self.memory, session)
        return await in_thread(partial(pending_calls, self.memory, named.session_id))

    def resume(
        self,
        session: str | AgentSession,
        *,
        inputs: Mapping[str, Any] | None = None,
        answers: Mapping[str, bool | str] | None = None,
    ) -> Events:
        """Take up a turn that has paused, or was cut off by a crash; no events when none was.

        Calls without a result are closed first: a tool declared `idempotent` runs again, any other
        is answered with a synthetic result that says it was interrupted. One that waited for
        consent has not begun: it runs if it is allowed now, and once. Then the program is asked
        the turn's question again, with `inputs`, and shown what was done since; a module that
        calls tools by itself gets what the same calls gave before.

        Args:
            session: The session.
            inputs: Further inputs of a DSPy program.
            answers: By the ids of calls and questions: True or False where consent is waited for,
                a text for the user's answer. A text to a call says what it gave, such as what was
                found out of a tool that was in flight, and that tool is not run. The others are
                asked about again; without an answer the run pauses again.

        Raises:
            UnknownSessionError: No such session.
            InvalidSettingError: An answer to a call that waits for none, or no True, False or text.
            SequenceConflictError: The session has a run in flight, or somebody else has answered.
        """

        async def start() -> Start | None:
            said = checked_answers(answers)
            named = await own_session(self.memory, session)
            last = await self.repository.get_last_step(named.session_id)
            if last is None:
                raise UnknownSessionError(named.session_id)
            if last.is_assistant_step() and not last.has_tool_calls():
                if said:
                    raise answered_meanwhile(named.session_id, said)
                return None
            start = end_of_session(named, last, inputs or {}, resumes=last.run_id)
            return await in_thread(
                partial(resume_with_answers, start, self._agent, self.memory, said)
            )

        return self._stream(start)

    def retry(
        self,
        session: str | AgentSession,
        sequence: int,
        *,
        repository: SessionRepository | None = None,
    ) -> Events:
        """Answer a message of the user once more, on a branch of its own.

        With the sequence of an answer or of a tool's result, that message and what follows in its
        turn are made again; a result together with the calls that it belongs to. The session takes
        the new answer over when the run has completed; until then, and if it fails, it keeps the
        old one. `repository.attempts` lists all of them.

        Raises:
            UnknownSessionError: No such session.
            UnknownSequenceError: It has no message at `sequence`.
            MessageError: Nobody has asked anything there, or a summary stands there.
            SequenceConflictError: The session has a run in flight.
        """

        async def start() -> Start:
            repo, free = repository or self.repository, self._register.check_free
            branch = await new_attempt(self.memory, repo, session, sequence, "retry", free)
            return where_it_stands({}, **branch)

        return self._stream(start)

    def edit(
        self,
        session: str | AgentSession,
        sequence: int,
        message: Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        repository: SessionRepository | None = None,
    ) -> Events:
        """Replace a message of the user and answer that, on a branch of its own; as `retry` does.

        Raises:
            MessageError: The new message is none; else as `retry`.
        """

        async def start() -> Start:
            check_message(message)
            repo, free = repository or self.repository, self._register.check_free
            branch = await new_attempt(self.memory, repo, session, sequence, "edit", free)
            return with_message(message, inputs or {}, **branch)

        return self._stream(start)

    async def cancel(self, run_id: str) -> bool:
        """Stop a run gracefully, from any event loop; return whether it was in flight.

        What was stored stays; what was being said is kept as a partial message.
        """
        run = self._register.find(run_id)
        return run is not None and run.stop(Stop("cancelled", "the run was cancelled."))

    def active_runs(self) -> dict[str, str]:
        """Return the sessions of the runs in flight on this memory, by run id."""
        return self._register.sessions()

    @property
    def repository(self) -> SessionRepository:
        """The sessions of the memory."""
        return self.memory.repository()

    async def _stream(self, begin: Callable[[], Awaitable[Start | None]]) -> Events:
        """Run and yield the events; none when there is nothing to begin with."""
        start = await begin()
        if start is None:
            return
        home, made, work = HomeLoop.running(), list[ActiveRun](), list[asyncio.Task[None]]()
        how, began, ended = (self.config, self.hooks, self._parent(), home), home.loop.time(), False
        try:
            try:
                await in_thread(partial(begin_run, self.memory, self._agent, start, how, made))
            finally:  # what the user says may be stored by now, whoever has left
                for run in made:
                    work.append(home.loop.create_task(execute(run, self._agent, start, began)))
                    work[0].add_done_callback(run.end_for_sure)
            while not ended:
                for event in await made[0].events.take():
                    ended = event.type in FINAL_EVENTS
                    yield event
        finally:
            for run, task in zip(made, work, strict=True):
                run.stop(Stop("cancelled", "the reader closed the stream."))
                await finished(task)

    def _parent(self) -> ActiveRun | None:
        parent: ActiveRun | None = dspy.settings.get(RUN)
        depth = 1 if parent is None else parent.info.depth + 1
        if depth > self.config.max_depth:
            found = f"agents are nested {depth} deep; max_depth is {self.config.max_depth}."
            raise LimitReachedError(found, limit="max_depth")
        return parent
