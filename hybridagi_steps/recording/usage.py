"""Usage: what language model calls cost, and the callback that every meter of them stands on.

DSPy tells a callback what a model answered, not what it cost; the cost stands in the model's
history. One step may take several calls: a format fallback, a retry, a tool that asks a model.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, NamedTuple, Self, cast

import dspy
from dspy.lm15 import Response
from dspy.utils.callback import BaseCallback
from pydantic import BaseModel, ConfigDict, Field, computed_field

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.recording.scopes import override, undo
from hybridagi_steps.records.message import StepMetrics

CACHE_READ_WEIGHT = 0.1
CACHE_WRITE_WEIGHT = 1.25
"""What a cached prompt token costs beside a fresh one.

Reference: Anthropic, "Prompt caching", pricing: writes 1.25, reads 0.1 of the input price."""

_ENTRIES_SEARCHED = 256
_DETAILS = ("prompt_tokens_details", "input_tokens_details")

# A tool may ask several models at once.
_sums = ForkSafeLock()


class TokenCounts(NamedTuple):
    """What one LM call used; None where the provider did not say."""

    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None


_SUMMED = ("calls", *TokenCounts._fields, "cost", "unreported", "cache_hits")


class Usage(BaseModel):
    """A sum over LM calls; None where no call reported the figure."""

    model_config = ConfigDict(use_attribute_docstrings=True, protected_namespaces=())

    calls: int = 0
    """Calls made."""
    input_tokens: int | None = None
    """Prompt tokens, tool schemas and cached ones included."""
    output_tokens: int | None = None
    """Generated tokens."""
    total_tokens: int | None = None
    """Both."""
    cache_read_tokens: int | None = None
    """Prompt tokens read from the provider's cache."""
    cache_write_tokens: int | None = None
    """Prompt tokens written to it."""
    cost: float | None = None
    """Price in US dollars."""
    unreported: int = 0
    """Calls whose usage nobody reported; they count nothing above."""
    cache_hits: int = Field(default=0, exclude=True)
    """Calls that the client answered from its own cache; nothing was spent on them."""
    first_token_ms: float | None = Field(default=None, exclude=True)
    """How long the first streamed answer was waited for."""
    model_name: str | None = Field(default=None, exclude=True)
    """The model that was asked last."""
    provider: str | None = Field(default=None, exclude=True)
    """Who serves it."""

    @computed_field
    @property
    def weighted_tokens(self) -> float | None:
        """Tokens by what they cost: a cached prompt token counts 0.1, one written to it 1.25."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        read, written = self.cache_read_tokens or 0, self.cache_write_tokens or 0
        fresh = (self.input_tokens or 0) + (self.output_tokens or 0) - read - written
        return fresh + CACHE_READ_WEIGHT * read + CACHE_WRITE_WEIGHT * written

    @classmethod
    def of(cls, parts: Iterable[Usage]) -> Self:
        """Return the sum of some parts."""
        total = cls()
        for part in parts:
            total.add(part)
        return total

    @classmethod
    def of_call(cls, model: object, outputs: object, listener: UsageListener | None = None) -> Self:
        """Return what a finished LM call cost.

        `outputs` is the very object that DSPy handed out, None when the call failed; `listener` has
        listened to it, when history is switched off.
        """
        name = getattr(model, "model", None)
        used = cls(calls=1)
        if isinstance(name, str):
            used.model_name = name
            used.provider = name.split("/", 1)[0] if "/" in name else None
        entry = None if outputs is None else _history_entry(model, outputs)
        if entry is None and listener is not None and outputs is not None:
            entry = {"usage": listener.usage}
        reported: Mapping[str, Any] | None = None if entry is None else entry.get("usage")
        if isinstance(outputs, Response):  # of a call with a Request, which history has otherwise
            used._count(_counted(outputs.usage))
        elif entry is not None and not reported:
            used.cache_hits = 1
        elif entry is not None and reported:
            used._count(reported)
            cost = entry.get("cost")
            used.cost = cost if isinstance(cost, int | float) else None
        known = used.cache_hits or used.input_tokens is not None or used.output_tokens is not None
        used.unreported = int(not known)
        return used

    @classmethod
    def reported(cls, usage: Mapping[str, Any], model_name: str | None = None) -> Self:
        """Return what one call cost by what its provider reported, in whatever dialect."""
        used = cls(calls=1, model_name=model_name)
        used._count(usage)
        return used

    def add(self, other: Usage) -> None:
        """Add all calls of another sum."""
        with _sums:
            own, others = vars(self), vars(other)  # at a tenth of what setting attributes takes
            for name in _SUMMED:
                if (more := others[name]) is not None:
                    own[name] = more + (own[name] or 0)
            if self.first_token_ms is None:
                own["first_token_ms"] = other.first_token_ms
            own["model_name"] = other.model_name or self.model_name
            own["provider"] = other.provider or self.provider

    def metrics(self, duration_ms: float, tool_ms: float | None = None) -> StepMetrics:
        """Return the sum as a step's metrics; a cache hit means that no call was paid for."""
        return StepMetrics(
            duration_ms=round(duration_ms, 3),
            first_token_latency_ms=self.first_token_ms,
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

    def _count(self, usage: Mapping[str, Any]) -> None:
        vars(self).update(tokens_of(usage)._asdict())


class UsageListener:
    """Hears what an LM call used where DSPy is told to keep no history, which else has it.

    It stands in the place of DSPy's own usage tracker during the call, and tells that.
    """

    def __init__(self) -> None:
        self.usage: Mapping[str, Any] | None = None
        self._tracker: Any = dspy.settings.get("usage_tracker")
        self._token = override(usage_tracker=self)

    @classmethod
    def if_needed(cls) -> Self | None:
        """Begin to listen, unless the history will tell."""
        return cls() if dspy.settings.get("disable_history") else None

    def add_usage(self, model: str, usage: dict[str, Any]) -> None:
        """Note what a call used; DSPy asks its tracker so, but for answers from its cache."""
        self.usage = usage
        if self._tracker is not None:
            self._tracker.add_usage(model, usage)

    def close(self) -> None:
        """Give DSPy its tracker back."""
        undo(self._token)


class StreamClock:
    """Hears when the first piece of a streamed answer comes, in the place of DSPy's stream.

    Several recorders of one call share one.
    """

    def __init__(self, stream: Any) -> None:
        self.first_token_ms: float | None = None
        self._stream, self._begun = stream, time.perf_counter()
        self._token = override(send_stream=self)

    @classmethod
    def if_streamed(cls) -> Self | None:
        """Begin to wait, if the call that begins is to be streamed."""
        stream: Any = dspy.settings.get("send_stream")
        return stream if stream is None or isinstance(stream, cls) else cls(stream)

    async def send(self, piece: object) -> None:
        """Pass a piece on."""
        if self.first_token_ms is None:
            self.first_token_ms = round((time.perf_counter() - self._begun) * 1000, 3)
        await self._stream.send(piece)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        """Give DSPy its stream back; the first who asks does."""
        if dspy.settings.get("send_stream") is self:
            undo(self._token)


class MeteringCallback(BaseCallback):
    """Hears of LM calls; a meter says what is to be done when one begins and when it has ended."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[object, Any, UsageListener | None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def on_lm_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Note a call that begins, unless the meter refuses it."""
        self._open[call_id] = instance, self.begin(inputs), UsageListener.if_needed()

    def on_lm_end(
        self, call_id: str, outputs: object, exception: BaseException | None = None
    ) -> None:
        """Count a call that was noted."""
        model, begun, listener = self._open.pop(call_id, (None, None, None))
        if listener is not None:
            listener.close()
        if model is not None:
            self.end(begun, Usage.of_call(model, outputs, listener), outputs, exception)

    def begin(self, inputs: dict[str, Any]) -> Any:
        """Note a call and return what `end` is to know of it; an error keeps it from being made."""
        raise NotImplementedError

    def end(
        self, begun: Any, usage: Usage, outputs: object, exception: BaseException | None
    ) -> None:
        """Count a call."""
        raise NotImplementedError


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
    for name in names:
        if isinstance(count := usage.get(name), int):
            return count
    return None


def _counted(usage: Any) -> dict[str, Any]:
    return {name: count for name, count in asdict(usage).items() if count is not None}


def _history_entry(model: object, outputs: object) -> Mapping[str, Any] | None:
    """Return the history entry of the call that gave `outputs`, looking at the newest first."""
    history: list[Any] = getattr(model, "history", None) or []
    for entry in islice(reversed(history), _ENTRIES_SEARCHED):
        if entry.get("outputs") is outputs:
            return cast("Mapping[str, Any]", entry)
    return None


def _detail(details: object, name: str) -> Any:
    if isinstance(details, Mapping):
        return cast("Mapping[str, Any]", details).get(name)
    return getattr(details, name, None)
