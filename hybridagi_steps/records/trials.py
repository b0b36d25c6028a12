"""Trials: what an optimiser or an evaluation tried, read back from the steps that it left.

The steps of a trial run carry `metadata.trial`: `optimiser`, `compile_id`, `candidate` (a state of
the program), `split`, `example`, `evaluation`, and whether it ran as a `teacher` or as the `base`.
Its last step is marked, so that a table of candidates reads one step a run. Pure values: a memory
brings the steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Literal, NamedTuple, cast

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.listings import Preformatted
from hybridagi_steps.records.provenance import ORIGIN, CandidateOrigin, candidate_origin

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
    origin: CandidateOrigin | None = None
    """What GEPA made it of; None of other optimisers."""

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
        lines = [_RUN_HEAD]
        for run in self.runs:
            told = run.error or run.feedback or ""
            lines.append([run.example, run.split, number(run.score), run.run_id, told])
        return f"{_candidates([self])}\n\n{as_table(lines)}"


class TrialTable(Preformatted, list[TrialSummary]):
    """Candidates, the best first; prints as a table, each of GEPA's below its parent."""

    def __str__(self) -> str:
        return _candidates(self) if self else "no trials"

    __repr__ = __str__


@dataclass(slots=True)
class _Candidate:
    """What the last steps of a candidate's runs tell."""

    optimiser: str | None
    runs: list[TrialRun] = field(default_factory=list[TrialRun])
    state: dict[str, Any] | None = None
    origin: dict[str, Any] | None = None
    base: bool = False


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
    tried: dict[tuple[str, str], _Candidate] = {}
    proposers: dict[str, dict[str, Any]] = defaultdict(dict)
    for step in ends:
        metadata, run_id = step.metadata or {}, step.run_id
        if not isinstance(metadata.get(TRIAL), dict) or run_id is None:
            continue
        label = cast("dict[str, Any]", metadata[TRIAL])
        if label["candidate"] is None:
            proposers[label["proposal"]][run_id] = step.outputs or {}
            continue
        key = str(label["compile_id"]), str(label["candidate"])
        each = tried.setdefault(key, _Candidate(label.get("optimiser")))
        each.state = metadata.get(PROGRAM_STATE, each.state)
        each.origin = metadata.get(ORIGIN, each.origin)
        each.base |= bool(label.get("base"))
        each.runs.append(_run(label, step, run_id, feedback.get(run_id)))
    return _table(tried, proposers)


def _table(
    tried: Mapping[tuple[str, str], _Candidate], proposers: Mapping[str, Mapping[str, Any]]
) -> TrialTable:
    validated: dict[str, frozenset[str]] = defaultdict(frozenset)
    for (compile_id, _), each in tried.items():
        for evaluation in _evaluations(each.runs):
            examples = frozenset(run.example for run in evaluation if run.split == "val")
            validated[compile_id] = max(validated[compile_id], examples, key=len)
    widest = {key: _widest(each.runs, validated[key[0]]) for key, each in tried.items()}
    newest = {compile_id: n for n, compile_id in enumerate(dict.fromkeys(key[0] for key in tried))}
    most: dict[str, tuple[bool, bool, int]] = {}
    breadth = {key: _breadth(runs, validated[key[0]]) for key, runs in widest.items()}
    for (compile_id, _), broad in breadth.items():
        most[compile_id] = max(broad, most.get(compile_id, _NO_BREADTH))
    based = {key[0] for key, each in tried.items() if each.base}
    proposed = Counter(each.origin["proposal"] for each in tried.values() if each.origin)
    found = [
        TrialSummary(
            compile_id=key[0],
            optimiser=each.optimiser,
            candidate=key[1],
            base=each.base if key[0] in based else None,
            kind=_kind(widest[key], breadth[key], most[key[0]]),
            runs=widest[key],
            all_runs=each.runs,
            state=each.state,
            origin=candidate_origin(each.origin, each.state, proposers, proposed),
        )
        for key, each in tried.items()
    ]
    found.sort(
        key=lambda t: (
            newest[t.compile_id],
            breadth[t.compile_id, t.candidate],
            -inf if t.score is None else t.score,
        ),
        reverse=True,
    )
    return TrialTable(found)


def compiled_in(step: AgentStep) -> str | None:
    """Return the compilation or evaluation that a step is a trial of."""
    label: Any = (step.metadata or {}).get(TRIAL)
    return label.get("compile_id") if isinstance(label, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


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


_HEAD = ["compile", "optimiser", "candidate", "", "score", "examples", "failed", "runs"]
_ORIGIN_HEAD = ["iteration", "proposed"]
_RUN_HEAD = ["example", "split", "score", "run", "feedback"]


def _candidates(trials: Sequence[TrialSummary]) -> str:
    """Return candidates as a table, each of GEPA's below its parent."""
    from hybridagi_steps.display.terminal import depth_first

    names = [(trial.compile_id, trial.candidate) for trial in trials]
    above = [
        (each.compile_id, *(each.origin.parents[:1] if each.origin else ())) for each in trials
    ]
    rows = [_row_of(trials[n], depth) for n, depth in depth_first(names, above)]
    if any(trial.origin for trial in trials):
        return as_table([[*_HEAD, *_ORIGIN_HEAD], *rows])
    return as_table([_HEAD, *(row[: len(_HEAD)] for row in rows)])


def _row_of(trial: TrialSummary, depth: int) -> list[str]:
    examples, missing = len(trial.runs), len(trial.unscored)
    covered = f"{examples - missing}/{examples}" if missing else str(examples)
    marks = ["base"] * bool(trial.base) + [trial.kind] * (trial.kind != "full")
    name = f"{'  ' * depth}└ {trial.candidate}"[2:] if depth else trial.candidate
    named = [trial.compile_id[:8], trial.optimiser or "Evaluate", name, ", ".join(marks)]
    counts = [number(trial.score), covered, str(len(trial.failed)), str(len(trial.all_runs))]
    origin = ["", ""] if trial.origin is None else [str(trial.origin.iteration), str(trial.origin)]
    return [*named, *counts, *origin]


def number(score: float | None) -> str:
    """Return a score as tables show it."""
    return "–" if score is None else f"{score:.4g}"


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table as wide as the terminal, the first one its head."""
    from hybridagi_steps.display.terminal import as_text, rows_table

    return as_text(rows_table(rows, whole="candidate"))
