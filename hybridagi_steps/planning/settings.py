"""How plans are run: everything an orchestrator was told, in one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.planning.artifacts import ArtifactTypes
from hybridagi_steps.planning.worker import Executor
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.redaction import Redact
from hybridagi_steps.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an orchestrator; see its arguments."""

    execute: Executor
    predictors: tuple[Any, ...]
    """Predictors that `execute` asks: memory tells of them by the tools that they called."""
    planner: Any
    tool_names: tuple[str, ...]
    artifact_types: ArtifactTypes
    workspace: Workspace | None
    memory: Any
    lm: Any
    max_parallel: int
    max_attempts: int
    max_replans: int
    max_tokens: int | None
    max_cost: float | None
    step_timeout_seconds: float | None
    timeout_seconds: float | None
    on_failure: Literal["keep", "rollback"]
    reuse: bool
    progress: bool
    on_event: Callable[[StepEvent], Any] | None
    session_id: str | None
    counter: TokenCounter

    @property
    def redact(self) -> Redact | None:
        """What the memory lets nobody keep."""
        return getattr(self.memory, "redact", None)

    @property
    def can_replan(self) -> bool:
        """Whether the planner knows how to change a plan."""
        return hasattr(self.planner, "replan")


def check_number(name: str, value: Any, *, least: int = 0, whole: bool = True) -> None:
    """Pass if a setting is a number that means something."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = "a whole number" if whole else "a number"
        raise InvalidSettingError(f"{name} is {wanted}, not {value!r:.80}.")
    if not value >= least:
        raise InvalidSettingError(f"{name} is at least {least}, not {value}.")
