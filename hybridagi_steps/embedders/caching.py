"""Remembers vectors by the content of their text, so that no text is embedded twice in a row.

It keeps a hash of each text, not the text, and forgets the least recently used. Queries and
documents are remembered apart, since some models embed them differently.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.embedders.vectors import checked_vectors
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector


class CachingEmbedder:
    """Wraps an embedder and keeps its latest vectors in memory; safe to use from threads.

    Args:
        embedder: The embedder to ask for texts not seen lately.
        max_entries: How many vectors are kept (a vector of 256 dimensions takes 1 KiB).
    """

    def __init__(self, embedder: Embedder, max_entries: int = 10_000) -> None:
        if max_entries < 1:
            raise EmbedderError(f"max_entries is {max_entries}; keep at least 1.")
        self.embedder, self.max_entries = embedder, max_entries
        self._entries: OrderedDict[bytes, FloatVector] = OrderedDict()
        self._lock = ForkSafeLock()

    @property
    def model_id(self) -> str:
        """The wrapped embedder's id: the vectors are the same."""
        return self.embedder.model_id

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        return self.embedder.dimension

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per text, shape (n, d); asks the wrapped embedder once per new text."""
        return self._embed(b"document", texts, self.embedder.embed_documents)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per query, shape (n, d)."""
        return self._embed(b"query", texts, self.embedder.embed_queries)

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what is remembered."""
        return self.__dict__ | {"_entries": OrderedDict[bytes, FloatVector]()}

    def _embed(
        self, kind: bytes, texts: Sequence[str], embed: Callable[[Sequence[str]], FloatMatrix]
    ) -> FloatMatrix:
        keys = [_key(kind, text) for text in texts]
        vectors = self._known(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
        if missing:  # embedded outside the lock: it may take seconds
            made = checked_vectors(embed(list(missing.values())), len(missing), self.dimension)
            fresh = dict(zip(missing, made.vectors, strict=True))
            vectors |= fresh
            self._remember(fresh)
        if not keys:
            return np.empty((0, self.dimension), np.float32)
        return np.stack([vectors[key] for key in keys])

    def _known(self, keys: list[bytes]) -> dict[bytes, FloatVector]:
        with self._lock:
            known = {key: self._entries[key] for key in keys if key in self._entries}
            for key in known:
                self._entries.move_to_end(key)
            return known

    def _remember(self, fresh: dict[bytes, FloatVector]) -> None:
        with self._lock:
            for key, vector in fresh.items():
                self._entries[key] = vector.copy()  # a view would keep the whole batch alive
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)


def _key(kind: bytes, text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=kind).digest()
