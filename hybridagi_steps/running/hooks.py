"""Hooks: what others want to know of a run, at nine points, and may veto.

A hook is any object with some of the methods of `RunHook`; each may be sync or async. A hook that
fails is reported as an ERROR event and the run goes on; `RunVetoed` ends the run, and so does a
hook that tries to end the process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from hybridagi_steps.records.message import Step
from hybridagi_steps.running.limits import ToolRequest
from hybridagi_steps.running.stopping import ProgramExitError, RunVetoed, done_on, no_exit

_log = logging.getLogger("hybridagi_steps")


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
        """The run has ended: completed, failed or cancelled; `data` is that of its last event."""

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
        report: Takes a failing hook's name and error.
        veto: Takes the `RunVetoed` of a hook.
    """

    def __init__(
        self,
        hooks: Sequence[Any],
        run: RunInfo,
        report: Callable[[str, BaseException], None],
        veto: Callable[[RunVetoed], None],
    ) -> None:
        self._hooks, self._run = tuple(hooks), run
        self._report, self._veto = report, veto
        self._loop = asyncio.get_running_loop()
        self._pending: set[asyncio.Task[None]] = set()

    async def tell(self, point: str, *args: Any) -> None:
        """Call all hooks at one point and wait for them."""
        for hook in self._hooks:
            method = getattr(hook, point, None)
            if method is not None:
                await self._finish(point, self._begin(point, method, args))

    def tell_now(self, point: str, *args: Any) -> None:
        """Do so from code that cannot wait.

        In a thread an async hook is waited for; on the event loop it runs beside the program.
        """
        for hook in self._hooks:
            method = getattr(hook, point, None)
            waiting = None if method is None else self._begin(point, method, args)
            if waiting is None:
                continue
            if _on(self._loop):
                self._beside(point, waiting)
            else:
                done_on(self._loop, self._finish(point, waiting))

    def tell_soon(self, point: str, *args: Any) -> None:
        """Do so without waiting for async hooks, from any thread."""
        for hook in self._hooks:
            method = getattr(hook, point, None)
            waiting = None if method is None else self._begin(point, method, args)
            if waiting is not None:
                self._loop.call_soon_threadsafe(self._beside, point, waiting)

    def _beside(self, point: str, waiting: Awaitable[Any]) -> None:
        task = self._loop.create_task(self._finish(point, waiting))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def drain(self) -> None:
        """Wait for hooks that still run beside the program."""
        if self._pending:
            await asyncio.gather(*self._pending, return_exceptions=True)

    def _begin(self, point: str, method: Any, args: tuple[Any, ...]) -> Awaitable[Any] | None:
        try:
            with no_exit(f"hook {point}"):
                result = method(self._run, *args)
        except (Exception, ProgramExitError) as error:
            self._note(point, error)
            return None
        return result if inspect.isawaitable(result) else None

    def _finish(self, point: str, waiting: Awaitable[Any] | None) -> Coroutine[Any, Any, None]:
        async def finish() -> None:
            if waiting is None:
                return
            try:
                with no_exit(f"hook {point}"):
                    await waiting
            except (Exception, ProgramExitError) as error:
                self._note(point, error)

        return finish()

    def _note(self, point: str, error: BaseException) -> None:
        if isinstance(error, RunVetoed):
            self._veto(error)
            return
        _log.warning("a hook failed at %s with %s.", point, type(error).__name__)
        self._report(point, error)


def _on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
