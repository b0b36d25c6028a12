"""Routes of drawings: the graphs of a run with the way it took, and a map of what is remembered.

Of the map the server computes places, on the plane of the two principal components; the page paints
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_identity import is_end, with_question
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.routes.conditions import Conditions, ConditionsRoute
from hybridagi_steps.server.routes.run_graphs import Drawing, known_programs, run_drawings
from hybridagi_steps.server.schemas import RUN, Answer, RunId, answer
from hybridagi_steps.server.services import Shared, Who
from hybridagi_steps.server.slots import WorkRoute
from hybridagi_steps.server.views import filled, titles

MOST_POINTS = 2_000
"""Points of a map; a browser draws them without waiting."""


class RunGraphs(Answer):
    """The graphs that a run went through, the outermost first; none of a run without any."""

    graphs: list[Drawing]


class MapPoint(Answer):
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


class StepMap(Answer):
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


router = APIRouter(tags=["runs"], route_class=WorkRoute)
map_router = APIRouter(tags=["search"], route_class=ConditionsRoute)


@router.get(RUN + "/graph", response_model=RunGraphs, responses=problems(404))
async def draw_run(shared: Shared, run_id: RunId) -> Response:
    """Draw the graph programs and plans of a run, with what became of their nodes so far."""
    program = shared.hub.runner.program if shared.has_program else None

    def draw() -> list[Drawing] | None:
        summary = next(iter(shared.memory.runs(limit=1, scope="*", where={"run_id": run_id})), None)
        if summary is None:
            return None
        steps = list(shared.memory.run_steps(run_id))
        return run_drawings(steps, known_programs(program), summary.status == "running")

    found = await shared.asked("graph", draw)
    if found is None:  # 404, unless a kill came before the first step
        await shared.asked("graph", lambda: shared.hub.without_steps(run_id))
    return answer({"graphs": [drawing.model_dump() for drawing in found or ()]})


@map_router.get("/map", response_model=StepMap, responses=problems())
async def draw_map(shared: Shared, caller: Who, asked: Annotated[MapAsked, Query()]) -> Response:
    """Place the newest matching steps on a plane, by their embeddings."""
    where = asked.where(caller)
    return answer(await shared.asked("map", partial(step_map, shared.memory, where, asked.limit)))


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
