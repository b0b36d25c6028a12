"""The service as an ASGI app: the routes, what stands in front of them, the OpenAPI document.

In front, from the outside in: security headers, Host and Origin, the token, the size of the body.
So whoever may not come in is turned away before anything it sent is read. All of it is plain ASGI;
nothing buffers a stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.staticfiles import StaticFiles

from hybridagi_steps import __version__
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.server.metrics import ServerMetrics
from hybridagi_steps.server.openai_form import OpenAIErrors
from hybridagi_steps.server.problems import (
    Problem,
    install_problems,
    repeated_parameters,
    unknown_parameters,
)
from hybridagi_steps.server.routes import chat as chat_routes
from hybridagi_steps.server.routes import completions, page, responses, run_graphs
from hybridagi_steps.server.routes import runs as run_routes
from hybridagi_steps.server.routes import search as search_routes
from hybridagi_steps.server.routes import sessions as session_routes
from hybridagi_steps.server.run_hub import RunHub
from hybridagi_steps.server.security import BodyLimit, HostCheck, SecurityHeaders, TokenCheck
from hybridagi_steps.server.services import Services, check_path
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.slots import Slots
from hybridagi_steps.server.tokens import Tokens

if TYPE_CHECKING:
    from hybridagi_steps.running.runner import StepRunner

OPEN_PATHS = ("/", "/healthz", "/readyz")
OPEN_FOLDERS = ("/static/",)
"""What needs no token: the page, which knows nothing, and the signs of life."""
_ROUTERS = (
    search_routes.router,  # first, since it is refused most, and being found costs as much
    chat_routes.router,
    completions.router,
    responses.router,
    session_routes.router,
    run_routes.listing_router,
    run_routes.router,
    run_graphs.router,  # before the run itself, as the other paths below it
    run_routes.work_router,
    page.router,
)


def create_app(
    memory: StepMemory,
    tokens: Tokens,
    *,
    runner: StepRunner | None = None,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """Return the service over a memory.

    Args:
        memory: What is served; whoever opened it closes it.
        tokens: Who may do what.
        runner: A `StepRunner` over the same memory; without one, chat and retry answer 503.
        settings: Limits.
    """
    settings = settings or ServerSettings()
    app = FastAPI(
        title="hybridagi_steps",
        version=__version__,
        description="Sessions, runs and search over one step memory.",
        docs_url=None,  # its page loads scripts from elsewhere, which our policy forbids
        redoc_url=None,
        lifespan=_lifespan,
        dependencies=[Depends(_refuse_wrong_parameters), Depends(check_path)],
    )
    metrics = ServerMetrics(memory.namespace)
    app.state.services = Services(
        memory=memory,
        repository=memory.repository(),
        hub=RunHub(runner, memory, settings, Slots("runs", settings.max_runs, metrics), metrics),
        work=Slots(
            "questions",
            settings.max_concurrency,
            metrics,
            queue=settings.max_queue,
            queue_seconds=settings.queue_seconds,
            retry_seconds=1,
        ),
        slots=Slots("streams", settings.max_streams, metrics),
        metrics=metrics,
        settings=settings,
        has_program=runner is not None,
    )
    app.state.routes = [route for router in _ROUTERS for route in router.routes]
    for router in _ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=page.STATIC), name="static")
    app.openapi = partial(_document, app)
    install_problems(app)
    _protect(app, settings, tokens, memory.namespace)
    return app


def _protect(app: FastAPI, settings: ServerSettings, tokens: Tokens, namespace: str) -> None:
    """Put in front of an app what turns requests away; the one added last stands outermost."""
    app.add_middleware(BodyLimit, most_bytes=settings.max_body_bytes, seconds=settings.body_seconds)
    app.add_middleware(
        TokenCheck,
        tokens=tokens,
        namespace=namespace,
        open_paths=OPEN_PATHS,
        open_folders=OPEN_FOLDERS,
    )
    app.add_middleware(HostCheck, allowed=settings.allowed_hosts)
    app.add_middleware(OpenAIErrors)
    app.add_middleware(SecurityHeaders)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    await app.state.services.hub.open()
    yield
    await app.state.services.hub.close()


def _document(app: FastAPI) -> dict[str, Any]:
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


async def _refuse_wrong_parameters(request: Request) -> None:
    """Refuse a query parameter that the document does not name: a misspelt filter finds all.

    Likewise one that comes twice and takes one value: one of the two would count for nothing.
    """
    headers = [name.lower() for name, _ in request.headers.raw]
    if not request.query_params and len({*headers}) == len(headers):
        return
    paths: dict[str, Any] = request.app.openapi()["paths"]
    entry = paths.get(request.scope["route"].path_format, {}).get(request.method.lower(), {})
    parameters: list[dict[str, Any]] = entry.get("parameters", [])
    known = [each["name"] for each in parameters if each["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if entry and unknown:
        raise unknown_parameters(unknown, known)
    for place, values in (("query", request.query_params), ("header", request.headers)):
        single = [
            each["name"]
            for each in parameters
            if each["in"] == place and each["schema"].get("type") != "array"
        ]
        if repeated := [name for name in single if len(values.getlist(name)) > 1]:
            raise repeated_parameters(place, repeated)


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
