"""A memory for tests of import and export."""

from __future__ import annotations

from typing import Any, cast

from hybridagi_steps import StepMemory
from hybridagi_steps.errors import StepTooLargeError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import DETAILS
from hybridagi_steps.validation import Steps


class Shelf(StepMemory):
    """Refuses steps whose purpose says enormous."""

    def __init__(self) -> None:
        super().__init__(":memory:", embedder="hashing:2")

    @property
    def steps(self) -> dict[str, AgentStep]:
        """All steps by id, with their vectors, but for titles of sessions."""
        self.flush()  # else some would have a vector, and others not yet
        every = self.iter_steps(StepFilter(scope="*"))
        ids = [id_text(step.id) for step in every if step.scope != DETAILS]
        return {id_text(step.id): step for step in self.get_steps(ids, vectors=True)}

    def add(self, steps: Steps) -> None:
        given = cast("list[AgentStep]", [steps] if isinstance(steps, AgentStep) else steps)
        for step in given:
            if "enormous" in step.purpose:
                raise StepTooLargeError(str(step.id), 9, 8)
        super().add(given)


def unsourced(value: Any) -> Any:
    """Return steps, messages, or what was made of them, without what imports say of them."""
    if isinstance(value, AgentStep | Step):
        return value.model_copy(update={"metadata": _without_source(value.metadata)})
    if isinstance(value, Shelf):
        return unsourced(value.steps)
    if isinstance(value, list):
        return [unsourced(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    told = {key: unsourced(item) for key, item in cast("dict[str, Any]", value).items()}
    if "metadata" in told and (kept := _without_source(told.pop("metadata"))) is not None:
        told["metadata"] = kept
    return told


def _without_source(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    return {key: (metadata or {})[key] for key in metadata or {} if key != "source"} or None
