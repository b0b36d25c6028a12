"""Why a run ends before its program does, and how that reaches the program.

A run is stopped once; the first reason stands. Async programs are cancelled. Sync programs run in a
thread that nothing can interrupt; they are stopped at their next LM or tool call by `RunStopped`,
which is no Exception, so that a program's own error handling does not take it for a failed tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "cancelled", "timeout", "max_steps", "max_tokens", "max_cost", "vetoed", "storage", "error"
]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run was stopped."""

    reason: Reason
    message: str
    error: BaseException | None = None
    """What went wrong, when something did."""

    @property
    def is_limit(self) -> bool:
        """Whether steps, time, tokens or money ran out."""
        return self.reason in ("timeout", "max_steps", "max_tokens", "max_cost")


class RunStopped(BaseException):
    """Ends a program whose run was stopped."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop


class RunVetoed(Exception):  # noqa: N818 - reads as what a hook says
    """Raised by a hook to end the run; any other error of a hook is reported and ignored."""
