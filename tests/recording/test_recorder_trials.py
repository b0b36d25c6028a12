"""Evaluations and optimisers: their runs are recorded, and kept apart from the user's history."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import dspy
import pytest
from gepa.strategies.proposal_sampling import PxNSampling

import hybridagi_steps as hs
from hybridagi_steps.testing import asked_fields, scripted_lm

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


class Counsel(dspy.Module):
    """Answers with two predictors."""

    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.Predict("question -> answer", "Base.")
        self.check = dspy.Predict("question, answer -> verdict", "Base.")

    def forward(self, question: str) -> Any:
        """Answer."""
        answer = self.draft(question=question).answer
        return dspy.Prediction(
            answer=answer, verdict=self.check(question=question, answer=answer).verdict
        )


KINDS = ("draft", "check", "neither")
ASKED = [dspy.Example(question=f"{KINDS[n % 3]} {n}").with_inputs("question") for n in range(12)]


class Model:
    """Repeats an instruction as its answer; proposes good instructions, and sometimes a bad one."""

    def __init__(self) -> None:
        self.proposed: list[str] = []

    def __call__(self, request: Any) -> Any:
        """Answer."""
        fields = asked_fields(request)
        if "new_instruction" in fields:
            word = "Worse" if len(self.proposed) % 3 == 1 else "Better"
            self.proposed.append(f"{word} {len(self.proposed)}.")
            return {"new_instruction": self.proposed[-1]}
        said = "better" if "Better" in request.system else "base"
        return dict.fromkeys(fields, "worse" if "Worse" in request.system else said)


def suited(example: Any, prediction: Any, *_: Any) -> Any:
    """Some questions need a better draft, some a better check, and some neither."""
    kind, n = example.question.split()
    wanted = {"draft": ("better", "*"), "check": ("*", "better"), "neither": ("base", "base")}[kind]
    got = (prediction.answer, prediction.verdict)
    right = all(a in (b, "*") for a, b in zip(wanted, got, strict=True)) and "worse" not in got
    return dspy.Prediction(score=float(right), feedback=f"{n} {right}")


class Watching:
    """A callback of the user's own."""

    def __init__(self) -> None:
        self.proposals: list[tuple[int, dict[str, str]]] = []
        self.merged: list[dict[str, str]] = []

    def on_proposal_end(self, event: Any) -> None:
        """Remember what was proposed."""
        self.proposals.append((event["iteration"], event["new_instructions"]))

    def on_merge_attempted(self, event: Any) -> None:
        """Remember what was merged."""
        self.merged.append(event["merged_candidate"])


def origin_of(trial: Any) -> Any:
    """What a candidate was made of."""
    assert trial.origin is not None
    return trial.origin


def instructions(trial: Any) -> dict[str, str]:
    """The instructions of a candidate, as GEPA names it."""
    return {name: of["instructions"] for name, of in trial.state.items()}


def compiled(memory: hs.StepMemory, way: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    """GEPA's own results and what the user's own callback heard, of a program of two predictors."""
    watching = Watching()
    options["callbacks"] = [watching]
    optimiser = dspy.GEPA(
        metric=suited,
        max_metric_calls=150,
        reflection_minibatch_size=6,
        reflection_lm=(lm := scripted_lm(Model())),
        num_threads=2,
        track_stats=True,
        gepa_kwargs=options,
    )

    def run(program: Any) -> Any:
        student = Counsel() if isinstance(program, Ask) else hs.Recorded(Counsel(), memory)
        return optimiser.compile(student, trainset=ASKED, valset=ASKED)

    with dspy.context(lm=lm):
        best = way(memory, run)
    assert optimiser.gepa_kwargs is options
    assert options["callbacks"] == [watching], "the optimiser has its own back"
    return best.detailed_results, watching


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "options"),
    [
        (by_block, {}),
        (by_recorded, {}),
        (by_block, {"sampling_strategy": PxNSampling(2, 2)}),
    ],
)
def test_gepas_candidates_say_what_they_were_made_of(
    memory: hs.StepMemory, way: Callable[..., Any], options: dict[str, Any]
) -> None:
    results, watching = compiled(memory, way, **options)
    trials = memory.trials()
    by_text = {tuple(instructions(trial).values()): trial for trial in trials}
    accepted = [
        by_text[tuple(each.signature.instructions for each in candidate.predictors())]
        for candidate in results.candidates
    ]
    for trial, parents in zip(accepted, results.parents, strict=True):
        made_of = [accepted[parent].candidate for parent in parents if parent is not None]
        assert origin_of(trial).parents == made_of
    assert accepted[0].base
    assert (origin_of(accepted[0]).iteration, origin_of(accepted[0]).proposal) == (0, {})

    proposed = [trial for trial in trials if len(origin_of(trial).parents) == 1]
    told = [(origin_of(trial).iteration, origin_of(trial).proposal) for trial in proposed]
    assert sorted(told, key=str) == sorted(watching.proposals, key=str)
    assert {trial.kind for trial in proposed} == {"full", "minibatch"}, "the rejected have parents"
    merged = [trial for trial in trials if len(origin_of(trial).parents) == 2]
    assert merged or options
    assert sorted(map(str, map(instructions, merged))) == sorted(map(str, watching.merged))
    assert [origin_of(trial).reflections for trial in merged] == [[]] * len(merged)
    for trial in proposed:
        asked = [memory.run_steps(run_id) for run_id in origin_of(trial).reflections]
        texts = [(steps[-1].outputs or {})["new_instruction"] for steps in asked]
        assert texts == ([*origin_of(trial).proposal.values()] if way is by_block else []), (
            "who records the program alone does not hear the model that reflects"
        )


def test_a_table_of_gepas_candidates_is_their_tree(
    memory: hs.StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    compiled(memory, by_block)
    trials = {trial.candidate: trial for trial in memory.trials()}
    rows = [row for row in str(memory.trials()).splitlines()[2:] if row]
    stands = {row[20:40].strip(" └"): (row.index(row[20:40].strip(" └")), row) for row in rows}
    assert stands.keys() == trials.keys()
    for before, after in pairwise(stands):
        assert stands[after][0] <= stands[before][0] + 2
    for name, trial in trials.items():
        origin, (indent, row) = origin_of(trial), stands[name]
        for parent in origin.parents[:1]:
            assert indent == stands[parent][0] + 2
            assert [*stands].index(parent) < [*stands].index(name)
            assert f" {origin.iteration} " in row
        if len(origin.parents) == 2:
            assert row.endswith(f"merge with {origin.parents[1]}")
        else:
            assert all(f"{of}: {text}" in row for of, text in origin.proposal.items())
