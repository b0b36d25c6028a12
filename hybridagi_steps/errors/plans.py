"""Errors of plans, artifacts, workspaces and limits."""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.errors.base import StepsError


class PlanError(StepsError, ValueError):
    """A plan that cannot be run; nothing was."""


class PlanParseError(PlanError):
    """The text of a plan cannot be read; `line` counts from 1, `field` is the one at fault."""

    def __init__(self, message: str, *, line: int | None = None, field: str | None = None) -> None:
        at_line = f"line {line}" if line is not None else ""
        where = ", ".join(part for part in (at_line, field) if part)
        super().__init__(f"{where}: {message}" if where else message)
        self.line, self.field = line, field


class InvalidPlanError(PlanError):
    """All that is wrong with a plan; `problems` holds one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the plan cannot be run:" + "".join(f"\n  - {p}" for p in problems))
        self.problems = list(problems)


class ArtifactError(StepsError, ValueError):
    """An artifact that a step promised is missing or of the wrong shape."""


class ArtifactConflictError(ArtifactError):
    """Two steps that ran side by side wrote the same file; `files` names which."""

    def __init__(self, message: str, *, files: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.files = list(files)


class WorkspaceError(StepsError, OSError):
    """A path that leaves the workspace, or a file that is not there."""


class CommandNotAllowedError(WorkspaceError):
    """A command that is not on the workspace's list."""


class LimitReachedError(StepsError, RuntimeError):
    """Steps, time, tokens or money ran out; `limit` names which."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit
