"""Traces among what is stored of them: a trace may come in several files, in any order.

Where a step stands depends on the other spans of its trace. So when more of a trace is stored, the
whole is placed anew, and what is stored moves to where it stands now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybridagi_steps.exchange.origins import RunScores
from hybridagi_steps.exchange.records import (
    Entry,
    Parsed,
    ParsedMessages,
    ParsedScore,
    ParsedTrace,
    Skipped,
)
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.json_reading import JsonObject
from hybridagi_steps.validation import admitted

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory

PlacedEntry = Parsed | ParsedMessages | ParsedScore | Skipped
"""What an import stores."""
_PLACE = ("joins", "note", "trace")
"""Keys of `metadata` that depend on the other spans of the trace."""


class TraceImport:
    """Places the steps of traces."""

    def __init__(self, memory: StepMemory, scores: RunScores) -> None:
        self._memory, self._scores = memory, scores
        self._moved = 0
        self._alone: dict[str, int] = {}

    def placed(self, batch: Sequence[Entry]) -> list[PlacedEntry]:
        """Return entries, the traces among them as their steps."""
        found: list[PlacedEntry] = []
        for entry in batch:
            if isinstance(entry, ParsedTrace):
                found += self._whole(entry)
            else:
                found.append(entry)
        return found

    def notes(self) -> list[str]:
        """Return what was moved and what is missing, in words."""
        notes: list[str] = []
        if self._moved:
            notes.append(f"steps moved to their places, since their trace grew: {self._moved:,}")
        if alone := sum(self._alone.values()):
            notes.append(f"spans whose parent span has not come yet: {alone:,}")
        return notes

    def _whole(self, trace: ParsedTrace) -> Iterator[Parsed | Skipped]:
        """Yield the steps of a trace; when more of it is stored, as they stand among that."""
        run = StepFilter(run_id=trace.run_id, scope=EVERY_SCOPE)
        stored = {str(step.id): step for step in self._memory.iter_steps(run)}
        told = list(trace.placed(stored.values()))
        self._move(stored, _steps(told))
        self._count_alone(trace.run_id, _steps(told))
        for entry in told:
            if entry.line:
                yield entry
            elif isinstance(entry, Skipped) or str(entry.step.id) not in stored:
                yield entry._replace(line=trace.line)

    def _move(self, stored: dict[str, AgentStep], steps: list[AgentStep]) -> None:
        """Put what is stored where it stands now."""
        pairs = [(stored.get(str(step.id)), step) for step in steps]
        found = [self._moved_to(known, step) for known, step in pairs if known is not None]
        if moved := [step for step in found if step is not None]:
            self._memory.update(moved)
            self._moved += len(moved)

    def _moved_to(self, known: AgentStep, fresh: AgentStep) -> AgentStep | None:
        """Return a stored step where it stands now; None when it stands there already."""
        step = known.model_copy(update=_place(known, fresh))
        if known.step_type is not fresh.step_type:
            if (known.step_type, fresh.step_type) != (
                AgentStepType.Action,
                AgentStepType.ProgramCall,
            ):
                return None
            said = ("step_type", "inputs", "outputs", "status", "metrics", "created_at")
            step = step.model_copy(update={name: getattr(fresh, name) for name in said})
        [step] = admitted([step], self._memory.redact)
        if _stands(step) == _stands(known):
            return None
        scored = self._scores.of(known.run_id) if known.score is not None else None
        inherited = scored is not None and scored[0] == known.score
        return step.model_copy(update={"score": None}) if inherited else step

    def _count_alone(self, run_id: str, steps: list[AgentStep]) -> None:
        """Count the spans whose parents are not there, a step each but for ends of programs."""
        spans = [step for step in steps if step.step_type is not AgentStepType.ProgramEnd]
        inside = {None, *(str(step.id) for step in steps)}
        if alone := sum(span.program_id not in inside for span in spans):
            self._alone[run_id] = alone
        else:
            self._alone.pop(run_id, None)


def _steps(entries: Iterable[Parsed | Skipped]) -> list[AgentStep]:
    return [entry.step for entry in entries if isinstance(entry, Parsed)]


def _place(known: AgentStep, fresh: AgentStep) -> JsonObject:
    """Return the fields of a stored step that depend on the other spans of its trace."""
    before, now = known.metadata or {}, fresh.metadata or {}
    rest = {name: before[name] for name in before if name not in _PLACE}
    here = {name: now[name] for name in _PLACE if name in now}
    inputs = known.inputs or {}
    if not known.purpose and fresh.purpose:
        inputs = {**inputs, "purpose": fresh.purpose}
    return {
        "parent_id": fresh.parent_id,
        "hop": fresh.hop,
        "program_id": fresh.program_id,
        "session_id": known.session_id or fresh.session_id,
        "user_id": known.user_id or fresh.user_id,
        "inputs": inputs,
        "metadata": {**rest, **here},
    }


def _stands(step: AgentStep) -> tuple[Any, ...]:
    parent = step.parent_id and str(step.parent_id)
    place = parent, step.hop, step.program_id, step.session_id, step.user_id
    return *place, step.step_type, step.inputs, step.metadata
