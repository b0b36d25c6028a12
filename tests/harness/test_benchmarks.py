"""The measurements: their numbers are sane and about the right thing. No test looks at speed."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn, cast

import pytest

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.step_text import own_text, text_hash, tokens
from hybridagi_steps.search import formulas
from tests.benchmarks import (
    corpus,
    embed,
    lexical,
    quality,
    recorder,
    retrieval_tasks,
    scaling_process,
    search,
    varied,
    write,
)
from tests.benchmarks import walks as walk_counts
from tests.benchmarks.peers import NOT_INSTALLED
from tests.benchmarks.ranking import ndcg, recall, reciprocal_rank_fusion
from tests.benchmarks.retrieval_tasks import Question, Task, half_of_runs
from tests.benchmarks.timing import Sample, interleaved, ratio, typical

STEPS = shipped_steps()
BY_HASH = {text_hash(own_text(step)): step for step in STEPS}


def leaves(value: Any) -> list[float]:
    """Return every number in nested dicts."""
    if not isinstance(value, dict):
        return [float(value)]
    return [leaf for item in cast("dict[str, Any]", value).values() for leaf in leaves(item)]


class TestRanking:
    def test_the_best_ranking_scores_one(self) -> None:
        assert ndcg([1, 2, 9], {1, 2}, 10) == 1.0
        assert recall([1, 2, 9], {1, 2}, 10) == 1.0

    def test_a_later_place_is_worth_less(self) -> None:
        assert ndcg([9, 1], {1}, 10) == pytest.approx(1 / math.log2(3))

    def test_what_stands_below_the_cut_is_worth_nothing(self) -> None:
        assert ndcg([9, 8, 1], {1}, 2) == 0.0
        assert recall([9, 8, 1], {1}, 2) == 0.0

    def test_of_more_wanted_than_the_cut_the_cut_is_enough(self) -> None:
        assert recall([1, 2], set(range(10)), 2) == 1.0

    def test_fusion_prefers_what_both_rank_high(self) -> None:
        assert reciprocal_rank_fusion([[1, 2, 3], [2, 3, 1]])[0] == 2


class TestTiming:
    def test_rivals_take_turns(self) -> None:
        calls: list[str] = []
        rivals = {name: lambda name=name: calls.append(name) for name in "ab"}
        samples = interleaved(rivals, 2, warm_up=1)
        assert calls == ["a", "b"] * 3
        assert {name: len(found) for name, found in samples.items()} == {"a": 2, "b": 2}

    def test_the_ratio_is_the_median_over_pairs(self) -> None:
        ours = [Sample(2, 2), Sample(30, 2), Sample(4, 2)]
        theirs = [Sample(1, 1), Sample(10, 1), Sample(1, 1)]
        assert ratio(ours, theirs, "cpu") == 3

    def test_times_are_microseconds_per_part(self) -> None:
        assert typical([Sample(0.5, 0.25)], "wall", per=10) == 25_000


TASKS = [
    *retrieval_tasks.retrieval_tasks(STEPS, "tune"),
    *retrieval_tasks.retrieval_tasks(STEPS, "report"),
]


class TestShippedTasks:
    def test_every_question_has_an_answer_in_the_memory(self) -> None:
        questions = [question for task in TASKS for question in task.questions]
        assert len(questions) > 300
        assert all(question.wanted and question.wanted <= BY_HASH.keys() for question in questions)

    def test_a_question_never_quotes_its_answer(self) -> None:
        quoted = [
            (question, BY_HASH[wanted])
            for task in TASKS
            for question in task.questions
            for wanted in question.wanted
            if question.text in own_text(BY_HASH[wanted])
        ]
        assert quoted == []

    def test_a_state_is_answered_by_other_runs_only(self) -> None:
        for task in TASKS:
            for question in task.questions:
                runs = {BY_HASH[wanted].run_id for wanted in question.wanted}
                if task.name.startswith("task → steps"):
                    assert question.run_id in runs
                    assert not question.unseen
                else:
                    assert question.unseen
                    assert runs - {question.run_id}

    def test_the_halves_share_no_run_and_miss_none(self) -> None:
        runs = retrieval_tasks.shipped_tasks()
        tune, report = half_of_runs(runs, "tune"), half_of_runs(runs, "report")
        assert not tune & report
        assert tune | report == set(runs)
        assert abs(len(tune) - len(report)) <= 5


class TestCorpus:
    def test_a_number_always_gives_the_same_step(self) -> None:
        assert list(corpus.made_steps(3, first=40)) == list(corpus.made_steps(43))[40:]

    def test_steps_are_varied_linked_and_one_kilobyte(self) -> None:
        made = list(corpus.made_steps(200))
        assert len({own_text(step) for step in made}) == 200
        assert made[1].parent_id == made[0].id
        assert made[corpus.STEPS_PER_RUN].parent_id is None
        sizes = [len(corpus.payload(step.inputs, step.outputs)) for step in made]
        assert sorted(sizes)[100] == corpus.PAYLOAD_BYTES

    def test_one_step_in_a_hundred_belongs_to_a_user(self) -> None:
        made = corpus.made_steps(corpus.USERS * corpus.STEPS_PER_RUN)
        mine = [step for step in made if step.user_id == search.NARROW["user_id"]]
        assert len(mine) == corpus.STEPS_PER_RUN


class TestVariedSteps:
    def test_a_number_always_gives_the_same_step(self) -> None:
        made = list(varied.varied_steps(7_005))
        assert list(varied.varied_steps(30, first=6_975)) == made[6_975:]

    def test_runs_are_whole_and_one_is_very_deep(self) -> None:
        made = list(varied.varied_steps(7_100))
        for before, step in pairwise(made):
            same = step.run_id == before.run_id
            assert step.hop == (before.hop + 1 if same else 0)
            assert step.parent_id == (before.id if same else None)
            assert step.user_id == before.user_id or not same
        assert max(Counter(step.run_id for step in made).values()) == 2_000

    def test_they_are_as_uneven_as_real_ones(self) -> None:
        made = list(varied.varied_steps(5_000))
        said = [own_text(step) for step in made]
        assert len(set(said)) > 4_900
        users = Counter(step.user_id for step in made).most_common()
        assert users[0][1] > 5 * users[9][1] > 5 * users[-1][1] > 0
        sizes, real = (
            [len(corpus.payload(step.inputs, step.outputs)) for step in steps]
            for steps in (made, STEPS)
        )
        assert max(sizes) > 80_000 > max(real)
        assert 0.8 < fmean(sizes) / fmean(real) < 1.25

    def test_there_are_always_new_words(self) -> None:
        known: set[str] = set()
        for first in range(0, 5_000, 1_000):
            words = {
                w for s in varied.varied_steps(1_000, first=first) for w in tokens(own_text(s))
            }
            assert len(words - known) > 500
            known |= words

    def test_no_query_is_asked_twice(self) -> None:
        asked = list(islice(varied.varied_queries(), 500))
        assert len(set(asked)) == 500
        assert asked == list(islice(varied.varied_queries(), 500))
        assert max(len(query.split()) for query in asked) == 20

    def test_each_kind_of_filter_finds_steps_that_are_like_one(self) -> None:
        made = list(varied.varied_steps(scaling_process.LEAST))
        with StepMemory(":memory:", embedder="hashing") as memory:
            memory.add(made)
            for kind, where in scaling_process.FILTERS.items():
                [asked] = islice((w for s in made if None not in (w := where(s)).values()), 1)
                found = memory.find(where=asked, limit=1).steps
                assert bool(found) == (kind != "metadata key of no step"), kind


@pytest.fixture
def two_questions(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """Ask few questions, to be quick."""
    all_tasks = retrieval_tasks.retrieval_tasks(STEPS, "report")
    few = [replace(task, questions=task.questions[:2]) for task in (all_tasks[0], all_tasks[5])]

    def asked_of(steps: list[AgentStep], half: str) -> list[Task]:
        return few

    monkeypatch.setattr(quality, "retrieval_tasks", asked_of)
    return [question for task in few for question in task.questions]


class TestQuality:
    def test_values_are_shares_for_every_retriever_and_task(
        self, two_questions: list[Question]
    ) -> None:
        result = quality.measure(embedder="hashing", only="tasks")
        assert len(result["tasks"]) == 2
        assert quality.HYBRID in result["mean"]["ndcg"]
        values = leaves(result["mean"])
        for task in result["tasks"]:
            values += leaves(task["ndcg"]) + leaves(task["recall"])
        assert len(values) == 3 * 2 * 7
        assert all(0 <= value <= 1 for value in values)
        assert max(values) > 0

    def test_the_row_of_the_library_is_memory_search(
        self, two_questions: list[Question], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, str]] = []
        search_memory = StepMemory.search

        def spying(self: StepMemory, query: str, *args: Any, **options: Any) -> Any:
            asked.append((query, options.get("mode", "hybrid")))
            return search_memory(self, query, *args, **options)

        monkeypatch.setattr(StepMemory, "search", spying)
        quality.measure(embedder="hashing", only="tasks")
        assert {(question.text, "hybrid") for question in two_questions} <= set(asked)

    def test_the_grid_changes_the_pipeline_and_leaves_it_as_it_was(
        self, two_questions: list[Question], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quality, "WEIGHTS", (0.0, 1.0))
        monkeypatch.setattr(quality, "SHARES", (0.0, 0.9))
        before = dict(formulas.AIMS)
        result = quality.measure(embedder="hashing", tune=True, only="tasks")
        assert before == formulas.AIMS
        assert len({round(entry["mean"], 6) for entry in result["grid"]}) > 1


def test_write_compares_with_a_bare_insert() -> None:
    result = write.measure(
        appends=40, block=10, batches=1, embedder="hashing", peers="none", loops="5", held=30
    )
    assert list(result["ids"]["times"]) == ["random ids", "ids in order"]
    assert all(value > 0 for value in leaves(result["ids"]))
    assert all(value > 0 for value in leaves(result["batch_encoded"]))
    for found in (*result["append"].values(), result["batch"]):
        assert found["cpu_ratio"] > 1
        assert found["wall_ratio"] > 0
    assert result["read_run"]["cpu_ratio"] > 1
    assert result["disk"]["bytes_indexed"] > result["disk"]["bytes"] > result["disk"]["raw_bytes"]
    assert all(value > 0 for value in leaves(result["drain"]))


def test_search_measures_a_file_it_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MANY", 20)
    options: dict[str, Any] = {"sizes": "2100", "rounds": 8, "starts": 1, "embedder": "hashing"}
    options["peers"] = "none"
    result = search.measure(**options, workdir=str(tmp_path))
    built = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("steps-2100-*.db")}
    found = result["steps"]["2100"]
    assert found["index"]["everything"]["recall"] == 1.0
    assert found["index"]["filtered"]["recall"] == 1.0
    assert found["index"]["filtered"]["rows"] == 20
    assert all(value > 0 for value in leaves(found["search"]) + leaves(found["first_search"]))
    search.measure(**options, workdir=str(tmp_path))
    assert built == {
        file.name: file.stat().st_mtime_ns for file in tmp_path.glob("steps-2100-*.db")
    }


def test_words_agree_with_sqlite_where_weights_do() -> None:
    found = lexical.measure(sizes="300", rounds=5)["steps"]["300"]
    assert 0.5 < found["agreement"] <= 1
    assert found["ours_ms"] > 0
    assert found["fts5_ms"] > 0


def test_the_recorder_is_measured_on_steps_that_were_stored() -> None:
    result = recorder.measure(rounds=2, runs=1, peers="none")
    assert result["steps_per_run"] == 5
    assert list(result["times"]) == [
        *("alone", "no-op callback", "recorder, no store", "recorder"),
        "recorder, prompts kept",
    ]
    assert all(value > 0 for value in leaves(result["times"]))


def test_embedders_are_measured_on_real_texts_or_named_as_missing() -> None:
    found = embed.measure(rounds=2, embedders="hashing:64,sentence-transformers:none", texts=20)
    assert found["texts"] == 20
    assert found["embedders"]["hashing:64"]["dimension"] == 64
    assert found["embedders"]["hashing:64"]["texts_per_second"] > 0
    assert "missing" in found["embedders"]["sentence-transformers:none"]


def test_a_report_is_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    lexical.report(json_output=True, sizes="100", rounds=2)
    printed = json.loads(capsys.readouterr().out)
    assert printed["steps"]["100"]["agreement"] <= 1
    assert printed["machine"]
    lexical.report(sizes="100", rounds=2)
    assert "FTS5" in capsys.readouterr().out


def test_an_embedder_without_weights_is_named_and_no_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetched(name: str) -> NoReturn:
        raise AssertionError(f"{name} was to be fetched")

    def absent(name: str) -> None:
        assert name == "sentence_transformers"

    monkeypatch.setattr(embed, "resolve_embedder", fetched)
    monkeypatch.setattr(embed, "minilm_folder", lambda: None)
    monkeypatch.setattr(embed, "find_spec", absent)
    found = embed.measure(rounds=1, embedders="sentence-transformers", texts=5)["embedders"]
    assert found == {"sentence-transformers": {"missing": NOT_INSTALLED}}
    monkeypatch.setattr(embed, "find_spec", len)
    found = embed.measure(rounds=1, embedders="sentence-transformers", texts=5)["embedders"]
    assert found == {"sentence-transformers": {"missing": "its weights are not at hand"}}


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="0 rounds"):
        interleaved({"us": list}, 0)
    with pytest.raises(InvalidSettingError, match="2,000 steps"):
        search.measure(sizes="10000,500", peers="none")


def test_walks_count_what_is_called_and_add_is_the_shortest() -> None:
    walks = walk_counts.measure()["walks"]
    add = walks["memory.add"]
    for counts in walks.values():
        assert counts["files"] <= counts["functions"] <= counts["calls"]
        assert counts["files"] <= counts["changes"] <= counts["calls"]
        assert all(counts[name] >= add[name] for name in add)
