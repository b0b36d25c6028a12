"""SQLite's errors in this library's words: the one place that looks at SQLite's error codes.

Codes are compared without their extension (the low byte is the primary code), so that a newer
SQLite with finer codes is still understood. Reference: https://sqlite.org/rescode.html
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from hybridagi_steps.errors import (
    DamagedFileError,
    DiskFullError,
    ForeignFileError,
    ReadOnlyStorageError,
    StorageBusyError,
    StorageError,
)
from hybridagi_steps.stores.checksums import REMEDY

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None

_BUSY = (StorageBusyError, "is held by another writer; try again when it is done")
_MEANINGS: dict[int, tuple[type[StorageError], str]] = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_PROTOCOL: _BUSY,
    sqlite3.SQLITE_READONLY: (ReadOnlyStorageError, "cannot be written; check its permissions"),
    sqlite3.SQLITE_PERM: (ReadOnlyStorageError, "cannot be opened; check its permissions"),
    sqlite3.SQLITE_FULL: (DiskFullError, "cannot grow, the disk is full; free some space"),
    sqlite3.SQLITE_CORRUPT: (
        DamagedFileError,
        f"does not hold together; {REMEDY}",
    ),
    sqlite3.SQLITE_NOTADB: (ForeignFileError, "is not a step memory; give another path"),
}
_UNKNOWN = (StorageError, "could not be read or written")
_DAMAGE = ("malformed JSON", "Could not decode", "no such ", "near ", "unrecogn", "SELECTs to ")
"""What SQLite says without a code of its own when a text or the schema is not as it was written."""
_OS_MEANINGS: dict[int | None, tuple[type[StorageError], str]] = {
    errno.EACCES: (ReadOnlyStorageError, "may not be written by this user; check its permissions"),
    errno.EROFS: (ReadOnlyStorageError, "is on a disk that cannot be written"),
    errno.EMFILE: (
        StorageBusyError,
        "cannot be opened, this process has too many open files; close some, or raise ulimit -n",
    ),
    errno.ENFILE: (
        StorageBusyError,
        "cannot be opened, this machine has too many open files; close some",
    ),
    errno.ENOSPC: _MEANINGS[sqlite3.SQLITE_FULL],
}
_OS_MEANINGS[errno.EPERM] = _OS_MEANINGS[errno.EACCES]
_NO_ROOM_FOR_INDEX = {sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP}

_FILES_OF_A_DATABASE = 6
_ROOM_BYTES = 1_000_000
"""What SQLite may write at once, generously."""


def _at_size_limit(path: Path) -> bool:
    """Whether a file of the memory is about as large as this process may make it."""
    if resource is None:
        return False
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    parts = (path.with_name(path.name + end) for end in ("", "-wal", "-shm"))
    largest = max((part.stat().st_size for part in parts if part.exists()), default=0)
    return limit != resource.RLIM_INFINITY and largest + _ROOM_BYTES > limit


def translated(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StorageError:
    """Return the error to raise instead of SQLite's own; raise it `from` the original."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    kind, words = _MEANINGS.get(code & 0xFF, _UNKNOWN)
    if code in _NO_ROOM_FOR_INDEX:
        kind, words = _MEANINGS[sqlite3.SQLITE_FULL]
    elif code & 0xFF == sqlite3.SQLITE_IOERR and _at_size_limit(path):
        kind, words = (
            DiskFullError,
            "cannot grow, this process may write no larger files; ulimit -f",
        )
    elif isinstance(error, UnicodeDecodeError) or str(error).startswith(_DAMAGE):
        kind, words = _MEANINGS[sqlite3.SQLITE_CORRUPT]
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN:
        if reason := _out_of_descriptors():
            return unopened(reason, path)
        if not os.access(path, os.R_OK):
            words = "cannot be read by this user; check its permissions and its folder's"
    return kind(f"{path} {words} ({error}).")


def _out_of_descriptors() -> OSError | None:
    """Return why this process can open no database now; SQLite only says that it could not.

    The file itself must not be opened to learn that: closing it again would drop the locks that
    SQLite has on it.
    """
    opened: list[int] = []
    try:
        for _ in range(_FILES_OF_A_DATABASE):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return None


def unopened(error: OSError, path: Path) -> StorageError:
    """Return the error to raise when the system does not open a file."""
    kind, words = _OS_MEANINGS.get(error.errno, _UNKNOWN)
    return kind(f"{path} {words} ({error.strerror}).")


def refused_links(path: Path) -> ReadOnlyStorageError:
    """Return the error of a write to a file that has several names."""
    return ReadOnlyStorageError(
        f"{path} has another name (a hard link), and SQLite keeps a log for each: what is written "
        "under one is overwritten under the other. Remove the other name, or copy the file."
    )
