"""mem0's `Memory` on its pgvector store, without a language model (`infer=False`).

As `pip install mem0ai` brings it: HNSW, a pool of its own, words by PostgreSQL's full-text search,
its history of changes in a SQLite file; no spaCy, which would make its words better and its calls
dearer. Its telemetry is off, and its folder is a temporary one.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.benchmarks.peers import StepRecord
from tests.benchmarks.peers.postgres_memory import FixedVectors, K, owner

_BATCH = 500


def _row(record: StepRecord) -> dict[str, str]:
    now, text = str(record.step.created_at), record.text
    said = {"data": text, "text_lemmatized": text, "hash": record.id.replace("-", "")}
    about = {"user_id": owner(record), "run_id": record.run_id, "step": record.id, "role": "user"}
    return {**said, **about, "created_at": now, "updated_at": now}


class Mem0Side:
    """The step's JSON text as the content of one message, its id and owner as metadata."""

    settings = (
        "text twice (once for words) in JSONB, vector, HNSW and GIN; history in SQLite, in another"
        " transaction; no checksum"
    )

    def __init__(self, address: str, vectors: FixedVectors, folder: Path) -> None:
        os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder)}
        memory: Any = import_module("mem0").Memory
        store = {"connection_string": address, "embedding_model_dims": vectors.dimension}
        no_key = {"provider": "openai", "config": {"api_key": "none"}}  # nothing is ever asked
        self._memory = memory.from_config(
            {
                "vector_store": {"provider": "pgvector", "config": store},
                "embedder": no_key,
                "llm": no_key,
                "history_db_path": str(folder / "history.db"),
            }
        )
        self._memory.embedding_model = vectors

    def add_each(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            about = {"user_id": owner(record), "run_id": record.run_id}
            self._memory.add(record.text, **about, metadata={"step": record.id}, infer=False)

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Insert the rows that `add` would, many at a time: loading is not measured."""
        for first in range(0, len(records), _BATCH):
            some = records[first : first + _BATCH]
            rows = [_row(record) for record in some]
            vectors = [self._memory.embedding_model.embed(record.text) for record in some]
            ids = [str(uuid4()) for _ in some]
            self._memory.vector_store.insert(vectors=vectors, payloads=rows, ids=ids)

    def settle(self) -> None: ...

    def search(self, query: str, user: str, way: str) -> list[str]:
        filters = {"user_id": user}
        found = self._memory.search(query, filters=filters, top_k=K, threshold=0.0)
        return [hit["metadata"]["step"] for hit in found["results"]]

    def close(self) -> None:
        self._memory.vector_store.connection_pool.close()
        self._memory.db.close()
