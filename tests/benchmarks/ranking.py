"""How good a ranking is: nDCG and recall at a cut, with yes-or-no relevance.

It knows lists of items and sets of wanted items, nothing of steps. Both measures are 1.0 when the
best possible ranking of that length was given, so tasks with few and with many wanted items can be
averaged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def ndcg(ranked: Sequence[int], wanted: Collection[int], k: int) -> float:
    """Return the normalised discounted cumulative gain of the first k items.

    Reference: Järvelin and Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques".
    """
    gained = sum(1 / math.log2(rank + 2) for rank, item in enumerate(ranked[:k]) if item in wanted)
    best = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(wanted))))
    return gained / best if best else 0.0


def recall(ranked: Sequence[int], wanted: Collection[int], k: int) -> float:
    """Return the share of the wanted items among the first k; of more than k wanted, of k."""
    possible = min(k, len(wanted))
    return len(set(ranked[:k]) & set(wanted)) / possible if possible else 0.0


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], constant: int = 60) -> list[int]:
    """Return the items of several rankings by the sum of 1 / (constant + rank), best first.

    Reference: Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet".
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + 1 / (constant + rank)
    return sorted(scores, key=lambda item: -scores[item])
