"""Logistic regression, and whether an order learned by it helps: cross-validated, with an interval.

A few hundred labels and a dozen features need no library: Newton's method solves a handful of
linear systems of the size of the features.

Queries are split into folds by group (a run, or the query itself), each fold is ranked by what was
learned from the others, and whole groups are drawn for the interval. Where queries have good and
bad hits, what counts is nDCG@10 of the judged hits of each query, those without a label left out.
Labels of whole runs give a query hits of one kind only; then it is the area under the ROC curve:
how often a good hit stands above a bad one, whosever they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

Floats = npt.NDArray[np.float64]

_MOST_ROUNDS, _MOST_HALVINGS = 100, 40
_CLOSE_ENOUGH = 1e-9

CUT = 10
"""Hits of a query that nDCG looks at."""
RESAMPLES = 2_000
"""Bootstrap samples of an interval."""
LEAST_QUERIES = 10
"""Queries with good and bad hits below which they are no measure by themselves."""

Measure = Literal["nDCG@10", "AUC"]
Fit = Callable[["JudgedRows"], "LogisticModel"]
"""Learns from judged hits."""


class LogisticModel(NamedTuple):
    """The probability of a label."""

    weights: Floats
    """What a feature adds to the log-odds, one unit of it, shape (d,)."""
    intercept: float

    def probabilities(self, features: Floats) -> Floats:
        """Return the probability of label 1 for each row of features, shape (n,)."""
        return sigmoid(features @ self.weights + self.intercept)


def sigmoid(log_odds: Floats) -> Floats:
    """Return probabilities; written with tanh, the logistic function does not overflow."""
    return 0.5 * (1 + np.tanh(log_odds / 2))


def fit_logistic(
    features: Floats, labels: Floats, counts: Floats, penalties: Floats
) -> LogisticModel:
    """Return the model that makes the labels likely, its weights kept small.

    It minimises -log likelihood + half the sum of penalty * weight², the intercept unpenalised,
    which has one minimum; a step of Newton's method that would climb is halved until it does not.

    Args:
        features: Shape (n, d), finite, of like scales: one penalty means the same for each.
        labels: 0 or 1, shape (n,), both present.
        counts: For how many labels each counts, shape (n,).
        penalties: Of each feature's weight, above 0, shape (d,).

    Complexity: O(n d² + d³) a round; ten rounds are many.
    Reference: Hastie, Tibshirani and Friedman 2009, "The Elements of Statistical Learning", 4.4.1
    (iteratively reweighted least squares); le Cessie and van Houwelingen 1992 for the penalty.
    """
    rows = np.column_stack((features, np.ones(len(labels))))
    ridge = np.append(penalties, 0.0)

    def loss(at: Floats) -> float:
        log_odds = rows @ at
        missed = counts * (np.logaddexp(0.0, log_odds) - labels * log_odds)
        return float(missed.sum() + 0.5 * (ridge * at**2).sum())

    found = np.zeros(rows.shape[1])
    for _ in range(_MOST_ROUNDS):
        likely = sigmoid(rows @ found)
        slope = rows.T @ (counts * (likely - labels)) + ridge * found
        bend = (rows * (counts * likely * (1 - likely))[:, None]).T @ rows + np.diag(ridge)
        # Labels that are all but certain leave the intercept's curvature at 0.
        move: Floats = np.linalg.lstsq(bend, slope, rcond=None)[0].astype(np.float64)
        move = _downhill(loss, found, move)
        found = found - move
        if np.abs(move).max() < _CLOSE_ENOUGH:
            break
    return LogisticModel(found[:-1], float(found[-1]))


def _downhill(loss: Callable[[Floats], float], at: Floats, move: Floats) -> Floats:
    """Return a move, or the part of it that does not climb."""
    here = loss(at)
    for _ in range(_MOST_HALVINGS):
        if loss(at - move) <= here:
            return move
        move = move / 2
    return np.zeros_like(move)


class Gain(BaseModel):
    """How much better a learned order is than the one before, on queries left out of learning."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    measure: Measure
    """`nDCG@10` of the judged hits of each query, or `AUC` over all of them."""
    before: float
    """Of the order in which the hits came."""
    after: float
    """Of the learned order, each query ranked by what was learned without it."""
    low: float
    """Lower end of the 95 % interval of `after - before`."""
    high: float
    """Upper end of it."""
    groups: int
    """Runs or queries that it was measured on."""

    @property
    def mean(self) -> float:
        """`after - before`."""
        return self.after - self.before

    @property
    def helps(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0

    def __str__(self) -> str:
        interval = f"[{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.mean:+.3f} {interval} {self.measure} over {self.groups:,} groups"


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """All judged hits of all queries, one row each."""

    features: Floats
    """Shape (n, d)."""
    labels: Floats
    """0 or 1, shape (n,)."""
    before: Floats
    """What the hits were ranked by, bigger is better, shape (n,)."""
    queries: npt.NDArray[np.int64]
    """Number of the query of each row, ascending, shape (n,)."""
    groups: npt.NDArray[np.int64]
    """Number of the group of each row, shape (n,)."""

    def of(self, chosen: npt.NDArray[np.bool_]) -> JudgedRows:
        """Return some of the rows."""
        return JudgedRows(
            self.features[chosen],
            self.labels[chosen],
            self.before[chosen],
            self.queries[chosen],
            self.groups[chosen],
        )

    @property
    def both_kinds(self) -> bool:
        """Whether some are good and some are bad."""
        return bool(0 < self.labels.sum() < len(self.labels))


def cross_fitted(rows: JudgedRows, fit: Fit, folds: int = 5, seed: int = 0) -> Floats:
    """Return for each row the probability by a model that saw nothing of its group.

    Where all other groups are of one kind nothing can be learned: those rows get 0.5.
    """
    names = np.unique(rows.groups)
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {group: place % folds for place, group in enumerate(names[order].tolist())}
    fold = np.array([fold_of[group] for group in rows.groups.tolist()])
    found = np.full(len(rows.labels), 0.5)
    for number in range(folds):
        held, rest = fold == number, rows.of(fold != number)
        if held.any() and rest.both_kinds:
            found[held] = fit(rest).probabilities(rows.features[held])
    return found


def measured_gain(rows: JudgedRows, after: Floats, seed: int = 0) -> Gain:
    """Return what another order of judged hits is worth, that of `after`, bigger is better."""
    return _of_queries(rows, after, seed) or _of_all(rows, after, seed)


def _of_queries(rows: JudgedRows, after: Floats, seed: int) -> Gain | None:
    """Return the gain in nDCG; None where too few queries have hits of both kinds."""
    by_group: dict[int, list[tuple[float, float]]] = {}
    count = 0
    starts = np.flatnonzero(np.diff(rows.queries, prepend=-1))
    for place in np.split(np.arange(len(rows.labels)), starts[1:]):
        labels = rows.labels[place]
        if 0 < labels.sum() < len(labels):
            count += 1
            pair = ndcg(labels, rows.before[place]), ndcg(labels, after[place])
            by_group.setdefault(int(rows.groups[place[0]]), []).append(pair)
    if count < LEAST_QUERIES:
        return None
    means = np.array([np.mean(pairs, axis=0) for pairs in by_group.values()])
    before, now = means.mean(axis=0)
    drawn = np.random.default_rng(seed).integers(len(means), size=(RESAMPLES, len(means)))
    gains = (means[:, 1] - means[:, 0])[drawn].mean(axis=1)
    return _gain("nDCG@10", float(before), float(now), gains, len(means))


def _of_all(rows: JudgedRows, after: Floats, seed: int) -> Gain:
    names, group = np.unique(rows.groups, return_inverse=True)
    chance = np.random.default_rng(seed)
    gains: list[float] = []
    for _ in range(RESAMPLES):
        times = np.bincount(chance.integers(len(names), size=len(names)), minlength=len(names))
        weights = times[group].astype(np.float64)
        if 0 < (weights * rows.labels).sum() < weights.sum():
            before = area_under_curve(rows.labels, rows.before, weights)
            gains.append(area_under_curve(rows.labels, after, weights) - before)
    whole = np.ones(len(rows.labels))
    before = area_under_curve(rows.labels, rows.before, whole)
    now = area_under_curve(rows.labels, after, whole)
    return _gain("AUC", before, now, np.array(gains), len(names))


def _gain(measure: Measure, before: float, after: float, gains: Floats, groups: int) -> Gain:
    low, high = np.percentile(gains, (2.5, 97.5)).tolist()
    return Gain(measure=measure, before=before, after=after, low=low, high=high, groups=groups)


def ndcg(labels: Floats, scores: Floats) -> float:
    """Return nDCG@10 of hits in the order of their scores; equal scores keep their order.

    Reference: Järvelin and Kekäläinen 2002; of judged hits only, as Sakai 2007 has it.
    """
    order = np.argsort(-scores, kind="stable")[:CUT]
    discounts = 1 / np.log2(np.arange(2, CUT + 2))
    best = discounts[: min(CUT, int(labels.sum()))].sum()
    return float((labels[order] * discounts[: len(order)]).sum() / best)


def area_under_curve(labels: Floats, scores: Floats, weights: Floats) -> float:
    """Return how often a good hit scores above a bad one; equal scores are half a win.

    Reference: Fawcett 2006, "An introduction to ROC analysis".
    """
    values, place = np.unique(scores, return_inverse=True)
    good = np.bincount(place, weights * labels, minlength=len(values))
    bad = np.bincount(place, weights * (1 - labels), minlength=len(values))
    below = np.cumsum(bad) - bad / 2
    return float((good * below).sum() / (good.sum() * bad.sum()))
