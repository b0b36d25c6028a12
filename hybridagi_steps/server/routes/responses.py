"""`POST /v1/responses`, the default of newer OpenAI clients: text in, text out, streamed or whole.

A response's id holds its run and its session, so `previous_response_id` goes on in that session as
long as nothing was said in it since.

Reference: OpenAI, "API reference", Responses.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import Any, Literal, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, ValidationInfo, field_validator, model_validator

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import InvalidSettingError, SequenceConflictError
from hybridagi_steps.records.json_reading import as_list, as_object
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.server import openai_form
from hybridagi_steps.server.openai_form import Asked, ChatMessage, ChatMetadata, CompletionAsked
from hybridagi_steps.server.routes.completions import run_end, start_run
from hybridagi_steps.server.schemas import Id, answer
from hybridagi_steps.server.services import Services, Shared, Who
from hybridagi_steps.server.slots import JsonRoute
from hybridagi_steps.server.sse import EventStream, Frame, LiveRun

router = APIRouter(tags=["chat"], route_class=JsonRoute)

_PREFIX = "resp_"
_RUN_FAILED = 500
_READ = ("message", "input_text", "output_text")
_REFUSED = {
    "tools": "the tools are the program's; leave out `tools`",
    "conversation": "name the session in `metadata`, as `session_id`, or `previous_response_id`",
    "background": "an answer is waited for, or read as a stream",
}
"""What would change the answer unseen, and what to do instead."""


class InputPart(Asked):
    """A part of a message."""

    type: Literal["input_text", "output_text"]
    text: str


class InputMessage(Asked):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputPart]


class ResponseText(Asked):
    """What the answer looks like."""

    format: openai_form.TextFormat | None = None


class ResponseAsked(Asked):
    """A response that is asked for; members that are not named here have no effect."""

    model: str
    """The program's name, as `/v1/models` says it."""
    input: str | list[InputMessage]
    """What the user says, or the conversation with the user's message last."""
    instructions: str | None = None
    """Where a session begins, its first message; a session that goes on keeps its own."""
    previous_response_id: str | None = None
    """The newest response of a session, which goes on; `input` is then the new message alone."""
    stream: bool | None = None
    user: Id | None = None
    """Whose history the steps are."""
    text: ResponseText | None = None
    metadata: ChatMetadata | None = None
    """Names the session in `session_id`, as for a completion."""
    tools: list[Any] | None = Field(default=None, max_length=0)
    conversation: None = None
    background: Literal[False] | None = None

    @field_validator(*_REFUSED, mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: object, info: ValidationInfo) -> object:
        if value:
            raise ValueError(_REFUSED[str(info.field_name)])
        return value

    @field_validator("input", mode="before")
    @classmethod
    def _check_items(cls, value: Any) -> Any:
        for item in filter(lambda each: isinstance(each, dict), as_list(value)):
            content = as_list(as_object(item).get("content"))
            kinds = [as_object(part).get("type") for part in content]
            for kind in [as_object(item).get("type") or "message", *kinds]:
                if kind not in _READ:
                    raise ValueError(f"items and parts are messages and texts, not {kind!r:.60}")
        return value

    @model_validator(mode="after")
    def _asks(self) -> ResponseAsked:
        openai_form.check_conversation(self.messages)
        return self

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages of `input`, without instructions."""
        if isinstance(self.input, str):
            return [ChatMessage(role="user", content=self.input)]
        return [ChatMessage(role=each.role, content=_text(each.content)) for each in self.input]


class ResponseId(NamedTuple):
    """What the id of a response holds."""

    run_id: str
    session_id: str

    def __str__(self) -> str:
        """Return the id as clients have it."""
        return _PREFIX + base64.urlsafe_b64encode("\n".join(self).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> ResponseId:
        """Read an id.

        Raises:
            InvalidSettingError: No response of this server has such an id.
        """
        code = text.removeprefix(_PREFIX)
        try:
            plain = base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)).decode()
            return cls(*plain.split("\n", 1))
        except (ValueError, TypeError) as error:
            raise InvalidSettingError(
                f"previous_response_id: {text!r:.80} is no response of this server; name the id of "
                "one, or leave it out and send the conversation."
            ) from error


@router.post(
    "/v1/responses",
    response_model=dict[str, Any],
    responses={200: openai_form.chunks(), **openai_form.refusals(404, 409, 415, 500)},
)
async def respond(shared: Shared, caller: Who, request: Request, asked: ResponseAsked) -> Response:
    """Answer the last message of `input`."""
    messages, session_id = asked.messages, asked.metadata and asked.metadata.session_id
    if asked.previous_response_id is not None:
        previous = ResponseId.parse(asked.previous_response_id)
        if session_id not in (None, previous.session_id):
            raise InvalidSettingError(
                "metadata.session_id: previous_response_id is of another session; name one of them."
            )
        session_id = previous.session_id
        if len(messages) != 1:
            raise InvalidSettingError(
                "input: with previous_response_id it is the user's new message alone; what was "
                "said before stands in the session."
            )
        await in_thread(partial(shared.sessions_of(caller).check_allowed, previous.session_id))
        await in_thread(partial(_check_newest, shared, previous))
    elif asked.instructions:
        messages = [ChatMessage(role="system", content=asked.instructions), *messages]
    completion = CompletionAsked(
        model=asked.model,
        messages=messages,
        stream=asked.stream,
        user=asked.user,
        metadata=ChatMetadata(session_id=session_id),
    )
    run, _ = await start_run(shared, caller, completion)
    stream = ResponseStream(run, shared, asked)
    if asked.stream:
        return stream
    async with shared.slots.place():
        await run_end(run, request)
    return stream.whole()


class ResponseStream(EventStream):
    """A run's text as the events of a response."""

    def __init__(self, run: LiveRun, shared: Services, asked: ResponseAsked) -> None:
        """Answer `asked` with the events of `run`."""
        super().__init__(run, 0, shared.slots, shared.settings)
        self._read, self._events = openai_form.Reading(), 0
        self._item_id = f"msg_{run.run_id}"
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._about: dict[str, Any] = {
            "id": str(ResponseId(run.run_id, run.session_id or "")),
            "object": "response",
            "created_at": int(utc_now().timestamp()),
            "model": asked.model,
            "previous_response_id": asked.previous_response_id,
            "instructions": asked.instructions,
            "session_id": run.session_id,
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
        }

    def form(self, frame: Frame) -> bytes:
        """Return the events that a frame becomes."""
        begins, piece = frame.number == 1, self._read.read(frame)
        sent = self._begin() if begins else b""
        if piece:
            sent += self._event("response.output_text.delta", **self._place, delta=piece)
        if self._read.ending is None:
            return sent
        return sent + (self._end() if self._read.completed else self._failure())

    def whole(self) -> Response:
        """Return the response of a run that is over."""
        self._run.after(0, self._taken)
        if self._read.ending is None or not self._read.completed:
            about = openai_form.fault(self._reason(), _RUN_FAILED, self._error.get("type"))
            return JSONResponse(about, _RUN_FAILED, openai_form.NO_RETRY)
        return answer(self._response("completed", self._read.answer))

    def _taken(self, frame: Frame) -> bytes:
        self._read.read(frame)
        return b""

    def _begin(self) -> bytes:
        item = self._item("in_progress")
        return b"".join(
            (
                self._event("response.created", response=self._response("in_progress")),
                self._event("response.in_progress", response=self._response("in_progress")),
                self._event("response.output_item.added", output_index=0, item=item),
                self._event("response.content_part.added", **self._place, part=_part("")),
            )
        )

    def _end(self) -> bytes:
        text = self._read.text
        item = self._item("completed", text)
        return b"".join(
            (
                self._event("response.output_text.done", **self._place, text=text),
                self._event("response.content_part.done", **self._place, part=_part(text)),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event("response.completed", response=self._response("completed", text)),
            )
        )

    def _failure(self) -> bytes:
        error = {"code": "server_error", "message": self._reason()}
        return self._event("response.failed", response={**self._response("failed"), "error": error})

    @property
    def _error(self) -> dict[str, str]:
        return (self._read.ending or {}).get("error", {})

    def _reason(self) -> str:
        ending = self._read.ending or {"termination_reason": "the server's end"}
        why = self._error.get("message") or str(ending.get("termination_reason"))
        return f"run {self._run.run_id} did not complete: {why}"

    def _response(self, status: str, text: str | None = None) -> dict[str, Any]:
        output = [] if text is None else [self._item(status, text)]
        cost = None if text is None else openai_form.usage(self._read.ending or {})
        response = {**self._about, "status": status, "output": output}
        if cost is not None:
            cached = cost.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            response["usage"] = {
                "input_tokens": cost["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": cost["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": cost["total_tokens"],
            }
        return response

    def _item(self, status: str, *texts: str) -> dict[str, Any]:
        about = {"id": self._item_id, "type": "message", "role": "assistant", "status": status}
        return {**about, "content": [_part(text) for text in texts]}

    def _event(self, kind: str, **members: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._events, **members}
        self._events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(body))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _text(content: str | list[InputPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _check_newest(shared: Services, previous: ResponseId) -> None:
    """Refuse to go on from a response after which something was said; may block."""
    store = shared.repository.store
    end = store.session_end(previous.session_id)
    newest = store.messages(previous.session_id, end.sequence, end.sequence)
    if not newest or newest[-1].run_id != previous.run_id:
        raise SequenceConflictError(
            f"session {previous.session_id!r} went on after this response; name its newest one, or "
            "fork the session."
        )
