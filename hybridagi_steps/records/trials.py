"""Trials: what an optimiser or an evaluation tried, read back from the steps that it left.

The steps of a trial run carry `metadata.trial`: `optimiser`, `compile_id`, `candidate` (a state of
the program), `split`, `example`, `evaluation`, and whether it ran as a `teacher` or as the `base`.
Its last step is marked, so that a table of candidates reads one step a run. Pure values: a memory
brings the steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.listings import Preformatted

TRIAL = "trial"
TRIAL_END = "trial_end"
PROGRAM_STATE = "program_state"
"""Keys of metadata; the last two stand in the last step of a trial run, the state once a
candidate."""
_NO_BREADTH = (False, False, 0)


class TrialRun(NamedTuple):
    """One run of a candidate on one example."""

    example: str
    """The example's `id`, or 12 hexadecimal characters over its inputs."""
    split: str
    """`train`, `val` or `dev`."""
    run_id: str
    score: float | None
    """What the metric said; None when it said no number."""
    error: str | None
    """What the program failed with."""
    feedback: str | None
    """What the metric said in words."""
    evaluation: str
    created_at: datetime
    teacher: bool = False
    """Whether it was to give demonstrations, not to be compared."""

    @property
    def failed(self) -> bool:
        """Whether the program raised, or the metric gave no point."""
        return self.error is not None or (self.score is not None and self.score <= 0)


@dataclass(frozen=True, slots=True)
class TrialSummary(Preformatted):
    """One candidate of a compilation or evaluation, as its widest evaluation found it."""

    compile_id: str
    """Id of the compilation, or of an evaluation outside of any."""
    optimiser: str | None
    """The optimiser's class; None of a plain evaluation."""
    candidate: str
    """12 hexadecimal characters over the state of the program."""
    base: bool | None
    """Whether it is the student as `compile` was given it; None when that was never tried, and of a
    plain evaluation."""
    kind: Literal["full", "minibatch", "teacher"]
    """`full` when its runs cover as many examples as any candidate's of this compilation;
    `teacher` when it only gave demonstrations."""
    runs: list[TrialRun]
    """The runs of its widest evaluation: on `val` if there was one, else on most examples; of equal
    ones the last."""
    all_runs: list[TrialRun]
    """Every run of it, minibatches and sampled trajectories included."""
    state: dict[str, Any] | None = field(repr=False, default=None)
    """Of each predictor its instructions, fields and demos."""

    @property
    def score(self) -> float | None:
        """The mean score of those of its runs that have one; None when none has."""
        scores = [run.score for run in self.runs if run.score is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def percent(self) -> float | None:
        """The same as `dspy.Evaluate` says it; None unless every run has a score."""
        return None if self.score is None or self.unscored else round(100 * self.score, 2)

    @property
    def failed(self) -> list[str]:
        """The examples on which the program raised or got no point."""
        return [run.example for run in self.runs if run.failed]

    @property
    def unscored(self) -> list[str]:
        """The examples for which the metric gave no number, or was not asked."""
        return [run.example for run in self.runs if run.score is None]

    def __str__(self) -> str:
        lines = [_row_of(self)]
        for run in self.runs:
            told = run.error or run.feedback or ""
            lines.append([run.example, run.split, _number(run.score), run.run_id, told])
        return f"{_text([_HEAD, lines[0]])}\n\n{_text([_RUN_HEAD, *lines[1:]])}"


class TrialTable(Preformatted, list[TrialSummary]):
    """Candidates, the best first; prints as a table."""

    def __str__(self) -> str:
        return _text([_HEAD, *map(_row_of, self)]) if self else "no trials"

    __repr__ = __str__


class Difference(NamedTuple):
    """How two candidates did on one example, and where they first did different things."""

    example: str
    score_a: float | None
    score_b: float | None
    step_a: AgentStep | None
    """The first step of `a` that `b` did not do; None when both did the same."""
    step_b: AgentStep | None

    @property
    def gain(self) -> float:
        """How much better `b` did; 0 when one of the two has no score."""
        if self.score_a is None or self.score_b is None:
            return 0.0
        return self.score_b - self.score_a


@dataclass(frozen=True, slots=True)
class TrialDiff(Preformatted):
    """Two candidates beside one another; prints as a table."""

    a: TrialSummary
    b: TrialSummary
    examples: list[Difference]
    """Those that both were tried on, where the scores differ most first."""

    @property
    def better(self) -> list[str]:
        """Examples on which `b` did better than `a`."""
        return [each.example for each in self.examples if each.gain > 0]

    @property
    def worse(self) -> list[str]:
        """Examples on which `b` did worse than `a`."""
        return [each.example for each in self.examples if each.gain < 0]

    def __str__(self) -> str:
        head = ["example", "a", "b", "hop", "a did", "b did"]
        rows = [
            [each.example, _number(each.score_a), _number(each.score_b), *_first(each)]
            for each in self.examples
        ]
        title = f"a {self.a.candidate} {_number(self.a.score)}, b {self.b.candidate} "
        title += _number(self.b.score)
        if not rows:
            return f"{title}: no example was tried with both"
        counts = f"{len(self.better)} better, {len(self.worse)} worse with b"
        return f"{title}: {counts}\n{_text([head, *rows])}"


def summaries(
    marked: Iterable[AgentStep],
    compile_id: str | None,
    feedback_on: Callable[[Sequence[str]], Mapping[str, str]],
) -> TrialTable:
    """Return the candidates, of one compilation or all, that the last steps of trial runs tell of.

    They are marked `TRIAL_END`, in the order of the runs' ends; `feedback_on` returns what was said
    of runs, by their ids.
    """
    ends = [step for step in marked if compile_id in (None, compiled_in(step))]
    feedback = feedback_on([str(step.run_id) for step in ends])
    tried: dict[tuple[str, str], list[TrialRun]] = defaultdict(list)
    optimisers: dict[str, str | None] = {}
    states: dict[tuple[str, str], dict[str, Any]] = {}
    base: dict[str, str] = {}
    for step in ends:
        metadata = step.metadata or {}
        label, run_id = metadata.get(TRIAL), step.run_id
        if not isinstance(label, dict) or run_id is None:
            continue
        key = str(label["compile_id"]), str(label["candidate"])  # pyright: ignore[reportUnknownArgumentType]
        optimisers[key[0]] = label.get("optimiser")  # pyright: ignore[reportUnknownMemberType]
        if PROGRAM_STATE in metadata:
            states[key] = metadata[PROGRAM_STATE]
        if label.get("base"):  # pyright: ignore[reportUnknownMemberType]
            base[key[0]] = key[1]
        tried[key].append(_run(label, step, run_id, feedback.get(run_id)))  # pyright: ignore[reportUnknownArgumentType]
    validated: dict[str, frozenset[str]] = defaultdict(frozenset)
    for (compile_id, _), runs in tried.items():
        for evaluation in _evaluations(runs):
            examples = frozenset(run.example for run in evaluation if run.split == "val")
            validated[compile_id] = max(validated[compile_id], examples, key=len)
    widest = {key: _widest(runs, validated[key[0]]) for key, runs in tried.items()}
    newest = {compile_id: n for n, compile_id in enumerate(dict.fromkeys(key[0] for key in tried))}
    most: dict[str, tuple[bool, bool, int]] = {}
    breadth = {key: _breadth(runs, validated[key[0]]) for key, runs in widest.items()}
    for (compile_id, _), broad in breadth.items():
        most[compile_id] = max(broad, most.get(compile_id, _NO_BREADTH))
    found = [
        TrialSummary(
            compile_id=key[0],
            optimiser=optimisers[key[0]],
            candidate=key[1],
            base=key[1] == base[key[0]] if key[0] in base else None,
            kind=_kind(runs, breadth[key], most[key[0]]),
            runs=runs,
            all_runs=tried[key],
            state=states.get(key),
        )
        for key, runs in widest.items()
    ]
    found.sort(
        key=lambda t: (newest[t.compile_id], breadth[t.compile_id, t.candidate], _of(t.score)),
        reverse=True,
    )
    return TrialTable(found)


def compiled_in(step: AgentStep) -> str | None:
    """Return the compilation or evaluation that a step is a trial of."""
    label: Any = (step.metadata or {}).get(TRIAL)
    return label.get("compile_id") if isinstance(label, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class _TrialMemory(Protocol):
    def trials(self, compile_id: str | None = None) -> Sequence[TrialSummary]: ...
    def run_steps(self, run_id: str) -> list[AgentStep]: ...


def compare_trials(memory: _TrialMemory, a: TrialSummary | str, b: TrialSummary | str) -> TrialDiff:
    """Compare two candidates on the examples that both were tried on.

    Args:
        memory: Where their runs are.
        a: One candidate, such as the base; its name stands for the newest compilation that has it.
        b: Another one, such as the best.

    Returns:
        What each example's score was under both, and the first step in which the runs differ: what
        was done or came of it, whatever its instructions were. Repeats of an example are paired in
        the order in which they ran.

    Raises:
        InvalidQueryError: No trial of this memory has a candidate of that name, or it is no name.
    """
    known = memory.trials() if isinstance(a, str) or isinstance(b, str) else ()
    one, two = (_named(known, each) for each in (a, b))
    of_two: dict[str, list[TrialRun]] = defaultdict(list)
    for run in reversed(two.runs):
        of_two[run.example].append(run)
    found: list[Difference] = []
    for run in one.runs:
        if of_two[run.example]:
            other = of_two[run.example].pop()
            first = _first_difference(memory.run_steps(run.run_id), memory.run_steps(other.run_id))
            found.append(Difference(run.example, run.score, other.score, *first))
    found.sort(key=lambda each: -abs(each.gain))
    return TrialDiff(one, two, found)


def _named(trials: Sequence[TrialSummary], candidate: object) -> TrialSummary:
    """Return a candidate that is given itself, or by its name."""
    if isinstance(candidate, TrialSummary):
        return candidate
    for trial in trials:
        if trial.candidate == candidate:
            return trial
    raise InvalidQueryError(
        f"no trial of this memory has the candidate {candidate!r}; memory.trials() lists them."
    )


def _run(label: Mapping[str, Any], step: AgentStep, run_id: str, said: str | None) -> TrialRun:
    error: Any = (step.outputs or {}).get("error") if step.status != "ok" else None
    if isinstance(error, dict):
        error = f"{error.get('type')}: {error.get('message')}"  # pyright: ignore[reportUnknownMemberType]
    return TrialRun(
        example=str(label["example"]),
        split=str(label["split"]),
        run_id=run_id,
        score=step.score,
        error=None if error is None else str(error),
        feedback=said,
        evaluation=str(label.get("evaluation")),
        created_at=step.created_at,
        teacher=bool(label.get("teacher")),
    )


def _evaluations(runs: Sequence[TrialRun]) -> list[list[TrialRun]]:
    """Return runs by their evaluation, in order."""
    evaluations: dict[str, list[TrialRun]] = defaultdict(list)
    for run in runs:
        evaluations[run.evaluation].append(run)
    return list(evaluations.values())


def _widest(runs: Sequence[TrialRun], validated: frozenset[str]) -> list[TrialRun]:
    """Return the runs of the evaluation that covers most; of equal ones the last."""
    return max(reversed(_evaluations(runs)), key=lambda each: _breadth(each, validated))


def _breadth(runs: Sequence[TrialRun], validated: frozenset[str]) -> tuple[bool, bool, int]:
    """Return how much an evaluation says: whether no teacher's, whether on `val`, how many runs.

    `validated` are the examples that candidates of the compilation were validated on: without a
    valset GEPA does so on the trainset, and who ran on all of these ran on the same.
    """
    scored = sum(run.score is not None for run in runs)
    on_all = bool(validated) and validated <= {run.example for run in runs}
    return not runs[0].teacher, runs[0].split == "val" or on_all, scored


def _kind(
    runs: Sequence[TrialRun], breadth: tuple[bool, bool, int], most: tuple[bool, bool, int]
) -> Literal["full", "minibatch", "teacher"]:
    if runs[0].teacher:
        return "teacher"
    return "full" if breadth == most else "minibatch"


def _first_difference(
    one: Sequence[AgentStep], two: Sequence[AgentStep]
) -> tuple[AgentStep | None, AgentStep | None]:
    """Return the first steps that differ in what was done or came of it, not in its purpose."""
    for n in range(max(len(one), len(two))):
        a, b = (steps[n] if n < len(steps) else None for steps in (one, two))
        if a is None or b is None or _done(a) != _done(b):
            return a, b
    return None, None


def _done(step: AgentStep) -> tuple[Any, ...]:
    named = step.tool or step.program
    return step.step_type, step.predictor, named, step.arguments, step.outputs, step.status


def _first(each: Difference) -> list[str]:
    hop = each.step_a or each.step_b
    return ["" if hop is None else str(hop.hop), _short(each.step_a), _short(each.step_b)]


def _short(step: AgentStep | None) -> str:
    if step is None:
        return ""
    named = step.tool or step.program or step.predictor or str(step.step_type)
    return f"{named}: {step.outputs}"


_HEAD = ["compile", "optimiser", "candidate", "", "score", "examples", "failed", "runs"]
_RUN_HEAD = ["example", "split", "score", "run", "feedback"]


def _row_of(trial: TrialSummary) -> list[str]:
    examples, missing = len(trial.runs), len(trial.unscored)
    covered = f"{examples - missing}/{examples}" if missing else str(examples)
    marks = ["base"] * bool(trial.base) + [trial.kind] * (trial.kind != "full")
    named = [trial.compile_id[:8], trial.optimiser or "Evaluate", trial.candidate]
    counts = [_number(trial.score), covered, str(len(trial.failed)), str(len(trial.all_runs))]
    return [*named, ", ".join(marks), *counts]


def _of(score: float | None) -> float:
    return float("-inf") if score is None else score


def _number(score: float | None) -> str:
    return "–" if score is None else f"{score:.4g}"


def _text(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table as wide as the terminal, the first one its head."""
    from hybridagi_steps.display.terminal import as_text, rows_table

    return as_text(rows_table(rows, whole="candidate"))
