"""Routes of search and of the map.

A search is for words, meaning, filters, or steps like a given one. Of the map the server computes
places, on the plane of the two principal components; the page paints them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_identity import is_end, with_question
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.filter_parameters import Conditions, ConditionsRoute, Text
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.schemas import answer
from hybridagi_steps.server.services import Shared, Who
from hybridagi_steps.server.views import filled, hit_data, hits_for, titles

MOST_HITS = 200
_LONGEST_QUERY = 4_000
"""Characters; percent-encoded they still fit into a request's first line."""
MOST_POINTS = 2_000
"""Points of a map; a browser draws them without waiting."""


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
    options = asked.model_dump(include={"like", "mode", "aim", "expand"})
    options |= {"query": asked.q, "where": asked.where(caller), "min_score": asked.min_hit_score}
    hits = await shared.asked("search", hits_for, shared.memory, asked.k, **options)
    shown = (step for hit in hits for step in (hit.step, *hit.context))
    return answer({"hits": [hit_data(hit) for hit in hits], "titles": titles(shown)})


class MapPoint(shapes.Answer):
    """A step on the map."""

    id: str
    x: float
    """From 0 to 1."""
    y: float
    title: str
    step_type: str
    status: str
    tool: str | None = None
    run_id: str | None = None


class StepMap(shapes.Answer):
    """Steps where their embeddings put them: what lies together means alike."""

    points: list[MapPoint]
    """Newest first."""
    without: int
    """Newest steps that have no embedding, which are left out."""
    more: bool
    """Whether older steps match, too."""
    shares: list[float]
    """How much of the variance each axis shows, 0 to 1."""


class MapAsked(Conditions):
    """A map of the newest steps that match every condition."""

    limit: int = Field(default=MOST_POINTS, ge=1, le=MOST_POINTS)
    """Most steps looked at, the newest ones."""


@router.get("/map", response_model=StepMap, responses=problems())
async def draw_map(shared: Shared, caller: Who, asked: Annotated[MapAsked, Query()]) -> Response:
    """Place the newest matching steps on a plane, by their embeddings."""
    where = asked.where(caller)
    return answer(await shared.asked("map", step_map, shared.memory, where, asked.limit))


def step_map(memory: StepMemory, where: StepFilter, limit: int) -> dict[str, Any]:
    """Return a `StepMap` as data. Complexity: O(limit d)."""
    import numpy as np

    from hybridagi_steps.plots.step_map import plane

    newest = memory.find(where, limit=limit + 1, newest_first=True)
    ids = [id_text(step.id) for step in newest.steps]
    found = memory.get_steps(ids[:limit], vectors=True)
    steps = [step for step in found if step.vector]
    told = {"without": len(ids[:limit]) - len(steps), "more": len(ids) > limit}
    if not steps:
        return {"points": [], "shares": [0.0, 0.0], **told}
    places, shares = plane(np.array([step.vector for step in steps], np.float64))
    low, high = places.min(axis=0), places.max(axis=0)
    places = (places - low) / np.where(high > low, high - low, 1.0)
    named = titles(_with_questions(memory, steps))
    points = [
        filled(
            id=(name := id_text(step.id)),
            x=round(float(x), 4),
            y=round(float(y), 4),
            title=named[name],
            step_type=step.step_type,
            status=step.status,
            tool=step.tool,
            run_id=step.run_id,
        )
        for step, (x, y) in zip(steps, places, strict=True)
    ]
    return {"points": points, "shares": [round(share, 4) for share in shares], **told}


def _with_questions(memory: StepMemory, steps: Sequence[AgentStep]) -> Iterator[AgentStep]:
    """Yield steps, the ends of programs with what was asked: a bare name tells nothing."""
    asked = [step.program_id for step in steps if is_end(step) and step.program_id]
    calls = {(id_text(call.id), call.user_id): call for call in memory.get_steps(asked)}
    for step in steps:
        call = calls.get((step.program_id or "", step.user_id)) if is_end(step) else None
        yield step if call is None else with_question(step, call)
