"""Is there a step memory in this database, and of which version? Creates and migrates it.

Everything stands in the schema `hybridagi_steps`, so a database can be shared with other programs.
The schema is ours by what `meta` says, with the number of the last migration. Migrations are the
numbered .sql files beside this module, all of them in one transaction, under a lock that other
processes opening at the same moment wait for; the owner of the tables alone may apply them. Which
role sees what of the tables, 0012_isolation.sql says. Tables are rewritten here, too. Nothing here
knows what they mean.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from uuid import uuid4

from psycopg import Connection, Error, connect
from psycopg.errors import LockNotAvailable
from psycopg.sql import SQL, Composable

from hybridagi_steps.errors import (
    DamagedFileError,
    ForeignFileError,
    MissingGrantError,
    NewerSchemaError,
    OlderSchemaError,
    StorageBusyError,
)
from hybridagi_steps.stores.address import checked_server, shown_address
from hybridagi_steps.stores.postgres.driver_errors import RIGHTS
from hybridagi_steps.stores.sql.tables import NAMESPACES, numbered_scripts

SCHEMA = "hybridagi_steps"
LOCK_CLASS = 0x48535450
"""First half of the keys of our advisory locks: "HSTP". The second is a namespace, 0 the schema."""
NAMES_CLASS = LOCK_CLASS + 1
"""First half of the keys of what one writer of a namespace changes at a time: a session."""

LONGEST_STATEMENT = "600s"
"""After which the server gives one up, where its role has no limit of its own."""

DURABLY = "SET LOCAL synchronous_commit TO on"
"""What steps stand on must not be lost with the server, whatever they may themselves."""

_LONGEST_WAIT, _PAUSE_SECONDS = "500ms", 0.2
_LIMITS_OF_REWRITING = b"SET lock_timeout TO '100ms'; SET statement_timeout TO 0"
_LONG_PAUSE_SECONDS = 0.4
_APPLICATION = "hybridagi-steps"
_RELATIONS = b"""SELECT c.relname FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')"""
_EXISTS = b"SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s"
_MARKS = b"SELECT key, value FROM meta WHERE key IN ('application', 'schema_version')"
_ALLOWED = b"""SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),
        pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner), current_user,
        EXISTS (SELECT FROM pg_catalog.pg_policy p
            WHERE p.polrelid = c.oid AND p.polname = 'owned' AND c.relowner = ANY (p.polroles))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = 'meta'"""
_NOW = b"SELECT CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT) %% 4294967296"
_READERS = b"""SELECT count(*) FROM (
        SELECT backend_xmin AS sees FROM pg_catalog.pg_stat_activity
            WHERE coalesce(datname, current_database()) = current_database()
                AND pid <> pg_backend_pid()
        UNION ALL SELECT xmin FROM pg_catalog.pg_replication_slots
        UNION ALL SELECT transaction FROM pg_catalog.pg_prepared_xacts
            WHERE database = current_database()) readers
    WHERE sees IS NOT NULL AND age(sees) > age(CAST(CAST(%s AS TEXT) AS xid))"""
_EXPECTED = frozenset(
    """meta namespace agent_step step_view run step_text embedding tombstone stale_text branch
    session message append_key message_token""".split()  # noqa: SIM905 - names read better so
)


@cache
def migrations() -> list[tuple[int, str]]:
    """Return (version, SQL) of every migration, oldest first."""
    return numbered_scripts(__name__.rpartition(".")[0])


def latest_version() -> int:
    """Return the schema version this library writes."""
    return migrations()[-1][0]


SAME_VERSION = f"""WHERE (SELECT value FROM meta WHERE key = 'schema_version')
    = '{latest_version()}'"""  # noqa: S608 - a number of ours
"""Lets a writer begin where nobody has migrated the schema since it was opened."""


class Allowed(NamedTuple):
    """What the role of a connection may do with the tables."""

    enter: bool
    read: bool
    migrate: bool
    owner: str
    role: str
    isolated: bool
    """Whether the policies are those of this owner: not where a backup was restored by another."""


def is_prepared(connection: Connection[Any], name: str) -> bool:
    """Whether the schema is there, of the latest version, and as its owner has to keep it."""
    if version_of(connection, name) != latest_version():
        return False
    allowed = _allowed(connection)
    return allowed is None or allowed.isolated or not allowed.migrate


def version_of(connection: Connection[Any], name: str) -> int:
    """Return the schema version; 0 where nothing of ours is there yet."""
    found = {relation for (relation,) in connection.execute(_RELATIONS, (SCHEMA,))}
    if not found:
        return 0
    allowed = _allowed(connection)
    if allowed is not None and not (allowed.enter and allowed.read):
        missing = "SELECT on the table meta" if allowed.enter else f"USAGE on the schema {SCHEMA}"
        raise MissingGrantError(
            f"{name}: the role {allowed.role} lacks {missing}; {allowed.owner}, who owns it, can "
            f"grant that: hybridagi-steps grant {allowed.role} --namespace NAME --rights {RIGHTS}."
        )
    marks = _marks(connection) if "meta" in found else {}
    if marks.get("application") != _APPLICATION:
        raise ForeignFileError(
            f"{name}: the schema {SCHEMA} holds tables of another program; give another database."
        )
    version = int(marks.get("schema_version", 0))
    _refuse_newer(version, name)
    if missing := _EXPECTED - found:
        raise DamagedFileError(
            f"{name} is a step memory without {', '.join(sorted(missing))}; restore a backup."
        )
    return version


def refuse_migrated(connection: Connection[Any], name: str) -> None:
    """Refuse to write as an earlier version would, where another process has migrated."""
    _refuse_newer(int(_marks(connection).get("schema_version", 0)), name)


def _refuse_newer(version: int, name: str) -> None:
    if version > latest_version():
        raise NewerSchemaError(
            f"{name} has schema version {version}, this library knows {latest_version()}; "
            "upgrade hybridagi-steps."
        )


def stored_version(address: str) -> int:
    """Return the version of a database, left as it is; of one that cannot be read the latest."""
    with suppress(Error), connect(checked_server(address), connect_timeout=10) as connection:
        connection.execute(f"SET LOCAL search_path TO {SCHEMA}".encode())
        return version_of(connection, shown_address(address))
    return latest_version()


def stored_namespaces(address: str) -> list[str] | None:
    """Return the namespaces of a database, left as it is.

    None where it cannot be read, or by a role that makes none: opening it says what is missing.
    """
    with suppress(Error), connect(checked_server(address), connect_timeout=10) as connection:
        connection.execute(f"SET LOCAL search_path TO {SCHEMA}".encode())
        if version_of(connection, shown_address(address)) == 0:
            return []
        allowed = _allowed(connection)
        if allowed is not None and allowed.migrate:
            return [name for (name,) in connection.execute(NAMESPACES.encode())]
    return None


def migrate(connection: Connection[Any], name: str, timeout_seconds: float = 0.0) -> None:
    """Bring the schema to the latest version, in one transaction; whoever else opens it waits.

    Everybody else waits behind who waits for a table, so it gives up soon and comes again.
    """
    give_up = time.monotonic() + timeout_seconds
    while True:
        try:
            return _migrate(connection, name)
        except LockNotAvailable:
            if time.monotonic() >= give_up:
                raise
            time.sleep(_PAUSE_SECONDS)


def _migrate(connection: Connection[Any], name: str) -> None:
    with connection.transaction():
        connection.execute(
            f"""SET LOCAL search_path TO {SCHEMA}; SET LOCAL lock_timeout TO '{_LONGEST_WAIT}';
            SET LOCAL statement_timeout TO 0; {DURABLY};
            SELECT pg_advisory_xact_lock({LOCK_CLASS}, 0)""".encode()
        )
        version = version_of(connection, name)
        allowed = _allowed(connection)
        if allowed is not None and not allowed.migrate:
            raise OlderSchemaError(
                f"{name} has schema version {version}, this library needs {latest_version()}: "
                f"{allowed.owner}, who owns the tables, has to migrate them by opening the memory "
                f"once; the role {allowed.role} may not.",
                owner=allowed.owner,
            )
        if connection.execute(_EXISTS, (SCHEMA,)).fetchone() is None:
            connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        if version:  # writers of the old version end first, and find the new one afterwards
            connection.execute(b"LOCK TABLE meta IN ACCESS EXCLUSIVE MODE")
        _isolate(connection)  # where another owner restored a backup he sees no row yet
        for number, script in migrations():
            if number <= version:
                continue
            connection.execute(script.encode())
            if number == 1:
                marks = (_APPLICATION, uuid4().hex)
                insert = b"INSERT INTO meta VALUES ('application', %s), ('store_id', %s)"
                connection.execute(insert, marks)
        connection.execute(
            b"""INSERT INTO meta VALUES ('schema_version', %s)
            ON CONFLICT (key) DO UPDATE SET value = excluded.value""",
            (str(latest_version()),),
        )
        _isolate(connection)


def _isolate(connection: Connection[Any]) -> None:
    """Let the owner see all rows, and others theirs; before 0012 everybody saw what was granted."""
    if connection.execute(b"SELECT to_regproc('isolate') IS NOT NULL").fetchone() == (True,):
        connection.execute(b"SELECT isolate()")


def _allowed(connection: Connection[Any]) -> Allowed | None:
    """Return what the role may do; None where no memory is yet."""
    found = connection.execute(_ALLOWED, (SCHEMA,)).fetchone()
    return found and Allowed(*found)


def _marks(connection: Connection[Any]) -> dict[str, str]:
    """Return what `meta` says about itself; nothing when it is a table of another shape."""
    columns = b"""SELECT count(*) FROM pg_catalog.pg_attribute
        WHERE attrelid = to_regclass('meta') AND attname IN ('key', 'value') AND NOT attisdropped"""
    if connection.execute(columns).fetchone() != (2,):
        return {}
    return {str(key): str(value) for key, value in connection.execute(_MARKS)}


def rewrite(
    raw: Connection[Any], tables: Iterable[Composable], name: str, seconds: float, *, lent: bool
) -> None:
    """Rewrite tables so that no page keeps what was deleted before; plain VACUUM leaves it there.

    A row stays while somebody can see it: a transaction of this database, one that is prepared, a
    reader on a standby that tells of its own (hot_standby_feedback), a replication slot. These are
    waited for. So is each table, in short tries: who asks for it meanwhile waits behind.

    Args:
        raw: Outside a transaction, and closed afterwards: it keeps settings.
        tables: With their schema.
        name: What to call the database.
        seconds: How long readers may hold it up, and then each table.
        lent: Whether a pooler lends the connection: then nothing is set, and a wait is a long one.
    """
    _wait_for_readers(raw, name, seconds)
    if not lent:
        raw.execute(_LIMITS_OF_REWRITING)
    for table in tables:
        give_up = time.monotonic() + seconds
        while not _rewritten(raw, table):
            if time.monotonic() >= give_up:
                raise StorageBusyError(
                    f"{name}: {table.as_string()} is in use by a transaction that does not end; "
                    "try again when it is done."
                )
            time.sleep(_LONG_PAUSE_SECONDS)


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
        time.sleep(_LONG_PAUSE_SECONDS)
