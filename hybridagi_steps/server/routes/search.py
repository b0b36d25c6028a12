"""The route of search: words, meaning, filters, and steps like a given one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hybridagi_steps.records.filter_fields import FILTER_FIELDS, FilterField
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.problems import problems, unknown_parameters
from hybridagi_steps.server.schemas import answer, unambiguous_json
from hybridagi_steps.server.services import Shared, Who, caller_of, services_of
from hybridagi_steps.server.slots import Handler, WorkRoute
from hybridagi_steps.server.tokens import Caller
from hybridagi_steps.server.views import filled, hit_data, hits_for, titles

MOST_HITS = 200
_LONGEST_QUERY = 4_000
"""Characters; percent-encoded they still fit into a request's first line."""
Text = Annotated[str, Field(max_length=512)]
JsonText = Annotated[
    str,
    Field(
        max_length=1_000,
        json_schema_extra={
            "contentMediaType": "application/json",
            "contentSchema": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            },
        },
    ),
]
FilterText = Annotated[
    str,
    Field(
        max_length=1_000,
        json_schema_extra={
            "contentMediaType": "application/json",
            "contentSchema": {"type": "object"},
        },
    ),
]
_KINDS: dict[str, Any] = {
    "text": Text | None,  # pyright: ignore[reportOperatorIssue] - a type as a value
    "texts": list[Text] | None,
    "json": JsonText | None,  # pyright: ignore[reportOperatorIssue] - likewise
    "filters": list[FilterText] | None,
}
"""What a query parameter is where it is not what `StepFilter` takes."""


_LISTS = {field.name for field in FILTER_FIELDS if field.kind in ("texts", "choices", "filters")}


def _parameter(field: FilterField) -> tuple[Any, Any]:
    """Return a field of a filter as a query parameter: its type and what is known of it."""
    said = field.help
    if field.name in _LISTS:
        said = f"{said.removesuffix('.')}; repeat it for several."
    if field.kind in ("json", "filters"):
        said = f"{said.removesuffix('.')}, as a JSON object."
    kind: object = StepFilter.model_fields[field.name].rebuild_annotation()
    return _KINDS.get(field.kind, kind), Field(default=None, description=said)


_PARAMETERS: dict[str, Any] = {field.name: _parameter(field) for field in FILTER_FIELDS}
_Conditions: type[BaseModel] = create_model("_Conditions", **_PARAMETERS)


class SearchAsked(_Conditions):
    """A search: `q` or `like`, and every condition of a StepFilter."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")

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

    def where(self, caller: Caller) -> StepFilter:
        """Return the conditions, on what somebody may know."""
        conditions = self.model_dump(include={*_PARAMETERS}, exclude_none=True)
        conditions |= filled(user_id=caller.acts_as(conditions.get("user_id")))
        for field in FILTER_FIELDS:
            if field.name not in conditions:
                continue
            if field.kind == "json":
                conditions[field.name] = _object(field.name, conditions[field.name])
            elif field.kind == "filters":
                conditions[field.name] = [
                    _object(field.name, text) for text in conditions[field.name]
                ]
        return StepFilter.of(conditions)


class _SearchRoute(WorkRoute):
    """A route whose parameters are read in one go: FastAPI takes longer over thirty than a chat."""

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""

        async def handle(request: Request) -> Response:
            asked, caller = _asked(request), await caller_of(request)
            return await search(await services_of(request), caller, asked)

        return partial(self.answer, handle)


def _asked(request: Request) -> SearchAsked:
    given = request.query_params
    if unknown := [name for name in given if name not in SearchAsked.model_fields]:
        raise unknown_parameters(unknown, SearchAsked.model_fields)
    read = {name: given.getlist(name) if name in _LISTS else given[name] for name in given}
    try:
        return SearchAsked.model_validate(read)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        raise RequestValidationError(
            [{**each, "loc": ("query", *each["loc"])} for each in wrong]
        ) from error


router = APIRouter(tags=["search"], route_class=_SearchRoute)


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
