"""What a run may do and cost, and whose conversation it belongs to. Values only."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, cast

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.recording.usage import Usage
from hybridagi_steps.records.message import StepMetrics, new_id
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.running.stopping import Reason, Stop

_log = logging.getLogger("hybridagi_steps")


class ToolRequest(NamedTuple):
    """A tool call that waits for consent."""

    run_id: str
    session_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    user_id: str | None = None
    """Whom the run acts for."""


Answer = bool | Literal["allow", "deny"] | None
Consent = Callable[[ToolRequest], Answer | Awaitable[Answer]]
"""Says whether a tool may run; None pauses the run until `runner.resume` is given the answer."""


@dataclass(frozen=True, slots=True)
class AgentSession:
    """A conversation and the user it belongs to."""

    session_id: str = field(default_factory=lambda: str(new_id()))
    """Its id; a new session by default."""
    user_id: str | None = None
    """Whose history the steps are; None lets a runner take the user of the turn that is made again,
    else the only one that the session's steps name."""
    as_any_user: bool = False
    """Whether the session may be another user's; then both share it. Else NotAllowedError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRunnerConfig:
    """Limits and habits of a runner. None means no limit."""

    max_steps: int | None = 30
    """Most LM calls of one run."""
    timeout_seconds: float | None = 600.0
    """Longest a run may take, without the time that an awaited consent takes."""
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
    consent_timeout_seconds: float | None = None
    """How long an answer that is awaited may take; then the tool is denied."""
    max_retries: int = 2
    """How often a provider that refuses an LM call is asked again, by DSPy's client; it counts in
    place of the client's own `num_retries`. A program that is no DSPy module and failed for a
    passing reason before it said anything is begun again so often."""
    retry_seconds: float = 30.0
    """How long beginning again may take in all."""
    context_budget: int | None = 8000
    """Most tokens of earlier messages in a prompt; None gives all of them."""
    max_history: int = 1000
    """Most earlier messages that are read, the newest ones."""
    termination_summary: bool = False
    """Whether a run that hit a limit ends with one more LM call that sums up what was done."""

    message_times: bool = False
    """Whether earlier messages of a user begin with the minute they were said in, UTC."""
    user_profile: bool = False
    """Whether programs are told the profile of the session's owner; see `UserProfiles`."""
    keep_prompts: bool = False
    """Whether what models are sent and give is kept beside the AgentSteps: `memory.prompt_of`."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            _check_kind(each.name, str(each.type), value)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            least = 0 if each.name == "max_retries" else 1 if isinstance(value, int) else 0.0
            if value < least or value != value:
                raise InvalidSettingError(f"{each.name} cannot be {value!r}.")


def checked_answers(answers: object) -> Mapping[str, bool | str]:
    """Return answers by the ids of what waits for them, none for None."""
    if answers is None or isinstance(answers, Mapping):
        return cast("Mapping[str, bool | str]", answers or {})
    raise InvalidSettingError(
        f'answers are a mapping {{call_id: True | False | "text"}}, not {answers!r:.80}.'
    )


def _check_kind(name: str, kind: str, value: object) -> None:
    """Check a setting's type against its annotation."""
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


class Meter:
    """Counts one run."""

    def __init__(self, config: StepRunnerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._began = self._message_began = time.perf_counter()
        self._total = Usage()
        self._message = Usage()
        self._asked = 0
        self._nested: RunMetrics | None = None
        self._asked_at: float | None = None
        self.first_token_ms: float | None = None
        """How long the newest message waited for its first token."""
        self._run_first_token_ms: float | None = None
        self._steps = 0
        self._tool_ms: float | None = None
        self._tools = self._tool_errors = 0
        self._price_missed = False

    def over_limit(self) -> Stop | None:
        """Return why another LM call would be too much."""
        config, own, inner = self._config, self._total, self._nested or RunMetrics()
        checks: tuple[tuple[Reason, Sequence[float | None], float | None, str], ...] = (
            ("max_steps", [self._asked], config.max_steps, "LM calls"),
            ("max_tokens", [own.total_tokens, inner.total_tokens], config.max_tokens, "tokens"),
            ("max_cost", [own.cost, inner.cost], config.max_cost, "US dollars"),
        )
        for reason, parts, limit, unit in checks:
            measured = [part for part in parts if part is not None]
            if limit is not None and measured and (used := sum(measured)) >= limit:
                return Stop(reason, f"the run has used {used} {unit}; {reason} is {limit}.")
        return None

    def ask(self) -> None:
        """Note that an LM call begins."""
        with self._lock:
            self._asked += 1
            self._asked_at = time.perf_counter()

    def first_token(self) -> None:
        """Note that a token arrived; only the first of each message counts."""
        if self.first_token_ms is not None:
            return
        with self._lock:
            begun = self._asked_at or self._message_began
            self.first_token_ms = _ms(time.perf_counter() - begun)
            if self._run_first_token_ms is None:
                self._run_first_token_ms = _ms(time.perf_counter() - self._began)

    def answered(self, usage: Usage) -> None:
        """Add what an LM call cost."""
        with self._lock:
            self._message.add(usage)
            self._total.add(usage)
        self._look_for_price()

    def reported(self, usage: dict[str, Any], model_name: str | None) -> None:
        """Add an LM call that DSPy did not make, by its provider's usage."""
        self.ask()
        self.answered(Usage.reported(usage, model_name))

    def _look_for_price(self) -> None:
        """Say once that a limit on money holds nothing back."""
        total, limit = self._total, self._config.max_cost
        paid = total.calls > total.cache_hits
        if limit is None or self._price_missed or not paid or total.cost is not None:
            return
        self._price_missed = True
        _log.warning(
            "%s reports no cost, so max_cost=%g does not limit this run; max_tokens can.",
            total.model_name or "the model",
            limit,
        )

    def nested(self, metrics: RunMetrics) -> None:
        """Add what a run inside this one cost."""
        with self._lock:
            self._nested = metrics if self._nested is None else self._nested.merge(metrics)

    def message(self) -> StepMetrics:
        """Return what the message that ends now cost, and begin the next one."""
        with self._lock:
            now = time.perf_counter()
            spent, self._message = self._message, Usage()
            metrics = spent.metrics((now - self._message_began) * 1000)
            metrics.first_token_latency_ms = self.first_token_ms
            self.first_token_ms, self._message_began = None, now
            self._steps += 1
            return metrics

    def tool(self, seconds: float, *, failed: bool = False) -> StepMetrics:
        """Return what a tool's message cost; what its own LM calls cost goes to the next answer."""
        with self._lock:
            milliseconds = _ms(seconds)
            self._steps += 1
            self._tool_ms = (self._tool_ms or 0.0) + milliseconds
            self._tools, self._tool_errors = self._tools + 1, self._tool_errors + failed
            self._message_began = time.perf_counter()
            return StepMetrics(duration_ms=milliseconds, tool_exec_time_ms=milliseconds)

    def run_metrics(self) -> RunMetrics:
        """Return what the run has cost so far, nested runs included."""
        total = self._total
        own = RunMetrics(
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            total_tokens=total.total_tokens,
            cache_read_tokens=total.cache_read_tokens,
            cache_write_tokens=total.cache_write_tokens,
            cost=total.cost,
            cache_hits=total.cache_hits if total.calls else None,
            llm_calls=total.calls or None,
            tool_calls=self._tools or None,
            tool_errors=self._tool_errors if self._tools else None,
            model_names=[total.model_name] if total.model_name else [],
        )
        if self._nested is not None:
            own = own.merge(self._nested)
        vars(own).update(
            steps=self._steps,
            duration_ms=_ms(time.perf_counter() - self._began),
            tool_exec_time_ms=self._tool_ms,
            first_token_latency_ms=self._run_first_token_ms,
        )
        return own


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
