"""The form of OpenAI's chat completions: requests, answers, errors, chunks, ends of conversations.

What a client asks of the model itself (temperature, seed, …) is passed over, since the program that
is served decides it; what would change the answer's meaning unseen (tools, n, a response format)
is refused. Nothing here runs or stores.

Reference: OpenAI, "API reference", Chat completions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from hybridagi_steps.records.json_reading import text_of
from hybridagi_steps.running.starting import check_message
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.problems import EVERYWHERE, PROBLEM_TYPE
from hybridagi_steps.server.sse import EVENT_STREAM, Frame

FOLDER = "/v1/"
"""Where everything, errors too, has this form."""
NO_RETRY = {"x-should-retry": "false"}
"""Keeps OpenAI's client from sending the same again by itself."""
_BETWEEN = "\n\n"
"""Between two messages of one turn, in the one text that a client has for both."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class Asked(BaseModel):
    """What is asked; members without an effect are passed over."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="ignore", strict=True)


class ChatMessage(Asked):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: shapes.Message | Literal[""] | None = None
    """A text, or content parts."""
    tool_calls: list[Any] | None = Field(default=None, max_length=0)
    """Refused: the tools are the program's."""

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _without_calls(cls, calls: object) -> object:
        if calls:
            raise ValueError("the tools are the program's; leave calls of tools out of the history")
        return calls


class ChatMetadata(Asked):
    """What is said about the request."""

    session_id: shapes.NewSessionId | None = None
    """The session; else the one whose messages these are, or a new one."""


class TextFormat(Asked):
    """The one format of answers."""

    type: Literal["text"]


class StreamOptions(Asked):
    """What a stream says."""

    include_usage: bool | None = None
    """Whether its last chunk says what the run cost."""


class CompletionAsked(Asked):
    """A chat completion that is asked for; members that are not named here have no effect."""

    model: str
    """The program's name, as `/v1/models` says it."""
    messages: list[ChatMessage] = Field(min_length=1)
    """The conversation; the last message is the user's."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: shapes.Id | None = None
    """Whose history the steps are."""
    metadata: ChatMetadata | None = None
    n: Literal[1] | None = None
    tools: list[Any] | None = Field(default=None, max_length=0)
    functions: list[Any] | None = Field(default=None, max_length=0)
    response_format: TextFormat | None = None

    @field_validator("tools", "functions", mode="before")
    @classmethod
    def _without_tools(cls, given: object, info: ValidationInfo) -> object:
        if given:
            raise ValueError(f"the tools are the program's; leave out `{info.field_name}`")
        return given

    @field_validator("messages")
    @classmethod
    def _asks(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        check_conversation(messages)
        return messages

    @property
    def session_id(self) -> str | None:
        """The session that is named."""
        return None if self.metadata is None else self.metadata.session_id

    @property
    def transcript(self) -> list[tuple[str, Any]]:
        """Role and content of all messages, an assistant's parts of text as the text they are."""
        return [
            (each.role, text_of(each.content) if each.role == "assistant" else each.content)
            for each in self.messages
        ]


def check_conversation(messages: Sequence[ChatMessage]) -> None:
    """Refuse messages that ask nothing.

    Raises:
        ValueError: The last message is not the user's, or says nothing.
    """
    if not messages or messages[-1].role != "user":
        raise ValueError("the last message is the user's")
    check_message(messages[-1].content)


class CachedTokens(shapes.Answer):
    """Part of the prompt's tokens."""

    cached_tokens: int


class CompletionUsage(shapes.Answer):
    """Tokens of all LM calls of the run, as its metrics have them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None


class AnswerMessage(shapes.Answer):
    """What the program said."""

    role: Literal["assistant"]
    content: str


class Choice(shapes.Answer):
    """The one answer."""

    index: int
    message: AnswerMessage
    finish_reason: Literal["stop"]


class Completion(shapes.Answer):
    """A chat completion."""

    id: str
    """`chatcmpl-` and the run's id."""
    object: Literal["chat.completion"]
    created: int
    """When the run began, seconds since 1970."""
    model: str
    choices: list[Choice]
    usage: CompletionUsage | None = None
    """Absent when nobody measured it."""
    session_id: str
    """The session that it was said in."""


class Model(shapes.Answer):
    """A program that is served."""

    id: str
    object: Literal["model"]
    created: int
    """When the server began, seconds since 1970."""
    owned_by: str


class ModelList(shapes.Answer):
    """The program, or none."""

    object: Literal["list"]
    data: list[Model]


class CompletionFault(shapes.Answer):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    """The member that is wrong."""
    code: str | None
    """The class of the error in Python."""


class CompletionError(shapes.Answer):
    """An error, as OpenAI's clients read it."""

    error: CompletionFault


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return a route's errors as OpenAPI has them."""
    return {
        status: {"description": HTTPStatus(status).phrase, "model": CompletionError}
        for status in sorted({*EVERYWHERE, *statuses})
    }


def chunks() -> dict[str, Any]:
    """Return what OpenAPI says of a stream of chunks."""
    return {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}}


def fault(
    message: str, status: int, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Return an error's body."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    known = {"message": message, "type": _TYPES.get(status, kind), "param": param, "code": code}
    return {"error": known}


class OpenAIErrors:
    """ASGI middleware that gives problem documents under `/v1/` the form of OpenAI's errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in that form."""
        here = scope["type"] == "http" and scope["path"].startswith(FOLDER)
        await self._app(scope, receive, _Reformed(send) if here else send)


class _Reformed:
    """A `send` that rewrites a problem document, which comes as one message."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: AsgiMessage | None = None

    async def __call__(self, message: AsgiMessage) -> None:
        """Send a message, or hold the start of a problem until its body is there."""
        kind = (b"content-type", PROBLEM_TYPE.encode())
        if message["type"] == "http.response.start" and kind in message["headers"]:
            self._held = message
            return
        if (start := self._held) is not None:
            self._held, body = None, _reformed(message["body"])
            own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            names = [name for name, _ in own]
            kept = [pair for pair in start["headers"] if pair[0] not in names]
            await self._send({**start, "headers": [*kept, *own]})
            message = {**message, "body": body}
        await self._send(message)


def _reformed(body: bytes) -> bytes:
    problem: dict[str, Any] = orjson.loads(body)
    fields: list[dict[str, str]] = problem.get("errors", [])
    param = fields[0]["field"].removeprefix("body.") if fields else None
    return orjson.dumps(fault(problem["detail"], problem["status"], problem.get("error"), param))


class Reading:
    """A run's events, read as one text that grows.

    Every message of the program is in it, those before a tool call too. A text that the program
    took back cannot be taken from a client and stays. Pieces that were forgotten, since the reader
    was slow, come with the message that they belong to.
    """

    def __init__(self) -> None:
        self.text = ""
        """All of it."""
        self.answer = ""
        """What the newest message says."""
        self.ending: dict[str, Any] | None = None
        """The data of the run's final event, once it came."""
        self.completed = False
        self._step_id: str | None = None
        self._said = ""
        """What was shown of that step."""
        self._number = 0
        self._lacks: str | None = None
        """A step that lacks pieces."""

    def read(self, frame: Frame) -> str:
        """Take an event; return what it adds to the text."""
        event = frame.event
        if frame.number != self._number + 1:
            self._lacks = frame.step_id
        self._number = frame.number
        if frame.kind.value.startswith("run_") and event.get("data", {}).get("status"):
            self.ending = event["data"]
            self.completed = frame.kind.value in ("run_completed", "run_paused")
            if frame.kind.value == "run_paused":
                self.answer = _waiting_text(event["data"].get("waiting", []))
                return self._add("", self.answer)
        delta: str = event.get("delta", {}).get("content", "")
        if frame.step_id is not None and frame.step_id != self._lacks and delta:
            return self._add(frame.step_id, delta)
        message: dict[str, Any] = event.get("snapshot", {})
        if frame.step_id is None or message.get("role") != "assistant":
            return ""
        whole = message.get("content", "")
        self.answer = whole if isinstance(whole, str) else ""
        shown = self._said if self._step_id == frame.step_id else ""
        rest = self.answer[len(shown) :] if self.answer.startswith(shown) else ""
        return self._add(frame.step_id, rest) if rest else ""

    def _add(self, step_id: str, piece: str) -> str:
        between = _BETWEEN if self.text and step_id != self._step_id else ""
        self._said = piece if step_id != self._step_id else self._said + piece
        self._step_id = step_id
        self.text += between + piece
        return between + piece


def _waiting_text(waiting: Iterable[Mapping[str, Any]]) -> str:
    """Return what a run that paused says: what it waits for, by the ids that an answer names."""
    lines = ["I wait for an answer, given to `resume` of this session:"]
    for call in waiting:
        arguments = json.dumps(call["arguments"], ensure_ascii=False, default=str)
        asked = f"May {call['tool']} run with {arguments}?"
        if call["waits_for"] == "answer":
            asked = str(call["arguments"].get("question"))
        lines.append(f"* {call['call_id']}: {asked}")
    return "\n".join(lines)


def usage(ending: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a run cost; None when nobody measured it."""
    metrics: dict[str, Any] = ending.get("metrics", {})
    asked, answered = metrics.get("input_tokens"), metrics.get("output_tokens")
    if asked is None and answered is None:
        return None
    asked, answered = asked or 0, answered or 0
    found: dict[str, Any] = {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": metrics.get("total_tokens", asked + answered),
    }
    if (cached := metrics.get("cache_read_tokens")) is not None:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return found


def frames(bodies: Iterable[object]) -> bytes:
    """Return server-sent events without names, one for each body."""
    return b"".join(b"data: " + orjson.dumps(body) + b"\n\n" for body in bodies)
