"""What memory is worth to a model that copies: next actions of tasks that nobody has seen.

The copier gives the answer of one demonstration in its prompt: of the last one where these are
ordered by nearness, else of the one whose words are most like the question's. So the table shows
what is put before a model, not what a model makes of it; `--model` asks a small real one.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import dspy

import hybridagi_steps as hs
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.step_text import tokens
from hybridagi_steps.records.store_values import FloatMatrix
from tests.benchmarks.learning_runs import (
    REPLIES,
    STATES,
    NextAction,
    RealRun,
    Replay,
    State,
    examples,
    hs_testing,
    recorded_memory,
)
from tests.benchmarks.ranking import Values, interval, paired

ZERO, RANDOM, LABELED, KNN, OURS, BOOTSTRAP = (
    "zero-shot: most common tool",
    "3 random demos",
    "LabeledFewShot 16",
    "KNNFewShot",
    "WithExperience",
    "BootstrapFromMemory 16",
)
COPIES = 9
"""Poisoned copies of each run: nine tenths of the memory."""
_TOOL = re.compile(r"\[\[ ## tool ## \]\]\s*(\S+)")
_COUNTED = 3


@dataclass
class Answers:
    """What one way of asking gave, by task."""

    right: Values = field(default_factory=dict[str, list[float]])
    among: Values = field(default_factory=dict[str, list[float]])
    """Whether the right tool was among the demonstrations."""
    replies: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])
    """Which of the answers were to be plain replies."""
    lm_calls: float = 0.0
    lm_tokens: float = 0.0
    cpu_seconds: float = 0.0

    def without_replies(self, values: Values) -> Values:
        """Return the values of states after which a tool was used."""
        kept = {
            task: [v for v, reply in zip(found, self.replies[task], strict=True) if not reply]
            for task, found in values.items()
        }
        return {task: found for task, found in kept.items() if found}


class Copier:
    """Makes a model that copies, and remembers what it was shown."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered, self.shown = ordered, list[list[str]]()
        self.lm: Any = hs_testing().ScriptedLM(self._reply)

    def _reply(self, request: Any) -> str:
        said = [message.text or "" for message in request.messages]
        demos = list(zip(said[0:-1:2], said[1::2], strict=False))
        self.shown.append([found[1] for _, told in demos if (found := _TOOL.search(told))])
        if not demos:
            return "[[ ## tool ## ]]\nnone\n\n[[ ## completed ## ]]"
        if self.ordered:
            return demos[-1][1]
        asked = set(tokens(said[-1]))
        return max(demos, key=lambda demo: _likeness(asked, set(tokens(demo[0]))))[1]


class Nearest(Replay):
    """Shows the nearest labelled examples, as KNNFewShot chooses them, nearest last."""

    def __init__(self, knn: Any) -> None:
        super().__init__()
        self.knn = knn

    def ask(self, state: State) -> str:
        """Decide at one state."""
        self.act.demos = [*self.knn(**state.inputs)][::-1]
        return super().ask(state)


def copier_answers(
    runs: Sequence[RealRun], memory: hs.StepMemory, k: int, embedders: dict[str, Any]
) -> dict[str, Answers]:
    """Return the answers of every way of asking, each task held out in turn."""
    found = {ZERO: _most_common(runs)}
    student = Replay()
    for name, count in ((RANDOM, 3), (LABELED, 16)):
        few_shot = dspy.LabeledFewShot(k=count)

        def labelled(held: Sequence[RealRun], few_shot: Any = few_shot) -> Any:
            return few_shot.compile(student, trainset=examples(held))

        found[name] = asked(runs, labelled, ordered=False)
    for name, embedder in embedders.items():
        found[f"{KNN} ({name})"] = _knn(runs, k, embedder)
    found[OURS] = experienced(runs, memory, k)

    def bootstrapped(held: Sequence[RealRun]) -> Any:
        out = [run for run in runs if run not in held]
        judged = [
            dspy.Example(run_id=run.run_id, task=run.task).with_inputs("run_id", "task")
            for run in out
        ]
        teleprompter = hs.BootstrapFromMemory(memory, max_demos=16, group=by_task)
        return teleprompter.compile(student, valset=judged)

    found[BOOTSTRAP] = asked(runs, bootstrapped, ordered=False)
    return found


def experienced(runs: Sequence[RealRun], memory: hs.StepMemory, k: int, **options: Any) -> Answers:
    """Return the answers of a program with experience."""
    program = hs.WithExperience(
        Replay(), memory, k, group=by_task, warn=False, on_error="raise", **options
    )
    return asked(runs, lambda _: program, ordered=True, memory=memory)


def asked(
    runs: Sequence[RealRun],
    program_of: Callable[[Sequence[RealRun]], Any],
    *,
    ordered: bool,
    memory: hs.StepMemory | None = None,
    lm: Any = None,
) -> Answers:
    """Play every run with a program that has not seen its task."""
    found, copier = Answers(), Copier(ordered=ordered)
    lm = lm or copier.lm
    begin = time.process_time()
    for run in runs:
        held = [other for other in runs if other.task != run.task]
        program = program_of(held)
        copier.shown.clear()
        trial: Any = nullcontext() if memory is None else hs.record(memory, scope="learning")
        with dspy.context(lm=lm), trial:
            decided = program(run_id=run.run_id, task=run.task).tools
        wanted = [state.tool for state in STATES[run.run_id]]
        _add(found, run, [float(a == b) for a, b in zip(decided, wanted, strict=True)])
        if copier.shown:
            among = [float(a in b) for a, b in zip(wanted, copier.shown, strict=True)]
            found.among.setdefault(run.task, []).extend(among)
    found.cpu_seconds = time.process_time() - begin
    states = sum(map(len, found.right.values()))
    if lm is copier.lm:
        found.lm_calls = len(lm.requests) / states
        found.lm_tokens = sum(_tokens(request) for request in lm.requests) / states
    return found


def calls_of_knn(runs: Sequence[RealRun], k: int, embedder: Any) -> tuple[float, float]:
    """Return the calls and tokens that DSPy's own KNNFewShot makes for one answer."""
    copier = Copier(ordered=True)
    held = examples(runs[1:])
    optimiser = dspy.KNNFewShot(k=k, trainset=held, vectorizer=vectorizer(embedder))
    program = optimiser.compile(dspy.Predict(NextAction))
    quiet = redirect_stderr(StringIO())  # it draws the progress of each answer
    with quiet, redirect_stdout(StringIO()), dspy.context(lm=copier.lm):
        for state in runs[0].states()[:_COUNTED]:
            program(**state.inputs)
    requests = copier.lm.requests
    return len(requests) / _COUNTED, sum(map(_tokens, requests)) / _COUNTED


def poisoned(memory: hs.StepMemory, tools: Sequence[str], *, scored: bool) -> hs.StepMemory:
    """Return a memory in which of ten runs nine are copies with the same words and wrong actions.

    With `scored` it is known which: copies have the score -1, originals what they had, else 0.
    """
    made = hs.StepMemory(":memory:", embedder=memory.embedder)
    stored = [step for step in memory.iter_steps() if step.scope is None]
    made.add([step.model_copy(update={"score": None}) for step in stored])
    runs = sorted({str(step.run_id) for step in stored})
    for copy in range(COPIES):
        made.add([_poison(step, copy, tools) for step in stored])
        for run in runs if scored else ():
            made.score(f"{run} {copy}", -1.0)
    ended = memory.run_scores(runs)
    for run in runs if scored else ():
        made.score(run, ended.get(run, 0.0))
    made.flush()
    return made


def tuned(runs: Sequence[RealRun], memory: hs.StepMemory) -> list[dict[str, float]]:
    """Return accuracy under other weights, without replies."""
    grid: list[dict[str, float]] = []
    for prefer in (0.0, 0.05, 0.2):
        found = experienced(runs, memory, 3, prefer=prefer)
        values = interval(found.without_replies(found.right))
        among = interval(found.without_replies(found.among))
        grid.append({"prefer": prefer, "accuracy": values.mean, "among_3": among.mean})
    return grid


def gains(found: dict[str, Answers], over: str) -> dict[str, Any]:
    """Return how much better experience is than another way, without replies."""
    ours, theirs = found[OURS], found[over]
    differences = paired(ours.without_replies(ours.right), theirs.without_replies(theirs.right))
    return interval(differences)._asdict()


def _most_common(runs: Sequence[RealRun]) -> Answers:
    found = Answers()
    for run in runs:
        others = [s.tool for other in runs if other.task != run.task for s in other.states()]
        [(top, _)] = Counter(others).most_common(1)
        _add(found, run, [float(state.tool == top) for state in run.states()])
    return found


def _knn(runs: Sequence[RealRun], k: int, embedder: Any) -> Answers:
    def nearest(held: Sequence[RealRun]) -> Any:
        return Nearest(dspy.KNN(k=k, trainset=examples(held), vectorizer=vectorizer(embedder)))

    found = asked(runs, nearest, ordered=True)
    found.lm_calls, found.lm_tokens = calls_of_knn(runs, k, embedder)
    return found


def vectorizer(embedder: Any) -> Any:
    """Return an embedder as DSPy takes it."""

    def embed(texts: list[str]) -> FloatMatrix:
        return embedder.embed_documents(texts)

    return dspy.Embedder(embed)


def _add(found: Answers, run: RealRun, right: list[float]) -> None:
    found.right.setdefault(run.task, []).extend(right)
    replies = [state.tool in REPLIES for state in run.states()]
    found.replies.setdefault(run.task, []).extend(replies)


def _poison(step: AgentStep, copy: int, tools: Sequence[str]) -> AgentStep:
    outputs = step.outputs
    if step.step_type == AgentStepType.Action and step.predictor and "tool" in (outputs or {}):
        wrong = [tool for tool in tools if tool != (outputs or {})["tool"]]
        outputs = {**(outputs or {}), "tool": wrong[copy % len(wrong)]}
    names = {
        name: f"{id_text(value)} {copy}"
        for name in ("id", "parent_id", "run_id", "program_id")
        if (value := getattr(step, name)) is not None
    }
    return step.model_copy(update={**names, "outputs": outputs, "score": None})


def by_task(inputs: dict[str, Any]) -> str:
    """Return what runs are grouped by."""
    return inputs["task"]


def _likeness(one: set[str], two: set[str]) -> float:
    return len(one & two) / max(1, len(one | two))


def _tokens(request: Any) -> int:
    """Return about how many tokens a request has: four characters each."""
    return sum(len(message.text or "") for message in request.messages) // 4


__all__ = ["Answers", "copier_answers", "experienced", "poisoned", "recorded_memory", "tuned"]
