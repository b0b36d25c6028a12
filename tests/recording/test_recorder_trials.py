"""Evaluations and optimisers: their runs are recorded, and kept apart from the user's history."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm

EXAMPLES = [
    dspy.Example(question=f"q{n}", answer="some answer").with_inputs("question") for n in range(4)
]


class Ask(dspy.Module):
    """Asks."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        """Ask."""
        return self.predict(question=question)


def exact(example: Any, prediction: Any, trace: Any = None, *_: Any) -> bool:
    """Whether the answer is right."""
    return example.answer == prediction.answer


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    logging.getLogger("dspy").setLevel(logging.ERROR)
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


def by_recorded(memory: hs.StepMemory, run: Callable[[Any], Any]) -> Any:
    """The program carries its recording."""
    return run(hs.Recorded(Ask(), memory))


def by_callback(memory: hs.StepMemory, run: Callable[[Any], Any]) -> Any:
    """A recorder sees everything."""
    with dspy.context(callbacks=[hs.StepRecorder(memory)]):
        return run(Ask())


def by_block(memory: hs.StepMemory, run: Callable[[Any], Any]) -> Any:
    """A block around all of it: each trial is a run of its own all the same."""
    with hs.record(memory) as recording:
        result = run(Ask())
    assert recording.steps.steps == []
    assert recording.errors == []
    return result


def by_recorded_below_others(memory: hs.StepMemory, run: Callable[[Any], Any]) -> Any:
    """Other callbacks are at work, and the recorded program stands inside another one."""

    class Wrapper(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = hs.Recorded(Ask(), memory)

        def forward(self, question: str) -> Any:
            return self.inner(question=question)

    with dspy.context(callbacks=[dspy.utils.BaseCallback()]):
        return run(Wrapper())


WAYS = [by_recorded, by_callback, by_block, by_recorded_below_others]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("threads", [1, 3])
def test_an_evaluation_is_hidden_unless_asked_for(
    memory: hs.StepMemory, way: Callable[..., Any], threads: int
) -> None:
    evaluate = dspy.Evaluate(devset=EXAMPLES, metric=exact, num_threads=threads)
    with dspy.context(lm=scripted_lm()):
        result = way(memory, evaluate)
    assert result.score == 100.0
    assert memory.find().steps == []
    seen = memory.find({"scope": "*"}).steps
    assert len(seen) == 3 * len(EXAMPLES)
    [scope] = {step.scope for step in seen}
    assert scope is not None
    assert scope.startswith("evaluate:")
    assert len(memory.find({"scope": scope}).steps) == len(seen)


@pytest.mark.parametrize("way", WAYS)
def test_an_optimisers_trials_are_hidden_unless_asked_for(
    memory: hs.StepMemory, way: Callable[..., Any]
) -> None:
    optimiser = dspy.BootstrapFewShot(metric=exact, max_labeled_demos=0)
    with dspy.context(lm=scripted_lm()):
        better = way(memory, lambda program: optimiser.compile(program, trainset=EXAMPLES))
        assert [len(predict.demos) for predict in better.predictors()] == [4]
    assert memory.find().steps == []
    seen = memory.find({"scope": "*"}).steps
    assert seen
    [scope] = {step.scope for step in seen}
    assert scope is not None
    assert scope.startswith("compile:BootstrapFewShot:")


def test_trials_inside_a_run_leave_its_own_steps_alone(memory: hs.StepMemory) -> None:
    program = Ask()
    evaluate = dspy.Evaluate(devset=EXAMPLES, metric=exact, num_threads=1)
    with dspy.context(lm=scripted_lm()), hs.record(memory) as run:
        program(question="before")
        evaluate(program)
        program(question="after")
    own = memory.find().steps
    assert [step.scope for step in own] == [None] * 6
    assert own[3].parent_id == own[2].id, "the trials between are not on its path"
    assert [step.hop for step in run.steps.steps] == list(range(6))
    trials = memory.find({"scope": "*", "exclude_run_id": run.id}).steps
    assert {s.parent_id for s in trials if s.step_type == "ProgramCall"} == {None}
    assert [step.hop for step in trials] == [0, 1, 2] * len(EXAMPLES)


def test_after_a_trial_everything_is_the_users_own_again(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Ask(), memory)

    def wrong(*_: Any) -> bool:
        raise RuntimeError("metric")

    evaluate = dspy.Evaluate(devset=EXAMPLES, metric=wrong, num_threads=1, max_errors=1)
    with dspy.context(lm=scripted_lm()):
        with pytest.raises(Exception, match="cancelled"):
            evaluate(program)
        program(question="mine")
    assert {step.scope for step in memory.find().steps} == {None}
    assert len(memory.find().steps) == 3


def test_an_optimiser_inside_an_optimiser_has_one_scope(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Ask(), memory)
    optimiser = dspy.BootstrapFewShotWithRandomSearch(
        metric=exact,
        max_bootstrapped_demos=1,
        max_labeled_demos=1,
        num_candidate_programs=1,
        num_threads=2,
    )
    with dspy.context(lm=scripted_lm()):
        optimiser.compile(program, trainset=EXAMPLES)
    [scope] = {step.scope for step in memory.find({"scope": "*"}, limit=1000).steps}
    assert scope is not None
    assert scope.startswith("compile:BootstrapFewShotWithRandomSearch:")


def test_an_optimised_program_still_records(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Ask(), memory)
    optimiser = dspy.BootstrapFewShot(metric=exact, max_labeled_demos=0)
    with dspy.context(lm=scripted_lm()):
        better = optimiser.compile(program, trainset=EXAMPLES)
        better(question="now")
    assert [step.step_type.value for step in memory.find().steps] == [
        "ProgramCall",
        "Action",
        "ProgramEnd",
    ]
    assert better.memory is memory


@pytest.mark.slow
def test_gepa(memory: hs.StepMemory) -> None:
    pytest.importorskip("gepa")

    def feedback(example: Any, prediction: Any, *_: Any) -> Any:
        return dspy.Prediction(score=float(exact(example, prediction)), feedback="right or wrong")

    program = hs.Recorded(Ask(), memory)
    lm = scripted_lm()
    with dspy.context(lm=lm):
        dspy.GEPA(metric=feedback, max_metric_calls=8, reflection_lm=lm).compile(
            program, trainset=EXAMPLES, valset=EXAMPLES
        )
    assert memory.find().steps == []
    [scope] = {step.scope for step in memory.find({"scope": "*"}, limit=1000).steps}
    assert scope is not None
    assert scope.startswith("compile:GEPA:")
