"""Reliability: how far outlook and agreement can be trusted, measured on a memory's own history.

Every run is looked at as if its task had never been seen: its own run and all runs of the same task
are left out. What is left in tells something, too: leaving out a run that ended well lowers the
share of good ones among the rest, so that even a share without any information would rank runs
below chance. The area under the curve therefore ranks by the distance to the share of what was left
in; bins and calibration error take the shares as they are.

References: Guo et al. 2017, "On Calibration of Modern Neural Networks" (calibration error); Hanley
and McNeil 1982, "The meaning and use of the area under a ROC curve".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.optimize.outlook import FEWEST, StepOutlook, step_outlooks
from hybridagi_steps.optimize.stored_runs import GOOD, action_of, runs_of
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.validation import Where, whole_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 10


class Bin(NamedTuple):
    """Predictions of about the same share."""

    low: float
    high: float
    predictions: int
    predicted: float
    """Mean of what was predicted."""
    observed: float
    """Share of what came true."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predicted shares beside what happened."""

    predicted: tuple[float, ...]
    happened: tuple[bool, ...]
    ranked_by: tuple[float, ...]
    """What the area under the curve ranks by."""

    @property
    def bins(self) -> list[Bin]:
        """Ten bins of equal width, without those that are empty."""
        placed: dict[int, list[tuple[float, bool]]] = {}
        for share, true in zip(self.predicted, self.happened, strict=True):
            placed.setdefault(min(int(share * _BINS), _BINS - 1), []).append((share, true))
        return [
            Bin(
                *(place / _BINS, (place + 1) / _BINS, len(held)),
                *(fmean(share for share, _ in held), fmean(true for _, true in held)),
            )
            for place, held in sorted(placed.items())
        ]

    @property
    def ece(self) -> float | None:
        """Expected calibration error, 0..1: mean distance of predicted and observed shares."""
        count = len(self.predicted)
        gaps = (each.predictions * abs(each.predicted - each.observed) for each in self.bins)
        return sum(gaps) / count if count else None

    @property
    def auc(self) -> float | None:
        """Chance that what happened ranks above what did not; None where all or nothing did."""
        return area_under_curve(self.ranked_by, self.happened)


@dataclass(frozen=True, slots=True)
class Reliability:
    """How far agreement and outlook are to be trusted. Prints as two lines."""

    agreement: Calibration
    """Of each step: the share of the most common action in like states, and whether it was done."""
    outlook: Calibration
    """Of each scored run: its chance, and whether it ended well."""
    tasks: int
    """Different tasks that the runs were about."""

    def __str__(self) -> str:
        return (
            f"agreement: {_told(self.agreement, 'steps')}\n"
            f"outlook: {_told(self.outlook, 'runs')}, {self.tasks} tasks"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw both as reliability curves: predicted shares, and what came of them.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from hybridagi_steps.plots.history import reliability_curves

        curves = {
            "agreement (steps)": [tuple(each) for each in self.agreement.bins],
            "outlook (runs)": [tuple(each) for each in self.outlook.bins],
        }
        return reliability_curves(curves, ax)


def reliability(
    memory: StepMemory,
    *,
    predictor: str | None = None,
    group: Callable[[AgentStep], Hashable] | None = None,
    k: int = 8,
    limit: int = 200,
    where: Where = None,
) -> Reliability:
    """Measure outlook and agreement on the user's own history, each task left out in turn.

    Args:
        memory: Whose history.
        predictor: Only steps of this predictor are looked at; None: all that do something.
        group: Returns what the task of a run is from its first step; None: runs whose first step
            has equal inputs are of one task.
        k: Neighbours asked for each step.
        limit: Most runs that are looked at, the newest; the past that they see is everything.
        where: Which steps are this history; by default those of the user that the run around it
            names, and where none is named everybody's, without trials.

    Raises:
        InvalidQueryError: `k` or `limit` is below 1, or no step was made by this predictor.
    """
    whole_number("k", k, 1, InvalidQueryError)
    whole_number("limit", limit, 1, InvalidQueryError)
    runs = runs_of(memory, where)
    tasks = {run_id: _task(steps[0], group) for run_id, steps in runs.items()}
    ended = {run: score >= GOOD for run, score in memory.run_scores(runs).items()}
    weights = {run: sum(action_of(step) is not None for step in runs[run]) for run in runs}
    agreed, judged = list[tuple[float, bool]](), list[tuple[float, bool, float]]()
    found_any = False
    for run_id in list(runs)[-limit:]:
        same = {run for run, task in tasks.items() if task == tasks[run_id]}
        steps = [step for step in runs[run_id] if predictor in (None, step.predictor)]
        found_any = found_any or bool(steps)
        found = step_outlooks(memory, steps, k, (), where, same)
        agreed += [(share, top == each.action) for each in found for top, share in _top(each)]
        known = [each.chance for each in found if each.chance is not None]
        if run_id in ended and known:
            rest = [run for run in ended if run not in same]
            base = sum(weights[run] * ended[run] for run in rest) / max(
                1, sum(weights[run] for run in rest)
            )
            judged.append((fmean(known), ended[run_id], fmean(known) - base))
    if predictor is not None and not found_any:
        raise InvalidQueryError(f"no step of this memory was made by {predictor!r}.")
    shares = tuple(share for share, _ in agreed)
    return Reliability(
        Calibration(shares, tuple(true for _, true in agreed), shares),
        Calibration(
            tuple(chance for chance, _, _ in judged),
            tuple(well for _, well, _ in judged),
            tuple(better for _, _, better in judged),
        ),
        len({tasks[run] for run in list(runs)[-limit:]}),
    )


def area_under_curve(ranked_by: Sequence[float], happened: Sequence[bool]) -> float | None:
    """Return how often what happened ranks above what did not, ties half; None without a pair.

    Reference: Fawcett 2006, "An introduction to ROC analysis".
    """
    if all(happened) or not any(happened):
        return None
    values, place = np.unique(ranked_by, return_inverse=True)
    labels = np.array(happened, np.float64)
    good = np.bincount(place, labels, minlength=len(values))
    bad = np.bincount(place, 1 - labels, minlength=len(values))
    below = np.cumsum(bad) - bad / 2
    return float((good * below).sum() / (good.sum() * bad.sum()))


def _task(first: AgentStep, group: Callable[[AgentStep], Hashable] | None) -> Hashable:
    return group(first) if group is not None else str(first.inputs)


def _top(each: StepOutlook) -> list[tuple[str, float]]:
    """Return the most common action with its share, where there are enough neighbours."""
    return list(each.agreement.items())[:1] if len(each.neighbours) >= FEWEST else []


def _told(found: Calibration, what: str) -> str:
    count = len(found.predicted)
    if found.ece is None:
        return f"not enough {what}"
    area = "no AUC, all alike" if found.auc is None else f"AUC {found.auc:.2f}"
    return f"calibration error {found.ece:.2f}, {area} ({count:,} {what})"
