"""The receipt of a context: what is in it, what is not, why, and what it costs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from hybridagi_steps.records.json_reading import JsonObject, as_json
from hybridagi_steps.token_counters import ESTIMATE, MessageCounter

_REMEMBERED_SESSIONS = 256
_DIGEST_BYTES = 16
_MOST_DROPPED = 20
"""Lines of what was dropped in a printed receipt."""


class ReceiptEntry(NamedTuple):
    """One message or step that was kept or dropped."""

    id: str
    """Id of the message, or of the AgentStep where AgentSteps were given; `system`, `opening` and
    `recalled` name what the builder itself wrote."""
    why: str
    """Why it is in, or out."""
    tokens: int
    """What it costs; of something dropped, what it would have cost."""
    rank: int | None = None
    """Its place among what was found to be recalled, from 1."""


@dataclass(slots=True)
class Receipt:
    """What a context holds and leaves out."""

    budget: int
    """Tokens there were."""
    counter_id: str
    """Who counted; begins with `estimate:` if nobody knows."""
    next_best: ReceiptEntry | None = None
    """What the next tokens would have bought: the best that was found and is not there, or cut, and
    what it costs whole."""
    cached_tokens: int = 0
    """Of all tokens those of the beginning that this prompt shares with the last one that the same
    builder made for the session: what a provider's prompt cache can serve, if it is long enough and
    soon enough (OpenAI and Anthropic keep nothing below 1,024 tokens, for some minutes)."""
    cache_weight: float = 0.1
    """What a cached token costs beside a fresh one."""
    notes: list[str] = field(default_factory=list[str])
    """What was repaired, and what could not be done."""
    _kept: list[ReceiptEntry] = field(default_factory=list[ReceiptEntry], repr=False)
    _reasons: dict[int, Callable[[], str]] = field(
        default_factory=dict[int, "Callable[[], str]"], repr=False, compare=False
    )
    _dropped: list[ReceiptEntry] = field(default_factory=list[ReceiptEntry], repr=False)
    _to_list: list[Callable[[], Iterable[ReceiptEntry]]] = field(
        default_factory=list["Callable[[], Iterable[ReceiptEntry]]"], repr=False, compare=False
    )

    @property
    def kept(self) -> list[ReceiptEntry]:
        """What is in the context, in order; their tokens add up to all of it."""
        while self._reasons:
            place, reason = self._reasons.popitem()
            self._kept[place] = self._kept[place]._replace(why=reason())
        return self._kept

    def keep(self, entry: ReceiptEntry, reason: Callable[[], str] | None = None) -> None:
        """Add what is in the context; neighbours about one message become one.

        Args:
            entry: Its line.
            reason: Says why it is in, when somebody asks; else `entry` does.
        """
        if reason is not None:
            self._reasons[len(self._kept)] = reason
            self._kept.append(entry)
        else:
            add_entry(self._kept, entry)

    @property
    def dropped(self) -> list[ReceiptEntry]:
        """What is not in the context, in the order of the session; listed when first asked for."""
        while self._to_list:
            self._dropped += self._to_list.pop(0)()
        return self._dropped

    def drop(self, entries: Callable[[], Iterable[ReceiptEntry]]) -> None:
        """Add what is dropped, a line for each: of a long session thousands nobody may look at."""
        self._to_list.append(entries)

    @property
    def tokens(self) -> int:
        """Tokens of the whole context; no provider's form of it has more."""
        return sum(entry.tokens for entry in self._kept)

    @property
    def weighted_tokens(self) -> int:
        """What the prompt costs in fresh tokens, those that are cached at their weight."""
        return round(self.tokens - (1 - self.cache_weight) * self.cached_tokens)

    @property
    def estimated(self) -> bool:
        """Whether the tokens are an estimate."""
        return self.counter_id.startswith(ESTIMATE)

    def __str__(self) -> str:
        """The receipt as lines of text, of what was dropped the first ones."""
        from hybridagi_steps.display.terminal import printable

        about = "about " if self.estimated else ""
        head = f"{about}{self.tokens:,} of {self.budget:,} tokens ({self.counter_id})"
        if self.cached_tokens:
            head += f", {self.cached_tokens:,} as before: {self.weighted_tokens:,} weighted"
        kept = [f"+ {e.id}: {e.why}{_ranked(e)}, {e.tokens:,}" for e in self.kept]
        dropped = [f"- {e.id}: {e.why}, {e.tokens:,}" for e in self.dropped[:_MOST_DROPPED]]
        if (more := len(self.dropped) - _MOST_DROPPED) > 0:
            dropped.append(f"… and {more:,} more dropped")
        if (best := self.next_best) is not None:
            dropped.append(f"> next: {best.id}: {best.why}{_ranked(best)}, {best.tokens:,}")
        return printable("\n".join([head, *kept, *dropped, *(f"! {note}" for note in self.notes)]))

    def shown(self) -> JsonObject:
        """Return the receipt as plain data for display."""
        return {
            "tokens": self.tokens,
            "budget": self.budget,
            "counter": self.counter_id,
            "estimated": self.estimated,
            "kept": [entry._asdict() for entry in self.kept],
            "dropped": [entry._asdict() for entry in self.dropped],
            "next_best": None if self.next_best is None else self.next_best._asdict(),
            "cached_tokens": self.cached_tokens,
            "weighted_tokens": self.weighted_tokens,
            "notes": self.notes,
        }

    def _repr_html_(self) -> str:
        """Show the receipt in a notebook."""
        from hybridagi_steps.display import receipt_html

        return receipt_html(self.shown())


def add_entry(entries: list[ReceiptEntry], entry: ReceiptEntry) -> None:
    """Add an entry; neighbours about one step become one."""
    if entries and entries[-1].id == entry.id and entries[-1].why == entry.why:
        entries[-1] = entry._replace(tokens=entries[-1].tokens + entry.tokens)
    else:
        entries.append(entry)


def _ranked(entry: ReceiptEntry) -> str:
    return "" if entry.rank is None else f" (rank {entry.rank})"


class SentPrompts:
    """How each session's last prompt began, so that a receipt can say what a cache would serve.

    Of the messages only digests are kept. Threads may share it: what it knows of a session is
    replaced, not changed.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, list[bytes]] = OrderedDict()

    def shared(
        self, session_id: str, messages: Sequence[JsonObject], counter: MessageCounter
    ) -> int:
        """Return the tokens with which a prompt begins as the session's last one did; keep it."""
        digests = [
            blake2b(as_json(message).encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).digest()
            for message in messages
        ]
        before = self._known.pop(session_id, [])
        self._known[session_id] = digests
        while len(self._known) > _REMEMBERED_SESSIONS:
            self._known.popitem(last=False)
        tokens = 0
        for message, now, then in zip(messages, digests, before, strict=False):
            if now != then:
                break
            tokens += counter.message(message)
        return tokens
