"""Embeds the texts of steps; when that fails, tells a text that is refused from a broken embedder.

Providers refuse a whole batch for one text (too long, a content filter). The batch is halved until
that text stands alone; it is given up only when it fails twice with a text of ours embedded in
between, one that no cache knows. An embedder that is down costs one call more than its first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from hybridagi_steps.embedders.validation import CheckedVectors, checked_vectors
from hybridagi_steps.errors import EmbedderError, StepsError
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.store_values import FloatMatrix

MOST_REFUSED_AT_FIRST = 3
"""Texts refused with none of the batch embedded; one more, and it is the embedder."""
_OF_THE_EMBEDDER = frozenset({401, 408, 429})
"""HTTP statuses that say nothing of a text; those from 500 say nothing of one either."""


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
            self._embed_another(error)
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
        self._embed_another(error)
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

    def _embed_another(self, error: _RefusedError) -> None:
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
        if isinstance(error, StepsError) and not _of_provider(error):
            raise
        kind = EmbedderError if _of_embedder(error) else _RefusedError
        raise kind(
            f"embedder {embedder.model_id} failed on {len(texts)} texts: {error}. The steps are "
            'stored; search again once it works, or search with mode="lexical".'
        ) from error
    return checked_vectors(found, len(texts), embedder.dimension)


def _of_provider(error: StepsError) -> bool:
    return isinstance(error, EmbedderError) and error.__cause__ is not None


def _of_embedder(error: BaseException) -> bool:
    """Whether an error says by its kind that it is not for the text: no network, no right."""
    status: Any = getattr(error, "status_code", None)
    if isinstance(error, OSError) or status in _OF_THE_EMBEDDER:
        return True
    if isinstance(status, int) and status >= 500:
        return True
    return error.__cause__ is not None and _of_embedder(error.__cause__)
