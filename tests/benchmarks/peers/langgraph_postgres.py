"""LangGraph's `PostgresStore` and `PostgresSaver`, opened by `from_conn_string` as documented.

That is one connection, autocommit, every statement prepared at once, a pipeline for each call. The
store's namespace is the user's, which is the filter that its documentation advises.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.base import PutOp
from langgraph.store.postgres import PostgresStore

from tests.benchmarks.peers import StepRecord
from tests.benchmarks.peers.langgraph_saver import BareLoop, DeltaSaverLoop
from tests.benchmarks.peers.postgres_memory import FixedVectors, K, owner

_BATCH = 500


class StoreSide:
    """The store, which keeps a step's values as JSONB."""

    settings = (
        "values as JSONB by namespace and key, two indexes; no vectors, no checksum; a put replaces"
        " what is there"
    )

    def __init__(self, address: str, vectors: FixedVectors, folder: Path) -> None:
        self._stack = ExitStack()
        opened = PostgresStore.from_conn_string(address, index=self._index(vectors))
        self._store = self._stack.enter_context(opened)
        self._store.setup()

    def _index(self, vectors: FixedVectors) -> Any:
        return None

    def add_each(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            self._store.put(("steps", owner(record)), record.id, record.values)

    def add_all(self, records: Sequence[StepRecord]) -> None:
        for first in range(0, len(records), _BATCH):
            self._store.batch(
                PutOp(("steps", owner(record)), record.id, record.values)
                for record in records[first : first + _BATCH]
            )

    def settle(self) -> None: ...

    def search(self, query: str, user: str, way: str) -> list[str]:
        return [item.key for item in self._store.search(("steps", user), query=query, limit=K)]

    def close(self) -> None:
        self._stack.close()


class FoundStoreSide(StoreSide):
    """The store with its default vector index."""

    settings = (
        "the same, and the vector of the whole value in a second table with HNSW; a search gives"
        " values by distance: no words, no reasons, nothing that says the same left out"
    )

    def _index(self, vectors: FixedVectors) -> Any:
        return {"dims": vectors.dimension, "embed": vectors, "fields": ["$"]}


class BareGraph(BareLoop):
    """The graph without a checkpointer."""

    pipeline: bool | None = None
    stored = "nothing is kept: what the graph itself takes"

    def __init__(self, address: str, vectors: FixedVectors, folder: Path) -> None:
        self._stack, self._address = ExitStack(), address
        super().__init__(folder, "full")

    def _open(self, folder: Path, durability: Any) -> Any:
        if self.pipeline is None:
            return None
        with PostgresSaver.from_conn_string(self._address) as saver:
            saver.setup()  # which fails in a pipeline
        opened = PostgresSaver.from_conn_string(self._address, pipeline=self.pipeline)
        return self._stack.enter_context(opened)

    @property
    def settings(self) -> str:
        """Say what is stored."""
        return self.stored

    def close(self) -> None:
        self._stack.close()


class SaverLoop(BareGraph):
    """The graph with the saver, `durability="sync"`: each step is committed before the next."""

    pipeline = False
    stored = "all messages again as a blob after each step; durability='sync'"


class PipelineSaverLoop(SaverLoop):
    """The saver that was opened with `pipeline=True`."""

    pipeline = True
    stored = "the same by from_conn_string(pipeline=True)"


class DeltaLoop(SaverLoop):
    """The same, its messages in a `DeltaChannel`."""

    state = DeltaSaverLoop.state
    stored = "new messages alone, by the beta DeltaChannel"
