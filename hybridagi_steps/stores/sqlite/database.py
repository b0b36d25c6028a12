"""The connections to one SQLite file: one writer, any number of readers.

* A write holds a thread lock, then the file lock, then SQLite's own; it waits in line, not busily,
  and for all three together no longer than the thread's patience.
* Reads take a connection from a pool and see one consistent state (a deferred transaction). They
  wait for no writer.
* A file that cannot be written, and whose log is empty, is read without a log, as what does not
  change; when it does change, it is opened anew.
* Checkpoints happen only inside writes, or when the last connection closes: never while another
  connection commits. That is what SQLite's WAL-reset bug (before 3.51.3) needs to strike.
* Before a fork every connection is closed, because SQLite's memory of its locks must not be copied.

Every SQLite error leaves as one of ours. Nothing here knows about steps.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hybridagi_steps._concurrency import rest_at_fork
from hybridagi_steps.errors import (
    FileGoneError,
    ForeignFileError,
    MemoryClosedError,
    ReadOnlyStorageError,
    StorageBusyError,
    StorageError,
)
from hybridagi_steps.outside_files import make_private
from hybridagi_steps.stores.sqlite.file_lock import FileLock
from hybridagi_steps.stores.sqlite.schema import (
    create,
    latest_version,
    migrate,
    refuse_newer,
    version_of,
)
from hybridagi_steps.stores.sqlite.translation import refused_links, translated, unopened
from hybridagi_steps.stores.waiting import Patience, take, taken

_CHECKPOINT_PAGES = 512
"""A WAL of about two MiB: a batch of 1,000 steps needs no checkpoint, a sync soon no new space."""
_LONGEST_KEPT_WAL_BYTES = _CHECKPOINT_PAGES * 4096
_SYNCHRONOUS: dict[str | bool, str] = {
    "normal": "NORMAL",
    "full": "FULL",
    False: "NORMAL",
    True: "FULL",
}
_IMMUTABLE = "ro&immutable=1"
_NO_LOG_INDEX = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
_MUCH_LEFT = 0.9


class Reader(sqlite3.Connection):
    """A connection that reads, and keeps answers until somebody else commits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._version: int | None = None
        self._answers: dict[tuple[str, tuple[Any, ...]], Any] = {}

    def known(self, sql: str, values: tuple[Any, ...]) -> Any:
        """Return the one row of a query, as it was if nothing was committed since."""
        # Asked before the query: a commit between the two lets it be asked once more.
        (version,) = self.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._answers.clear()
            self._version = version
        key = (sql, values)
        if key not in self._answers:
            self._answers[key] = self.execute(sql, values).fetchone()
        return self._answers[key]


class Database:
    """One SQLite file, opened for reading and, where possible, writing."""

    def __init__(self, path: Path, durability: str, timeout_seconds: float) -> None:
        """Open the file, creating or migrating it where needed."""
        self.path = Path(os.path.realpath(path))
        self.durability = durability
        self.patience = Patience(timeout_seconds)
        self._timeout_seconds = self._writer_waits = timeout_seconds
        self._synchronous = _SYNCHRONOUS[durability]
        self._file_lock = FileLock(self.path)
        self._write_turn = threading.Lock()
        self._pool = threading.Condition()
        self._writer: sqlite3.Connection | None = None
        self._inserts: sqlite3.Cursor | None = None
        self._idle: list[Reader] = []
        self._reading = 0
        self._closed = False
        self._seen: object = None
        self._own_path = str(self.path)
        self._identity: tuple[int, int] | None = None
        self._checked_turn = 0
        try:
            self._refuse_folder()
            self.writable = self._is_writable()
            self._mode = "rw" if self.writable else "ro"
            self._prepare()
            found = self.path.stat()
            self._identity = found.st_dev, found.st_ino
        except StorageError:
            raise
        except OSError as error:  # a name that is too long, a folder that may not be entered
            raise StorageError(f"{self.path} cannot be opened: {error.strerror}.") from error
        rest_at_fork(self)

    @property
    def name(self) -> str:
        """The path, as messages show it."""
        return str(self.path)

    def insert(self, sql: str, values: Sequence[Any]) -> int:
        """Run one INSERT as a transaction of its own; return the row. The fast path of appends."""
        left = take(self._write_turn, self.patience.seconds, self.name)
        try:
            # Of one cursor that is kept, since making one takes a twentieth of an append.
            cursor = self._inserts or self._open_writer_cursor()
            self._lock_file(left)
            try:
                return cursor.execute(sql, values).lastrowid or 0
            except sqlite3.IntegrityError:
                raise
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise translated(error, self.path) from error
            finally:
                self._file_lock.release()
        finally:
            self._write_turn.release()

    @contextmanager
    def writing(
        self,
        *,
        synced: bool | None = None,
        beside: str | None = None,  # noqa: ARG002 - one writes at a time
    ) -> Generator[sqlite3.Connection]:
        """Give the writer in a transaction that is committed whole, or rolled back.

        `synced` as of `tables.Database.writing`; whatever stands `beside`, a file has one writer at
        a time.
        """
        wanted = _SYNCHRONOUS[self.durability if synced is None else synced]
        with self.exclusive() as connection:
            if wanted != self._synchronous:
                connection.execute(f"PRAGMA synchronous = {wanted}")
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                self._check_identity()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                if wanted != self._synchronous:
                    connection.execute(f"PRAGMA synchronous = {self._synchronous}")

    @contextmanager
    def exclusive(self) -> Generator[sqlite3.Connection]:
        """Give the writer outside any transaction, while no other process writes."""
        with taken(self._write_turn, self.patience.seconds, self.name) as left:
            connection = self._writer or self._open_writer()
            self._lock_file(left)
            try:
                yield connection
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise translated(error, self.path) from error
            finally:
                self._file_lock.release()

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """Give a reader that sees one consistent state."""
        with self.asking() as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def asking(self) -> Generator[Reader]:
        """Give a reader for one statement, which is a consistent state by itself."""
        try:
            connection = self._take_reader()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translated(error, self.path) from error
        try:
            yield connection
            self._refuse_changed()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._refuse_changed()
            raise translated(error, self.path) from error
        finally:
            self._give_back(connection)

    def known(self, sql: str, values: tuple[Any, ...]) -> Any:
        """Return the one row of a query; asked again, it is read again only after a commit."""
        with self.asking() as reader:
            return reader.known(sql, values)

    def compact(self, afterwards: str) -> None:
        """Rewrite the file without its free pages and empty the WAL.

        `afterwards` is a statement to run once that is done, before anybody else writes.
        """
        with self.exclusive() as connection:
            connection.execute("VACUUM")
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StorageBusyError(
                    f"{self.path} is being read; its write-ahead log still holds old pages. "
                    "Try again when the readers are done."
                )
            connection.execute(afterwards)

    def empty_log(self) -> None:
        """Empty the WAL, if nobody reads or writes: what was rolled back may stand in it."""
        with suppress(StorageBusyError), self.patience.at_most(0), self.exclusive() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def file_bytes(self) -> int:
        """Return the size of the database with its write-ahead log."""
        return sum(map(self._bytes_of, ("", "-wal")))

    def _lock_file(self, seconds: float) -> None:
        """Wait for the file lock, and have SQLite wait for what is left of the time."""
        left = self._file_lock.acquire(seconds)
        try:
            if self._check_identity().st_nlink > 1:
                raise refused_links(self.path)
            self._check_version()
        except BaseException:
            self._file_lock.release()
            raise
        # What is left is told only where it says something: that takes a twentieth of an append.
        wanted = self._timeout_seconds if left > _MUCH_LEFT * self._timeout_seconds else left
        if wanted != self._writer_waits and self._writer is not None:
            self._writer.execute(f"PRAGMA busy_timeout = {int(wanted * 1000)}")
            self._writer_waits = wanted

    def _check_identity(self) -> os.stat_result:
        """Refuse a file that is no longer the one that was opened; return its status.

        What SQLite writes into a file without a name it can read back, and nobody else ever can.
        """
        try:
            found = os.stat(self._own_path)  # noqa: PTH116 - a third of the time
        except OSError as error:
            raise FileGoneError(self._own_path, f"cannot be found ({error.strerror})") from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise FileGoneError(self._own_path, "is another file now")
        return found

    def _check_version(self) -> None:
        """Refuse to write as an earlier version would: another process may have migrated.

        Which takes longer than a turn of this one at the lock, so once in a turn is enough.
        """
        if self._writer is not None and self._file_lock.turns != self._checked_turn:
            try:
                (version,) = self._writer.execute("PRAGMA user_version").fetchone()
            except sqlite3.Error as error:
                raise translated(error, self.path) from error
            refuse_newer(version, self.path)
            self._checked_turn = self._file_lock.turns

    def close(self) -> None:
        """Close every connection, waiting for reads and writes under way."""
        self.before_fork()
        self._closed = True
        self.after_fork()

    def before_fork(self) -> None:
        """Wait for reads and writes under way, then close every connection."""
        self._write_turn.acquire()
        self._pool.acquire()
        while self._reading:
            self._pool.wait()
        for connection in (*self._idle, *([self._writer] if self._writer else [])):
            connection.close()
        self._idle.clear()
        self._writer = self._inserts = None
        self._file_lock.close()

    def after_fork(self) -> None:
        """Let reads and writes go on; they open new connections."""
        self._pool.release()
        self._write_turn.release()

    def _take_reader(self) -> Reader:
        with self._pool:
            self._refuse_closed()
            if not self.writable and (self._changed() or not self._idle):
                self._reopen()
            connection = self._idle.pop() if self._idle else self._connect()
            self._reading += 1
            return connection

    def _give_back(self, connection: Reader) -> None:
        usable = False
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            usable = True
        finally:
            with self._pool:
                self._reading -= 1
                if usable:
                    self._idle.append(connection)
                self._pool.notify_all()

    def _open_writer(self) -> sqlite3.Connection:
        self._refuse_closed()
        if not self.writable:
            raise ReadOnlyStorageError(f"{self.path} was opened read-only: it cannot be written.")
        try:
            connection = self._connect()
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {_LONGEST_KEPT_WAL_BYTES}")
            connection.execute("PRAGMA secure_delete = ON")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translated(error, self.path) from error
        self._writer, self._writer_waits = connection, self._timeout_seconds
        return connection

    def _open_writer_cursor(self) -> sqlite3.Cursor:
        self._inserts = (self._writer or self._open_writer()).cursor()
        return self._inserts

    def _connect(self) -> Reader:
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={self._mode}",
            uri=True,
            isolation_level=None,
            timeout=self._timeout_seconds,
            check_same_thread=False,
            factory=Reader,
        )
        if self._identity is not None and self.writable:
            try:
                self._check_identity()
            except BaseException:
                connection.close()
                raise
        return connection

    def _prepare(self) -> None:
        """Check the file, and create or migrate it; other processes may be doing the same."""
        try:
            if self.path.exists() and self._version() == latest_version():
                return
        except sqlite3.OperationalError as error:
            self._open_immutable(error)
            return
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translated(error, self.path) from error
        if not self.writable:
            raise ReadOnlyStorageError(
                f"{self.path} is missing or of an earlier version, and cannot be written here: "
                "open it once where it can be."
            )
        try:
            self._create()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translated(error, self.path) from error

    def _open_immutable(self, error: sqlite3.OperationalError) -> None:
        """Open the file for reading without a write-ahead log, if there is none.

        Where nothing can be written, SQLite cannot make the log's index, and refuses to open.
        """
        refused = error.sqlite_errorcode & 0xFF in _NO_LOG_INDEX and os.access(self.path, os.R_OK)
        if self._mode != "ro" or not refused:
            raise translated(error, self.path) from error
        self._seen = self._state_of_files()
        if self._bytes_of("-wal"):
            raise ReadOnlyStorageError(
                f"{self.path} has a write-ahead log with steps in it, and this user can neither "
                "read the log's index nor make one. Have a user who can write the folder open the "
                "memory and close it, or copy the file and its -wal into a folder of your own."
            ) from error
        self._mode = _IMMUTABLE
        self._prepare()

    def _reopen(self) -> None:
        """Begin to read anew, after somebody has written a file that was read as unchanging."""
        while self._idle:
            self._idle.pop().close()
        self._mode = "ro"
        try:
            self._prepare()
        except StorageError:
            self._mode, self._seen = _IMMUTABLE, None  # the next who reads tries again
            raise

    def _changed(self) -> bool:
        return self._mode == _IMMUTABLE and self._seen != self._state_of_files()

    def _refuse_changed(self) -> None:
        if self._changed():
            raise StorageBusyError(f"{self.path} was written while it was read; read it again.")

    def _state_of_files(self) -> object:
        """Return what is another whenever somebody writes, or begins to."""
        stat = self.path.stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size, self._bytes_of("-wal")

    def _bytes_of(self, suffix: str) -> int:
        beside = self._beside(suffix)
        return beside.stat().st_size if beside.exists() else 0

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _version(self) -> int:
        connection = self._connect()
        try:
            connection.execute("BEGIN")  # one state: another process may be creating the file
            version = version_of(connection, self.path)
            connection.execute("COMMIT")
            return version
        finally:
            connection.close()

    def _create(self) -> None:
        self._mode = "rwc"
        self._file_lock.acquire(self._timeout_seconds)
        try:
            make_private(self.path)
            found = self.path.stat()
            if found.st_nlink > 1:
                raise refused_links(self.path)
            new = found.st_size == 0
        except StorageError:
            self._file_lock.release()
            raise
        except OSError as error:
            self._file_lock.release()
            raise unopened(error, self.path) from error
        connection = self._connect()
        try:
            version = version_of(connection, self.path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            create(connection) if new else migrate(connection, version)
        finally:
            connection.close()
            self._file_lock.release()
            self._mode = "rw"

    def _is_writable(self) -> bool:
        folder = self.path.parent
        if not folder.is_dir():
            raise StorageError(f"{folder} is no folder; create it first.")
        return os.access(folder, os.W_OK) and (
            not self.path.exists() or os.access(self.path, os.W_OK)
        )

    def _refuse_folder(self) -> None:
        if self.path.is_dir():
            raise ForeignFileError(f"{self.path} is a folder; give the path of a file.")

    def _refuse_closed(self) -> None:
        if self._closed:
            raise MemoryClosedError(f"{self.path} was closed; open it again.")
