"""The database behind `:memory:`: one SQLite connection that nobody else has, gone when it closes.

Nothing is ever written to a disk, so nothing can be left there. Threads take turns at the one
connection, under a lock that is held for one call; a child of fork has a copy of its own, as it has
of every other object.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hybridagi_steps._concurrency import rest_at_fork
from hybridagi_steps.errors import MemoryClosedError, MemoryNotPicklableError
from hybridagi_steps.stores.address import IN_MEMORY
from hybridagi_steps.stores.sqlite.schema import create
from hybridagi_steps.stores.sqlite.translation import translated
from hybridagi_steps.stores.waiting import Patience


class InMemoryDatabase:
    """One private database, opened by one store; has what `Database` has."""

    name = IN_MEMORY
    writable = True

    def __init__(self, durability: str, timeout_seconds: float) -> None:
        """Make an empty database; it survives nothing, whatever the durability."""
        self.durability = durability
        self.patience = Patience(timeout_seconds)
        self._closed = False
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(IN_MEMORY, isolation_level=None, check_same_thread=False)
        create(self._connection)
        self._connection.execute("PRAGMA temp_store = MEMORY")
        self._connection.execute("PRAGMA secure_delete = ON")
        self._inserts = self._connection.cursor()
        rest_at_fork(self)

    def insert(self, sql: str, values: Sequence[Any]) -> int:
        """Run one INSERT as a transaction of its own; return the row. The fast path of appends."""
        with self._lock:
            self._refuse_closed()
            try:
                return self._inserts.execute(sql, values).lastrowid or 0
            except sqlite3.IntegrityError:
                raise
            except sqlite3.Error as error:
                raise translated(error, Path(self.name)) from error

    @contextmanager
    def writing(
        self,
        *,
        synced: bool | None = None,  # noqa: ARG002 - there is no disk
        beside: str | None = None,  # noqa: ARG002 - one writes at a time
    ) -> Generator[sqlite3.Connection]:
        """Give the connection in a transaction that is committed whole, or rolled back."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.execute("COMMIT")

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Give the connection in a transaction that leaves nothing behind."""
        return self._transaction("BEGIN")

    @contextmanager
    def asking(self) -> Generator[sqlite3.Connection]:
        """Give the connection for one statement."""
        with self._lock:
            self._refuse_closed()
            try:
                yield self._connection
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise translated(error, Path(self.name)) from error

    def known(self, sql: str, values: tuple[Any, ...]) -> Any:
        """Return the one row of a query."""
        with self.asking() as connection:
            return connection.execute(sql, values).fetchone()

    @contextmanager
    def _transaction(self, begin: str) -> Generator[sqlite3.Connection]:
        with self._lock:
            self._refuse_closed()
            connection = self._connection
            try:
                connection.execute(begin)
                yield connection
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise translated(error, Path(self.name)) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def compact(self, afterwards: str) -> None:
        """Give the pages back that nothing stands in any more; then run a statement."""
        with self._lock:
            self._refuse_closed()
            self._connection.execute("VACUUM")
            self._connection.execute(afterwards)

    def empty_log(self) -> None:
        """Do nothing: there is no log."""

    def file_bytes(self) -> int:
        """Return the size of the database."""
        with self.reading() as connection:
            [(pages,), (size,)] = (
                connection.execute(f"PRAGMA {name}").fetchone()
                for name in ("page_count", "page_size")
            )
        return pages * size

    def close(self) -> None:
        """Forget everything, when the call under way is done."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def before_fork(self) -> None:
        """Wait for the call under way."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._lock.release()

    def __reduce__(self) -> NoReturn:
        raise MemoryNotPicklableError(
            "an in-memory store lives in one process only; use a file to share steps."
        )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise MemoryClosedError("this in-memory store was closed; its steps are gone.")
