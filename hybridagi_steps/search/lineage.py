"""Walks along the links between stored steps: what led here, what followed, what program it was.

Links come from outside and may be broken or form a circle; every walk is bounded and visits a step
once. A walk goes on behind steps that may not be shown, and leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from typing import Literal, NamedTuple

from hybridagi_steps.messages.message_steps import around
from hybridagi_steps.protocols import MessageIndex, StepStore
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import (
    ABANDONED,
    REVOKED,
    SEVERAL_USERS,
    UNREVOKED,
    Rows,
)

Expand = Literal["parents", "following", "program"]
"""What a hit may bring along."""

FOLLOWING = 3
PROGRAM_STEPS = 50
_ANCESTORS = 10_000
_FOLLOWERS_SEEN = 1_000

Shown = Callable[[AgentStep], bool]
"""Whether a step may be shown."""
RowsOf = Callable[[StepFilter], Rows]
"""Returns the rows that match, ascending."""


class HiddenIds(NamedTuple):
    """Ids of the steps that recall leaves out."""

    abandoned: Collection[str]
    revoked: Collection[str]


NOTHING_HIDDEN = HiddenIds((), ())


def _anything(_: AgentStep) -> bool:
    return True


def _of_whom(where: StepFilter) -> Shown:
    """Return whether a step is of a user whose steps a filter lets through."""
    own = where.only_users
    excluded = (each.users for each in where.exclude or () if each.conditions == {"user_id"})
    others = {*chain.from_iterable(excluded)}
    others |= {SEVERAL_USERS} if others else set()

    def shown(found: AgentStep) -> bool:
        return found.user_id not in others if own is None else found.user_id in own

    return shown


def ancestors(
    store: StepStore, step_id: str, limit: int = _ANCESTORS, shown: Shown = _anything
) -> list[AgentStep]:
    """Return the steps that led to this one, nearest first; a missing parent ends the walk."""
    found: list[AgentStep] = []
    seen = {step_id}
    here = store.get([step_id])
    while here and len(found) < limit and here[0].parent_id is not None:
        parent_id = id_text(here[0].parent_id)
        if parent_id in seen or len(seen) > _ANCESTORS:
            break
        seen.add(parent_id)
        here = store.get([parent_id])
        found.extend(filter(shown, here))
    return found


def following(
    store: StepStore, step_id: str, limit: int = FOLLOWING, shown: Shown = _anything
) -> list[AgentStep]:
    """Return the next steps along parent links, nearest first."""
    found: list[AgentStep] = []
    seen, edge = {step_id}, [step_id]
    while edge and len(found) < limit and len(seen) < _FOLLOWERS_SEEN:
        fresh = [step for step in store.children(edge) if id_text(step.id) not in seen]
        edge = [id_text(step.id) for step in fresh]
        seen.update(edge)
        found.extend(filter(shown, fresh))
    return found[:limit]


def enclosing_program(
    store: StepStore,
    step: AgentStep,
    where: StepFilter,
    rows_of: RowsOf,
    limit: int = PROGRAM_STEPS,
    shown: Shown = _anything,
) -> list[AgentStep]:
    """Return the call a step stands in with all its direct steps, in order, at most `limit`.

    A ProgramCall stands for itself, if it may be shown; a step outside any program brings its whole
    run. `where` says whose steps, and of which scope. `rows_of` finds those in a program: a store
    may have to look at all steps for that.
    """
    call_id = step.program_id
    if str(getattr(step.step_type, "value", step.step_type)) == "ProgramCall":
        call_id = id_text(step.id)
    if call_id is None:
        if step.run_id is None:
            return []
        return store.find(where.model_copy(update={"run_id": step.run_id}), limit=limit)
    rows = rows_of(where.model_copy(update={"program_id": call_id}))[:limit].tolist()
    steps = store.read(rows)
    inside = [steps[row] for row in rows if row in steps]
    return [*filter(shown, store.get([call_id])), *inside][:limit]


def context_of(
    store: StepStore,
    step: AgentStep,
    expand: Expand,
    where: StepFilter,
    rows_of: RowsOf,
    hidden: HiddenIds = NOTHING_HIDDEN,
) -> list[AgentStep]:
    """Return what `expand` asks for around a step: of the filter's users and scope alone.

    The filter's other conditions do not count here; `rows_of` is as of `enclosing_program`.
    """
    around, own = StepFilter(user_id=where.user_id, scope=where.scope), _of_whom(where)

    def shown(found: AgentStep) -> bool:
        return own(found) and _in_scope(found, where.scope, hidden)

    if expand == "parents":
        return ancestors(store, id_text(step.id), PROGRAM_STEPS, shown)
    if expand == "following":
        return following(store, id_text(step.id), shown=shown)
    return [*filter(own, enclosing_program(store, step, around, rows_of, shown=shown))]


_LINE_SEEN = 100
"""Messages on either side of one that are looked at."""


def context_of_message(
    store: MessageIndex,
    row: int,
    session_id: str,
    expand: Expand,
    where: StepFilter,
    revoked: Collection[int] = (),
) -> list[AgentStep]:
    """Return what `expand` asks for around a message, in the line of a session that reads it.

    Of the filter the users count; revoked rows are left out.
    """
    line = store.message_line(row, session_id, before=_LINE_SEEN, after=_LINE_SEEN)
    place = next((n for n, (at, _) in enumerate(line) if at == row), None)
    if place is None:
        return []
    found = around([told for _, told in line], place)[expand]
    steps = [line[n][1].step for n in found if line[n][0] not in revoked]
    own = _of_whom(where)
    shown = [step for step in steps if step is not None and own(step)]
    return shown[: FOLLOWING if expand == "following" else PROGRAM_STEPS]


def _in_scope(step: AgentStep, scope: str | None, hidden: HiddenIds) -> bool:
    """Whether a scope shows a step; what is revoked stands in no other one."""
    step_id = id_text(step.id)
    if step_id in hidden.revoked:
        return scope in (REVOKED, EVERY_SCOPE)
    if step_id in hidden.abandoned and scope in (None, ABANDONED):
        return scope == ABANDONED
    return scope in (EVERY_SCOPE, UNREVOKED, step.scope)
