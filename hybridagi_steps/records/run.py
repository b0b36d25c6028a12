"""RunMetrics: what a whole run cost, added up from its steps.

None means that nobody measured it, and never counts as zero: a sum is None only when no part was
measured. Steps that ran one after the other add their times; steps that ran side by side took as
long as the slowest of them, while their tokens and their price add up all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hybridagi_steps.lazy import describe_fields
from hybridagi_steps.records.message import StepMetrics

How = Literal["sequential", "parallel"]
"""How two parts of a run relate in time."""

_DURATIONS = ("duration_ms", "tool_exec_time_ms")
_NO_SUMS = {"first_token_latency_ms", "model_names"}


class RunMetrics(BaseModel):
    """What a run cost. Every figure but `steps` is optional: None means not measured."""

    model_config = ConfigDict(json_schema_extra=describe_fields, protected_namespaces=())

    steps: int = 0
    """How many steps the figures come from."""
    duration_ms: float | None = None
    """Wall time, milliseconds."""
    tool_exec_time_ms: float | None = None
    """Wall time of the tools, milliseconds."""
    first_token_latency_ms: float | None = None
    """Time to the first streamed token: of the first part, or of the fastest parallel one."""
    input_tokens: int | None = None
    """Prompt tokens, cached ones included."""
    output_tokens: int | None = None
    """Generated tokens."""
    total_tokens: int | None = None
    """Prompt and generated tokens together."""
    cache_read_tokens: int | None = None
    """Prompt tokens the provider served from its cache."""
    cache_write_tokens: int | None = None
    """Prompt tokens the provider wrote to its cache."""
    cost: float | None = None
    """Price in US dollars, as the LM client reports it."""
    cache_hits: int | None = None
    """Steps that the client answered from its own cache."""
    llm_calls: int | None = None
    """LM calls made."""
    tool_calls: int | None = None
    """Calls of tools that have ended."""
    tool_errors: int | None = None
    """Of these, those that ended with an error, refused ones too."""
    model_names: list[str] = Field(default_factory=list[str])
    """The models that answered, each once, in order of appearance."""

    @classmethod
    def of(cls, *metrics: StepMetrics | None, how: How = "sequential") -> RunMetrics:
        """Return what steps cost together; None stands for a step that was not measured."""
        total = cls()
        for part in metrics:
            total = total.merge(_of_one(part), how)
        return total

    def merge(self, other: RunMetrics, how: How = "sequential") -> RunMetrics:
        """Return what this and `other` cost together; neither is changed.

        Args:
            other: The later part of the run, or the one that ran at the same time.
            how: "sequential" adds durations, "parallel" keeps the longest.
        """
        if how not in ("sequential", "parallel"):
            raise ValueError(f"how is 'sequential' or 'parallel', not {how!r}.")
        longest = how == "parallel"
        merged: dict[str, Any] = {
            name: _fold(max if longest and name in _DURATIONS else sum, mine, theirs)
            for name in RunMetrics.model_fields.keys() - _NO_SUMS
            for mine, theirs in [(getattr(self, name), getattr(other, name))]
        }
        mine, theirs = self.first_token_latency_ms, other.first_token_latency_ms
        first = mine if mine is not None else theirs
        merged["first_token_latency_ms"] = _fold(min, mine, theirs) if longest else first
        merged["model_names"] = list(dict.fromkeys([*self.model_names, *other.model_names]))
        return RunMetrics(**merged)


def _of_one(metrics: StepMetrics | None) -> RunMetrics:
    if metrics is None:
        return RunMetrics(steps=1)
    shared = set(RunMetrics.model_fields) & set(StepMetrics.model_fields)
    hit, model = metrics.cache_hit, metrics.model_name
    return RunMetrics(
        **metrics.model_dump(include=shared),
        steps=1,
        cache_hits=None if hit is None else int(hit),
        model_names=[model] if model else [],
    )


def _fold(fold: Callable[[list[float]], float], *values: float | None) -> float | None:
    """Return the sum, least or largest of what was measured, None when nothing was."""
    measured = [value for value in values if value is not None]
    return fold(measured) if measured else None
