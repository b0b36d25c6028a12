"""RunMetrics: what a whole run cost, added up from its steps; RunResult: how it ended.

None means that nobody measured it, and never counts as zero: a sum is None only when no part was
measured. Steps that ran one after the other add their times; steps that ran side by side took as
long as the slowest of them, while their tokens and their price add up all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from html import escape
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from hybridagi_steps.errors import RunFailedError
from hybridagi_steps.lazy import describe_fields
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
from hybridagi_steps.records.step_identity import is_end
from hybridagi_steps.records.step_text import cut

How = Literal["sequential", "parallel"]
"""How two parts of a run relate in time."""

_DURATIONS = ("duration_ms", "tool_exec_time_ms")
_NO_SUMS = {"first_token_latency_ms", "model_names"}
_LINE = 200


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


def run_metrics(steps: Sequence[AgentStep]) -> RunMetrics:
    """Return what the steps of a run cost together, and how long it took."""
    metrics = RunMetrics.of(*(step.metrics for step in steps if step.metrics is not None))
    # What the outermost steps took is the time of all inside of them.
    taken = [
        step.metrics.duration_ms
        for step in _outermost(steps)
        if step.metrics is not None and step.metrics.duration_ms is not None
    ]
    metrics.duration_ms = sum(taken) if taken else None
    return metrics


def _outermost(steps: Sequence[AgentStep]) -> list[AgentStep]:
    """Return the steps of a run that stand in no program of it; an end stands in its own call."""
    around = {
        id_text(step.id): step.program_id for step in steps if step.step_type == "ProgramCall"
    }
    return [
        step
        for step in steps
        if (around.get(step.program_id or "") if is_end(step) else step.program_id) not in around
    ]


class RunTotals(ABC):
    """What a run took and gave, read from its steps whenever it is asked for."""

    @abstractmethod
    def list_steps(self) -> list[AgentStep]:
        """Return the steps stored so far, by hop."""

    @property
    def metrics(self) -> RunMetrics:
        """What its steps cost together, and how long it took."""
        return run_metrics(self.list_steps())

    @property
    def tokens(self) -> int | None:
        """The tokens that it took, prompts and answers together; None: nobody counted."""
        return self.metrics.total_tokens

    @property
    def cost(self) -> float | None:
        """Its price in US dollars, as the LM client reports it; None: nobody said."""
        return self.metrics.cost

    @property
    def outputs(self) -> dict[str, Any] | None:
        """What its last outermost program gave, by field; None: none has ended."""
        ended = [s for s in _outermost(self.list_steps()) if s.step_type != "ProgramCall"]
        return ended[-1].outputs if ended else None


class RunResult(NamedTuple):
    """How a run ended."""

    run_id: str
    answer: Step | None
    """The last thing the assistant said."""
    data: dict[str, Any]
    """What the final event said."""

    @property
    def status(self) -> str:
        """completed, failed, cancelled, or paused: `runner.resume` goes on with the answers."""
        return str(self.data.get("status"))

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """What a paused run waits for: `call_id`, `tool`, `arguments` and `waits_for` of each."""
        return list(self.data.get("waiting", ()))

    @property
    def reason(self) -> str:
        """Why it ended."""
        return str(self.data.get("termination_reason"))

    @property
    def text(self) -> str:
        """The answer's text."""
        content = self.answer.content if self.answer is not None else None
        return content if isinstance(content, str) else ""

    @property
    def error(self) -> str | None:
        """What went wrong, type and message; None where nothing did."""
        shown = self.data.get("error")
        return f"{shown['type']}: {shown['message']}" if shown else None

    def __repr__(self) -> str:
        """The run, how it ended, what went wrong and the beginning of the answer."""
        why = "" if self.status == "completed" else f" ({self.reason})"
        told = [cut(text, _LINE) for text in (self.error, self.text) if text]
        return f"<run {': '.join([f'{self.run_id} {self.status}{why}', *told])}>"

    def _repr_html_(self) -> str:
        """Show how it ended, what went wrong and the answer in a notebook."""
        title = f"{self.status} · {self.reason} · run {self.run_id}"
        error = f"<p>{escape(self.error)}</p>" if self.error else ""
        return f"<p><strong>{escape(title)}</strong></p>{error}<pre>{escape(self.text)}</pre>"

    @classmethod
    async def of(
        cls,
        events: AsyncGenerator[StepEvent],
        look: Callable[[StepEvent], object] | None = None,
        first: StepEvent | None = None,
    ) -> Self:
        """Read a run to its end; `look` is given each event, `first` was read already."""
        answer: Step | None = None
        event = first
        async with aclosing(events):
            async for event in events:
                if look is not None:
                    look(event)
                if event.snapshot is not None and event.snapshot.role is MessageRole.ASSISTANT:
                    answer = event.snapshot
        assert event is not None  # noqa: S101 - a stream has a first event and a last
        return cls(event.run_id, answer, event.data or {})

    @classmethod
    async def of_any(cls, events: AsyncGenerator[StepEvent]) -> Self | None:
        """Read a run to its end; None where there is nothing to do."""
        first = await anext(events, None)
        return None if first is None else await cls.of(events, first=first)

    def checked(self, raised: BaseException | None = None) -> Self:
        """Return the result of a run that completed or paused; else raise RunFailedError."""
        if self.status in ("completed", "paused"):
            return self
        why = f": {self.error}" if self.error else ""
        raise RunFailedError(
            f"run {self.run_id} {self.status} ({self.reason}){why.rstrip('.')}. What it said and "
            "did until then is the `result` of this error.",
            self,
        ) from raised
