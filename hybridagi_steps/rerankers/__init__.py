"""Ways to put the hits of a search in a better order.

A reranker is anything with `rerank(query, hits) -> hits` (`protocols.Reranker`). Those here are
plain Python over what a hit carries: none needs DSPy, a model or the store, except `CrossEncoder`,
which loads its model on first use. None is on by default; none changes the hits it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.rerankers.cross_encoder import CrossEncoder as CrossEncoder
    from hybridagi_steps.rerankers.rescoring import (
        MaximalMarginalRelevance as MaximalMarginalRelevance,
    )
    from hybridagi_steps.rerankers.rescoring import Outcome as Outcome
    from hybridagi_steps.rerankers.rescoring import Recency as Recency
    from hybridagi_steps.rerankers.rescoring import ReciprocalRank as ReciprocalRank


_NAMES = {
    "cross_encoder": "CrossEncoder",
    "rescoring": "MaximalMarginalRelevance Outcome Recency ReciprocalRank",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
