"""Recency: what happened lately counts more.

Off by default: on real runs it did not help to find the right step. It is for histories in which
old steps grow wrong, such as prices or the state of a deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.rerankers.rescoring import best_first, blended, checked_weight

_DAY_SECONDS = 86_400.0
_DEFAULT_DAYS = 7.0


class Recency:
    """Blends a hit's score with its freshness, which halves every half-life.

    Score = (1 - weight) * score + weight * 0.5 ** (age / half-life). A step from the future is as
    fresh as can be.

    Args:
        half_life_seconds: Age at which freshness is one half, in seconds.
        half_life_days: The same in days; give one of the two. Seven days when neither is given.
        weight: Share of freshness in the new score, 0..1.
        now: Tells the time; timezone-aware.

    Raises:
        InvalidQueryError: Both half-lives, one that is not above 0, or a weight outside 0..1.
    """

    def __init__(
        self,
        half_life_seconds: float | None = None,
        *,
        half_life_days: float | None = None,
        weight: float = 0.3,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.half_life_seconds = _seconds(half_life_seconds, half_life_days)
        self.weight = checked_weight(weight)
        self.now = now

    def rerank(self, query: str, hits: Sequence[StepHit]) -> list[StepHit]:  # noqa: ARG002 - the protocol's
        """Return the hits by their score blended with their freshness."""
        now = self.now()
        return best_first([self._blended(hit, now) for hit in hits])

    def _blended(self, hit: StepHit, now: datetime) -> StepHit:
        age_seconds = max(0.0, (now - _aware(hit.step.created_at)).total_seconds())
        freshness = 0.5 ** (age_seconds / self.half_life_seconds)
        return blended(hit, freshness, self.weight, f"recency {freshness:.2f}")


def _seconds(seconds: float | None, days: float | None) -> float:
    if seconds is not None and days is not None:
        raise InvalidQueryError("give half_life_seconds or half_life_days, not both.")
    if seconds is None:
        seconds = (_DEFAULT_DAYS if days is None else days) * _DAY_SECONDS
    if not seconds > 0:
        raise InvalidQueryError(f"a half-life is above 0, not {seconds!r} seconds.")
    return seconds


def _aware(time: datetime) -> datetime:
    # Steps made with model_construct() or model_copy() escape validation.
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time
