"""From what a person types to a step or a run, and from a step to its kin.

An id is looked up as it stands first, then as the beginning of others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hybridagi_steps.errors import InvalidQueryError, UnknownStepError
from hybridagi_steps.protocols import MessageIndex
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.search.lineage import context_of_message
from hybridagi_steps.server.views import Named, hits_for, named

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.agent_step import AgentStep
    from hybridagi_steps.records.filters import StepHit

SHORTEST_PREFIX = 6
_MOST_PARENTS = 1_000
_NAMED, _MOST_NAMES = 4, 99
"""Of the ids that begin alike: so many are shown, and so many counted."""


@runtime_checkable
class _FindsByPrefix(Protocol):
    """A store that has its ids in order."""

    def ids_beginning(self, prefix: str, limit: int) -> tuple[list[str], list[str]]:
        """Return the ids of steps and messages, and those of runs, that begin like this."""
        ...


def find(memory: StepMemory, text: str) -> Named | list[AgentStep]:
    """Return the step or message, or the steps of the run, that an id or its beginning names."""
    with suppress(UnknownStepError):
        return named(memory, text)
    if run := memory.run_steps(text):
        return run
    if len(text) < SHORTEST_PREFIX:
        raise UnknownStepError(text)
    return _by_prefix(memory, text)


def lineage(memory: StepMemory, found: Named) -> tuple[list[AgentStep], list[AgentStep]]:
    """Return the steps that led to a step, nearest first, and those of its run that follow it.

    Of a message they are those of its session. Only for a step outside any run is DSPy loaded.
    """
    store, step = memory.repository().store, found.step
    if found.place is not None and found.row is not None and isinstance(store, MessageIndex):
        line, where = (store, found.row, found.place.session_id), StepFilter()
        after = context_of_message(*line, "following", where)
        return context_of_message(*line, "parents", where), after[:1]
    parents: list[AgentStep] = []
    seen = {id_text(step.id)}
    here = step
    while here.parent_id is not None and len(parents) < _MOST_PARENTS:
        name = id_text(here.parent_id)
        before = [] if name in seen else memory.get_steps([name])
        if not before:
            break
        here = before[0]
        seen.add(name)
        parents.append(here)
    if step.run_id is None:
        return parents, list(memory.children(step.id).steps)
    kin = memory.run_steps(step.run_id)
    return parents, [other for other in kin if other.parent_id == step.id]


def steps_like(memory: StepMemory, text: str, k: int, **options: Any) -> list[StepHit]:
    """Search with the stored step that an id, or its beginning, names; the step itself is no hit.

    `options` are what `StepMemory.search` takes.
    """
    if k < 1:
        raise InvalidQueryError(f"k is the number of hits wanted, at least 1; got {k}.")
    found = find(memory, text)
    if isinstance(found, list):
        raise InvalidQueryError(f"{text} is a run; --like needs the id of a step.")
    return hits_for(memory, k, like=id_text(found.step.id), **options)


def _by_prefix(memory: StepMemory, prefix: str) -> Named | list[AgentStep]:
    store = memory.repository().store
    named_so = isinstance(store, _FindsByPrefix)
    steps, runs = store.ids_beginning(prefix, _MOST_NAMES + 1) if named_so else ([], [])
    if len(runs) == 1 and len(steps) != 1:
        return memory.run_steps(runs[0])
    if len(steps) == 1:
        return named(memory, steps[0])
    if not steps and not runs:
        raise UnknownStepError(prefix)
    raise _ambiguous(prefix, [*steps, *runs])


def _ambiguous(prefix: str, names: list[str]) -> UnknownStepError:
    error = UnknownStepError(prefix)
    some = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    many = str(len(names)) if len(names) <= _MOST_NAMES else f"more than {_MOST_NAMES}"
    error.args = (f"{many} ids begin with {prefix!r}: {some}; type more of it.",)
    return error
