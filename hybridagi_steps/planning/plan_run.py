"""One run of a plan: start what may start, merge what succeeded, and end truthfully.

Steps run in tasks of their own, each as soon as all it depends on has succeeded; the schedule
(waves.py) decides which. A step's work is done in a copy of the workspace by a dispatcher, here or
in another process; what it changed is merged one step at a time, whole or not at all. How a plan is
made, and how a step is carried out, is no concern of this module.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import anyio
import dspy
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync

from hybridagi_steps.errors import LimitReachedError, PlanError, StepsError
from hybridagi_steps.planning.accounting import (
    PLANNING,
    Ledger,
    LMCall,
    OutOfBudget,
    Purpose,
    TokenUsage,
    spending_on,
)
from hybridagi_steps.planning.dispatching import Dispatcher
from hybridagi_steps.planning.events import EventLine
from hybridagi_steps.planning.generator import new_steps
from hybridagi_steps.planning.recalling import ORCHESTRATOR
from hybridagi_steps.planning.results import PlanResult, StepResult
from hybridagi_steps.planning.settings import Settings
from hybridagi_steps.planning.step_run import StepRun
from hybridagi_steps.planning.waves import Schedule, StepState
from hybridagi_steps.programs.call_steps import FunctionStep
from hybridagi_steps.programs.dspy_settings import overriding
from hybridagi_steps.programs.recording import record
from hybridagi_steps.programs.run_steps import RunSteps
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.plan import Plan, PlanStep

_MOST_TOLD = 200
_FINAL = {
    "succeeded": StepEventType.RUN_COMPLETED,
    "failed": StepEventType.RUN_FAILED,
    "cancelled": StepEventType.RUN_CANCELLED,
}


class PlanRun:
    """Runs one plan once.

    Args:
        settings: How.
        dispatcher: Where the work of steps is done.
        events: Told what happens.
        ledger: Counts what is spent.
        requirement: What the user asked for.
        plan: The plan; None to have one made.
        key: Names the run within all runs.
    """

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        events: EventLine,
        ledger: Ledger,
        requirement: str,
        plan: Plan | None,
        key: str,
    ) -> None:
        self.settings, self.dispatcher, self.events = settings, dispatcher, events
        self.ledger, self.requirement, self.plan, self.key = ledger, requirement, plan, key
        self.scope = anyio.CancelScope()
        self.cancelled = False
        self.results: dict[str, StepResult] = {}
        self.made: dict[str, dict[str, Any]] = {}
        """Artifacts by the id of the step that made them."""
        self.recorded: RunSteps
        self.merging = anyio.Lock()
        self.limiter = anyio.CapacityLimiter(settings.max_parallel)
        self._result = PlanResult(requirement, plan, [], TokenUsage.of([]), key)
        self._result.counter = settings.counter
        self._schedule: Schedule | None = None
        self._ending: BaseException | None = None

    @property
    def plan_now(self) -> Plan:
        """The plan as it stands; a step is running, so there is one."""
        assert self.plan is not None  # noqa: S101 - see above
        return self.plan

    async def carry_out(self) -> PlanResult:
        """Run the plan; whatever happens to its steps becomes part of the result."""
        begun = time.perf_counter()
        with ExitStack() as stack:
            if self.settings.lm is not None:
                stack.enter_context(overriding(lm=self.settings.lm))
            if self.settings.memory is not None:
                memory = self.settings.memory
                run = stack.enter_context(record(memory, session_id=self.settings.session_id))
                self._result.run_id = run.id
            # First of all: what it refuses must not have begun for anybody else.
            callbacks: list[Any] = list(dspy.settings.get("callbacks", []))
            stack.enter_context(overriding(callbacks=[self.ledger, *callbacks]))
            self.events.tell(StepEventType.RUN_STARTED, requirement=self.requirement)
            try:
                await self._recorded_run()
            finally:
                await self._end(begun)
            if self.settings.memory is not None:
                self._result.recording_errors = [str(error) for error in run.errors]  # pyright: ignore[reportPossiblyUnboundVariable]
        return self._result

    async def _recorded_run(self) -> None:
        """Run the plan as a program that memory knows."""
        self.recorded = RunSteps(self.settings.memory)
        notes = {"plan_run": self.key}
        told = FunctionStep("program", ORCHESTRATOR, self.requirement, notes=notes)
        arguments: dict[str, Any] = {"requirement": self.requirement}
        if self.plan is not None:
            arguments["plan"] = self.plan.to_text()
        try:
            with self.recorded.step(told, arguments) as opened:
                await self._within_time()
                self._judge()
                opened.outcome = self._told_outcome()
        except anyio.get_cancelled_exc_class():
            self._result.status = "cancelled"
            raise
        except Exception as error:
            if error is not self._ending:
                raise

    async def _within_time(self) -> None:
        seconds = self.settings.timeout_seconds
        self.scope.deadline = math.inf if seconds is None else anyio.current_time() + seconds
        with self.scope:
            try:
                if self.settings.workspace is not None:
                    snapshot = self.settings.workspace.snapshot
                    self._result.snapshot = await self.dispatcher.remember(
                        f"{self.key}:snapshot", lambda: run_sync(snapshot)
                    )
                await self._plan_and_work()
            except OutOfBudget as stop:
                self._result.error = stop.error
            except Exception as error:
                self._result.error = error
        if self.scope.cancelled_caught and not self.cancelled:
            self._result.error = LimitReachedError(
                f"the plan took longer than {seconds:g} s", limit="timeout"
            )

    async def _plan_and_work(self) -> None:
        if self.plan is None:
            self.plan = Plan.parse(await self._thought_of(f"{self.key}:plan", self._planned))
        self._schedule = Schedule(self.plan)
        self.results = {step.id: StepResult(step) for step in self.plan.steps}
        self._tell_plan()
        await self._work_off(self._schedule)

    async def _planned(self) -> str:
        """Have a plan made."""
        workspace = self.settings.workspace
        files = [] if workspace is None else await run_sync(workspace.list)
        plan = await self.settings.planner.acall(
            requirements=self.requirement, files=files, tools=self.settings.tool_names
        )
        return plan.to_text()

    async def _thought_of(self, key: str, make: Callable[[], Awaitable[str]]) -> str:
        """Return the text of a plan, made now or before a crash, with what it cost counted."""
        before = len(self.ledger.calls)

        async def make_and_count() -> str:
            with spending_on(Purpose(PLANNING)):
                text = await make()
            calls = [call.model_dump(mode="json") for call in self.ledger.calls[before:]]
            return orjson.dumps({"plan": text, "calls": json_value(calls, [])}).decode()

        kept = orjson.loads(await self.dispatcher.remember(key, make_and_count))
        if len(self.ledger.calls) == before:
            self.ledger.add(LMCall.model_validate(call) for call in kept["calls"])
        return kept["plan"]

    async def _work_off(self, schedule: Schedule) -> None:
        """Run all that can be run."""
        send: MemoryObjectSendStream[str]
        receive: MemoryObjectReceiveStream[str]
        send, receive = anyio.create_memory_object_stream(math.inf)
        running = 0
        with send, receive:
            async with anyio.create_task_group() as group:
                while True:
                    for step in schedule.take_ready():
                        group.start_soon(self._one_step, step, send)
                        running += 1
                    if running:
                        self._settle(schedule, await receive.receive())
                        running -= 1
                    elif not await self._replanned(schedule):
                        return

    async def _one_step(self, step: PlanStep, ended: MemoryObjectSendStream[str]) -> None:
        async with self.limiter:
            self.events.state(step.id, StepState.RUNNING.value)
            await StepRun(self, self.results[step.id]).carry_out()
        ended.send_nowait(step.id)

    def _settle(self, schedule: Schedule, step_id: str) -> None:
        """Take note of a step that ended."""
        result = self.results[step_id]
        if result.status is StepState.SUCCEEDED:
            self.made[step_id] = result.artifacts
            schedule.succeeded(step_id)
        else:
            for skipped in schedule.failed(step_id):
                waiting = self.results[skipped]
                waiting.status, waiting.because = StepState.SKIPPED, schedule.because[skipped]
                self.events.ended(waiting)
        self.events.ended(result)

    async def _replanned(self, schedule: Schedule) -> bool:
        """Put other steps in the place of those that failed, if that may and can be done."""
        undone = schedule.undone()
        failed = [name for name in undone if self.results[name].error is not None]
        if not failed or self._spent_all(failed):
            return False
        may = self._result.replans < self.settings.max_replans and self.settings.can_replan
        choice = "replan" if may else "give up"
        told = FunctionStep("decision", "after_failure", _AFTER_FAILURE, ("replan", "give up"))
        with self.recorded.step(told, {"failed": failed, "undone": undone}) as decision:
            decision.outcome = choice
        if not may:
            return False
        self._result.replans += 1
        try:
            steps = await self._new_steps(schedule, undone, failed)
        except OutOfBudget as stop:
            self.events.tell(StepEventType.ERROR, message=str(stop.error))
            return False
        except Exception as error:  # the failure stands; what is done stays done
            self.events.tell(StepEventType.ERROR, message=f"no new plan: {error}")
            return False
        self._adopt(schedule, steps)
        return True

    async def _new_steps(
        self, schedule: Schedule, undone: list[str], failed: list[str]
    ) -> list[PlanStep]:
        done = {name for name, state in schedule.states.items() if state is StepState.SUCCEEDED}
        taken = set(schedule.states)

        def accept(plan: Plan) -> list[PlanStep]:
            steps = new_steps(plan, done, taken)
            if not steps:
                raise PlanError("the plan has no new steps")
            kept = [step for step in schedule.plan.steps if step.id in done]
            Plan(name=schedule.plan.name, steps=[*kept, *steps]).check()
            return steps

        async def ask() -> str:
            steps = await self.settings.planner.replan(
                self.requirement,
                _finished([self.results[name] for name in self.results if name in done]),
                Plan(steps=[schedule.plan.step(name) for name in undone]),
                "\n".join(f"{name}: {self.results[name].error}" for name in failed),
                accept,
            )
            return Plan(steps=steps).to_text()

        text = await self._thought_of(f"{self.key}:replan:{self._result.replans}", ask)
        return Plan.parse(text, check=False).steps

    def _adopt(self, schedule: Schedule, steps: list[PlanStep]) -> None:
        replaced = schedule.undone()
        schedule.replace_undone(steps)
        for name in replaced:
            self.results[name].status = StepState.REPLACED
        self.results |= {step.id: StepResult(step) for step in steps}
        self.plan = schedule.plan
        self._tell_plan()

    def _spent_all(self, failed: list[str]) -> bool:
        errors = [self.results[name].error for name in failed]
        return any(getattr(error, "limit", None) in ("max_tokens", "max_cost") for error in errors)

    def _judge(self) -> None:
        """Say how the plan ended; raise if that is not a success."""
        schedule, result = self._schedule, self._result
        if schedule is not None and result.error is None and not self.cancelled:
            result.status = "succeeded" if schedule.all_succeeded() else "failed"
        if self.cancelled:
            result.status = "cancelled"
        if result.status == "succeeded":
            return
        self._note_unfinished()
        if result.error is None and result.status == "failed":
            result.error = PlanIncompleteError(_summed_up(list(self.results.values())))
        self._ending = result.error or PlanIncompleteError(result.status)
        raise self._ending

    def _note_unfinished(self) -> None:
        """Mark what had not begun, or was broken off."""
        for each in self.results.values():
            if each.status in (StepState.WAITING, StepState.RUNNING):
                each.status = StepState.CANCELLED

    def _told_outcome(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_text() if self.plan is not None else None,
            "artifacts": self.made,
            "steps": {name: each.status.value for name, each in self.results.items()},
        }

    async def _end(self, begun: float) -> None:
        """Fill in the result, roll back if that was asked for, and tell the end."""
        result, workspace = self._result, self.settings.workspace
        if result.status != "succeeded":
            self._note_unfinished()
        if workspace is not None and result.snapshot is not None and self._rolls_back():
            with anyio.CancelScope(shield=True):
                await run_sync(workspace.rollback, result.snapshot)
            result.rolled_back = True
        result.plan, result.steps = self.plan, list(self.results.values())
        result.token_usage = usage = TokenUsage.of(self.ledger.calls)
        for each in result.steps:
            each.spent = usage.steps.get(each.id, each.spent)
        result.duration_ms = round((time.perf_counter() - begun) * 1000, 3)
        self.events.tell(
            _FINAL[result.status],
            status=result.status,
            metrics=usage.total.model_dump(exclude_none=True),
            error=None if result.error is None else str(result.error),
        )

    def _rolls_back(self) -> bool:
        return self.settings.on_failure == "rollback" and self._result.status != "succeeded"

    def _tell_plan(self) -> None:
        if self.plan is not None:
            states = {name: each.status.value for name, each in self.results.items()}
            self.events.planned(self.plan, states)


_AFTER_FAILURE = "What to do now that steps have failed and nothing else can run"


class PlanIncompleteError(StepsError):
    """How a plan ends of which steps did not succeed."""


def _summed_up(results: list[StepResult]) -> str:
    """Say how many steps did not succeed, and what went wrong first."""
    counted = [each for each in results if each.status is not StepState.REPLACED]
    undone = [each for each in counted if each.status is not StepState.SUCCEEDED]
    told = f"{len(undone)} of {len(counted)} steps did not succeed"
    first = next((each for each in undone if each.error is not None), None)
    return told if first is None else f"{told}; first: {first.id}: {first.error!s:.{_MOST_TOLD}}"


def _finished(results: list[StepResult]) -> str:
    lines = [f"{each.id}: {each.summary}; artifacts {each.artifacts}" for each in results]
    return "\n".join(lines) or "none"
