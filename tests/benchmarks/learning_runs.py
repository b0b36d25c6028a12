"""Real runs as learning is measured on them: what was known before each step, and what was done.

A program that decides what to do next is played through each run and recorded, its model answering
what the agent of that run did: so a memory comes about as it does in life, with predictors,
signatures and lineage. Tried out, the program decides by itself, and the run goes on as it went:
one wrong answer does not spoil the next state. Who plays a task never sees another run of it.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy
import orjson
from dspy.utils.exceptions import AdapterParseError

import hybridagi_steps as hs
from hybridagi_steps.errors import ExchangeError, InvalidSettingError
from hybridagi_steps.exchange.shipped_runs import shipped_runs, shipped_steps
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.step_text import cut

REPLIES = ("respond",)
"""Tools that only answer; half of what agents do, so figures are given without them, too."""
SOURCE = "airline"
"""The domain of the copier's table; of runs without it the one with the most runs."""
_OUTCOMES = ("reward", "em", "win", "score")
_SAID, _RESULT = 300, 300
_TELLS_OUTCOME = "reward ="


@dataclass(frozen=True)
class State:
    """What was known before one step, and what was done then."""

    inputs: dict[str, str]
    tool: str
    arguments: dict[str, Any]
    result: Any


@dataclass(frozen=True)
class RealRun:
    """A run that was made elsewhere."""

    run_id: str
    domain: str
    task: str
    """Runs of one task share it."""
    score: float | None
    steps: list[AgentStep] = field(repr=False)

    def with_parents(self) -> list[tuple[AgentStep, AgentStep | None]]:
        """Return each step with the one before it; of steps without links the one that precedes."""
        if all(step.parent_id is None for step in self.steps):
            return list(zip(self.steps, [None, *self.steps], strict=False))
        by_id = {id_text(step.id): step for step in self.steps}
        return [
            (step, None if step.parent_id is None else by_id.get(id_text(step.parent_id)))
            for step in self.steps
        ]

    def states(self) -> list[State]:
        """Return what was known before each step with a tool."""
        first = self.steps[0].purpose
        found: list[State] = []
        for step, before in self.with_parents():
            if step.step_type != AgentStepType.Action or not step.tool:
                continue
            known = {
                "request": cut(first, _SAID),
                "last_message": cut(step.purpose, _SAID),
                "previous_call": ""
                if before is None
                else f"{before.tool} {cut(before.arguments, 100)}",
                "previous_result": "" if before is None else cut(before.result, _RESULT),
            }
            found.append(State(known, step.tool, step.arguments, step.result))
        return found


def real_runs(file: str = "") -> list[RealRun]:
    """Return the shipped runs, or those of a file in the form of data/runs.jsonl.

    Args:
        file: Its steps stand beside it, in a file whose name has `steps` where it has `runs`.
    """
    if file and "runs" not in Path(file).name:
        raise InvalidSettingError("--runs takes a file named like runs.jsonl, beside steps.jsonl.")
    rows: list[dict[str, Any]] = shipped_runs() if not file else _lines(Path(file))
    stored = shipped_steps() if not file else _steps(Path(file))
    steps: dict[str, list[AgentStep]] = {}
    for step in stored:
        if _TELLS_OUTCOME in str(step.result):  # the environment told the score: nobody's to learn
            step.outputs = {"result": ""}
        steps.setdefault(str(step.run_id), []).append(step)
    if odd := [row for row in rows if not isinstance(row.get("run_id"), str)]:
        raise ExchangeError(f"a run has a text as its run_id; {str(odd[0])[:80]} has none.")
    return [_run(row, steps[row["run_id"]]) for row in rows if steps.get(row["run_id"])]


def played_runs(runs: Sequence[RealRun]) -> list[RealRun]:
    """Return the runs of the domain that the copier plays."""
    common = Counter(run.domain for run in runs if run.states()).most_common(1)
    domains = {run.domain for run in runs}
    return of_domain(runs, SOURCE if SOURCE in domains or not common else common[0][0])


def of_domain(runs: Iterable[RealRun], domain: str) -> list[RealRun]:
    """Return the runs of a domain."""
    return [run for run in runs if run.domain == domain]


def plain_memory(runs: Sequence[RealRun], embedder: str) -> hs.StepMemory:
    """Return a memory with runs as they are, scored where it is known how they ended."""
    memory = hs.StepMemory(":memory:", embedder=embedder)
    memory.add([step for run in runs for step in run.steps])
    for run in runs:
        if run.score is not None:
            memory.score(run.run_id, run.score)
    memory.flush()
    return memory


class NextAction(dspy.Signature):
    """Choose the tool that is to be used next."""

    request: str = dspy.InputField()
    last_message: str = dspy.InputField()
    previous_call: str = dspy.InputField()
    previous_result: str = dspy.InputField()
    tool: str = dspy.OutputField()


class Replay(dspy.Module):
    """Decides at every state of a run; the run goes on as it went."""

    def __init__(self) -> None:
        super().__init__()
        self.act = dspy.Predict(NextAction)

    def forward(self, run_id: str, task: str) -> dspy.Prediction:
        """Return the tool that was decided for at each state."""
        decided: list[str] = []
        for state in STATES[run_id]:
            try:
                decided.append(str(self.ask(state)).strip())
            except AdapterParseError:  # a real model may answer in no form at all: that is wrong
                decided.append("")
            dspy.Tool(_as_it_went(state), name=state.tool)(**state.arguments)
        return dspy.Prediction(tools=decided)

    def ask(self, state: State) -> str:
        """Decide at one state."""
        return self.act(**state.inputs).tool


STATES: dict[str, list[State]] = {}
"""Of each run that can be played; a program that is copied need not carry them."""


def examples(runs: Iterable[RealRun]) -> list[dspy.Example]:
    """Return the states of runs as labelled examples."""
    return [
        dspy.Example({**state.inputs, "tool": state.tool}).with_inputs(*state.inputs)
        for run in runs
        for state in run.states()
    ]


def recorded_memory(runs: Sequence[RealRun], embedder: str) -> hs.StepMemory:
    """Return a memory that recorded a program doing what was done in these runs."""
    memory = hs.StepMemory(":memory:", embedder=embedder)
    for run in runs:
        STATES[run.run_id] = run.states()
        model = hs_testing().ScriptedLM([{"tool": state.tool} for state in run.states()])
        with dspy.context(lm=model), hs.record(memory) as recording:
            Replay()(run_id=run.run_id, task=run.task)
        if run.score is not None:
            memory.score(recording.id, run.score)
    memory.flush()
    return memory


def hs_testing() -> Any:
    """Return the test doubles of the library."""
    import hybridagi_steps.testing

    return hybridagi_steps.testing


def _as_it_went(state: State) -> Any:
    def replayed(**_: Any) -> Any:
        return state.result

    return replayed


def _run(row: dict[str, Any], steps: list[AgentStep]) -> RealRun:
    outcome = next((row[key] for key in _OUTCOMES if row.get(key) is not None), None)
    named = (row.get(key) for key in ("task_id", "task", "run_id"))
    task = next(each for each in named if each is not None)
    domain = str(row.get("domain", "runs"))
    return RealRun(
        row["run_id"],
        domain,
        f"{domain} {task}",
        None if outcome is None else float(outcome),
        steps,
    )


def _steps(runs: Path) -> list[AgentStep]:
    rows = _lines(runs.with_name(runs.name.replace("runs", "steps")))
    known = ({key: row[key] for key in row if key != "messages"} for row in rows)
    return [AgentStep.model_validate(row) for row in known]


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        return [orjson.loads(line) for line in file.read_bytes().splitlines() if line.strip()]
    except (OSError, orjson.JSONDecodeError) as error:
        raise ExchangeError(f"{file}: {error}.") from error
