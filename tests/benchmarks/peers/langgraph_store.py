"""LangGraph's `SqliteStore`: values under a namespace (here the run) and a key (the step's id).

Its documentation opens it with `from_conn_string`: autocommit, SQLite's rollback journal,
synchronous FULL. Its constructor takes any connection, so it is also measured in WAL with the
setting that promises what ours promises, which is several times cheaper.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore

from hybridagi_steps.memory import Durability
from tests.benchmarks.peers import StepRecord
from tests.benchmarks.peers.sqlite_settings import read_back


class DocumentedStoreWriter:
    """The store on the connection that `from_conn_string` makes."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._connection = sqlite3.connect(
            folder / "store.db", check_same_thread=False, isolation_level=None
        )
        self._prepare()
        self._store = SqliteStore(self._connection)
        self._store.setup()
        self.settings = read_back(self._connection)

    def _prepare(self) -> None:
        """Leave the connection as SQLite makes it."""

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Put values one by one; each is committed."""
        for record in records:
            self._store.put(("steps", record.run_id), record.id, record.values)

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Put values in one transaction."""
        self._store.batch(
            PutOp(("steps", record.run_id), record.id, record.values) for record in records
        )

    def settle(self) -> None:
        """Nothing is advised."""

    def read_run(self, run_id: str) -> int:
        """Read all items of a namespace."""
        return len(self._store.search(("steps", run_id), limit=1_000))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SqliteStoreWriter(DocumentedStoreWriter):
    """The store on a connection in WAL mode."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._durability: Durability = durability
        super().__init__(folder, durability)

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {self._durability}")
