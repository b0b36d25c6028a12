"""How long a call waits for others: one setting for all its waits, and a lock that keeps to it.

A thread may ask for less for a while: a search rather keeps what it made in memory than wait for
a writer. Nothing here knows what is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

from hybridagi_steps.errors import InvalidSettingError, StorageBusyError

DEFAULT_TIMEOUT_SECONDS = 30.0
LONGEST_TIMEOUT_SECONDS = 86_400.0


class Patience(threading.local):
    """How many seconds a thread waits for others: as many as were set, or fewer for a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @contextmanager
    def at_most(self, seconds: float) -> Generator[None]:
        """Let this thread wait no longer than `seconds` inside a `with` statement."""
        before, self.seconds = self.seconds, min(self.seconds, seconds)
        try:
            yield
        finally:
            self.seconds = before

    def shared(self) -> AbstractContextManager[None]:
        """Let what waits inside a `with` statement take from `seconds` what it took."""
        return self.at_most(self.seconds)


def take(lock: threading.Lock | threading.Semaphore, seconds: float, what: str) -> float:
    """Take a lock; return how many of the seconds are left."""
    if lock.acquire(blocking=False):
        return seconds
    begun = time.monotonic()
    if seconds <= 0 or not lock.acquire(timeout=seconds):
        raise StorageBusyError(
            f"{what} is held by another thread of this process for {seconds:g} s; try again, or "
            "give a longer timeout_seconds."
        )
    return max(seconds - (time.monotonic() - begun), 0.0)


@contextmanager
def taken(
    lock: threading.Lock | threading.Semaphore, seconds: float, what: str
) -> Generator[float]:
    """Hold a lock inside a `with` statement; raises as `take`."""
    left = take(lock, seconds, what)
    try:
        yield left
    finally:
        lock.release()


def check_timeout(seconds: object) -> None:
    """Refuse what is no time to wait."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= float(cast("float", seconds)) <= LONGEST_TIMEOUT_SECONDS:
        raise InvalidSettingError(
            f"timeout_seconds is a number from 0 to {LONGEST_TIMEOUT_SECONDS:g}; got {seconds!r}."
        )
