"""Outlook: how past runs went in which a like step was taken in a like state; no model is asked.

A step is compared by what was known when it was planned (what was asked, the step before, its
purpose) and what was planned (tool and arguments), never by what came of it: so a run under way and
a step that is only planned are judged like a finished one. Of the nearest past steps with the same
action it counts those whose run ended well. That is a share of a few neighbours and as good as the
past is like the present; `reliability` measures it on the memory's own history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hybridagi_steps.dspy_types import QueryWithSteps
from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.optimize.exclusion import (
    Exclusion,
    Exclusions,
    Fence,
    Ties,
    examples_of,
    exclusions,
    narrowed,
    of_served_user,
)
from hybridagi_steps.optimize.stored_runs import GOOD, action_of, check_memory, steps_given
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.step_text import cut, own_text
from hybridagi_steps.search.formulas import Aim
from hybridagi_steps.validation import Steps, Where, whole_number

FEWEST = 3
"""Scored neighbours below which there is no share."""
_LOWEST, _PARENT = 3, 400
_MORE = 4
"""How many times k steps are looked at for k of a kind that no filter knows."""


@dataclass(frozen=True, slots=True)
class StepOutlook:
    """What followed where the like of one step was done before."""

    step: AgentStep
    action: str
    """Its tool, else what was chosen, else its predictor."""
    chance: float | None
    """Share of the scored neighbours whose run ended well; None: there are fewer than three."""
    neighbours: tuple[StepHit, ...]
    """The most similar past steps with the same action, nearest first, scored or not."""
    agreement: dict[str, float]
    """Shares of what was done in like states, the most common first."""
    well: int
    """How many of the scored neighbours were in runs that ended well."""
    scored: int
    """How many neighbours were in scored runs."""

    def __str__(self) -> str:
        if self.chance is None:
            return f"step {self.step.hop} {self.action}: {self.scored} scored neighbours"
        return (
            f"step {self.step.hop} {self.action} {self.chance:.2f} ({self.well} of {self.scored})"
        )


@dataclass(frozen=True, slots=True)
class Outlook:
    """How the like of some steps went before. Prints as two lines."""

    steps: tuple[StepOutlook, ...]
    """One for each step that does something, in their order."""

    @property
    def chance(self) -> float | None:
        """Mean of the steps' chances; None: no step has one."""
        known = [step.chance for step in self.steps if step.chance is not None]
        return fmean(known) if known else None

    @property
    def agreement(self) -> dict[str, float]:
        """What was done in states like that of the last step, as shares."""
        return self.steps[-1].agreement if self.steps else {}

    @property
    def lowest(self) -> list[StepOutlook]:
        """The three steps with the lowest chance, lowest first."""
        known = [step for step in self.steps if step.chance is not None]
        return sorted(known, key=lambda step: step.chance or 0.0)[:_LOWEST]

    def __str__(self) -> str:
        if self.chance is None:
            return (
                "chance unknown: fewer than three similar steps of scored runs\n"
                f"done in like states: {_shares(self.agreement) or 'nothing known'}"
            )
        counted = sum(step.chance is not None for step in self.steps)
        return (
            f"chance {self.chance:.2f}, the mean of {counted} of {len(self.steps)} steps; "
            f"done in like states: {_shares(self.agreement) or 'nothing known'}\n"
            f"lowest: {'; '.join(map(str, self.lowest))}"
        )


def outlook(
    memory: StepMemory, steps: Steps, *, k: int = 8, exclude: Exclusions = (), where: Where = None
) -> Outlook:
    """Tell how past runs went that did the like of these steps in like states.

    Args:
        memory: Where the past is, without trials and the runs of `steps`.
        steps: A finished run, one under way, or a single step, which need not be stored: one that
            is only planned names its `parent_id` and has no outputs.
        k: How many neighbours are asked for each step.
        exclude: What `hs.exclude` names: it is not seen.
        where: Which past steps are looked at.

    Returns:
        The outlook. A step that names a user sees that user's past only; one that names none that
        of the user whom `where` or the run around this names, else everybody's. What it is made of
        is not noted as recalled: whoever hands neighbours on to a prompt says so with
        `note_recalled`.

    Raises:
        InvalidFilterError: An unknown key in `where`, or something else in `exclude`.
        InvalidQueryError: `k` is no whole number above zero.
        InvalidMemoryError: This is no memory.
        InvalidStepError: These are no steps.
    """
    check_memory(memory)
    whole_number("k", k, 1, InvalidQueryError)
    given = steps_given(steps)
    return Outlook(tuple(step_outlooks(memory, given, k, exclusions(exclude), where, ())))


def step_outlooks(
    memory: StepMemory,
    given: Sequence[AgentStep],
    k: int,
    excluded: Sequence[Exclusion],
    where: Where,
    unseen: Collection[str],
) -> list[StepOutlook]:
    """Return the outlook of each step that does something; no run `unseen` or its own is seen."""
    asked, parents = narrowed(where, excluded), _parents(memory, given)
    own = {step.run_id for step in given} | {
        parents[id_text(step.parent_id)].run_id
        for step in given
        if step.run_id is None and step.parent_id and id_text(step.parent_id) in parents
    }
    own = {run_id for run_id in own if run_id is not None}
    found: list[tuple[AgentStep, str, list[StepHit], dict[str, float]]] = []
    for step in given:
        action = action_of(step)
        if action is None:
            continue
        seen = StepFilter(
            exclude_run_id=sorted({*unseen, *own}),
            step_types=step.step_type,
            kinds="step",
            **({} if step.user_id is None else {"user_id": step.user_id}),
        )
        past = _Past(
            memory,
            of_served_user(memory, asked.and_(seen)),
            examples_of(excluded),
        )
        parent = parents.get(id_text(step.parent_id)) if step.parent_id else None
        near = _same_action(past, step, parent, k)
        found.append((step, action, near, _agreement(past, step, parent, k)))
    ended = memory.run_scores({str(hit.step.run_id) for _, _, near, _ in found for hit in near})
    made: list[StepOutlook] = []
    for step, action, near, agreement in found:
        scores = [_score(hit.step, ended) for hit in near]
        known = [score >= GOOD for score in scores if score is not None]
        chance = sum(known) / len(known) if len(known) >= FEWEST else None
        counts = sum(known), len(known)
        made.append(StepOutlook(step, action, chance, tuple(near), agreement, *counts))
    return made


@dataclass(frozen=True, slots=True)
class _Past:
    """What may be seen of a memory."""

    memory: StepMemory
    seen: StepFilter | None
    """None: nothing."""
    examples: frozenset[str]
    """Trials of these, and what descends from them, are not seen."""

    def like(
        self, query: str | QueryWithSteps, k: int, keys: dict[str, Any], aim: Aim | None = None
    ) -> list[StepHit]:
        if self.seen is None:
            return []
        where = self.seen.model_copy(update=keys)
        most = k * _MORE if self.examples else k
        with unnoted():
            hits = self.memory.search(query, most, where=where, aim=aim)
        if self.examples:
            ties = Ties(examples=self.examples)
            tied = Fence(self.memory, None).tied([hit.step for hit in hits], ties)
            return [hit for hit in hits if hit.step.run_id not in tied][:k]
        return list(hits)


def _same_action(past: _Past, step: AgentStep, parent: AgentStep | None, k: int) -> list[StepHit]:
    """Return the steps nearest to what was planned that did the same."""
    text = own_text(step.model_copy(update={"outputs": None}))
    if parent is not None:
        text = f"{text} | {cut(own_text(parent), _PARENT)}"
    if step.step_type == AgentStepType.Decision:  # no filter knows what was chosen
        made_by = {"predictors": [step.predictor]} if step.predictor is not None else {}
        hits = past.like(text, _MORE * k, made_by)
        return [hit for hit in hits if action_of(hit.step) == action_of(step)][:k]
    return past.like(text, k, {"tools" if step.tool else "predictors": [action_of(step)]})


def _agreement(past: _Past, step: AgentStep, parent: AgentStep | None, k: int) -> dict[str, float]:
    """Return the shares of what was done in the k states most like that of a step."""
    inputs = {key: value for key, value in (step.inputs or {}).items() if key != "tool"}
    keys: dict[str, list[str]] = {}
    if step.tool:
        inputs["arguments"] = {}  # those of a tool are part of what was done
    elif step.predictor is not None:
        keys = {"predictors": [step.predictor]}
    state = own_text(step.model_copy(update={"inputs": inputs, "outputs": None}))
    hits: Sequence[StepHit] = ()
    if parent is not None:
        text = f"{state} | {cut(own_text(parent), _PARENT)}"
        query = QueryWithSteps.from_hits(text, [StepHit(step=parent, score=1.0)])
        hits = past.like(query, k, keys, "next")
    elif state.strip(" |->"):
        hits = past.like(state, k, keys)
    done = Counter(action for hit in hits if (action := action_of(hit.step)) is not None)
    return {action: count / done.total() for action, count in done.most_common()}


def _parents(memory: StepMemory, given: Sequence[AgentStep]) -> dict[str, AgentStep]:
    """Return the steps before some steps by id, those that are not among them from the memory."""
    known = {id_text(step.id): step for step in given}
    wanted = {id_text(step.parent_id) for step in given if step.parent_id is not None}
    stored = memory.get_steps(sorted(wanted - known.keys()))
    return known | {id_text(step.id): step for step in stored}


def _score(step: AgentStep, ended: dict[str, float]) -> float | None:
    """Return how a step's run ended; of a run without a score how the step itself was scored."""
    return ended.get(str(step.run_id), step.score)


def _shares(agreement: dict[str, float]) -> str:
    return ", ".join(f"{action} {share:.0%}" for action, share in list(agreement.items())[:3])
