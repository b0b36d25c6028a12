"""Credit assignment: from the score of a run to scores of its steps, without a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

from hybridagi_steps.errors import InvalidSettingError, UnknownRunError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.optimize.stored_runs import GOOD, check_memory, run_in_order
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.validation import check_score, chosen, one_id

Policy = Literal["all", "last", "path", "advantage"]
_LAST = 3


def credit(
    memory: StepMemory, run_id: str, value: float | None = None, policy: Policy = "all"
) -> dict[str, float]:
    """Score the steps of a run by what it came to.

    Args:
        memory: Where the run is.
        run_id: The run.
        value: What it came to; None: its score.
        policy: Who gets it. `all`: every step. `last`: the last three. `path`: the steps that lead
            to the last one along their parents, so that abandoned branches are spared. `advantage`:
            where several branches begin under one parent (tree search, retries, forks), the steps
            of each get .5 and half of its score minus the mean of the others', within 0 and 1: what
            it was worth to go there, where .5 is as good as the others. A branch of another run has
            that run's score; of this run the one with the last step has `value`, a branch with
            scored steps their mean, and one that was given up 0.

    Returns:
        What was written, by step id. Where the run itself is scored, steps that `last` and `path`
        spare get a neutral .5: without a score of their own they would show the run's.

    Raises:
        UnknownRunError: No step carries this run id.
        InvalidSettingError: There is no such policy, or neither a value nor a score of the run.
        InvalidStepError: `value` is no finite number.
    """
    check_memory(memory)
    chosen("policy", policy, Policy)
    steps, scored = run_in_order(memory, run_id), memory.run_scores([run_id]).get(one_id(run_id))
    if not steps:
        raise UnknownRunError(run_id)
    worth = scored if value is None else value
    if worth is None:
        raise InvalidSettingError(f"run {run_id!r} has no score: give a value, or score it first.")
    check_score(worth)
    if policy == "advantage":
        scores = _advantages(memory, steps, float(worth), scored)
    else:
        kept = {"all": steps, "last": steps[-_LAST:], "path": _path(steps)}[policy]
        spared = {} if scored is None else {id_text(step.id): GOOD for step in steps}
        scores = spared | {id_text(step.id): float(worth) for step in kept}
    memory.score_steps({**scores})
    return scores


def _path(steps: Sequence[AgentStep]) -> list[AgentStep]:
    """Return the steps from the first to the last along parents; without links all of them."""
    known = {id_text(step.id): step for step in steps}
    found: dict[str, AgentStep] = {}
    step: AgentStep | None = steps[-1]
    while step is not None and id_text(step.id) not in found:
        found[id_text(step.id)] = step
        step = known.get(id_text(step.parent_id)) if step.parent_id is not None else None
    linked = any(step.parent_id is not None for step in steps)
    return list(found.values()) if linked else list(steps)


def _advantages(
    memory: StepMemory, steps: Sequence[AgentStep], worth: float, scored: float | None
) -> dict[str, float]:
    """Return the advantage of each step of a branch; of nested branches the innermost counts."""
    below: dict[str, list[AgentStep]] = defaultdict(list)
    for step in steps:
        if step.parent_id is not None:
            below[id_text(step.parent_id)].append(step)
    beside = {
        parent: {s.run_id for s in memory.children(parent).steps if s.run_id} - {steps[0].run_id}
        for parent in below
    }
    elsewhere = memory.run_scores({str(run) for runs in beside.values() for run in runs})
    scores: dict[str, float] = {}
    for parent, children in below.items():  # outer branches come first
        branches = [_branch(child, below) for child in children]
        values = [_worth(branch, steps[-1], worth, scored) for branch in branches]
        others = [elsewhere[run] for run in beside[parent] if run in elsewhere]
        for place, branch in enumerate(branches):
            rest = [*values[:place], *values[place + 1 :], *others]
            if rest:
                better = GOOD + (values[place] - fmean(rest)) / 2
                scores |= {id_text(step.id): min(max(better, 0.0), 1.0) for step in branch}
    return scores


def _branch(first: AgentStep, below: Mapping[str, Sequence[AgentStep]]) -> list[AgentStep]:
    found: dict[str, AgentStep] = {}
    waiting = [first]
    while waiting:
        step = waiting.pop()
        if id_text(step.id) not in found:
            found[id_text(step.id)] = step
            waiting += below.get(id_text(step.id), ())
    return list(found.values())


def _worth(
    branch: Sequence[AgentStep], last: AgentStep, worth: float, scored: float | None
) -> float:
    """Return the score of a branch; a step that shows its run's score has none of its own."""
    if any(step.id == last.id for step in branch):
        return worth
    own = [step.score for step in branch if step.score is not None and step.score != scored]
    return fmean(own) if own else 0.0
