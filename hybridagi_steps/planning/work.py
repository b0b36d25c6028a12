"""One piece of work: an attempt of a step, as it is handed to whoever does it, and what comes back.

Plain values, so that work may be done in this process or wait in a queue for another one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from hybridagi_steps import errors
from hybridagi_steps.errors import StepsError
from hybridagi_steps.planning.changes import Changes
from hybridagi_steps.planning.plan import PlanStep
from hybridagi_steps.planning.usage import LMCall
from hybridagi_steps.workspace.workspace import Workspace


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

    def error(self) -> StepsError:
        """Return it as an error of this library; one of another library becomes a StepsError."""
        kind = getattr(errors, self.type, None)
        if kind is errors.LimitReachedError:
            return errors.LimitReachedError(self.message, limit=self.limit or "unknown")
        if kind in _PLAIN:
            return kind(self.message)
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
