"""From async code to a store and back: the one place where the two meet.

Stores are synchronous; a call runs in a worker thread, a few at a time. A call that has begun is
waited for even when its caller is cancelled, so that nothing is written after the caller has gone
on: once the cancellation arrives, the call has happened, or it never will. A call that waits for
its thread is simply dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

T = TypeVar("T")

AT_ONCE = 16
"""Calls that run side by side; a store has one writer anyway."""

_PAUSE_SECONDS = 0.001
_limiter = RunVar[anyio.CapacityLimiter]("hybridagi_steps_limiter")


async def in_thread(call: Callable[[], T]) -> T:
    """Return what a synchronous call returns, or raise what it raises.

    A cancelled caller is let go when the call has ended, or had not begun.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        await run_sync(work, limiter=_limiter_of_this_loop())
    except anyio.get_cancelled_exc_class():
        if not outcome.cancel():
            await _ended(outcome)
        raise
    return outcome.result()


def _limiter_of_this_loop() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(AT_ONCE)
        _limiter.set(limiter)
        return limiter


async def _ended(outcome: Future[T]) -> None:
    """Wait for a call, however often the waiting itself is cancelled."""
    with anyio.CancelScope(shield=True):
        while not outcome.done():
            try:
                await anyio.sleep(_PAUSE_SECONDS)
            except anyio.get_cancelled_exc_class():
                continue
