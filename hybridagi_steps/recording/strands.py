"""Strands: the lines of execution of a run, be they tasks, threads or calls tied to a run by hand.

A call on the strand of the call around it comes after what was done before; one on another strand
is a branch. Nothing here knows DSPy.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from hybridagi_steps.errors import InvalidSettingError

P = ParamSpec("P")
R = TypeVar("R")

_HOME: ContextVar[object | None] = ContextVar("hybridagi_steps_strand", default=None)


class Strand(NamedTuple):
    """A line of execution. `home` alone tells tasks and threads apart."""

    home: object
    unit: object
    """What differs between two units of work that one pool thread serves in turn."""

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the strand, valid while the strand is referenced."""
        return id(self.home), id(self.unit)


def current_strand(unit: object = None) -> Strand:
    """Return the strand of the running code.

    Args:
        unit: The unit of work a pool thread serves; compared by identity.
    """
    task = _task()
    if task is not None:
        if _HOME.get() is not task:
            _HOME.set(task)
        return Strand(task, unit)
    return Strand(_HOME.get() or threading.current_thread(), unit)


def settle() -> None:
    """Make contexts copied from this one continue its strand."""
    if _task() is None and _HOME.get() is None:
        _HOME.set(threading.current_thread())


def in_context(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` tied to the run that is active here, for raw threads and executors.

    DSPy carries a run's lineage through its own primitives and through asyncio, not through
    `threading.Thread` or `ThreadPoolExecutor`. Every call of the returned function is a branch of
    its own; coroutine functions work too.

    Raises:
        InvalidSettingError: What was given is no function.

    Example:
        `pool.map(hs.in_context(agent), questions)`
    """
    if not callable(function):
        raise InvalidSettingError(f"in_context ties a function to a run, not {function!r:.80}.")
    context = copy_context()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(_on_own_strand, function, *args, **kwargs)

    @functools.wraps(function)
    async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
        coroutine = cast("Any", function(*args, **kwargs))
        return await asyncio.get_running_loop().create_task(coroutine, context=context.copy())

    return cast("Callable[P, R]", acall) if inspect.iscoroutinefunction(function) else call


def _on_own_strand(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    _HOME.set(object())
    return function(*args, **kwargs)


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
