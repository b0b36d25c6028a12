"""The gate that every tool of a run goes through: its call is stored, consent asked, time kept.

DSPy calls tools in many places; what they have in common is `dspy.Tool`. So the two ways of calling
a tool look for the gate of the run they belong to, which DSPy's settings carry into its threads and
tasks; outside of a run they do what they always did. The tool itself is never changed: what runs is
a copy that shares its name, and so its place in the recorder's steps.
"""

# pyright: reportFunctionMemberAccess=false

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.to_thread
import dspy

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.recording.step_shapes import error_fields
from hybridagi_steps.recording.step_writer import announcing
from hybridagi_steps.running.consent import DENIED, Consents
from hybridagi_steps.running.program_adapter import text_of
from hybridagi_steps.running.stopping import (
    ProgramExitError,
    Threads,
    no_exit,
    own_cancellation,
    own_cancellation_in_thread,
    without_exit,
)
from hybridagi_steps.running.turn import ToolTurn

GATE = "hybridagi_steps_gate"
"""The DSPy setting that carries the gate of the running code."""
_CLOSING: dict[Any, str] = {dspy.ReAct: "finish", dspy.ReActV2: "submit"}
"""Tools by which agents say that they are done; no message tells of them."""
_THREADS = 32
"""Sync tools of one run that run side by side."""

_inside: ContextVar[bool] = ContextVar("hybridagi_steps_tool", default=False)
_plain_call: Any = dspy.Tool.__call__
_plain_acall: Any = dspy.Tool.acall
_watching = False


class GatedRun(Protocol):
    """What the gate needs of a run."""

    @property
    def consents(self) -> Consents:
        """Who may say yes."""
        ...

    @property
    def threads(self) -> Threads:
        """The threads of its program."""
        ...

    @property
    def tool_timeout_seconds(self) -> float | None:
        """Longest a tool may take."""
        ...

    def check(self) -> None:
        """Raise `RunStopped` when the run was stopped."""
        ...

    def begin_tool(self, name: str, arguments: dict[str, Any]) -> ToolTurn:
        """Store the call."""
        ...

    def end_tool(self, call: ToolTurn, text: str, seconds: float, note: dict[str, Any]) -> None:
        """Store its result."""
        ...

    async def tell(self, point: str, *args: Any) -> None:
        """Tell the hooks."""
        ...

    def tell_now(self, point: str, *args: Any) -> None:
        """Tell the hooks from code that cannot wait."""
        ...

    def tool_failed(self, call: ToolTurn, error: BaseException) -> None:
        """Report a tool's error."""
        ...

    def tool_denied(self, call: ToolTurn) -> None:
        """Let the step of a call say that it was not allowed."""
        ...


def watch_tools() -> None:
    """Let DSPy's tools look for a gate; doing so twice changes nothing."""
    global _plain_call, _plain_acall, _watching
    if _watching:
        return
    # Taken now and not at import: others may have wrapped them in between.
    _plain_call, _plain_acall, _watching = dspy.Tool.__call__, dspy.Tool.acall, True
    dspy.Tool.__call__, dspy.Tool.acall = _call, _acall


def enter_run() -> None:
    """Begin a run in this task: a tool of a run around it is not its own."""
    _inside.set(False)


def idempotent(tool: Any) -> Any:
    """Declare that a tool may run twice with the same arguments: reading, not sending.

    A run that is resumed after a crash runs such a tool again; any other one is answered with a
    synthetic result that says it was interrupted. Works on functions and on `dspy.Tool` objects.
    """
    target = tool.func if isinstance(tool, dspy.Tool) else tool
    target.idempotent = True
    return tool


def is_idempotent(tool: Any) -> bool:
    """Whether a tool was declared idempotent."""
    return getattr(getattr(tool, "func", tool), "idempotent", False) is True


class ToolGate:
    """The gate of one run."""

    def __init__(self, run: GatedRun) -> None:
        self._run = run
        self._limiter = anyio.CapacityLimiter(_THREADS)

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolGate:
        return self

    async def acall(self, tool: Any, arguments: dict[str, Any]) -> Any:
        """Run a tool from async code."""
        self._run.check()
        if _closes_agent(tool):
            return await _plain_acall(tool, **arguments)
        shown = not _inside.get()
        call = ToolTurn(tool.name, arguments)
        if shown:
            call = await in_thread(partial(self._run.begin_tool, tool.name, arguments))
        request = self._run.consents.request(call.call_id, tool.name, arguments)
        await self._run.tell("on_tool_start", request)
        allowed = await self._run.consents.allowed(request)
        self._run.check()
        copy = self._copy(tool, self._timed_async, call, allowed=allowed)
        began = time.perf_counter()
        try:
            with _entered(), announcing(call.step_id):
                result = await _plain_acall(copy, **arguments)
        except (Exception, ProgramExitError) as error:
            ended = partial(self._ended, call, error, began, allowed=allowed)
            await self._run.tell("on_tool_end", request, error)
            if shown:
                await in_thread(ended)
            raise
        await self._run.tell("on_tool_end", request, result)
        if shown:
            await in_thread(partial(self._ended, call, result, began, allowed=allowed))
        return result

    def call(self, tool: Any, arguments: dict[str, Any]) -> Any:
        """Run a tool from a program's thread."""
        self._run.check()
        if _closes_agent(tool):
            return _plain_call(tool, **arguments)
        shown = not _inside.get()
        call = ToolTurn(tool.name, arguments)
        if shown:
            call = self._run.begin_tool(tool.name, arguments)
        request = self._run.consents.request(call.call_id, tool.name, arguments)
        self._run.tell_now("on_tool_start", request)
        with self._run.threads.in_tool():
            allowed = self._run.consents.allowed_from_thread(request)
        self._run.check()
        copy = self._copy(tool, self._timed, call, allowed=allowed)
        began = time.perf_counter()
        try:
            with _entered(), announcing(call.step_id), self._run.threads.in_tool():
                result = _plain_call(copy, **arguments)
        except (Exception, ProgramExitError) as error:
            self._run.tell_now("on_tool_end", request, error)
            if shown:
                self._ended(call, error, began, allowed=allowed)
            raise
        self._run.tell_now("on_tool_end", request, result)
        if shown:
            self._ended(call, result, began, allowed=allowed)
        return result

    def _copy(
        self, tool: Any, timed: Callable[[Any], Any], call: ToolTurn, *, allowed: bool
    ) -> Any:
        """Return a copy of a tool that keeps to its time, or that only says it is denied."""
        if allowed:
            return _with(tool, _in_place_of(tool, timed(tool)))
        self._run.tool_denied(call)
        return _with(tool, _denial)

    def _ended(self, call: ToolTurn, result: Any, began: float, *, allowed: bool) -> None:
        """Store what a tool gave, or that it failed or was denied."""
        seconds = time.perf_counter() - began
        if isinstance(result, Exception | ProgramExitError):
            self._run.tool_failed(call, result)
            told = error_fields(result)["error"]
            text = f"Error: {told['type']}: {told['message']}"
            self._run.end_tool(call, text, seconds, {"is_error": True})
            return
        note = {} if allowed else {"is_error": True, "denied": True}
        self._run.end_tool(call, text_of(result), seconds, note)

    def _timed_async(self, tool: Any) -> Callable[..., Any]:
        """Return a tool's function with a time limit, off the event loop when it is sync."""
        function, limit, what = tool.func, self._run.tool_timeout_seconds, f"tool {tool.name}"
        in_a_thread = self._run.threads.named(without_exit(what, function))

        async def run(**arguments: Any) -> Any:
            async with _at_most(limit, tool.name):
                with no_exit(what), own_cancellation(what):
                    return await given(arguments)

        async def given(arguments: dict[str, Any]) -> Any:
            if _is_async(function):
                return await function(**arguments)
            result = await anyio.to_thread.run_sync(
                partial(in_a_thread, **arguments), abandon_on_cancel=True, limiter=self._limiter
            )
            return await result if inspect.isawaitable(result) else result

        return run

    def _timed(self, tool: Any) -> Callable[..., Any]:
        """Return a tool's function with a time limit, for a thread."""
        function, limit, what = tool.func, self._run.tool_timeout_seconds, f"tool {tool.name}"
        if _is_async(function):
            return _async_by_itself(what, function)
        function = without_exit(what, function)
        function = own_cancellation_in_thread(what, function, self._run.check)
        if limit is None:
            return function
        function = self._run.threads.named(function)

        def run(**arguments: Any) -> Any:
            # Nothing stops a thread: after the limit it is left alone, what it gives is lost.
            pool = ThreadPoolExecutor(1, thread_name_prefix=f"tool-{tool.name}")
            future = pool.submit(copy_context().run, partial(function, **arguments))
            pool.shutdown(wait=False)
            try:
                return future.result(limit)
            except FutureTimeoutError as error:
                if future.done():
                    raise
                raise _too_slow(tool.name, limit) from error

        return run


def _async_by_itself(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends neither the process nor, unasked, the task it runs in."""

    async def run(**arguments: Any) -> Any:
        with no_exit(what), own_cancellation(what):
            return await function(**arguments)

    return run


@asynccontextmanager
async def _at_most(seconds: float | None, name: str) -> AsyncGenerator[None]:
    """Limit the time of the block."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if seconds is None or not limit.expired():
            raise
        raise _too_slow(name, seconds) from error


def _too_slow(name: str, seconds: float) -> TimeoutError:
    return TimeoutError(f"{name} took longer than {seconds:g} s and was given up.")


@contextmanager
def _entered() -> Generator[None]:
    """Mark what runs in the block as part of a tool: tools in there get no messages."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _denial(**_: Any) -> str:
    return f"Error: {DENIED}"


def _with(tool: Any, function: Callable[..., Any]) -> Any:
    """Return a copy of a tool that runs another function."""
    return tool.model_copy(update={"func": function})


def _in_place_of(tool: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that recorders know as that of the tool."""
    setattr(function, "__wrapped__", tool.func)  # noqa: B010 - functions have it when they wrap
    return function


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asks whether calling it is async
    )


def _closes_agent(tool: Any) -> bool:
    """Whether an agent calls this tool only to say that it is done."""
    callers: list[Any] = dspy.settings.get("caller_modules") or []
    agent = callers[-1] if callers else None
    return any(isinstance(agent, kind) and tool.name == name for kind, name in _CLOSING.items())


def _call(self: Any, **arguments: Any) -> Any:
    gate: ToolGate | None = dspy.settings.get(GATE)
    return _plain_call(self, **arguments) if gate is None else gate.call(self, arguments)


async def _acall(self: Any, **arguments: Any) -> Any:
    gate: ToolGate | None = dspy.settings.get(GATE)
    if gate is None:
        return await _plain_acall(self, **arguments)
    return await gate.acall(self, arguments)
