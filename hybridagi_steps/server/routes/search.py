"""The route of search: words, meaning, filters, and steps like a given one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

from hybridagi_steps.records.agent_step import AgentStepType, StepStatus
from hybridagi_steps.records.filters import StepFilter, Trust
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.schemas import answer, unambiguous_json
from hybridagi_steps.server.services import Shared
from hybridagi_steps.server.slots import WorkRoute
from hybridagi_steps.server.views import hit_data, hits_for

router = APIRouter(tags=["search"], route_class=WorkRoute)

MOST_HITS = 200
_LONGEST_QUERY = 4_000
"""Characters; percent-encoded they still fit into a request's first line."""
_OWN = ("q", "like", "k", "mode", "expand", "min_hit_score")
Text = Annotated[str, Field(max_length=512)]


class SearchAsked(BaseModel):
    """A search: `q` or `like`, and every condition of a StepFilter."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")

    q: Annotated[str, Field(max_length=_LONGEST_QUERY)] | None = None
    """What to look for, not blank; either this or `like`."""
    like: Text | None = None
    """Or the id of a step to find others like."""
    k: int = Field(default=5, ge=1, le=MOST_HITS)
    """Most hits wanted."""
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    """By meaning and words, or one of them."""
    expand: Literal["parents", "following", "program"] | None = None
    """What each hit brings along in `context`."""
    min_hit_score: float | None = Field(default=None, ge=0, le=1)
    """Least score of a hit."""
    session_id: Text | None = None
    """Steps of this session's lineage."""
    run_id: Text | None = None
    """Steps of this run."""
    program: Text | None = None
    """Steps that call, end or stand directly inside a program of this name."""
    program_id: Text | None = None
    """Steps directly inside this ProgramCall."""
    step_types: list[AgentStepType] | None = None
    """Steps of these types; repeat it for several."""
    tools: list[Text] | None = None
    """Actions that used one of these tools; repeat it for several."""
    status: list[StepStatus] | None = None
    """Steps that ended like this; repeat it for several."""
    min_score: float | None = Field(default=None, allow_inf_nan=False)
    """Steps whose own or whose run's score is at least this."""
    since: datetime | None = None
    """Steps made at or after this time."""
    until: datetime | None = None
    """Steps made before this time."""
    scope: Text | None = None
    """Trial runs of this scope; `*` shows everything."""
    exclude_run_id: list[Text] | None = None
    """Not the steps of these runs; repeat it for several."""
    user_id: Text | None = None
    """Steps of this user."""
    sources: list[Text] | None = None
    """Steps that came from one of these: a file's name, or `mcp`; repeat it for several."""
    trust: Trust | None = None
    """Least trust: recorded here by the user (`own`), by anybody (`team`), or all (`imported`)."""
    metadata: Annotated[str, Field(max_length=1_000)] | None = Field(
        default=None,
        json_schema_extra={
            "contentMediaType": "application/json",
            "contentSchema": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            },
        },
    )
    """Top-level metadata keys with exactly these values, as a JSON object."""

    def where(self) -> StepFilter:
        """Return the conditions."""
        conditions = self.model_dump(exclude_none=True, exclude={*_OWN, "metadata"})
        if self.metadata is not None:
            conditions["metadata"] = _object("metadata", self.metadata)
        return StepFilter.of(conditions)


@router.get("/search", response_model=shapes.HitPage, responses=problems(404, 502))
async def search(shared: Shared, asked: Annotated[SearchAsked, Query()]) -> Response:
    """Find past steps by meaning and words, or like a given step."""
    options: dict[str, Any] = {
        "where": asked.where(),
        "mode": asked.mode,
        "expand": asked.expand,
        "min_score": asked.min_hit_score,
    }
    hits = await shared.asked(
        "search",
        lambda: hits_for(shared.memory, asked.k, query=asked.q, like=asked.like, **options),
    )
    return answer({"hits": [hit_data(hit) for hit in hits]})


def _object(name: str, text: str) -> dict[str, Any]:
    """Read a parameter that is a JSON object."""
    try:
        orjson.loads(text)  # stricter than Python's reader, but for keys that come twice
        read = unambiguous_json(text)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        wrong = {"loc": ("query", name), "msg": 'is a JSON object, such as {"topic": "refunds"}'}
        raise RequestValidationError([wrong])
    return read  # pyright: ignore[reportUnknownVariableType] - JSON
