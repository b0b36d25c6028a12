"""The JSON of requests and answers: read strictly, and as the OpenAPI document describes it.

Answers are written straight from records, without nulls; these models say what they look like, and
a test holds every answer against them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import to_json
from starlette.convertors import PathConvertor, register_url_convertor

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.records.store_values import Attempt, SessionSummary
from hybridagi_steps.validation import MAX_ID_LENGTH

LARGEST_SEQUENCE = 2**53 - 1
"""Every JSON reader takes an integer up to this."""
JSON_TYPE = "application/json"


def _integer(value: object) -> object:
    """Return 5 for 5.0: JSON has one kind of number, and its schema calls both integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Sequence = Annotated[int, Field(ge=1, le=LARGEST_SEQUENCE), BeforeValidator(_integer)]
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)]
"""As long as the store takes."""
_Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Message = _Text | Annotated[list[dict[str, Any]], Field(min_length=1)]
"""A text that is not blank, or a provider's content parts."""
_STEPS_OF_A_PATH = (".", "..")


def _addressable(session_id: str) -> str:
    if session_id in _STEPS_OF_A_PATH:
        raise ValueError(f"browsers take {session_id!r} out of an address; use another id")
    return session_id


NewSessionId = Annotated[
    Id,
    AfterValidator(_addressable),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_ID_LENGTH,
            "not": {"enum": list(_STEPS_OF_A_PATH)},
        }
    ),
]
"""An id that can stand in an address."""


class Answer(BaseModel):
    """What the server says; a member without a value is left out."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Asked(BaseModel):
    """What the server is asked; an unknown member is refused, and so is a value of another type.

    Strict, since `"no"` and 1 must not be taken for consent.
    """

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", strict=True)


class SessionPage(Answer):
    """Sessions, the one written last first."""

    sessions: list[SessionSummary]
    next_offset: int | None = None
    """Where the next page begins; absent on the last one."""


class StepPage(Answer):
    """Messages of a session, in order."""

    steps: list[Step]
    next_seq: int | None = None
    """Where to go on when `limit` cut the answer short."""
    html: dict[str, str] | None = None
    """With `markdown`: what the assistant said as HTML without scripts and images, by id."""


class AttemptList(Answer):
    """All branches of a session, oldest first."""

    attempts: list[Attempt]


class BranchShape(Answer):
    """What one branch has after the point where two part."""

    messages: list[Step]
    tokens: int | None = None
    cost: float | None = None
    """US dollars."""
    score: float | None = None
    duration_ms: float | None = None


class Comparison(Answer):
    """Two branches side by side."""

    shared: int
    """Messages they have in common."""
    a: BranchShape
    b: BranchShape


class ReceiptEntryShape(Answer):
    """One message that was kept or left out."""

    id: str
    why: str
    tokens: int


class ReceiptShape(Answer):
    """What is in a context, what is not, and why."""

    kept: list[ReceiptEntryShape]
    dropped: list[ReceiptEntryShape]
    tokens: int
    budget: int
    counter_id: str
    """Who counted."""
    notes: list[str]


class ContextShape(Answer):
    """A session's messages under a budget, as a language model can read them."""

    messages: list[dict[str, Any]]
    receipt: ReceiptShape


class ForkAsked(Asked):
    """Where to fork."""

    sequence: Sequence
    """The last message that both share."""
    new_session_id: NewSessionId | None = None
    """Its id; made up when absent."""


class ForkShape(Answer):
    """A session made from another one."""

    new_session_id: str
    sequence: int
    """The last message they share; smaller than asked when that stood inside a batch of calls."""


class Deleted(Answer):
    """How many messages are hidden now; they stay in `attempts`."""

    deleted: int


class PurgeAsked(Asked):
    """What to erase."""

    where: dict[str, Any]
    """The keys of a StepFilter; some condition besides `exclude` has to pick something."""


class Erasure(Answer):
    """What was erased, and what may be left."""

    erased: int
    """Messages and AgentSteps."""
    unreached: list[str]
    """Files that may still hold some of it; a user's token is not told which."""
    messages_left: int
    """Messages that match and stay."""
    sessions_left: list[str]
    """Who reads these."""


class RetryAsked(Asked):
    """Which message of the user to answer once more."""

    sequence: Sequence
    message: Message | None = None
    """What the user should have said; absent, the message stays."""


class ChatAsked(Asked):
    """What the user says."""

    session_id: NewSessionId | None = None
    """The session; a new one when absent."""
    message: Message
    """A text, or a provider's content parts."""
    user_id: Id | None = None
    """Whose history the steps are."""


class RunShape(Answer):
    """One run."""

    run_id: str
    session_id: str | None = None
    scope: str | None = None
    """The trial it belongs to."""
    steps: int
    errors: int
    """Steps that failed."""
    first_step: str
    """Its first step's id; empty without steps."""
    begins: str
    """What its first step does, in words."""
    started_at: str
    ended_at: str
    score: float | None = None
    feedback: str | None = None
    status: str
    """running, completed, failed, cancelled, paused, superseded (it paused, and a later run took it
    up or passed it over), or interrupted: no end of it is stored."""


class ScoreAsked(Asked):
    """How good a run or a step was."""

    value: float = Field(allow_inf_nan=False)
    """Bigger is better."""
    feedback: str | None = None
    """What there is to say of a run in words."""


class Scored(Answer):
    """What was scored."""

    id: str
    score: float


class RunPage(Answer):
    """Runs, newest first."""

    runs: list[RunShape]
    next_offset: int | None = None
    """Where the next page begins; absent on the last one."""


class WholeRun(Answer):
    """A run with its steps, by hop."""

    run: RunShape
    live: bool
    """Whether it is in flight."""
    steps: list[AgentStep]
    titles: dict[str, str]
    """What each step is called and is about, by its id."""
    metrics: RunMetrics


class JudgedStep(Answer):
    """A step of a run, and how the like of it ended before."""

    step_id: str
    hop: int
    action: str
    """Its tool, else what was chosen, else its predictor."""
    chance: float | None = None
    """Share of the similar steps of scored runs whose run ended well; absent below three."""
    well: int
    """How many of those ended well."""
    scored: int
    """How many there are."""


class Trouble(Answer):
    """Where something first went wrong."""

    step_id: str
    hop: int
    said: str


class RunOutlook(Answer):
    """How the like of a run's steps ended before, and what can be seen of it without a model."""

    run_id: str
    chance: float | None = None
    """Mean over its steps; absent when too little is scored."""
    agreement: dict[str, float]
    """Shares of what was done in states like that of the last step."""
    lowest: list[JudgedStep]
    """The three steps with the lowest chance."""
    first_trouble: Trouble | None = None
    loops: list[str]


class PromptKept(Answer):
    """What the model saw for a step, in the order of its calls; empty where none was kept."""

    calls: list[LMCall]


class Cancelled(Answer):
    """Whether a run was in flight and is being stopped."""

    run_id: str
    cancelled: bool


class ResumeAsked(Asked):
    """What is known by now of what a paused run waits for."""

    answers: dict[str, bool | str] = Field(default_factory=dict[str, bool | str])
    """By ids of calls and questions: whether a tool may run, or a text for the user's answer."""


class Answered(Answer):
    """Whether the question still stood."""

    answered: bool


class HitPage(Answer):
    """Steps that a search found, best first."""

    hits: list[StepHit]
    titles: dict[str, str]
    """What each step is called and is about, by its id."""


class Health(Answer):
    """That the server lives."""

    status: str
    version: str
    program: bool
    """Whether a program is served, so that chat and retry work."""


class DuplicateKeyError(ValueError):
    """A JSON object that names a key twice: readers differ in which of the two counts."""


class AnyText(PathConvertor):
    """Matches any text, line ends too."""

    regex = r"[\s\S]*"


register_url_convertor("anything", AnyText())

SESSION = "/sessions/{session_id:anything}"
RUN = "/runs/{run_id:anything}"
STEP = "/steps/{step_id:anything}"
SessionId = Annotated[str, Path(description="The session's id.")]
RunId = Annotated[str, Path(description="The run's id.")]
StepId = Annotated[str, Path(description="The step's id.")]


def answer(value: object, status: int = 200) -> Response:
    """Return a value as JSON; members of records without a value are left out."""
    body = to_json(value, exclude_none=True, inf_nan_mode="null")
    return Response(body, status, media_type=JSON_TYPE)


def unambiguous_json(text: str | bytes) -> Any:
    """Return what JSON says; refuse an object that names a key twice."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise DuplicateKeyError(f"names the key {name[:80]!r} twice")
        found[name] = value
    return found
