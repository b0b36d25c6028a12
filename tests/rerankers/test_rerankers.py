"""Rerankers: what each does with hits, and what all of them promise."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps import rerankers
from hybridagi_steps.errors import InvalidQueryError, MissingExtraError, RerankerError
from hybridagi_steps.protocols import Reranker
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.records.store_values import FloatMatrix
from hybridagi_steps.rerankers import (
    CrossEncoder,
    MaximalMarginalRelevance,
    Outcome,
    Recency,
    ReciprocalRank,
)

NOW = datetime(2025, 6, 1, tzinfo=UTC)


def hit(name: str, score: float = 0.5, **fields: Any) -> StepHit:
    measured = {key: fields.pop(key) for key in ("dense_score", "lexical_score") if key in fields}
    step = AgentStep(
        id=name,
        step_type=AgentStepType.Action,
        inputs={"purpose": fields.pop("purpose", name)},
        **fields,
    )
    return StepHit(step=step, score=score, why="words: refund", **measured)


def names(hits: Sequence[StepHit]) -> list[str]:
    return [str(each.step.id) for each in hits]


class CountsSharedLetters:
    """A pair model: how many letters the two texts share."""

    calls = 0

    def predict(self, sentences: list[tuple[str, str]]) -> list[float]:
        self.calls += 1
        return [float(len(set(query) & set(text))) for query, text in sentences]


def all_rerankers() -> list[Reranker]:
    return [
        ReciprocalRank(),
        MaximalMarginalRelevance(),
        Recency(half_life_days=7, now=lambda: NOW),
        Outcome(),
        CrossEncoder(CountsSharedLetters()),
    ]


each = pytest.mark.parametrize("reranker", all_rerankers(), ids=lambda one: type(one).__name__)
some_hits = st.lists(
    st.builds(
        hit,
        st.uuids().map(str),
        st.floats(0, 1),
        purpose=st.text("ab c", max_size=8),
        dense_score=st.none() | st.floats(-1, 1),
        lexical_score=st.none() | st.floats(0, 30),
        status=st.sampled_from(["ok", "error", "partial", "cancelled"]),
        created_at=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001
        vector=st.none() | st.lists(st.floats(-1, 1), min_size=2, max_size=2),
    ),
    max_size=6,
)


@each
@given(hits=some_hits)
def test_nothing_is_lost_changed_or_scored_out_of_range(
    reranker: Reranker, hits: list[StepHit]
) -> None:
    before = [each.model_dump_json() for each in hits]
    ranked = reranker.rerank("a b", hits)
    assert sorted(names(ranked)) == sorted(names(hits))
    scores = [each.score for each in ranked]
    assert all(0 <= score <= 1 for score in scores)
    assert all(earlier >= later - 1e-9 for earlier, later in pairwise(scores))
    assert all(each.why.startswith("words: refund; ") for each in ranked)
    assert [each.model_dump_json() for each in hits] == before


@each
def test_equal_hits_keep_their_order(reranker: Reranker) -> None:
    same = [hit(name, 0.5, purpose="same", created_at=NOW) for name in "dbca"]
    assert names(reranker.rerank("query", same)) == ["d", "b", "c", "a"]


@each
def test_no_hits_no_answer(reranker: Reranker) -> None:
    assert isinstance(reranker, Reranker)
    assert reranker.rerank("query", []) == []


@each
def test_a_copy_works_like_the_original(reranker: Reranker) -> None:
    hits = [hit("a", 0.2, dense_score=0.1), hit("b", 0.9, dense_score=0.4)]
    assert names(copy.deepcopy(reranker).rerank("q", hits)) == names(reranker.rerank("q", hits))


def test_the_names_of_the_package() -> None:
    assert {*rerankers.__all__} <= {*dir(rerankers)}
    for name in rerankers.__all__:
        assert getattr(rerankers, name).__name__ == name
    missing: Any = "Oracle"
    with pytest.raises(AttributeError, match="Oracle"):
        getattr(rerankers, missing)


# -- reciprocal rank


def test_reciprocal_rank_fuses_two_orders() -> None:
    hits = [
        hit("words", dense_score=0.1, lexical_score=9.0),
        hit("both", dense_score=0.8, lexical_score=8.0),
        hit("meaning", dense_score=0.9),
    ]
    ranked = ReciprocalRank(k=60).rerank("q", hits)
    assert names(ranked) == ["words", "both", "meaning"]
    assert ranked[0].score == pytest.approx((1 / 61 + 1 / 63) / (2 / 61))
    assert ranked[1].score == pytest.approx((1 / 62 + 1 / 62) / (2 / 61))
    assert ranked[2].score == pytest.approx((1 / 61) / (2 / 61))
    assert "dense 2, lexical 2" in ranked[1].why


def test_the_leader_of_both_orders_scores_one() -> None:
    ranked = ReciprocalRank().rerank("q", [hit("a", dense_score=0.9, lexical_score=2.0)])
    assert ranked[0].score == 1


def test_without_either_order_the_scores_decide() -> None:
    ranked = ReciprocalRank().rerank("q", [hit("low", 0.1), hit("high", 0.9)])
    assert names(ranked) == ["high", "low"]


def test_a_step_without_a_common_word_is_in_no_lexical_order() -> None:
    hits = [hit("none", lexical_score=0.0), hit("some", lexical_score=0.1)]
    ranked = ReciprocalRank().rerank("q", hits)
    assert names(ranked) == ["some", "none"]
    assert ranked[1].score == 0


# -- maximal marginal relevance


def test_a_near_copy_is_put_behind_something_different() -> None:
    hits = [
        hit("first", 0.9, purpose="refund the order of the customer"),
        hit("copy", 0.88, purpose="refund the order of the customer"),
        hit("other", 0.7, purpose="cancel a flight"),
    ]
    assert names(MaximalMarginalRelevance(0.5).rerank("q", hits)) == ["first", "other", "copy"]
    assert names(MaximalMarginalRelevance(1.0).rerank("q", hits)) == ["first", "copy", "other"]


def test_likeness_is_taken_from_the_steps_vectors() -> None:
    hits = [
        hit("first", 0.9, vector=[1.0, 0.0]),
        hit("copy", 0.88, vector=[2.0, 0.0]),
        hit("other", 0.7, vector=[0.0, 1.0]),
    ]
    ranked = MaximalMarginalRelevance(0.5).rerank("q", hits)
    assert names(ranked) == ["first", "other", "copy"]
    assert ranked[2].score == pytest.approx(0.5 * 0.88)
    assert "vectors" in ranked[0].why


class EmbedsByFirstLetter:
    """An embedder whose vectors say only which letter a text starts with."""

    model_id = "first-letter"
    dimension = 26

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        return np.eye(26, dtype=np.float32)[[ord(text[0]) - ord("a") for text in texts]]

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        return self.embed_documents(texts)


def test_an_embedder_stands_in_for_missing_vectors() -> None:
    hits = [hit("apple", 0.9), hit("ant", 0.88), hit("bee", 0.7)]
    reranker = MaximalMarginalRelevance(0.5, embedder=EmbedsByFirstLetter())
    assert names(reranker.rerank("q", hits)) == ["apple", "bee", "ant"]
    assert names(MaximalMarginalRelevance(0.5).rerank("q", hits)) == ["apple", "ant", "bee"]


def test_the_greedy_choice_is_the_one_of_the_paper() -> None:
    rng = np.random.default_rng(7)
    vectors = np.abs(rng.normal(size=(12, 4)))
    hits = [hit(str(n), float(rng.random()), vector=list(v)) for n, v in enumerate(vectors)]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    left, picked = list(range(12)), list[int]()
    while left:
        values = {
            n: 0.3 * hits[n].score
            - 0.7 * max((float(units[n] @ units[other]) for other in picked), default=0.0)
            for n in left
        }
        best = max(left, key=lambda n: values[n])
        picked.append(best)
        left.remove(best)
    assert names(MaximalMarginalRelevance(0.3).rerank("q", hits)) == [str(n) for n in picked]


# -- recency


def test_freshness_halves_every_half_life() -> None:
    reranker = Recency(half_life_days=7, weight=1.0, now=lambda: NOW)
    ages = {"today": 0, "week": 7, "fortnight": 14}
    hits = [hit(name, 0.5, created_at=NOW - timedelta(days=age)) for name, age in ages.items()]
    ranked = reranker.rerank("q", hits[::-1])
    assert names(ranked) == ["today", "week", "fortnight"]
    assert [each.score for each in ranked] == pytest.approx([1.0, 0.5, 0.25])


def test_a_step_from_the_future_is_as_fresh_as_can_be() -> None:
    reranker = Recency(half_life_seconds=60, weight=1.0, now=lambda: NOW)
    ranked = reranker.rerank("q", [hit("later", created_at=NOW + timedelta(days=1))])
    assert ranked[0].score == 1


def test_recency_outweighs_only_by_its_weight() -> None:
    old_and_good = hit("good", 0.9, created_at=NOW - timedelta(days=100))
    new_and_poor = hit("new", 0.5, created_at=NOW)
    light = Recency(half_life_days=7, weight=0.2, now=lambda: NOW)
    heavy = Recency(half_life_days=7, weight=0.6, now=lambda: NOW)
    assert names(light.rerank("q", [new_and_poor, old_and_good])) == ["good", "new"]
    assert names(heavy.rerank("q", [old_and_good, new_and_poor])) == ["new", "good"]


# -- outcome


def test_what_worked_goes_before_what_failed() -> None:
    hits = [
        hit("failed", 0.8, status="error"),
        hit("cancelled", 0.8, status="cancelled"),
        hit("partial", 0.8, status="partial"),
        hit("poor", 0.8),
        hit("fine", 0.8),
        hit("praised", 0.8),
    ]
    hits[3].step.score = 0.0
    hits[5].step.score = 5.0
    ranked = Outcome(weight=0.5).rerank("q", hits)
    assert names(ranked) == ["praised", "fine", "partial", "poor", "cancelled", "failed"]
    assert ranked[0].score == pytest.approx(0.9)
    assert ranked[-1].score == pytest.approx(0.4 + 0.5 * 0.25)
    assert "outcome ok, score 5" in ranked[0].why


# -- cross-encoder


def test_a_model_reads_query_and_step_together() -> None:
    ranked = CrossEncoder(CountsSharedLetters()).rerank("refund", [hit("xyz"), hit("refund")])
    assert names(ranked) == ["refund", "xyz"]
    assert 0.5 <= ranked[1].score < ranked[0].score <= 1


def test_scores_between_nought_and_one_stay_as_they_are() -> None:
    class Probabilities:
        def predict(self, sentences: list[tuple[str, str]]) -> Any:
            return np.array([[0.25], [0.75]], dtype=np.float32)

    ranked = CrossEncoder(Probabilities()).rerank("q", [hit("a"), hit("b")])
    assert [each.score for each in ranked] == [0.75, 0.25]


@pytest.mark.parametrize(
    "scores", [[1.0], [1.0, float("nan")], [[0.1, 0.2], [0.3, 0.4]], ["a", "b"], None]
)
def test_a_model_that_gives_no_score_is_named(scores: Any) -> None:
    class Broken:
        def predict(self, sentences: list[tuple[str, str]]) -> Any:
            return scores

    with pytest.raises(RerankerError, match="cross-encoder"):
        CrossEncoder(Broken()).rerank("q", [hit("a"), hit("b")])


def test_a_model_is_shared_by_copies() -> None:
    model = CountsSharedLetters()
    copy.deepcopy(CrossEncoder(model)).rerank("q", [hit("a")])
    assert model.calls == 1


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"hybridagi-steps\[sentence-transformers\]"):
        CrossEncoder().rerank("q", [hit("a")])


def test_a_named_model_is_loaded_once_on_first_use_and_anew_after_pickling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[tuple[str, dict[str, Any]]] = []

    class Loaded(CountsSharedLetters):
        def __init__(self, name: str, **arguments: Any) -> None:
            loaded.append((name, arguments))

    package: Any = ModuleType("sentence_transformers")
    package.CrossEncoder = Loaded
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    reranker = CrossEncoder("some/model", device="cpu")
    assert loaded == []
    for _ in range(2):
        assert names(reranker.rerank("b", [hit("a"), hit("b")])) == ["b", "a"]
    assert loaded == [("some/model", {"device": "cpu"})]
    again: CrossEncoder = pickle.loads(pickle.dumps(reranker))
    again.rerank("b", [hit("a")])
    assert len(loaded) == 2


def test_a_real_model(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    hits = [hit("refund the order"), hit("book a flight")]
    words = sorted({word for each in hits for word in own_text(each.step).split()})
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=5 + len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    transformers.BertTokenizerFast(vocab_file=str(vocabulary)).save_pretrained(tmp_path)
    model = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    expected = model.predict([("refund", own_text(each.step)) for each in hits])
    ranked = CrossEncoder(str(tmp_path), device="cpu").rerank("refund", hits)
    best = hits[int(np.argmax(expected))]
    assert ranked[0].step == best.step


# -- arguments


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReciprocalRank(k=0),
        lambda: ReciprocalRank(k=float("nan")),
        lambda: MaximalMarginalRelevance(1.1),
        lambda: MaximalMarginalRelevance(float("nan")),
        lambda: Recency(half_life_seconds=0),
        lambda: Recency(60, half_life_days=1),
        lambda: Recency(weight=-0.1),
        lambda: Outcome(weight=2),
        lambda: CrossEncoder(3),  # pyright: ignore[reportArgumentType]
        lambda: CrossEncoder(CountsSharedLetters),  # pyright: ignore[reportArgumentType]
    ],
)
def test_arguments_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(InvalidQueryError):
        make()
