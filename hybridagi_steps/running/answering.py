"""How a program is brought to answer inside a run.

It gets its context, its tools go through the gate, its tokens are shown as they come, and a failing
provider is asked again as long as nothing has been said. The program itself is not changed.
"""

# pyright: reportAttributeAccessIssue=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast

import anyio.to_thread
import dspy
from dspy.clients.call_context import adapter_fallback_scope
from dspy.utils.exceptions import AdapterParseError, LMError

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.messages.provider_out import EMPTY
from hybridagi_steps.programs.adapters import (
    NativeMessagesMixin,
    StepMessages,
    retrying,
    with_retries,
)
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import OpenStep, RunSteps
from hybridagi_steps.recording.scopes import CALLBACKS, RUN, overriding, own_callbacks
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step
from hybridagi_steps.running import program_adapter as called
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.model_events import RunObserver, TokenStream
from hybridagi_steps.running.program_adapter import Agent, naming_missing_method
from hybridagi_steps.running.stopping import no_exit
from hybridagi_steps.running.stored_consents import answered
from hybridagi_steps.running.tool_calls import acall_tool, is_idempotent
from hybridagi_steps.running.tool_results import stored_results
from hybridagi_steps.running.turn import ToolTurn

Messages = list[dict[str, Any]]
_GO_ON = "Go on from here."
_LONGEST_WAIT_SECONDS = 10.0
_ERROR: dict[str, Any] = {"is_error": True}


class SessionSplice:
    """Mixed in before an adapter class: its prompts hold the session's messages."""

    history: Callable[[], Messages]
    """Returns earlier messages, oldest first; made when a prompt takes them."""
    after: Messages
    """What a turn that was cut off has done since its question; empty for a new turn."""
    question: str
    """What such a turn answers."""
    plain: Any
    """The adapter without the session."""

    def format(
        self, signature: type[dspy.Signature], demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> Messages:
        """Return the messages, those of the session before the request."""
        own = cast("Messages", cast("Any", super()).format(signature, demos, inputs))
        place = self._request_place(own, signature, demos, inputs)
        head, request = [*own[:place], *self.history()], own[place:]
        if not self.after:
            return [*head, *request]
        asked = {"role": "user", "content": self.question or EMPTY}
        return [*head, asked, *self.after, *_gone_on(request)]

    def _request_place(self, own: Messages, signature: Any, demos: object, inputs: object) -> int:
        """Return where the request begins; what an agent has done since is part of it."""
        fields = signature.input_fields.items()
        histories = [name for name, field in fields if field.annotation is dspy.History]
        if all(inputs.get(name) is None for name in histories):
            return len(own) - 1
        return 1 + len(cast("Any", self).format_demos(signature, demos))

    def __call__(
        self,
        lm: object,
        lm_kwargs: dict[str, Any],
        signature: object,
        demos: object,
        inputs: object,
    ) -> Any:
        """Ask a model; ask again as JSON when the answer cannot be read."""
        given = (with_retries(lm), dict(lm_kwargs), signature, demos, inputs)
        with adapter_fallback_scope() as progress:
            try:
                return cast("Any", super()).__call__(given[0], lm_kwargs, *given[2:])
            except AdapterParseError:
                if not self._asks_again(progress):
                    raise
                return self._make_json_adapter_fallback()(*given)

    async def acall(
        self,
        lm: object,
        lm_kwargs: dict[str, Any],
        signature: object,
        demos: object,
        inputs: object,
    ) -> Any:
        """Do so asynchronously."""
        given = (with_retries(lm), dict(lm_kwargs), signature, demos, inputs)
        with adapter_fallback_scope() as progress:
            try:
                return await cast("Any", super()).acall(given[0], lm_kwargs, *given[2:])
            except AdapterParseError:
                if not self._asks_again(progress):
                    raise
                return await self._make_json_adapter_fallback().acall(*given)

    def _asks_again(self, progress: Any) -> bool:
        # DSPy itself does not once a token was streamed, since it cannot take tokens back. A draft
        # can be called off, so streaming must not make a program less able.
        able = isinstance(self, dspy.ChatAdapter) and not isinstance(self, dspy.JSONAdapter)
        return able and progress.emitted and getattr(self, "use_json_adapter_fallback", False)

    def _make_json_adapter_fallback(self) -> Any:
        # When a chat answer cannot be read DSPy asks again through another adapter.
        plain = cast("Any", super())._make_json_adapter_fallback()  # noqa: SLF001
        return with_session(plain, self.history, self.after, self.question)


def with_session(
    adapter: object,
    history: Callable[[], Messages],
    after: Messages | None = None,
    question: str = "",
) -> Any:
    """Return an adapter of the same kind whose prompts hold these messages before the request.

    Args:
        adapter: DSPy's adapter; None is its default.
        history: Returns earlier messages.
        after: What a turn that was cut off has done; may grow while the adapter is used.
        question: What such a turn answers.
    """
    plain = without_session(adapter) or dspy.ChatAdapter()
    spliced = copy.copy(plain)
    spliced.__class__ = _spliced_kind(type(plain))
    spliced.history, spliced.plain = history, plain
    spliced.after, spliced.question = [] if after is None else after, question
    return spliced


def without_session(adapter: object) -> Any:
    """Return the adapter that was there before the session was added."""
    return adapter.plain if isinstance(adapter, SessionSplice) else adapter


def _gone_on(request: Messages) -> Messages:
    """Return a request that says that the turn above is to be gone on with."""
    first = request[0] if request else {}
    content = first.get("content")
    if first.get("role") != "user" or not content:
        return [{"role": "user", "content": _GO_ON}, *request]
    if isinstance(content, str):
        return [{**first, "content": f"{_GO_ON}\n\n{content}"}, *request[1:]]
    parts = [{"type": "text", "text": _GO_ON}, *content]
    return [{**first, "content": parts}, *request[1:]]


@lru_cache(maxsize=64)
def _spliced_kind(kind: type[Any]) -> type[Any]:
    native = () if issubclass(kind, NativeMessagesMixin) else (NativeMessagesMixin,)
    return type(f"Session{kind.__name__}", (SessionSplice, *native, kind), {})


@dataclass(slots=True)
class Prompt:
    """What a program is given."""

    content: object
    """The user's message: a text, or a provider's content parts."""
    history: Callable[[], Messages] = list
    """Returns earlier messages, made when the program takes them."""
    after: Messages = field(default_factory=Messages)
    """What this turn has done already, when it is resumed."""
    inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further inputs of a DSPy program."""
    since: Sequence[Step] = ()
    """The same as it is stored."""
    open_calls: list[ToolTurn] = field(default_factory=list[ToolTurn])
    """Calls of this turn that have no result yet."""
    results: Mapping[str, str] = field(default_factory=dict[str, str])
    """What some of them gave, by their ids, as whoever takes up the turn has found out."""
    consents: Mapping[str, bool | None] = field(default_factory=dict[str, "bool | None"])
    """Calls whose tools have not begun, since they wait for consent: what was answered by now."""
    questions: Mapping[str, AgentStep] = field(default_factory=dict[str, AgentStep])
    """The stored questions about calls, by the ids of the AgentSteps that tell these."""

    @property
    def text(self) -> str:
        """The user's message as text."""
        if isinstance(self.content, list):
            parts = cast("list[Any]", self.content)
            texts = [p["text"] for p in parts if isinstance(p, dict) and "text" in p]
            return "\n".join(map(str, texts))
        return self.content if isinstance(self.content, str) else called.text_of(self.content)


async def answer(run: ActiveRun, agent: Agent, prompt: Prompt) -> called.Reply | None:
    """Return what a program answers; None when it gave nothing.

    It is begun again while it fails for a passing reason and has done nothing; not for what a
    client of DSPy raised, which has asked again as often as it may (`retrying`).
    """
    with (
        retrying(dspy.settings.get("lm"), run.config.max_retries),
        _settings(run, agent, prompt),
    ):
        if prompt.open_calls:
            await _close_calls(run, agent, prompt)
        if run.answers is not None and agent.is_module:
            turn = [*prompt.since, *run.turn.messages]
            run.stored_results = await in_thread(partial(stored_results, run.line.memory, turn))
        give_up, attempt = time.monotonic() + run.config.retry_seconds, 1
        while True:
            try:
                with (
                    naming_missing_method(),
                    _as_program(run, agent, prompt) as step,
                    _streaming(run, agent) if agent.is_module else nullcontext(),
                ):
                    step.outcome = await _ask(run, agent, prompt)
                break
            except Exception as error:
                worth_it = _is_passing(error) and not run.spoke and run.stopped is None
                enough = attempt > run.config.max_retries or time.monotonic() >= give_up
                if enough or not worth_it:
                    raise
                run.events.error("provider", error, retrying=True, attempt=attempt)
            # Many runs that one provider has refused do not come back all at once.
            longest = min(_LONGEST_WAIT_SECONDS, 2.0 ** min(attempt - 2, 16))
            await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 - no secret
            attempt += 1
    return called.reply_of(step.outcome, agent.output_field)


def _settings(run: ActiveRun, agent: Agent, prompt: Prompt) -> AbstractContextManager[None]:
    """Let DSPy use the session's messages and tell this run of its calls inside a block."""
    run.recorder.observed_by(RunObserver(run))
    history = prompt.history
    if agent.history_field is not None:
        prompt.inputs[agent.history_field], history = StepMessages(messages=history()), list
    return overriding(
        adapter=with_session(dspy.settings.get("adapter"), history, prompt.after, prompt.text),
        send_stream=None,
        stream_listeners=[],
        **{RUN: run, CALLBACKS: (*own_callbacks(), run.recorder)},
    )


async def _close_calls(run: ActiveRun, agent: Agent, prompt: Prompt) -> None:
    """Give the calls of an interrupted turn their results, in order."""
    reopened = run.turn.reopen(prompt.open_calls)
    # What is answered comes first: a call that still waits pauses the run.
    for call in sorted(reopened, key=lambda call: _is_undecided(prompt, call)):
        tool, question = agent.tools.get(call.name), prompt.questions.get(str(call.step_id))
        if (text := prompt.results.get(call.call_id)) is not None:
            await in_thread(partial(run.told_result, call, text, question))
            continue
        waits = call.call_id in prompt.consents
        if (allowed := prompt.consents.get(call.call_id)) is not None:
            run.consents.decided[call.call_id] = allowed
        if question is not None and waits and answered(question) is None:
            run.consents.open[call.call_id] = question
        if tool is not None and (waits or is_idempotent(tool)):
            await _call_tool(run, agent, call)
        elif not waits:
            await in_thread(partial(run.turn.interrupt, call))
    prompt.after += [step.to_message_dict() for step in run.turn.messages]
    # What has a tool that only the program knows runs when the program calls it again.
    if open_ids := {call.call_id for call in run.turn.open_calls()}:
        prompt.after[:] = _without_calls(prompt.after, open_ids)


def _without_calls(messages: Messages, ids: set[str]) -> Messages:
    """Return messages without some calls: no provider takes one that has no result."""
    kept: Messages = []
    for message in messages:
        if calls := message.get("tool_calls"):
            rest = [call for call in calls if call["id"] not in ids]
            if not rest and not message.get("content"):
                continue
            message = {key: value for key, value in message.items() if key != "tool_calls"}
            message |= {"tool_calls": rest} if rest else {}
        kept.append(message)
    return kept


def _is_undecided(prompt: Prompt, call: ToolTurn) -> bool:
    waits = call.call_id in prompt.consents and call.call_id not in prompt.results
    return waits and prompt.consents[call.call_id] is None


def _is_passing(error: Exception) -> bool:
    """Whether a failure may pass and nobody has tried again: rate limits, timeouts, 5xx."""
    if isinstance(error, LMError):
        return False
    status = getattr(error, "status_code", None)
    passing = isinstance(status, int) and (status in (408, 409, 429) or status >= 500)
    return passing or isinstance(error, ConnectionError)


def _as_program(run: ActiveRun, agent: Agent, prompt: Prompt) -> AbstractContextManager[OpenStep]:
    """Record what is done in the block as one program, unless the program tells that itself."""
    if agent.tells_itself:
        return nullcontext(OpenStep())
    step = FunctionStep("program", agent.name, agent.purpose)
    return RunSteps(run.line.memory).step(step, {"message": prompt.content})


@contextmanager
def _streaming(run: ActiveRun, agent: Agent) -> Generator[None]:
    """Show the tokens of a DSPy module while it runs in the block."""
    stream = TokenStream(agent.voices, run.piece)
    streaming: dict[str, Any] = {"send_stream": stream, "stream_listeners": stream.listeners}
    try:
        with no_exit("the program"), overriding(**(streaming if agent.voices else {})):
            yield
    except BaseExceptionGroup as group:
        raise _single(group) from None
    stream.end()


def _ask(run: ActiveRun, agent: Agent, prompt: Prompt) -> Awaitable[Any]:
    """Begin to ask the program."""
    if not agent.is_module:
        return _conversation(run, agent, prompt)
    inputs = {**prompt.inputs, cast("str", agent.input_field): prompt.text}
    return called.call_module(agent.program, run.threads, inputs)


def _single(error: BaseException) -> BaseException:
    """Return the one error of a group: what one of a program's tasks raised is the program's."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _conversation(run: ActiveRun, agent: Agent, prompt: Prompt) -> Any:
    """Return the answer of a callable over messages, its tools called for it."""
    asked: Messages = [
        *prompt.history(),
        {"role": "user", "content": prompt.content},
        *prompt.after,
    ]
    known = len(run.turn.messages)
    while True:
        run.check_limits()
        run.meter.ask()
        so_far = [step.to_message_dict() for step in run.turn.messages[known:]]
        messages = [*asked, *so_far]
        await run.hooks.tell("on_model_start", messages)
        given = await called.call_function(run, agent.program, messages)
        await run.hooks.tell("on_model_end", given)
        reply = called.reply_of(given, None)
        if reply is not None and reply.usage:
            run.meter.reported(reply.usage, reply.model_name)
        if reply is None or not reply.tool_calls or not agent.tools:
            return given
        await _call_tools(run, agent, reply)


async def _call_tools(run: ActiveRun, agent: Agent, reply: called.Reply) -> None:
    """Call the tools that a message asks for, side by side."""
    turns = [ToolTurn.of(call) for call in reply.tool_calls or []]
    run.turn.announce(turns, reply.content, reply.reasoning)
    await asyncio.gather(*(_call_tool(run, agent, turn) for turn in turns))


async def _call_tool(run: ActiveRun, agent: Agent, turn: ToolTurn) -> None:
    tool = agent.tools.get(turn.name)
    if tool is None:
        begun = await anyio.to_thread.run_sync(run.begin_tool, turn.name, turn.arguments)
        known = ", ".join(sorted(agent.tools))
        run.end_tool(begun, f"Error: no tool is named {turn.name}; there are {known}.", 0.0, _ERROR)
        return
    try:
        await acall_tool(run, tool, turn.arguments)
    except Exception as error:  # the gate has stored it as the call's result
        run.hooks.tell_soon("on_error", error)
