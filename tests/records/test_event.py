"""StepEvent: its kinds, and the one text form that server-sent events have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hybridagi_steps.records.event import StepDelta, StepEvent, StepEventType
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics


def read_sse(text: str) -> dict[str, str]:
    """Read one event as the standard says: fields end at line breaks, an empty line dispatches."""
    assert text.endswith("\n\n")
    lines = text[:-2].replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields = [line.split(": ", 1) for line in lines]
    assert all(len(field) == 2 for field in fields), lines
    assert len({name for name, _ in fields}) == len(fields)
    return {name: value for name, value in fields}  # noqa: C416 - pairs, checked above


def test_the_names_of_the_kinds_are_their_values() -> None:
    assert {kind.name: kind.value for kind in StepEventType} == {
        name: name.lower()
        for name in (
            "STEP_DELTA",
            "STEP_COMPLETED",
            "RUN_STARTED",
            "RUN_COMPLETED",
            "RUN_FAILED",
            "RUN_CANCELLED",
            "RUN_PAUSED",
            "ERROR",
            "TOOL_AUTH_REQUIRED",
            "TOOL_AUTH_DENIED",
            "INPUT_REQUIRED",
            "METRICS_SNAPSHOT",
        )
    }


def test_a_delta_on_the_wire() -> None:
    event = StepEvent(
        type=StepEventType.STEP_DELTA,
        run_id="r1",
        number=7,
        step_id="s1",
        delta=StepDelta(content="Hello\nworld"),
    )
    sent = read_sse(event.to_sse())
    assert (sent["id"], sent["event"]) == ("r1:7", "step_delta")
    data = json.loads(sent["data"])
    assert data.pop("created_at").endswith("Z")
    assert data == {
        "type": "step_delta",
        "run_id": "r1",
        "number": 7,
        "step_id": "s1",
        "delta": {"content": "Hello\nworld"},
    }


def test_a_snapshot_reads_back_as_the_step() -> None:
    step = Step(
        session_id="s",
        role=MessageRole.ASSISTANT,
        content="done",
        metrics=StepMetrics(output_tokens=0),
    )
    event = StepEvent(type=StepEventType.STEP_COMPLETED, run_id="r", snapshot=step)
    data = read_sse(event.to_sse())["data"]
    assert "null" not in data
    again = StepEvent.model_validate_json(data)
    assert again == event
    assert again.snapshot == step


def test_an_event_without_a_number_has_no_id_line() -> None:
    event = StepEvent(type=StepEventType.RUN_STARTED, run_id="r")
    assert event.id is None
    assert event.to_sse().startswith("event: run_started\n")


def test_nulls_are_dropped_from_objects_and_hold_their_place_in_arrays() -> None:
    event = StepEvent(
        type=StepEventType.ERROR, run_id="r", data={"a": None, "b": [None, {"c": None, "d": 0}]}
    )
    assert json.loads(read_sse(event.to_sse())["data"])["data"] == {"b": [None, {"d": 0}]}


@pytest.mark.parametrize("value", [float("nan"), "\ud800", 2**80, {1, 2}, object()])
def test_data_that_json_cannot_hold_is_repaired(value: Any) -> None:
    event = StepEvent(type=StepEventType.ERROR, run_id="r", data={"value": value})
    json.loads(read_sse(event.to_sse())["data"])
    assert StepEvent.model_validate_json(event.model_dump_json()) == event


@given(run_id=st.text(st.characters(exclude_categories=["Cs"])), content=st.text())
def test_nothing_breaks_out_of_its_line(run_id: str, content: str) -> None:
    delta = StepDelta.model_construct(content=content)
    event = StepEvent.model_construct(
        type=StepEventType.STEP_DELTA, run_id=run_id, number=0, delta=delta, data=None
    )
    assert set(read_sse(event.to_sse())) == {"id", "event", "data"}


def test_an_event_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValidationError):
        StepEvent.model_validate({"type": "step_started", "run_id": "r"})
