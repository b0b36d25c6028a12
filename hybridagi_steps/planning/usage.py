"""Usage of a plan: what its language model calls cost, each call, each step, planning, the whole.

Counts come from the model's own usage; a figure that no provider reported stays None. The ledger
listens to DSPy, so that no call escapes it: format fallbacks, retries and calls that tools make are
in. Before each call it looks whether tokens or money have run out. Prompts are kept beside their
counts, so that the same plan can be counted with other contexts (comparison.py).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field

from hybridagi_steps.errors import LimitReachedError
from hybridagi_steps.recording.usage import MeteringCallback, Usage

PLANNING = "(planning)"
"""The part of a plan's cost that went into making and changing the plan."""


class LMCall(Usage):
    """One language model call: what it was for, what it cost, what was sent."""

    part: str
    """Id of the plan's step, or `(planning)`."""
    attempt: int = 1
    """Which attempt of the step it belongs to."""
    calls: int = 1
    model_name: str | None = None
    """The model that was asked."""
    duration_ms: float = 0.0
    """Wall time."""
    cache_hit: bool = False
    """Whether the client answered from its own cache; then nothing was spent."""
    failed: bool = False
    """Whether the call raised."""
    messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], repr=False)
    """What was sent."""
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], repr=False)
    """The schemas of the tools that were sent."""
    answer: dict[str, Any] | None = Field(default=None, repr=False)
    """The assistant message that came back."""
    fresh: str | None = Field(default=None, repr=False)
    """The step's brief without what one who saw all earlier steps knows already."""
    files: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    """The files that the brief shows."""

    def model_post_init(self, _: object) -> None:
        """Derive what the call says of itself as a sum."""
        if self.input_tokens is None and self.output_tokens is None:
            self.unreported = int(not self.cache_hit)
        elif self.total_tokens is None:
            self.total_tokens = (self.input_tokens or 0) + (self.output_tokens or 0)


class TokenUsage(BaseModel):
    """Everything a plan spent."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    total: Usage = Usage()
    """The whole."""
    planning: Usage = Usage()
    """Making, repairing and changing the plan."""
    steps: dict[str, Usage] = {}
    """Each step, with all its attempts."""
    calls: list[LMCall] = Field(default=[], repr=False)
    """Every call, in the order they ended."""

    @classmethod
    def of(cls, calls: Iterable[LMCall]) -> TokenUsage:
        """Sum up calls."""
        listed = list(calls)
        parts: dict[str, Usage] = {}
        for call in listed:
            parts.setdefault(call.part, Usage()).add(call)
        planning = parts.pop(PLANNING, Usage())
        return cls(total=Usage.of(listed), planning=planning, steps=parts, calls=listed)


class Purpose(NamedTuple):
    """What the calls of the running code are made for."""

    part: str
    attempt: int = 1
    fresh: str | None = None
    files: dict[str, str] | None = None


_PURPOSE: ContextVar[Purpose] = ContextVar("hybridagi_steps_purpose")


@contextmanager
def spending_on(purpose: Purpose) -> Generator[None]:
    """Count the calls inside the block as made for this."""
    token = _PURPOSE.set(purpose)
    try:
        yield
    finally:
        _PURPOSE.reset(token)


class OutOfBudget(BaseException):
    """Stops a call before it is made; no Exception, since DSPy swallows those of callbacks."""

    def __init__(self, error: LimitReachedError) -> None:
        super().__init__(str(error))
        self.error = error


class Ledger(MeteringCallback):
    """Counts every call and refuses those for which nothing is left.

    A call that has begun is paid for, so calls side by side may together end above a limit.
    """

    def __init__(self, max_tokens: int | None = None, max_cost: float | None = None) -> None:
        super().__init__()
        self.max_tokens, self.max_cost = max_tokens, max_cost
        self.calls: list[LMCall] = []
        self.spent = Usage()

    def add(self, calls: Iterable[LMCall]) -> None:
        """Add calls that another process made."""
        for call in calls:
            self.calls.append(call)
            self.spent.add(call)

    def check(self) -> None:
        """Pass if another call may be made."""
        used, paid = self.spent.total_tokens or 0, self.spent.cost or 0.0
        if self.max_tokens is not None and used >= self.max_tokens:
            raise LimitReachedError(
                f"{used:,} tokens are spent, the budget is {self.max_tokens:,}.", limit="max_tokens"
            )
        if self.max_cost is not None and paid >= self.max_cost:
            raise LimitReachedError(
                f"{paid:.4f} dollars are spent, the budget is {self.max_cost:.4f}.",
                limit="max_cost",
            )

    def left(self) -> tuple[int | None, float | None]:
        """Return the tokens and dollars that may still be spent; None without a limit."""
        used, paid = self.spent.total_tokens or 0, self.spent.cost or 0.0
        return (
            None if self.max_tokens is None else max(0, self.max_tokens - used),
            None if self.max_cost is None else max(0.0, self.max_cost - paid),
        )

    def begin(self, inputs: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Refuse the call if nothing is left, else note what is sent."""
        try:
            self.check()
        except LimitReachedError as error:
            raise OutOfBudget(error) from error
        purpose = _PURPOSE.get(Purpose("(other)"))
        sent = {name: _given(inputs, name) for name in ("messages", "tools")}
        about = purpose._asdict() | {"files": purpose.files or {}}
        return time.perf_counter(), sent | about

    def end(
        self,
        begun: tuple[float, dict[str, Any]],
        usage: Usage,
        outputs: object,
        exception: BaseException | None,
    ) -> None:
        """Add what the call cost."""
        began, about = begun
        call = LMCall(
            **about,
            **{name: getattr(usage, name) for name in Usage.model_fields},
            cache_hit=bool(usage.cache_hits),
            failed=exception is not None,
            duration_ms=round((time.perf_counter() - began) * 1000, 3),
            answer=_answer(outputs),
        )
        self.add([call])


def _given(inputs: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value: Any = inputs.get(name) or (inputs.get("kwargs") or {}).get(name)
    return list(cast("list[dict[str, Any]]", value)) if isinstance(value, list) else []


def _answer(outputs: object) -> dict[str, Any] | None:
    """Return what a model answered as a message."""
    if not isinstance(outputs, list) or not outputs:
        return None
    first = cast("list[Any]", outputs)[0]
    if isinstance(first, str):
        return {"role": "assistant", "content": first}
    if not isinstance(first, dict):
        return None
    answer = cast("dict[str, Any]", first)
    message: dict[str, Any] = {"role": "assistant", "content": answer.get("text") or None}
    if calls := answer.get("tool_calls"):
        message["tool_calls"] = [plain_call(call) for call in calls]
    return message


def plain_call(call: Any) -> dict[str, Any]:
    """Return a tool call as plain data, whatever client it came from."""
    if isinstance(call, dict):
        return cast("dict[str, Any]", call)
    function = call.function
    plain = {"name": function.name, "arguments": function.arguments}
    return {"id": call.id, "type": "function", "function": plain}
