"""Links from a step to its parent, kept from leading in a circle.

A circle can only be closed by a step that another one named as its parent before it came, so only
such steps are followed upwards. What is remembered are parents that are not there yet, and one
batch. The link that would close a circle is cut, and `metadata["repairs"]` says so, as validation
does of other repairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.validation import without_parent

StepsOf = Callable[[Iterable[str]], list[AgentStep]]
"""Returns the steps with these ids that are stored."""


class ParentLinks:
    """Looks at the parents of steps in the order in which they are to be stored.

    Args:
        steps_of: Reads from the memory that they go to.
    """

    def __init__(self, steps_of: StepsOf) -> None:
        self._steps_of = steps_of
        self._parents: dict[str, str | None] = {}
        self._absent: set[str] = set()
        self._awaited: set[str] = set()
        self._cut = 0

    def sound(self, steps: Sequence[AgentStep], there: dict[str, AgentStep]) -> list[AgentStep]:
        """Return the steps of a batch without links that lead back to them.

        Args:
            steps: In order; those of the batch before are stored.
            there: Steps that are stored already, by id, and stay as they are; the others are added.
        """
        named: set[str] = set()
        own: set[str] = set()
        for step in steps:
            if step.parent_id is not None and str(step.parent_id) not in own:
                named.add(str(step.parent_id))
            own.add(str(step.id))
        found = self._steps_of(named) if named else []
        self._parents = {str(step.id): _parent_of(step) for step in found}
        self._absent = named - self._parents.keys()
        return [self._checked(step, there) for step in steps]

    def _checked(self, step: AgentStep, there: dict[str, AgentStep]) -> AgentStep:
        own = str(step.id)
        known = there.get(own)
        parent = _parent_of(known or step)
        if known is None and (parent == own or self._leads_to(own, parent)):
            self._cut += 1
            step, parent = without_parent(step), None
        self._awaited.discard(own)
        self._parents[own] = parent
        if parent is not None and parent not in self._parents:
            self._awaited.add(parent)
        there.setdefault(own, step)
        return step

    def notes(self) -> list[str]:
        """Return what was cut, in words."""
        cut = self._cut
        return [f"links to a parent cut, since they led in a circle: {cut:,}"] if cut else []

    def _leads_to(self, own: str, parent: str | None) -> bool:
        """Whether going up from a parent arrives at a step that was named before it came."""
        if own not in self._awaited:
            return False
        passed: set[str] = set()
        while parent is not None and parent != own and parent not in passed:
            passed.add(parent)
            if parent in self._parents:
                parent = self._parents[parent]
            elif parent in self._absent:
                parent = None
            else:
                found = self._steps_of([parent])
                parent = _parent_of(found[0]) if found else None
        return parent == own


def _parent_of(step: AgentStep) -> str | None:
    return None if step.parent_id is None else str(step.parent_id)
