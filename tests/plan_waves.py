"""The waves in which a plan's steps may run, if all of a wave end before the next begins."""

from __future__ import annotations

from collections.abc import Iterator

from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.scheduler import Schedule


def waves(plan: Plan) -> Iterator[list[PlanStep]]:
    """Yield the steps that the schedule lets run side by side."""
    schedule = Schedule(plan)
    while wave := schedule.take_ready():
        yield wave
        for step in wave:
            schedule.succeeded(step.id)
