"""Routes of runs: list, look into, follow, stop, answer their questions; a step's prompt."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import UnknownRunError
from hybridagi_steps.running.pending_calls import UserQuestion, UserQuestions
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.filter_parameters import Conditions, ConditionsRoute
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.routes.sessions import LARGEST_PAGE
from hybridagi_steps.server.schemas import RUN, STEP, RunId, StepId, answer
from hybridagi_steps.server.services import Shared, Who
from hybridagi_steps.server.slots import JsonRoute, WorkRoute
from hybridagi_steps.server.sse import EventStream, streams
from hybridagi_steps.server.views import filled, judged_run, listed_run, named, prompt_for, run_data

router = APIRouter(tags=["runs"], route_class=JsonRoute)
listing_router = APIRouter(tags=["runs"], route_class=ConditionsRoute)
work_router = APIRouter(tags=["runs"], route_class=WorkRoute)
"""Comes after the other: an id may contain a slash, and so seem to go on as its paths do."""

LastEventId = Annotated[
    str | None,
    Header(
        max_length=1024,
        description="The id of the last event of this run that was received, RUN_ID:NUMBER.",
        json_schema_extra={"pattern": "^(.*:[0-9]{1,15})?$"},
    ),
]


class RunsAsked(Conditions):
    """A page of runs, or of those of which some step matches every condition."""

    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    """Most entries wanted."""
    offset: int = Field(default=0, ge=0, le=shapes.LARGEST_SEQUENCE)
    """Entries passed over."""


class QuestionList(shapes.Answer):
    """Questions that nobody has answered, oldest first."""

    questions: list[UserQuestion]


class AnswerAsked(shapes.Asked):
    """What a person says to a question."""

    text: str


@listing_router.get("/runs", response_model=shapes.RunPage, responses=problems())
async def list_runs(shared: Shared, caller: Who, asked: Annotated[RunsAsked, Query()]) -> Response:
    """List runs, newest first, those in flight too; trials only where their scope is asked for."""
    where = asked.where(caller)
    whose = caller.only_user
    page: Any = {"limit": asked.limit, "offset": asked.offset, "user_id": whose, "where": where}
    found = await shared.asked("runs", shared.memory.runs, **page)
    return answer(filled(runs=[*map(listed_run, found)], next_offset=found.next_offset))


@router.get(RUN + "/events", response_class=Response, responses=streams(404))
async def follow_run(
    shared: Shared, request: Request, run_id: RunId, last_event_id: LastEventId = None
) -> Response:
    """Read a run's events, from the one after `Last-Event-ID` on.

    While the run lives nothing is missed and nothing comes twice. Later, its messages come as
    STEP_COMPLETED, then its final event.
    """
    shared.slots.check()
    after = _number(run_id, last_event_id)
    run = shared.hub.find(run_id)
    if run is not None and after > run.last_number:
        raise _no_event(run_id)
    run = run or await shared.hub.elsewhere(run_id)
    if run is None:
        async with shared.work.place(request.receive):
            run = await shared.hub.stored(run_id, after)
    return EventStream(run, after, shared.slots, shared.settings)


@router.post(RUN + "/cancel", response_model=shapes.Cancelled, responses=problems(404))
async def cancel_run(shared: Shared, request: Request, run_id: RunId) -> Response:
    """Stop a run; what was said so far is kept as a partial message."""
    cancelled = await shared.hub.cancel(run_id)
    if not cancelled:
        await _check_known(shared, request, run_id)
    return answer({"run_id": run_id, "cancelled": cancelled})


@work_router.get("/questions", response_model=QuestionList, responses=problems())
async def list_questions(shared: Shared, caller: Who) -> Response:
    """List what runs wait for people to say, on whichever server they are."""
    questions, whose = UserQuestions(shared.memory), caller.only_user
    return answer({"questions": await shared.asked("questions", questions.open, user_id=whose)})


@work_router.post(STEP + "/answer", response_model=shapes.Answered, responses=problems(404, 415))
async def answer_question(
    shared: Shared, caller: Who, step_id: StepId, asked: AnswerAsked
) -> Response:
    """Answer a question, once: who resumes the run that waits for it goes on with that."""
    questions, whose = UserQuestions(shared.memory), caller.only_user
    await shared.asked("answer", questions.answer, step_id, asked.text, user_id=whose)
    return answer({"answered": True})


@work_router.get(RUN + "/outlook", response_model=shapes.RunOutlook, responses=problems(404))
async def judge_run(shared: Shared, caller: Who, run_id: RunId) -> Response:
    """Tell how the like of a run's last 40 steps ended before, its first trouble and its loops."""
    found = await shared.asked("outlook", judged_run, shared.memory, run_id, caller.only_user)
    if found is None:
        raise UnknownRunError(run_id)
    return answer(found)


@work_router.post(RUN + "/score", response_model=shapes.Scored, responses=problems(404, 415))
async def score_run(shared: Shared, run_id: RunId, asked: shapes.ScoreAsked) -> Response:
    """Say how good a run was, in place of what was said before."""
    await shared.asked("score", shared.memory.score, run_id, asked.value, asked.feedback)
    return answer({"id": run_id, "score": asked.value})


@work_router.post(STEP + "/score", response_model=shapes.Scored, responses=problems(404, 415))
async def score_step(
    shared: Shared, caller: Who, step_id: StepId, asked: shapes.ScoreAsked
) -> Response:
    """Say how good a step was; what was said of its run in words stays with the run."""
    where = filled(user_id=caller.only_user)

    def score() -> None:
        step = named(shared.memory, step_id, where).step
        shared.memory.score_steps({step.id: asked.value})

    await shared.asked("score", score)
    return answer({"id": step_id, "score": asked.value})


@work_router.get(RUN, response_model=shapes.WholeRun, responses=problems(404))
async def read_run(shared: Shared, run_id: RunId) -> Response:
    """Return a run with all its steps, by hop; none when a kill came before the first."""
    found = await shared.asked("run", run_data, shared.memory, run_id)
    if found is None:
        found = await shared.asked("run", shared.hub.without_steps, run_id)
    return answer({**found, "live": shared.hub.is_live(run_id)})


@work_router.get(STEP + "/prompt", response_model=shapes.PromptKept, responses=problems(404))
async def read_prompt(shared: Shared, step_id: StepId) -> Response:
    """Return what the model saw: each request that a step stands for, and what came back.

    There are none of a step that was recorded without them, or asked no model.
    """
    return answer({"calls": await shared.asked("prompt", prompt_for, shared.memory, step_id)})


async def _check_known(shared: Shared, request: Request, run_id: str) -> None:
    """Refuse a run that nobody knows."""
    if shared.hub.find(run_id) is not None:
        return
    async with shared.work.place(request.receive):
        if not await in_thread(lambda: shared.memory.run_steps(run_id)):
            await in_thread(lambda: shared.hub.without_steps(run_id))


def _number(run_id: str, last_event_id: str | None) -> int:
    """Return the number in an event's id; 0 when there is none."""
    if not last_event_id:
        return 0
    owner, _, number = last_event_id.rpartition(":")
    if owner != run_id or not (number.isascii() and number.isdigit() and len(number) < 16):
        raise _no_event(run_id)
    return int(number)


def _no_event(run_id: str) -> RequestValidationError:
    wrong = {"loc": ("header", "last-event-id"), "msg": f"is no event of run {run_id}"}
    return RequestValidationError([wrong])
