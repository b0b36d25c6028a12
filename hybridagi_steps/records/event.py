"""StepEvent: one thing that happened in a run, as a stream tells it.

Live and stored history have one shape: a `STEP_COMPLETED` event carries the Step itself. Everything
between is a delta that a reader may miss and still end up with the same history. An event is plain
JSON data; how it reaches the reader is no concern of this module, except for the one text form that
server-sent events have.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from hybridagi_steps.lazy import describe_fields
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.message import Step, UtcTime, utc_now

_LINE_BREAKERS = str.maketrans("", "", "\r\n\x00")


class StepEventType(StrEnum):
    """What happened."""

    STEP_DELTA = "step_delta"
    STEP_COMPLETED = "step_completed"
    RUN_STARTED = "run_started"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"
    RUN_PAUSED = "run_paused"
    ERROR = "error"
    TOOL_AUTH_REQUIRED = "tool_auth_required"
    TOOL_AUTH_DENIED = "tool_auth_denied"
    INPUT_REQUIRED = "input_required"
    METRICS_SNAPSHOT = "metrics_snapshot"


class StepDelta(BaseModel):
    """What was added to a step since the last event."""

    model_config = ConfigDict(json_schema_extra=describe_fields)

    content: str | None = None
    """Text to append to the step's content."""
    reasoning_content: str | None = None
    """Text to append to the step's reasoning."""
    tool_calls: list[dict[str, Any]] | None = None
    """Pieces of tool calls, in the provider's own form."""


class StepEvent(BaseModel):
    """One thing that happened in a run."""

    model_config = ConfigDict(json_schema_extra=describe_fields)

    type: StepEventType
    """What happened."""
    run_id: str
    """The run it happened in."""
    number: int | None = Field(default=None, ge=0)
    """Place in the run's stream; with it a reader can ask for what came after."""
    session_id: str | None = None
    """The session the run belongs to."""
    step_id: str | None = None
    """The step it is about."""
    delta: StepDelta | None = None
    """What was added, for `STEP_DELTA`."""
    snapshot: Step | None = None
    """The whole step, for `STEP_COMPLETED`."""
    data: dict[str, Any] | None = None
    """Anything else, JSON values only; the rest is repaired when the event is made."""
    created_at: UtcTime = Field(default_factory=utc_now)
    """When it happened, UTC."""

    @field_validator("data", mode="before")
    @classmethod
    def _json_data(cls, value: object) -> Any:
        return json_value(value, [], "data")

    @property
    def id(self) -> str | None:
        """The event's id, `run_id:number`; None while it has no number."""
        return None if self.number is None else f"{self.run_id}:{self.number}"

    def to_sse(self) -> str:
        """Return the event as one server-sent event, ready to be written to the response.

        The lines are `id:` (only with a number), `event:` and `data:`, one line of JSON without
        nulls, and an empty line ends it. An id never breaks out of its line.

        Reference: WHATWG HTML, "Server-sent events", section 9.2.6.
        """
        values = json_value(self.model_dump(mode="json"), [])
        data = orjson.dumps(_without_nulls(values))
        lines = [f"event: {self.type.value}", f"data: {data.decode()}", "", ""]
        if self.id is not None:
            lines.insert(0, f"id: {self.id.translate(_LINE_BREAKERS)}")
        return "\n".join(lines)


def _without_nulls(value: Any) -> Any:
    """Drop null members of objects; in arrays they hold a place and stay."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {key: _without_nulls(item) for key, item in members if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("list[Any]", value)]
    return value
