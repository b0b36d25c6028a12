"""What optimisers tried: a table of candidates whose scores are the optimiser's own."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count
from typing import Any

import dspy
import pytest
from recorder_programs import all_steps

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.testing import Reply, ScriptedLM, asked_fields, plausible_reply, scripted_lm

pytestmark = pytest.mark.filterwarnings(
    # Optuna marks the sampler that MIPROv2 asks for as experimental.
    "ignore::optuna.exceptions.ExperimentalWarning",
)

LABEL = {
    *("optimiser", "compile_id", "candidate", "split", "example", "evaluation"),
    *("teacher", "base"),
}


def examples(first: int, count: int, **more: Any) -> list[Any]:
    """Examples whose answer is right."""
    numbers = range(first, first + count)
    return [
        dspy.Example(question=f"question {n}", answer="right", **more).with_inputs("question")
        for n in numbers
    ]


TRAIN, VAL = examples(0, 6), examples(100, 5)


_calls = count()


def moody(request: Any) -> Reply:
    """Answer otherwise each time: SIMBA learns from examples that went well and badly."""
    return pupil(request, next(_calls))


def pupil(request: Any, mood: int = 0) -> Reply:
    """Answer by the prompt, so that each candidate has a score of its own."""
    reply = plausible_reply(request)
    asked = asked_fields(request)
    if any(name.endswith("_instruction") for name in asked):
        wanted = sha256(str(request).encode()).hexdigest()[:6]
        return dict.fromkeys(asked, f"Answer with care {wanted}")
    if "answer" in asked and isinstance(reply, dict):
        known = f"{request.system}{len(request.messages)}{request.messages[-1]}{mood}"
        right = sha256(known.encode()).digest()[0] % 2
        return {**reply, "answer": "right" if right else "wrong"}
    return reply


class Ask(dspy.Module):
    """Asks."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        """Ask."""
        return self.predict(question=question)


def right(example: Any, prediction: Any, *_: Any) -> float:
    """Whether the answer is right."""
    return float(example.answer == prediction.answer)


def told(
    example: Any, prediction: Any, trace: Any = None, name: Any = None, part: Any = None
) -> Any:
    """Whether the answer is right, in words."""
    score = right(example, prediction)
    return dspy.Prediction(score=score, feedback="Right." if score else "Take more care.")


def evaluations(trial: Any) -> list[list[Any]]:
    """The runs of each evaluation of a candidate."""
    found: dict[str, list[Any]] = {}
    for run in trial.all_runs:
        found.setdefault(run.evaluation, []).append(run)
    return list(found.values())


def mipro(program: Any, lm: ScriptedLM) -> list[float]:
    """The means that MIPROv2 gives its fully evaluated candidates."""
    pytest.importorskip("optuna", reason="MIPROv2 searches with optuna (dspy[optuna])")
    optimiser = dspy.MIPROv2(
        metric=right, auto="light", num_threads=2, prompt_model=lm, verbose=False
    )
    best = optimiser.compile(program, trainset=TRAIN, valset=VAL)
    return [each["score"] / 100 for each in best.candidate_programs]


def gepa(program: Any, lm: ScriptedLM) -> list[float]:
    """The means that GEPA gives its candidates on the validation set."""
    optimiser = dspy.GEPA(
        metric=told, max_metric_calls=60, reflection_lm=lm, num_threads=2, track_stats=True
    )
    best = optimiser.compile(program, trainset=TRAIN, valset=VAL)
    return list(best.detailed_results.val_aggregate_scores)


def simba(program: Any, _: ScriptedLM) -> list[float]:
    """The means that SIMBA gives the candidates that it validates."""
    optimiser = dspy.SIMBA(metric=right, bsize=3, num_candidates=3, max_steps=3, num_threads=2)
    with dspy.context(lm=scripted_lm(moody)):
        best = optimiser.compile(program, trainset=TRAIN)
    return [each["score"] for each in best.candidate_programs]


@pytest.fixture
def lm() -> Iterator[ScriptedLM]:
    """A model whose answers depend on the prompt."""
    for name in ("dspy", "optuna"):
        logging.getLogger(name).setLevel(logging.ERROR)
    model = scripted_lm(pupil)
    with dspy.context(lm=model):
        yield model


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


def by_recorded(memory: hs.StepMemory, run: Callable[[Any], Any]) -> Any:
    """The program carries its recording."""
    return run(hs.Recorded(Ask(), memory))


def by_block(memory: hs.StepMemory, run: Callable[[Any], Any]) -> Any:
    """A block around all of it."""
    with hs.record(memory) as recording:
        result = run(Ask())
    assert recording.errors == []
    return result


WAYS = [by_recorded, by_block]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("compiled_by", [mipro, gepa, simba], ids=lambda by: by.__name__)
def test_the_table_of_candidates_has_the_optimisers_own_scores(
    memory: hs.StepMemory,
    way: Callable[..., Any],
    compiled_by: Callable[[Any, ScriptedLM], list[float]],
    lm: ScriptedLM,
) -> None:
    own = way(memory, lambda program: compiled_by(program, lm))

    trials = memory.trials()
    full = len(TRAIN) if compiled_by is simba else len(VAL)
    found = [
        sum(run.score or 0.0 for run in runs) / full
        for trial in trials
        for runs in evaluations(trial)
        if len(runs) == full and (compiled_by is simba or runs[0].split == "val")
    ]
    assert len(found) > 1
    assert sorted(found) == pytest.approx(sorted(own))
    for trial in trials:
        if len(trial.runs) == full:
            assert trial.score in [pytest.approx(score) for score in found]
    [base] = [trial for trial in trials if trial.base]
    assert base.state is not None
    [state] = base.state.values()
    assert state["instructions"] == "Given the fields `question`, produce the fields `answer`."
    widest = [trial for trial in trials if len(trial.runs) == len(trials[0].runs)]
    assert len(trials[0].runs) == full, "not a lucky minibatch"
    assert trials[0].score == max(trial.score or 0 for trial in widest)
    assert trials[0].candidate in str(trials)


@pytest.mark.parametrize("way", WAYS)
def test_bootstrap_scores_what_it_tries_itself(
    memory: hs.StepMemory, way: Callable[..., Any], lm: ScriptedLM
) -> None:
    said: list[float] = []

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        said.append(right(example, prediction))
        return said[-1]

    optimiser = dspy.BootstrapFewShot(metric=metric, max_labeled_demos=2)
    way(memory, lambda program: optimiser.compile(program, trainset=TRAIN))
    [trial] = memory.trials()
    assert optimiser.metric is metric, "the optimiser has its own metric again"
    assert [run.score for run in trial.runs] == said
    assert trial.optimiser == "BootstrapFewShot"
    assert {run.split for run in trial.runs} == {"train"}
    assert len({run.run_id for run in trial.runs}) == len(said)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("threads", [1, 3])
def test_an_evaluation_says_what_each_example_gave(
    memory: hs.StepMemory, way: Callable[..., Any], threads: int, lm: ScriptedLM
) -> None:
    named = [*examples(0, 3), dspy.Example(question="q", answer="x", id=7).with_inputs("question")]
    evaluate = dspy.Evaluate(devset=named, metric=told, num_threads=threads)
    result = way(memory, evaluate)

    [trial] = memory.trials()
    assert trial.percent == result.score
    assert trial.optimiser is None
    scores = {run.example: run.score for run in trial.runs}
    assert "7" in scores
    assert sorted(scores.values()) == sorted(value.score for _, _, value in result.results)
    assert {run.feedback for run in trial.runs} == {value.feedback for *_, value in result.results}
    assert trial.failed == [run.example for run in trial.runs if run.score == 0]
    steps = all_steps(memory)
    labels = [(step.metadata or {})["trial"] for step in steps]
    assert {frozenset(label) for label in labels} == {frozenset(LABEL)}
    assert {label["split"] for label in labels} == {"dev"}
    runs = {step.run_id for step in steps}
    assert len(runs) == len(named), "a run per trial"
    for run_id in runs:
        assert len({s.metadata["trial"]["example"] for s in steps if s.run_id == run_id}) == 1  # pyright: ignore[reportOptionalSubscript]


def test_a_score_is_read_as_dspy_reads_it(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    says: list[Any] = [True, None, float("nan"), 0.25, dspy.Prediction(score=0.5, feedback="so so")]
    answers = iter(says)

    def metric(*_: Any) -> Any:
        return next(answers)

    optimiser = dspy.BootstrapFewShot(metric=metric, max_labeled_demos=0, max_bootstrapped_demos=9)
    with hs.record(memory):
        optimiser.compile(Ask(), trainset=examples(0, 5))
    [trial] = memory.trials()
    assert [run.score for run in trial.runs] == [1.0, None, None, 0.25, 0.5]
    assert [run.feedback for run in trial.runs] == [None] * 4 + ["so so"]
    assert trial.score == pytest.approx((1 + 0.25 + 0.5) / 3)


def test_a_program_that_fails_counts_as_nothing(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    class Failing(Ask):
        def forward(self, question: str) -> Any:
            if question.endswith("1"):
                raise RuntimeError("no idea")
            return super().forward(question)

    evaluate = dspy.Evaluate(devset=examples(0, 3), metric=lambda *_: 1.0, num_threads=1)
    with hs.record(memory):
        result = evaluate(Failing())
    [trial] = memory.trials()
    assert trial.percent == result.score
    [failed] = [run for run in trial.runs if run.failed]
    assert failed.error == "RuntimeError: no idea"
    assert trial.failed == [failed.example]


def test_a_judge_in_a_metric_is_no_trial(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    judge = dspy.Predict("question -> verdict")

    def judged(example: Any, prediction: Any, trace: Any = None) -> float:
        judge(question=example.question)
        return right(example, prediction)

    evaluate = dspy.Evaluate(devset=TRAIN, metric=judged, num_threads=2)
    with hs.record(memory):
        result = evaluate(Ask())
        dspy.BootstrapFewShot(metric=judged, max_labeled_demos=0).compile(Ask(), trainset=TRAIN)
    bootstrapped, evaluated = memory.trials()
    assert evaluated.percent == result.score
    assert len(evaluated.runs) == len(TRAIN)
    verdicts = [step for step in all_steps(memory) if "verdict" in (step.outputs or {})]
    assert len(verdicts) == len(TRAIN) + len(bootstrapped.runs)
    assert {(step.metadata or {})["trial"]["example"] for step in verdicts} == {None}


def test_two_candidates_are_compared_example_by_example(
    memory: hs.StepMemory, lm: ScriptedLM
) -> None:
    optimiser = dspy.GEPA(metric=told, max_metric_calls=60, reflection_lm=lm, num_threads=2)
    with hs.record(memory):
        optimiser.compile(Ask(), trainset=TRAIN, valset=VAL)
    trials = memory.trials()
    [base] = [trial for trial in trials if trial.base]
    best = trials[0]

    diff = hs.compare_trials(memory, base.candidate, best)
    assert best.score is not None
    assert base.score is not None
    assert len(diff.examples) == len(VAL)
    gained = len(diff.better) - len(diff.worse)
    assert gained == round((best.score - base.score) * len(VAL)) > 0
    for each in diff.examples:
        differs = each.score_a != each.score_b
        assert (each.step_a is not None) == differs
        if each.step_a is not None:
            assert each.step_a.predictor == "Ask.predict"
            assert each.step_a.outputs != (each.step_b.outputs if each.step_b else None)
    assert f"{len(diff.better)} better" in str(diff)
    assert all(example in str(diff) for example in diff.better)
    with pytest.raises(InvalidQueryError, match=r"memory\.trials"):
        hs.compare_trials(memory, "nobody", best)


def test_without_a_valset_the_base_is_compared_on_the_same_examples(
    memory: hs.StepMemory, lm: ScriptedLM
) -> None:
    optimiser = dspy.GEPA(
        metric=told, max_metric_calls=60, reflection_lm=lm, num_threads=2, track_stats=True
    )
    with hs.record(memory):
        best = optimiser.compile(Ask(), trainset=TRAIN)
    full = [trial for trial in memory.trials() if trial.kind == "full"]
    assert sum(bool(trial.base) for trial in full) == 1
    scores = best.detailed_results.val_aggregate_scores
    assert sorted(trial.score or 0 for trial in full) == pytest.approx(sorted(set(scores)))


def test_the_users_own_history_has_no_trial(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    assert str(memory.trials()) == "no trials"
    with hs.record(memory) as run:
        Ask()(question="mine")
        dspy.Evaluate(devset=TRAIN, metric=right, num_threads=1)(Ask())
        Ask()(question="mine again")
    assert memory.trials("another") == []
    own = memory.find().steps
    assert {step.run_id for step in own} == {run.id}
    assert [step.hop for step in own] == list(range(6))
    assert not any("trial" in (step.metadata or {}) for step in own)


def test_trials_do_not_flood_the_list_of_runs(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    with hs.record(memory) as own:
        Ask()(question="mine")
    with hs.record(memory):
        dspy.Evaluate(devset=TRAIN, metric=right, num_threads=1)(Ask())
    assert [run.run_id for run in memory.runs()] == [own.id]
    [scope] = {run.scope for run in memory.runs(scope="*")} - {None}
    tried = memory.runs(scope=scope)
    assert len(tried) == len(TRAIN)
    assert len(memory.runs(scope="*")) == len(TRAIN) + 1
    assert "more" not in str(tried)
    few = memory.runs(scope="*", limit=2)
    assert (len(few), few.next_offset) == (2, 2)
    assert "2 runs; memory.runs(offset=2) shows more" in str(few)
    assert "memory.runs(offset=2)" in few._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert memory.runs(scope="*", offset=2, limit=len(TRAIN)).next_offset is None


@pytest.mark.parametrize("odd", [["a list"], "a text", None])
def test_scores_of_steps_are_a_mapping(memory: hs.StepMemory, odd: Any) -> None:
    with pytest.raises(hs.errors.InvalidStepError, match=r"such as \{step.id: 1.0\}"):
        memory.score_steps(odd)
    with pytest.raises(hs.errors.InvalidQueryError, match="compile_id is a text"):
        memory.trials([odd])  # pyright: ignore[reportArgumentType]


def test_redaction_reaches_the_label_and_the_state(lm: ScriptedLM) -> None:
    def hide(text: str) -> str:
        return text.replace("question 1", "[hidden]")

    with hs.StepMemory(":memory:", embedder="hashing", redact=hide) as memory:
        optimiser = dspy.BootstrapFewShot(metric=right, max_labeled_demos=4)
        with hs.record(memory):
            optimiser.compile(Ask(), trainset=TRAIN)
        [trial] = memory.trials()
        assert trial.state is not None
        assert "[hidden]" in str(trial.state)
        assert "question 1" not in str(all_steps(memory))


class Threshold:
    """A metric that is an object."""

    threshold = 0.5

    def __call__(self, example: Any, prediction: Any, trace: Any = None) -> bool:
        """Whether the answer is right."""
        return right(example, prediction) >= self.threshold


class Judge(dspy.Module):
    """A metric that is a program."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = dspy.Predict("question, answer -> verdict")

    def forward(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """Whether the answer is right."""
        return right(example, prediction)


@pytest.mark.parametrize(
    "metric", [right, Threshold(), Judge()], ids=["function", "object", "dspy"]
)
def test_an_optimiser_finds_its_metric_as_it_is(
    memory: hs.StepMemory, metric: Any, lm: ScriptedLM
) -> None:
    class Looking(dspy.BootstrapFewShot):
        def compile(self, student: Any, **sets: Any) -> Any:
            found = self.metric
            assert isinstance(found, type(metric))
            assert found == metric
            assert hash(found) == hash(metric)
            assert inspect.signature(found) == inspect.signature(metric)
            assert vars(found) == vars(metric)
            assert found.__doc__ == metric.__doc__
            found.seen = True
            del found.seen
            assert not hasattr(metric, "seen")
            if isinstance(metric, Threshold):
                assert found.threshold == 0.5
                assert type(pickle.loads(pickle.dumps(found))) is Threshold
            if isinstance(metric, Judge):
                found.set_lm(lm)
                assert metric.judge.lm is lm
            self.metric = copy.deepcopy(found)
            return super().compile(student, **sets)

    optimiser = Looking(metric=metric, max_labeled_demos=0)
    with hs.record(memory):
        optimiser.compile(Ask(), trainset=TRAIN)
    [trial] = memory.trials()
    assert None not in [run.score for run in trial.runs], "a copy of it tells, too"


def test_threads_that_share_an_optimiser_have_all_scores(lm: ScriptedLM) -> None:
    optimiser = dspy.BootstrapFewShot(metric=right, max_labeled_demos=0, max_bootstrapped_demos=6)
    first_began, last_ended = threading.Event(), threading.Event()

    class Late(Ask):
        def forward(self, question: str) -> Any:
            first_began.set()
            assert last_ended.wait(60)
            return super().forward(question)

    def compiled(student: Any, memory: hs.StepMemory) -> None:
        with dspy.context(lm=scripted_lm(pupil)), hs.record(memory):
            optimiser.compile(student, trainset=TRAIN)

    with hs.StepMemory(":memory:") as one, hs.StepMemory(":memory:") as two:
        thread = threading.Thread(target=compiled, args=(Late(), one))
        thread.start()
        assert first_began.wait(60)
        compiled(Ask(), two)
        last_ended.set()
        thread.join()
        for memory in (one, two):
            [trial] = memory.trials()
            assert len(trial.all_runs) == len(TRAIN)
            assert None not in [run.score for run in trial.all_runs]
    assert optimiser.metric is right


def test_a_metric_that_raises_gives_no_point(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        if example.question.endswith("1"):
            raise ValueError("no verdict")
        return 1.0

    with hs.record(memory):
        dspy.BootstrapFewShot(metric=metric, max_labeled_demos=0, max_bootstrapped_demos=9).compile(
            Ask(), trainset=TRAIN
        )
    [trial] = memory.trials()
    [failed] = [run for run in trial.runs if run.failed]
    assert (failed.score, failed.feedback) == (0.0, "ValueError: no verdict")
    assert trial.score == pytest.approx(5 / 6)


@pytest.mark.parametrize("seed", range(3))
def test_the_first_candidate_is_the_one_that_the_optimiser_returned(
    memory: hs.StepMemory, lm: ScriptedLM, seed: int
) -> None:
    pytest.importorskip("optuna", reason="MIPROv2 searches with optuna (dspy[optuna])")
    optimiser = dspy.MIPROv2(
        metric=right,
        auto=None,
        num_candidates=6,
        seed=seed,
        num_threads=1,
        max_bootstrapped_demos=0,
        max_labeled_demos=0,
        prompt_model=lm,
        verbose=False,
    )
    val = examples(100, 12)
    with hs.record(memory):
        best = optimiser.compile(
            Ask(), trainset=TRAIN, valset=val, num_trials=8, minibatch_size=2,
            minibatch_full_eval_steps=8,
        )  # fmt: skip
    trials = memory.trials()
    assert trials[0].percent == best.score
    assert len(trials[0].runs) == len(val)
    kinds = [trial.kind for trial in trials]
    assert kinds == sorted(kinds), "those that were scored fully stand first"
    assert {"full", "minibatch"} == set(kinds)
    assert "minibatch" in str(trials)


def test_a_teacher_is_no_candidate(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    optimiser = dspy.BootstrapFewShotWithRandomSearch(
        metric=right, num_candidate_programs=2, num_threads=1, max_bootstrapped_demos=1
    )
    with hs.record(memory):
        best = optimiser.compile(Ask(), trainset=TRAIN)
    trials = memory.trials()
    full = [trial for trial in trials if trial.kind == "full"]
    assert [trial.kind for trial in trials] == ["full"] * len(full) + ["teacher"] * (
        len(trials) - len(full)
    )
    assert len(trials) > len(full)
    own = {each["score"] for each in best.candidate_programs}
    assert {trial.percent for trial in full} == own
    assert trials[0].percent == max(own)


def test_the_base_is_the_student_as_it_was_given(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    student = Ask()
    with hs.record(memory):
        dspy.COPRO(metric=right, breadth=2, depth=1).compile(
            student, trainset=TRAIN, eval_kwargs={"num_threads": 1}
        )
        dspy.BootstrapFewShot(metric=right, max_labeled_demos=2).compile(student, trainset=TRAIN)
        dspy.Evaluate(devset=TRAIN, metric=right, num_threads=1)(student)
    *_, evaluated = [trial for trial in memory.trials() if trial.optimiser is None]
    copro = [trial for trial in memory.trials() if trial.optimiser == "COPRO"]
    assert [trial.candidate for trial in copro if trial.base] == [evaluated.candidate]
    assert {trial.base for trial in copro} == {True, False}
    assert evaluated.base is None, "nothing was compiled"
    [teacher] = [trial for trial in memory.trials() if trial.optimiser == "BootstrapFewShot"]
    assert teacher.base is None, "the student itself was never tried"
    assert teacher.kind == "teacher"


def test_repeats_of_an_example_are_compared_one_by_one(
    memory: hs.StepMemory, lm: ScriptedLM
) -> None:
    twins = [dspy.Example(question="coin?", answer=a).with_inputs("question") for a in "ab"]
    scores = iter([1.0, 0.0])
    with hs.record(memory):
        dspy.Evaluate(devset=twins, metric=lambda *_: next(scores), num_threads=1)(Ask())
    [trial] = memory.trials()
    diff = hs.compare_trials(memory, trial, trial)
    assert (diff.better, diff.worse, len(diff.examples)) == ([], [], 2)
    assert [(each.score_a, each.score_b) for each in diff.examples] == [(1.0, 1.0), (0.0, 0.0)]


def test_candidates_without_a_common_example_are_said_to_have_none(
    memory: hs.StepMemory, lm: ScriptedLM
) -> None:
    with hs.record(memory):
        for part in (examples(0, 2), examples(2, 4)):
            dspy.Evaluate(devset=part, metric=lambda *_: 1.0, num_threads=1)(Ask())
    diff = hs.compare_trials(memory, *memory.trials())
    assert str(diff).endswith("no example was tried with both")


def test_a_run_without_a_score_is_told_of(memory: hs.StepMemory, lm: ScriptedLM) -> None:
    says = iter([1.0, float("nan"), 1.0])
    with hs.record(memory):
        dspy.Evaluate(devset=examples(0, 3), metric=lambda *_: next(says), num_threads=1)(Ask())
    [trial] = memory.trials()
    assert trial.score == 1.0
    assert trial.percent is None
    assert trial.unscored == [trial.runs[1].example]
    assert "2/3" in str(memory.trials())


def test_an_evaluation_that_was_broken_off_has_no_score(
    memory: hs.StepMemory, lm: ScriptedLM
) -> None:
    class Failing(Ask):
        def forward(self, question: str) -> Any:
            raise RuntimeError("no idea")

    evaluate = dspy.Evaluate(devset=TRAIN, metric=right, num_threads=1, max_errors=1)
    with hs.record(memory), pytest.raises(Exception, match="cancelled"):
        evaluate(Failing())
    [trial] = memory.trials()
    assert (trial.score, trial.percent) == (None, None)
    assert trial.failed == trial.unscored == [run.example for run in trial.runs]


def test_tables_are_harmless_and_as_wide_as_the_terminal(
    memory: hs.StepMemory, lm: ScriptedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wild = dspy.Example(id="e\x1b[2J" + "e" * 90, question="x").with_inputs("question")
    feedback = "\x1b[31mred\u202e \x07" + "words " * 50
    for score in (0.0, 1.0):
        metric = lambda *_, score=score: dspy.Prediction(score=score, feedback=feedback)  # noqa: E731
        with hs.record(memory):
            dspy.Evaluate(devset=[wild], metric=metric, num_threads=1)(Ask())
    trials = memory.trials()
    for shown in (trials, trials[0], hs.compare_trials(memory, trials[1], trials[0])):
        lines = str(shown).splitlines()
        assert all(line.isprintable() for line in lines)
        assert max(map(len, lines)) <= 80
        assert trials[0].candidate in str(shown)


@pytest.mark.parametrize("unfit", [None, 7])
def test_what_is_no_candidate_is_refused(memory: hs.StepMemory, unfit: Any) -> None:
    with pytest.raises(InvalidQueryError, match=r"memory\.trials"):
        hs.compare_trials(memory, unfit, "name")
