"""Worker names: held by one living process each, so that what a dead one had begun is taken up.

Beside an SQLite database a name is a lock on a file, which goes with the process; in PostgreSQL a
row that its worker renews (stores/postgres/presence.py), seen by every machine.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from hybridagi_steps.errors import InvalidSettingError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None


class FileNames:
    """Names held by locks on files beside a database.

    POSIX locks, unlike `flock`, are not kept alive by a child that a killed worker leaves behind.
    """

    look_seconds = 0.2
    """How often dead workers are looked for."""

    def __init__(self, database: Path) -> None:
        if fcntl is None:
            raise InvalidSettingError("workers need file locks, which this system does not have.")
        self._database = database
        self._held: dict[str, int] = {}

    def first_free(self, prefix: str) -> str:
        """Take a name that nobody living holds: the first number that is free."""
        return next(filter(self.take, (f"{prefix}{number}" for number in count(1))))

    def take(self, name: str) -> bool:
        """Take a name unless a living process holds it: lock its file."""
        assert fcntl is not None  # noqa: S101 - checked when it was made
        path = self._database.with_name(f"{self._database.name}.{name}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return False
        self._held[name] = descriptor
        return True

    def release(self, name: str) -> None:
        """Give a name back."""
        os.close(self._held.pop(name))

    def renew(self, name: str) -> bool:  # noqa: ARG002 - a lock needs none
        """Return whether a worker may call others dead: a lock goes with the process."""
        return True

    def close(self) -> None:
        """Hold no name any more."""
        for name in [*self._held]:
            self.release(name)


class LeasedNames:
    """Names held by rows of PostgreSQL; what it is asked is what `FileNames` is."""

    look_seconds = 1.0

    def __init__(self, conninfo: str, namespace: str) -> None:
        from hybridagi_steps.stores.postgres.presence import Presence

        self._presence = Presence(conninfo, namespace)
        self.take, self.release = self._presence.take, self._presence.release
        self.first_free, self.close = self._presence.new_name, self._presence.close

    def renew(self, name: str) -> bool:
        """Renew the row of a name; return whether its holder may call others dead."""
        self.take(name)
        return not self._presence.doubts
