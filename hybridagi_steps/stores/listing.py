"""Listing: runs and sessions as a memory lists them, with what is in flight and what was recorded.

A store knows what is stored: runs of which no step is, and that a run goes on, the recordings of
this process tell. Sessions that were only recorded have no messages; they stand among those that
have, by when something of them was written last.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable
from uuid import UUID

from pydantic import BaseModel

from hybridagi_steps.display.titles import title_of
from hybridagi_steps.errors import MemoryClosedError
from hybridagi_steps.lazy import public_name
from hybridagi_steps.protocols import StoreBackend
from hybridagi_steps.recording_hooks import RunInFlight, runs_in_flight
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter, StepHit
from hybridagi_steps.records.listings import ListedRun, Runs, Sessions, steps_frame
from hybridagi_steps.records.message import Step, in_utc
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.store_values import DETAILS, RunSummary, SessionSummary, details_id
from hybridagi_steps.stores.sql.where import has_metadata
from hybridagi_steps.validation import (
    StepHolder,
    StepId,
    Where,
    checked_page,
    for_recall,
    id_texts,
    of_steps,
)

_NEWEST, _EVERYTHING = 10, 2**62
_SESSIONS, _TITLE = 200, 80
"""How far runs that were cut off are looked for, and how much of their message is shown."""


StepIds: TypeAlias = (
    StepId | AgentStep | StepHit | Iterable[StepId | AgentStep | StepHit] | StepHolder
)
"""The id of a step or the step itself, or several."""


@runtime_checkable
class _HasUnanswered(Protocol):
    """A store that finds the ends of many sessions at once."""

    def unanswered(self, limit: int) -> list[Step]:
        """Return the last messages of the sessions written last that are no model's answer."""
        ...


class OnStore(ABC):
    """A memory, as its abilities see it."""

    @property
    @abstractmethod
    def _open_store(self) -> StoreBackend:
        """Return the store, unless it is closed."""


class Listing(OnStore):
    """What a memory lists besides steps."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return counts and sizes."""

    @abstractmethod
    def run_steps(self, run_id: str) -> list[AgentStep]:
        """Return all steps of a run, by hop."""

    def export(self, path: str | os.PathLike[str], **options: Any) -> int:
        """Write the steps to a file, `.jsonl` or `.parquet`; return how many.

        Args:
            path: The file, replaced when all is written.
            options: Of `exchange.export_file`: `where`, `format`, `vectors`.

        Raises:
            ExchangeError: It cannot be written.
        """
        return public_name("export_file", "exchange")(self, path, **options)

    def to_pandas(self, where: Where = None) -> Any:
        """Return matching steps as a pandas DataFrame; `hs.steps_frame` takes any steps.

        Raises:
            InvalidFilterError: As `find` does.
            MissingExtraError: pandas is not installed.
        """
        asked = for_recall(of_steps(where))
        return steps_frame(list(self._open_store.find(asked, limit=_EVERYTHING)))

    def runs(
        self,
        where: Where = None,
        *,
        limit: int = 100,
        offset: int = 0,
        user_id: str | None = None,
        scope: str | None = None,
    ) -> Runs:
        """Return what is known of each run, newest first; the list says when there are more.

        Those in flight in this process are among them, and those that a kill cut off before their
        first step: of the 200 sessions written last the ones whose last message is theirs.

        Args:
            where: Only runs of which some step matches; `user_id` and `scope` mean what they do
                here.
            limit: Most runs wanted.
            offset: Runs passed over.
            user_id: Only runs of which every step is this user's.
            scope: None: the user's own history, without the trials of `compile` and `Evaluate` and
                whatever else stands in a scope as a whole. A scope's name: the runs that have steps
                in it; `*`: all.

        Raises:
            InvalidFilterError: An unknown key in `where`.
            InvalidQueryError: `limit` or `offset` is no number of runs.
        """
        limit, offset = checked_page(limit, offset)
        named = {"user_id": user_id, "scope": scope}
        given = {name: value for name, value in named.items() if value is not None}
        asked = of_steps(where).model_copy(update=given)
        store, flying = self._open_store, runs_in_flight(self)
        new = [_unstored(run) for run in flying.values() if _is_new(store, run, asked)]
        left = [run for run in _cut_off(store, flying) if _is_new(store, run, asked)]
        found = _merged(store, left, limit + 1, max(0, offset - len(new)), asked)
        every = [*new[offset : offset + limit], *found]
        firsts = store.get([run.first_step for run in every[:limit] if run.first_step])
        titles = {id_text(step.id): str(title_of(vars(step))) for step in firsts}
        listed = [
            ListedRun.of(
                run._replace(
                    title=titles.get(run.first_step, run.title),
                    status=_status(store, run, flying),
                ),
                self,
            )
            for run in every[:limit]
        ]
        return Runs(listed, next_offset=offset + limit if len(every) > limit else None)

    def sessions(
        self, *, limit: int = 100, offset: int = 0, user_id: str | None = None
    ) -> Sessions:
        """Return sessions, the one written last first; those that were only recorded, too.

        Args:
            limit: Most sessions wanted.
            offset: Sessions passed over.
            user_id: Whose; of a recorded one every step has to be this user's.

        Raises:
            InvalidQueryError: `limit` or `offset` is no number of sessions.
        """
        return listed_sessions(self._open_store, limit, offset, user_id)

    def __str__(self) -> str:
        """What the memory holds, and its newest runs as a table."""
        from hybridagi_steps.display.terminal import printable

        try:
            stats, runs = self.stats(), self.runs(limit=_NEWEST)
        except MemoryClosedError:
            return repr(self)
        held = " · ".join(
            f"{stats[name]:,} {name}" for name in ("steps", "runs", "sessions", "messages")
        )
        return printable("\n".join([f"{self!r}  {held}", *([str(runs)] if runs else [])]))

    def _repr_html_(self) -> str:
        """Show in a notebook what the memory holds, and its newest runs."""
        from hybridagi_steps.display import memory_html

        try:
            stats, runs = self.stats(), self.runs(limit=_NEWEST)
        except MemoryClosedError as error:
            return memory_html(str(error), {}, [])
        return memory_html(repr(self), stats, [run._asdict() for run in runs])


def listed_sessions(store: StoreBackend, limit: int, offset: int, user_id: str | None) -> Sessions:
    """Return a page of a store's sessions, those that were only recorded among the others."""
    limit, offset = checked_page(limit, offset)
    if not store.sessions(limit=1, user_id=user_id):
        page = store.sessions(limit=limit, offset=offset, user_id=user_id, recorded=True)
        return _described(store, page)
    recorded = store.sessions(limit=offset + limit, user_id=user_id, recorded=True)
    if not recorded:
        return _described(store, store.sessions(limit=limit, offset=offset, user_id=user_id))
    talks = store.sessions(limit=offset + limit, user_id=user_id)
    every = merge(talks, recorded, key=_written, reverse=True)
    return _described(store, [*islice(every, offset, offset + limit)])


def _described(store: StoreBackend, sessions: Sequence[SessionSummary]) -> Sessions:
    """Return sessions with the titles and metadata they have."""
    told = details_told(store, {each.session_id: each.user_id for each in sessions})
    return Sessions(
        replace(each, title=of_it.get("title"), metadata=of_it.get("metadata"))
        for each, of_it in zip(sessions, told, strict=True)
    )


def details_told(store: StoreBackend, owners: Mapping[str, str | None]) -> list[Mapping[str, Any]]:
    """Return what is kept of sessions; of another user than a session's owner that is nothing."""
    ids = {details_id(name): owner for name, owner in owners.items()}
    known = {
        name: step.outputs or {}
        for step in store.get([*ids])
        if (name := id_text(step.id)) in ids
        and step.scope == DETAILS
        and step.user_id in (None, ids[name])
    }
    return [known.get(name, {}) for name in ids]


def _written(session: SessionSummary) -> str:
    return session.updated_at


def _status(store: StoreBackend, run: RunSummary, flying: Mapping[str, RunInFlight]) -> str:
    """Return how a run is; one that paused waits as long as no later one of its session began."""
    if run.run_id in flying:
        return "running"
    if run.status != "paused" or run.session_id is None:
        return run.status
    # On the session's line: a retry that it has not taken over leaves what waits as it is.
    on_line = StepFilter(session_id=run.session_id, scope=EVERY_SCOPE)
    newest = [each.run_id for each in store.runs(limit=1, where=on_line)]
    newest += [each.run_id for each in flying.values() if each.session_id == run.session_id]
    return "superseded" if {*newest} - {run.run_id} else run.status


def _is_new(store: StoreBackend, run: RunInFlight, asked: StepFilter) -> bool:
    """Whether a run in flight is asked for, and no step of it is stored."""
    stored = StepFilter(run_id=run.run_id, scope=EVERY_SCOPE)
    return _fits(run, asked) and not store.runs(limit=1, where=stored)


def _fits(run: RunInFlight, asked: StepFilter) -> bool:
    """Whether a step that said no more than what is known of a run would match."""
    known = {"run_id": run.run_id, "user_id": run.user_id}
    at = datetime.fromisoformat(run.started_at)
    return (
        asked.finds("step")
        and asked.program is None
        and asked.min_score is None
        and asked.session_id in (None, run.session_id)
        and asked.scope in (EVERY_SCOPE, run.scope)
        and run.run_id not in (asked.exclude_run_id or ())
        and (asked.since is None or at >= asked.since)
        and (asked.until is None or at < asked.until)
        and has_metadata(run.tags, asked)
        and all(known.get(key) in values for key, values in asked.equalities())
        and not any(_fits(run, each) for each in asked.excluded())
        and (asked.any_of is None or any(_fits(run, each) for each in asked.alternatives()))
    )


def _cut_off(store: StoreBackend, flying: Container[str]) -> list[RunInFlight]:
    """Return the runs at the end of sessions that have not told how they ended, newest first.

    Of most there are steps; what is known of a run without one is its last message.
    """
    if not isinstance(store, _HasUnanswered):
        return []
    return [
        RunInFlight(
            step.run_id,
            in_utc(step.created_at).isoformat(),
            step.session_id,
            step.user_id,
            title=" ".join(str(step.content or "").split())[:_TITLE],
        )
        for step in sorted(store.unanswered(_SESSIONS), key=_said_at, reverse=True)
        if step.run_id is not None
        and step.run_id not in flying
        and "run" not in (step.metadata or {})
        and source_of(step.metadata) is None
    ]


def _said_at(step: Step) -> datetime:
    return step.created_at


def _merged(
    store: StoreBackend, left: Sequence[RunInFlight], limit: int, offset: int, asked: StepFilter
) -> list[RunSummary]:
    """Return a page of the stored runs, with those that were cut off where their time is."""
    first = max(0, offset - len(left))  # so many stored ones are passed over for certain
    found = store.runs(limit=limit + len(left), offset=first, where=asked)
    if not left or (first and not found):
        return found
    cut_off = [_unstored(run, "interrupted") for run in left]
    if first:  # the newer ones are passed over with them
        cut_off = [run for run in cut_off if _begun(run) <= _begun(found[0])]
    passed = first + len(left) - len(cut_off)
    both = merge(found, cut_off, key=_begun, reverse=True)
    return [*islice(both, offset - passed, offset - passed + limit)]


def _begun(run: RunSummary) -> datetime:
    return datetime.fromisoformat(run.started_at)


def _unstored(run: RunInFlight, status: str = "running") -> RunSummary:
    known = (run.run_id, run.session_id, run.scope, 0, 0, "", run.started_at, run.started_at)
    return RunSummary(*known, None, None, status, run.title)


def step_id_texts(steps: StepIds) -> list[str]:
    """Return the ids of one step or of several as texts; steps and hits stand for their ids.

    Raises:
        InvalidQueryError: A filter, or what is neither an id nor a step.
    """
    holder: Any = getattr(steps, "steps", steps)
    if isinstance(holder, str | UUID | Mapping | BaseModel) or not isinstance(holder, Iterable):
        return id_texts(_id_of(cast("object", holder)))
    return id_texts(map(_id_of, cast("Iterable[object]", holder)))


def _id_of(item: object) -> Any:
    """Return the id of a step or of a hit's step; anything else as it is."""
    step = item.step if isinstance(item, StepHit) else item
    return step.id if isinstance(step, AgentStep) else step
