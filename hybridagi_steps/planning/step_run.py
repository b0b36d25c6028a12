"""One step of a running plan: its attempts, its merge, and how it ends.

An attempt is done elsewhere, on a copy of the workspace. What it changed is merged when it has
succeeded; if another step has changed the same file meanwhile, the step runs once more on what is
there now. A failed attempt is repeated with what was wrong, unless that cannot help.
"""

# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.to_thread import run_sync
from dspy.utils.exceptions import LMError

from hybridagi_steps.errors import (
    ArtifactConflictError,
    ArtifactError,
    InvalidSettingError,
    LimitReachedError,
    WorkspaceError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.planning.generator import of_this_user
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.planning.queued_steps import Resuming, digest
from hybridagi_steps.planning.results import EventLine, StepResult
from hybridagi_steps.planning.scheduler import StepState
from hybridagi_steps.planning.settings import Settings
from hybridagi_steps.planning.usage import Ledger
from hybridagi_steps.planning.worker import (
    Finished,
    Outcome,
    Problem,
    Work,
    artifacts_for,
    checked_artifacts,
)
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.recording_hooks import note_steps
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.event import StepEventType

WORK_KEY = "work_key"
"""Where the metadata of a step's ProgramEnd say what its outcome depended on."""
DIGEST_KEY = "handed_on_digest"
"""Where they say what was handed on, before memory redacted or cut it."""
_BUDGETS = ("max_tokens", "max_cost")
_RETRY = "What to do after an attempt that failed"


@dataclass
class RunState:
    """What all steps of one run share."""

    settings: Settings
    events: EventLine
    ledger: Ledger
    requirement: str
    """What the user asked for."""
    resuming: Resuming
    """What was done before, and where work is done."""
    recorded: RunSteps = field(init=False)
    """The steps that memory is told; known once recording has begun."""
    shared: dict[str, str] = field(default_factory=dict[str, str])
    """Files that the prompts of all steps begin with."""
    merging: anyio.Lock = field(default_factory=anyio.Lock)
    made: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Artifacts by the id of the step that made them."""


class StepRun:
    """Runs one step."""

    def __init__(self, run: RunState, plan: Plan, result: StepResult) -> None:
        self._run, self._plan, self._result, self._step = run, plan, result, result.step
        self._conflicts = 0
        self._round = run.resuming.round

    async def carry_out(self) -> None:
        """Run the step to its end; what goes wrong stands in the result."""
        begun = time.perf_counter()
        result, step = self._result, self._step
        result.status = StepState.RUNNING
        try:
            seen = artifacts_for(step, self._plan, self._run.made)
            key = await self._work_key(seen)
            own, notes = self._run.settings.predictors, self._notes(key)
            told = FunctionStep("program", step.id, step.goal, own=own, notes=notes)
            with self._run.recorded.step(told, self._arguments(seen)) as opened:
                finished = self._earlier(key) or await self._attempts(seen)
                opened.outcome = {
                    "summary": finished.summary,
                    "artifacts": finished.artifacts,
                    "changed_files": result.changed_files,
                }
                if key is not None:
                    # The work key is in it, or equal secrets in two places would look equal.
                    notes[DIGEST_KEY] = digest(key, finished.summary, finished.artifacts)
            result.summary, result.artifacts = finished.summary, finished.artifacts
            result.status = StepState.SUCCEEDED
        except anyio.get_cancelled_exc_class():
            result.status = StepState.CANCELLED
            raise
        except Exception as error:
            result.error, result.status = error, StepState.FAILED
        finally:
            result.duration_ms = round((time.perf_counter() - begun) * 1000, 3)

    async def _attempts(self, seen: dict[str, Any]) -> Finished:
        """Try until an attempt succeeds, or trying again is of no use."""
        run, result = self._run, self._result
        feedback, work = "", digest(run.requirement, self._step, seen)
        self._round = run.resuming.round_of(work)
        while True:
            result.attempts += 1
            outcome = await run.resuming.do(self._work(seen, feedback))
            run.ledger.add(outcome.calls)
            result.problems += outcome.problems
            error = outcome.error
            if error is None and outcome.finished is not None:
                result.cut = outcome.finished.cut
                try:
                    await self._merge(outcome)
                except (ArtifactConflictError, WorkspaceError) as conflict:
                    error = conflict
                else:
                    run.resuming.succeeded(work, self._round)
                    return outcome.finished
            assert error is not None  # noqa: S101 - an outcome is one or the other
            if not self._goes_on(error):
                raise error
            result.problems.append(Problem.of(error))
            feedback = f"{type(error).__name__}: {error}"
            run.events.tell(
                StepEventType.STEP_DELTA, self._step.id, status="retrying", reason=feedback
            )

    def _goes_on(self, error: BaseException) -> bool:
        """Decide whether to try again, and record the decision."""
        if isinstance(error, ArtifactConflictError):
            self._conflicts += 1
            again = self._conflicts == 1
        else:
            used = self._result.attempts - self._conflicts
            again = used < self._run.settings.max_attempts and _may_help(error)
        told = FunctionStep("decision", "after_attempt", _RETRY, ("retry", "give up"))
        reason = {"step": self._step.id, "error": f"{type(error).__name__}: {error}"}
        with self._run.recorded.step(told, reason) as decision:
            decision.outcome = "retry" if again else "give up"
        return again

    async def _merge(self, outcome: Outcome) -> None:
        """Take over what the attempt changed, unless that was done before a crash."""
        workspace, changes = self._run.settings.workspace, outcome.changes
        if workspace is None or changes is None:
            return
        if changes:
            async with self._run.merging:
                # Of no account any more once the workspace has been rolled back.
                name = f"{self._name}:merged:{workspace.rollback_id}"
                if await self._run.resuming.known(name) is None:
                    await run_sync(workspace.merge, changes)
                    await self._run.resuming.note(name, "merged")
        self._result.changed_files = [*changes.added, *changes.changed, *changes.deleted]

    def _work(self, seen: dict[str, Any], feedback: str) -> Work:
        tokens, cost = self._run.ledger.left()
        return Work(
            requirement=self._run.requirement,
            step=self._step,
            artifacts=seen,
            feedback=feedback,
            shared=self._run.shared,
            attempt=self._result.attempts,
            run_id=self._run.resuming.key,
            key=self._run.resuming.named(self._name),
            tokens_left=tokens,
            cost_left=cost,
        )

    @property
    def _name(self) -> str:
        return f"step:{self._round}:{self._step.id}:{self._result.attempts}"

    def _notes(self, key: str | None) -> dict[str, Any]:
        step = self._step
        notes: dict[str, Any] = {
            "plan_run": self._run.resuming.key,
            "plan_step": step.id,
            "depends_on": list(step.dependencies),
        }
        return {**notes, WORK_KEY: key} if key else notes

    def _arguments(self, seen: dict[str, Any]) -> dict[str, Any]:
        """Return what memory says the step was called with; contents stand where they were made."""
        step = self._step
        arguments: dict[str, Any] = {"type": step.type.value, "description": step.description}
        arguments |= {"files": step.files, "artifacts": list(seen)}
        return {name: value for name, value in arguments.items() if value}

    async def _work_key(self, seen: dict[str, Any]) -> str | None:
        """Return the hash of all that the step's outcome depends on, if outcomes are reused."""
        settings = self._run.settings
        if not settings.reuse or settings.memory is None:
            return None
        workspace = settings.workspace
        state = None if workspace is None else await run_sync(workspace.manifest)
        return digest(self._run.requirement, self._step, seen, state)

    def _earlier(self, key: str | None) -> Finished | None:
        """Return what the same work gave before, if it only found something out.

        What memory redacted or cut, and what would not be accepted today, is not taken.
        """
        if key is None or (found := earlier_work(self._run.settings.memory, key)) is None:
            return None
        outputs = found.outputs or {}
        given: Any = outputs.get("artifacts")
        summary = str(outputs.get("summary") or "")
        if not isinstance(given, dict):
            return None
        if (found.metadata or {}).get(DIGEST_KEY) != digest(key, summary, given):
            return None
        try:
            artifacts = checked_artifacts(self._step, given, self._run.settings.artifact_types)
        except ArtifactError:
            return None
        self._result.reused = True
        self._run.events.tell(StepEventType.STEP_DELTA, self._step.id, reused=str(found.id))
        return Finished(summary=summary, artifacts=artifacts)


def _may_help(error: BaseException) -> bool:
    """Whether another attempt could end otherwise."""
    if isinstance(error, WorkspaceError | InvalidSettingError | LMError):
        return False
    return not (isinstance(error, LimitReachedError) and error.limit in _BUDGETS)


def earlier_work(memory: StepMemory, key: str) -> AgentStep | None:
    """Return the newest ProgramEnd of the same work, if it succeeded and changed no file."""
    where = {"step_types": ["ProgramEnd"], "status": ["ok"], "metadata": {WORK_KEY: key}}
    where |= of_this_user(memory)
    found = memory.find(where, limit=1, newest_first=True)
    steps: list[AgentStep] = list(found.steps)
    if not steps or (steps[0].outputs or {}).get("changed_files"):
        return None
    note_steps(steps)
    return steps[0]
