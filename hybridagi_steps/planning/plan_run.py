"""One run of a plan: start what may start, merge what succeeded, and end truthfully.

Steps run in tasks of their own, each as soon as all it depends on has succeeded; the schedule
(waves.py) decides which. A step's work is done in a copy of the workspace by a dispatcher, here or
in another process; what it changed is merged one step at a time, whole or not at all. How a plan is
made, and how a step is carried out, is no concern of this module.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import anyio
import dspy
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync

from hybridagi_steps.errors import LimitReachedError, PlanError, StepsError, WorkspaceError
from hybridagi_steps.planning.events import EventLine
from hybridagi_steps.planning.generator import new_steps
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.plan_memory import ORCHESTRATOR
from hybridagi_steps.planning.results import PlanResult, StepResult, summed_up
from hybridagi_steps.planning.resume_keys import Resuming
from hybridagi_steps.planning.scheduler import Schedule, StepState
from hybridagi_steps.planning.settings import Settings
from hybridagi_steps.planning.step_run import StepRun, thought_of
from hybridagi_steps.planning.usage import Ledger, OutOfBudget, TokenUsage
from hybridagi_steps.planning.worker import Dispatcher
from hybridagi_steps.recording import record
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.redaction import redacted

_PATIENCE_SECONDS = 30.0
"""How long a queue may take to note that a run has ended."""
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
        self.settings, self.events, self.ledger = settings, events, ledger
        self.requirement, self.plan, self.key = requirement, plan, key
        self.hand_to(dispatcher)
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

    def hand_to(self, dispatcher: Dispatcher) -> None:
        """Have the work done elsewhere; before the run has begun."""
        self.dispatcher, self.resuming = dispatcher, Resuming(dispatcher, self.key)

    async def claim_key(self) -> None:
        """Bind the key to what this run is about."""
        workspace = self.settings.workspace
        await self.resuming.claim(
            requirement=self.requirement,
            plan="" if self.plan is None else self.plan.to_text(),
            workspace="" if workspace is None else self._redacted(str(workspace.root)),
        )

    def _redacted(self, text: str) -> str:
        redact = self.settings.redact
        return text if redact is None else redacted(text, redact)

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
        if (workspace := self.settings.workspace) is not None:
            notes["workspace"] = str(workspace.state)  # where a purge looks for what is left
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
                await self.resuming.open()
                if (workspace := self.settings.workspace) is not None:
                    self._result.snapshot = await self.dispatcher.remember(
                        self.resuming.snapshot(workspace.rollback_id),
                        lambda: run_sync(workspace.snapshot, self.key),
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
            self.plan = await self._thought_of(self.resuming.plan(), self._planned)
            self.plan.check()
        self._schedule = Schedule(self.plan)
        self.results = {step.id: StepResult(step) for step in self.plan.steps}
        self._tell_plan()
        await self._work_off(self._schedule)

    async def _planned(self) -> Plan:
        """Have a plan made."""
        workspace = self.settings.workspace
        files = [] if workspace is None else await run_sync(workspace.list)
        return await self.settings.planner.acall(
            requirements=self.requirement, files=files, tools=self.settings.tool_names
        )

    async def _thought_of(self, key: str, make: Callable[[], Awaitable[Plan]]) -> Plan:
        """Return a plan; only one that was made before a crash, or elsewhere, is read again."""
        made: dict[str, Plan] = {}

        async def written() -> str:
            plan = await make()
            text = plan.to_text()
            made[text] = plan
            return text

        text = await thought_of(key, written, self.dispatcher, self.ledger)
        return made.get(text) or Plan.parse(text, check=False)

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

        async def ask() -> Plan:
            steps = await self.settings.planner.replan(
                self.requirement,
                _finished([self.results[name] for name in self.results if name in done]),
                Plan(steps=[schedule.plan.step(name) for name in undone]),
                "\n".join(f"{name}: {self.results[name].error}" for name in failed),
                accept,
            )
            return Plan(steps=steps)

        return (await self._thought_of(self.resuming.replan(self._result.replans), ask)).steps

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
            result.error = PlanIncompleteError(summed_up(self.results.values()))
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
        result = self._result
        if result.status != "succeeded":
            self._note_unfinished()
            with anyio.CancelScope(shield=True):
                await self._roll_back()
            await self._end_round()
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

    async def _roll_back(self) -> None:
        """Bring the workspace back if that was asked for; failing at it is part of the result."""
        result, workspace = self._result, self.settings.workspace
        if self.settings.on_failure != "rollback" or workspace is None or result.snapshot is None:
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
                await self.resuming.end_round()
        except Exception as error:  # the result is worth more than the next round
            self.events.tell(StepEventType.ERROR, message=f"the end was not noted: {error!r}")

    def _tell_plan(self) -> None:
        if self.plan is not None:
            states = {name: each.status.value for name, each in self.results.items()}
            self.events.planned(self.plan, states)


_AFTER_FAILURE = "What to do now that steps have failed and nothing else can run"


class PlanIncompleteError(StepsError):
    """How a plan ends of which steps did not succeed."""


def _finished(results: list[StepResult]) -> str:
    lines = [f"{each.id}: {each.summary}; artifacts {each.artifacts}" for each in results]
    return "\n".join(lines) or "none"
