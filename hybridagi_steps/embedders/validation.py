"""The one place where what an embedder returned is looked at before it is believed.

User embedders return lists, float64, tensors, too few rows, NaN. What is no matrix of the right
shape is an error; rows without direction are only marked, since the other rows are still good.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.errors import DimensionMismatchError, EmbedderError
from hybridagi_steps.records.store_values import FloatMatrix


class CheckedVectors(NamedTuple):
    """Vectors with a mark for those that can be compared."""

    vectors: FloatMatrix
    """Shape (n, d)."""
    usable: npt.NDArray[np.bool_]
    """Shape (n,): finite and not all zero."""


def checked_vectors(vectors: object, count: int, dimension: int | None) -> CheckedVectors:
    """Turn what an embedder returned into a float32 matrix.

    Args:
        vectors: Anything numpy can read as a matrix.
        count: How many texts were embedded.
        dimension: The length expected of every vector; None accepts any.

    Raises:
        DimensionMismatchError: The vectors have another length.
        EmbedderError: They are not numbers, or not one row per text.
    """
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf: not usable
            matrix = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise EmbedderError(
            f"the embedder returned {type(vectors).__name__} that is no matrix of numbers; it must "
            f"give one vector for each of the {count} texts, all equally long."
        ) from error
    if count == 0:
        matrix = np.empty((0, dimension or 0), np.float32)
    if matrix.ndim != 2 or len(matrix) != count:
        raise EmbedderError(
            f"the embedder returned shape {matrix.shape} for {count} texts; it must give one "
            "vector per text, shape (n, d)."
        )
    if dimension is not None and matrix.shape[1] != dimension:
        raise DimensionMismatchError(matrix.shape[1], dimension, where="the embedder's vector")
    usable = np.isfinite(matrix).all(axis=1) & (matrix != 0).any(axis=1)
    return CheckedVectors(matrix, usable)
