"""Ways to put the hits of a search in a better order.

A reranker is anything with `rerank(query, hits) -> hits` (`protocols.Reranker`). Those here are
plain Python over what a hit carries: none needs DSPy, a model or the store, except `CrossEncoder`,
which loads its model on first use. None is on by default; none changes the hits it is given.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridagi_steps.rerankers.cross_encoder import CrossEncoder
    from hybridagi_steps.rerankers.maximal_marginal_relevance import MaximalMarginalRelevance
    from hybridagi_steps.rerankers.outcome import Outcome
    from hybridagi_steps.rerankers.recency import Recency
    from hybridagi_steps.rerankers.reciprocal_rank import ReciprocalRank

__all__ = ["CrossEncoder", "MaximalMarginalRelevance", "Outcome", "Recency", "ReciprocalRank"]

_HOMES = {
    "CrossEncoder": "cross_encoder",
    "MaximalMarginalRelevance": "maximal_marginal_relevance",
    "Outcome": "outcome",
    "Recency": "recency",
    "ReciprocalRank": "reciprocal_rank",
}


def __getattr__(name: str) -> Any:
    """Load a reranker on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
