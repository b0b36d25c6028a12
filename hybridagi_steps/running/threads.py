"""The threads that a run's sync program runs in: nothing stops them, a stopped run waits a while.

Such a thread comes to its end by itself at the next call that finds the run stopped. Until then it
may hand pieces of an answer to the event loop and wait for it; were the loop to end just then, the
thread would wait for ever, and the process for the thread. A tool may take its time: nobody waits
for what it does.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_runs: dict[int, str] = {}
"""Whose threads are at work, by the thread's number."""
_PAUSE_SECONDS = 0.001
_LOOK_SECONDS = 0.5


def run_of_thread(number: int) -> str | None:
    """Return the run that a thread works for."""
    return _runs.get(number)


class Threads:
    """Counts the threads of a run's program that are not inside a tool, and names them all."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._count = 0
        self._lock = threading.Lock()

    def counted(self, call: Callable[..., T]) -> Callable[..., T]:
        """Return a function that is counted while it runs; for a thread of its own."""
        call = self.named(call)

        def run(*args: Any, **kwargs: Any) -> T:
            self._add(1)
            try:
                return call(*args, **kwargs)
            finally:
                self._add(-1)

        return run

    def named(self, call: Callable[..., T]) -> Callable[..., T]:
        """Return a function whose thread is known as the run's while it runs."""

        def run(*args: Any, **kwargs: Any) -> T:
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
    """Return what a coroutine gives on another thread's event loop.

    Raises:
        RuntimeError: The loop was closed before the coroutine had ended.
    """
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
