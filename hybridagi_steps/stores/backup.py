"""Backups: a whole database in one new file, taken while others read and write."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol, runtime_checkable
from uuid import uuid4

from hybridagi_steps.errors import DiskFullError, StorageError, UnsupportedAddressError
from hybridagi_steps.outside_files import make_private


@runtime_checkable
class BackedUp(Protocol):
    """What a store has besides whose database can be written into one file."""

    def write_into(self, path: Path) -> None:
        """Write the database as it is now, without what was deleted, into an empty file."""
        ...


def back_up(store: object, target: Path) -> int:
    """Write the database of a store into a new file, which only its owner can read.

    The file is there when all of it is on the disk, never half of it. It is a memory like any
    other: to restore, put it where the old one was.

    Returns:
        Its length in bytes.

    Raises:
        StorageError: The file is there, or cannot be written.
        UnsupportedAddressError: The database is on a server.
    """
    if not isinstance(store, BackedUp):
        raise UnsupportedAddressError(
            "a database server makes its own backups: use `pg_dump`, and `pg_restore` into a "
            "database of the same major version or a later one."
        )
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        make_private(part)
        store.write_into(part)
        with closing(sqlite3.connect(part)) as written:
            written.execute("PRAGMA journal_mode = WAL")  # as a memory's file has it
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.link(part, target)
        return target.stat().st_size
    except DiskFullError as error:
        raise DiskFullError(
            f"the backup {target} cannot grow: its disk is full, or this process may write no "
            "larger files (ulimit -f); name a file elsewhere, or free some space."
        ) from error
    except FileExistsError as error:
        raise StorageError(
            f"{target} is there; a backup replaces no file: name another."
        ) from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write the backup {target}: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
