"""The measurement of quality: intervals cover runs, evidence is what was really needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from tests.benchmarks import quality, quality_evidence
from tests.benchmarks.quality_evidence import (
    BLOT,
    BUILDER,
    LAST,
    PLAIN,
    EvidenceQuestion,
    evidence_questions,
    evidence_recall,
    plain,
    side_by_side,
)
from tests.benchmarks.ranking import (
    Interval,
    by_run,
    interval,
    interval_text,
    paired,
    reciprocal_rank,
)
from tests.benchmarks.retrieval_tasks import half_of_runs, shipped_tasks


def act(name: str, result: str, **inputs: Any) -> AgentStep:
    kind = AgentStepType.Action
    return AgentStep(id=name, step_type=kind, run_id="r", inputs=inputs, outputs={"result": result})


def _width(found: Interval) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


class TestIntervals:
    def test_the_mean_is_over_runs_not_questions(self) -> None:
        assert by_run({"long": [0.0] * 9, "short": [1.0]}) == 0.5

    def test_an_interval_holds_the_mean_and_narrows_with_runs(self) -> None:
        few = interval({str(n): [n % 2] for n in range(4)})
        many = interval({str(n): [n % 2] for n in range(400)})
        assert (few.low or 0.0) <= 0.5 <= (few.high or 0.0)
        assert _width(many) < _width(few) / 4
        assert _width(many) == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.15)

    def test_questions_of_one_run_do_not_narrow_it(self) -> None:
        once = interval({str(n): [n % 2] for n in range(10)})
        often = interval({str(n): [n % 2] * 50 for n in range(10)})
        assert once == often

    def test_one_run_has_no_interval(self) -> None:
        assert interval({"r": [0.25, 0.75]}) == (0.5, None, None)
        assert interval_text(interval({"r": [0.5]})._asdict()) == ".500"

    def test_differences_are_taken_question_by_question(self) -> None:
        assert paired({"r": [1.0, 0.5]}, {"r": [0.5, 0.5]}) == {"r": [0.5, 0.0]}
        shown = interval_text({"mean": -0.25, "low": -0.5, "high": 0.0}, signed=True)
        assert shown == "-.250 [-.500, +.000]"

    def test_the_reciprocal_rank_ends_at_the_cut(self) -> None:
        assert reciprocal_rank([4, 5, 6], {6, 5}, 10) == 1 / 2
        assert reciprocal_rank([4, 5, 6], {6}, 2) == 0


class TestEvidence:
    def test_it_is_the_step_whose_result_named_a_value_first(self) -> None:
        steps = side_by_side(
            [
                act("a", "Ann has RES-77 and RES-78", purpose="look Ann up", tool="user"),
                act("b", '{"RES-77": 1200}', purpose="all prices", tool="price"),
                act("c", "done", purpose="", tool="cancel", arguments={"id": "RES-77"}),
                act("d", "done", tool="pay", arguments={"id": "RES-77", "amount": 1200}),
                act("e", "done", tool="note", arguments={"text": "Ann Smith"}),
            ]
        )
        asked = evidence_questions(steps, {"r": "Ann Smith cancels"}, ["r"], blotted=False)
        assert [question.evidence for question in asked] == [
            {"a": {plain("RES-77")}},  # of c; b was asked for nothing, and says what a tool found
            {"a": {plain("RES-77")}, "b": {plain("1200")}},
        ]
        assert "RES-77" in asked[0].text

    def test_an_input_that_named_it_takes_it_away(self) -> None:
        steps = side_by_side(
            [
                act("a", "found RES-77", tool="find", arguments={"id": "RES-77"}),
                act("b", "done", tool="cancel", arguments={"id": "RES-77"}),
            ]
        )
        assert evidence_questions(steps, {"r": ""}, ["r"], blotted=False) == []

    def test_a_blotted_question_lacks_the_values_and_nothing_else(self) -> None:
        steps = side_by_side(
            [
                act("a", 'the flight is "HAT 042"', tool="find"),
                act("b", "ok", purpose="Book hat-042 now", tool="book", arguments={"f": "HAT 042"}),
            ]
        )
        [asked] = evidence_questions(steps, {"r": ""}, ["r"], blotted=True)
        assert asked.text == f'Book {BLOT} now\nbook\n{{"f": "{BLOT}"}}'

    def test_nothing_of_the_future_is_seen(self) -> None:
        tasks = shipped_tasks()
        steps = side_by_side(shipped_steps())
        age = {id_text(step.id): step.created_at for step in steps}
        asked = evidence_questions(steps, tasks, half_of_runs(tasks, "tune"), blotted=True)
        assert len(asked) > 80
        for question in asked:
            assert question.until is not None
            assert all(age[step_id] < question.until for step_id in question.evidence)

    def test_a_condensed_step_without_its_value_does_not_count(self) -> None:
        steps = side_by_side([act("a", "the code is RES-77", purpose="find the code", tool="t")])
        with StepMemory(":memory:", embedder="hashing") as memory:
            memory.add(steps)
            there, lost = (
                evidence_recall(
                    memory,
                    steps,
                    [EvidenceQuestion("what was the code?", "r", {"a": frozenset({plain(value)})})],
                )["budgets"]["1000"]["recall"]
                for value in ("RES-77", "RES-99")
            )
        for way in (BUILDER, PLAIN, LAST):
            assert there[way]["mean"] == 1
            assert lost[way]["mean"] == 0

    def test_rivals_keep_to_the_budget_and_the_biggest_holds_most(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quality_evidence, "BUDGETS", (500, 3_000))
        tasks = shipped_tasks()
        steps = [step for step in side_by_side(shipped_steps()) if step.tool != "respond"]
        runs = [run for run in sorted(half_of_runs(tasks, "report")) if run.startswith("tau")]
        asked = evidence_questions(steps, tasks, runs, blotted=False)
        with StepMemory(":memory:", embedder="hashing") as memory:
            memory.add([step for step in steps if str(step.run_id).startswith("tau")])
            found = evidence_recall(memory, steps, asked)
        small, large = found["budgets"]["500"], found["budgets"]["3000"]
        for way in (BUILDER, PLAIN, LAST):
            assert small["tokens"][way] <= 500
            assert large["tokens"][way] <= 3_000
            assert small["recall"][way]["mean"] <= large["recall"][way]["mean"]
        assert large["recall"][PLAIN]["mean"] > 0


class TestReport:
    def test_only_some_parts_are_measured(self, capsys: pytest.CaptureFixture[str]) -> None:
        quality.report(json_output=True, embedder="hashing", only="cost")
        result = json.loads(capsys.readouterr().out)
        assert "tasks" not in result
        assert "evidence" not in result
        assert {"words alone", "both", "embedding of the query"} <= set(result["cost"])
        assert all(cost > 0 for cost in result["cost"].values())

    def test_an_unknown_part_is_named(self) -> None:
        with pytest.raises(InvalidSettingError, match="no part 'speed'; there are tasks"):
            quality.measure(only="speed")
