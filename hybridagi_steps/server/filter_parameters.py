"""Filter parameters: every condition of a StepFilter in the query of a request.

Routes that search, list runs or draw the map take a model of `Conditions`, read by a
`ConditionsRoute`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, get_args, get_type_hints

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hybridagi_steps.records.filter_fields import FILTER_FIELDS, FilterField, Operator
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.server.problems import repeated_parameters, unknown_parameters
from hybridagi_steps.server.schemas import unambiguous_json
from hybridagi_steps.server.services import caller_of, services_of
from hybridagi_steps.server.slots import Handler, WorkRoute
from hybridagi_steps.server.tokens import Caller

Text = Annotated[str, Field(max_length=512)]


def _json_object(**schema: Any) -> Any:
    """Return the type of a text that is a JSON object, with what its schema says besides."""
    said: Any = {"contentSchema": {"type": "object", **schema}}
    said["contentMediaType"] = "application/json"
    return Annotated[str, Field(max_length=1_000, json_schema_extra=said)]


_PLAIN: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
_CRITERION = {
    "anyOf": [
        _PLAIN,
        {"type": "array", "items": _PLAIN, "minItems": 1},
        {
            "type": "object",
            "propertyNames": {"enum": list(get_args(Operator))},
            "additionalProperties": _PLAIN,
            "minProperties": 1,
        },
    ]
}
_KINDS: dict[str, Any] = {
    "text": Text | None,  # pyright: ignore[reportOperatorIssue] - a type as a value
    "texts": list[Text] | None,
    "json": _json_object(additionalProperties=_CRITERION) | None,
    "filters": list[_json_object()] | None,
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
_Fields: type[BaseModel] = create_model("_Fields", **_PARAMETERS)


class Conditions(_Fields):
    """Every condition of a StepFilter; models of what is asked add to them."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")

    def where(self, caller: Caller) -> StepFilter:
        """Return the conditions, on what somebody may know."""
        conditions = self.model_dump(include={*_PARAMETERS}, exclude_none=True)
        for field in FILTER_FIELDS:
            if field.name not in conditions:
                continue
            if field.kind == "json":
                conditions[field.name] = _object(field.name, conditions[field.name])
            elif field.kind == "filters":
                conditions[field.name] = [
                    _object(field.name, text) for text in conditions[field.name]
                ]
        return caller.may_know(StepFilter.of(conditions))


class ConditionsRoute(WorkRoute):
    """A route whose parameters are read in one go: FastAPI takes longer over thirty than a chat.

    Its endpoint takes the services, the caller, and what is `asked`, a model of Conditions.
    """

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""
        model: type[Conditions] = get_type_hints(self.endpoint)["asked"]

        async def handle(request: Request) -> Response:
            asked, caller = _asked(request, model), await caller_of(request)
            return await self.endpoint(await services_of(request), caller, asked)

        return partial(self.answer, handle)


def _asked(request: Request, model: type[Conditions]) -> Conditions:
    given = request.query_params
    if unknown := [name for name in given if name not in model.model_fields]:
        raise unknown_parameters(unknown, model.model_fields)
    if repeated := [n for n in given if n not in _LISTS and len(given.getlist(n)) > 1]:
        raise repeated_parameters("query", repeated)
    read = {name: given.getlist(name) if name in _LISTS else given[name] for name in given}
    try:
        return model.model_validate(read)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        raise RequestValidationError(
            [{**each, "loc": ("query", *each["loc"])} for each in wrong]
        ) from error


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
