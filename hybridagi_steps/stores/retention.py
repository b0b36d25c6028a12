"""Retention: what is older than so many days goes for good, sessions and runs as wholes.

An ability that a store may have. A memory asks its store what something old belongs to, and has it
removed in batches, each a transaction of its own: a call that was cut short is made again.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from html import escape
from typing import NamedTuple, Protocol, runtime_checkable

from hybridagi_steps.errors import InvalidMemoryError, InvalidSettingError
from hybridagi_steps.recording_hooks import runs_in_flight
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.listing import OnStore
from hybridagi_steps.validation import Where, in_every_scope, is_number

_AT_ONCE = {"sessions": 20, "runs": 50, "steps": 500}
"""How many of each are removed in one transaction."""


@dataclass(frozen=True, slots=True)
class Units:
    """What goes as a whole or stays as a whole."""

    sessions: list[str] = field(default_factory=list[str])
    runs: list[str] = field(default_factory=list[str])
    """Runs outside of any session that has messages."""
    steps: list[int] = field(default_factory=list[int])
    """Rows of steps of no run and no session."""
    excluded_messages: frozenset[int] = frozenset()
    """Rows of messages that keep their session."""

    def batches(self) -> Iterator[Units]:
        """Yield so many at once as one transaction removes."""
        for name, size in _AT_ONCE.items():
            every = getattr(self, name)
            for start in range(0, len(every), size):
                batch = {name: every[start : start + size]}
                yield Units(**batch, excluded_messages=self.excluded_messages)

    def __len__(self) -> int:
        return len(self.sessions) + len(self.runs) + len(self.steps)


class Expiry(NamedTuple):
    """When a unit goes."""

    where: StepFilter
    """Which steps and messages name their unit; its `until` is the time that all must be before."""
    busy_runs: frozenset[str]
    """Runs that go on, or are left out."""
    busy_sessions: frozenset[str]
    """Sessions that go on."""


class Expired(NamedTuple):
    """What went, or would go."""

    sessions: list[str]
    runs: int
    alone: int
    """Steps of no run and no session."""
    steps: int
    """AgentSteps in all."""
    messages: int


@runtime_checkable
class RetentionStore(Protocol):
    """What a store has besides that removes what is old."""

    def now(self) -> datetime:
        """Return the time, UTC, by a clock that all who use the store share where there is one."""
        ...

    def old_units(self, where: StepFilter) -> Units:
        """Return what matching steps and messages belong to, oldest first."""
        ...

    def expire(self, units: Units, expiry: Expiry, *, dry_run: bool = False) -> Expired:
        """Remove those units that are old as wholes, in one transaction.

        One stays that has something newer, a pinned or excluded step, one of another user than the
        one asked for, or a call that waits for consent. A dry run leaves out what `alone_in` says.
        """
        ...

    def alone_in(self, sessions: list[str]) -> tuple[int, int]:
        """Return how many messages and pinned AgentSteps no session but these reads."""
        ...


@dataclass(frozen=True, slots=True)
class Retained:
    """What a retention removed, or a dry run would."""

    before: datetime
    """What was older than this, UTC."""
    sessions: int
    """Sessions with messages, as wholes."""
    runs: int
    """Runs outside of them, as wholes."""
    steps: int
    """AgentSteps, those of these sessions and runs included."""
    messages: int
    """Messages; what a fork that stays reads is not among them."""
    kept: int
    """Sessions, runs and single steps that have something old and stay."""
    dry_run: bool
    """Whether nothing was removed yet."""

    def __str__(self) -> str:
        went = "would go" if self.dry_run else "removed"
        return (
            f"older than {self.before:%Y-%m-%d %H:%M} UTC, {went}: {self.steps:,} steps and "
            f"{self.messages:,} messages of {self.sessions:,} sessions and {self.runs:,} runs; "
            f"{self.kept:,} that have something old stay"
        )

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        return f"<p>{escape(str(self))}</p>"


class Retention(OnStore):
    """What a memory does to stay as small as its owner may keep it."""

    @abstractmethod
    def _forget_cache(self) -> None:
        """Drop what was kept of the rows for searching."""

    def retain(
        self,
        days: float,
        where: Where = None,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Retained:
        """Keep the last `days`: remove for good what is older and what the filter names.

        A session goes as a whole when its last message is older, and its AgentSteps, forks and
        attempts are; a run outside of sessions when its last step is; any other step by itself. A
        filter names a session or run by any of its steps or messages, `user_id` only what has
        nobody else's. What a fork that stays reads stays. So does whatever has a pinned step, one
        that `exclude` names, or a question of consent without an answer, and what is being recorded
        here. Rules of consent go with their session alone; prompts, scores, words, embeddings and
        the cache of the index go along.

        As after `delete` nothing reads what went, and `vacuum` gives its bytes back: `purge`, which
        overwrites them, rewrites the file, too dear for each night. Batches are short transactions
        that others write between; a call that was cut short is made again.

        Args:
            days: How much is kept, by the times of steps and messages, until now by the clock of
                the database's server; above 0, also below 1.
            where: What may go, in every scope unless it names one; by default all.
            dry_run: Only count.
            progress: Called with (done, total) as batches end.

        Raises:
            InvalidSettingError: `days` is no number above 0.
            InvalidFilterError: An unknown key in `where`.
            InvalidMemoryError: The store of this memory removes nothing by age.
        """
        asked, store = in_every_scope(where), self._open_store
        if not isinstance(store, RetentionStore):
            raise InvalidMemoryError(self, "a store that removes by age")
        before = _days_ago(days, store)
        until = before if asked.until is None else min(before, asked.until)
        expiry = self._expiry(asked.model_copy(update={"until": until}))
        units = store.old_units(expiry.where)
        done, gone = 0, list[Expired]()
        try:
            for batch in units.batches():
                gone.append(store.expire(batch, expiry, dry_run=dry_run))
                done += len(batch)
                if progress is not None:
                    progress(done, len(units))
        finally:
            if not dry_run and any(each.steps + each.messages for each in gone):
                self._forget_cache()
        sessions = [name for each in gone for name in each.sessions]
        messages, steps = store.alone_in(sessions) if dry_run else (0, 0)
        runs = sum(each.runs for each in gone)
        messages += sum(each.messages for each in gone)
        steps += sum(each.steps for each in gone)
        kept = len(units) - len(sessions) - runs - sum(each.alone for each in gone)
        return Retained(until, len(sessions), runs, steps, messages, kept, dry_run)

    def _expiry(self, where: StepFilter) -> Expiry:
        flying = runs_in_flight(self).values()
        runs = [*(run.run_id for run in flying), *(where.exclude_run_id or ())]
        sessions = (run.session_id for run in flying if run.session_id is not None)
        return Expiry(where, frozenset(runs), frozenset(sessions))


def _days_ago(days: float, store: RetentionStore) -> datetime:
    if not is_number(days) or not 0 < days < math.inf:
        raise InvalidSettingError(f"days is a number above 0, not {days!r:.80}.")
    try:
        return store.now() - timedelta(days=days)
    except OverflowError as error:
        raise InvalidSettingError(f"{days:g} days ago there was no calendar.") from error
