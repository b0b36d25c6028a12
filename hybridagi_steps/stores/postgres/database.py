"""The connections to one PostgreSQL database: a pool, writers side by side, readers beside them.

* A write holds an advisory lock of its namespace for as long as its transaction lasts: shared when
  it only adds, exclusive when it may change what others add to. Of one session, and of what is
  derived, one writer changes at a time. Two namespaces never wait for each other. For its turn in
  this process, a connection and locks a write waits no longer than the thread's patience.
* Rows appear when their writers commit, in any order; up to where they are all there, positions.py
  says.
* A read sees one consistent state (REPEATABLE READ, READ ONLY).
* A connection that the server ended while it lay idle is replaced without a word; one that ends in
  the middle of a call gives a StorageError, and the next call connects again. Where the address
  names several servers it waits, as long as for a lock, for the one that takes over.
* Through a pooler nothing is kept in a session of the server: see `lent`.
* Before a fork every connection is closed: two processes must not speak on one.

Every error of the driver leaves as one of ours. Nothing here knows about steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import psycopg

from hybridagi_steps._concurrency import rest_at_fork
from hybridagi_steps.errors import (
    MemoryClosedError,
    ReadOnlyStorageError,
    StorageBusyError,
    StorageError,
)
from hybridagi_steps.stores.address import checked_server, secrets_of, shown_address
from hybridagi_steps.stores.postgres import schema
from hybridagi_steps.stores.postgres.driver_errors import translated, understood, unreachable
from hybridagi_steps.stores.postgres.positions import locked_insert, locks_of_a_writer
from hybridagi_steps.stores.postgres.spelling import (
    READING,
    Raw,
    SpellingConnection,
    came_to_rest,
    connect_options,
    is_quiet,
    spelled,
    teach,
)
from hybridagi_steps.stores.sql.tables import ANYWHERE, DERIVED, Values
from hybridagi_steps.stores.waiting import Patience, take

_MOST_CONNECTIONS = 8
"""Of one store; who needs another waits for one to come back."""
_MOST_WRITERS = 6
"""Threads that write side by side, so that readers find a connection while writers wait."""
_TAKEOVER_PAUSE_SECONDS = 0.1
_MUCH_LEFT = 0.9
_LONGEST_PAUSE = "60s"
"""After which the server ends a transaction that its client left alone, and frees its lock."""
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
# `full` keeps what the server is set to, be it stricter, and only overrules that it need not wait.
# Of the last two the second changes when the server recovers from the end of one of its processes.
_SETTINGS = """SELECT set_config('search_path', '{schema}', lent),
    set_config('lock_timeout', '{timeout}', lent),
    set_config('idle_in_transaction_session_timeout', '{pause}', lent),
    set_config('default_transaction_isolation', 'read committed', lent),
    set_config('client_min_messages', 'warning', lent),
    {reading},
    set_config('synchronous_commit', CASE WHEN {normal} THEN 'off'
        WHEN current_setting('synchronous_commit') = 'off' THEN 'on'
        ELSE current_setting('synchronous_commit') END, lent),
    set_config('statement_timeout', CASE current_setting('statement_timeout')
        WHEN '0' THEN '{statement}' ELSE current_setting('statement_timeout') END, lent),
    lent, extract(epoch FROM pg_postmaster_start_time())::text,
    (SELECT extract(epoch FROM stats_reset)::text FROM pg_stat_bgwriter)
    FROM (SELECT {lent} AS lent) pooler;"""
_SYNCED = {True: "on", False: "off"}
# A snapshot of its own for each statement: those after the lock see what was committed before it.
_BEGIN_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED;"


class PostgresDatabase:
    """One PostgreSQL database, opened for reading and, where possible, writing."""

    def __init__(self, address: str, durability: str, timeout_seconds: float) -> None:
        """Connect, creating or migrating the schema where needed."""
        self._conninfo = checked_server(address)
        self.name, self._secrets = shown_address(address), secrets_of(address)
        self.durability = durability
        self.turn = 0
        """The namespace that is written; set once it is known."""
        self.timeout_seconds = timeout_seconds
        self.patience = Patience(timeout_seconds)
        self._write_turn = threading.Lock()
        self._beside = threading.Semaphore(_MOST_WRITERS)
        self._pool = threading.Condition()
        self._idle: list[Raw] = []
        self._out = 0
        self._closed = False
        self._server_began: Any = None
        self.restarts = 0
        """How often the server was found to have begun anew since this was opened."""
        self.lent = ""
        """What each transaction begins with where a pooler lends it a connection of the server."""
        given = understood(self._conninfo, self.name)
        self._has_standby = "," in str(given.get("host") or given.get("hostaddr"))
        self._options = connect_options(given, timeout_seconds)
        self.writable = True
        self._prepare()
        rest_at_fork(self)

    @contextmanager
    def writing(
        self, *, synced: bool | None = None, beside: str | None = None
    ) -> Generator[SpellingConnection]:
        """Give a writer in a transaction that is committed whole, or rolled back.

        Args:
            synced: Whether the commit waits for the disk, if not as this was opened. What can be
                made again need not; the next commit that does takes it along.
            beside: What it alone may change while others write beside it; see `Database`.
        """
        with self._turn_taken(beside) as (raw, wait):
            if synced is not None and synced != (self.durability == "full"):
                wait += f"SET LOCAL synchronous_commit TO {_SYNCED[synced]};"
            locks = locks_of_a_writer(self.turn, beside, self._name_key(beside))
            begun = raw.execute(f"{_BEGIN_WRITING} {self.lent} {wait} {locks}".encode())
            while begun.nextset():
                pass
            if not begun.rowcount:
                schema.refuse_migrated(raw, self.name)
            yield SpellingConnection(raw)
            raw.execute(b"COMMIT")

    def _name_key(self, beside: str | None) -> int:
        return crc32((beside or "").encode(), self.turn) - 2**31

    def insert(
        self,
        sql: str,
        values: Mapping[str, Any],
        *,
        draws: tuple[str, ...],
        beside: str = ANYWHERE,
        reads: bool = False,
    ) -> Any:
        """Run one statement that writes as a transaction of its own; return its first row.

        Args:
            sql: Takes its values from `turn`, which holds the locks of the writer.
            values: For `:name`.
            draws: Where it draws rows from; see positions.py.
            beside: What it alone may change; see `Database`.
            reads: Whether it reads what other writers change. A statement sees what was committed
                before it began, so the locks are taken by one before it, in the same round trip.
        """
        locks, sql = locked_insert(self.turn, bool(beside), draws, sql)
        values = {**values, "turn": self._name_key(beside)} if beside else values
        with self._turn_taken(beside) as (raw, wait):
            if not (wait or reads or self.lent):
                answer = raw.kept.execute(spelled(sql), values, binary=True)
            else:
                connection = SpellingConnection(raw)
                with raw.pipeline():
                    for statement in filter(None, (_BEGIN_WRITING, self.lent, wait)):
                        raw.execute(statement.encode())
                    connection.execute(locks, values)
                    answer = connection.execute(sql, values)
                    raw.execute(b"COMMIT")
            if (first := answer.fetchone()) is None:
                schema.refuse_migrated(raw, self.name)
            return first

    @contextmanager
    def reading(self, settings: str = "") -> Generator[SpellingConnection]:
        """Give a reader that sees one consistent state, with settings for the transaction."""
        with self._connected() as raw:
            begun = raw.execute(f"{_BEGIN_READING} {self.lent} {settings}".encode())
            if self.lent and begun.nextset():  # it may have restarted behind its pooler
                self._note_restart((begun.fetchone() or ())[-2:])
            yield SpellingConnection(raw)
            raw.execute(b"COMMIT")

    @contextmanager
    def asking(self) -> Generator[SpellingConnection]:
        """Give a reader for one statement: without a transaction around it, a third as long."""
        with self.reading() if self.lent else self.outside() as connection:
            yield connection

    def known(self, sql: str, values: Values) -> Any:
        """Return the one row of a query."""
        return next(iter(self.few(sql, values)), None)

    def few(self, sql: str, values: Values) -> list[Any]:
        """Return the rows of a query that has few: the connection keeps them for a while."""
        if self.lent:
            with self.reading() as connection:
                return connection.execute(sql, values).fetchall()
        with self._connected() as raw:
            return raw.kept.execute(spelled(sql), values or None, binary=True).fetchall()

    @contextmanager
    def outside(self, seconds: float | None = None) -> Generator[SpellingConnection]:
        """Give a connection outside any transaction; through a pooler without our settings."""
        with self._connected(seconds) as raw:
            yield SpellingConnection(raw)

    @contextmanager
    def alone(self) -> Generator[Raw]:
        """Give a connection as `outside`, whose statements take as long as they need."""
        with self._turn_taken() as (raw, _):
            if not self.lent:
                raw.execute(b"SET statement_timeout TO 0")
            try:
                yield raw
            finally:
                raw.close()  # with its setting; such work is rare

    @contextmanager
    def _turn_taken(self, beside: str | None = None) -> Generator[tuple[Raw, str]]:
        """Wait for those of this process that keep this one from writing, then for a connection.

        The text is the statement that limits the next wait to what is left of the time; it is
        empty where the connection's own limit will do: that spares a round trip.
        """
        until = time.monotonic() + self.patience.seconds
        turn = self._write_turn if beside in (None, DERIVED) else self._beside
        left, raw = take(turn, self.patience.seconds, self.name), None
        try:  # as `_connected`, which in here would make each write longer
            raw = self._take(left)
            left = until - time.monotonic()
            enough = left > _MUCH_LEFT * self.timeout_seconds
            yield raw, "" if enough else f"SET LOCAL lock_timeout TO {_milliseconds(left)};"
        except psycopg.Error as error:
            raise translated(error, self.name, self._secrets) from error
        finally:
            try:
                if raw is not None:
                    self._give_back(raw)
            finally:
                turn.release()

    def close(self) -> None:
        """Close every connection, waiting for reads and writes under way."""
        self.before_fork()
        self._closed = True
        self.after_fork()

    def before_fork(self) -> None:
        """Wait for reads and writes under way, then close every connection."""
        self._write_turn.acquire()
        self._pool.acquire()
        while self._out:
            self._pool.wait()
        self._close_idle()

    def after_fork(self) -> None:
        """Let reads and writes go on; they open new connections."""
        self._beside = threading.Semaphore(_MOST_WRITERS)  # in a child its holders are not there
        self._pool.release()
        self._write_turn.release()

    def __del__(self) -> None:
        """Close what nobody closed; psycopg would warn of each connection."""
        self._close_idle()

    def __repr__(self) -> str:
        return f"PostgresDatabase({self.name!r})"

    def _close_idle(self) -> None:
        while idle := getattr(self, "_idle", None):
            idle.pop().close()

    @contextmanager
    def _connected(self, seconds: float | None = None) -> Generator[Raw]:
        """Lend a connection; what is left of a transaction is rolled back."""
        raw = self._take(self.timeout_seconds if seconds is None else seconds)
        try:
            yield raw
        except psycopg.Error as error:
            raise translated(error, self.name, self._secrets) from error
        finally:
            self._give_back(raw)

    def _take(self, seconds: float) -> Raw:
        with self._pool:
            self._refuse_closed()
            give_up = time.monotonic() + seconds
            while self._out >= _MOST_CONNECTIONS:
                if not self._pool.wait(give_up - time.monotonic()):
                    raise StorageBusyError(
                        f"{self.name}: all {_MOST_CONNECTIONS} connections of this process were in "
                        f"use for {seconds:g} s; try again, or give a longer timeout_seconds."
                    )
                self._refuse_closed()
            self._out += 1
            idle = self._idle.pop() if self._idle else None
        try:
            if idle is not None:
                if is_quiet(idle):
                    return idle
                idle.close()
            return self._connect_by(give_up)
        except BaseException:
            self._give_back(None)
            raise

    def _give_back(self, raw: Raw | None) -> None:
        try:
            if raw is not None and not came_to_rest(raw):
                raw.close()
                raw = None
        finally:
            with self._pool:
                self._out -= 1
                if raw is not None:
                    self._idle.append(raw)
                self._pool.notify_all()

    def _connect_by(self, give_up: float) -> Raw:
        """Connect; of several servers one may be about to take over, and is waited for."""
        while True:
            try:
                return self._connect()
            except StorageError:
                waits = self._has_standby and self._server_began is not None
                if not waits or time.monotonic() + _TAKEOVER_PAUSE_SECONDS > give_up:
                    raise
            time.sleep(_TAKEOVER_PAUSE_SECONDS)

    def _connect(self) -> Raw:
        try:
            raw = Raw.connect(self._conninfo, autocommit=True, **self._options)
        except psycopg.Error as error:
            raise unreachable(error, self.name, self._secrets) from error
        try:
            # A pooler gives its client a number of its own.
            lent = f"pg_backend_pid() <> {raw.info.backend_pid}"
            told: Any = raw.execute(self._settings(lent).encode()).fetchone()
            self._note_restart(told[-2:])
            if told[-3]:
                raw.prepare_threshold = None
                self.lent = self._settings("true")
            teach(raw)
        except BaseException as error:
            raw.close()
            if isinstance(error, psycopg.Error):
                raise unreachable(error, self.name, self._secrets) from error
            raise
        return raw

    def _settings(self, lent: str) -> str:
        """Return the query that sets what statements stand on, where `lent` for a transaction."""
        return _SETTINGS.format(
            schema=schema.SCHEMA,
            timeout=_milliseconds(self.timeout_seconds),
            pause=_LONGEST_PAUSE,
            statement=schema.LONGEST_STATEMENT,
            normal=self.durability == "normal",
            reading=READING,
            lent=lent,
        )

    def _note_restart(self, began: object) -> None:
        """Count the server's lives: what one lost, with `normal`, the next may number anew."""
        with self._pool:
            if self._server_began not in (None, began):
                self.restarts += 1
            self._server_began = began

    def _prepare(self) -> None:
        """Check the database, and create or migrate its schema; others may be doing the same."""
        with self._turn_taken() as (raw, _):
            encoding = raw.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StorageError(
                    f"{self.name} is encoded as {encoding}, which cannot hold every text; "
                    "create a database with ENCODING 'UTF8'."
                )
            with raw.transaction():
                raw.execute((self.lent or "SELECT").encode())
                self.writable = raw.execute(b"SHOW transaction_read_only").fetchone() == ("off",)
                if schema.is_prepared(raw, self.name):
                    return
            if not self.writable:
                raise ReadOnlyStorageError(
                    f"{self.name} has no step memory or one of an earlier version, and cannot be "
                    "written here: open it once where it can be."
                )
            schema.migrate(raw, self.name, self.timeout_seconds)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise MemoryClosedError(f"{self.name} was closed; open it again.")


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)  # 0 would be for ever
