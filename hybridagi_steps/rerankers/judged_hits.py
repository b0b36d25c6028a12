"""Hits with a verdict, from which a rank is learned: what a memory knows of its own use, or labels.

A step that was recalled into a run that scored well was a good hit for what that run asked, one
recalled into a run that scored badly a bad one: recorders keep in `metadata.recalled` what stood in
a prompt, and the first step of a run that names an id tells who asked for it. Labels say so
themselves, as (query, step id, 0 or 1). Either way the query is asked again, and the hits that come
carry what can be learned from; a step that is not among them teaches nothing and is counted.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, cast
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from hybridagi_steps.errors import LabelError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.json_values import first_fault
from hybridagi_steps.records.provenance import recalled_by
from hybridagi_steps.records.step_text import whole_text
from hybridagi_steps.records.store_values import UNREVOKED
from hybridagi_steps.validation import Where

LONGEST_QUERY = 1_000
"""Characters of what a run asked that are asked again."""


class SearchedMemory(Protocol):
    """What is asked of a memory to learn from it."""

    def search(self, query: Any, k: int = 5, *, where: Where = None) -> list[StepHit]:
        """Return up to k hits, best first."""
        ...

    def iter_steps(self, where: Where = None) -> Iterator[AgentStep]:
        """Yield every matching step."""
        ...

    def get_steps(self, ids: Iterable[str]) -> list[AgentStep]:
        """Return the steps with these ids."""
        ...


class JudgedHits(NamedTuple):
    """The hits of one query, and which of them were good."""

    query: str
    hits: Sequence[StepHit]
    """As the search gave them, best first."""
    verdicts: Sequence[bool | None]
    """Of each hit whether it was good; None where nobody knows."""
    group: str = ""
    """What is judged together, such as a run; by default the query is its own group."""


class Verdicts(NamedTuple):
    """What is known of one query before it is asked again."""

    query: str
    group: str
    where: StepFilter | None
    of: dict[str, bool]
    """By step id whether it was good."""


def _as_verdict(value: object) -> Any:
    if isinstance(value, bool):
        return value
    if value in (0, 1):
        return bool(value)
    raise ValueError("a label is 1 (or true) for a good hit and 0 (or false) for a bad one")


class _Label(BaseModel):
    """One labelled hit, as a file or a caller gives it."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    step: str | UUID
    label: Annotated[bool, BeforeValidator(_as_verdict)]


Labels = str | os.PathLike[str] | Iterable[tuple[str, str | UUID, bool | int] | dict[str, Any]]
"""A file with an object a line (`query`, `step`, `label`), or the same as dicts or tuples."""


def labelled(labels: Labels) -> list[Verdicts]:
    """Return labels by query."""
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    is_file = isinstance(labels, str | os.PathLike)
    for place, label in _lines(Path(labels)) if is_file else _tuples(labels):
        step_id = id_text(label.step)
        if found[label.query].setdefault(step_id, label.label) != label.label:
            raise LabelError(f"{place}: step {step_id} is called good and bad for the same query.")
    return [Verdicts(query, query, None, verdicts) for query, verdicts in found.items()]


def _lines(file: Path) -> Iterator[tuple[str, _Label]]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _checked(f"{file}, line {number}", line)
    except OSError as error:
        raise LabelError(f"cannot read {file}: {error.strerror}.") from error


def _tuples(labels: Iterable[Any]) -> Iterator[tuple[str, _Label]]:
    if not isinstance(labels, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LabelError(f"labels are a file or (query, step id, 0 or 1) each, not {labels!r}.")
    for number, given in enumerate(labels, start=1):
        place = f"label {number}"
        if isinstance(given, dict):  # as a line of a file says it
            yield _checked(place, cast("dict[str, Any]", given))
            continue
        try:
            query, step, label = given
        except (TypeError, ValueError) as error:
            raise LabelError(f"{place} is no (query, step id, 0 or 1).") from error
        yield _checked(place, {"query": query, "step": step, "label": label})


def _checked(place: str, given: bytes | dict[str, Any]) -> tuple[str, _Label]:
    try:
        if isinstance(given, bytes):
            return place, _Label.model_validate_json(given)
        return place, _Label.model_validate(given)
    except ValidationError as error:
        raise LabelError(f"{place}: {first_fault(error)}.") from error


def used(memory: SearchedMemory, where: Where, good_from: float) -> list[Verdicts]:
    """Return what runs with a score say of the steps that they recalled.

    `where` says which steps are looked at; by default the user's own history, without trials. A run
    with at least `good_from` went well.
    """
    asked = StepFilter.of(where)
    trials_too = asked.scope is not None
    every = asked if trials_too else asked.model_copy(update={"scope": UNREVOKED})
    known: set[tuple[str, str]] = set()
    fresh: list[tuple[AgentStep, list[str]]] = []
    for step in memory.iter_steps(every):
        run_id = step.run_id
        if run_id is None or step.score is None or (step.scope is not None and not trials_too):
            continue
        # What is recalled once stands in all steps that follow.
        new = [name for name in recalled_by(step.metadata) if (run_id, name) not in known]
        known.update((run_id, name) for name in new)
        if new:
            fresh.append((step, new))
    calls = _calls_of(memory, [step for step, _ in fresh])
    found: dict[tuple[str, str], Verdicts] = {}
    for step, new in fresh:
        query = asked_by(step, calls.get(step.program_id or ""))
        if query and step.run_id is not None and step.score is not None:
            scope = StepFilter(exclude_run_id=[step.run_id], user_id=step.user_id)
            verdicts = Verdicts(query, step.run_id, scope, {})
            kept = found.setdefault((step.run_id, query), verdicts)
            kept.of.update(dict.fromkeys(new, step.score >= good_from))
    return list(found.values())


def _calls_of(memory: SearchedMemory, steps: Iterable[AgentStep]) -> dict[str, AgentStep]:
    """Return the calls of programs in which steps were made."""
    ids = {step.program_id for step in steps if step.program_id}
    return {id_text(call.id): call for call in memory.get_steps(sorted(ids))}


def asked_by(step: AgentStep, call: AgentStep | None) -> str:
    """Return what a step asked when it recalled: what the call around it was asked, else itself."""
    for asker in (call, step):
        if asker is not None and asker.arguments:
            texts = [text for text in asker.arguments.values() if isinstance(text, str)]
            if said := "\n".join(text for text in texts if len(text) <= LONGEST_QUERY).strip():
                return said[:LONGEST_QUERY]
    return step.purpose[:LONGEST_QUERY].strip()


def judged(
    memory: SearchedMemory, verdicts: Iterable[Verdicts], pool: int
) -> tuple[list[JudgedHits], int]:
    """Ask each query again; return its hits with verdicts, and how many verdicts found no hit."""
    found: list[JudgedHits] = []
    lost = 0
    for known in verdicts:
        hits = memory.search(known.query, pool, where=known.where)
        of_id = {id_text(hit.step.id): place for place, hit in enumerate(hits)}
        missing = [step_id for step_id in known.of if step_id not in of_id]
        if missing:  # of steps that say the same only the newest is a hit: it stands for them
            of_text = {whole_text(hit.step): place for place, hit in enumerate(hits)}
            for step in memory.get_steps(missing):
                if (place := of_text.get(whole_text(step))) is not None:
                    of_id[id_text(step.id)] = place
        told: list[bool | None] = [None] * len(hits)
        for step_id, verdict in known.of.items():
            if step_id in of_id:
                told[of_id[step_id]] = verdict
            else:
                lost += 1
        if any(verdict is not None for verdict in told):
            found.append(JudgedHits(known.query, hits, told, known.group))
    return found, lost
