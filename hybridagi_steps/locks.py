"""A lock that a forked child can still take.

A lock held by another thread at the moment of a fork stays locked in the child for ever, and what
it guards may be half changed there. So every such lock is taken before a fork and given back on
both sides afterwards, as the standard library's logging does: a child always sees whole state.

These are leaf locks: code that holds one must not take or create another.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from weakref import WeakSet


class ForkSafeLock:
    """A reentrant lock for a `with` statement, whole on both sides of a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        with _registry_lock:
            _registry.add(self)

    def __reduce__(self) -> tuple[type[ForkSafeLock], tuple[()]]:
        """A copy is a lock of its own: what it guards is a copy too."""
        return ForkSafeLock, ()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()


_registry_lock = threading.RLock()
_registry: WeakSet[ForkSafeLock] = WeakSet()
_held: list[ForkSafeLock] = []


def _hold_all() -> None:
    _registry_lock.acquire()
    for lock in list(_registry):
        lock.__enter__()
        _held.append(lock)


def _release_all() -> None:
    while _held:
        _held.pop().__exit__(None, None, None)
    _registry_lock.release()


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
