"""The measurement of quality: intervals cover runs, evidence is what was really needed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps.errors import ExchangeError, InvalidSettingError
from hybridagi_steps.exchange.exporter import export_file
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.message import MessageRole
from tests.benchmarks import quality, quality_cost, quality_dialogue, quality_evidence
from tests.benchmarks.quality_dialogue import (
    AS_STEPS,
    IMPORTED,
    Turn,
    TurnQuestion,
    chat_file,
    dialogue_quality,
    mixed_memory,
    shipped_turns,
    turn_questions,
)
from tests.benchmarks.quality_evidence import (
    BLOT,
    BUILDER,
    LAST,
    PLAIN,
    Evidence,
    EvidenceQuestion,
    evidence_questions,
    evidence_recall,
    plain,
    side_by_side,
)
from tests.benchmarks.quality_own_runs import own_quality
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
        assert [dict(question.evidence) for question in asked] == [
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
            assert all(age[str(needed.step_id)] < question.until for needed in question.evidence)

    def test_a_condensed_step_without_its_value_does_not_count(self) -> None:
        steps = side_by_side([act("a", "the code is RES-77", purpose="find the code", tool="t")])
        with StepMemory(":memory:", embedder="hashing") as memory:
            memory.add(steps)
            there, lost = (
                evidence_recall(
                    memory, steps, [EvidenceQuestion("what was the code?", "r", (needed,))]
                )["budgets"]["1000"]["recall"]
                for needed in (
                    Evidence("a", frozenset({plain("RES-77")})),
                    Evidence("a", frozenset({plain("RES-99")})),
                )
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


_WHEN = datetime(2026, 5, 4, tzinfo=UTC)
CONVERSATION = [
    Turn("talk", "Ann", "The order is AB-1234, of 3 May.", MessageRole.USER, _WHEN),
    Turn("talk", "Bob", "Thank you, I am looking.", MessageRole.ASSISTANT, _WHEN),
    Turn("talk", "Bob", "I refunded AB-1234 for you today.", MessageRole.ASSISTANT, _WHEN),
    Turn("other", "Cy", "It rains in Oslo.", MessageRole.USER, _WHEN),
]


class TestDialogue:
    def test_a_later_turn_asks_for_the_value_that_an_earlier_one_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def all_runs(runs: dict[str, Any], half: str) -> set[str]:
            return set(runs)

        monkeypatch.setattr(quality_dialogue, "half_of_runs", all_runs)
        [asked] = turn_questions(CONVERSATION, "report")
        assert asked.text == f"I refunded {BLOT} for you today."
        assert asked.wanted == {CONVERSATION[0].key}
        assert asked.asking == CONVERSATION[2].key

    def test_turns_are_found_in_the_steps_and_chats_that_hold_them(self) -> None:
        asked = [
            TurnQuestion("which order?", "talk", frozenset({CONVERSATION[0].key}), kind="ids"),
            TurnQuestion("weather in Oslo", "other", frozenset({CONVERSATION[3].key})),
        ]
        with chat_file(CONVERSATION) as file:
            found = dialogue_quality("hashing", CONVERSATION, asked, file)
        for way in (AS_STEPS, IMPORTED):
            assert found["ways"][way]["recall"]["mean"] == 1
            assert found["ways"][way]["mrr"]["mean"] == 1
            assert list(found["ways"][way]["kinds"]) == ["ids"]
            assert found["ways"][way]["turns_in_ten_hits"] <= len(CONVERSATION)

    def test_the_turn_that_asks_is_no_answer(self) -> None:
        own = CONVERSATION[0]
        asked = [TurnQuestion(own.text, "talk", frozenset({own.key}), own.key)]
        with chat_file(CONVERSATION) as file:
            found = dialogue_quality("hashing", CONVERSATION, asked, file)
        assert found["ways"][AS_STEPS]["recall"]["mean"] == 0

    def test_a_memory_of_both_kinds_is_compared_with_each_alone(self) -> None:
        [tool] = [act("a", "done", purpose="water the plants", tool="water")]
        asked = [TurnQuestion("weather in Oslo", "other", frozenset({CONVERSATION[3].key}))]

        def ask(memory: StepMemory) -> dict[str, list[float]]:
            return {"r": [float(memory.search("plants")[0].step.id == "a")]}

        found = mixed_memory("hashing", [tool], ask, CONVERSATION, asked)
        for each in found.values():
            assert each["alone"]["mean"] == each["together"]["mean"] == 1
            assert each["change"]["mean"] == 0

    def test_the_shipped_conversations_ask_many_questions(self) -> None:
        turns = shipped_turns(shipped_steps())
        assert len({turn.session_id for turn in turns}) == 40
        assert {turn.role for turn in turns} == {MessageRole.USER, MessageRole.ASSISTANT}
        keys = {turn.key for turn in turns}
        for half in ("tune", "report"):
            asked = turn_questions(turns, half)
            assert len(asked) > 60
            assert all(question.wanted <= keys for question in asked)
            assert all(question.asking not in question.wanted for question in asked)


PAGE = Path(__file__).parents[2] / ".github" / "docs" / "benchmarks.md"


class TestOwnRuns:
    def test_the_example_of_the_page_runs(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        blocks = re.findall(
            r"^```json\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        for name, block in zip(("runs", "questions"), blocks, strict=True):
            (tmp_path / name).write_text(block, "utf-8")
        options: dict[str, Any] = {
            "runs": str(tmp_path / "runs"),
            "questions": str(tmp_path / "questions"),
        }
        quality.report(json_output=True, embedder="hashing", **options)
        own = json.loads(capsys.readouterr().out)["own"]
        assert own["turns"] == 5
        assert own["dialogue"]["questions"] == 2
        assert own["dialogue"]["ways"][AS_STEPS]["recall"]["mean"] == 1
        assert "single turn" in own["dialogue"]["ways"][IMPORTED]["kinds"]
        assert own["evidence"]["budgets"]["1000"]["recall"][PLAIN]["mean"] == 1
        quality.report(embedder="hashing", **options)
        assert "as session messages" in capsys.readouterr().out

    def test_exported_steps_are_asked_for_by_their_ids(self, tmp_path: Path) -> None:
        with StepMemory(":memory:", embedder="hashing") as memory:
            memory.add([act("a", "42 euros", purpose="price of tea"), act("b", "x", purpose="y")])
            export_file(memory, tmp_path / "runs.jsonl")
        asked = {"question": "what does tea cost?", "relevant": ["a"], "aim": "episode"}
        (tmp_path / "questions.jsonl").write_text(json.dumps(asked))
        found = own_quality(tmp_path / "runs.jsonl", tmp_path / "questions.jsonl", "hashing")
        assert found["tasks"]["ways"]["no aim"]["mrr"]["mean"] == 1
        assert found["evidence"]["budgets"]["1000"]["recall"][PLAIN]["mean"] == 1
        assert "dialogue" not in found

    @pytest.mark.parametrize(
        ("line", "named"),
        [
            ("{", "line 2: "),
            ('{"question": "x"}', "line 2: relevant: Field required; a question is"),
            ('{"question": " ", "relevant": ["flat#1"]}', "line 2: question: "),
            ('{"question": "x", "relevant": []}', "line 2: relevant: "),
            ('{"question": "x", "relevant": ["flat#1"], "aim": "all"}', "line 2: aim: "),
            ('{"question": "x", "relevant": ["flat#1"], "aim": "next"}', "the step before"),
            ('{"question": "x", "relevant": ["flat#9"]}', "has the id 'flat#9'"),
            ('{"question": "x", "relevant": ["flat#1"], "colour": 1}', "line 2: colour: "),
            ("[1, 2]", "line 2: "),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, line: str, named: str) -> None:
        chat = {"id": "flat", "messages": [{"role": "user", "content": "I moved."}]}
        (tmp_path / "runs").write_text(json.dumps(chat))
        good = '{"question": "who moved?", "relevant": ["flat#1"]}'
        (tmp_path / "questions").write_text(f"{good}\n{line}\n")
        with pytest.raises(ExchangeError, match=re.escape(named)) as caught:
            own_quality(tmp_path / "runs", tmp_path / "questions", "hashing")
        assert str(caught.value).count("\n") == 0

    def test_runs_that_hold_nothing_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "questions").write_text('{"question": "x", "relevant": ["a"]}')
        (tmp_path / "runs").write_text('{"messages": []}')
        with pytest.raises(ExchangeError):
            own_quality(tmp_path / "runs", tmp_path / "questions", "hashing")
        (tmp_path / "questions").write_text("")
        with pytest.raises(ExchangeError):
            own_quality(tmp_path / "runs", tmp_path / "questions", "hashing")

    def test_one_file_without_the_other_is_refused(self) -> None:
        with pytest.raises(InvalidSettingError, match="go together"):
            quality.measure(runs="runs.jsonl")


class TestReport:
    def test_only_some_parts_are_measured(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quality, "_COST_ROUNDS", 1)
        monkeypatch.setattr(quality_cost, "_AT_ONCE", 2)
        quality.report(json_output=True, embedder="hashing", only="cost")
        result = json.loads(capsys.readouterr().out)
        assert "tasks" not in result
        assert "evidence" not in result
        assert {"words alone", "both", "embedding of the query"} <= set(result["cost"])
        assert all(cost > 0 for cost in result["cost"].values())

    def test_an_unknown_part_is_named(self) -> None:
        with pytest.raises(InvalidSettingError, match="no part 'speed'; there are tasks"):
            quality.measure(only="speed")
