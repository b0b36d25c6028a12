"""Which step of a plan may run next, and what a failure leaves undone.

A plain state machine without clock, task or file, so that any order of events can be tried on it. A
step may run as soon as all it depends on has succeeded; there is no waiting for a whole wave. A
failure skips exactly the steps that depend on the failed one, directly or not. Each step is started
once; repeating an attempt is the business of whoever runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from hybridagi_steps.errors import InvalidPlanError
from hybridagi_steps.graph.nodes import reached
from hybridagi_steps.planning.plan import Plan, PlanStep


class StepState(StrEnum):
    """Where a step of a running plan stands."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    REPLACED = "replaced"


_UNDONE = (StepState.FAILED, StepState.SKIPPED)


class Schedule:
    """The states of all steps of one plan."""

    def __init__(self, plan: Plan) -> None:
        plan.check()
        self.plan = plan
        self.states: dict[str, StepState] = {}
        self.because: dict[str, str] = {}
        """Of each skipped step, the failed step that it waited for."""
        self._steps: dict[str, PlanStep] = {}
        self._missing: dict[str, set[str]] = {}
        self._waiting_for: dict[str, list[str]] = {}
        self._ready: dict[str, None] = {}
        self._add(plan.steps)

    def take_ready(self) -> list[PlanStep]:
        """Return the steps that may start now, in the order of the plan, and mark them running."""
        ready = [self._steps[step_id] for step_id in self._ready]
        self._ready.clear()
        for step in ready:
            self.states[step.id] = StepState.RUNNING
        return ready

    def succeeded(self, step_id: str) -> None:
        """Note that a running step has succeeded; what waited for nothing else becomes ready."""
        self._leave_running(step_id, StepState.SUCCEEDED)
        freed: list[str] = []
        for name in self._waiting_for.get(step_id, ()):
            self._missing[name].discard(step_id)
            if not self._missing[name] and self.states[name] is StepState.WAITING:
                freed.append(name)
        self._ready |= dict.fromkeys(freed)

    def failed(self, step_id: str) -> list[str]:
        """Note that a running step has failed; return the ids of the steps skipped for it."""
        self._leave_running(step_id, StepState.FAILED)

        def waiting(name: str) -> list[str]:
            after = self._waiting_for.get(name, ())
            return [name for name in after if self.states[name] is StepState.WAITING]

        skipped = list(reached(waiting(step_id), waiting))
        for name in skipped:
            self.states[name], self.because[name] = StepState.SKIPPED, step_id
            self._ready.pop(name, None)
        return skipped

    def undone(self) -> list[str]:
        """Return the ids of the steps that failed or were skipped for it, in order."""
        return [name for name, state in self.states.items() if state in _UNDONE]

    def all_succeeded(self) -> bool:
        """Whether every step that was not replaced has succeeded."""
        kept = [state for state in self.states.values() if state is not StepState.REPLACED]
        return bool(kept) and all(state is StepState.SUCCEEDED for state in kept)

    def replace_undone(self, steps: Iterable[PlanStep]) -> None:
        """Put new steps in the place of those that failed or were skipped.

        The new steps may depend on each other and on steps that have succeeded.
        """
        new = list(steps)
        undone = self.undone()
        taken = [step.id for step in new if step.id in self.states]
        if taken:
            raise InvalidPlanError([f"the id {name!r} was used already" for name in taken])
        kept = [step for step in self.plan.steps if step.id not in undone]
        plan = self.plan.model_copy(update={"steps": [*kept, *new]})
        plan.check()
        self.plan = plan
        for name in undone:
            self.states[name] = StepState.REPLACED
        self._add(new)

    def _add(self, steps: Iterable[PlanStep]) -> None:
        for step in steps:
            self._steps[step.id] = step
            self.states[step.id] = StepState.WAITING
            self._missing[step.id] = {
                name
                for name in step.dependencies
                if self.states.get(name) is not StepState.SUCCEEDED
            }
            for name in self._missing[step.id]:
                self._waiting_for.setdefault(name, []).append(step.id)
            if not self._missing[step.id]:
                self._ready[step.id] = None

    def _leave_running(self, step_id: str, state: StepState) -> None:
        if self.states.get(step_id) is not StepState.RUNNING:
            raise InvalidPlanError([f"step {step_id!r} is not running"])
        self.states[step_id] = state
