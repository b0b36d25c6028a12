"""What every reranker does with its new scores: clip them, say so in `why`, sort.

Hits are copied, never changed. Sorting is stable: hits with equal scores keep the order they came
in, so a reranker that has nothing to say changes nothing. What anybody's reranker gave back is
looked at before it is believed: it may drop hits, order and score them, not bring others.

The rerankers that need no more than a formula stand here: freshness, outcome, fused ranks, and
likeness. That is measured on the steps' own vectors when all hits carry them, else on vectors of an
embedder, else on the words they share, so that it works without any model.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hybridagi_steps.errors import InvalidQueryError, RerankerError
from hybridagi_steps.protocols import Embedder, Reranker
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.records.step_text import own_text, tokens


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
    """Return a weight."""
    if not 0 <= value <= 1:
        raise InvalidQueryError(f"{name} is a number from 0 to 1, not {value!r}.")
    return float(value)


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


_STATUS_MERIT = {"ok": 1.0, "partial": 0.5, "cancelled": 0.25, "paused": 0.25, "error": 0.0}
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


def reranked(reranker: Reranker, query: str, hits: Sequence[StepHit]) -> list[StepHit]:
    """Return hits in a reranker's order."""
    return checked_hits(reranker.rerank(query, hits), hits, f"{type(reranker).__name__}.rerank")


def checked_hits(made: object, hits: Sequence[StepHit], by: str) -> list[StepHit]:
    """Return what was made of some hits if it is a list of them; `by` names what made it."""
    wrong = _wrong(made, hits)
    if wrong is not None:
        raise RerankerError(
            f"{by} returned {wrong}; it returns a list of the hits it is given, in any order, each "
            "at most once."
        )
    return list(cast("Sequence[StepHit]", made))


def _wrong(made: object, hits: Sequence[StepHit]) -> str | None:
    """Return what is wrong with a reranker's answer, in words; None if nothing is."""
    if inspect.iscoroutine(made):
        made.close()
        return "a coroutine"
    if isinstance(made, str) or not isinstance(made, Sequence):
        return type(made).__name__
    left = Counter(id_text(hit.step.id) for hit in hits)
    for hit in cast("Sequence[Any]", made):
        if not isinstance(hit, StepHit):
            return f"a list with {type(hit).__name__} in it"
        step_id = id_text(hit.step.id)
        if not isinstance(hit.score, Real) or not math.isfinite(hit.score):  # pyright: ignore[reportUnnecessaryIsInstance] - copies are not validated
            return f"the score {hit.score!r} for step {step_id}"
        left[step_id] -= 1
        if left[step_id] < 0:
            return f"step {step_id} more often than it was given"
    return None


class ReciprocalRank:
    """Scores a hit by the sum of 1 / (k + rank) over the orders it stands in.

    It looks at ranks alone, so it needs no scores on one scale. Measured on real runs it is weaker
    than the default fusion of scores; it is for those who trust ranks more.

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
