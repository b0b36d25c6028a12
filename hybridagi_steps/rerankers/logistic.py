"""Logistic regression with a ridge penalty, by Newton's method, in NumPy.

A few hundred labels and a dozen features need no library: a handful of linear systems of the size
of the features is solved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MOST_ROUNDS, _MOST_HALVINGS = 100, 40
_CLOSE_ENOUGH = 1e-9


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
