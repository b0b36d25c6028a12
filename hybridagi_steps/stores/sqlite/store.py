"""SqliteStepStore: one SQLite file with a write-ahead log, or a database in memory.

Steps are the only thing an append writes; what filters, words and embeddings need is derived from
them in batches and can be made again. What every SQL database does alike stands in `stores/sql`:
steps and runs, sessions and branches, words and embeddings. What is SQLite's own stands here, and
database.py owns every connection and lock.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.protocols import Durability
from hybridagi_steps.records.json_reading import as_object
from hybridagi_steps.records.store_values import RowMetadata
from hybridagi_steps.stores.address import IN_MEMORY
from hybridagi_steps.stores.checked_tables import add_checksums
from hybridagi_steps.stores.checksums import damaged, session_checksum
from hybridagi_steps.stores.sql.admin import BRANCH_INVARIANTS, INVARIANTS, AdminTables
from hybridagi_steps.stores.sql.copy_tables import CopyTables
from hybridagi_steps.stores.sql.derived import StepLink
from hybridagi_steps.stores.sql.prompt_tables import PROMPT_INVARIANTS
from hybridagi_steps.stores.sql.session_commits import Commit, Expected
from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sqlite.database import Database
from hybridagi_steps.stores.sqlite.in_memory import InMemoryDatabase
from hybridagi_steps.stores.sqlite.schema import changed_schema, latest_version
from hybridagi_steps.stores.sqlite.steps import LEFTOVERS, SqliteSteps
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS

_INVARIANTS = {
    "a body that is no JSON, or not of its id": """SELECT row FROM agent_step
        WHERE CASE WHEN json_valid(body) THEN json_extract(body, '$.id') END IS NOT id""",
    "keys without a step": """SELECT row FROM step_key k WHERE NOT EXISTS
        (SELECT 1 FROM agent_step s WHERE s.row = k.row AND s.namespace = k.namespace)""",
    "a step without keys": """SELECT s.row FROM agent_step s JOIN namespace n ON n.id = s.namespace
        WHERE s.row <= n.keys_through AND NOT EXISTS
        (SELECT 1 FROM step_key k WHERE k.namespace = s.namespace AND k.row = s.row)""",
    "keys beyond the watermark": """SELECT row FROM step_key k
        JOIN namespace n ON n.id = k.namespace WHERE k.row > n.keys_through""",
    **INVARIANTS,
    "words of a step that is gone or another user's, until vacuum": LEFTOVERS,
    "a message that is no JSON": """SELECT row FROM message
        WHERE NOT (json_valid(said) AND json_valid(body))""",
    **BRANCH_INVARIANTS,
    **PROMPT_INVARIANTS,
}
_ROW_METADATA = """SELECT k.row, k.metadata FROM step_view k
    WHERE k.namespace = ? AND k.row > ? AND k.row <= ? AND k.metadata IS NOT NULL ORDER BY k.row"""
_OWED = "SELECT value FROM meta WHERE key = 'compaction_owed'"
_NOTHING_OWED = "UPDATE meta SET value = 0 WHERE key = 'compaction_owed'"
_WAL_RESET_FIXED = (3, 51, 3)


class SqliteAdmin(SqliteSteps, AdminTables):
    """Implements `StepStore`; see protocols.py for the contract."""

    def metadata_values(self, *, after: int, through: int) -> RowMetadata:
        """Return the steps in a range of rows with their metadata."""
        with self._db.reading() as connection:
            found = connection.execute(_ROW_METADATA, (self._namespace, after, through)).fetchall()
        try:
            return [(row, as_object(orjson.loads(text))) for row, text in found]
        except ValueError as error:
            raise damaged(f"metadata of the steps in rows {after} to {through}", error) from error

    def compact(self) -> tuple[str, ...]:
        """Give space back. Nothing deleted is left in any file of this name."""
        with self._db.writing() as connection:
            self._empty(connection, self._column(connection, LEFTOVERS))
            # To copy a damaged index is to copy what was deleted; to look takes half of making all.
            if self._column(connection, "PRAGMA integrity_check") != ["ok"]:
                connection.execute("REINDEX")
            for namespace in self._column(connection, "SELECT id FROM namespace"):
                add_checksums(connection, namespace)
        self._db.compact(_NOTHING_OWED)
        return ()

    def compaction_owed(self) -> bool:
        """Return whether something that was deleted may be in the file."""
        with self._db.asking() as connection:
            found = self._column(connection, _OWED)
        self._db.empty_log()
        return found != [0]

    def write_into(self, path: Path) -> None:
        """Write the database as it is now, without what was deleted, into an empty file."""
        with self._db.asking() as connection:
            connection.execute("VACUUM INTO ?", (str(path),))

    def verify(self) -> list[str]:
        """Check the file as SQLite does, then what this library relies on, in all namespaces."""
        wrong = (
            self._integrity(),
            self._line("tables or views of another form", changed_schema),
            self._line("keys that are not what the step says", self._wrong_keys),
        )
        return list(dict.fromkeys(line for line in (*wrong, *self._broken(_INVARIANTS)) if line))

    def _wrong_keys(self, connection: Connection) -> list[int]:
        """Return the rows with other keys than the view of new steps would give them."""
        view = "SELECT sql FROM sqlite_master WHERE name = 'step_tail'"
        (sql,) = connection.execute(view).fetchone()
        made = sql[sql.index("SELECT") :].replace("> n.keys_through", "<= n.keys_through")
        wrong = f"SELECT row FROM ({made} EXCEPT SELECT * FROM step_key) ORDER BY row"  # noqa: S608 - no value in it
        return self._column(connection, wrong)

    def _integrity(self) -> str:
        """Return what SQLite finds wrong, in one line."""
        try:
            with self._db.reading() as connection:
                found = self._column(connection, "PRAGMA integrity_check")
        except DamagedFileError as error:
            return str(error)
        return "" if found == ["ok"] else f"{self._db.name}: {'; '.join(found)}"

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes, and of a file what guards against the WAL-reset bug."""
        known = {
            **self._counts(),
            "bytes": self._db.file_bytes(),
            "backend": "in_memory" if self._db.name == IN_MEMORY else "sqlite",
            "durability": self._db.durability,
            "schema_version": latest_version(),
            "sqlite_version": sqlite3.sqlite_version,
        }
        if self._db.name == IN_MEMORY:
            return known
        fixed = sqlite3.sqlite_version_info >= _WAL_RESET_FIXED
        bug = "fixed" if fixed else "avoided: writers and checkpoints take turns"
        return {**known, "path": self._db.name, "wal_reset_bug": bug}


_IN_RUN = """SELECT hop, row FROM step_key
    WHERE namespace = ? AND run_id = ? AND (hop, row) {than} (?, ?) AND user_id IS ? AND scope IS ?
    ORDER BY hop {order}, row {order} LIMIT 1"""
_BEFORE_IN_RUN = _IN_RUN.format(than="<", order="DESC")
_AFTER_IN_RUN = _IN_RUN.format(than=">", order="ASC")
_CLAIM = """UPDATE session SET updated_at = ?, user_id = ?, checksum = ?,
        written = (SELECT number FROM next_write) + ?
    WHERE namespace = ? AND id = ? AND branch_id = ? AND updated_at = ? AND checksum = ?
        AND NOT EXISTS (SELECT 1 FROM message WHERE branch_id = ? AND sequence > ?)"""
_TAIL_LINKS = """SELECT row, parent_id, run_id, hop, user_id, scope FROM step_tail
    WHERE namespace = ? AND run_id IS NOT NULL"""


class SqliteStepStore(SqliteAdmin, CopyTables):
    """Steps in one file. Safe for any number of threads and processes, and across forks."""

    def __init__(
        self,
        path: str | Path,
        *,
        namespace: str = "default",
        durability: Durability = "full",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """Open or create the file.

        Args:
            path: Where the file is; `.lock`, `-wal` and `-shm` files stand beside it. `:memory:` is
                a database of this store alone, gone when it closes; it waits for nobody.
            namespace: Whose steps this store sees.
            durability: `normal` survives kill -9, `full` a power loss, too.
            timeout_seconds: How long a call waits for other writers, in this process and others.
        """
        database = (
            InMemoryDatabase(durability, timeout_seconds)
            if path == IN_MEMORY
            else Database(Path(path), durability, timeout_seconds)
        )
        super().__init__(database, namespace)

    def _claimed(self, connection: Connection, new: Commit) -> Expected | None:
        """Change a session's row if it is as expected; None where that has to be read.

        Whoever moves the end of a session writes a new time into its row.
        """
        if new.idempotency_key is not None or not new.written:
            return None
        if (found := self._expected(new)) is None:
            return None
        (seen, now, end), key = found, (self._namespace, new.session_id)
        values = (now.updated_at, now.user_id, session_checksum(*key, *now), len(new.written))
        as_seen = (*key, end.branch_id, seen.updated_at, session_checksum(*key, *seen))
        return found if connection.execute(_CLAIM, (*values, *as_seen, *end)).rowcount else None

    def _neighbours(
        self, connection: Connection, links: Mapping[int, StepLink], *, before: bool
    ) -> dict[int, int]:
        query, found = _BEFORE_IN_RUN if before else _AFTER_IN_RUN, dict[int, int]()
        links = {row: link for row, link in links.items() if link.run_id is not None}
        # What comes after is asked for when words are saved, and then nothing is without keys.
        tail = self._places_in_tail(connection) if links and before else {}
        for row, link in links.items():
            place = (self._namespace, link.run_id, link.hop, row, *link.owner)
            near = connection.execute(query, place).fetchall()
            if others := tail.get((link.run_id, link.owner)):
                at = bisect_left(others, (link.hop, row))
                near += others[max(at - 1, 0) : at]
            if near:
                found[row] = (max if before else min)(near)[1]
        return found

    def _places_in_tail(self, connection: Connection) -> dict[object, list[tuple[int, int]]]:
        """Return hop and row of the steps without keys, by run and owner, in order.

        Asked for each of them instead, the tail would be walked as often as it is long.
        """
        places: dict[object, list[tuple[int, int]]] = {}
        for row, *values in connection.execute(_TAIL_LINKS, (self._namespace,)):
            link = StepLink(*values)
            places.setdefault((link.run_id, link.owner), []).append((link.hop, row))
        for found in places.values():
            found.sort()
        return places
