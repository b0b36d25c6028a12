"""Coroutines for code without an event loop, and for code inside of one, as in a notebook.

Where a loop runs already, a thread of its own does the work, and this one waits. Ctrl-C then stops
the work, too, instead of leaving it behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

_PATIENCE_SECONDS = 5.0
"""How long a run that was stopped may take to put things in order."""


def run_blocking(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, in a thread if this one has an event loop already."""
    if not _has_event_loop():
        return anyio.run(start)
    beside = _Beside(start)
    try:
        return beside.answer.result()
    except KeyboardInterrupt:
        beside.stop()
        wait([beside.answer], _PATIENCE_SECONDS)
        raise


class _Beside:
    """A coroutine in a thread; the thread ends with the process if it must."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.answer: Future[Any] = Future()
        self._start = start
        self._stopped = threading.Event()
        self._scope: tuple[asyncio.AbstractEventLoop, anyio.CancelScope] | None = None
        work = copy_context().run
        threading.Thread(target=work, args=(self._work,), daemon=True, name="plan").start()

    def stop(self) -> None:
        """Cancel the coroutine, also if it has not begun."""
        self._stopped.set()
        if self._scope is not None:
            loop, scope = self._scope
            with suppress(RuntimeError):  # the loop is closed: it has ended by itself
                loop.call_soon_threadsafe(scope.cancel)

    def _work(self) -> None:
        try:
            self.answer.set_result(anyio.run(self._cancellable))
        except BaseException as error:
            self.answer.set_exception(error)

    async def _cancellable(self) -> Any:
        with anyio.CancelScope() as scope:
            self._scope = (asyncio.get_running_loop(), scope)
            if self._stopped.is_set():
                scope.cancel()
            return await self._start()


def _has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
