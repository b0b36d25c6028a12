"""Our own vector index, called as a search calls it: a filter's rows are looked up first.

The store is filled by `settle`, outside the clock, since the others' adds are compared with what
the index takes; what a whole memory takes after appends stands in `benchmarks search` as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import numpy as np

from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows
from hybridagi_steps.search.columns.filter_index import FilterColumns
from hybridagi_steps.search.vector_index import FaissIndex
from hybridagi_steps.stores import open_store

_BATCH = 10_000


class MemoryIndex:
    """The index, and a store that knows whose each row is."""

    def __init__(self, folder: Path) -> None:
        self._store = open_store(str(folder / "steps.db"), durability="normal")
        self._filters = FilterColumns(self._store)
        self._index: FaissIndex | None = None
        self._waiting: list[tuple[int, str]] = []

    @property
    def settings(self) -> str:
        """Say which of its ways the index takes at this size."""
        arrays = self._found().to_arrays()
        if "codes" not in arrays:
            return "exact scan; vectors in memory"
        if "places" in arrays:
            return "lists of short codes, exact second look; in memory"
        return "short codes, exact second look; in memory"

    def add(self, rows: Rows, vectors: FloatMatrix, users: Sequence[str]) -> None:
        """Add vectors to the index; the store counts rows from one."""
        if self._index is None:
            self._index = FaissIndex(vectors.shape[1])
        self._index.add(rows + 1, vectors)
        self._waiting += zip(rows.tolist(), users, strict=True)

    def settle(self) -> None:
        """Make the index's codes, and store whose each row is."""
        self._found().to_arrays()
        for first in range(0, len(self._waiting), _BATCH):
            steps = [_step(*waiting) for waiting in self._waiting[first : first + _BATCH]]
            stored = self._store.append(steps)
            assert stored == [UUID(str(step.id)).int for step in steps]
            self._filters.follow(np.array(stored[-1:]), np.empty(0, np.int64))
        self._waiting = []

    def search(self, query: FloatVector, k: int) -> list[int]:
        """Return the nearest rows."""
        return (self._found().search(query[None], k)[0].rows - 1).tolist()

    def search_of(self, query: FloatVector, k: int, user: str) -> list[int]:
        """Return the nearest rows of a user."""
        return self.search_among(query, k, self.rows_of(user))

    def search_among(self, query: FloatVector, k: int, rows: Rows) -> list[int]:
        """Return the nearest of the store's rows."""
        return (self._found().search(query[None], k, rows=rows)[0].rows - 1).tolist()

    def rows_of(self, user: str) -> Rows:
        """Look up a user's rows."""
        return self._filters.rows(StepFilter(user_id=user))

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _found(self) -> FaissIndex:
        assert self._index is not None
        return self._index


class RowsKnown:
    """The same where a user's rows are known already: the index's share of a filtered search."""

    def __init__(self, searcher: MemoryIndex, user: str) -> None:
        self._searcher = searcher
        self._rows = searcher.rows_of(user)

    def search(self, query: FloatVector, k: int) -> list[int]:
        """Return the nearest of these rows."""
        return self._searcher.search_among(query, k, self._rows)


def _step(row: int, user: str) -> AgentStep:
    return AgentStep(id=UUID(int=row + 1), step_type=AgentStepType.Action, inputs={}, user_id=user)
