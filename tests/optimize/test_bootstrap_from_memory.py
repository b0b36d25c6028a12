"""BootstrapFromMemory: demonstrations of stored runs, without asking a model."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidFilterError, InvalidMemoryError, InvalidSettingError
from hybridagi_steps.testing import scripted_lm

WORDS = ["window", "money", "suitcase", "dog", "child", "train"]


class Route(dspy.Signature):
    """Pick a department."""

    question: str = dspy.InputField()
    route: Literal["seat", "refund", "luggage"] = dspy.OutputField()


class Desk(dspy.Module):
    """Routes a question."""

    def __init__(self) -> None:
        super().__init__()
        self.route = dspy.Predict(Route)

    def forward(self, question: str) -> Any:
        """Route it."""
        return self.route(question=question)


def asked(question: str, **more: Any) -> Any:
    return dspy.Example(question=question, **more).with_inputs("question")


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """Twelve runs: seats most often, luggage once."""
    routes = ["seat"] * 8 + ["refund"] * 3 + ["luggage"]
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        for n, route in enumerate(routes):
            with dspy.context(lm=scripted_lm([{"route": route}])), hs.record(opened):
                Desk()(question=f"{WORDS[n % 6]} number {n}")
        yield opened


def demos(program: Any) -> list[Any]:
    return program.predictors()[0].demos


def test_outputs_are_covered_and_inputs_spread(memory: hs.StepMemory) -> None:
    found = demos(hs.BootstrapFromMemory(memory, 6).compile(Desk()))
    assert Counter(demo.route for demo in found) == {"seat": 3, "refund": 2, "luggage": 1}
    assert len({demo.question.split()[0] for demo in found}) >= 5


def test_no_model_is_asked_and_the_seed_decides(memory: hs.StepMemory) -> None:
    with dspy.context(lm=scripted_lm([])):
        one, again, other = (
            demos(hs.BootstrapFromMemory(memory, 4, seed=seed).compile(Desk()))
            for seed in (1, 1, 2)
        )
    assert one == again != other


def test_the_program_says_where_its_demonstrations_come_from(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    student = Desk()
    compiled = hs.BootstrapFromMemory(memory, 3).compile(student, trainset=[])
    assert student.route.demos == []
    for source in compiled.provenance()["route"]:
        [step] = memory.get(str(source.step_id)).steps
        assert (source.origin, source.run_id, step.predictor) == (
            *("memory", step.run_id),
            "Desk.route",
        )
    compiled.save(tmp_path / "desk.json")
    loaded = Desk()
    loaded.load(tmp_path / "desk.json")
    lm = scripted_lm([{"route": "seat"}])
    with dspy.context(lm=lm), hs.record(memory) as run:
        assert loaded(question="x").route == "seat"
    assert len(lm.requests[0].messages) == 7
    recalled = (run.steps.steps[-1].metadata or {})["recalled"]
    assert set(recalled) == {source.step_id for source in compiled.provenance()["route"]}


def test_a_metric_scores_stored_runs_again(memory: hs.StepMemory) -> None:
    """Runs that it gives no point are not used; those it cannot judge stay unscored."""

    def metric(gold: Any, given: Any, trace: Any = None) -> Any:
        if "money" in gold.question:
            raise ValueError("money")
        if "dog" in gold.question:
            return float("nan")
        return None if "train" in gold.question else given.route == gold.route

    train = [asked(f"window number {n}", route="refund") for n in (0, 6)]
    train += [asked("suitcase number 2", route="seat"), asked("child number 4", route="seat")]
    train += [asked("suitcase number 8", route="seat"), asked("child number 10", route="seat")]
    compiled = hs.BootstrapFromMemory(memory, 12, metric=metric).compile(Desk(), trainset=train)
    used = Counter(demo.question.split()[0] for demo in demos(compiled))
    assert used == {"suitcase": 1, "child": 1, "money": 2, "dog": 2, "train": 2}
    strict = hs.BootstrapFromMemory(memory, 12, metric=metric, min_score=0.5)
    used = Counter(d.question.split()[0] for d in demos(strict.compile(Desk(), trainset=train)))
    assert used == {"suitcase": 1, "child": 1}


def test_a_predictor_alone_is_a_program_too(memory: hs.StepMemory) -> None:
    with dspy.context(lm=scripted_lm([{"route": "refund"}])), hs.record(memory):
        dspy.Predict(Route)(question="alone")
    optimiser = hs.BootstrapFromMemory(memory, metric=lambda gold, given: given.route == "refund")
    compiled = optimiser.compile(dspy.Predict(Route))
    assert [demo.question for demo in demos(compiled)] == ["alone"]


def test_runs_tied_to_the_valset_are_left_out(memory: hs.StepMemory) -> None:
    val = [asked("window number 0", route="seat"), asked("dog number 3", route="seat")]
    plain = demos(hs.BootstrapFromMemory(memory, 12).compile(Desk(), valset=val))
    assert len(plain) == 10
    by_word = hs.BootstrapFromMemory(memory, 12, group=lambda inputs: inputs["question"][:3])
    found = demos(by_word.compile(Desk(), valset=val))
    assert {demo.question.split()[0] for demo in found} == {*WORDS} - {"window", "dog"}


def test_a_class_that_stands_once_in_the_valset_is_no_answer(
    memory: hs.StepMemory, caplog: pytest.LogCaptureFixture
) -> None:
    val = [asked(f"other {n}", route=r) for n, r in enumerate(("seat", "refund", "luggage"))]
    compiled = hs.BootstrapFromMemory(memory, 12).compile(Desk(), valset=val)
    assert Counter(demo.route for demo in demos(compiled)) == {
        "seat": 8,
        "refund": 3,
        "luggage": 1,
    }
    assert not compiled.left_out
    assert not caplog.messages


def test_an_open_label_is_an_answer_and_what_is_left_out_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        for place in ("Quito", "Lima"):
            with dspy.context(lm=scripted_lm([{"answer": place}])), hs.record(opened):
                dspy.Predict("question -> answer")(question=f"where from, {len(place)}?")
        val = [asked("the same in other words", answer="Quito")]
        compiled = hs.BootstrapFromMemory(opened).compile(
            dspy.Predict("question -> answer"), valset=val
        )
    assert [demo.answer for demo in demos(compiled)] == ["Lima"]
    assert compiled.left_out == {"knows a validation example": 1}
    assert compiled.deepcopy().left_out == compiled.left_out
    assert caplog.messages == [
        "BootstrapFromMemory: left out are steps (1: knows a validation example)."
    ]


def test_scores_filters_and_exclusions(memory: hs.StepMemory) -> None:
    best = memory.runs()[0].run_id
    memory.score(best, 1.0)
    assert len(demos(hs.BootstrapFromMemory(memory, min_score=0.5).compile(Desk()))) == 1
    without = hs.BootstrapFromMemory(memory, 12, exclude=hs.exclude.runs(best)).compile(Desk())
    assert best not in [source.run_id for source in without.provenance()["route"]]
    only = hs.BootstrapFromMemory(memory, 12, where={"run_id": best}).compile(Desk())
    assert [source.run_id for source in only.provenance()["route"]] == [best]


def test_nothing_to_learn_from_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        compiled = hs.BootstrapFromMemory(memory).compile(Desk())
    assert demos(compiled) == []
    assert "no stored step" in caplog.text


def test_bad_input_is_refused(memory: hs.StepMemory) -> None:
    with pytest.raises(InvalidSettingError, match="max_demos"):
        hs.BootstrapFromMemory(memory, 0)
    with pytest.raises(InvalidSettingError, match="group"):
        hs.BootstrapFromMemory(memory, group="task")
    with pytest.raises(InvalidFilterError, match="colour"):
        hs.BootstrapFromMemory(memory, where={"colour": "red"})
    for score in (float("nan"), "good", True):
        with pytest.raises(InvalidFilterError, match="min_score"):
            hs.BootstrapFromMemory(memory, min_score=score)
    with pytest.raises(InvalidMemoryError):
        hs.BootstrapFromMemory("steps.db")
    with pytest.raises(InvalidSettingError, match="BootstrapFromMemory takes"):
        hs.BootstrapFromMemory(memory).compile(Desk)
    for options in ({"k": 0}, {"group": "task"}):
        with pytest.raises(InvalidSettingError):
            hs.KNNSteps(memory, **options)


UNTOLD = {
    "raises": lambda inputs: inputs["task_id"],
    "None": lambda _: None,
    "for some None": lambda inputs: None if "dog" in inputs["question"] else "known",
    "NaN": lambda _: float("nan"),
    "NaN in a tuple": lambda _: ("task", float("nan")),
    "an object without a value": lambda _: object(),
}


@pytest.mark.parametrize("group", UNTOLD.values(), ids=UNTOLD)
def test_a_group_that_cannot_tell_of_a_validation_example_is_refused(
    memory: hs.StepMemory, group: Any
) -> None:
    valset = [asked("window number 0", route="seat"), asked("dog number 3", route="seat")]
    with pytest.raises(InvalidSettingError, match=r"valset\[[01]\]"):
        hs.BootstrapFromMemory(memory, group=group).compile(Desk(), valset=valset)


def test_arguments_of_another_kind_are_refused(memory: hs.StepMemory) -> None:
    with pytest.raises(InvalidSettingError, match="metric"):
        hs.BootstrapFromMemory(memory, metric="exact")
    with pytest.raises(InvalidFilterError, match="examples"):
        hs.exclude.examples(None)


@pytest.mark.parametrize(
    ("answer", "question", "told"),
    [
        ("HAT742", "what is hat742?", True),
        ("42", "is it 42?", True),
        ("42", "is it 1427?", False),
        ("cat", "a category", False),
        ("<|im_start|>x", "is it <|im_start|>X", True),
    ],
)
def test_an_answer_is_known_by_its_words(answer: str, question: str, told: bool) -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        with dspy.context(lm=scripted_lm([{"route": "seat"}])), hs.record(opened):
            Desk()(question=question)
        valset = [asked("another", answer=answer)]
        found = demos(hs.BootstrapFromMemory(opened).compile(Desk(), valset=valset))
        assert bool(found) is not told


def test_why_nothing_can_be_used_is_told(
    memory: hs.StepMemory, caplog: pytest.LogCaptureFixture
) -> None:
    valset = [asked(f"{WORDS[n % 6]} number {n}") for n in range(12)]
    hs.BootstrapFromMemory(memory).compile(Desk(), valset=valset)
    assert caplog.messages == [
        "BootstrapFromMemory: no stored step can be used (12: knows a validation example); the "
        "program is as before."
    ]
