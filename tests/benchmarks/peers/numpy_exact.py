"""NumPy: one product over all vectors, the oracle of recall and the speed to beat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows


class NumpyExact:
    """A matrix and the users of its rows; rows must be given in order, from zero."""

    settings = "one float32 matrix-vector product over everything; in memory"

    def __init__(self, folder: Path) -> None:
        self._vectors: FloatMatrix | None = None
        self._users = np.zeros(0, np.dtype("U16"))

    def add(self, rows: Rows, vectors: FloatMatrix, users: Sequence[str]) -> None:
        """Copy everything into a longer matrix."""
        assert rows[0] == len(self._users)
        held = self._vectors
        self._vectors = vectors.copy() if held is None else np.concatenate([held, vectors])
        self._users = np.concatenate([self._users, np.asarray(users, self._users.dtype)])

    def settle(self) -> None:
        """Nothing has to be built."""

    def search(self, query: FloatVector, k: int) -> list[int]:
        """Return the rows with the highest products."""
        return _best(self._found() @ query, k)

    def search_of(self, query: FloatVector, k: int, user: str) -> list[int]:
        """Return those of a user, whose rows alone are multiplied."""
        rows = np.flatnonzero(self._users == user)
        return rows[_best(self._found()[rows] @ query, k)].tolist()

    def close(self) -> None:
        """Drop the matrix."""
        self._vectors = None

    def _found(self) -> FloatMatrix:
        assert self._vectors is not None
        return self._vectors


def _best(scores: FloatVector, k: int) -> list[int]:
    best = np.argpartition(-scores, k)[:k] if len(scores) > k else np.arange(len(scores))
    return best[np.argsort(-scores[best])].tolist()
