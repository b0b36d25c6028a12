"""Language models for tests and demos: scripted answers and replayed conversations, no network.

`dspy.LM` talks to an engine; these are engines. So the whole of DSPy above the wire is the real
thing: adapters, callbacks, history, usage, cache, streaming, native tool calls, sync and async. A
scripted model answers from a list or a function; a replaying one with what a recorded assistant
said. Token counts are estimates (4 characters each) and stable from run to run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import cycle, repeat
from typing import Any, Self, cast

import dspy
from dspy.lm15 import (
    Message,
    Request,
    Response,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextDelta,
    TextPart,
    ToolCallPart,
    Usage,
    response_to_events,
)

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.testing.plausible_replies import Reply, ToolCall, plausible_reply, request_text

_log = logging.getLogger(__name__)
_CHUNK_CHARACTERS = 6
_CLOSE = 0.8
"""How alike two names are of which one may be the other misspelt, 0..1."""
_CHARACTERS_PER_TOKEN = 4


Script = Sequence[Reply] | Callable[[Request], Reply]


class ScriptedLM(dspy.LM):
    """A language model that answers from a script.

    Args:
        script: The replies in order, or a function from the request to the reply, as
            `scripted_lm` says.
        delay_seconds: How long each answer takes; a stream spreads it over its pieces.
        cache: Whether DSPy's cache may answer instead.
        model: Its name, `provider/model`.
        options: Whatever else `dspy.LM` takes.

    Raises:
        InvalidSettingError: `script` is neither replies nor a function.

    A script that runs out of replies is an error. Copies share script and requests; a pickle starts
    the script again.
    """

    def __init__(
        self,
        script: Script,
        *,
        delay_seconds: float = 0.0,
        cache: bool = False,
        model: str = "scripted/model",
        **options: object,
    ) -> None:
        if not _is_script(script):
            raise InvalidSettingError(
                "a script is a list of replies, a function from the request to the reply, or for "
                f"scripted_lm() a dict of fields, not {script!r:.80}."
            )
        engine = _Engine(script, delay_seconds)
        super().__init__(
            model, engine=engine, async_engine=_AsyncEngine(engine), cache=cache, **options
        )
        self._script_engine = engine

    @property
    def requests(self) -> list[Request]:
        """Every request that reached the model, in order."""
        return self._script_engine.requests


def _is_script(value: object) -> bool:
    return callable(value) or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


def scripted_lm(script: Script | Mapping[str, Any] | None = None, **options: Any) -> ScriptedLM:
    """Return a `ScriptedLM`; without a script every question gets a plausible answer.

    Args:
        script: What `ScriptedLM` takes: a list of replies, or a function that is called with each
            request and returns the reply. `request_text(request)` is what the request asks,
            `asked_fields(request)` which output fields; it has `system` and `messages`, of which
            each has a `role` and a `text`, `tools` and `config`. A reply is a text as it is, fields
            by name, texts and each `ToolCall` in a list, or an error to raise. Or an answer for
            each output field by its name: of a list the next one each time, from the start again
            after the last. Fields that are not named get a plausible answer; a name that looks
            misspelt is told in the log.
        options: What `ScriptedLM` takes.

    Example:
        `dspy.configure(lm=hs.testing.scripted_lm({"answer": "In the harbour."}))`
    """
    if isinstance(script, Mapping):
        script = _Fields(cast("Mapping[str, Any]", script))
    return ScriptedLM(plausible_reply if script is None else script, **options)


def replay_lm(messages: Sequence[Mapping[str, Any]], **options: Any) -> ScriptedLM:
    """Return a model that gives the assistant's turns of a recorded conversation, in order.

    Args:
        messages: OpenAI-style messages; those of other roles are skipped. Tool calls keep their
            names, arguments and ids.
        options: What `ScriptedLM` takes.
    """
    turns = [_recorded_reply(message) for message in messages if message["role"] == "assistant"]
    options.setdefault("model", "replay/model")
    return ScriptedLM(turns, **options)


class _Fields:
    """Answers each field that a request asks for; a pickle starts from the first answers again."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = dict(answers)
        self._turns: dict[str, Iterator[Any]] = {
            name: cycle(cast("list[Any]", value))
            if value and type(value) is list
            else repeat(value)
            for name, value in answers.items()
        }
        self._used: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Fields, (self._answers,)

    def __call__(self, request: Request) -> Reply:
        reply = plausible_reply(request)
        if not isinstance(reply, Mapping):
            return reply
        for name in self._turns.keys() - self._used - reply.keys():
            if meant := get_close_matches(name, reply.keys() - self._turns.keys(), 1, _CLOSE):
                _log.warning("%r of the script is no field here; is %r meant?", name, meant[0])
                self._used.add(name)
        self._used |= self._turns.keys() & reply.keys()
        return {
            name: next(self._turns[name]) if name in self._turns else value
            for name, value in reply.items()
        }


class _OfAScript:
    """What DSPy asks of an engine, whether it answers at once or asynchronously."""

    supports_function_calling = True
    supports_reasoning = False
    supports_response_schema = True
    supported_params = ("temperature", "max_tokens", "tools", "tool_choice", "response_format")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def dump_state(self) -> dict[str, Any]:
        """Nothing of a script belongs in a saved program."""
        return {}


class _Engine(_OfAScript):
    """Answers DSPy's canonical requests from a script."""

    def __init__(self, script: Script, delay_seconds: float) -> None:
        self.script = script
        self.delay_seconds = delay_seconds
        self.requests: list[Request] = []
        self._answered = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Engine, (self.script, self.delay_seconds)

    def complete(self, request: Request) -> Response:
        """Answer one request."""
        time.sleep(self.delay_seconds)
        return self.answer(request)

    def stream(self, request: Request) -> Iterator[Any]:
        """Answer one request in pieces."""
        events = list(_events(self.answer(request), request))
        for event in events:
            time.sleep(self.delay_seconds / len(events))
            yield event

    def close(self) -> None:
        """Nothing to close."""

    def answer(self, request: Request) -> Response:
        """Return the script's next reply as a response, or raise it."""
        with self._lock:
            self.requests.append(request)
            place = self._answered
            self._answered += 1
        reply = _reply(self.script, request, place)
        if isinstance(reply, BaseException):
            raise reply
        parts = _parts(reply, request, place)
        called = any(isinstance(part, ToolCallPart) for part in parts)
        asked = sum(len(message.text or "") for message in request.messages)
        given = sum(len(getattr(part, "text", "") or "") for part in parts)
        return Response(
            id=f"reply-{place}",
            model=request.model,
            message=Message.assistant(parts),
            finish_reason="tool_call" if called else "stop",
            usage=Usage(
                input_tokens=asked // _CHARACTERS_PER_TOKEN,
                output_tokens=given // _CHARACTERS_PER_TOKEN + 1,
            ),
        )


class _AsyncEngine(_OfAScript):
    """The same script, for async callers."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        """Answer one request."""
        await asyncio.sleep(self._engine.delay_seconds)
        return self._engine.answer(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Answer one request in pieces."""
        events = list(_events(self._engine.answer(request), request))
        for event in events:
            await asyncio.sleep(self._engine.delay_seconds / len(events))
            yield event

    async def aclose(self) -> None:
        """Nothing to close."""


def _reply(script: Script, request: Request, place: int) -> Reply:
    if callable(script):
        return script(request)
    if place >= len(script):
        raise IndexError(f"the script has {len(script)} replies, this is request {place + 1}")
    return script[place]


def _parts(reply: object, request: Request, place: int) -> list[Any]:
    if isinstance(reply, str):
        return [TextPart(reply)]
    if isinstance(reply, Mapping):
        return [TextPart(_rendered(cast("Mapping[str, Any]", reply), request))]
    return [
        TextPart(part)
        if isinstance(part, str)
        else ToolCallPart(id=part.id or f"call-{place}-{n}", name=part.name, input=part.arguments)
        for n, part in enumerate(cast("Sequence[str | ToolCall]", reply))
    ]


def _rendered(fields: Mapping[str, Any], request: Request) -> str:
    """Return fields the way the adapter behind the request reads them."""
    asked = request_text(request)
    texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in fields.items()}
    if "[[ ## completed ## ]]" in asked:
        chat = "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in texts.items())
        return f"{chat}\n\n[[ ## completed ## ]]"
    if "wrapped in XML tags" in asked:
        return "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in texts.items())
    return json.dumps(dict(fields))


def _events(response: Response, request: Request) -> Iterator[Any]:
    """Yield a text in small pieces, as providers do; anything else in one."""
    if any(not isinstance(part, TextPart) for part in response.message.parts):
        yield from response_to_events(response)
        return
    yield StreamStartEvent(id=response.id, model=request.model)
    for part in response.message.parts:
        text = cast("TextPart", part).text
        for begins in range(0, len(text), _CHUNK_CHARACTERS):
            yield StreamDeltaEvent(delta=TextDelta(text=text[begins : begins + _CHUNK_CHARACTERS]))
    yield StreamEndEvent(finish_reason="stop", usage=response.usage)


def _recorded_reply(message: Mapping[str, Any]) -> Reply:
    """Return what an assistant message said and called."""
    parts: list[str | ToolCall] = []
    content = message.get("content")
    if isinstance(content, str) and content:
        parts.append(content)
    for call in message.get("tool_calls") or ():
        function: Mapping[str, Any] = call["function"]
        arguments = function.get("arguments") or "{}"
        values = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
        parts.append(ToolCall(function["name"], values, call.get("id")))
    return parts or ""
