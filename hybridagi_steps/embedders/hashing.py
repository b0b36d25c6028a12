"""Words and letters hashed into a vector: deterministic, without a model, for tests.

It knows spelling and no meaning: texts are near when they share words or parts of words. The same
text gives the same vector in every process and on every machine.

Reference: Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
        vector = np.zeros(self._dimension, np.float32)
        weights: defaultdict[str, float] = defaultdict(float)
        for feature, weight in _features(text[:MAX_CHARS].lower()):
            weights[feature] += weight
        for feature, weight in weights.items():
            code = blake2b(feature.encode("utf-8", "replace"), digest_size=8).digest()
            number = int.from_bytes(code, "little")
            sign = 1.0 if number >> 63 else -1.0
            vector[number % self._dimension] += sign * np.sqrt(weight)
        length = np.float32(np.linalg.norm(vector))
        return vector / length if length else vector


def from_name(dimension: str = "256") -> HashingEmbedder:
    """Build the embedder that "hashing" or "hashing:DIM" names."""
    if not dimension.isdecimal():
        raise EmbedderError(f"hashing:{dimension} names no dimension; write for example hashing:64")
    return HashingEmbedder(int(dimension))


def _features(text: str) -> Iterator[tuple[str, float]]:
    """Yield each word, and each letter trigram of it with its borders, with a weight."""
    for word in _WORD.findall(text):
        yield word, 1.0
        bordered = f"<{word}>"
        for start in range(len(bordered) - _GRAM_LENGTH + 1):
            yield f"#{bordered[start : start + _GRAM_LENGTH]}", _GRAM_WEIGHT
