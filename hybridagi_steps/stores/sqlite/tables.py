"""What the parts of the SQLite store share: the file, the namespace, and step keys.

Keys (`step_key`) are what filters look at. They are written in batches by whoever reads next, not
by appends: until then the view `step_tail` takes them from the bodies, so an answer never depends
on whether they have been written. On a file that cannot be written, or that somebody else writes
just now, they stay unwritten.
"""

from __future__ import annotations

from hybridagi_steps.errors import StorageError
from hybridagi_steps.stores.checksums import damaged
from hybridagi_steps.stores.sql.tables import Connection, Tables
from hybridagi_steps.stores.sqlite.database import Database

KEYS_PER_TRANSACTION = 5_000
"""Keys written at once: about 60 ms of write lock."""
_LONGEST_TAIL = 256
"""Steps without keys that a read puts up with: about 3 ms."""

_TAIL_LENGTH = """SELECT coalesce((SELECT max(row) FROM agent_step), 0) - keys_through
    FROM namespace WHERE id = ?"""
_LONGEST_SCAN = 64
"""Steps without keys that are walked for each question, where there are many questions."""
# A view of the same name that comes before the file's own, as long as the transaction lasts.
_KEPT = "namespace, row, parent_id, run_id, hop, user_id, scope"
_KEEP_TAIL = f"CREATE TEMP TABLE tail AS SELECT {_KEPT} FROM step_tail WHERE namespace = ?"  # noqa: S608 - no value in it
_SHOW_TAIL = (
    "CREATE INDEX temp.tail_row ON tail (row)",
    "CREATE INDEX temp.tail_run ON tail (run_id, hop, row)",
    f"""CREATE TEMP VIEW step_view AS SELECT {_KEPT} FROM main.step_key
        UNION ALL SELECT {_KEPT} FROM temp.tail""",  # noqa: S608 - no value in it
)
_WRITE_KEYS = """INSERT INTO step_key
    SELECT namespace, row, parent_id, run_id, hop, session_id, user_id, program_id, program, tool,
           step_type, scope, status, score, created_at, metadata, branch_id
    FROM step_tail WHERE namespace = ? AND row <= ?"""


class SqliteTables(Tables):
    """A file seen from one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = _namespace_id(database, namespace)

    @property
    def _db(self) -> Database:
        return self._database

    def _catch_up(self) -> None:
        """Write the keys of new steps when there are many and nobody else writes."""
        if not self._db.writable:
            return
        with self._db.reading() as connection:
            long = self._tail_length(connection) > _LONGEST_TAIL
        while long:
            try:
                with self._db.patience.at_most(0), self._db.writing() as connection:
                    long = self._write_keys(connection)
            except StorageError:
                return  # the tail answers as well, only slower; a damaged file says so on reading

    def _keep_tail(self, connection: Connection) -> None:
        """Take the missing keys from the bodies once, in place of once for each question."""
        if self._tail_length(connection) > _LONGEST_SCAN:
            connection.execute(_KEEP_TAIL, (self._namespace,))
            for statement in _SHOW_TAIL:
                connection.execute(statement)

    def _keep_up(self, connection: Connection) -> None:
        """Write all keys that are missing."""
        while self._write_keys(connection):
            continue

    def _write_keys(self, connection: Connection) -> bool:
        """Write one batch of keys inside a transaction; return whether more are left."""
        length = self._tail_length(connection)
        (last,) = connection.execute("SELECT coalesce(max(row), 0) FROM agent_step").fetchone()
        through = last - max(length - KEYS_PER_TRANSACTION, 0)
        connection.execute(_WRITE_KEYS, (self._namespace, through))
        update = "UPDATE namespace SET keys_through = ? WHERE id = ?"
        connection.execute(update, (through, self._namespace))
        return through < last

    def _tail_length(self, connection: Connection) -> int:
        found = connection.execute(_TAIL_LENGTH, (self._namespace,)).fetchone()
        if found is None or found[0] is None:
            raise damaged(f"{self._db.name}: namespace {self._namespace}", "it is not there")
        return int(found[0])


def _namespace_id(database: Database, name: str) -> int:
    find = "SELECT id FROM namespace WHERE name = ?"
    with database.reading() as connection:
        found = connection.execute(find, (name,)).fetchone()
    if found:
        return int(found[0])
    if not database.writable:
        return 0  # no namespace has this number: the store is empty
    with database.writing() as connection:
        connection.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (name,))
        return int(connection.execute(find, (name,)).fetchone()[0])
