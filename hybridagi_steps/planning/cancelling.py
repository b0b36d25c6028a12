"""Telling a cancellation from code that raises `CancelledError` by itself.

A broken connection pool may raise it though nobody cancelled anything. That is an error as any
other; let through, it would end the whole plan without a reason.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from contextlib import contextmanager

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
        told = f": {error}" if str(error) else ""
        raise StepsError(f"{what} raised CancelledError, and nobody cancelled it{told}") from error


def _asked_for() -> bool:
    """Whether this task, or a scope around it, was told to stop."""
    task = asyncio.current_task()
    told = task is not None and task.cancelling() > 0
    return told or anyio.current_effective_deadline() == -math.inf
