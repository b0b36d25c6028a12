"""One writer at a time, among any number of processes.

The lock is on a file of its own beside the database: closing any descriptor of the database itself
would drop SQLite's own locks. Waiting here, in line with other processes, is much fairer than
SQLite's busy-waiting. `flock` locks belong to the descriptor, so two stores of one process exclude
each other as well. Where there is no `flock` SQLite's own locking has to do.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from hybridagi_steps.errors import ReadOnlyStorageError, StorageBusyError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.0002, 0.005


class FileLock:
    """An exclusive lock on `<database>.lock`; used by one thread at a time."""

    def __init__(self, database: Path, timeout_seconds: float) -> None:
        self._database = database
        self._path = database.with_name(database.name + ".lock")
        self._timeout_seconds = timeout_seconds
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StorageBusyError: Another writer held it longer than the timeout.
            ReadOnlyStorageError: The lock file cannot be made.
        """
        if fcntl is None:
            return
        if self._descriptor < 0:
            self._descriptor = self._open()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait()

    def release(self) -> None:
        """Give the lock back."""
        if fcntl is not None and self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Forget the file; the next `acquire` opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ReadOnlyStorageError(
                f"{self._path} cannot be made ({error}): the folder of a step memory must be "
                "writable to write steps."
            ) from error

    def _wait(self) -> None:
        assert fcntl is not None  # noqa: S101 - only called where there is flock
        give_up = time.monotonic() + self._timeout_seconds
        pause = _SHORTEST_WAIT_SECONDS
        while time.monotonic() < give_up:
            time.sleep(pause)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pause = min(pause * 1.5, _LONGEST_WAIT_SECONDS)
            else:
                return
        raise StorageBusyError(
            f"{self._database} is held by another writer for {self._timeout_seconds:g} s; "
            "try again when it is done."
        )
