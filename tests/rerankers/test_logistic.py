"""Logistic regression: answers known by hand, truths that are known, and what a gain means."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hybridagi_steps.rerankers.logistic import (
    Floats,
    Gain,
    JudgedRows,
    LogisticModel,
    area_under_curve,
    cross_fitted,
    fit_logistic,
    measured_gain,
    ndcg,
    sigmoid,
)


def fit(features: Floats, labels: Floats, l2: float = 1e-9) -> LogisticModel:
    return fit_logistic(features, labels, np.ones(len(labels)), np.repeat(l2, features.shape[1]))


def learned(rows: JudgedRows) -> LogisticModel:
    return fit(rows.features, rows.labels, 1.0)


class TestLogistic:
    def test_one_yes_or_no_feature_gives_the_share_of_each_side(self) -> None:
        # 2 of 10 are good without the feature, 6 of 10 with it.
        features = np.array([[0.0]] * 10 + [[1.0]] * 10)
        labels = np.array([1.0] * 2 + [0.0] * 8 + [1.0] * 6 + [0.0] * 4)
        model = fit(features, labels)
        assert_allclose(model.probabilities(np.array([[0.0], [1.0]])), [0.2, 0.6], atol=1e-6)
        odds_ratio = np.log((0.6 / 0.4) / (0.2 / 0.8))
        assert_allclose(model.weights, [odds_ratio], atol=1e-5)

    def test_what_made_the_labels_is_recovered(self) -> None:
        chance = np.random.default_rng(1)
        truth = np.array([1.5, -1.0, 0.0, 0.5])
        features = chance.normal(size=(20_000, 4))
        labels = (chance.random(20_000) < sigmoid(features @ truth - 0.3)).astype(np.float64)
        model = fit(features, labels, 1.0)
        assert_allclose(model.weights, truth, atol=0.06)
        assert model.intercept == pytest.approx(-0.3, abs=0.05)

    def test_the_slope_of_what_is_minimised_is_zero(self) -> None:
        chance = np.random.default_rng(2)
        features = chance.normal(size=(300, 3))
        labels = (chance.random(300) < 0.3).astype(np.float64)
        counts, penalties = chance.random(300), np.array([0.5, 2.0, 8.0])
        model = fit_logistic(features, labels, counts, penalties)
        missed = counts * (model.probabilities(features) - labels)
        slope = features.T @ missed + penalties * model.weights
        assert_allclose([*slope, missed.sum()], 0.0, atol=1e-6)

    def test_labels_that_a_feature_tells_apart_give_finite_weights(self) -> None:
        features = np.array([[0.0]] * 100 + [[1.0]] * 100)
        model = fit(features, features[:, 0], 0.1)
        assert np.isfinite(model.weights).all()
        assert model.probabilities(np.array([[0.0]]))[0] < 0.05

    def test_a_constant_feature_weighs_nothing(self) -> None:
        features = np.array([[0.0, 0.0]] * 50 + [[1.0, 0.0]] * 50)
        labels = np.array([0.0] * 40 + [1.0] * 50 + [0.0] * 10)
        assert fit(features, labels, 0.1).weights[1] == 0

    def test_a_label_that_counts_twice_is_that_label_twice(self) -> None:
        features, labels = np.array([[0.0], [1.0], [2.0], [0.5]]), np.array([0.0, 1.0, 1.0, 1.0])
        once = fit_logistic(features, labels, np.ones(4), np.ones(1))
        heavy = fit_logistic(features, labels, np.array([5.0, 1.0, 1.0, 1.0]), np.ones(1))
        again = np.repeat(np.arange(4), [5, 1, 1, 1])
        assert_allclose(heavy.weights, fit(features[again], labels[again], 1.0).weights)
        assert heavy.probabilities(features)[0] < once.probabilities(features)[0]


class TestMeasures:
    def test_ndcg_is_one_when_the_good_stand_first(self) -> None:
        labels = np.array([0.0, 1.0, 0.0, 1.0])
        assert ndcg(labels, np.array([0.1, 0.9, 0.2, 0.8])) == 1
        by_hand = (1 / np.log2(3) + 1 / np.log2(5)) / (1 + 1 / np.log2(3))
        assert ndcg(labels, np.array([4.0, 3.0, 2.0, 1.0])) == pytest.approx(by_hand)

    def test_the_area_is_the_share_of_pairs_in_order(self) -> None:
        labels, whole = np.array([1.0, 0.0, 1.0, 0.0]), np.ones(4)
        assert area_under_curve(labels, np.array([4.0, 3.0, 2.0, 1.0]), whole) == 0.75
        assert area_under_curve(labels, np.ones(4), whole) == 0.5
        twice = np.array([1.0, 0.0, 1.0, 2.0])
        assert area_under_curve(labels, np.array([4.0, 3.0, 2.0, 1.0]), twice) == 1


def made_rows(queries: int, truth: float, *, per_query: int = 12) -> JudgedRows:
    """Return judged hits whose second feature decides as much as `truth` says."""
    chance = np.random.default_rng(queries)
    features = chance.normal(size=(queries * per_query, 2))
    labels = (chance.random(len(features)) < sigmoid(truth * features[:, 1])).astype(np.float64)
    number = np.repeat(np.arange(queries), per_query)
    return JudgedRows(features, labels, features[:, 0], number, number // 2)


class TestGain:
    def test_it_is_there_when_there_is_something_to_learn(self) -> None:
        rows = made_rows(60, truth=2.0)
        gain = measured_gain(rows, cross_fitted(rows, learned))
        assert gain.measure == "nDCG@10"
        assert gain.groups == 30
        assert gain.helps
        assert 0 < gain.low < gain.mean < gain.high

    def test_it_is_not_there_when_labels_are_noise(self) -> None:
        rows = made_rows(60, truth=0.0)
        gain = measured_gain(rows, cross_fitted(rows, learned))
        assert gain.low < 0 < gain.high
        assert not gain.helps

    def test_nobody_is_ranked_by_what_was_learned_from_it(self) -> None:
        rows = made_rows(20, truth=1.0)
        seen: list[set[int]] = []

        def noting(of: JudgedRows) -> LogisticModel:
            seen.append(set(of.groups.tolist()))
            return learned(of)

        cross_fitted(rows, noting)
        everybody = set(rows.groups.tolist())
        left_out = [everybody - of for of in seen]
        assert set().union(*left_out) == everybody
        assert sum(map(len, left_out)) == len(everybody)

    def test_labels_of_whole_runs_are_measured_across_them(self) -> None:
        rows = made_rows(40, truth=0.0)
        good_runs = (rows.groups % 2).astype(np.float64)
        features = rows.features + 3 * good_runs[:, None]
        told = JudgedRows(features, good_runs, rows.before, rows.queries, rows.groups)
        gain = measured_gain(told, cross_fitted(told, learned))
        assert gain.measure == "AUC"
        assert gain.after > 0.95
        assert gain.helps

    def test_it_is_told_with_its_interval(self) -> None:
        gain = Gain(measure="AUC", before=0.5, after=0.625, low=0.1, high=0.15, groups=1200)
        assert str(gain) == "+0.125 [+0.100, +0.150] AUC over 1,200 groups"
