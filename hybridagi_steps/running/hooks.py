"""Who else has a say in a run: hooks, told of it at nine points, and whoever consents to its tools.

A hook is any object with some of the methods of `RunHook`; each may be sync or async. A hook that
fails is reported as an ERROR event and the run goes on; `RunVetoed` ends the run, and so does a
hook that tries to end the process.

Consent to a tool comes from the config's callable, which decides at once, is awaited however long
it takes, or says None: then the run pauses. Whatever else is not a clear yes is a no: an error, a
timeout.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import InvalidSettingError, StorageError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.message import Step
from hybridagi_steps.running import stored_consents
from hybridagi_steps.running.limits import Consent, ToolRequest
from hybridagi_steps.running.session_writer import LOST, SessionWriter
from hybridagi_steps.running.stopping import ProgramExitError, RunVetoed, Stop, done_on, no_exit
from hybridagi_steps.running.streaming import EventStream, HomeLoop

_log = logging.getLogger("hybridagi_steps")
DENIED = "the user did not allow this call."
_ANSWERS = {"allow": True, "deny": False}
_AT_ONCE_SECONDS = 0.2
"""How long whoever consents may take before the question is stored: who asks a person takes longer
than a process may live, who looks something up does not."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a hook is told about the run."""

    run_id: str
    session_id: str
    user_id: str | None
    parent_run_id: str | None
    depth: int


class RunHook:
    """Nine points of a run; override what you need, sync or async."""

    def on_run_start(self, run: RunInfo) -> Any:
        """The run has begun; nothing is stored yet."""

    def on_run_end(self, run: RunInfo, status: str, data: dict[str, Any]) -> Any:
        """The run has completed, failed, paused or was cancelled; `data` is its last event's."""

    def on_step_start(self, run: RunInfo, step_id: str) -> Any:
        """A message has begun to stream."""

    def on_step_end(self, run: RunInfo, step: Step) -> Any:
        """A message is stored."""

    def on_model_start(self, run: RunInfo, messages: list[dict[str, Any]]) -> Any:
        """A language model is about to be asked."""

    def on_model_end(self, run: RunInfo, outputs: Any) -> Any:
        """It has answered; `outputs` is None when it failed."""

    def on_tool_start(self, run: RunInfo, request: ToolRequest) -> Any:
        """A tool is about to run."""

    def on_tool_end(self, run: RunInfo, request: ToolRequest, result: Any) -> Any:
        """It has given its result, or the exception it raised."""

    def on_error(self, run: RunInfo, error: BaseException) -> Any:
        """Something failed: a tool, a hook, the program."""


class HookCaller:
    """Calls the hooks of one run.

    Args:
        hooks: Objects with some of the methods of `RunHook`.
        run: What they are told.
        events: Where a hook that fails is reported.
        stop: Stops the run.
        home: The run's event loop.
    """

    def __init__(
        self,
        hooks: Sequence[object],
        run: RunInfo,
        events: EventStream,
        stop: Callable[[Stop], object],
        home: HomeLoop,
    ) -> None:
        self._hooks, self._run = tuple(hooks), run
        self._events, self._stop = events, stop
        self._home = home
        self._pending: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    async def tell(self, point: str, *args: object) -> None:
        """Call all hooks at one point and wait for them."""
        for hook in self._hooks:
            if (waiting := self._begin(hook, point, args)) is not None:
                await self._finish(point, waiting)

    def tell_now(self, point: str, *args: object) -> None:
        """Do so from code that cannot wait.

        In a thread an async hook is waited for; on the event loop it runs beside the program.
        """
        for hook in self._hooks:
            if (waiting := self._begin(hook, point, args)) is None:
                continue
            if self._home.is_here:
                self._beside(point, waiting)
            else:
                done_on(self._home.loop, self._finish(point, waiting))

    def tell_soon(self, point: str, *args: object) -> None:
        """Do so without waiting for async hooks, from any thread."""
        for hook in self._hooks:
            if (waiting := self._begin(hook, point, args)) is not None:
                self._home.loop.call_soon_threadsafe(self._beside, point, waiting)

    async def drain(self) -> None:
        """Wait for hooks that still run beside the program."""
        if self._pending:
            await asyncio.gather(*self._pending, return_exceptions=True)

    def failed(self, point: str, error: BaseException) -> None:
        """Report what a hook or a consent raised; whatever tries to exit ends the run."""
        self._events.error("hook", error, hook=point)
        if isinstance(error, ProgramExitError):
            self._stop(Stop("error", str(error), error))

    def _begin(self, hook: object, point: str, args: Sequence[object]) -> Awaitable[object] | None:
        """Call a hook; return what is still to be waited for."""
        method = getattr(hook, point, None)
        if method is None:
            return None
        try:
            with no_exit(f"hook {point}"):
                result = method(self._run, *args)
        except (Exception, ProgramExitError) as error:
            self._note(point, error)
            return None
        return result if inspect.isawaitable(result) else None

    async def _finish(self, point: str, waiting: Awaitable[object]) -> None:
        try:
            with no_exit(f"hook {point}"):
                await waiting
        except (Exception, ProgramExitError) as error:
            self._note(point, error)

    def _beside(self, point: str, waiting: Awaitable[object]) -> None:
        task = self._home.loop.create_task(self._finish(point, waiting))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def _note(self, point: str, error: BaseException) -> None:
        if isinstance(error, RunVetoed):
            self._stop(Stop("vetoed", str(error) or "a hook has vetoed the run.", error))
            return
        _log.warning("a hook failed at %s with %s.", point, type(error).__name__)
        self.failed(point, error)


class Consents:
    """The consents of one run.

    Args:
        consent: Decides; None allows everything.
        timeout_seconds: How long an answer that is awaited may take.
        events: Takes the events that ask and deny.
        failed: Takes what the callable raised.
        line: Where a question that takes long is stored, and its answer before the tool begins.
        lost: Takes the conflict when another run has answered a question; returns what to raise.
        around: Whether runs around this one are denied a tool for good; may block.
        home: The run's event loop.
        untimed: Leaves the time that somebody takes to answer out of the run's.
    """

    def __init__(
        self,
        line: SessionWriter,
        consent: Consent | None,
        timeout_seconds: float | None,
        events: EventStream,
        failed: Callable[[str, BaseException], None],
        lost: Callable[[Exception], BaseException],
        around: Callable[[str], bool] | None,
        home: HomeLoop,
        untimed: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._untimed = untimed
        self._line, self._consent, self._timeout = line, consent, timeout_seconds
        self._events, self._failed, self._lost, self._around = events, failed, lost, around
        self._home = home
        self.decided: dict[str, bool] = {}
        """What was answered already to calls of a turn that is taken up, by their ids."""
        self.open: dict[str, AgentStep] = {}
        """Stored questions about such calls that nobody has answered, by the calls' ids."""

    async def allowed(self, request: ToolRequest, step_id: UUID) -> bool | None:
        """Return whether a tool may run, None when nobody says so; `step_id` will tell its call."""
        allowed = self.decided.pop(request.call_id, None)
        if allowed is None and self._consent is None:
            allowed = True
        elif allowed is None and self._consent is not None:
            self._ask(request)
            try:
                async with asyncio.timeout(self._timeout):
                    allowed = await self._decided(self._consent, request, step_id)
            except TimeoutError:
                await self._stored(request, False)
                return self.deny(request, "no answer in time")
            if allowed is None:
                return None
        return await self._stored(request, bool(allowed)) or self.deny(request, "denied")

    async def _stored(self, request: ToolRequest, allowed: bool) -> bool:
        """Return an answer once the disk knows it, if it answers a question of an earlier run."""
        if (question := self.open.pop(request.call_id, None)) is None:
            return allowed
        try:
            await self._answer(question, allowed=allowed)
        except StorageError as error:
            self._failed("consent", error)
            return False
        return allowed

    async def _answer(self, question: AgentStep, *, allowed: bool) -> None:
        store = partial(stored_consents.answer, self._line, question, allowed=allowed)
        try:
            await in_thread(store)
        except LOST as error:
            raise await in_thread(partial(self._lost, error)) from error

    def allowed_from_thread(self, request: ToolRequest, step_id: UUID) -> bool | None:
        """Do so from a program's thread; on the event loop itself nothing can be waited for."""
        if self._consent is None:
            return True
        if self._home.is_here:
            return self._allowed_now(self._consent, request)
        return done_on(self._home.loop, self.allowed(request, step_id))

    def _allowed_now(self, consent: Consent, request: ToolRequest) -> bool | None:
        """Return what is said at once; an answer that takes time is a no."""
        self._ask(request)
        answer: object = False
        try:
            with no_exit("consent"):
                denied = self._around is not None and self._around(request.tool)
                answer = False if denied else consent(request)
        except (Exception, ProgramExitError) as error:
            self._failed("consent", error)
        if not inspect.isawaitable(answer):
            allowed = self._read(answer)
            return None if allowed is None else allowed or self.deny(request, "denied")
        if inspect.iscoroutine(answer):
            answer.close()
        why = "called from a place that cannot wait for an answer; use the tool's acall"
        return self.deny(request, why)

    async def _decided(self, consent: Consent, request: ToolRequest, step_id: UUID) -> bool | None:
        try:
            with no_exit("consent"):
                around = self._around
                if around is not None and await in_thread(partial(around, request.tool)):
                    return False
                answer = consent(request)
                if inspect.isawaitable(answer):
                    answer = await self._awaited(answer, request, step_id)
                return self._read(answer)
        except TimeoutError:
            raise
        except (Exception, ProgramExitError) as error:
            self._failed("consent", error)
            return False

    async def _awaited(
        self, answer: Awaitable[object], request: ToolRequest, step_id: UUID
    ) -> object:
        """Return an answer that takes time; the disk knows of a question that takes long."""

        async def given() -> object:
            with no_exit("consent"):  # a task's exit would end the event loop
                return await answer

        task = self._home.loop.create_task(given())
        try:
            await asyncio.wait({task}, timeout=_AT_ONCE_SECONDS)
            if not task.done() and request.call_id not in self.open:
                ask = partial(stored_consents.ask, self._line, request, step_id)
                self.open[request.call_id] = await in_thread(ask)
            with self._untimed():
                return await task
        finally:
            task.cancel()

    def _read(self, answer: object) -> bool | None:
        """Return what an answer says; one that says nothing clear is a no, and is reported."""
        if answer is None or isinstance(answer, bool):
            return answer
        if isinstance(answer, str) and answer in _ANSWERS:
            return _ANSWERS[answer]
        problem = f"consent answered {answer!r:.80}; it answers True, False or None."
        self._failed("consent", InvalidSettingError(problem))
        return False

    def _ask(self, request: ToolRequest) -> None:
        self._events.emit(StepEventType.TOOL_AUTH_REQUIRED, _shown(request))

    def deny(self, request: ToolRequest, why: str) -> bool:
        """Say that a tool does not run, and why; return False."""
        self._events.emit(StepEventType.TOOL_AUTH_DENIED, {**_shown(request), "why": why})
        return False


def _shown(request: ToolRequest) -> dict[str, Any]:
    return {
        "call_id": request.call_id,
        "tool": request.tool,
        "arguments": request.arguments,
    }
