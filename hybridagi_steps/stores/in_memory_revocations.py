"""Revocations of the in-memory store: the same contract as sql/revocations.py, under one lock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from hybridagi_steps.errors import UnknownRevocationError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import new_id, utc_now
from hybridagi_steps.records.provenance import recalled_by
from hybridagi_steps.records.revocation import Revocation
from hybridagi_steps.stores.descent import (
    Kin,
    descendants,
    kept_filter,
    names_owner,
    recallers,
)
from hybridagi_steps.stores.in_memory_state import State, Stored


class InMemoryRevocations(ABC):
    """Implements `RevocationStore`; see protocols.py."""

    @abstractmethod
    def _opened(self) -> AbstractContextManager[State]:
        """Give the state while nobody else has it."""

    @abstractmethod
    def _matching(self, state: State, where: StepFilter) -> list[Stored]:
        """Return the steps that pass a filter, by row."""

    def revoke(self, where: StepFilter, reason: str | None, *, dry_run: bool = False) -> Revocation:
        """Hide the steps that match, and all that descends from them."""
        with self._opened() as state:
            seeds = [stored.id for stored in self._matching(state, where)]
            found = descendants(seeds, *_links(state, list(state.steps.values())))
            told = Revocation(
                None if dry_run or not found else str(new_id()),
                kept_filter(where),
                reason,
                utc_now(),
                len(seeds),
                len(found) - len(seeds),
                step_ids=found,
            )
            if told.id is not None:
                mark_late(state)
                state.revocations[told.id] = replace(told, step_ids=[])
                state.marks[told.id] = set(found)
                state.revoked_through = state.last_row
                state.revoked_moved += 1
        return told

    def reinstate(self, revocation_id: str) -> Revocation:
        """Undo a revocation."""
        with self._opened() as state:
            if revocation_id not in state.revocations:
                raise UnknownRevocationError(revocation_id)
            mark_late(state)
            hidden = state.marks.pop(revocation_id, None)
            known = state.revocations[revocation_id]
            if hidden is not None:
                known = state.revocations[revocation_id] = replace(known, undone_at=utc_now())
                state.revoked_moved += 1
            return replace(
                known, step_ids=sorted((hidden or set()).difference(*state.marks.values()))
            )

    def revocations(self) -> list[Revocation]:
        """Return all revocations that are kept, oldest first."""
        with self._opened() as state:
            mark_late(state)
            return list(state.revocations.values())

    def forget_revocations(self, where: StepFilter) -> None:
        """Forget revocations that name a purged user or session, and hide no step any more."""
        with self._opened() as state:
            for name, known in list(state.revocations.items()):
                if names_owner(known.where, where) and name not in state.marks:
                    del state.revocations[name]


def mark_late(state: State) -> None:
    """Mark what was stored since the last time and descends from what is revoked."""
    if not state.marks or state.revoked_through == state.last_row:
        return
    fresh = [stored for row, stored in state.steps.items() if row > state.revoked_through]
    state.revoked_through = state.last_row
    links = _links(state, fresh)
    sources = {source for stored in fresh for source in _sources(stored)}
    for name, marks in state.marks.items():
        late = set(descendants(sorted(sources & marks), *links)) - marks
        marks |= late
        known = state.revocations[name]
        state.revocations[name] = replace(known, descended=known.descended + len(late))


def _sources(stored: Stored) -> list[str]:
    """Return the ids of steps that a step came from; the end of a program came from its call."""
    call_id = stored.step.program_id if stored.step.step_type == "ProgramEnd" else None
    return [*recalled_by(stored.step.metadata), *([] if call_id is None else [call_id])]


def _links(state: State, steps: Sequence[Stored]) -> tuple[Kin, Kin]:
    def calls(ids: Sequence[str]) -> list[str]:
        inside = [state.steps[state.rows[step_id]].step.program_id for step_id in ids]
        return [call_id for call_id in inside if call_id is not None and call_id in state.rows]

    return recallers((stored.id, _sources(stored)) for stored in steps), calls
