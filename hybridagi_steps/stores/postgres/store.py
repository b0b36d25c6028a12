"""PostgresStepStore: steps in one PostgreSQL database, shared by machines.

The same tables and the same statements as SQLite's store, which stand in `stores/sql`; what
PostgreSQL does in its own way stands here. Rows carry their keys from the start, so there is no
tail to catch up with. Writers that only add write side by side, so rows may appear out of their
order: positions.py says up to where they are settled. database.py owns every connection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
from psycopg.errors import UniqueViolation
from psycopg.sql import Identifier
from psycopg.types.numeric import Int8

from hybridagi_steps.errors import ReadOnlyStorageError, StorageError
from hybridagi_steps.protocols import Durability
from hybridagi_steps.stores.body import decode_body
from hybridagi_steps.stores.checked_tables import add_checksums
from hybridagi_steps.stores.checksums import session_checksum
from hybridagi_steps.stores.postgres.database import PostgresDatabase
from hybridagi_steps.stores.postgres.following import FollowedTables, LocalCache
from hybridagi_steps.stores.postgres.positions import MESSAGES, STEPS
from hybridagi_steps.stores.postgres.schema import SCHEMA, latest_version, rewrite
from hybridagi_steps.stores.postgres.search_tables import SearchTables
from hybridagi_steps.stores.postgres.spelling import json_rows
from hybridagi_steps.stores.postgres.steps import KEYS, LEFTOVERS, PINNED, PostgresSteps
from hybridagi_steps.stores.sql.admin import BRANCH_INVARIANTS, INVARIANTS, AdminTables
from hybridagi_steps.stores.sql.copy_tables import CopyTables
from hybridagi_steps.stores.sql.lineage import SessionRow, row_checksums
from hybridagi_steps.stores.sql.prompt_tables import PROMPT_INVARIANTS
from hybridagi_steps.stores.sql.session_commits import SESSIONS_KNOWN, Commit
from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS

_INVARIANTS = {
    **INVARIANTS,
    "words of a step that is gone or another user's": LEFTOVERS,
    **BRANCH_INVARIANTS,
    **PROMPT_INVARIANTS,
}
_TABLES = """agent_step run step_text embedding tombstone stale_text branch session message
    append_key message_token revocation revoked prompt prompt_part prompt_use
    search_state stem_count namespace""".split()  # noqa: SIM905 - names read better so
_BYTES = """SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS BIGINT)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ? AND c.relkind = 'r'"""
_BODIES = f"""SELECT row, id, body, {", ".join(KEYS)} FROM agent_step
    WHERE row > ? ORDER BY row LIMIT ?"""  # noqa: S608 - names are ours
_MESSAGES = "SELECT row, said, body FROM message WHERE row > ? ORDER BY row LIMIT ?"
_OWNED = b"""SELECT bool_and(pg_has_role(c.relowner, 'USAGE')) FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind = 'r'"""
# With no row at all the server would keep the statistics of those that are gone.
_REFRESH_STATISTICS = f"""BEGIN; SET LOCAL search_path TO {SCHEMA};
    INSERT INTO agent_step (row, namespace, id, hop, body) VALUES (0, 0, '', 0, '');
    INSERT INTO run (namespace, run_id) VALUES (0, '');
    ANALYZE agent_step, run;
    DELETE FROM agent_step WHERE row = 0;
    DELETE FROM run WHERE namespace = 0;
    COMMIT""".encode()  # noqa: S608 - our own name
_MAY_REWRITE_STATISTICS = b"""SELECT pg_has_role(datdba, 'USAGE') FROM pg_catalog.pg_database
    WHERE datname = current_database()"""
# What is deleted from here on, though before a table is rewritten, counts as owed once too often.
_BEGIN_REWRITING = f"""UPDATE {SCHEMA}.meta SET value = CAST(value AS BIGINT) + 1
    WHERE key = 'rewritings' RETURNING CAST(value AS BIGINT)""".encode()  # noqa: S608 - our own name
_NOTHING_OWED = f"""DELETE FROM {SCHEMA}.meta WHERE starts_with(key, 'owed:')
    AND CAST(split_part(key, ':', 2) AS BIGINT) < %s""".encode()  # noqa: S608 - our own name
_SEARCHED_HERE = f"SELECT to_regclass('{SCHEMA}.near') IS NOT NULL".encode()
_PAGE = 1000


class PostgresAdmin(PostgresSteps, LocalCache, AdminTables):
    """Implements `StepStore`; see protocols.py for the contract."""

    def compact(self) -> tuple[str, ...]:
        """Rewrite the tables without what was deleted; writers wait meanwhile.

        The server's write-ahead log and its backups are not ours to rewrite.

        Returns:
            Where keys of what was deleted may still lie: the planner's statistics, unless this user
            owns the database.
        """
        with self._db.writing() as connection:
            add_checksums(connection, self._namespace)
        with self._db.alone() as raw:
            if raw.execute(_OWNED, (SCHEMA,)).fetchone() != (True,):
                raise ReadOnlyStorageError(
                    f"{self._db.name}: the tables belong to another user; only that one can "
                    "give space back."
                )
            raw.execute(_REFRESH_STATISTICS)
            reached = raw.execute(_MAY_REWRITE_STATISTICS).fetchone() == (True,)
            near = ["near"] if raw.execute(_SEARCHED_HERE).fetchone() == (True,) else []
            tables = [Identifier(SCHEMA, table) for table in (*_TABLES, *near)]
            tables += [Identifier("pg_catalog", "pg_statistic")] if reached else []
            db, begun = self._db, raw.execute(_BEGIN_REWRITING).fetchone()
            rewrite(raw, tables, db.name, db.timeout_seconds, lent=bool(db.lent))
            if reached:
                raw.execute(_NOTHING_OWED, begun)
        return () if reached else (f"{self._db.name} pg_statistic",)

    def compaction_owed(self) -> bool:
        """Return whether something that was deleted may be in the tables of any namespace."""
        return self._db.known("SELECT compaction_owed()", ())[0]

    def now(self) -> datetime:
        """Return the time by the server's clock, which all machines share."""
        return self._db.known("SELECT clock_timestamp()", ())[0].astimezone(UTC)

    def verify(self) -> list[str]:
        """Check what this library relies on, in all namespaces."""
        if self._db.writable:
            # Of tables that were never analysed the server believes that they are small, and would
            # compare them row by row. One that belongs to another user is left out, with a warning.
            with self._db.alone() as raw:
                raw.execute(f"ANALYZE {', '.join(f'{SCHEMA}.{one}' for one in _TABLES)}".encode())
        lines = [self._line(what, broken) for what, broken in self._unreadable.items()]
        return [line for line in (*lines, *self._broken(_INVARIANTS)) if line]

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes; the bytes are those of all namespaces."""
        with self._db.reading() as connection:
            (size,) = connection.execute(_BYTES, (SCHEMA,)).fetchone()
            (version,) = connection.execute("SHOW server_version").fetchone()
        return {
            **self._counts(),
            "bytes": size,
            "backend": "postgresql",
            "path": self._db.name,
            "durability": self._db.durability,
            "schema_version": latest_version(),
            "postgresql_version": version,
        }

    @contextmanager
    def _unhurried(self) -> Generator[Connection]:
        with self._db.reading() as connection:
            for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
                connection.execute(f"SET LOCAL {limit} TO 0")
            yield connection

    @property
    def _unreadable(self) -> dict[str, Callable[[Connection], list[int]]]:
        """Return what finds bodies and messages that are not what they should be."""
        return {
            "a body that is no JSON, or not of its id": lambda connection: [
                row
                for row, step_id, body, *_ in _pages(connection, _BODIES)
                if (held := _json(body)) is None or held.get("id") != step_id
            ],
            "a message that is no JSON": lambda connection: [
                row
                for row, said, body in _pages(connection, _MESSAGES)
                if _json(said) is None or _json(body) is None
            ],
            "keys that are not what the step says": self._wrong_keys,
        }

    def _wrong_keys(self, connection: Connection) -> list[int]:
        wrong: list[int] = []
        for row, _, body, *keys in _pages(connection, _BODIES):
            try:
                made = self._keys(decode_body(body))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # no step at all, which is said elsewhere
            if [made[name] for name in KEYS] != keys:
                wrong.append(row)
        return wrong


def _pages(connection: Connection, sql: str) -> Any:
    """Yield all rows of a table that a query returns by pages."""
    after = 0
    while page := connection.execute(sql, (after, _PAGE)).fetchall():
        yield from page
        after = page[-1][0]


def _json(text: str) -> dict[str, Any] | None:
    """Return the object in a text, None when there is none."""
    try:
        held: Any = orjson.loads(text)
    except ValueError:
        return None
    return held if isinstance(held, dict) else None  # pyright: ignore[reportUnknownVariableType]


_MESSAGE = "namespace, branch_id, sequence, id, said, body, said_checksum, checksum"
_PINNED = ", ".join(PINNED)
_COMMIT = f""", changed AS (UPDATE session SET updated_at = :now, user_id = :owner,
        checksum = :checksum, written = nextval('session_write') FROM turn
    WHERE namespace = :namespace AND id = :session AND branch_id = :branch
        AND updated_at = :seen_at AND checksum = :seen RETURNING 1 AS done),
    said AS (INSERT INTO message ({_MESSAGE}) SELECT {_MESSAGE}
        FROM changed, json_populate_recordset(CAST(NULL AS message), :messages))"""  # noqa: S608 - names are ours
_COMMIT_STEPS = f""", pinned AS (INSERT INTO agent_step ({_PINNED}) SELECT {_PINNED}
        FROM changed, json_populate_recordset(CAST(NULL AS agent_step), :steps))"""  # noqa: S608 - names are ours
_COMMIT_KEY = """, used AS (INSERT INTO append_key
    SELECT :namespace, :session, :key, :branch, :first, :last FROM changed)"""
_DONE = " SELECT done FROM changed"
_LOOKS = 16
"""How often a session is looked at anew after somebody else was found to write there, too."""


class PostgresStepStore(PostgresAdmin, FollowedTables, CopyTables, SearchTables):
    """Steps in one database. Safe for any number of threads, processes, machines and forks."""

    def __init__(
        self,
        address: str,
        *,
        namespace: str = "default",
        durability: Durability = "full",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """Open the database; its schema `hybridagi_steps` is created where there is none.

        Args:
            address: `postgresql://user:password@host:port/database`, as libpq takes it.
            namespace: Whose steps this store sees.
            durability: `full`: an acknowledged step survives what the server's commits survive.
                `normal`: commits do not wait for the server's disk. An acknowledged step survives
                kill -9 of this process; when the server itself is killed, the last moments before
                that may be gone, whole steps and newest first.
            timeout_seconds: How long a call waits for other writers, or for a free connection.
        """
        database = PostgresDatabase(address, durability, timeout_seconds)
        self._shared: dict[str, int] = {}
        """Sessions that others write, too, each with how many more looks at it are not kept."""
        try:
            super().__init__(database, namespace)
        except BaseException:
            database.close()
            raise

    def _know(self, session_id: str, session: SessionRow, last: int) -> None:
        if len(self._known) + len(self._shared) >= SESSIONS_KNOWN:
            self._known.clear()
            self._shared.clear()
        if (looks := self._shared.pop(session_id, 0)) > 1:
            self._shared[session_id] = looks - 1
        else:
            self._known[session_id] = session, last

    def _commit_known(self, new: Commit) -> int | None:
        """Commit by one statement, if the session's row is still the one that was seen last.

        Whoever changes where a session ends writes a new time into its row, and two messages cannot
        stand at one place. A statement sees the row as it is when its locks are taken, all else as
        it was when it began; so it asks for nothing else, and what is not as expected is read anew.
        """
        found = self._expected(new)
        if found is None or any(step.vector is not None for step in new.steps):
            return None
        (seen, now, end), last = found, found.end.sequence
        place = (self._namespace, end.branch_id)
        messages = [(*place, *row, *row_checksums(end.branch_id, row)) for row in new.rows(last)]
        steps = [
            (*pin, *self._values(step_id, step).values())
            for pin, step_id, step in zip(new.pins(end), new.step_ids, new.steps, strict=True)
        ]
        key = (self._namespace, new.session_id)
        values = {
            "namespace": self._namespace,
            "session": new.session_id,
            "branch": end.branch_id,
            "now": now.updated_at,
            "owner": now.user_id,
            "checksum": Int8(session_checksum(*key, *now)),  # one type: one prepared statement
            "seen_at": seen.updated_at,
            "seen": Int8(session_checksum(*key, *seen)),
            "messages": json_rows(_MESSAGE.split(", "), messages),
            "steps": json_rows(PINNED, steps) if steps else None,
            "key": new.idempotency_key,
            "first": last + 1,
            "last": last + len(messages),
        }
        keyed = new.idempotency_key is not None
        sql = _COMMIT + _COMMIT_STEPS * bool(steps) + _COMMIT_KEY * keyed + _DONE
        try:
            draws = (MESSAGES, STEPS) if steps else (MESSAGES,)
            done = self._db.insert(sql, values, draws=draws, beside=new.session_id)
        except StorageError as error:
            if not isinstance(error.__cause__, UniqueViolation):
                raise
            done = None  # the key or an id is there already
        if done is None:
            self._known.pop(new.session_id, None)
            self._shared[new.session_id] = _LOOKS
            return None
        self._know(new.session_id, now, last + len(messages))
        return last
