"""Outcome: steps that worked count more than steps that failed.

A failed step may match a question best of all, and still be a bad example to follow. This looks at
how the step itself ended and at how good it was said to be; it knows nothing of what came after.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.rerankers.rescoring import best_first, blended, checked_weight, within_one

_STATUS_MERIT = {"ok": 1.0, "partial": 0.5, "cancelled": 0.25, "error": 0.0}
_UNKNOWN_SCORE = 0.5


class Outcome:
    """Blends a hit's score with the step's merit.

    Merit is the mean of how the step ended (ok 1, partial 0.5, cancelled 0.25, error 0) and its
    score, cut to 0..1; a step without a score counts as 0.5, neither praised nor blamed.
    New score = (1 - weight) * score + weight * merit.

    Args:
        weight: Share of merit in the new score, 0..1.

    Raises:
        InvalidQueryError: A weight outside 0..1.
    """

    def __init__(self, weight: float = 0.3) -> None:
        self.weight = checked_weight(weight)

    def rerank(self, query: str, hits: Sequence[StepHit]) -> list[StepHit]:  # noqa: ARG002 - the protocol's
        """Return the hits by their score blended with their merit."""
        return best_first(
            [blended(hit, _merit(hit.step), self.weight, _said(hit.step)) for hit in hits]
        )


def _merit(step: AgentStep) -> float:
    score = _UNKNOWN_SCORE if step.score is None else within_one(step.score)
    return (_STATUS_MERIT[step.status] + score) / 2


def _said(step: AgentStep) -> str:
    scored = "" if step.score is None else f", score {step.score:g}"
    return f"outcome {step.status}{scored}"
