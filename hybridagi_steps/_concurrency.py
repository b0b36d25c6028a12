"""What keeps this library whole across `os.fork()`.

A lock held by another thread at the moment of a fork stays locked in the child for ever, and what
it guards may be half changed there; an open SQLite connection must never reach a child at all. So
whatever holds such a thing comes to rest before a fork and goes on after it, on both sides, as the
standard library's logging does. `subprocess` without `preexec_fn` never comes here.

Threads of ours rest first, between two pieces of work, so that none is importing, or waiting for a
lock, when the process forks. Then locks are taken, in no particular order: whoever holds one of
these must not wait for another. It may make one.
"""

from __future__ import annotations

import functools
import os
import threading
from _thread import RLock  # the class; `threading.RLock` is a function
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Forkable(Protocol):
    """Something that must come to rest before this process forks."""

    def before_fork(self) -> None:
        """Wait for what is going on, then hold still."""
        ...

    def after_fork(self) -> None:
        """Go on, in parent and child alike."""
        ...


class ForkSafeLock(RLock):  # pyright: ignore[reportGeneralTypeIssues] - it may be a base at run time
    """A reentrant lock, whole on both sides of a fork."""

    def __init__(self) -> None:
        rest_at_fork(self)

    def __reduce__(self) -> tuple[type[ForkSafeLock], tuple[()]]:
        """A copy is a lock of its own: what it guards is a copy too."""
        return ForkSafeLock, ()

    def before_fork(self) -> None:
        """Take the lock."""
        self.acquire()

    def after_fork(self) -> None:
        """Give it back."""
        self.release()


def cached_property(compute: Callable[[Any], T]) -> functools.cached_property[T]:
    """Return a property that is kept once computed, without the lock of Python 3.11.

    That is one for all objects of a class: a child that was forked while another thread computed
    the property of any of them would wait for ever.
    """
    kept = functools.cached_property(compute)
    vars(kept)["lock"] = nullcontext()
    return kept


_threads: WeakSet[Forkable] = WeakSet()
_registry: WeakSet[Forkable] = WeakSet()
_registry_lock = threading.RLock()
_resting: list[Forkable] = []
_forking = threading.Lock()


def rest_at_fork(forkable: Forkable) -> None:
    """Bring `forkable` to rest around every fork, as long as it lives."""
    with _registry_lock:
        _registry.add(forkable)


def rest_first_at_fork(thread: Forkable) -> None:
    """Bring a thread of ours to rest around every fork, before any lock is taken."""
    with _registry_lock:
        _threads.add(thread)


def _before() -> None:
    _forking.acquire()
    # Nobody is waited for under the registry's lock: who holds what is waited for may make a lock.
    with _registry_lock:  # of what grows while it is listed only an error comes
        threads = list(_threads)
    for thread in threads:
        thread.before_fork()
        _resting.append(thread)
    _registry_lock.acquire()
    while new := set(_registry).difference(_resting):
        _registry_lock.release()
        for forkable in new:
            forkable.before_fork()
            _resting.append(forkable)
        _registry_lock.acquire()


def _after() -> None:
    _registry_lock.release()
    while _resting:
        _resting.pop().after_fork()
    _forking.release()


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)


AT_ONCE, PROGRAMS = 16, 40
"""Calls of one event loop that run side by side, and programs of others; a store has one writer
anyway."""

_Pools = WeakKeyDictionary["asyncio.AbstractEventLoop", ThreadPoolExecutor]
_pools, _program_pools = _Pools(), _Pools()
"""One for each loop, since a call may run a loop of its own; it ends with its loop."""


async def in_thread(call: Callable[[], T]) -> T:
    """Return what a synchronous call returns, or raise what it raises.

    A cancelled caller is let go when the call has ended, or had not begun.
    """
    import asyncio  # not needed by who only searches, and a tenth of what that loads

    work, outcome = _begun(_pools, AT_ONCE, call)
    try:
        return await outcome
    except asyncio.CancelledError:
        if not work.cancel():
            await _ended(work)
        raise


def run_sync(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what an async call returns, for code that does not await.

    Where an event loop runs, as in a notebook, it stands still meanwhile: another one, in a thread
    of its own, does the work in the caller's context.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:  # who is interrupted here cancels the work
        return portal.call(call)


async def in_program_thread(call: Callable[[], T]) -> T:
    """Do so for code that may never end: a cancelled caller leaves it alone.

    Its thread may be lost, so who comes next finds others. Those of anyio end with the task that
    an event loop is run for: one message to a runner would make a thread of its own.
    """
    import asyncio

    def called() -> T:
        try:
            return call()
        except StopIteration as error:  # no future can hold it: its caller would wait for ever
            raise RuntimeError("the program raised StopIteration") from error

    work, outcome = _begun(_program_pools, PROGRAMS, called)
    try:
        return await outcome
    except asyncio.CancelledError:
        if not work.cancel() and not work.done():
            _program_pools.pop(asyncio.get_running_loop(), None)
        raise


def _begun(pools: _Pools, most: int, call: Callable[[], T]) -> tuple[Future[T], Awaitable[T]]:
    """Hand a call to a thread of the running event loop's pool."""
    import asyncio

    loop = asyncio.get_running_loop()
    if (pool := pools.get(loop)) is None:
        pool = pools[loop] = ThreadPoolExecutor(most, thread_name_prefix="hybridagi-steps")
    work = pool.submit(copy_context().run, call)
    return work, asyncio.wrap_future(work, loop=loop)


async def _ended(work: Future[T]) -> None:
    """Wait for a call, however often the waiting itself is cancelled."""
    import asyncio

    import anyio

    outcome = asyncio.wrap_future(work)
    with anyio.CancelScope(shield=True):  # one around this would cancel it again and again
        while not outcome.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([outcome])
    if not outcome.cancelled():
        outcome.exception()  # nobody asks for it any more
