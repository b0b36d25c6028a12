"""How a run ended, for callers that wait for the end in place of reading events."""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridagi_steps.records.message import Step


class RunResult(NamedTuple):
    """How a run ended."""

    run_id: str
    answer: Step | None
    """The last thing the assistant said."""
    data: dict[str, Any]
    """What the final event said."""

    @property
    def status(self) -> str:
        """completed, failed or cancelled."""
        return str(self.data.get("status"))

    @property
    def reason(self) -> str:
        """Why it ended."""
        return str(self.data.get("termination_reason"))

    @property
    def text(self) -> str:
        """The answer's text."""
        content = self.answer.content if self.answer is not None else None
        return content if isinstance(content, str) else ""


class NestedRunError(RuntimeError):
    """An agent that was used as a tool did not complete."""
