"""What outlook, agreement, loops and recall of a task are worth: no model, each task held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hybridagi_steps as hs
from hybridagi_steps.optimize.feedback import first_trouble
from hybridagi_steps.optimize.reliability import area_under_curve
from hybridagi_steps.optimize.stored_runs import GOOD
from hybridagi_steps.records.step_text import cut, own_text
from tests.benchmarks.learning_runs import RealRun
from tests.benchmarks.ranking import RESAMPLES, interval

FIRST = 4
"""Steps after which an outlook is asked in the middle of a run."""
_HITS, _STATE = 5, 300


def outlook_table(runs: Sequence[RealRun], memory: hs.StepMemory, k: int) -> dict[str, Any] | None:
    """Return how well outlook and run length tell runs that ended well from others."""
    known = [run for run in runs if run.score is not None]
    good = [_well(run) for run in known]
    if not any(good) or all(good):
        return None
    return {
        "runs": len(known),
        "tasks": len({run.task for run in known}),
        "outlook": _area(known, lambda run: _ahead(memory, known, run, k)),
        "first steps": _area(known, lambda run: _ahead(memory, known, run, k, FIRST)),
        "run length": _area(known, lambda run: -float(len(run.steps))),
    }


def agreement_errors(
    runs: Sequence[RealRun], memory: hs.StepMemory, sizes: Sequence[int]
) -> dict[str, dict[str, float | None]]:
    """Return the calibration error of agreement and outlook among so many neighbours."""
    tasks = {run.run_id: run.task for run in runs}
    found: dict[str, dict[str, float | None]] = {}
    for k in sizes:
        trust = hs.reliability(memory, k=k, group=lambda first: tasks[str(first.run_id)])
        found[str(k)] = {"agreement": trust.agreement.ece, "outlook": trust.outlook.ece}
    return found


def loops_table(runs: Sequence[RealRun]) -> dict[str, Any] | None:
    """Return how many runs with a loop failed, beside all runs."""
    known = [run for run in runs if run.score is not None]
    if not known:
        return None
    flagged = [
        run for run in known if any(loop.kind == "same result" for loop in hs.find_loops(run.steps))
    ]
    return {
        "runs": len(known),
        "failed": _failed(known),
        "flagged": len(flagged),
        "flagged_failed": _failed(flagged) if flagged else None,
    }


def same_task_hits(runs: Sequence[RealRun], memory: hs.StepMemory) -> dict[str, Any] | None:
    """Return how often one of 5 hits is a step of another run of the task; None: no task has."""
    by_task: dict[str, set[str]] = {}
    for run in runs:
        by_task.setdefault(run.task, set()).add(run.run_id)
    twice = [run for run in runs if len(by_task[run.task]) > 1]
    if not twice:
        return None

    def share(texts_of: Callable[[RealRun], list[str]]) -> dict[str, Any]:
        found: dict[str, list[float]] = {}
        for run in twice:
            others = by_task[run.task] - {run.run_id}
            for text in texts_of(run):
                hits = memory.search(text, _HITS, where={"exclude_run_id": run.run_id})
                hit = any(hit.step.run_id in others for hit in hits)
                found.setdefault(run.task, []).append(float(hit))
        return interval(found)._asdict()

    return {
        "tasks": len({run.task for run in twice}),
        "first message": share(lambda run: [cut(run.steps[0].purpose, _STATE)]),
        "any state": share(_states),
    }


def decisive_steps(runs: Sequence[RealRun]) -> dict[str, Any] | None:
    """Return how often the first trouble is the step that people say decided, beside chance."""
    right: dict[str, list[float]] = {}
    chance: dict[str, list[float]] = {}
    for run in runs:
        marked = [s.hop for s in run.steps if (s.metadata or {}).get("is_mistake")]
        if not marked:
            continue
        trouble = first_trouble(run.steps)
        guess = run.steps[-1].hop if trouble is None else trouble[0].hop
        right[run.run_id] = [float(guess in marked)]
        chance[run.run_id] = [len(marked) / len(run.steps)]
    if not right:
        return None
    return {"runs": len(right), "right": interval(right)._asdict(), "chance": interval(chance).mean}


def _ahead(
    memory: hs.StepMemory, runs: Sequence[RealRun], run: RealRun, k: int, steps: int | None = None
) -> float:
    """Return how far a run's chance is above the share of good steps it was counted among."""
    same = hs.exclude.runs([other.run_id for other in runs if other.task == run.task])
    chance = hs.outlook(memory, run.steps[:steps], k=k, exclude=same).chance
    rest = [other for other in runs if other.task != run.task]
    total = sum(len(other.steps) for other in rest)
    base = sum(len(other.steps) * _well(other) for other in rest) / max(1, total)
    return 0.0 if chance is None else chance - base


def _area(runs: Sequence[RealRun], value: Callable[[RealRun], float]) -> dict[str, Any]:
    """Return an area under the curve with the interval of a bootstrap over tasks."""
    values, well = [value(run) for run in runs], [_well(run) for run in runs]
    tasks = sorted({run.task for run in runs})
    places = [[n for n, run in enumerate(runs) if run.task == task] for task in tasks]
    chance, areas = np.random.default_rng(0), list[float]()
    for _ in range(RESAMPLES // 4):
        drawn = [n for t in chance.integers(len(tasks), size=len(tasks)) for n in places[int(t)]]
        area = area_under_curve([values[n] for n in drawn], [well[n] for n in drawn])
        areas += [] if area is None else [area]
    low, high = np.percentile(areas, (2.5, 97.5))
    mean = area_under_curve(values, well)
    return {"mean": mean, "low": float(low), "high": float(high)}


def _failed(runs: Sequence[RealRun]) -> dict[str, Any]:
    values: dict[str, list[float]] = {}
    for run in runs:
        values.setdefault(run.task, []).append(float(not _well(run)))
    return interval(values)._asdict()


def _states(run: RealRun) -> list[str]:
    return [
        f"{cut(step.purpose, _STATE)} | {cut(own_text(before), _STATE)}"
        for step, before in run.with_parents()
        if before is not None
    ]


def _well(run: RealRun) -> bool:
    return run.score is not None and run.score >= GOOD
