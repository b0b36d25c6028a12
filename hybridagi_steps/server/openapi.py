"""The OpenAPI document, true to what the service does: problem documents, bearer tokens, SSE."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.server.problems import PROBLEM_TYPE, Problem
from hybridagi_steps.server.sse import EVENT_STREAM

_EVERYWHERE = (400, 401, 403, 408, 413, 421, 422, 429, 503)
"""Problems that any route can answer with: from the checks before it, or the storage behind it."""
_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_EVENT = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "RUN_ID:NUMBER, for Last-Event-ID."},
        "event": {"enum": list(StepEventType)},
        "data": {
            "type": "string",
            "description": "A StepEvent as JSON without nulls.",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/StepEvent"},
        },
    },
}

OPEN: dict[str, Any] = {"security": []}
"""What a route adds to its entry when it needs no token."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the entries of a route's problems, with those that every route has."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_TYPE: {"schema": _SCHEMA}},
        }
        for status in sorted({*_EVERYWHERE, *statuses})
    }


def streams(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the entries of a route that answers with events."""
    return {
        200: {
            "description": (
                "The run's events. Lines that begin with a colon only show that the stream lives."
            ),
            "content": {EVENT_STREAM: {"itemSchema": _EVENT}},
        },
        **problems(*statuses),
    }


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an app, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        parts: dict[str, Any] = made.setdefault("components", {})
        schemas: dict[str, Any] = parts.setdefault("schemas", {})
        for model in (Problem, StepEvent):
            schemas.update(_schemas_of(model))
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        for entry in (entry for path in made["paths"].values() for entry in path.values()):
            for parameter in entry.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
        app.openapi_schema = made
    return app.openapi_schema


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a query parameter that the document does not name: a misspelt filter finds all."""
    if not request.query_params:
        return
    paths: dict[str, Any] = request.app.openapi()["paths"]
    entry = paths.get(request.scope["route"].path_format, {}).get(request.method.lower(), {})
    known = [each["name"] for each in entry.get("parameters", ()) if each["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if entry and unknown:
        hint = f"is no parameter here; known: {', '.join(known) or 'none'}"
        raise RequestValidationError([{"loc": ("query", name), "msg": hint} for name in unknown])


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter that may be absent: an address and a header have no null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{key: value for key, value in schema.items() if key != "anyOf"}}


def _schemas_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schemas of a model and of what it holds, by name."""
    schema = model.model_json_schema(
        ref_template="#/components/schemas/{model}", mode="serialization"
    )
    inside: dict[str, Any] = schema.pop("$defs", {})
    return {**inside, model.__name__: schema}
