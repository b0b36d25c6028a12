"""The OpenAPI document, true to what the service does: problem documents, bearer tokens, SSE."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from hybridagi_steps.server.problems import PROBLEM_TYPE, Problem
from hybridagi_steps.server.sse import EVENT_STREAM

_EVERYWHERE = (400, 401, 403, 408, 413, 421, 422, 503)
"""Problems that any route can answer with: from the checks before it, or the storage behind it."""
_SCHEMA = {"$ref": "#/components/schemas/Problem"}

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
                "Events: `id` is RUN_ID:NUMBER, `event` a StepEventType, `data` a StepEvent as "
                "JSON without nulls; lines that begin with a colon only show that the stream lives."
            ),
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
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
        schemas["Problem"] = Problem.model_json_schema(
            ref_template="#/components/schemas/{model}", mode="serialization"
        )
        schemas.update(schemas["Problem"].pop("$defs", {}))
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        app.openapi_schema = made
    return app.openapi_schema
