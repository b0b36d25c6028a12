"""Our own `StepMemory` on PostgreSQL, the floor below it, and the vectors that all sides are given.

Steps are put down one by one, each committed before the next; words and vectors of ours are derived
by `flush`, those of the others when a step is put.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import psycopg

from hybridagi_steps.embedders.hashing import HashingEmbedder
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector
from tests.benchmarks.peers import StepRecord

K = 10
MEANING, BOTH = "meaning", "meaning and words"


class FixedVectors:
    """Gives each side the same vector of a step, made beforehand, whatever text it embeds."""

    model_id = "fixed"
    dimension = 256

    def __init__(self) -> None:
        self._model = HashingEmbedder(self.dimension)
        self._known: dict[str, tuple[FloatVector, list[float]]] = {}
        self.made = 0
        """Texts that had to be embedded when they were asked for."""

    def know(self, texts: Sequence[str]) -> None:
        """Embed the first text; the others are the same in other words."""
        [vector] = self._model.embed_documents(texts[:1])
        self._known.update(dict.fromkeys(texts, (vector, vector.tolist())))

    def know_step(self, record: StepRecord) -> None:
        """Make the vector of a step, in each form in which a side embeds it."""
        as_value = json.dumps(record.values, sort_keys=True, ensure_ascii=False)
        self.know([own_text(record.step), record.text, as_value])

    def _found(self, text: str) -> tuple[FloatVector, list[float]]:
        if text not in self._known:
            self.made += 1
            self.know([text])
        return self._known[text]

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        """Return vectors of steps, as ours asks."""
        found = [self._found(text)[0] for text in texts]
        return np.stack(found) if found else np.empty((0, self.dimension), np.float32)

    embed_queries = embed_documents

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return vectors as LangGraph asks."""
        return [self._found(text)[1] for text in texts]

    def embed(self, text: str, _action: Any = None) -> list[float]:
        """Return a vector as mem0 asks."""
        return self._found(text)[1]


def owner(record: StepRecord) -> str:
    """Return whose step it is."""
    return record.step.user_id or "user-0"


class PostgresSide(Protocol):
    """Keeps steps in a database of its own, and finds them."""

    settings: str
    """What it stores, and how it is connected."""

    def __init__(self, address: str, vectors: FixedVectors, folder: Path) -> None: ...

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Keep steps one by one."""
        ...

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Keep many steps, by the fastest way there is."""
        ...

    def settle(self) -> None:
        """Let everything be found that was kept."""
        ...

    def search(self, query: str, user: str, way: str) -> list[str]:
        """Return ids of the nearest steps of a user."""
        ...

    def close(self) -> None:
        """Let go of the connections."""
        ...


class MemorySide:
    """A `StepMemory` with durability `full`, the default."""

    budget: str | None = None
    settings = (
        "a step, its keys and checksum in one row, found by id, run, parent and session; an id that"
        " is there is refused; who follows or erases misses nothing that is just being written;"
        " words and vectors by `flush`, in batches"
    )

    def __init__(self, address: str, vectors: FixedVectors, folder: Path) -> None:
        self._memory = StepMemory(
            address, embedder=vectors, memory_budget=self.budget, timeout_seconds=3_600
        )

    def add_each(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            self._memory.add(record.step)

    def add_all(self, records: Sequence[StepRecord]) -> None:
        self._memory.add([record.step for record in records])

    def settle(self) -> None:
        self._memory.flush()

    def search(self, query: str, user: str, way: str) -> list[str]:
        mode: Literal["dense", "hybrid"] = "dense" if way == MEANING else "hybrid"
        hits = self._memory.search(query, K, where={"user_id": user}, mode=mode)
        return [str(hit.step.id) for hit in hits]

    def close(self) -> None:
        self._memory.close()


class MemoryThere(MemorySide):
    """The same, searched where the data is: `flush` keeps the search indexes up, too."""

    budget = "1MB"
    settings = "the same, and what a search in the database needs: GIN of words, HNSW, counts"


class ByHand:
    """One INSERT of the step's JSON text with its id and run, prepared, nothing else."""

    settings = "id, run and JSON text; primary key alone; psycopg, autocommit, prepared"

    def __init__(self, address: str, vectors: FixedVectors, folder: Path) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._connection.execute("CREATE TABLE step (id uuid PRIMARY KEY, run text, body text)")

    def add_each(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            row = (record.id, record.run_id, record.text)
            self._connection.execute("INSERT INTO step VALUES (%s, %s, %s)", row)

    add_all = add_each

    def settle(self) -> None: ...

    def search(self, query: str, user: str, way: str) -> list[str]:
        raise NotImplementedError("the floor of writing finds nothing")

    def close(self) -> None:
        self._connection.close()
