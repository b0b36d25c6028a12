"""hnswlib: a graph of vectors in memory; nothing is on disk, users are known to a callback.

Built with as many threads as there are CPUs, searched with one. M 16 and ef_construction 200 are
those of its README; ef 128 gives a recall near the others'.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingModuleSource=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hnswlib

from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows

_M, _CONSTRUCTION, _SEARCH = 16, 200, 128


class HnswlibIndex:
    """One index that grows."""

    settings = f"HNSW, M {_M}, ef_construction {_CONSTRUCTION}, ef {_SEARCH}; in memory only"

    def __init__(self, folder: Path) -> None:
        self._index: Any = None
        self._users: list[str] = []

    def add(self, rows: Rows, vectors: FloatMatrix, users: Sequence[str]) -> None:
        """Add vectors; the first add uses all CPUs, those in the clock one."""
        first = self._index is None
        if first:
            self._index = hnswlib.Index("ip", vectors.shape[1])
            self._index.init_index(2 * len(rows), _CONSTRUCTION, _M)
            self._index.set_ef(_SEARCH)
        self._index.add_items(vectors, rows, num_threads=-1 if first else 1)
        self._users += users

    def settle(self) -> None:
        """Search with one thread from now on."""
        self._index.set_num_threads(1)

    def search(self, query: FloatVector, k: int) -> list[int]:
        """Return the nearest rows."""
        return self._index.knn_query(query, k)[0][0].tolist()

    def search_of(self, query: FloatVector, k: int, user: str) -> list[int]:
        """Return the nearest rows of a user, as far as the graph leads to k of them."""
        users = self._users

        def of_the_user(row: int) -> bool:
            return users[row] == user

        try:
            found = self._index.knn_query(query, k, filter=of_the_user)
        except RuntimeError:  # it found fewer than k, and gives none
            return []
        return found[0][0].tolist()

    def close(self) -> None:
        """Drop the index."""
        self._index = None
