"""The route of search: words, meaning, filters, and steps like a given one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.routes.conditions import Conditions, ConditionsRoute, Text
from hybridagi_steps.server.schemas import answer
from hybridagi_steps.server.services import Shared, Who
from hybridagi_steps.server.views import hit_data, hits_for, titles

MOST_HITS = 200
_LONGEST_QUERY = 4_000
"""Characters; percent-encoded they still fit into a request's first line."""


class SearchAsked(Conditions):
    """A search: `q` or `like`, and every condition of a StepFilter."""

    q: Annotated[str, Field(max_length=_LONGEST_QUERY)] | None = None
    """What to look for, not blank; either this or `like`."""
    like: Text | None = None
    """Or the id of a step or message to find others like; with `user_id` one of that user."""
    k: int = Field(default=5, ge=1, le=MOST_HITS)
    """Most hits wanted."""
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    """By meaning and words, or one of them."""
    aim: Literal["next", "episode", "tool"] | None = None
    """What it is for: what was done after a step like `like`, the run that did this, or which tool
    can do this."""
    expand: Literal["parents", "following", "program"] | None = None
    """What each hit brings along in `context`."""
    min_hit_score: float | None = Field(default=None, ge=0, le=1)
    """Least score of a hit."""


router = APIRouter(tags=["search"], route_class=ConditionsRoute)


@router.get("/search", response_model=shapes.HitPage, responses=problems(404, 502))
async def search(shared: Shared, caller: Who, asked: Annotated[SearchAsked, Query()]) -> Response:
    """Find past steps by meaning and words, or like a given step."""
    options: dict[str, Any] = {
        "where": asked.where(caller),
        "mode": asked.mode,
        "aim": asked.aim,
        "expand": asked.expand,
        "min_score": asked.min_hit_score,
    }
    hits = await shared.asked(
        "search",
        lambda: hits_for(shared.memory, asked.k, query=asked.q, like=asked.like, **options),
    )
    shown = (step for hit in hits for step in (hit.step, *hit.context))
    return answer({"hits": [hit_data(hit) for hit in hits], "titles": titles(shown)})
