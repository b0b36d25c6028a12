"""The standard library's sqlite3, used as by hand: what each commit through SQLite takes at least.

One table of texts with an index on the run, one INSERT in autocommit, the same journal and
synchronous mode as ours; no id is checked, nothing is validated, no other process is thought of.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import orjson

from hybridagi_steps.memory import Durability
from tests.benchmarks.peers import StepRecord
from tests.benchmarks.peers.sqlite_settings import read_back

_INSERT = "INSERT INTO step (run_id, body) VALUES (?, ?)"
_READ = "SELECT body FROM step WHERE run_id = ? ORDER BY row"


class ByHand:
    """A table of JSON texts."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._connection = sqlite3.connect(folder / "steps.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {durability}")
        self._connection.execute("CREATE TABLE step (row INTEGER PRIMARY KEY, run_id, body)")
        self._connection.execute("CREATE INDEX run ON step (run_id)")
        self.settings = read_back(self._connection)

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Insert one by one; each is committed."""
        for record in records:
            self._connection.execute(_INSERT, (record.run_id, record.text))

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Insert in one transaction."""
        self._connection.execute("BEGIN")
        values = [(record.run_id, record.text) for record in records]
        self._connection.executemany(_INSERT, values)
        self._connection.execute("COMMIT")

    def settle(self) -> None:
        """Nothing is advised."""

    def read_run(self, run_id: str) -> int:
        """Read a run as plain JSON values."""
        found = self._connection.execute(_READ, (run_id,)).fetchall()
        return len([orjson.loads(body) for (body,) in found])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
