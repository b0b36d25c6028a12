"""Is there a step memory in this database, and of which version? Creates and migrates it.

Everything stands in the schema `hybridagi_steps`, so a database can be shared with other programs.
The schema is ours by what `meta` says, with the number of the last migration. Migrations are the
numbered .sql files beside this module, all of them in one transaction, under a lock that other
processes opening at the same moment wait for. Nothing here knows what the tables mean.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any
from uuid import uuid4

from psycopg import Connection, Error, connect

from hybridagi_steps.errors import DamagedFileError, ForeignFileError, NewerSchemaError
from hybridagi_steps.stores.address import checked_server, shown_address
from hybridagi_steps.stores.sql.tables import numbered_scripts

SCHEMA = "hybridagi_steps"
LOCK_CLASS = 0x48535450
"""First half of the keys of our advisory locks: "HSTP". The second is a namespace, 0 the schema."""
NAMES_CLASS = LOCK_CLASS + 1
"""First half of the keys of what one writer of a namespace changes at a time: a session."""

DURABLY = "SET LOCAL synchronous_commit TO on"
"""What steps stand on must not be lost with the server, whatever they may themselves."""

_APPLICATION = "hybridagi-steps"
_RELATIONS = b"""SELECT c.relname FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')"""
_EXISTS = b"SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s"
_MARKS = b"SELECT key, value FROM meta WHERE key IN ('application', 'schema_version')"
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


def version_of(connection: Connection[Any], name: str) -> int:
    """Return the schema version; 0 where nothing of ours is there yet."""
    found = {relation for (relation,) in connection.execute(_RELATIONS, (SCHEMA,))}
    if not found:
        return 0
    marks = _marks(connection) if "meta" in found else {}
    if marks.get("application") != _APPLICATION:
        raise ForeignFileError(
            f"{name}: the schema {SCHEMA} holds tables of another program; give another database."
        )
    version = int(marks.get("schema_version", 0))
    if version > latest_version():
        raise NewerSchemaError(
            f"{name} has schema version {version}, this library knows {latest_version()}; "
            "upgrade hybridagi-steps."
        )
    if missing := _EXPECTED - found:
        raise DamagedFileError(
            f"{name} is a step memory without {', '.join(sorted(missing))}; restore a backup."
        )
    return version


def stored_version(address: str) -> int:
    """Return the version of a database, left as it is; of one that cannot be read the latest."""
    with suppress(Error), connect(checked_server(address), connect_timeout=10) as connection:
        connection.execute(f"SET search_path TO {SCHEMA}".encode())
        return version_of(connection, shown_address(address))
    return latest_version()


def migrate(connection: Connection[Any], name: str) -> None:
    """Bring the schema to the latest version, in one transaction; whoever else opens it waits."""
    with connection.transaction():
        connection.execute(f"{DURABLY}; SELECT pg_advisory_xact_lock({LOCK_CLASS}, 0)".encode())
        version = version_of(connection, name)
        if connection.execute(_EXISTS, (SCHEMA,)).fetchone() is None:
            connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
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


def _marks(connection: Connection[Any]) -> dict[str, str]:
    """Return what `meta` says about itself; nothing when it is a table of another shape."""
    columns = b"""SELECT count(*) FROM pg_catalog.pg_attribute
        WHERE attrelid = to_regclass('meta') AND attname IN ('key', 'value') AND NOT attisdropped"""
    if connection.execute(columns).fetchone() != (2,):
        return {}
    return {str(key): str(value) for key, value in connection.execute(_MARKS)}
