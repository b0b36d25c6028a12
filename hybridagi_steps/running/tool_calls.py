"""The gate that every tool of a run goes through: its call is stored, consent asked, time kept.

DSPy calls tools in many places; what they have in common is `dspy.Tool`. So the two ways of calling
a tool look for the run they belong to, which DSPy's settings carry into its threads and
tasks; outside of a run they do what they always did. The tool itself is never changed: what runs is
a copy that shares its name, and so its place in the recorder's steps.
"""

# pyright: reportFunctionMemberAccess=false

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import anyio.to_thread
import dspy

from hybridagi_steps._concurrency import ForkSafeLock, in_thread
from hybridagi_steps.errors import ToolInputError
from hybridagi_steps.recording.react_loop import closing_tool
from hybridagi_steps.recording.scopes import RUN
from hybridagi_steps.recording.step_shapes import error_fields
from hybridagi_steps.recording.step_writer import announcing
from hybridagi_steps.running.active_run import INSIDE, ActiveRun
from hybridagi_steps.running.hooks import DENIED
from hybridagi_steps.running.limits import ToolRequest
from hybridagi_steps.running.program_adapter import text_of
from hybridagi_steps.running.stopping import (
    ProgramExitError,
    RunStopped,
    no_exit,
    own_cancellation,
    own_cancellation_in_thread,
    without_exit,
)
from hybridagi_steps.running.tool_results import (
    EarlierResult,
    earlier_result,
    is_cacheable,
    looked_at,
    mark_cacheable,
    mark_cached,
    result_key,
)
from hybridagi_steps.running.turn import ToolTurn

BROKEN_ARGUMENTS = "partial_json"
"""Under which name DSPy's own client gives arguments of a call that are no JSON."""
_INSIDE_A_TOOL = "called inside another tool, which cannot wait for an answer"
_plain_call: Callable[..., Any] = dspy.Tool.__call__
_plain_acall: Callable[..., Any] = dspy.Tool.acall
_watching = False
_begin_watching = ForkSafeLock()


def watch_tools() -> None:
    """Let DSPy's tools look for a run; doing so twice changes nothing."""
    global _plain_call, _plain_acall, _watching
    with _begin_watching:
        if _watching:
            return
        # Taken now and not at import: others may have wrapped them in between.
        _plain_call, _plain_acall, _watching = dspy.Tool.__call__, dspy.Tool.acall, True
        dspy.Tool.__call__, dspy.Tool.acall = _call, _acall


def idempotent(tool: Any) -> Any:
    """Declare that a tool may run twice with the same arguments: reading, not sending.

    A run that is resumed after a crash runs such a tool again; any other one is answered with a
    synthetic result that says it was interrupted. Works on functions and on `dspy.Tool` objects.
    """
    target = tool.func if isinstance(tool, dspy.Tool) else tool
    target.idempotent = True
    return tool


def is_idempotent(tool: object) -> bool:
    """Whether a tool was declared idempotent."""
    return getattr(getattr(tool, "func", tool), "idempotent", False) is True


def check_json(tool: dspy.Tool, arguments: Mapping[str, Any]) -> None:
    """Name arguments that a model wrote as no JSON; DSPy would call them an unknown argument."""
    if list(arguments) == [BROKEN_ARGUMENTS] and BROKEN_ARGUMENTS not in (tool.args or {}):
        raise ToolInputError(
            f"the arguments of {tool.name} are no JSON object, and nothing was called; give them "
            f"again, whole. They were: {arguments[BROKEN_ARGUMENTS]!s:.200}"
        )


async def acall_tool(run: ActiveRun, tool: dspy.Tool, arguments: dict[str, Any]) -> Any:
    """Run a tool of a run from async code."""
    await run.check_at_rest()
    name = str(tool.name)
    if _closes_agent(tool):
        return await _plain_acall(tool, **arguments)
    if (earlier := run.stored_result(name, arguments)) is not None:
        return earlier.value
    try:
        with run.switch.call_in_flight():
            shown, call = _is_shown(run), ToolTurn(name, arguments)
            if shown:
                call = await in_thread(partial(run.begin_tool, name, arguments))
            request = run.request(call, arguments)
            await run.hooks.tell("on_tool_start", request)
            allowed = await run.consents.allowed(request, call.step_id)
            if allowed is None and shown:
                raise await in_thread(partial(run.wait_for_consent, call, arguments))
            if allowed is None:
                allowed = run.consents.deny(request, _INSIDE_A_TOOL)
            if not run.switch.is_pausing:
                run.check()
            return await _arun(run, tool, call, request, allowed=allowed, shown=shown)
    except RunStopped:
        await run.check_at_rest()
        raise


async def _arun(
    run: ActiveRun,
    tool: dspy.Tool,
    call: ToolTurn,
    request: ToolRequest,
    *,
    allowed: bool,
    shown: bool,
) -> Any:
    """Run a tool that may run, or say that it may not, and store what came of it."""
    known = None
    if allowed and is_cacheable(tool):
        known = await in_thread(partial(_known, run, tool, call))
    copy = _copy(run, tool, _timed_async, call, known, allowed=allowed)
    began = time.perf_counter()
    try:
        with _entered(run, call if shown else None), announcing(call.step_id):
            result = await _plain_acall(copy, **request.arguments)
    except (Exception, ProgramExitError) as error:
        await run.hooks.tell("on_tool_end", request, error)
        if shown:
            await in_thread(partial(_end, run, call, error, began, allowed=allowed))
        raise
    await run.hooks.tell("on_tool_end", request, result)
    if shown:
        await in_thread(partial(_end, run, call, result, began, allowed=allowed))
    return result


def call_tool(run: ActiveRun, tool: dspy.Tool, arguments: dict[str, Any]) -> Any:
    """Run a tool of a run from its program's thread."""
    run.check()
    name = str(tool.name)
    if _closes_agent(tool):
        return _plain_call(tool, **arguments)
    if (earlier := run.stored_result(name, arguments)) is not None:
        return earlier.value
    with run.switch.call_in_flight():
        shown = _is_shown(run)
        call = run.begin_tool(name, arguments) if shown else ToolTurn(name, arguments)
        request = run.request(call, arguments)
        run.tell_now("on_tool_start", request)
        with run.threads.in_tool():
            allowed = run.consents.allowed_from_thread(request, call.step_id)
        if allowed is None and shown:
            raise run.wait_for_consent(call, arguments)
        if allowed is None:
            allowed = run.consents.deny(request, _INSIDE_A_TOOL)
        if not run.switch.is_pausing:
            run.check()
        return _run(run, tool, call, request, allowed=allowed, shown=shown)


def _run(
    run: ActiveRun,
    tool: dspy.Tool,
    call: ToolTurn,
    request: ToolRequest,
    *,
    allowed: bool,
    shown: bool,
) -> Any:
    """Do as `_arun` does, in a thread."""
    known = _known(run, tool, call) if allowed and is_cacheable(tool) else None
    copy = _copy(run, tool, _timed, call, known, allowed=allowed)
    began = time.perf_counter()
    try:
        with (
            _entered(run, call if shown else None),
            announcing(call.step_id),
            run.threads.in_tool(),
        ):
            result = _plain_call(copy, **request.arguments)
    except (Exception, ProgramExitError) as error:
        run.tell_now("on_tool_end", request, error)
        if shown:
            _end(run, call, error, began, allowed=allowed)
        raise
    run.tell_now("on_tool_end", request, result)
    if shown:
        _end(run, call, result, began, allowed=allowed)
    return result


def _is_shown(run: ActiveRun) -> bool:
    """Whether a call gets messages: one that a tool makes in turn gets none."""
    inside = INSIDE.get()
    return inside is None or inside[0] is not run


def _copy(
    run: ActiveRun,
    tool: dspy.Tool,
    timed: Callable[[ActiveRun, Any], Callable[..., Any]],
    call: ToolTurn,
    known: EarlierResult | None,
    *,
    allowed: bool,
) -> Any:
    """Return a copy of a tool that keeps to its time, or only says that it is denied, or known."""
    if not allowed:
        run.denied.add(call.step_id)
        return tool.model_copy(update={"func": _denial})

    def told(**_: object) -> Any:
        return None if known is None else known.value

    function, free = timed(run, tool) if known is None else told, tool.has_kwargs
    if known is None and call.step_id in run.marks:
        refuse = partial(run.marks.pop, call.step_id, None)
        function = looked_at(run.line.memory, function, refuse)
    try:
        check_json(tool, call.arguments)
    except ToolInputError as error:
        run.marks.pop(call.step_id, None)
        function, free = partial(_raised, error), True
    # Recorders know the function as that of the tool.
    setattr(function, "__wrapped__", tool.func)  # noqa: B010 - functions have it when they wrap
    return tool.model_copy(update={"func": function, "has_kwargs": free})


def _known(run: ActiveRun, tool: dspy.Tool, call: ToolTurn) -> EarlierResult | None:
    """Return what a cacheable tool has given before; if nothing, have this call's result kept."""
    memory = run.line.memory
    if (key := result_key(memory, tool, call.arguments)) is None:
        return None
    known = earlier_result(memory, tool, key, run.info.user_id)
    if known is None:
        run.marks[call.step_id] = partial(mark_cacheable, key=key)
    else:
        run.marks[call.step_id] = partial(mark_cached, step_id=known.step_id)
    return known


def _end(run: ActiveRun, call: ToolTurn, result: object, began: float, *, allowed: bool) -> None:
    """Store what a tool gave, or that it failed or was denied; the program goes on."""
    seconds = time.perf_counter() - began
    if isinstance(result, Exception | ProgramExitError):
        run.events.error("tool", result, tool=call.name, call_id=call.call_id)
        run.hooks.tell_soon("on_error", result)
        fields = error_fields(result)["error"]
        text = f"Error: {fields['type']}: {fields['message']}"
        run.end_tool(call, text, seconds, {"is_error": True})
        return
    note = {} if allowed else {"is_error": True, "denied": True}
    run.end_tool(call, text_of(result), seconds, note)


def _timed_async(run: ActiveRun, tool: dspy.Tool) -> Callable[..., Any]:
    """Return a tool's function with a time limit, off the event loop when it is sync."""
    function, limit, what = tool.func, run.config.tool_timeout_seconds, f"tool {tool.name}"
    in_a_thread = run.threads.named(without_exit(what, function))

    async def timed(**arguments: object) -> Any:
        async with _at_most(limit, str(tool.name)):
            with no_exit(what), own_cancellation(what):
                return await given(arguments)

    async def given(arguments: dict[str, Any]) -> Any:
        if _is_async(function):
            return await function(**arguments)
        result = await anyio.to_thread.run_sync(
            partial(in_a_thread, **arguments), abandon_on_cancel=True, limiter=run.threads.limiter
        )
        return await result if inspect.isawaitable(result) else result

    return timed


def _timed(run: ActiveRun, tool: dspy.Tool) -> Callable[..., Any]:
    """Return a tool's function with a time limit, for a thread."""
    function, limit, what = tool.func, run.config.tool_timeout_seconds, f"tool {tool.name}"
    if _is_async(function):
        return _async_by_itself(what, function)
    function = without_exit(what, function)
    function = own_cancellation_in_thread(what, function, run.check)
    if limit is None:
        return function
    function = run.threads.named(function)

    def timed(**arguments: object) -> Any:
        # Nothing stops a thread: after the limit it is left alone, what it gives is lost.
        pool = ThreadPoolExecutor(1, thread_name_prefix=f"tool-{tool.name}")
        future = pool.submit(copy_context().run, partial(function, **arguments))
        pool.shutdown(wait=False)
        try:
            return future.result(limit)
        except FutureTimeoutError as error:
            if future.done():
                raise
            raise _too_slow(str(tool.name), limit) from error

    return timed


def _async_by_itself(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends neither the process nor, unasked, the task it runs in."""

    async def run(**arguments: object) -> Any:
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
def _entered(run: ActiveRun, call: ToolTurn | None) -> Generator[None]:
    """Mark what runs in the block as part of a tool of a run."""
    token = INSIDE.set((run, call))
    try:
        yield
    finally:
        INSIDE.reset(token)


def _raised(error: ToolInputError, **_: object) -> None:
    raise error


def _denial(**_: object) -> str:
    return f"Error: {DENIED}"


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asks whether calling it is async
    )


def _closes_agent(tool: dspy.Tool) -> bool:
    """Whether an agent calls this tool only to say that it is done; no message tells of that."""
    callers: list[Any] = dspy.settings.get("caller_modules") or []
    agent = callers[-1] if callers else None
    return tool.name == closing_tool(agent)


def _call(self: dspy.Tool, **arguments: object) -> Any:
    run: ActiveRun | None = dspy.settings.get(RUN)
    return _plain_call(self, **arguments) if run is None else call_tool(run, self, arguments)


async def _acall(self: dspy.Tool, **arguments: object) -> Any:
    run: ActiveRun | None = dspy.settings.get(RUN)
    if run is None:
        return await _plain_acall(self, **arguments)
    return await acall_tool(run, self, arguments)
