"""ReciprocalRank: fuse the order by meaning with the order by words.

It looks at ranks alone, so it needs no scores on one scale. Measured on real runs it is weaker than
the default fusion of scores; it is here for those who trust ranks more than scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.rerankers.rescoring import best_first, rescored


class ReciprocalRank:
    """Scores a hit by the sum of 1 / (k + rank) over the orders it stands in.

    The sum is divided by the largest one possible, so a hit that leads every order scores 1. A hit
    without a dense score is in no dense order; without a lexical score, or with none above zero, it
    shares no word with the query and is in no lexical order. When no hit has either, the order by
    score stands in for both.

    Args:
        k: Dampens the lead of the first ranks; 60 in the paper.

    Reference: Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet and
    individual rank learning methods".
    """

    def __init__(self, k: float = 60) -> None:
        if not k > 0:
            raise InvalidQueryError(f"k of reciprocal rank fusion is above 0, not {k!r}.")
        self.k = k

    def rerank(self, query: str, hits: Sequence[StepHit]) -> list[StepHit]:  # noqa: ARG002 - the protocol's
        """Return the hits by fused rank."""
        dense = _ranks([hit.dense_score for hit in hits])
        lexical = _ranks([hit.lexical_score if hit.lexical_score else None for hit in hits])
        orders = {name: order for name, order in (("dense", dense), ("lexical", lexical)) if order}
        if not orders:
            orders = {"score": _ranks([hit.score for hit in hits])}
        fused = [self._fused(place, hit, orders) for place, hit in enumerate(hits)]
        return best_first(fused)

    def _fused(self, place: int, hit: StepHit, orders: dict[str, dict[int, int]]) -> StepHit:
        ranks = {name: order[place] for name, order in orders.items() if place in order}
        best_possible = len(orders) / (self.k + 1)
        score = sum(1 / (self.k + rank) for rank in ranks.values()) / best_possible
        places = ", ".join(f"{name} {rank}" for name, rank in ranks.items()) or "in neither order"
        return rescored(hit, score, f"reciprocal rank: {places}")


def _ranks(scores: list[float | None]) -> dict[int, int]:
    """Return the rank of each place that has a score, from 1; equal scores share the better one."""
    known = sorted((score for score in scores if score is not None), reverse=True)
    first = {score: rank for rank, score in reversed(list(enumerate(known, start=1)))}
    return {place: first[score] for place, score in enumerate(scores) if score is not None}
