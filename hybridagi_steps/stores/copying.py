"""Copies: all that a memory holds at another address, as it was at one moment.

A copy is one snapshot, written into an empty namespace in one transaction and compared with its
source by counts and sums before that is committed: it is there whole or not at all. To move is to
copy and to clear the old place, which is done only if nobody wrote there meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable
from uuid import uuid4

from hybridagi_steps.errors import CopyError, DiskFullError, StorageError, UnsupportedAddressError
from hybridagi_steps.outside_files import make_private
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.stores.address import is_server
from hybridagi_steps.stores.listing import OnStore
from hybridagi_steps.stores.sql.copied_rows import MESSAGES, SESSIONS, STEPS, Sums
from hybridagi_steps.stores.sql.copy_tables import CopyTables

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy holds."""

    steps: int
    messages: int
    sessions: int
    as_of: datetime
    """When the state was taken that was copied."""
    unreached: tuple[str, ...]
    """Files that may still hold some of what was moved, as `purge` names them."""
    others: tuple[str, ...]
    """Other namespaces of the source that hold something; each is copied by itself."""


class Copying(OnStore):
    """What a memory does to be copied."""

    address: str
    whole_address: str
    namespace: str

    @property
    @abstractmethod
    def _opening(self) -> Callable[..., AbstractContextManager[Copying]]:
        """Return what opens a memory like this one at another address."""

    @abstractmethod
    def _places_left(self) -> list[str]:
        """Overwrite what was deleted; return where it still is."""

    @abstractmethod
    def _forget_cache(self) -> None:
        """Forget what was read of the store."""

    def copy_to(
        self, address: str | os.PathLike[str], progress: Progress | None = None
    ) -> CopyReport:
        """Copy this namespace, as it is now, into an empty one at another address.

        Steps with scores, embeddings and prompts, revocations and consents, sessions with their
        branches and idempotency keys, under the same ids and in the same order. Others may write to
        this memory meanwhile, which the copy does not have.

        Args:
            address: A file or postgresql://…; the namespace must be empty there.
            progress: Called with (done, total) rows.

        Raises:
            CopyError: The target holds something, or this memory holds nothing.
            CopyDiffersError: What was written is not what was read; nothing of it is kept.
            UnsupportedAddressError: One of the two is no database that can be copied.
            StorageError: One of the two cannot be read or written.
        """
        return self._copied(address, progress)[0]

    def move_to(
        self, address: str | os.PathLike[str], progress: Progress | None = None
    ) -> CopyReport:
        """Copy this namespace to another address, and erase it here.

        What is in queues stays there. Who has this memory open goes on here, so let nobody write.

        Args:
            address: Where to, as of `copy_to`.
            progress: Called with (done, total) rows.

        Raises:
            CopyError: As of `copy_to`; or somebody wrote here meanwhile, and nothing was erased.
        """
        report, sums = self._copied(address, progress)
        try:
            if not tables_of(self._open_store).clear_copied(sums):
                raise CopyError(
                    f"somebody wrote to {self.address} while it was copied, so it stays as it is; "
                    f"clear the copy, {os.fspath(address)}, and move it when nobody writes."
                )
            return replace(report, unreached=tuple(self._places_left()))
        finally:
            self._forget_cache()

    def _copied(
        self, address: str | os.PathLike[str], progress: Progress | None
    ) -> tuple[CopyReport, Sums]:
        """Copy this namespace; return its sums, too."""
        # Loaded here because that opens back-ends, which know copies.
        from hybridagi_steps.stores import address_text

        place, done = address_text(address), 0
        if place == ":memory:":
            raise UnsupportedAddressError("a copy in memory is gone at once; name a file.")
        source = tables_of(self._open_store)
        others = tuple(name for name in source.namespaces() if name != self.namespace)
        with source.snapshot() as there:
            as_of, total = utc_now(), 2 * sum(source.sizes(there))
            if not any(page.rows for page in source.pages(there)):
                raise CopyError(
                    f"the namespace {self.namespace!r} of {self.address} holds nothing; it has "
                    f"{', '.join(others) or 'none'}."
                )

            def advance(rows: int) -> None:
                nonlocal done
                done += rows
                if progress is not None and rows:
                    progress(done, total)

            with self._opening(place, memory_budget=None) as target:
                copy = tables_of(target._open_store)  # noqa: SLF001 - one of us
                self._refuse_itself(target, source, copy)
                sums = copy.take(source, there, advance)
        steps, messages, sessions = (sums.count(one.what) for one in (STEPS, MESSAGES, SESSIONS))
        return CopyReport(steps, messages, sessions, as_of, (), others), sums

    def _refuse_itself(self, target: Copying, source: CopyTables, copy: CopyTables) -> None:
        """Refuse a target that is this memory, or its file under another name."""
        ours, theirs = (store.identity().store_id for store in (source, copy))
        if ours != theirs or self.namespace != target.namespace:
            return
        if self.whole_address == target.whole_address or is_server(self.whole_address):
            raise CopyError(f"{self.address} and {target.address} are the same memory.")
        raise CopyError(
            f"{target.address} has the identity of {self.address}: it is a backup of it, or "
            "its file was copied. Name a file that is not there yet, or open that one as it is."
        )


def tables_of(store: object) -> CopyTables:
    """Return a store as what can be copied; UnsupportedAddressError when it is none of ours."""
    if not isinstance(store, CopyTables):
        raise UnsupportedAddressError(
            f"{type(store).__name__} cannot be copied; export its steps and import them."
        )
    return store


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
