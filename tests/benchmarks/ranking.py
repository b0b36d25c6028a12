"""How good a ranking is: nDCG, recall and reciprocal rank at a cut, with yes-or-no relevance.

It knows lists of items and sets of wanted items, nothing of steps. All measures are 1.0 when the
best possible ranking of that length was given, so tasks with few and with many wanted items can be
averaged. A mean comes with the interval that a bootstrap over whole runs gives it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

RESAMPLES = 2_000
"""Bootstrap samples; the ends of an interval move by less than a tenth of its width."""

Values = dict[str, list[float]]
"""Values of a run's questions, by run."""


class Interval(NamedTuple):
    """A mean with the ends of its 95 % interval; None where one run leaves nothing to resample."""

    mean: float
    low: float | None
    high: float | None


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


def reciprocal_rank(ranked: Sequence[int], wanted: Collection[int], k: int) -> float:
    """Return one divided by the rank of the first wanted item; 0 when none is in the first k."""
    return next((1 / rank for rank, item in enumerate(ranked[:k], 1) if item in wanted), 0.0)


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], constant: int = 60) -> list[int]:
    """Return the items of several rankings by the sum of 1 / (constant + rank), best first.

    Reference: Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet".
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + 1 / (constant + rank)
    return sorted(scores, key=lambda item: -scores[item])


def by_run(values: Mapping[str, Sequence[float]]) -> float:
    """Return the mean over runs of the mean over each run's questions."""
    return fmean(fmean(run) for run in values.values())


def interval(values: Mapping[str, Sequence[float]], seed: int = 0) -> Interval:
    """Return `by_run` with its 95 % interval.

    Questions of one run resemble each other, so whole runs are drawn, with replacement.

    Reference: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13, the
    percentile interval; Field and Welsh 2007 for clusters.
    """
    means = np.array([fmean(run) for run in values.values()])
    mean = float(means.mean())
    if len(means) == 1:
        return Interval(mean, None, None)
    drawn = np.random.default_rng(seed).integers(len(means), size=(RESAMPLES, len(means)))
    low, high = np.percentile(means[drawn].mean(axis=1), (2.5, 97.5))
    return Interval(mean, float(low), float(high))


def paired(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> Values:
    """Return the differences of two answers to the same questions, by run."""
    return {
        run: [a - b for a, b in zip(values, theirs[run], strict=True)]
        for run, values in ours.items()
    }


def interval_text(found: Mapping[str, float | None], *, signed: bool = False) -> str:
    """Return an interval as a table shows it; `signed` of a difference."""
    mean, low, high = (_short(found[name], signed) for name in ("mean", "low", "high"))
    return mean if found["low"] is None else f"{mean} [{low}, {high}]"


def _short(value: float | None, signed: bool) -> str:
    """Return a share to three digits, without the zero before the point."""
    if value is None:
        return "-"
    text = f"{value:+.3f}" if signed else f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text
