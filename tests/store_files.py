"""Files of steps for tests of the SQLite store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from conformance.samples import save_pending, step

from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.stores.sqlite.schema import migrations


def filled(path: Path, count: int = 50) -> None:
    """Write a file of `count` steps of one run, with their words."""
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append([step(id=str(n), run_id="r", outputs={"x": "y" * 300}) for n in range(count)])
        save_pending(store)


def made_old(path: Path, version: int) -> None:
    """Make of a file one of an earlier schema: that schema's tables, with what they know."""
    with closing(sqlite3.connect(path)) as new, closing(sqlite3.connect(f"{path}.old")) as old:
        for number, script in migrations():
            if number <= version:
                old.executescript(script)
        old.execute("DELETE FROM sqlite_stat1")
        listed = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_stat1'"
        for (table,) in old.execute(listed).fetchall():
            columns = [column[1] for column in old.execute(f"PRAGMA table_info({table})")]
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            rows = new.execute(f"SELECT {names} FROM {table}").fetchall()
            old.execute(f"DELETE FROM {table}")
            old.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
        old.execute("DELETE FROM meta WHERE key = 'write_floor'")  # of a later schema
        old.execute("PRAGMA application_id = 1213420624")
        old.execute(f"PRAGMA user_version = {version}")
        old.commit()
    Path(f"{path}.old").replace(path)
