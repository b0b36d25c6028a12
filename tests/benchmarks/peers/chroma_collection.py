"""Chroma's persistent collection: documents, metadata and vectors in SQLite, an HNSW index beside.

It has no durability setting; its own SQLite file says which journal it uses. The vector of every
step is given, so that it embeds nothing itself. HNSW keeps its defaults but for the distance
(cosine); at most 5,000 records are added at once, as it asks for.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import chromadb
from chromadb.config import Settings

from hybridagi_steps.memory import Durability
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows
from tests.benchmarks.peers import StepRecord

_LARGEST_ADD = 5_000


def _collection(folder: Path, name: str) -> Any:
    client = chromadb.PersistentClient(folder / "chroma", Settings(anonymized_telemetry=False))
    return client, client.create_collection(
        name, configuration=cast("Any", {"hnsw": {"space": "cosine"}}), embedding_function=None
    )


class ChromaWriter:
    """One collection of steps."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._client, self._collection = _collection(folder, "steps")
        with closing(sqlite3.connect(folder / "chroma" / "chroma.sqlite3")) as beside:
            journal = beside.execute("PRAGMA journal_mode").fetchone()[0]
        self.settings = f"SQLite, journal_mode={journal}; HNSW; no durability setting"

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Add records one by one."""
        for record in records:
            self.add_all([record])

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Add records at once."""
        self._collection.add(
            ids=[record.id for record in records],
            documents=[record.text for record in records],
            metadatas=[{"run_id": record.run_id} for record in records],
            embeddings=[record.vector for record in records],
        )

    def settle(self) -> None:
        """Nothing is advised."""

    def read_run(self, run_id: str) -> int:
        """Read the documents of a run."""
        return len(self._collection.get(where={"run_id": run_id})["ids"])

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class ChromaSearcher:
    """One collection of vectors."""

    settings = "HNSW with its defaults (M 16, ef 100), in memory, kept on disk; users as metadata"

    def __init__(self, folder: Path) -> None:
        self._client, self._collection = _collection(folder, "vectors")

    def add(self, rows: Rows, vectors: FloatMatrix, users: Sequence[str]) -> None:
        """Add vectors with their users."""
        ids = [str(row) for row in rows.tolist()]
        for first in range(0, len(ids), _LARGEST_ADD):
            part = slice(first, first + _LARGEST_ADD)
            self._collection.add(
                ids=ids[part],
                embeddings=vectors[part],
                metadatas=[{"user": user} for user in users[part]],
            )

    def settle(self) -> None:
        """Nothing is advised."""

    def search(self, query: FloatVector, k: int) -> list[int]:
        """Return the nearest rows."""
        return self._nearest(query, k)

    def search_of(self, query: FloatVector, k: int, user: str) -> list[int]:
        """Return the nearest rows of a user."""
        return self._nearest(query, k, where={"user": user})

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _nearest(self, query: FloatVector, k: int, **options: Any) -> list[int]:
        found = self._collection.query(
            query_embeddings=query[None], n_results=k, include=["distances"], **options
        )
        return [int(row) for row in found["ids"][0]]
