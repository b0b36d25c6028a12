"""Steps in one SQLite file. `SqliteStepStore` is the whole of it; see store.py for the design."""

from __future__ import annotations

from hybridagi_steps.stores.sqlite.store import SqliteStepStore

__all__ = ["SqliteStepStore"]
