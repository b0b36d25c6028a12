"""Keeps stores whole across `os.fork()`.

A lock held by another thread at the moment of a fork stays locked in the child for ever, and an
open SQLite connection must never reach a child: SQLite remembers per process which locks it holds,
so even a fresh connection of the child would believe in locks that only the parent has. Stores
therefore come to rest before a fork and go on after it, on both sides. This module knows only that
there is something to be done before and after; `subprocess` without `preexec_fn` never comes here.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something that must come to rest before this process forks."""

    def before_fork(self) -> None:
        """Wait for what is going on, then hold still."""
        ...

    def after_fork(self) -> None:
        """Go on, in parent and child alike."""
        ...


_forkables: WeakSet[Forkable] = WeakSet()
_resting: list[Forkable] = []
_one_fork_at_a_time = threading.RLock()


def rest_at_fork(forkable: Forkable) -> None:
    """Bring `forkable` to rest around every fork, as long as it lives."""
    _forkables.add(forkable)


def _before() -> None:
    _one_fork_at_a_time.acquire()
    for forkable in list(_forkables):
        forkable.before_fork()
        _resting.append(forkable)


def _after() -> None:
    while _resting:
        _resting.pop().after_fork()
    _one_fork_at_a_time.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
