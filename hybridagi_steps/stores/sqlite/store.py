"""SqliteStepStore: one SQLite file, WAL, standard library only.

Steps are the only thing an append writes; what filters, words and embeddings need is derived from
them in batches and can be made again. What every SQL database does alike stands in `stores/sql`:
steps and runs, sessions and branches, words and embeddings. What is SQLite's own stands here, and
database.py owns every connection and lock.
"""

from __future__ import annotations

from pathlib import Path

from hybridagi_steps.stores import Durability
from hybridagi_steps.stores.sql.derived import DerivedTables
from hybridagi_steps.stores.sqlite.admin import SqliteAdmin
from hybridagi_steps.stores.sqlite.database import Database
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS


class SqliteStepStore(SqliteAdmin, DerivedTables):
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
            path: Where the file is; `.lock`, `-wal` and `-shm` files stand beside it.
            namespace: Whose steps this store sees.
            durability: `normal` survives kill -9, `full` a power loss, too.
            timeout_seconds: How long a call waits for other writers, in this process and others.

        Raises:
            StorageError: One of its kinds: foreign, newer, damaged, read-only, busy, full.
        """
        super().__init__(Database(Path(path), durability, timeout_seconds), namespace)
