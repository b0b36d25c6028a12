"""What a run may do and cost, and whose conversation it belongs to. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.ids import new_id


class ToolRequest(NamedTuple):
    """A tool call that waits for consent."""

    run_id: str
    session_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]


Answer = bool | Literal["allow", "deny"] | None
Consent = Callable[[ToolRequest], Answer | Awaitable[Answer]]
"""Says whether a tool may run; None leaves it to `runner.answer_consent`."""


@dataclass(frozen=True, slots=True)
class AgentSession:
    """A conversation and the user it belongs to."""

    session_id: str = field(default_factory=lambda: str(new_id()))
    """Its id; a new session by default."""
    user_id: str | None = None
    """Whose history the steps are; None lets a runner take the user of the turn that is made again,
    else the only one that the session's steps name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRunnerConfig:
    """Limits and habits of a runner. None means no limit."""

    max_steps: int | None = 30
    """Most LM calls of one run."""
    timeout_seconds: float | None = 600.0
    """Longest a run may take."""
    max_tokens: int | None = None
    """Most tokens of one run, prompts and answers together; looked at before each LM call."""
    max_cost: float | None = None
    """Most US dollars of one run, as the LM client reports them; a model without a price is not
    limited, which the log says once for each run."""
    max_depth: int = 3
    """How deep agents may be nested; 1 allows none inside another."""
    tool_timeout_seconds: float | None = None
    """Longest one tool may take; then the program is told so and goes on."""
    consent: Consent | None = None
    """Asked before each tool; without it every tool may run."""
    consent_timeout_seconds: float = 300.0
    """How long an answer is waited for; then the tool is denied."""
    max_retries: int = 2
    """How often a run whose provider failed before it said anything is begun again."""
    retry_seconds: float = 30.0
    """How long retrying may take in all."""
    context_budget: int | None = 8000
    """Most tokens of earlier messages in a prompt; None gives all of them."""
    max_history: int = 1000
    """Most earlier messages that are read, the newest ones."""
    termination_summary: bool = False
    """Whether a run that hit a limit ends with one more LM call that sums up what was done."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            _check_kind(each.name, str(each.type), value)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            least = 0 if each.name == "max_retries" else 1 if isinstance(value, int) else 0.0
            if value < least or value != value:
                raise InvalidSettingError(f"{each.name} cannot be {value!r}.")


def _check_kind(name: str, kind: str, value: Any) -> None:
    """Check a setting's type against its annotation.

    Raises:
        InvalidSettingError: It is of another type.
    """
    if value is None and "None" in kind:
        return
    number = not isinstance(value, bool)
    right, wanted = {
        "int": (number and isinstance(value, int), "a whole number"),
        "float": (number and isinstance(value, int | float), "a number"),
        "bool": (isinstance(value, bool), "True or False"),
        "Consent": (callable(value), "a callable that takes a ToolRequest"),
    }[kind.split(" ", 1)[0]]
    if not right:
        raise InvalidSettingError(f"{name} is {wanted}, not {value!r:.80}.")
