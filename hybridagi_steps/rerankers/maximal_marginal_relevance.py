"""MaximalMarginalRelevance: fewer near-copies among the first hits.

Past runs repeat themselves, and five times the same step is one step's worth of context. Likeness
is measured on the steps' own vectors when all hits carry them, else on vectors of an embedder, else
on the words they share, so that it works without any model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.step_text import own_text, tokens
from hybridagi_steps.rerankers.rescoring import best_first, checked_weight, rescored, within_one

_Matrix = npt.NDArray[np.float64]


class MaximalMarginalRelevance:
    """Picks hits one by one, each the best mix of relevance and difference from those picked.

    The next hit is the one with the largest lambda * score - (1 - lambda) * (largest likeness to
    a hit already picked); its new score is that value plus (1 - lambda), which lies in 0..1 and
    never grows along the list.

    Args:
        lambda_: 1 keeps the order by relevance, 0 asks for difference alone.
        embedder: Makes vectors for hits whose steps carry none.

    Raises:
        InvalidQueryError: `lambda_` outside 0..1.

    Complexity: O(n²) in the number of hits.
    Reference: Carbonell and Goldstein 1998, "The use of MMR, diversity-based reranking for
    reordering documents and producing summaries".
    """

    def __init__(self, lambda_: float = 0.5, *, embedder: Embedder | None = None) -> None:
        self.lambda_ = checked_weight(lambda_, "lambda_")
        self.embedder = embedder

    def rerank(self, query: str, hits: Sequence[StepHit]) -> list[StepHit]:  # noqa: ARG002 - the protocol's
        """Return all hits, the relevant and different ones first."""
        if not hits:
            return []
        # On equal value the earlier candidate is picked, so the best one leads.
        candidates = best_first(hits)
        likeness, measure = self._likeness(candidates)
        relevance = np.array([within_one(hit.score) for hit in candidates])
        nearest = np.zeros(len(candidates))
        left = np.ones(len(candidates), dtype=bool)
        picked: list[StepHit] = []
        for _ in candidates:
            value = self.lambda_ * relevance + (1 - self.lambda_) * (1 - nearest)
            best = int(np.argmax(np.where(left, value, -np.inf)))
            note = f"marginal relevance: likeness {nearest[best]:.2f} by {measure}"
            picked.append(rescored(candidates[best], float(value[best]), note))
            left[best] = False
            nearest = np.maximum(nearest, likeness[best])
        return picked

    def _likeness(self, hits: list[StepHit]) -> tuple[_Matrix, str]:
        """Return how alike the hits are, shape (n, n), in 0..1, and by what measure."""
        vectors = _own_vectors(hits)
        if vectors is None and self.embedder is not None:
            texts = [own_text(hit.step) for hit in hits]
            vectors = np.asarray(self.embedder.embed_documents(texts), dtype=np.float64)
        if vectors is None:
            return _shared_words(hits), "words"
        return _cosines(vectors), "vectors"


def _own_vectors(hits: list[StepHit]) -> _Matrix | None:
    vectors = [hit.step.vector for hit in hits]
    lengths = {len(vector) if vector else 0 for vector in vectors}
    if lengths == {0} or len(lengths) > 1:
        return None
    return np.array(vectors, dtype=np.float64)


def _cosines(vectors: _Matrix) -> _Matrix:
    # A vector that is no direction (zero, NaN) is like nothing.
    clean = np.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(clean, axis=1, keepdims=True)
    units = np.divide(clean, lengths, out=np.zeros_like(clean), where=lengths > 0)
    return np.clip(units @ units.T, 0.0, 1.0)


def _shared_words(hits: list[StepHit]) -> _Matrix:
    """Return the Jaccard overlap of the stems of the steps' own texts."""
    words = [frozenset(tokens(own_text(hit.step))) for hit in hits]
    vocabulary = sorted({word for mine in words for word in mine})
    columns = {word: column for column, word in enumerate(vocabulary)}
    holds = np.zeros((len(words), len(columns)))
    for place, mine in enumerate(words):
        holds[place, [columns[word] for word in mine]] = 1.0
    shared = holds @ holds.T
    counts = holds.sum(axis=1)
    either = counts[:, None] + counts[None, :] - shared
    return np.divide(shared, either, out=np.ones_like(shared), where=either > 0)
