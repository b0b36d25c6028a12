"""LearnedRank: learns from use and from labels, explains itself, and stays where its memory is."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridagi_steps.errors import InvalidSettingError, LabelError, NotLearnedError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.programs.retriever import StepRetriever
from hybridagi_steps.recording import record, record_step
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.provenance import recalled_by
from hybridagi_steps.rerankers import LearnedRank, learned_rank
from hybridagi_steps.rerankers.judged_hits import JudgedHits
from hybridagi_steps.rerankers.learned_rank import LEAST_LABELS, features_of
from hybridagi_steps.rerankers.logistic import Gain
from hybridagi_steps.rerankers.rescoring import reranked

PRIVATE = "Alice Margrave"


def step(name: str, purpose: str, **fields: Any) -> AgentStep:
    kind = fields.pop("step_type", AgentStepType.Action)
    inputs = {"purpose": purpose, **fields.pop("inputs", {})}
    return AgentStep(id=name, step_type=kind, inputs=inputs, **fields)


def hit(name: str, score: float = 0.5, /, **parts: float) -> StepHit:
    return StepHit(step=step(name, name), score=score, why="words: x", parts=parts)


def judged(queries: int = 40, *, part: str = "meaning", seed: int = 0) -> list[JudgedHits]:
    """Return hits that came in an order of no worth; one part of their score knows better."""
    chance = np.random.default_rng(seed)
    found: list[JudgedHits] = []
    for number in range(queries):
        values = chance.random(10)
        hits = [
            hit(f"{number}-{place}", 1 - place / 20, **{part: float(value), "window": 0.5})
            for place, value in enumerate(values)
        ]
        likely = 1 / (1 + np.exp(-8 * (values - 0.5)))
        verdicts = (chance.random(10) < likely).tolist()
        found.append(JudgedHits(f"query {number}", hits, verdicts))
    return found


@pytest.fixture
def memory() -> Iterator[StepMemory]:
    """A memory of forty runs: steps that failed were of no use to who recalled them."""
    with StepMemory(":memory:", embedder="hashing") as made:
        fill(made)
        yield made


def fill(memory: StepMemory) -> None:
    """Store 40 topics with good and bad steps, and runs that recalled them."""
    for topic in range(40):
        memory.add([past(topic, n) for n in range(8)])
        for kind, score in (("ok", 1.0), ("error", 0.0)):
            run_id = f"{kind}-{topic}"
            recalled = [f"{topic}-{n}" for n in range(8) if (n % 2 == 0) == (kind == "ok")]
            call = step(
                f"call-{run_id}",
                "answers",
                step_type=AgentStepType.ProgramCall,
                inputs={"program": "P", "arguments": {"question": f"how to refund topic{topic}"}},
                run_id=run_id,
            )
            told = {
                "run_id": run_id,
                "program_id": f"call-{run_id}",
                "metadata": {"recalled": recalled},
            }
            first, then = (step(f"{n}-{run_id}", f"thought {n}", **told) for n in "ab")
            memory.add([call, first, then])
            memory.score(run_id, score)


def past(topic: int, number: int) -> AgentStep:
    failed = number % 2 == 1
    return step(
        f"{topic}-{number}",
        f"refund topic{topic} for {PRIVATE}, way {number}",
        status="error" if failed else "ok",
        outputs={"result": f"outcome {number}"},
        run_id=f"past-{topic}-{number}",
    )


class TestLearning:
    def test_the_part_that_knows_better_leads_and_the_gain_is_seen(self) -> None:
        rank = LearnedRank().learn(judged())
        assert next(iter(rank.weights)) == "meaning"
        assert rank.weights["meaning"] > 0
        assert rank.weights["window"] == pytest.approx(0)  # it never varied
        assert rank.gain.measure == "nDCG@10"
        assert rank.gain.helps

    def test_labels_of_noise_bring_no_gain(self) -> None:
        chance = np.random.default_rng(3)
        noise = [
            query._replace(verdicts=(chance.random(10) < 0.5).tolist()) for query in judged(60)
        ]
        assert not LearnedRank().learn(noise).gain.helps

    def test_an_order_that_is_worse_is_said_to_be(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        LearnedRank().learn(judged(60))
        assert caplog.messages == []
        worse = Gain(measure="nDCG@10", before=0.9, after=0.6, low=-0.4, high=-0.1, groups=60)

        def measured(*_: object) -> Gain:
            return worse

        monkeypatch.setattr(learned_rank, "measured_gain", measured)
        LearnedRank().learn(judged(60))
        assert "worse than the one before: gain" in caplog.text

    def test_the_order_that_came_is_kept_where_labels_agree_with_it(self) -> None:
        agreeing = [query._replace(verdicts=[n < 4 for n in range(10)]) for query in judged(60)]
        rank = LearnedRank().learn(agreeing)
        hits = agreeing[0].hits
        assert rank.gain.after == pytest.approx(1)
        assert [h.step.id for h in rank.rerank("q", hits)][:4] == [h.step.id for h in hits[:4]]

    def test_what_nobody_judged_is_not_learned_from(self) -> None:
        half = [
            query._replace(verdicts=[v if n < 5 else None for n, v in enumerate(query.verdicts)])
            for query in judged(60)
        ]
        known = LearnedRank().learn(half).learned
        assert known is not None
        assert known.good + known.bad == 300

    def test_a_query_with_thousands_of_labels_does_not_decide(self) -> None:
        hits = [hit(f"x{n}", 0.5, meaning=n / 2_000, window=0.5) for n in range(2_000)]
        loud = JudgedHits("loud", hits, [n < 1_000 for n in range(2_000)], "loud")
        assert LearnedRank().learn([*judged(), loud]).weights["meaning"] > 0

    def test_missing_parts_say_nothing(self) -> None:
        rank = LearnedRank().learn(judged())
        [bare] = rank.rerank("q", [hit("bare")])
        assert 0 < bare.score < 1

    def test_facts_are_about_the_hits_at_hand(self) -> None:
        hits = [
            StepHit(step=step("a", "a", run_id="r", outputs={"result": 1}), score=0.9),
            StepHit(step=step("b", "b", run_id="r", status="error"), score=0.5),
            StepHit(step=step("c", "c"), score=0.5),
        ]
        first, second, third = features_of(hits)
        assert (first["rank"], second["rank"]) == (1, 1 / 2)
        assert (first["same_run"], second["same_run"], third["same_run"]) == (0.5, 0.5, 0)
        assert (first["result"], second["result"], second["failed"]) == (1, 0, 1)
        assert first["newer"] == 0
        assert third["newer"] == 1


class TestRefusals:
    @pytest.mark.parametrize(("queries", "found"), [(0, "there are 0"), (19, "there are 190")])
    def test_fewer_than_two_hundred(self, queries: int, found: str) -> None:
        with pytest.raises(LabelError, match=found) as caught:
            LearnedRank().learn(judged(queries))
        assert caught.value.good + caught.value.bad == queries * 10
        assert f"at least {LEAST_LABELS} labels" in str(caught.value)

    @pytest.mark.parametrize("verdict", [True, False])
    def test_one_kind_only(self, verdict: bool) -> None:
        same = [query._replace(verdicts=[verdict] * 10) for query in judged()]
        with pytest.raises(LabelError, match="good and bad ones") as caught:
            LearnedRank().learn(same)
        assert {caught.value.good, caught.value.bad} == {400, 0}

    def test_one_query_only(self) -> None:
        one = [query._replace(group="one") for query in judged()]
        with pytest.raises(LabelError, match="several"):
            LearnedRank().learn(one)

    def test_a_memory_without_use_names_the_way_out(self) -> None:
        with StepMemory(":memory:", embedder="hashing") as empty:
            with pytest.raises(LabelError, match=re.escape("memory.score(run_id, 0.0)")):
                LearnedRank().fit(empty)
            with pytest.raises(NotLearnedError):
                LearnedRank.of(empty)

    def test_labels_of_steps_that_no_search_finds_are_counted(self, memory: StepMemory) -> None:
        labels = [("refund topic1", f"nowhere-{n}", n % 2) for n in range(300)]
        with pytest.raises(LabelError, match="300 more name steps that are no hit") as caught:
            LearnedRank().fit(memory, labels)
        assert caught.value.unusable == 300

    @pytest.mark.parametrize(
        ("label", "named"),
        [
            (("q", "s"), "label 2 is no"),
            (("q", "s", 0.5), "label 2: label: "),
            (("", "s", 1), "label 2: query: "),
            ((3, "s", 1), "label 2: query: "),
            (("q", "known", 0), "good and bad for the same query"),
            (7, "label 2 is no"),
            ({"query": "q", "step": "s", "label": 2}, "label 2: label: "),
        ],
    )
    def test_what_is_no_label_is_named(self, memory: StepMemory, label: Any, named: str) -> None:
        with pytest.raises(LabelError, match=re.escape(named)):
            LearnedRank().fit(memory, [("q", "known", 1), label])

    def test_what_holds_no_labels_is_refused(self, memory: StepMemory) -> None:
        with pytest.raises(LabelError, match="not 42"):
            LearnedRank().fit(memory, 42)  # pyright: ignore[reportArgumentType]

    def test_settings_that_mean_nothing(self, memory: StepMemory) -> None:
        for wrong in (0, -1, float("nan"), float("inf"), "much", True):
            with pytest.raises(InvalidSettingError, match="l2"):
                LearnedRank(l2=wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidSettingError, match="pool"):
            LearnedRank(pool=1)
        with pytest.raises(InvalidSettingError, match="good_from"):
            LearnedRank().fit(memory, good_from="high")  # pyright: ignore[reportArgumentType]

    def test_nothing_learned_orders_nothing(self, memory: StepMemory) -> None:
        rank = LearnedRank()
        for ask in (
            lambda: rank.weights,
            lambda: rank.gain,
            lambda: rank.rerank("q", []),
            lambda: rank.save(memory),
        ):
            with pytest.raises(NotLearnedError, match="nothing yet"):
                ask()


class TestUse:
    def test_what_good_runs_recalled_is_good_and_bad_ones_bad(self, memory: StepMemory) -> None:
        rank = LearnedRank().fit(memory)
        known = rank.learned
        assert known is not None
        assert (known.good, known.bad, known.unusable) == (160, 160, 0)
        assert (known.source, known.queries) == ("use", 80)
        assert rank.weights["failed"] < 0
        assert rank.gain.measure == "AUC"
        assert rank.gain.helps
        hits = memory.search("refund topic7", 8)
        best = rank.rerank("refund topic7", hits)
        assert [h.step.status for h in best[:3]] == ["ok"] * 3

    def test_only_the_step_that_recalled_first_asked(self, memory: StepMemory) -> None:
        known = LearnedRank().fit(memory).learned  # `b` of each run carries on what `a` recalled
        assert known is not None
        assert known.queries == 80

    def test_good_from_says_what_went_well(self, memory: StepMemory) -> None:
        with pytest.raises(LabelError) as caught:
            LearnedRank().fit(memory, good_from=2.0)
        assert (caught.value.good, caught.value.bad) == (0, 320)

    def test_whose_runs_are_learned_from_can_be_said(self, memory: StepMemory) -> None:
        with pytest.raises(LabelError) as caught:
            LearnedRank().fit(memory, where={"run_id": "ok-3"})
        assert (caught.value.good, caught.value.bad) == (4, 0)

    def test_trials_and_revoked_sources_teach_nothing(self, memory: StepMemory) -> None:
        memory.update(
            [s.model_copy(update={"scope": "evaluate:x"}) for s in memory.run_steps("ok-0")]
        )
        memory.revoke({"run_id": "error-1"})
        known = LearnedRank().fit(memory).learned
        assert known is not None
        assert (known.good, known.bad) == (156, 156)

    def test_a_step_that_was_done_again_since_counts_as_its_twin(self, memory: StepMemory) -> None:
        for topic in range(40):
            again = [past(topic, n).model_copy(update={"id": f"again-{topic}-{n}"}) for n in (0, 1)]
            memory.add(again)
        known = LearnedRank().fit(memory).learned
        assert known is not None
        assert (known.good, known.bad, known.unusable) == (160, 160, 0)

    def test_asking_again_is_not_recalling(self, memory: StepMemory) -> None:
        @record_step(kind="action", purpose="act")
        def act() -> str:
            return "done"

        def recalled(ask: Callable[[], object]) -> list[str]:
            with record(memory) as run:
                ask()
                act()
            [made] = memory.run_steps(run.id)
            return recalled_by(made.metadata)

        assert recalled(lambda: memory.search("refund topic7"))
        assert not recalled(lambda: LearnedRank().fit(memory))


class TestLabels:
    @pytest.fixture
    def labels(self) -> list[tuple[str, str, int]]:
        return [
            (f"refund topic{topic}", f"{topic}-{n}", 1 - n % 2)
            for topic in range(40)
            for n in range(8)
        ]

    def test_tuples_teach(self, memory: StepMemory, labels: list[tuple[str, str, int]]) -> None:
        rank = LearnedRank().fit(memory, labels)
        assert rank.weights["failed"] < 0
        assert rank.gain.measure == "nDCG@10"
        assert rank.gain.helps

    def test_a_file_teaches_the_same(
        self, memory: StepMemory, labels: list[tuple[str, str, int]], tmp_path: Path
    ) -> None:
        file = tmp_path / "labels.jsonl"
        keys = ("query", "step", "label")
        lines = [json.dumps(dict(zip(keys, label, strict=True))) for label in labels]
        file.write_text("\n".join(lines) + "\n\n")
        from_file, from_tuples = LearnedRank().fit(memory, file), LearnedRank().fit(memory, labels)
        assert from_file.weights == from_tuples.weights
        assert LearnedRank().fit(memory, str(file)).weights == from_file.weights

    @pytest.mark.parametrize(
        ("line", "named"),
        [
            ("{", "labels.jsonl, line 2: "),
            ('{"query": "q", "step": "s"}', "labels.jsonl, line 2: label: Field required"),
            ('{"query": "q", "step": "s", "label": 2}', "a label is 1 (or true)"),
            ('{"query": "q", "step": "s", "label": 1, "more": 1}', "line 2: more: "),
        ],
    )
    def test_a_bad_line_is_named(
        self, memory: StepMemory, tmp_path: Path, line: str, named: str
    ) -> None:
        file = tmp_path / "labels.jsonl"
        file.write_text('{"query": "q", "step": "s", "label": true}\n' + line)
        with pytest.raises(LabelError, match=re.escape(named)):
            LearnedRank().fit(memory, file)

    def test_a_file_that_is_not_there_is_named(self, memory: StepMemory, tmp_path: Path) -> None:
        with pytest.raises(LabelError, match=r"cannot read .*none.jsonl: No such file"):
            LearnedRank().fit(memory, tmp_path / "none.jsonl")


class TestKeeping:
    def test_the_memory_keeps_it_in_its_file(self, tmp_path: Path) -> None:
        with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
            fill(memory)
            weights = LearnedRank().fit(memory).weights
        source = sqlite3.connect(tmp_path / "steps.db")
        with sqlite3.connect(tmp_path / "copy.db") as copied:
            source.backup(copied)
        source.close()
        copied.close()
        for name in ("steps.db", "copy.db"):
            with StepMemory(tmp_path / name) as again:
                assert LearnedRank.of(again).weights == weights
                assert again.verify() == []

    def test_another_namespace_knows_nothing_of_it(self, tmp_path: Path) -> None:
        file = tmp_path / "steps.db"
        with (
            StepMemory(file, embedder="hashing") as memory,
            StepMemory(file, namespace="other", embedder="hashing") as other,
        ):
            fill(memory)
            LearnedRank().fit(memory)
            other.clear()
            with pytest.raises(NotLearnedError):
                LearnedRank.of(other)
            assert LearnedRank.of(memory).weights

    def test_it_is_kept_only_when_asked(self, memory: StepMemory) -> None:
        rank = LearnedRank().fit(memory, save=False)
        with pytest.raises(NotLearnedError, match=r"LearnedRank\(\).fit\(memory\)"):
            LearnedRank.of(memory)
        rank.save(memory)
        assert LearnedRank.of(memory).gain == rank.gain
        LearnedRank.forget(memory)
        with pytest.raises(NotLearnedError):
            LearnedRank.of(memory)

    def test_a_search_is_the_same_before_and_after(self, memory: StepMemory) -> None:
        def found() -> list[tuple[object, float]]:
            return [(h.step.id, h.score) for h in memory.search("refund topic7", 20)]

        before = found()
        LearnedRank().fit(memory)
        assert found() == before

    @pytest.mark.parametrize("taking", ["purge", "clear", "revoke"])
    def test_what_takes_steps_away_forgets_it(self, memory: StepMemory, taking: str) -> None:
        LearnedRank().fit(memory)
        memory.revoke({"run_id": "past-1-1"}, dry_run=True)
        assert LearnedRank.of(memory).weights
        where = () if taking == "clear" else ({"run_id": "past-1-1"},)
        getattr(memory, taking)(*where)
        with pytest.raises(NotLearnedError):
            LearnedRank.of(memory)

    def test_no_text_is_in_what_is_kept(self, memory: StepMemory) -> None:
        LearnedRank().fit(memory)
        kept = memory.learned("learned_rank") or ""
        assert kept
        for text in (PRIVATE, "refund", "topic", "ok-3", "way"):
            assert text not in kept

    def test_what_another_version_kept_is_not_guessed_at(self, memory: StepMemory) -> None:
        memory.keep_learned("learned_rank", '{"format": 2}')
        with pytest.raises(NotLearnedError, match="fit it anew"):
            LearnedRank.of(memory)


class TestAsAReranker:
    def test_a_retriever_uses_it_where_it_is_given(self, memory: StepMemory) -> None:
        rank = LearnedRank().fit(memory)
        found = StepRetriever(memory, k=4, reranker=rank)("refund topic7")
        assert {s.status for s in found.steps} == {"ok"}

    def test_it_says_what_a_place_comes_from(self, memory: StepMemory) -> None:
        hits = memory.search("refund topic7", 8)
        best = reranked(LearnedRank().fit(memory), "refund topic7", hits)
        assert all(re.search(r"learned 0\.\d\d: failed [+-]\d", h.why) for h in best)
        assert best[0].score >= best[-1].score
        assert [h.score for h in hits] == [h.score for h in memory.search("refund topic7", 8)]

    def test_it_travels(self, memory: StepMemory) -> None:
        rank = LearnedRank().fit(memory)
        hits = memory.search("refund topic7", 8)
        order = [h.step.id for h in rank.rerank("q", hits)]
        for other in (copy.deepcopy(rank), pickle.loads(pickle.dumps(rank))):
            assert [h.step.id for h in other.rerank("q", hits)] == order

    def test_it_shows_itself(self, memory: StepMemory) -> None:
        assert repr(LearnedRank()) == "LearnedRank(nothing learned)"
        assert "nothing learned" in LearnedRank()._repr_html_()  # pyright: ignore[reportPrivateUsage]
        rank = LearnedRank().fit(memory)
        assert re.fullmatch(
            r"LearnedRank\(320 labels of 80 queries by use, gain \+0\.\d+ \[.*\] AUC over 80 "
            r"groups; failed -\d.*\)",
            repr(rank),
        )
        shown = rank._repr_html_()  # pyright: ignore[reportPrivateUsage]
        assert "160 good and 160 bad" in shown
        assert "it ended with an error" in shown
