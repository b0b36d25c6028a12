"""StepWorker: does one attempt of a step in a copy of the workspace, and never raises.

The work is given and its outcome taken as values, so it does not matter whether a plan's own
process or another one does it. The workspace itself is only read here; who gave out the work merges
what was changed. Artifacts are plain JSON values under names: those of earlier steps go in, and
what goes out is checked against the shapes of the plan and the Python types of the program.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio.to_thread import run_sync
from dspy.utils import exceptions
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hybridagi_steps import errors
from hybridagi_steps.errors import ArtifactError, InvalidSettingError, LimitReachedError, StepsError
from hybridagi_steps.planning.artifact_types import shape_problem
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.settings import Settings
from hybridagi_steps.planning.usage import LMCall, OutOfBudget
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.running.stopping import own_cancellation
from hybridagi_steps.workspace.changes import Changes
from hybridagi_steps.workspace.workspace import Overlay, Workspace

_MOST_FAULTS = 10

ArtifactTypes = Mapping[str, Any]
"""Types that artifacts must have, by name: pydantic models, or whatever a TypeAdapter takes."""


class StepWorker:
    """Does attempts of steps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def do(self, work: Work) -> Outcome:
        """Do one attempt; a cancellation alone is raised."""
        try:
            finished, changes = await self._within_time(work)
        except OutOfBudget as stop:
            return Outcome(error=stop.error, problems=work.problems)
        except SystemExit as stop:
            error = StepsError(f"the step tried to end the process: SystemExit({stop})")
            return Outcome(error=error, problems=work.problems)
        except Exception as error:
            return Outcome(error=error, problems=work.problems)
        return Outcome(finished, changes=changes, problems=work.problems)

    async def _within_time(self, work: Work) -> tuple[Finished, Changes | None]:
        seconds = self._settings.step_timeout_seconds
        with anyio.move_on_after(seconds):
            return await self._in_copy(work)
        raise LimitReachedError(f"the step took longer than {seconds:g} s", limit="timeout")

    async def _in_copy(self, work: Work) -> tuple[Finished, Changes | None]:
        """Carry out the work where nothing it does reaches the workspace."""
        workspace, made = self._settings.workspace, list[Overlay]()
        if workspace is None:
            return await self._executed(work, None), None
        try:
            # A list, so that a copy that was made while this was cancelled is removed, too.
            await run_sync(lambda: made.append(workspace.overlay()))
            finished = await self._executed(work, made[0])
            return finished, await run_sync(made[0].changes)
        finally:
            with anyio.CancelScope(shield=True):
                for copy in made:
                    await run_sync(copy.close)

    async def _executed(self, work: Work, workspace: Workspace | None) -> Finished:
        """Carry out the work and pass on only what the step promised."""
        begun: object = self._settings.executor(work, workspace)
        if not inspect.isawaitable(begun):
            raise InvalidSettingError(
                f"the executor gave {type(begun).__name__} at once: "
                "write it with `async def`, so that steps can run side by side."
            )
        with own_cancellation("the step"):
            finished: Any = await begun
        if not isinstance(finished, Finished):
            raise InvalidSettingError(
                f"the executor returned {type(finished).__name__}; it must return a Finished."
            )
        kept = checked_artifacts(work.step, finished.artifacts, self._settings.artifact_types)
        return finished.model_copy(update={"artifacts": kept})


class Problem(BaseModel):
    """Something that went wrong: what kind of error, and what it said."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """The error's class."""
    message: str
    """What it said."""
    tool: str | None = None
    """The tool that raised it; None for the step itself."""
    limit: str | None = None
    """Which limit was reached, when one was."""

    @classmethod
    def of(cls, error: BaseException, tool: str | None = None) -> Problem:
        """Return an error as a plain value."""
        limit: str | None = getattr(error, "limit", None)
        return cls(type=type(error).__name__, message=str(error), tool=tool, limit=limit)

    def error(self) -> Exception:
        """Return it as an error of this library or DSPy's LMError; any other as a StepsError."""
        kind = getattr(errors, self.type, None)
        if kind is errors.LimitReachedError:
            return errors.LimitReachedError(self.message, limit=self.limit or "unknown")
        if kind in _PLAIN:
            return kind(self.message)
        kind = getattr(exceptions, self.type, None)
        if isinstance(kind, type) and issubclass(kind, exceptions.LMError):
            return exceptions.LMError(self.message)
        return StepsError(f"{self.type}: {self.message}")


_PLAIN = (
    errors.ArtifactError,
    errors.ArtifactConflictError,
    errors.WorkspaceError,
    errors.CommandNotAllowedError,
    errors.InvalidSettingError,
    errors.ToolInputError,
    errors.PlanError,
    errors.StepsError,
)
"""Errors that are made of their message alone."""


class Work(BaseModel):
    """One attempt of a step, with everything it may see."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    requirement: str
    """What the user asked for."""
    step: PlanStep
    """The step."""
    artifacts: dict[str, Any] = {}
    """What it sees of earlier steps."""
    feedback: str = ""
    """Why the attempt before failed."""
    attempt: int = 1
    """Which attempt this is, from 1."""
    shared: dict[str, str] = Field(default={}, exclude=True, repr=False)
    """Files that the prompts of all steps begin with, by path; not kept in a queue."""
    run_id: str = ""
    """The run of the plan."""
    key: str = ""
    """Names this attempt within all runs; the same key is the same work."""
    tokens_left: int | None = None
    """What the plan's budget leaves, when another process does the work."""
    cost_left: float | None = None
    """The same in US dollars."""
    problems: list[Problem] = Field(default=[], exclude=True)
    """Errors on the way that the model was told of; who does the work adds them as they come."""


class Finished(BaseModel):
    """What a step gave when it was carried out."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    summary: str = ""
    """What was done, in words."""
    artifacts: dict[str, Any] = {}
    """What it hands on."""
    cut: list[str] = []
    """What was left out of the files that it named."""


@dataclass(slots=True)
class Outcome:
    """What became of one attempt: finished or an error, what it changed and what it cost."""

    finished: Finished | None = None
    error: BaseException | None = None
    changes: Changes | None = None
    """What it changed in its copy of the workspace."""
    problems: list[Problem] = field(default_factory=list[Problem])
    """Errors on the way, also when it came to nothing."""
    calls: list[LMCall] = field(default_factory=list[LMCall])
    """LM calls that this process has not counted itself."""


class Executor(Protocol):
    """Carries out one attempt of a step; raises when it cannot."""

    def __call__(self, work: Work, workspace: Workspace | None, /) -> Awaitable[Finished]:
        """Do the work in a workspace of its own and return what it gave."""
        ...


def checked_artifacts(
    step: PlanStep, given: Mapping[str, Any], types: ArtifactTypes | None = None
) -> dict[str, Any]:
    """Return the artifacts of a step as plain JSON values, once they are what was promised.

    What was not promised is left out: nobody downstream asked for it.
    """
    faults: list[str] = []
    found: dict[str, Any] = {}
    for name in step.artifacts:
        if name not in given:
            faults.append(f"the artifact {name!r} is missing")
            continue
        repairs: list[str] = []
        value = json_value(given[name], repairs, name)
        problem = shape_problem(step.shapes.get(name), value) or _type_problem(name, value, types)
        if problem:
            changed = f" (it cannot be kept as given: {'; '.join(repairs)})" if repairs else ""
            faults.append(f"the artifact {name!r} has the wrong shape: {problem}{changed}")
        found[name] = value
    if faults:
        shown = "; ".join(faults[:_MOST_FAULTS])
        raise ArtifactError(f"step {step.id!r}: {shown}")
    return found


def artifacts_for(
    step: PlanStep, plan: Plan, made: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what a step sees of earlier steps: each artifact once, by `step.artifact`.

    All those of its direct dependencies; if it says what it needs, only that, also from further
    back where no direct dependency makes it.
    """
    direct = dict.fromkeys(step.dependencies)
    near = {name for maker in direct for name in made.get(maker, {})}
    wanted = set(step.needs) or near
    back = plan.upstream(step.id) - set(direct) if wanted - near else set[str]()
    return {
        f"{maker}.{name}": value
        for maker in (*direct, *(other.id for other in plan.steps if other.id in back))
        for name, value in made.get(maker, {}).items()
        if name in wanted and (maker in direct or name not in near)
    }


def _type_problem(name: str, value: object, types: ArtifactTypes | None) -> str | None:
    if types is None or name not in types:
        return None
    try:
        TypeAdapter[Any](types[name]).validate_python(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or name}: {fault['msg']}" for fault in faults
        )
    return None
