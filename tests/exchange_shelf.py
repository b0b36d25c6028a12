"""A memory that is a dict: all that import and export ask of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from hybridagi_steps.errors import DuplicateStepError, StepTooLargeError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step


class Shelf:
    """Keeps steps by id; refuses those whose purpose says enormous."""

    def __init__(self) -> None:
        self.steps: dict[str, AgentStep] = {}

    def add(self, steps: AgentStep | Iterable[AgentStep]) -> None:
        given = [steps] if isinstance(steps, AgentStep) else list(steps)
        for step in given:
            if id_text(step.id) in self.steps:
                raise DuplicateStepError(str(step.id))
            if "enormous" in step.purpose:
                raise StepTooLargeError(str(step.id), 9, 8)
        self.steps |= {id_text(step.id): step for step in given}

    def get_steps(self, ids: Iterable[str], *, vectors: bool = False) -> list[AgentStep]:
        found = [self.steps[step_id] for step_id in ids if step_id in self.steps]
        return found if vectors else [step.model_copy(update={"vector": None}) for step in found]

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        assert where.scope == "*"
        for step in self.get_steps(list(self.steps)):
            if where.run_id in (None, step.run_id):
                yield step


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
