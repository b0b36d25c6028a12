"""A `dspy.Embedder`, or any callable from texts to vectors, as this library's embedder.

This is how hosted models come in. It knows nothing of any provider; DSPy is imported only when a
model is given by name. Blank texts are not sent, since providers refuse them, and long ones are
cut, since providers refuse those too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridagi_steps.embedders.vectors import checked_vectors
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.records.store_values import FloatMatrix

_PROBE = "How long is a vector?"


class DspyEmbedder:
    """Embeds with a `dspy.Embedder`, a callable, or a hosted model given by name.

    A blank text gives the zero vector without a call.

    Args:
        embedder: A dspy.Embedder, a callable that takes a list of texts and returns one vector
            each, or a model name such as "openai/text-embedding-3-small".
        model_id: Names model and version. By default the model's name with its dimensions if set,
            or the callable's name, which cannot tell one version from the next.
        dimension: Length of the vectors; by default found by embedding one short text.
        max_chars: What stands beyond is not sent (hosted models take about 8,000 tokens).
    """

    def __init__(
        self,
        embedder: Callable[[list[str]], Any] | str,
        *,
        model_id: str | None = None,
        dimension: int | None = None,
        max_chars: int = 16_000,
    ) -> None:
        self._embedder = _by_name(embedder) if isinstance(embedder, str) else embedder
        self._model_id = model_id or _described(self._embedder)
        self._dimension, self._max_chars = dimension, max_chars

    @property
    def model_id(self) -> str:
        """Names the model."""
        return self._model_id

    @property
    def dimension(self) -> int:
        """Length of every vector; asks the embedder once if it was not given."""
        if self._dimension is None:
            self._dimension = self._call([_PROBE], None).shape[1]
        return self._dimension

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per text, shape (n, d).

        Raises:
            EmbedderError: The embedder raised, or gave something else than one vector per text.
            DimensionMismatchError: It gave vectors of another length than before.
        """
        spoken = [at for at, text in enumerate(texts) if text.strip()]
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        if spoken:
            vectors[spoken] = self._call([texts[at] for at in spoken], self.dimension)
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per query, the same as for a document."""
        return self.embed_documents(texts)

    def _call(self, texts: list[str], dimension: int | None) -> FloatMatrix:
        try:
            made = self._embedder([text[: self._max_chars] for text in texts])
        except Exception as error:
            raise EmbedderError(
                f"the embedder {self._model_id} failed on {len(texts)} texts: "
                f"{type(error).__name__}: {error}"
            ) from error
        return checked_vectors(made, len(texts), dimension).vectors


def _by_name(model: str) -> Callable[[list[str]], Any]:
    import dspy

    return dspy.Embedder(model)


def _described(embedder: Callable[[list[str]], Any]) -> str:
    """Name what is called: the hosted model of a dspy.Embedder, else the function."""
    inner: object = getattr(embedder, "model", None)
    if isinstance(inner, str):
        options: dict[str, Any] = getattr(embedder, "default_kwargs", {})
        size = f"@{options['dimensions']}" if "dimensions" in options else ""
        return f"dspy/{inner}{size}"
    called: object = inner if callable(inner) else embedder
    named: Any = called if hasattr(called, "__qualname__") else called.__class__
    return f"callable/{named.__module__}.{named.__qualname__}"
