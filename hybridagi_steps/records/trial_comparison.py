"""Comparison of two candidates that an optimiser tried: where they did other things, and how well.

Examples that both were tried on are paired. Pure values: a memory brings the steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.listings import Preformatted
from hybridagi_steps.records.trials import TrialRun, TrialSummary, as_table, number


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
            [each.example, number(each.score_a), number(each.score_b), *_first(each)]
            for each in self.examples
        ]
        title = f"a {self.a.candidate} {number(self.a.score)}, b {self.b.candidate} "
        title += number(self.b.score)
        if not rows:
            return f"{title}: no example was tried with both"
        counts = f"{len(self.better)} better, {len(self.worse)} worse with b"
        return f"{title}: {counts}\n{as_table([head, *rows])}"


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
