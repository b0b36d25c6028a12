"""Usage of a plan: what its language model calls cost, each call, each step, planning, the whole.

Counts come from the model's own usage; a figure that no provider reported stays None. The ledger
listens to DSPy, so that no call escapes it: format fallbacks, retries and calls that tools make are
in. Before each call it looks whether tokens or money have run out. Prompts are kept beside their
counts, so that the same plan can be counted with other contexts (`compare`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field

from hybridagi_steps.errors import LimitReachedError
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.recording.usage import MeteringCallback, Usage
from hybridagi_steps.token_counters import MessageCounter, is_estimate

PLANNING = "(planning)"
"""The part of a plan's cost that went into making and changing the plan."""

LAST = 6
"""Messages that the rival with the last messages keeps, beside instructions and requirement."""


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
        message["tool_calls"] = [_plain_call(call) for call in calls]
    return message


def _plain_call(call: Any) -> dict[str, Any]:
    """Return a tool call as plain data, whatever client it came from."""
    if isinstance(call, dict):
        return cast("dict[str, Any]", call)
    function = call.function
    plain = {"name": function.name, "arguments": function.arguments}
    return {"id": call.id, "type": "function", "function": plain}


class Comparison(BaseModel):
    """Tokens of one plan with three kinds of context, answers included."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: str = "replay"
    """How the rivals were counted: the same answers, replayed with other prompts."""
    calls: int
    """Calls that were compared."""
    ours: int
    """Tokens as the plan was run, planning included."""
    planning: int
    """Of these, tokens of planning."""
    tool_schemas: int
    """Of these, tokens of the tools' schemas, which every call sends."""
    full_history: int
    """Tokens if every call had seen all that was said before it."""
    last_messages: int
    """Tokens if every call had seen the last messages only."""
    last: int = LAST
    """How many messages that are."""
    counter: str
    """The tokenizer of all counts."""
    estimated: bool
    """Whether it estimates."""

    @property
    def saving(self) -> float | None:
        """Share of the full history's tokens that was saved; negative when more was spent."""
        return 1 - self.ours / self.full_history if self.full_history else None

    def __str__(self) -> str:
        """The figures in a line."""
        share = "-" if self.saving is None else f"{100 * self.saving:.0f} %"
        return (
            f"{self.ours:,} tokens; full history {self.full_history:,}, last {self.last} "
            f"{self.last_messages:,}; saving {share} ({self.kind}, {self.counter})"
        )


def compare(
    calls: Iterable[LMCall], order: Sequence[str], counter: TokenCounter, last: int = LAST
) -> Comparison:
    """Count a plan's calls as they were, and as they would have been with other contexts."""
    listed = [call for call in calls if call.answer is not None]
    place = {step_id: number for number, step_id in enumerate(order)}
    working = [call for call in listed if call.part in place]
    working.sort(key=lambda call: (place[call.part], call.attempt))
    count = _Counter(counter)
    planning = sum(map(count.call, (call for call in listed if call.part == PLANNING)))
    other = [call for call in listed if call.part not in place and call.part != PLANNING]
    aside = sum(map(count.call, other))
    full, recent = _with_history(working, count, last)
    return Comparison(
        calls=len(listed),
        ours=sum(map(count.call, working)) + planning + aside,
        planning=planning,
        tool_schemas=sum(count.tools(call) for call in listed),
        full_history=full + aside,
        last_messages=recent + aside,
        last=last,
        counter=counter.counter_id,
        estimated=is_estimate(counter),
    )


def _with_history(calls: Sequence[LMCall], count: _Counter, last: int) -> tuple[int, int]:
    """Return the tokens of all calls with the full history, and with its last messages."""
    full = recent = 0
    said: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    before: LMCall | None = None
    for call in calls:
        said += call.messages[1:] if before is None else _new_messages(before, call, shown)
        shown |= call.files
        fixed = count.messages(calls[0].messages[:1]) + count.tools(call) + count.answer(call)
        full += fixed + count.messages(said)
        recent += fixed + count.messages(_tail(said, last))
        before = call
    return full, recent


def _new_messages(before: LMCall, call: LMCall, shown: dict[str, str]) -> list[dict[str, Any]]:
    """Return what one conversation would have gained between two calls."""
    answer = [before.answer] if before.answer is not None else []
    if (before.part, before.attempt) == (call.part, call.attempt):
        # The answer stands in the next prompt, followed by what the tools gave.
        new = call.messages[len(before.messages) :]
        return new if new and new[0]["role"] == "assistant" else [*answer, *new]
    files = {path: text for path, text in call.files.items() if shown.get(path) != text}
    parts = [call.fresh or "", *(f"## {path}\n{text}" for path, text in files.items())]
    return [*answer, {"role": "user", "content": "\n\n".join(filter(None, parts))}]


def _tail(said: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the first message, which holds the requirement, and the last ones.

    A tool's answer is never parted from its call, as providers demand.
    """
    begin = max(1, len(said) - last)
    while begin > 1 and said[begin]["role"] == "tool":
        begin -= 1
    return [*said[:1], *said[begin:]]


class _Counter(MessageCounter):
    """Counts calls."""

    def call(self, call: LMCall) -> int:
        """Return the tokens of a call as it was made."""
        return self.messages(call.messages) + self.tools(call) + self.answer(call)

    def messages(self, messages: Iterable[dict[str, Any]]) -> int:
        return sum(map(self.message, messages))

    def answer(self, call: LMCall) -> int:
        return 0 if call.answer is None else self.message(call.answer)

    def tools(self, call: LMCall) -> int:
        """Return the tokens of tool schemas, counted as JSON text."""
        return self.text(json.dumps(call.tools, ensure_ascii=False)) if call.tools else 0
