"""Files of steps for tests of the SQLite store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.testing.conformance.samples import save_pending, step


def filled(path: Path, count: int = 50) -> None:
    """Write a file of `count` steps of one run, with their words."""
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append([step(id=str(n), run_id="r", outputs={"x": "y" * 300}) for n in range(count)])
        save_pending(store)
