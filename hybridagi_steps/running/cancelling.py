"""Telling a cancellation from code that raises `CancelledError` by itself.

A broken connection pool may raise it though nobody cancelled anything. That is an error as any
other; let through, it would end the whole run or plan without a reason.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import anyio

from hybridagi_steps.errors import StepsError


@contextmanager
def own_cancellation(what: str) -> Generator[None]:
    """Turn a `CancelledError` that nobody asked for into an error of what raised it.

    Raises:
        StepsError: The block raised `CancelledError` by itself.
    """
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

    def run(*args: Any, **kwargs: Any) -> Any:
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
    told = f": {error}" if str(error) else ""
    return StepsError(f"{what} raised CancelledError, and nobody cancelled it{told}")


def _asked_for() -> bool:
    """Whether this task, or a scope around it, was told to stop."""
    task = asyncio.current_task()
    told = task is not None and task.cancelling() > 0
    return told or anyio.current_effective_deadline() == -math.inf
