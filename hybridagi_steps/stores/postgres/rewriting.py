"""Rewriting tables so that no page keeps what was deleted (VACUUM FULL), in short waits.

A deleted row is left behind while somebody can see it: a transaction of this database, one that is
prepared, a reader on a standby that tells of its own (hot_standby_feedback), a replication slot.
These are waited for. So is each table, in short tries: who asks for it while VACUUM waits for it
waits behind. Plain VACUUM leaves the bytes of what it removes in the pages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from psycopg import Connection
from psycopg.errors import LockNotAvailable
from psycopg.sql import SQL, Composable

from hybridagi_steps.errors import StorageBusyError

_NOW = b"SELECT CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT) %% 4294967296"
_READERS = b"""SELECT count(*) FROM (
        SELECT backend_xmin AS sees FROM pg_catalog.pg_stat_activity
            WHERE coalesce(datname, current_database()) = current_database()
                AND pid <> pg_backend_pid()
        UNION ALL SELECT xmin FROM pg_catalog.pg_replication_slots
        UNION ALL SELECT transaction FROM pg_catalog.pg_prepared_xacts
            WHERE database = current_database()) readers
    WHERE sees IS NOT NULL AND age(sees) > age(CAST(CAST(%s AS TEXT) AS xid))"""
_LIMITS = b"SET lock_timeout TO '100ms'; SET statement_timeout TO 0"
_PAUSE_SECONDS = 0.4


def rewrite(
    raw: Connection[Any], tables: Iterable[Composable], name: str, seconds: float, *, lent: bool
) -> None:
    """Rewrite tables without what was deleted before.

    Args:
        raw: Outside a transaction, and closed afterwards: it keeps settings.
        tables: With their schema.
        name: What to call the database.
        seconds: How long readers may hold it up, and then each table.
        lent: Whether a pooler lends the connection: then nothing is set, and a wait is a long one.

    Raises:
        StorageBusyError: Somebody sees what was deleted, or uses a table, for longer.
    """
    _wait_for_readers(raw, name, seconds)
    if not lent:
        raw.execute(_LIMITS)
    for table in tables:
        give_up = time.monotonic() + seconds
        while not _rewritten(raw, table):
            if time.monotonic() >= give_up:
                raise StorageBusyError(
                    f"{name}: {table.as_string()} is in use by a transaction that does not end; "
                    "try again when it is done."
                )
            time.sleep(_PAUSE_SECONDS)


def _rewritten(raw: Connection[Any], table: Composable) -> bool:
    try:
        raw.execute(SQL("VACUUM (FULL) {}").format(table))
    except LockNotAvailable:
        return False
    return True


def _wait_for_readers(raw: Connection[Any], name: str, seconds: float) -> None:
    """Wait until nobody can see what was deleted before; VACUUM would keep it for them."""
    now = raw.execute(_NOW, ()).fetchone()
    give_up = time.monotonic() + seconds
    while raw.execute(_READERS, now).fetchone() != (0,):
        if time.monotonic() >= give_up:
            raise StorageBusyError(
                f"{name} is being read by a transaction that sees what was deleted, perhaps on a "
                "standby; try again when it is done."
            )
        time.sleep(_PAUSE_SECONDS)
