"""Is this file a step memory, and of which version? Creates and migrates it.

A file is ours by SQLite's `application_id`; its version is `user_version`, the number of the last
migration. Migrations are the numbered .sql files beside this module, each run in one transaction
with the two numbers, so a kill in between leaves the older version whole. A new database is a copy
of an empty one, made once for each process: creating the tables takes many times as long. Nothing
here knows what the tables mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import DamagedFileError, ForeignFileError, NewerSchemaError
from hybridagi_steps.stores.sql.tables import NAMESPACES, Connection, numbered_scripts

T = TypeVar("T")

APPLICATION_ID = 0x48535450
"""Marks our files in byte 68 of the header: "HSTP"."""

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_EXPECTED_TABLES = frozenset(
    "meta namespace agent_step step_key step_text embedding session branch message".split()  # noqa: SIM905 - names read better so
)

_OWED_SINCE = 13
_OWED = {
    "step": "DELETE ON agent_step",
    "message": "DELETE ON message",
    "rewritten": "UPDATE OF id, said, body ON message",
    "session": "DELETE ON session",
    "origin": "UPDATE OF forked_from ON session",
    "branch": "DELETE ON branch",
    "disowned": "UPDATE OF session_id ON branch WHEN old.session_id IS NOT new.session_id",
    "key": "DELETE ON append_key",
    "run": "DELETE ON run",
    "feedback": "UPDATE OF feedback ON run WHEN old.feedback IS NOT new.feedback",
    "prompt": "DELETE ON prompt",
    "other_prompt": "UPDATE OF body ON prompt WHEN old.body IS NOT new.body",
    "part": "DELETE ON prompt_part",
    "revocation": "DELETE ON revocation",
    "reason": "UPDATE OF filter, reason ON revocation",
}
"""What leaves something in the file that was deleted or overwritten: see 0013_compaction_owed."""
_OWING = """CREATE TRIGGER IF NOT EXISTS owed_for_{} AFTER {} BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END"""
_template_lock = ForkSafeLock()


@cache
def migrations() -> list[tuple[int, str]]:
    """Return (version, SQL) of every migration, oldest first."""
    return numbered_scripts(__name__.rpartition(".")[0])


def latest_version() -> int:
    """Return the schema version this library writes."""
    return migrations()[-1][0]


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the file's schema version; 0 for a file that is still empty."""
    application_id = _number(connection, "application_id")
    version = _number(connection, "user_version")
    tables = {name for (name,) in connection.execute(_TABLES)}
    if application_id != APPLICATION_ID:
        if application_id or version or tables:
            raise ForeignFileError(
                f"{path} is an SQLite file of another program; give another path."
            )
        return 0
    refuse_newer(version, path)
    if missing := _EXPECTED_TABLES - tables:
        raise DamagedFileError(
            f"{path} is a step memory without {', '.join(sorted(missing))}; restore a backup."
        )
    return version


def refuse_newer(version: int, path: Path) -> None:
    """Refuse a file of a version that this library does not know."""
    if version > latest_version():
        raise NewerSchemaError(
            f"{path} has schema version {version}, this library knows {latest_version()}; "
            "upgrade hybridagi-steps."
        )


def stored_version(address: str) -> int:
    """Return the schema version of a file, left as it is; of one that cannot be read the latest."""
    found = _looked_at(address, lambda connection: version_of(connection, Path(address)))
    return latest_version() if found is None else found


def stored_namespaces(address: str) -> list[str] | None:
    """Return the namespaces of a file, left as it is; None of one that cannot be read."""

    def names(connection: sqlite3.Connection) -> list[str]:
        known = version_of(connection, Path(address))
        return [name for (name,) in connection.execute(NAMESPACES)] if known else []

    return _looked_at(address, names)


def _looked_at(address: str, read: Callable[[sqlite3.Connection], T]) -> T | None:
    """Return what is read of a file that is left as it is; None where nobody can."""
    for mode in ("ro", "ro&immutable=1"):  # the second where no log can be made
        uri = f"{Path(address).absolute().as_uri()}?mode={mode}"
        with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as connection:
            return read(connection)
    return None


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring a file from `version` to the latest; the caller holds the write lock."""
    for number, script in migrations():
        if number <= version:
            continue
        connection.execute("BEGIN IMMEDIATE")
        for statement in _statements(script):
            connection.execute(statement)
        for named in _OWED.items() if number == _OWED_SINCE else ():
            connection.execute(_OWING.format(*named))
        if number == 1:
            new_id = (uuid4().hex,)
            connection.execute("INSERT INTO meta VALUES ('store_id', ?), ('row_floor', 0)", new_id)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")


def create(connection: sqlite3.Connection) -> None:
    """Make an empty database of the latest version, with an id of its own, in one transaction."""
    with _template_lock:
        new_id = "UPDATE meta SET value = ? WHERE key = 'store_id'"
        _template().execute(new_id, (uuid4().hex,))
        _template().backup(connection)


def changed_schema(connection: Connection) -> list[str]:
    """Return the tables, indexes, views and triggers that are not as the migrations make them."""
    with _template_lock:
        expected = _shapes(_template())
    found = _shapes(connection)
    return [name for name, shape in expected.items() if found.get(name) != shape]


@cache
def _template() -> sqlite3.Connection:
    """Return an empty database, to be copied."""
    template = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    migrate(template, 0)
    return template


def _shapes(connection: Connection) -> dict[str, str]:
    """Return the SQL of each part of the schema, blind to white space."""
    listed = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return {name: " ".join(str(sql).split()) for name, sql in connection.execute(listed)}


def _statements(script: str) -> Iterator[str]:
    """Split a script; `executescript` would commit the transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
