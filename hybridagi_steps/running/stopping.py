"""Why a run ends before its program does, and how that reaches the program.

A run is stopped once; the first reason stands. Async programs are cancelled. Sync programs run in a
thread that nothing can interrupt; they are stopped at their next LM or tool call by `RunStopped`,
which is no Exception, so that a program's own error handling does not take it for a failed tool.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import anyio

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.errors import StepsError

Reason = Literal[
    "cancelled",
    "paused",
    "timeout",
    "max_steps",
    "max_tokens",
    "max_cost",
    "vetoed",
    "storage",
    "error",
]
T = TypeVar("T")
_runs: dict[int, str] = {}
"""Whose threads are at work, by the thread's number."""
_TOOLS = 32
"""Sync tools of one run that run side by side."""
_PAUSE_SECONDS = 0.001
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run was stopped."""

    reason: Reason
    message: str
    error: BaseException | None = None
    """What went wrong, when something did."""

    @property
    def is_pause(self) -> bool:
        """Whether the run waits for an answer."""
        return self.reason == "paused"

    @property
    def is_limit(self) -> bool:
        """Whether steps, time, tokens or money ran out."""
        return self.reason in ("timeout", "max_steps", "max_tokens", "max_cost")


class StopSwitch:
    """Stops a run: at once, or, when it pauses, as soon as no call is in flight."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop: Stop | None = None
        """Why it was turned."""
        self.requested: asyncio.Future[None] = loop.create_future()
        """Done when the program is to be stopped."""
        self._loop, self._lock, self._calls = loop, threading.Lock(), 0
        self._limit: tuple[float, Callable[[], object]] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._people, self._asked_at = 0, 0.0

    @property
    def is_pausing(self) -> bool:
        """Whether the run waits for an answer and begins no new call."""
        return self.stop is not None and self.stop.is_pause

    def turn(self, stop: Stop) -> bool:
        """Stop the run, from any thread; return whether it was this that stopped it.

        A run that pauses may be stopped for another reason while its calls in flight end.
        """
        with self._lock:
            if self.requested.done() or (self.stop and (not self.is_pausing or stop.is_pause)):
                return False
            self.stop = stop
            waits = stop.is_pause and self._calls > 0
        if not waits:
            self._request()
        return True

    def call_begins(self) -> None:
        """Count a call that a pause waits for; none begins once all others have ended."""
        with self._lock:
            if self.stop is not None and self.is_pausing and self._calls == 0:
                raise RunStopped(self.stop)
            self._calls += 1

    def call_ended(self) -> None:
        """Count it no more; what it gave is stored."""
        with self._lock:
            self._calls -= 1
            is_last = self._calls == 0 and self.is_pausing
        if is_last:
            self._request()

    @contextmanager
    def call_in_flight(self) -> Generator[None]:
        """Let a pause wait for what is done in the block."""
        self.call_begins()
        try:
            yield
        finally:
            self.call_ended()

    def limit(self, at: float, expire: Callable[[], object]) -> None:
        """Call something when the run has taken too long, by the event loop's clock."""
        self._limit, self._clock = (at, expire), self._loop.call_at(at, expire)

    def end_limit(self) -> None:
        """Limit its time no more."""
        self._limit = None
        if self._clock is not None:
            self._clock.cancel()

    @contextmanager
    def untimed(self) -> Generator[None]:
        """Leave out the time in the block, on the event loop: a person may take long."""
        self._people += 1
        if self._people == 1:
            self._asked_at = self._loop.time()
            if self._clock is not None:
                self._clock.cancel()
        try:
            yield
        finally:
            self._people -= 1
            if self._people == 0 and self._limit is not None:
                at, expire = self._limit
                self.limit(at + self._loop.time() - self._asked_at, expire)

    def _request(self) -> None:
        def request() -> None:
            if not self.requested.done():
                self.requested.set_result(None)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(request)


class RunStopped(BaseException):
    """Ends a program whose run was stopped."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop


class RunVetoed(Exception):  # noqa: N818 - reads as what a hook says
    """Raised by a hook to end the run; any other error of a hook is reported and ignored."""


class ProgramExitError(BaseException):
    """Code of a run tried to end the process.

    No Exception, as `RunStopped`: a program's own error handling does not take it for a failed
    tool.
    """

    def __init__(self, what: str, error: BaseException) -> None:
        message, kind = str(error), type(error).__name__
        detail = f" ({message})" if message else ""
        super().__init__(f"{what} raised {kind}{detail}; the run ends here.")


def is_exit(error: BaseException) -> bool:
    """Whether an error would end the process: not when a user interrupts the main thread."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is not threading.main_thread()
    return isinstance(error, SystemExit)


@contextmanager
def no_exit(what: str) -> Generator[None]:
    """Let nothing in the block end the process."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if not is_exit(error):
            raise
        raise ProgramExitError(what, error) from error


def without_exit(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does so, for the thread that it runs in."""

    def run(*args: object, **kwargs: object) -> Any:
        with no_exit(what):
            return call(*args, **kwargs)

    return run


def run_of_thread(number: int) -> str | None:
    """Return the run that a thread works for."""
    return _runs.get(number)


class Threads:
    """Counts the threads of a run's program that are not inside a tool, and names them all."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._count = 0
        self._lock = threading.Lock()

    @cached_property
    def limiter(self) -> anyio.CapacityLimiter:
        """How many sync tools of async code run side by side."""
        return anyio.CapacityLimiter(_TOOLS)

    def counted(self, call: Callable[..., T]) -> Callable[..., T]:
        """Return a function that is counted while it runs; for a thread of its own."""
        call = self.named(call)

        def run(*args: object, **kwargs: object) -> T:
            self._add(1)
            try:
                return call(*args, **kwargs)
            finally:
                self._add(-1)

        return run

    def named(self, call: Callable[..., T]) -> Callable[..., T]:
        """Return a function whose thread is known as the run's while it runs."""

        def run(*args: object, **kwargs: object) -> T:
            number = threading.get_ident()
            before = _runs.get(number)
            _runs[number] = self._run_id
            try:
                return call(*args, **kwargs)
            finally:
                if before is None:
                    del _runs[number]
                else:
                    _runs[number] = before

        return run

    @contextmanager
    def in_tool(self) -> Generator[None]:
        """Leave this thread out of the count in the block."""
        self._add(-1)
        try:
            yield
        finally:
            self._add(1)

    async def ended(self, seconds: float) -> None:
        """Wait until none is left, for some time."""
        give_up = time.monotonic() + seconds
        while self._count > 0 and time.monotonic() < give_up:
            await asyncio.sleep(_PAUSE_SECONDS)

    def _add(self, number: int) -> None:
        with self._lock:
            self._count += number


def done_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine gives on another thread's event loop."""
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    while True:
        try:
            return future.result(_LOOK_SECONDS)
        except TimeoutError:
            if future.done():
                raise
            if loop.is_closed():
                coroutine.close()
                raise RuntimeError("the event loop was closed.") from None


@contextmanager
def own_cancellation(what: str) -> Generator[None]:
    """Turn a `CancelledError` that nobody asked for into an error of what raised it."""
    try:
        yield
    except asyncio.CancelledError as error:
        if _asked_for():
            raise
        raise _unasked(what, error) from error


def own_cancellation_in_thread(
    what: str, call: Callable[..., Any], stopped: Callable[[], None]
) -> Callable[..., Any]:
    """Return a function that does so where no task runs; `stopped` raises what was asked for."""

    def run(*args: object, **kwargs: object) -> Any:
        try:
            return call(*args, **kwargs)
        except asyncio.CancelledError as error:
            stopped()
            raise _unasked(what, error) from error

    return run


async def finished(work: asyncio.Task[None]) -> None:
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


def _unasked(what: str, error: asyncio.CancelledError) -> StepsError:
    detail = f": {error}" if str(error) else ""
    return StepsError(f"{what} raised CancelledError, and nobody cancelled it{detail}")


def _asked_for() -> bool:
    """Whether this task, or a scope around it, was told to stop."""
    task = asyncio.current_task()
    cancelled = task is not None and task.cancelling() > 0
    return cancelled or anyio.current_effective_deadline() == -math.inf
