"""One writer at a time, among any number of processes.

The lock is on a file of its own beside the database: closing any descriptor of the database itself
would drop SQLite's own locks. Waiting here, in line with other processes, is much fairer than
SQLite's busy-waiting. `flock` locks belong to the descriptor, so two stores of one process exclude
each other as well. Where there is no `flock` SQLite's own locking has to do.

Who releases the lock would nearly always be the next to take it: the others are asleep. So after a
while it stands in line as well, at a second lock that whoever waits holds until it has the first.
That one is a POSIX lock on the same file; it only makes turns fair, and nothing depends on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from hybridagi_steps.errors import StorageBusyError
from hybridagi_steps.stores.sqlite.translation import unopened

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.002, 0.0002
"""Between two looks at the line: who has waited longer looks more often, so is likelier next."""
_TURN_SECONDS = 0.0001
"""How long one process may write again and again without standing in line."""


class FileLock:
    """An exclusive lock on `<database>.lock`; used by one thread at a time."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name(database.name + ".lock")
        self._descriptor = -1
        self._turn_began = 0.0
        self.turns = 0
        """How often it was taken anew; within a turn nobody else has had it for long."""

    def acquire(self, seconds: float) -> float:
        """Take the lock, waiting so long at most; return how many seconds of that are left."""
        if fcntl is None:
            self.turns += 1
            return seconds
        if self._descriptor < 0:
            self._descriptor = self._open()
        begun = time.monotonic()
        its_turn = begun - self._turn_began < _TURN_SECONDS
        if its_turn and self._take(fcntl.flock):
            return seconds
        self._wait(fcntl.lockf, _FIRST_PAUSE_SECONDS, begun, seconds)
        try:
            self._wait(fcntl.flock, _LAST_PAUSE_SECONDS, begun, seconds)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self._turn_began = time.monotonic()
        self.turns += 1
        return max(begun + seconds - self._turn_began, 0.0)

    def release(self) -> None:
        """Give the lock back."""
        if fcntl is not None and self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Forget the file; the next `acquire` opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()  # whoever failed to open the database never closes it

    def _open(self) -> int:
        try:
            # Whoever may write the database must be able to take its lock, and nobody else.
            mode = self._database.stat().st_mode & 0o666 if self._database.exists() else 0o600
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
            found = os.fstat(descriptor)
            # The database's may have changed since, and a new file's are cut by the umask.
            if found.st_uid == os.geteuid() and found.st_mode & 0o777 != mode:
                os.fchmod(descriptor, mode)
            return descriptor
        except OSError as error:
            raise unopened(error, self._path) from error

    def _take(self, lock: Callable[[int, int], None]) -> bool:
        """Take one of the two locks if it is free."""
        assert fcntl is not None  # noqa: S101 - only called where there is flock
        try:
            lock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either for a lock that is held
            return False
        return True

    def _wait(
        self, lock: Callable[[int, int], None], pause_seconds: float, begun: float, seconds: float
    ) -> None:
        while not self._take(lock):
            left = begun + seconds - time.monotonic()
            if left <= 0:
                raise StorageBusyError(
                    f"{self._database} is held by another writer, who was not done in time; try "
                    "again later, or give a longer timeout_seconds."
                )
            time.sleep(min(pause_seconds, left))
            pause_seconds = max(pause_seconds * 0.8, _LAST_PAUSE_SECONDS)
