"""What every reranker does with its new scores: clip them, say so in `why`, sort.

Hits are copied, never changed. Sorting is stable: hits with equal scores keep the order they came
in, so a reranker that has nothing to say changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.records.filters import StepHit


def rescored(hit: StepHit, score: float, note: str) -> StepHit:
    """Return a copy of `hit` with another score, in 0..1, and `note` added to its why."""
    why = f"{hit.why}; {note}" if hit.why else note
    return hit.model_copy(update={"score": within_one(score), "why": why})


def best_first(hits: Sequence[StepHit]) -> list[StepHit]:
    """Return the hits by score, largest first; equal scores keep their order."""
    return sorted(hits, key=lambda hit: -hit.score)


def within_one(value: float) -> float:
    """Return the nearest number in 0..1; NaN counts as 0."""
    return 0.0 if math.isnan(value) else min(1.0, max(0.0, value))


def blended(hit: StepHit, merit: float, weight: float, note: str) -> StepHit:
    """Return a copy whose score is `weight` parts merit, the rest what it was."""
    return rescored(hit, (1 - weight) * within_one(hit.score) + weight * merit, note)


def checked_weight(value: float, name: str = "weight") -> float:
    """Return a weight.

    Raises:
        InvalidQueryError: It is not a number in 0..1.
    """
    if not 0 <= value <= 1:
        raise InvalidQueryError(f"{name} is a number from 0 to 1, not {value!r}.")
    return float(value)
