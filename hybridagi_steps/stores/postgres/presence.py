"""Presence: which processes are alive, as rows of a PostgreSQL table that they renew (leases).

A name of a namespace is held by a row. It is free again when the connection that renewed it last is
gone, two seconds after kill -9, or when nobody has renewed it for `LEASE_SECONDS`, as when a
machine, its network or a whole process stands still. Times are the server's, so clocks of machines
do not matter, and nothing is kept in a session, so a pooler does not.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any
from uuid import uuid4

import psycopg

from hybridagi_steps.stores.postgres.work_tables import (
    WORK_SCHEMA,
    connected,
    prepare,
    translated_from,
)

LEASE_SECONDS = 10.0
_CONNECTION_SECONDS = 2.0
"""How long a worker whose connection was ended has to come back on another one."""


def alive(connection_seconds: float) -> str:
    """Return the condition that a row `p` of `lease` is of a living process.

    Args:
        connection_seconds: How long it has to come back when its connection was ended; longer than
            it takes to renew.
    """
    return f"""(p.seen_at > clock_timestamp() - interval '{LEASE_SECONDS:g} s'
    AND (p.seen_at > clock_timestamp() - interval '{connection_seconds:g} s' OR EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity a WHERE a.pid = p.backend)))"""


_TAKE = f"""INSERT INTO {WORK_SCHEMA}.lease AS p
    VALUES (%(namespace)s, %(name)s, %(token)s, pg_backend_pid(), clock_timestamp(), %(host)s,
        %(process)s)
    ON CONFLICT (namespace, name) DO UPDATE SET token = excluded.token, backend = excluded.backend,
        seen_at = excluded.seen_at, host = excluded.host, process = excluded.process
    WHERE p.token = excluded.token OR NOT ({alive(_CONNECTION_SECONDS)})
    RETURNING 1"""  # noqa: S608 - our own names
_RENEW = f"""UPDATE {WORK_SCHEMA}.lease SET backend = pg_backend_pid(),
    seen_at = clock_timestamp() WHERE token = %(token)s"""  # noqa: S608
_RENEW_SOME = f"{_RENEW} AND name = ANY(%(names)s)"
_RELEASE = f"DELETE FROM {WORK_SCHEMA}.lease WHERE name = %(name)s AND token = %(token)s"  # noqa: S608


class Presence:
    """Names that this process holds, on a connection of its own; safe for threads.

    Args:
        conninfo: The address of the database.
        namespace: Whose processes: roles see those of their namespaces.
    """

    def __init__(self, conninfo: str, namespace: str) -> None:
        self._conninfo = conninfo
        self._raw = connected(conninfo)
        self._lock, self._doubts_until = threading.Lock(), 0.0
        self._about = {
            "namespace": namespace,
            "token": uuid4(),
            "host": socket.gethostname(),
            "process": os.getpid(),
        }
        try:
            prepare(self._raw, conninfo)
        except BaseException:
            self._raw.close()
            raise

    @property
    def doubts(self) -> bool:
        """Whether others may seem dead that are not: after an outage none has come back yet."""
        return time.monotonic() < self._doubts_until

    def new_name(self, prefix: str) -> str:
        """Take a name that was never used.

        One that stood still for longer than its lease, and goes on, must not find another process
        under its name.
        """
        name = f"{prefix}{self._about['host']}-{self._about['process']}-{os.urandom(3).hex()}"
        self.take(name)
        return name

    def take(self, name: str) -> bool:
        """Take a name, or renew one that is held; return whether it is held now."""
        return bool(self.ask(_TAKE, {"name": name, **self._about}))

    def renew(self, names: Collection[str]) -> None:
        """Renew names that are held."""
        self.ask(_RENEW_SOME, {"names": list(names), **self._about})

    def release(self, name: str) -> None:
        """Give a name back."""
        self.ask(_RELEASE, {"name": name, **self._about})

    def ask(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement that may be run twice; return its rows.

        A connection that the server ended is replaced. `%(doubts)s` is what `doubts` is when the
        statement is answered: it may be another one than when it was asked.
        """
        try:
            with self._lock:
                try:
                    return self._asked(sql, values or {})
                except psycopg.OperationalError:
                    if not self._raw.closed:
                        raise
                    self._doubts_until = time.monotonic() + LEASE_SECONDS
                    self._raw = connected(self._conninfo)
                    self._asked(_RENEW, self._about)
                    return self._asked(sql, values or {})
        except psycopg.Error as error:
            raise translated_from(error, self._conninfo) from error

    def _asked(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        answer = self._raw.execute(sql.encode(), {**values, "doubts": self.doubts})
        return answer.fetchall() if answer.description else []

    def close(self) -> None:
        """Let the connection go, and with it every name."""
        self._raw.close()
