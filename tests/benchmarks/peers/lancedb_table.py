"""LanceDB's table: a version and a fragment of columns per commit, on local disk.

It has no durability setting. Where steps are written the row holds the step's id, its run, its JSON
text and its vector; where vectors are found, the row, the user and the vector, from 100,000 rows on
with IVF-PQ and exact refinement (below, its guide says, a scan is fast enough); users have a bitmap
index.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lancedb
import pyarrow as pa
from lancedb.index import Bitmap, BTree, IvfPq

from hybridagi_steps.memory import Durability
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows
from tests.benchmarks.peers import StepRecord

INDEX_FROM = 100_000
"""Rows from which its documentation advises a vector index."""
_PROBES, _REFINE = 40, 20


class LanceWriter:
    """One table of steps."""

    settings = "one new version per commit, no durability setting"

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._connection = lancedb.connect(folder / "lance")
        self._table: lancedb.table.Table | None = None

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Add rows one by one; each makes a version."""
        for record in records:
            self.add_all([record])

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Add rows in one version."""
        columns = pa.table(
            {
                "id": [record.id for record in records],
                "run_id": [record.run_id for record in records],
                "body": [record.text for record in records],
                "vector": pa.array(
                    [record.vector for record in records],
                    pa.list_(pa.float32(), len(records[0].vector)),
                ),
            }
        )
        if self._table is None:
            self._table = self._connection.create_table("steps", columns)
        else:
            self._table.add(columns)

    def settle(self) -> None:
        """Compact the fragments and index the runs."""
        assert self._table is not None
        self._table.create_index("run_id", config=BTree())
        self._table.optimize()

    def read_run(self, run_id: str) -> int:
        """Read the rows of a run."""
        assert self._table is not None
        found = self._table.search().where(f"run_id = '{run_id}'").select(["id", "body"])
        return len(found.limit(1_000).to_list())

    def close(self) -> None:
        """Drop the handles."""
        self._table = None


class LanceSearcher:
    """One table of vectors."""

    def __init__(self, folder: Path) -> None:
        self._connection = lancedb.connect(folder / "lance")
        self._table: lancedb.table.Table | None = None
        self._indexed = False

    @property
    def settings(self) -> str:
        """Say which index stands now."""
        if self._indexed:
            return f"IVF-PQ, {_PROBES} probes, refine {_REFINE}, on disk; bitmap index of users"
        return "no vector index (exact), on disk; bitmap index of users"

    def add(self, rows: Rows, vectors: FloatMatrix, users: Sequence[str]) -> None:
        """Add rows in one version."""
        flat = pa.array(vectors.reshape(-1), pa.float32())
        columns = pa.table(
            {
                "row": rows,
                "user": list(users),
                "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
            }
        )
        if self._table is None:
            self._table = self._connection.create_table("vectors", columns)
        else:
            self._table.add(columns)

    def settle(self) -> None:
        """Index the users, and the vectors where there are many."""
        table = self._found()
        table.create_index("user", config=Bitmap())
        if table.count_rows() >= INDEX_FROM:
            table.create_index("vector", config=IvfPq(distance_type="dot"))
            self._indexed = True
        table.optimize()

    def search(self, query: FloatVector, k: int) -> list[int]:
        """Return the nearest rows."""
        return self._nearest(query, k, None)

    def search_of(self, query: FloatVector, k: int, user: str) -> list[int]:
        """Return the nearest rows of a user, filtered first."""
        return self._nearest(query, k, f"user = '{user}'")

    def close(self) -> None:
        """Drop the handles."""
        self._table = None

    def _nearest(self, query: FloatVector, k: int, where: str | None) -> list[int]:
        asked = self._found().search(query).distance_type("dot").select(["row", "_distance"])
        if where is not None:
            asked = asked.where(where, prefilter=True)
        if self._indexed:
            asked = asked.nprobes(_PROBES).refine_factor(_REFINE)
        return asked.limit(k).to_arrow()["row"].to_pylist()

    def _found(self) -> lancedb.table.Table:
        assert self._table is not None
        return self._table
