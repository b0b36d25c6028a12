"""One run of a plan: start what may start, merge what succeeded, and end truthfully.

Steps run in tasks of their own, each as soon as all it depends on has succeeded; the schedule
decides which. A step's work is done in a copy of the workspace by a dispatcher, here or in another
process; what it changed is merged one step at a time, whole or not at all. How a plan is
made, and how a step is carried out, is no concern of this module.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync
from dspy.utils.exceptions import LMError

from hybridagi_steps.errors import LimitReachedError, PlanError, StepsError, WorkspaceError
from hybridagi_steps.planning.comparison import files_to_share
from hybridagi_steps.planning.generator import ORCHESTRATOR, new_steps
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.queued_steps import Resuming
from hybridagi_steps.planning.results import EventLine, PlanResult, StepResult, summed_up
from hybridagi_steps.planning.scheduler import Schedule, StepState
from hybridagi_steps.planning.settings import Settings
from hybridagi_steps.planning.step_run import RunState, StepRun
from hybridagi_steps.planning.usage import (
    PLANNING,
    Ledger,
    LMCall,
    OutOfBudget,
    Purpose,
    TokenUsage,
    spending_on,
)
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.redaction import redacted
from hybridagi_steps.running.stopping import own_cancellation

_PATIENCE_SECONDS = 30.0
"""How long a queue may take to note that a run has ended."""
_AFTER_FAILURE = "What to do now that steps have failed and nothing else can run"
_FINAL = {
    "succeeded": StepEventType.RUN_COMPLETED,
    "failed": StepEventType.RUN_FAILED,
    "cancelled": StepEventType.RUN_CANCELLED,
}


class PlanIncompleteError(StepsError):
    """How a plan ends of which steps did not succeed."""


class PlanRun:
    """Runs one plan once."""

    def __init__(
        self,
        settings: Settings,
        resuming: Resuming,
        events: EventLine,
        requirement: str,
        plan: Plan | None,
    ) -> None:
        self.scope = anyio.CancelScope()
        self.cancelled = False
        self._settings = settings
        ledger = Ledger(settings.max_tokens, settings.max_cost)
        self._run = RunState(settings, events, ledger, requirement, resuming)
        self._schedule = None if plan is None else Schedule(plan)
        self._results: dict[str, StepResult] = {}
        self._limiter = anyio.CapacityLimiter(settings.max_parallel)
        self._result = PlanResult(requirement, plan, [], TokenUsage(), resuming.key)
        self._result.counter = settings.counter
        self._ending: BaseException | None = None

    async def claim_key(self) -> None:
        """Bind the key to what this run is about."""
        workspace, redact = self._settings.workspace, self._settings.redact
        place = "" if workspace is None else str(workspace.root)
        await self._run.resuming.claim(
            requirement=self._run.requirement,
            plan=self._plan_text() or "",
            workspace=place if redact is None else redacted(place, redact),
        )

    async def carry_out(self) -> PlanResult:
        """Run the plan; whatever happens to its steps becomes part of the result."""
        begun = time.perf_counter()
        with self._settings.recorded(self._run.ledger) as run:
            if run is not None:
                self._result.run_id = run.id
            self._run.events.tell(StepEventType.RUN_STARTED, requirement=self._run.requirement)
            try:
                await self._recorded_run()
            finally:
                await self._end(begun)
            if run is not None:
                self._result.recording_errors = [str(error) for error in run.errors]
        return self._result

    async def _recorded_run(self) -> None:
        """Run the plan as a program that memory knows."""
        self._run.recorded = RunSteps(self._settings.memory)
        notes = {"plan_run": self._run.resuming.key}
        if (workspace := self._settings.workspace) is not None:
            notes["workspace"] = str(workspace.state)  # where a purge looks for what is left
        told = FunctionStep("program", ORCHESTRATOR, self._run.requirement, notes=notes)
        arguments: dict[str, Any] = {"requirement": self._run.requirement}
        if (plan := self._plan_text()) is not None:
            arguments["plan"] = plan
        try:
            with self._run.recorded.step(told, arguments) as opened:
                await self._within_time()
                self._judge()
                made, text = self._run.made, self._plan_text()
                opened.outcome = {"plan": text, "artifacts": made, "steps": self._statuses()}
        except anyio.get_cancelled_exc_class():
            self._result.status = "cancelled"
            raise
        except Exception as error:
            if error is not self._ending:
                raise

    async def _within_time(self) -> None:
        seconds = self._settings.timeout_seconds
        self.scope.deadline = math.inf if seconds is None else anyio.current_time() + seconds
        with self.scope:
            try:
                await self._run.resuming.open()
                if (workspace := self._settings.workspace) is not None:
                    self._result.snapshot = await self._run.resuming.remember(
                        f"snapshot:{workspace.rollback_id}",
                        lambda: run_sync(workspace.snapshot, self._run.resuming.key),
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
        if self._schedule is None:
            plan = await self._thought_of("plan", self._planned)
            self._result.plan = plan
            self._schedule = Schedule(plan)
        schedule = self._schedule
        self._results = {step.id: StepResult(step) for step in schedule.plan.steps}
        if (executor := self._settings.step_executor) is not None:
            about = executor, self._run.requirement, schedule.plan, self._settings.workspace
            self._run.shared = await run_sync(files_to_share, *about)
        self._run.events.planned(schedule.plan, self._statuses())
        await self._work_off(schedule)

    async def _planned(self) -> Plan:
        workspace = self._settings.workspace
        files = [] if workspace is None else await run_sync(workspace.list)
        return await self._settings.planner.acall(
            requirements=self._run.requirement, files=files, tools=self._settings.tool_names
        )

    async def _thought_of(self, name: str, make: Callable[[], Awaitable[Plan]]) -> Plan:
        """Return a plan, made now or before a crash, with what it cost counted."""
        ledger, made = self._run.ledger, dict[str, Plan]()
        before = len(ledger.calls)

        async def make_and_count() -> str:
            with spending_on(Purpose(PLANNING)), own_cancellation("the planner"):
                plan = await make()
            text = plan.to_text()
            made[text] = plan
            calls = [call.model_dump(mode="json") for call in ledger.calls[before:]]
            return orjson.dumps({"plan": text, "calls": json_value(calls, [])}).decode()

        kept = orjson.loads(await self._run.resuming.remember(name, make_and_count))
        if len(ledger.calls) == before:
            ledger.add(LMCall.model_validate(call) for call in kept["calls"])
        text: str = kept["plan"]
        return made.get(text) or Plan.parse(text, check=False)

    async def _work_off(self, schedule: Schedule) -> None:
        send: MemoryObjectSendStream[str]
        receive: MemoryObjectReceiveStream[str]
        send, receive = anyio.create_memory_object_stream(math.inf)
        running = 0
        with send, receive:
            async with anyio.create_task_group() as group:
                while True:
                    for step in schedule.take_ready():
                        group.start_soon(self._one_step, schedule.plan, step, send)
                        running += 1
                    if running:
                        self._settle(schedule, await receive.receive())
                        running -= 1
                    elif not await self._replanned(schedule):
                        return

    async def _one_step(
        self, plan: Plan, step: PlanStep, ended: MemoryObjectSendStream[str]
    ) -> None:
        async with self._limiter:
            self._run.events.tell(StepEventType.STEP_DELTA, step.id, status=StepState.RUNNING.value)
            await StepRun(self._run, plan, self._results[step.id]).carry_out()
        ended.send_nowait(step.id)

    def _settle(self, schedule: Schedule, step_id: str) -> None:
        """Take note of a step that ended."""
        result = self._results[step_id]
        if result.status is StepState.SUCCEEDED:
            self._run.made[step_id] = result.artifacts
            schedule.succeeded(step_id)
        else:
            for skipped in schedule.failed(step_id):
                waiting = self._results[skipped]
                waiting.status, waiting.because = StepState.SKIPPED, schedule.because[skipped]
                self._run.events.ended(waiting)
        self._run.events.ended(result)

    async def _replanned(self, schedule: Schedule) -> bool:
        """Put other steps in the place of those that failed, if that may and can be done."""
        undone = schedule.undone()
        failed = [name for name in undone if self._results[name].error is not None]
        limits = {getattr(self._results[name].error, "limit", None) for name in failed}
        refused = any(isinstance(self._results[name].error, LMError) for name in failed)
        if not failed or refused or limits & {"max_tokens", "max_cost"}:
            return False  # no model would answer
        can = hasattr(self._settings.planner, "replan")
        may = can and self._result.replans < self._settings.max_replans
        choice = "replan" if may else "give up"
        told = FunctionStep("decision", "after_failure", _AFTER_FAILURE, ("replan", "give up"))
        with self._run.recorded.step(told, {"failed": failed, "undone": undone}) as decision:
            decision.outcome = choice
        if not may:
            return False
        self._result.replans += 1
        try:
            steps = await self._new_steps(schedule, undone, failed)
        except OutOfBudget as stop:
            self._run.events.tell(StepEventType.ERROR, message=str(stop.error))
            return False
        except Exception as error:  # the failure stands; what is done stays done
            self._run.events.tell(StepEventType.ERROR, message=f"no new plan: {error}")
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

        finished = [each for name, each in self._results.items() if name in done]
        told = [f"{each.id}: {each.summary}; artifacts {each.artifacts}" for each in finished]

        async def ask() -> Plan:
            steps = await self._settings.planner.replan(
                self._run.requirement,
                "\n".join(told) or "none",
                Plan(steps=[schedule.plan.step(name) for name in undone]),
                "\n".join(f"{name}: {self._results[name].error}" for name in failed),
                accept,
            )
            return Plan(steps=steps)

        name = f"round:{self._run.resuming.round}:replan:{self._result.replans}"
        return (await self._thought_of(name, ask)).steps

    def _adopt(self, schedule: Schedule, steps: list[PlanStep]) -> None:
        replaced = schedule.undone()
        schedule.replace_undone(steps)
        for name in replaced:
            self._results[name].status = StepState.REPLACED
        self._results |= {step.id: StepResult(step) for step in steps}
        self._run.events.planned(schedule.plan, self._statuses())

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
            result.error = PlanIncompleteError(summed_up(self._results.values()))
        self._ending = result.error or PlanIncompleteError(result.status)
        raise self._ending

    def _note_unfinished(self) -> None:
        """Mark what had not begun, or was broken off."""
        for each in self._results.values():
            if each.status in (StepState.WAITING, StepState.RUNNING):
                each.status = StepState.CANCELLED

    async def _end(self, begun: float) -> None:
        """Fill in the result, roll back if that was asked for, and tell the end."""
        result = self._result
        if result.status != "succeeded":
            self._note_unfinished()
            with anyio.CancelScope(shield=True):
                await self._roll_back()
            await self._end_round()
        result.plan = result.plan if self._schedule is None else self._schedule.plan
        result.steps = list(self._results.values())
        result.token_usage = usage = TokenUsage.of(self._run.ledger.calls)
        for each in result.steps:
            each.spent = usage.steps.get(each.id, each.spent)
        result.duration_ms = round((time.perf_counter() - begun) * 1000, 3)
        self._run.events.tell(
            _FINAL[result.status],
            status=result.status,
            metrics=usage.total.model_dump(exclude_none=True),
            error=None if result.error is None else str(result.error),
        )

    async def _roll_back(self) -> None:
        """Bring the workspace back if that was asked for; failing at it is part of the result."""
        result, workspace = self._result, self._settings.workspace
        if self._settings.on_failure != "rollback" or workspace is None or result.snapshot is None:
            return
        try:
            await run_sync(workspace.rollback, result.snapshot)
        except Exception as error:
            why = result.error or f"the run was {result.status}"
            result.error = WorkspaceError(
                f"{why}; and the workspace could not be rolled back: {error}. Mend that, then call "
                f"workspace.rollback({result.snapshot!r})."
            )
            result.error.__cause__ = error
        else:
            result.rolled_back = True

    async def _end_round(self) -> None:
        """Let the same key try again what did not succeed."""
        try:
            with anyio.fail_after(_PATIENCE_SECONDS, shield=True):
                await self._run.resuming.end_round()
        except Exception as error:  # the result is worth more than the next round
            self._run.events.tell(StepEventType.ERROR, message=f"the end was not noted: {error!r}")

    def _plan_text(self) -> str | None:
        return None if self._schedule is None else self._schedule.plan.to_text()

    def _statuses(self) -> dict[str, str]:
        return {name: each.status.value for name, each in self._results.items()}
