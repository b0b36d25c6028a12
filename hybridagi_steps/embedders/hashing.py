"""Words and letters hashed into a vector: deterministic, without a model, for tests.

It knows spelling and no meaning: texts are near when they share words or parts of words. The same
text gives the same vector in every process and on every machine.

Reference: Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector

MAX_CHARS = 32_768
"""What stands beyond is not read."""
_VERSION = 1
_WORD = re.compile(r"\w+")
_GRAM_LENGTH = 3
_GRAM_WEIGHT = 0.3
_POSITIVE = np.uint64(1 << 63)
"""Hashes from here on count for their slot, those below against it."""
_WORDS_KEPT = 8_192
_LONGEST_KEPT = 64
"""Letters of a word whose features are kept."""


class HashingEmbedder:
    """Embeds the words of a text and their letter trigrams by feature hashing.

    A text without a word gives the zero vector.

    Args:
        dimension: Length of the vectors.
    """

    def __init__(self, dimension: int = 256) -> None:
        if dimension < 1:
            raise EmbedderError(f"a vector cannot have {dimension} dimensions; give at least 1.")
        self._dimension = dimension

    @property
    def model_id(self) -> str:
        """Names the features' version and the dimension."""
        return f"hashing/{self._dimension}@{_VERSION}"

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        return self._dimension

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per text, shape (n, d), of length one or zero."""
        vectors = [self._embed(text) for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self._dimension), np.float32)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per query, the same as for a document."""
        return self.embed_documents(texts)

    def _embed(self, text: str) -> FloatVector:
        weights: defaultdict[int, float] = defaultdict(float)
        for word, times in Counter(_WORD.findall(text[:MAX_CHARS].lower())).items():
            for number, weight in _kept(word) if len(word) <= _LONGEST_KEPT else _features(word):
                weights[number] += weight * times
        numbers = np.fromiter(weights, np.uint64, len(weights))
        values = np.sqrt(np.fromiter(weights.values(), np.float64, len(weights)))
        values[numbers < _POSITIVE] *= -1
        slots = (numbers % np.uint64(self._dimension)).astype(np.intp)
        vector = np.bincount(slots, values, self._dimension).astype(np.float32)
        length = np.float32(np.linalg.norm(vector))
        return vector / length if length else vector


def from_name(dimension: str = "256") -> HashingEmbedder:
    """Build the embedder that "hashing" or "hashing:DIM" names."""
    if not dimension.isdecimal():
        raise EmbedderError(f"hashing:{dimension} names no dimension; write for example hashing:64")
    return HashingEmbedder(int(dimension))


def _features(word: str) -> tuple[tuple[int, float], ...]:
    """Return the hashes of a word and of its letter trigrams with its borders, and weights."""
    bordered = f"<{word}>"
    starts = range(len(bordered) - _GRAM_LENGTH + 1)
    grams = ((f"#{bordered[start : start + _GRAM_LENGTH]}", _GRAM_WEIGHT) for start in starts)
    return tuple((_hash(feature), weight) for feature, weight in ((word, 1.0), *grams))


_kept = lru_cache(maxsize=_WORDS_KEPT)(_features)


def _hash(feature: str) -> int:
    code = blake2b(feature.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(code, "little")
