"""Qdrant Edge: a shard of the vector engine in this process, with its write-ahead log on.

HNSW keeps its defaults (M 16, ef 100; below its indexing threshold it scans), is built by
`optimize`, as its quickstart does after loading, and searched with one thread; users have a keyword
index. Vectors are of length one already, so the distance is the dot product.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeShard,
    EdgeVectorParams,
    FieldCondition,
    Filter,
    MatchValue,
    PayloadSchemaType,
    Point,
    Query,
    SearchRequest,
    UpdateOperation,
)

from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows

_BATCH = 1_000


class QdrantShard:
    """One shard, created when the first vectors say how long they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shard: Any = None

    @property
    def settings(self) -> str:
        """Say how many vectors are in its graph."""
        info = self._shard.info()
        graph = f"{info.indexed_vectors_count:,} of {info.points_count:,} in HNSW (defaults)"
        return f"{graph}; memory-mapped with a log; keyword index of users"

    def add(self, rows: Rows, vectors: FloatMatrix, users: Sequence[str]) -> None:
        """Upsert points."""
        if self._shard is None:
            params = EdgeVectorParams(size=vectors.shape[1], distance=Distance.Dot)
            config = EdgeConfig(vectors=params, max_search_threads=1)
            self._shard = EdgeShard.create(str(self._folder), config)
            self._shard.update(
                UpdateOperation.create_field_index("user", PayloadSchemaType.Keyword)
            )
        for first in range(0, len(rows), _BATCH):
            part = slice(first, first + _BATCH)
            points = [
                Point(row, vector, {"user": user})
                for row, vector, user in zip(
                    rows[part].tolist(), vectors[part].tolist(), users[part], strict=True
                )
            ]
            self._shard.update(UpdateOperation.upsert_points(points))

    def settle(self) -> None:
        """Build the graph where the engine wants one."""
        self._shard.optimize()

    def search(self, query: FloatVector, k: int) -> list[int]:
        """Return the nearest rows."""
        return self._nearest(query, k, None)

    def search_of(self, query: FloatVector, k: int, user: str) -> list[int]:
        """Return the nearest rows of a user."""
        return self._nearest(
            query, k, Filter(must=[FieldCondition("user", match=MatchValue(user))])
        )

    def close(self) -> None:
        """Close the shard."""
        self._shard.close()

    def _nearest(self, query: FloatVector, k: int, where: Any) -> list[int]:
        asked = SearchRequest(query=Query.Nearest(query), limit=k, filter=where)
        return [point.id for point in self._shard.search(asked)]
