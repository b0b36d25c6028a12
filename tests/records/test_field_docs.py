"""What stands below the fields of a record stands in its JSON schema."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, create_model

from hybridagi_steps.lazy import field_docs
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.event import StepDelta, StepEvent
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import Step, StepMetrics
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.run import RunMetrics


class Reviewed(AgentStep):
    """A step that somebody looked at."""

    reviewer: str = ""
    """Who looked
    at it."""
    noted: bool = False


@pytest.mark.parametrize(
    "model",
    [AgentStep, StepDelta, StepEvent, StepHit, Step, StepMetrics, LMCall, RunMetrics],
)
def test_every_field_is_described(model: type[BaseModel]) -> None:
    shown: dict[str, Any] = model.model_json_schema()["properties"]
    assert [name for name, field in shown.items() if not field.get("description")] == []


def test_those_of_a_class_of_ones_own_and_of_those_it_inherits() -> None:
    shown = Reviewed.model_json_schema()["properties"]
    assert shown["reviewer"]["description"] == "Who looked\nat it."
    assert shown["hop"]["description"] == "The step's place in its run, counted from 0."
    assert "description" not in shown["noted"]


def test_a_class_without_a_source_has_those_it_inherits() -> None:
    made = create_model("Made", __base__=AgentStep, weight=(int, 0))
    assert field_docs(made) == field_docs(AgentStep)
    assert "description" not in made.model_json_schema()["properties"]["weight"]
