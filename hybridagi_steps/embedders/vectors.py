"""Vectors: what an embedder returned, looked at before it is believed, and as it is compared.

User embedders return lists, float64, tensors, too few rows, NaN. What is no matrix of the right
shape is an error; rows without direction are only marked, since the other rows are still good.

What may be believed is compared as unit rows, and stored in whole numbers of two bytes: a cosine
asks for the direction alone, and everybody makes the same unit rows of them, to the last bit.

Providers refuse a whole batch for one text (too long, a content filter). It is halved until that
text stands alone, and that is given up only when it fails twice with a text of ours embedded in
between, one that no cache knows. An embedder that is down costs one call more than its first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, sqrt
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from hybridagi_steps.errors import (
    DimensionMismatchError,
    EmbedderError,
    InvalidVectorError,
    StepsError,
)
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector

MOST_REFUSED_AT_FIRST = 3
"""Texts refused with none of the batch embedded; one more, and it is the embedder."""
_OUTAGES = frozenset({401, 408, 429})
"""HTTP statuses that say nothing of a text; those from 500 say nothing of one either."""

Stored = npt.NDArray[np.int16] | FloatMatrix
"""Vectors in whole numbers, of which `unpacked` makes unit rows; or unit rows."""

_AT_ONCE = 2**11
_LARGEST = np.iinfo(np.int16).max


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


def unit_rows(vectors: npt.ArrayLike, dimension: int, *, where: str) -> FloatMatrix:
    """Return vectors as a float32 matrix (n, d) with rows of length one."""
    matrix = _matrix(vectors, dimension, where)
    # Squares of large float32 values overflow, those of small ones vanish: float64 holds both.
    if len(matrix) == 1:  # as queries come: a tenth of a search less than the general way
        row = matrix[0].astype(np.float64)
        length = sqrt(row.dot(row))
        if not 0 < length < inf:
            raise _without_direction(0, 1, where)
        return (row / length).astype(np.float32)[None]
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64))
    usable = np.isfinite(lengths) & (lengths > 0)
    if not usable.all():
        raise _without_direction(int(np.flatnonzero(~usable)[0]), len(matrix), where)
    units = np.empty(matrix.shape, np.float32)
    return np.divide(matrix, lengths[:, None], out=units, casting="same_kind")


def stored_rows(vectors: npt.ArrayLike, dimension: int, *, where: str) -> Stored:
    """Return vectors in whole numbers of two bytes as they are, of others the unit rows."""
    matrix = _matrix(vectors, dimension, where)
    if matrix.dtype != np.int16:
        return unit_rows(matrix, dimension, where=where)
    usable = matrix.any(axis=1)
    if not usable.all():
        raise _without_direction(int(np.flatnonzero(~usable)[0]), len(matrix), where)
    return matrix


def _matrix(vectors: npt.ArrayLike, dimension: int, where: str) -> npt.NDArray[Any]:
    matrix = np.asarray(vectors)
    if matrix.ndim != 2:
        raise InvalidVectorError(f"{where}: expected shape (n, {dimension}), got {matrix.shape}.")
    if matrix.shape[1] != dimension:
        raise DimensionMismatchError(int(matrix.shape[1]), dimension, where=where)
    return matrix


def shortened(vectors: FloatMatrix) -> npt.NDArray[np.int16]:
    """Return usable vectors in whole numbers of two bytes, the largest of each as large as can be.

    Sums of their squares are exact, so they become the same unit rows wherever that is done.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    return np.rint(vectors * (_LARGEST / largest)).astype(np.int16)


def unpacked(stored: npt.NDArray[Any]) -> FloatMatrix:
    """Return the unit rows of vectors that are `Stored`."""
    if stored.dtype != np.int16:
        return stored
    units = np.empty(stored.shape, np.float32)
    for part in pieces(len(stored)):
        # Whole numbers: their sums of squares are those of `unit_rows`, to the last bit.
        wide = stored[part].astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        np.divide(wide, lengths[:, None], out=units[part], casting="same_kind")
    return units


def pieces(count: int) -> Iterator[slice]:
    """Yield spans of so many rows that what is made of one stays in the processor's cache."""
    return (slice(start, start + _AT_ONCE) for start in range(0, count, _AT_ONCE))


def _without_direction(place: int, count: int, where: str) -> InvalidVectorError:
    return InvalidVectorError(
        f"{where} {place} of {count} holds NaN or Inf, or is all zero: it has no direction to "
        "compare. Leave it out."
    )


def exact_similarities(query: FloatVector, vectors: FloatMatrix) -> FloatVector:
    """Return the cosine of a unit query with each unit row, shape (n,), within [-1, 1].

    Summed in float64, row by row, so that equal vectors get equal scores wherever they stand;
    a BLAS product differs in the last bits with the position, which would decide ties.
    """
    scores = np.einsum("ij,j->i", vectors, query, dtype=np.float64)
    return scores.clip(-1.0, 1.0, out=scores).astype(np.float32)


def products(vectors: FloatMatrix, query: FloatVector) -> FloatVector:
    """Return the product of each row with a query, shape (n,), in this thread alone.

    A BLAS product of matrix and vector wakes the library's threads, which then wait for more work:
    that cost a search of 2,000 rows three times its own time, and it ended no sooner.
    """
    if hasattr(np, "vecdot"):  # NumPy 2
        return np.vecdot(vectors, query)
    return np.einsum("ij,j->i", vectors, query)


class Embedded(NamedTuple):
    """What became of texts."""

    vectors: FloatMatrix
    """Shape (n, d)."""
    usable: npt.NDArray[np.bool_]
    """Shape (n,): finite and not all zero; not so what was refused."""
    refused: dict[int, str]
    """Why texts were refused, by their place."""


def embed_documents(embedder: Embedder, texts: Sequence[str]) -> Embedded:
    """Return one vector per text, and which of them can be used.

    Raises:
        EmbedderError: The embedder embeds nothing, or returned what is no matrix of vectors.
    """
    try:
        try:
            return Embedded(*_embedded(embedder, texts), {})
        except _RefusedError as error:
            return _Halving(embedder, texts).run(error)
    except _RefusedError as error:
        raise EmbedderError(str(error)) from error.__cause__


class _RefusedError(Exception):
    """The embedder raised; it may be for a text."""


class _Halving:
    """Embeds a batch that was refused whole, in parts."""

    def __init__(self, embedder: Embedder, texts: Sequence[str]) -> None:
        self._embedder, self._texts = embedder, texts
        self._vectors = np.zeros((len(texts), embedder.dimension), np.float32)
        self._usable = np.zeros(len(texts), np.bool_)
        self._refused: dict[int, str] = {}
        self._done = 0

    def run(self, error: _RefusedError) -> Embedded:
        if len(self._texts) > 1:
            self._probe(error)
        self._split(0, len(self._texts), error)
        return Embedded(self._vectors, self._usable, self._refused)

    def _split(self, first: int, end: int, error: _RefusedError) -> None:
        """Embed texts in two halves, since together they were refused."""
        middle = (first + end) // 2
        if middle == first:
            self._retry(first, error)
            return
        for start, stop in ((first, middle), (middle, end)):
            try:
                self._embed(start, stop)
            except _RefusedError as refusal:
                self._split(start, stop, refusal)

    def _retry(self, place: int, error: _RefusedError) -> None:
        """Embed a text that was refused alone, or give it up."""
        self._probe(error)
        try:
            self._embed(place, place + 1)
        except _RefusedError as again:
            self._refused[place] = str(again.__cause__)
            if not self._done and len(self._refused) > MOST_REFUSED_AT_FIRST:
                raise

    def _embed(self, start: int, stop: int) -> None:
        made = _embedded(self._embedder, self._texts[start:stop])
        self._vectors[start:stop], self._usable[start:stop] = made
        self._done += stop - start

    def _probe(self, error: _RefusedError) -> None:
        """Embed a text that nobody refuses; if that fails, it is the embedder."""
        try:
            _embedded(self._embedder, [f"Is somebody there? {uuid4().hex}"])
        except (_RefusedError, StepsError):
            raise error from error.__cause__


def _embedded(embedder: Embedder, texts: Sequence[str]) -> CheckedVectors:
    try:
        found = embedder.embed_documents(texts)
    except Exception as error:
        # Without a cause it is this library that speaks, of a shape or a setting.
        if isinstance(error, StepsError) and not _is_from_provider(error):
            raise
        kind = EmbedderError if _is_outage(error) else _RefusedError
        raise kind(
            f"embedder {embedder.model_id} failed on {len(texts)} texts: {error}. The steps are "
            'stored; search again once it works, or search with mode="lexical".'
        ) from error
    return checked_vectors(found, len(texts), embedder.dimension)


def _is_from_provider(error: StepsError) -> bool:
    return isinstance(error, EmbedderError) and error.__cause__ is not None


def _is_outage(error: BaseException) -> bool:
    """Whether an error says by its kind that it is not for the text: no network, no right."""
    status: Any = getattr(error, "status_code", None)
    if isinstance(error, OSError) or status in _OUTAGES:
        return True
    if isinstance(status, int) and status >= 500:
        return True
    return error.__cause__ is not None and _is_outage(error.__cause__)
