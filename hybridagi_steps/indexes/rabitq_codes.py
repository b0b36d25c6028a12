"""One-bit codes of unit vectors: a fast estimate of which positions deserve an exact look.

It knows FAISS and nothing of rows or tombstones; positions count up from 0 as vectors are added.
Every call runs in one OpenMP thread: a forked child whose parent used more hangs in its first
parallel region, and one thread scans 100,000 codes in half a millisecond. The setting belongs to
the calling thread and is put back, so the user's own use of FAISS keeps its threads. FAISS takes
half a second to load; whoever needs no codes imports nothing of this module.

Reference: Gao and Long 2024, "RaBitQ: Quantizing High-Dimensional Vectors with a Theoretical Error
Bound for Approximate Nearest Neighbor Search"; the FastScan layout is FAISS's.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.indexes.vector_store import Positions
from hybridagi_steps.protocols import FloatMatrix, FloatVector


@contextmanager
def _one_thread() -> Generator[None]:
    """Let FAISS use one thread in this thread, and put its setting back."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class RabitqCodes:
    """Codes of positions 0 … count - 1, about d / 8 + 8 bytes each.

    Args:
        index: A trained FAISS index of one-bit codes.
        trained_on: How many vectors its centre is the mean of.
    """

    maker = f"faiss {faiss.__version__}".encode()
    """Whose format `to_bytes` writes; codes of another maker are made anew, not trusted."""

    def __init__(self, index: Any, trained_on: int) -> None:
        self._index, self.trained_on = index, trained_on

    @classmethod
    def of(cls, vectors: FloatMatrix) -> RabitqCodes:
        """Encode unit vectors, shape (n, d), around their mean."""
        with _one_thread():
            index: Any = faiss.IndexRaBitQFastScan(vectors.shape[1], faiss.METRIC_INNER_PRODUCT)
            index.train(vectors)
            index.add(vectors)
        return cls(index, len(vectors))

    @classmethod
    def from_bytes(cls, code_bytes: npt.NDArray[np.uint8], trained_on: int) -> RabitqCodes:
        """Revive what `to_bytes` gave. The bytes must come from a checked file.

        Raises:
            DamagedFileError: They hold another kind of index.
        """
        index: Any = faiss.deserialize_index(code_bytes)
        if not isinstance(index, faiss.IndexRaBitQFastScan):
            raise DamagedFileError(f"cached codes are a {type(index).__name__}.")
        return cls(index, trained_on)

    def to_bytes(self) -> npt.NDArray[np.uint8]:
        """Return the codes in FAISS's own format."""
        return faiss.serialize_index(self._index)

    @property
    def count(self) -> int:
        """Number of positions encoded."""
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return int(self._index.d)

    def add(self, vectors: FloatMatrix) -> None:
        """Encode the next positions around the old centre."""
        with _one_thread():
            self._index.add(vectors)

    def nearest(self, query: FloatVector, limit: int) -> Positions:
        """Return up to `limit` positions by estimated similarity, best first."""
        with _one_thread():
            _, positions = self._index.search(query[None, :], min(limit, self.count))
        return positions[0][positions[0] >= 0]
