"""Errors as HTTP says them: RFC 9457 problem documents, and one table from class to status.

Every leaf of the error tree stands in the table. What has no place there is a fault of ours: the
answer says no more than that, the log says the rest.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from json import JSONDecodeError
from typing import Any, cast

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hybridagi_steps import errors
from hybridagi_steps.errors import StepsError
from hybridagi_steps.server.schemas import Answer, DuplicateKeyError
from hybridagi_steps.server.tokens import CALLER, Caller

log = logging.getLogger("hybridagi_steps.server")

PROBLEM_TYPE = "application/problem+json"
EVERYWHERE = (400, 401, 403, 408, 413, 421, 422, 429, 503)
"""Problems that any route can answer with: from the checks before it, or the storage behind it."""

STATUS: Mapping[type[StepsError], int] = {
    errors.StepTooLargeError: 413,
    errors.DuplicateStepError: 409,
    errors.InvalidStepError: 422,
    errors.UnknownStepError: 404,
    errors.UnknownRunError: 404,
    errors.UnknownRevocationError: 404,
    errors.InvalidFilterError: 422,
    errors.InvalidQueryError: 422,
    errors.VectorError: 422,
    errors.EmbedderMismatchError: 500,
    errors.EmbedderError: 502,
    errors.RerankerError: 502,
    errors.FileGoneError: 500,
    errors.DiskFullError: 507,
    errors.DamagedFileError: 500,
    errors.ForeignFileError: 500,
    errors.NewerSchemaError: 500,
    errors.OlderSchemaError: 500,
    errors.StorageError: 503,
    errors.PlacementError: 500,
    errors.CopyDiffersError: 500,
    errors.CopyError: 409,
    errors.MemoryClosedError: 503,
    errors.MemoryNotPicklableError: 500,
    errors.InvalidMemoryError: 500,
    errors.InvalidSettingError: 422,
    errors.UnsupportedAddressError: 500,
    errors.RecordingError: 500,
    errors.ExchangeError: 422,
    errors.UnknownProgramError: 404,
    errors.ProgramError: 422,
    errors.UnknownToolError: 404,
    errors.ToolInputError: 422,
    errors.MessageError: 422,
    errors.ContextBudgetError: 422,
    errors.UnknownSessionError: 404,
    errors.UnknownSequenceError: 404,
    errors.UnknownBranchError: 404,
    errors.SequenceConflictError: 409,
    errors.PlanError: 422,
    errors.ArtifactConflictError: 409,
    errors.ArtifactError: 422,
    errors.CommandNotAllowedError: 403,
    errors.NotAllowedError: 403,
    errors.WorkspaceError: 422,
    errors.LimitReachedError: 429,
    errors.RunFailedError: 500,
    errors.MissingExtraError: 501,
}
"""The status of each class and of what inherits from it; the nearest class counts."""


class FieldError(Answer):
    """One field of a request that is wrong."""

    field: str
    """Where it stands, such as `body.sequence`."""
    message: str
    """What is wrong with it."""


class Problem(Answer):
    """An error, as RFC 9457 has it."""

    type: str = "about:blank"
    """Always about:blank: the status and `error` say what kind it is."""
    title: str
    """The status in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What happened, and what to do about it."""
    error: str | None = None
    """The class of the error in Python."""
    errors: list[FieldError] | None = None
    """The fields that are wrong."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return a route's problems as OpenAPI has them, with those that every route has."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_TYPE: {"schema": schema}},
        }
        for status in sorted({*EVERYWHERE, *statuses})
    }


def unknown_parameters(unknown: Iterable[str], known: Iterable[str]) -> RequestValidationError:
    """Return the error about query parameters that a route does not have."""
    hint = f"is no parameter here; known: {', '.join(known) or 'none'}"
    return RequestValidationError([{"loc": ("query", name), "msg": hint} for name in unknown])


def repeated_parameters(place: str, names: Iterable[str]) -> RequestValidationError:
    """Return the error about parameters that take one value and came several times."""
    return RequestValidationError(
        [{"loc": (place, name), "msg": "takes one value; it was sent twice"} for name in names]
    )


def status_of(error: StepsError) -> int:
    """Return the status of the nearest class in the table."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[cast("type[StepsError]", kind)]
    return 500


def problem_response(
    status: int,
    detail: str,
    *,
    error: str | None = None,
    fields: Sequence[FieldError] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem document as a response."""
    problem = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail.encode("utf-8", "replace").decode(),
        error=error,
        errors=None if fields is None else list(fields),
    )
    body = orjson.dumps(problem.model_dump(exclude_none=True))
    return Response(body, status, headers=headers, media_type=PROBLEM_TYPE)


def install_problems(app: FastAPI) -> None:
    """Answer every error of an app with a problem document."""
    app.add_exception_handler(StepsError, _answer_steps_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientDisconnect, _answer_disconnect)
    app.add_exception_handler(Exception, _answer_fault)


async def _answer_steps_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StepsError)  # noqa: S101 - what it is installed for
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        ours = error if status == HTTPStatus.INTERNAL_SERVER_ERROR else None
        log.error("%s %s: %s", request.method, request.scope["path"], error, exc_info=ours)
    seconds = error.retry_after_seconds if isinstance(error, errors.RateLimitedError) else 1
    retry = {"Retry-After": str(seconds)} if status in (429, 503) else None
    return problem_response(
        status, _detail(request, error), error=type(error).__name__, headers=retry
    )


def _detail(request: Request, error: StepsError) -> str:
    """Return what an error says, with a route where it names a call in Python.

    Where the memory is, and as whom it is opened, is for who runs the server.
    """
    caller: Caller | None = request.scope.get(CALLER)
    if isinstance(error, errors.StorageError) and (caller is None or caller.only_user is not None):
        return "the memory cannot be used for now; the server's log says why."
    if isinstance(error, errors.UnknownRunError):
        return f"no run has the id {error.run_id!r}; GET /runs lists them."
    return str(error)


async def _answer_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it is installed for
    if isinstance(error.body, bytes):  # it was not read: nothing says that it is JSON
        kind = request.headers.get("content-type")
        detail = f"the body's Content-Type is {kind[:200]}" if kind else "no Content-Type is sent"
        return problem_response(415, f"{_json_text(detail)}; send Content-Type: application/json.")
    if isinstance(cause := error.__cause__, JSONDecodeError):
        where = f"line {cause.lineno}, column {cause.colno}"
        fields = [FieldError(field="body", message=f"not JSON at {where}: {cause.msg}")]
    else:
        fields = [_field_error(found) for found in error.errors()]
    first = fields[0].field
    wrong = ", or ".join(found.message for found in fields if found.field == first)
    return problem_response(422, f"{first}: {wrong}.", fields=fields)


def _field_error(found: Mapping[str, Any]) -> FieldError:
    # Behind a field's name stand places in a list, and names of types that it could have had.
    named = [str(n) for i, n in enumerate(found["loc"]) if i < 2 or isinstance(n, int)]
    place = ".".join(named) or "body"
    message = str(found["msg"]).removeprefix("Value error, ")
    if (cause := found.get("ctx", {}).get("error")) is not None:
        message = f"{message} ({cause})" if str(cause) not in message else message
    return FieldError(field=_json_text(place), message=_json_text(message))


def _json_text(text: str) -> str:
    """Return text that JSON can hold, whatever a client put into a key."""
    return text.encode("utf-8", "replace").decode()[:500]


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is installed for
    detail, headers = str(error.detail), dict(error.headers or {})
    if error.status_code == HTTPStatus.BAD_REQUEST:
        detail = _unreadable_body(error.__cause__) or detail
    if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = f"there is nothing at {request.scope['path']}; /openapi.json lists what there is."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods_at(request)))
        detail = f"{request.scope['path']} takes {headers['Allow']}, not {request.method}."
    kind = type(cause).__name__ if isinstance(cause := error.__cause__, StepsError) else None
    return problem_response(error.status_code, detail, error=kind, headers=headers)


def _unreadable_body(cause: BaseException | None) -> str | None:
    """Return why a body was not read as far as there was JSON to speak of; None for any other."""
    if isinstance(cause, UnicodeDecodeError):
        encoding, place = cause.encoding.upper(), cause.start + 1
        return f"the body is not {encoding} at byte {place}; send JSON as UTF-8."
    if isinstance(cause, RecursionError):
        return "the body is nested too deeply; flatten it, or send the inner value as text."
    if isinstance(cause, DuplicateKeyError):
        return f"the body {cause}; send it once."
    if isinstance(cause, ValueError):  # the one thing that Python's reader of JSON refuses besides
        most = sys.get_int_max_str_digits()
        return f"the body has an integer of more than {most:,} digits; send it as text."
    return None


def _methods_at(request: Request) -> set[str]:
    """Return the methods of the routes at a path; the router names those of the first only."""
    routes: list[APIRoute] = request.app.state.routes
    here = request.scope["path"]
    first = next(route.path for route in routes if route.path_regex.match(here))
    return {name for route in routes if route.path == first for name in route.methods or ()}


async def _answer_disconnect(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's
    return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)  # which is not sent


async def _answer_fault(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return problem_response(500, "the server failed; its log says where.")
