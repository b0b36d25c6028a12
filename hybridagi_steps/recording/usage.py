"""What language model calls cost, added up for the step they were made for.

DSPy tells a callback what a model answered, not what it cost; the cost stands in the model's
history. One step may take several calls: a format fallback, a retry, a tool that asks a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.records.message import StepMetrics

_ENTRIES_SEARCHED = 256

# A tool may ask several models at once.
_sums = ForkSafeLock()


@dataclass(slots=True)
class Usage:
    """A sum over LM calls; None where no call reported the figure."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: float | None = None
    cache_hits: int = 0
    model_name: str | None = None
    provider: str | None = None

    def add_call(self, model: Any, outputs: Any) -> None:
        """Add one finished LM call; `outputs` is the very object that DSPy handed out."""
        entry = None if outputs is None else _history_entry(model, outputs)
        with _sums:
            self._add_call(model, entry)

    def _add_call(self, model: Any, entry: Mapping[str, Any] | None) -> None:
        self.calls += 1
        name = getattr(model, "model", None)
        if isinstance(name, str):
            self.model_name = name
            self.provider = name.split("/", 1)[0] if "/" in name else None
        if entry is None:
            return
        usage: Mapping[str, Any] = entry.get("usage") or {}
        if not usage:
            self.cache_hits += 1
            return
        self._add_tokens(tokens_of(usage))
        cost = entry.get("cost")
        if isinstance(cost, int | float):
            self.cost = (self.cost or 0.0) + cost

    def add_reported(self, usage: Mapping[str, Any], model_name: str | None = None) -> None:
        """Add one call by the usage a provider reported for it, in whatever dialect."""
        with _sums:
            self.calls += 1
            self.model_name = model_name or self.model_name
            self._add_tokens(tokens_of(usage))

    def _add_tokens(self, tokens: TokenCounts) -> None:
        for name, count in tokens._asdict().items():
            setattr(self, name, _sum(getattr(self, name), count))

    def add(self, other: Usage) -> None:
        """Add all calls of another sum."""
        self.calls += other.calls
        self.cache_hits += other.cache_hits
        self.input_tokens = _sum(self.input_tokens, other.input_tokens)
        self.output_tokens = _sum(self.output_tokens, other.output_tokens)
        self.total_tokens = _sum(self.total_tokens, other.total_tokens)
        self.cache_read_tokens = _sum(self.cache_read_tokens, other.cache_read_tokens)
        self.cache_write_tokens = _sum(self.cache_write_tokens, other.cache_write_tokens)
        if other.cost is not None:
            self.cost = (self.cost or 0.0) + other.cost
        self.model_name = other.model_name or self.model_name
        self.provider = other.provider or self.provider

    def metrics(self, duration_ms: float, tool_ms: float | None = None) -> StepMetrics:
        """Return the sum as a step's metrics; a cache hit means that no call was paid for."""
        return StepMetrics(
            duration_ms=round(duration_ms, 3),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            total_tokens=self.total_tokens,
            cache_read_tokens=self.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens,
            model_name=self.model_name,
            provider=self.provider,
            tool_exec_time_ms=None if tool_ms is None else round(tool_ms, 3),
            cost=self.cost,
            cache_hit=self.cache_hits == self.calls if self.calls else None,
            llm_calls=self.calls or None,
        )


class TokenCounts(NamedTuple):
    """What one LM call used; None where the provider did not say."""

    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None


_DETAILS = ("prompt_tokens_details", "input_tokens_details")


def tokens_of(usage: Mapping[str, Any]) -> TokenCounts:
    """Read a provider's usage.

    Cached tokens stand in a detail (OpenAI's two interfaces, and DSPy's own form) or beside the
    sums: `cache_read_input_tokens` and `cache_creation_input_tokens` (Anthropic, which does not
    count them as input), `prompt_cache_hit_tokens` (DeepSeek), `cachedContentTokenCount` (Gemini).
    """
    read = _first(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens")
    read = _first(usage, "cachedContentTokenCount") if read is None else read
    written = _first(usage, "cache_creation_input_tokens")
    given = _first(usage, "prompt_tokens", "promptTokenCount")
    if given is None and (given := _first(usage, "input_tokens")) is not None:
        given += _beside_input(usage)
    for details in filter(None, map(usage.get, _DETAILS)):
        read = _detail(details, "cached_tokens") if read is None else read
        written = _detail(details, "cache_creation_tokens") if written is None else written
    made = _first(usage, "completion_tokens", "output_tokens", "candidatesTokenCount")
    total = _first(usage, "total_tokens", "totalTokenCount")
    if total is None and given is not None and made is not None:
        total = given + made
    return TokenCounts(given, made, total, read, written)


def _beside_input(usage: Mapping[str, Any]) -> int:
    """Return the cached prompt tokens that Anthropic leaves out of `input_tokens`."""
    names = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage[name] for name in names if isinstance(usage.get(name), int))


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these that is a number of tokens."""
    return next((usage[name] for name in names if isinstance(usage.get(name), int)), None)


def _history_entry(model: Any, outputs: Any) -> Mapping[str, Any] | None:
    """Return the history entry of the call that gave `outputs`, looking at the newest first."""
    history: list[Any] = getattr(model, "history", None) or []
    for entry in islice(reversed(history), _ENTRIES_SEARCHED):
        if entry.get("outputs") is outputs:
            return cast("Mapping[str, Any]", entry)
    return None


def _detail(details: Any, name: str) -> Any:
    if isinstance(details, Mapping):
        return cast("Mapping[str, Any]", details).get(name)
    return getattr(details, name, None)


def _sum(known: int | None, more: Any) -> int | None:
    if not isinstance(more, int):
        return known
    return more if known is None else known + more
