"""Recorded is a shell: parameters, saved state and marks are those of the program inside."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dspy
import pytest
from recorder_programs import Pair, all_steps

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError, StepsError
from hybridagi_steps.testing import scripted_lm

EXAMPLES = [
    dspy.Example(question=f"q{n}", answer="some answer").with_inputs("question") for n in range(4)
]
DEMO = dspy.Example(question="a", answer="b", one="b")


class Named(dspy.Module):
    """A program whose only part is named as the shell names what is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.program = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        """Ask."""
        return self.program(question=question)


class Listed(dspy.Module):
    """A program that holds its parts in a list and a dict, and a memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [dspy.Predict("question -> one"), dspy.ChainOfThought("question -> answer")]
        self.named = {"last": dspy.Predict("question -> two")}
        self.memory = "its own"
        self.labels = "its own"

    def forward(self, question: str) -> Any:
        """Ask."""
        return self.parts[1](question=question)


PROGRAMS: list[Callable[[], Any]] = [
    lambda: dspy.Predict("question -> answer"),
    lambda: dspy.ChainOfThought("question -> answer"),
    Pair,
    Named,
    Listed,
]
programs = pytest.mark.parametrize(
    "make", PROGRAMS, ids=["predict", "cot", "pair", "named", "list"]
)


def taught(program: Any) -> Any:
    """A program with demos, as an optimiser leaves them."""
    for predictor in program.predictors():
        predictor.demos = [DEMO]
    return program


def knows(program: Any) -> bool:
    """Whether a program has been taught."""
    return all([demo["one"] for demo in each.demos] == ["b"] for each in program.predictors())


def old_state(program: Any) -> dict[str, Any]:
    """The state that a Recorded of this program used to save."""
    if isinstance(program, dspy.Predict):
        return {"program": program.dump_state()}
    return {f"program.{name}": part.dump_state() for name, part in program.named_parameters()}


@programs
def test_parameters_are_those_of_the_program(memory: hs.StepMemory, make: Any) -> None:
    program = make()
    recorded = hs.Recorded(hs.Recorded(program, memory), memory)
    assert recorded.named_parameters() == program.named_parameters()
    assert recorded.named_predictors() == program.named_predictors()
    assert recorded.predictors() == program.predictors()
    assert recorded.dump_state() == program.dump_state()


@programs
@pytest.mark.parametrize("ending", ["json", "pkl"])
def test_state_is_saved_and_loaded_in_both_directions(
    memory: hs.StepMemory, tmp_path: Path, make: Any, ending: str
) -> None:
    path = str(tmp_path / f"state.{ending}")
    allowed = {"allow_pickle": ending == "pkl"}
    taught(make()).save(path)
    recorded = hs.Recorded(make(), memory)
    recorded.load(path, **allowed)
    assert knows(recorded.program)
    recorded.save(path)
    plain = make()
    plain.load(path, **allowed)
    assert knows(plain)


@programs
def test_state_saved_under_the_shells_names_still_loads(
    memory: hs.StepMemory, tmp_path: Path, make: Any
) -> None:
    program = make()
    recorded = hs.Recorded(program, memory)
    recorded.load_state(old_state(taught(make())))
    assert knows(program)
    path = tmp_path / "old.json"
    make().save(str(path))
    metadata = json.loads(path.read_text())["metadata"]
    path.write_text(json.dumps({**old_state(taught(make())), "metadata": metadata}, default=dict))
    fresh = hs.Recorded(make(), memory)
    fresh.load(str(path))
    assert knows(fresh)


def test_state_of_another_program_is_refused_as_ever(memory: hs.StepMemory) -> None:
    with pytest.raises(KeyError):
        hs.Recorded(Pair(), memory).load_state(dspy.ChainOfThought("q -> a").dump_state())


@programs
def test_a_program_around_it_names_its_parts_by_paths(memory: hs.StepMemory, make: Any) -> None:
    class Outer(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = hs.Recorded(make(), memory)

    outer: Any = Outer()
    if make is not Named:  # a path leads to the shell's own `program` before one inside it
        outer.map_named_predictors(lambda predictor: taught(copy.deepcopy(predictor)))
        assert knows(outer.inside.program)
    taught(outer)
    assert knows(outer)
    fresh: Any = Outer()
    fresh.load_state(outer.dump_state())
    assert knows(fresh)


@programs
def test_predictors_can_be_replaced(memory: hs.StepMemory, make: Any) -> None:
    recorded = hs.Recorded(make(), memory)
    assert recorded.map_named_predictors(lambda each: taught(copy.deepcopy(each))) is recorded
    assert knows(recorded.program)


@programs
def test_models_are_those_of_the_program(memory: hs.StepMemory, make: Any) -> None:
    program, lm = make(), scripted_lm()
    recorded = hs.Recorded(program, memory)
    recorded.set_lm(lm)
    assert program.get_lm() is recorded.get_lm() is lm


@programs
@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda recorded: recorded.deepcopy(),
        lambda recorded: pickle.loads(cloudpickle.dumps(recorded)),
    ],
    ids=["copy", "deepcopy", "own", "pickle"],
)
def test_copies_are_shells_with_a_program_of_their_own(
    file_memory: hs.StepMemory, make: Any, copied: Any
) -> None:
    recorded = hs.Recorded(taught(make()), file_memory, session_id="s")
    twin = copied(recorded)
    assert type(twin) is hs.Recorded
    assert knows(twin)
    assert twin.history is not twin.program.history, "calls are noted once on each"
    assert twin.callbacks is not twin.program.callbacks
    with dspy.context(lm=scripted_lm()):
        twin(question="?")
    assert {step.session_id for step in all_steps(file_memory)} == {"s"}
    if twin.memory is not file_memory:
        twin.memory.close()


@programs
def test_a_reset_copy_has_forgotten(memory: hs.StepMemory, make: Any) -> None:
    recorded = hs.Recorded(taught(make()), memory)
    fresh = recorded.reset_copy()
    assert [predictor.demos for predictor in fresh.predictors()] == [[]] * len(fresh.predictors())
    assert knows(recorded)
    assert fresh.memory is memory


@programs
def test_it_is_compiled_when_the_program_is(memory: hs.StepMemory, make: Any) -> None:
    class Outer(dspy.Module):
        def __init__(self, inside: Any) -> None:
            super().__init__()
            self.inside = inside

    recorded = hs.Recorded(make(), memory)
    assert recorded._compiled is False
    recorded.program._compiled = True
    assert recorded._compiled is True
    assert Outer(recorded).predictors() == [], "what is compiled is left as it is"
    recorded._compiled = False
    assert recorded.program._compiled is False


@programs
def test_an_optimised_program_is_the_program_optimised(memory: hs.StepMemory, make: Any) -> None:
    logging.getLogger("dspy").setLevel(logging.ERROR)
    optimiser = dspy.BootstrapFewShot(metric=lambda *_: True, max_labeled_demos=1)
    with dspy.context(lm=scripted_lm()):
        compiled = optimiser.compile(hs.Recorded(make(), memory), trainset=EXAMPLES)
        alone = optimiser.compile(make(), trainset=EXAMPLES)
    assert type(compiled) is hs.Recorded
    assert compiled.program._compiled is True
    assert compiled.dump_state() == alone.dump_state()
    assert any(predictor.demos for predictor in compiled.program.predictors())


def test_what_the_program_has_by_name_is_reached_and_set_there(memory: hs.StepMemory) -> None:
    program = Pair()
    recorded: Any = hs.Recorded(program, memory)
    assert recorded.first is program.first
    recorded.first = other = dspy.Predict("question -> one")
    assert program.first is other
    recorded.trial_logs = {}
    assert recorded.trial_logs == {}
    assert not hasattr(program, "trial_logs")
    with pytest.raises(AttributeError, match="nothing"):
        _ = recorded.nothing


def test_the_shell_keeps_its_own_memory_and_labels(memory: hs.StepMemory) -> None:
    program = Listed()
    recorded = hs.Recorded(program, memory)
    assert recorded.memory is memory
    assert (program.memory, program.labels) == ("its own", "its own")


def test_a_subclass_may_hold_more(memory: hs.StepMemory) -> None:
    class Numbered(hs.Recorded):
        def __init__(self, program: Any, number: int) -> None:
            self.number = number
            super().__init__(program, memory)

    numbered = copy.deepcopy(Numbered(dspy.Predict("q -> a"), 3))
    assert numbered.number == 3


NO_PROGRAMS: list[Any] = [
    lambda q: q,
    dspy.Predict,
    "question -> answer",
    None,
    dspy.Tool(lambda q: q, name="z"),
]


@pytest.mark.parametrize("given", NO_PROGRAMS, ids=["function", "class", "text", "none", "tool"])
def test_what_is_no_program_is_refused_at_once(memory: hs.StepMemory, given: Any) -> None:
    with pytest.raises(InvalidSettingError, match=r"dspy\.Module instance") as caught:
        hs.Recorded(given, memory)
    assert isinstance(caught.value, StepsError)
    assert "hs.record" in str(caught.value)


@pytest.mark.parametrize("feedback", [3, b"fair", ["fair"], True])
def test_feedback_that_is_no_text_is_refused(memory: hs.StepMemory, feedback: Any) -> None:
    with dspy.context(lm=scripted_lm()), hs.record(memory) as run:
        dspy.Predict("q -> a")(q="1")
    with pytest.raises(hs.errors.InvalidStepError, match="feedback is a text"):
        run.score(0.9, feedback=feedback)
    assert [step.score for step in run.steps.steps] == [None]
    run.score(0.9, feedback="fair")
    assert [step.score for step in run.steps.steps] == [0.9]
