"""How a program is brought to answer inside a run.

It gets its context, its tools go through the gate, its tokens are shown as they come, and a failing
provider is asked again as long as nothing has been said. The program itself is not changed.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import anyio.to_thread
import dspy
import orjson
from dspy.utils.exceptions import is_retryable_lm_error
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from hybridagi_steps.crossing import in_thread
from hybridagi_steps.programs.adapters import StepMessages
from hybridagi_steps.programs.dspy_settings import overriding
from hybridagi_steps.recording import record_step
from hybridagi_steps.recording.recorder import StepRecorder
from hybridagi_steps.running import program_adapter as called
from hybridagi_steps.running.active_run import RUN, ActiveRun
from hybridagi_steps.running.dspy_callback import RunCallback
from hybridagi_steps.running.exits import no_exit
from hybridagi_steps.running.lm_methods import naming_missing_method
from hybridagi_steps.running.rounds import ToolTurn
from hybridagi_steps.running.saying import said
from hybridagi_steps.running.session_prompt import Messages, with_session
from hybridagi_steps.running.token_stream import FieldListener, Piece, Voice, streamed
from hybridagi_steps.running.tool_calls import GATE, ToolGate, enter_run, is_idempotent

_LONGEST_WAIT_SECONDS = 10.0


@dataclass(slots=True)
class Prompt:
    """What a program is given."""

    content: Any
    """The user's message: a text, or a provider's content parts."""
    before: Messages = field(default_factory=Messages)
    """Earlier messages."""
    after: Messages = field(default_factory=Messages)
    """What this turn has done already, when it is resumed."""
    inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further inputs of a DSPy program."""
    open_calls: list[ToolTurn] = field(default_factory=list[ToolTurn])
    """Calls of this turn that have no result yet."""

    @property
    def text(self) -> str:
        """The user's message as text."""
        if isinstance(self.content, list):
            parts = cast("list[Any]", self.content)
            texts = [p["text"] for p in parts if isinstance(p, dict) and "text" in p]
            return "\n".join(map(str, texts))
        return self.content if isinstance(self.content, str) else called.text_of(self.content)


@dataclass(slots=True)
class Agent:
    """A program with what a runner knows about it."""

    program: Any
    input_field: str | None
    """The input that takes the user's message; None when the program takes messages."""
    output_field: str | None
    tools: Mapping[str, Any]
    """Its tools by name."""
    voices: Sequence[Voice] = ()
    """Its predictors whose words are shown."""

    @property
    def name(self) -> str:
        """What steps call it."""
        found = called.inner(self.program)
        return str(getattr(found, "__name__", None) or type(found).__name__)


async def answer(run: ActiveRun, agent: Agent, prompt: Prompt) -> called.Reply | None:
    """Return what a program answers; None when it gave nothing.

    Raises:
        RunStopped: The run was stopped.
        Exception: Whatever the program raised.
    """
    callbacks: list[Any] = [c for c in dspy.settings.get("callbacks", []) if not _of_run(c, run)]
    gate = ToolGate(run)
    history = called.history_field_of(agent.program) if called.is_module(agent.program) else None
    if history is not None:
        prompt.inputs[history], before = StepMessages(messages=prompt.before), []
    else:
        before = prompt.before
    adapter = with_session(dspy.settings.get("adapter"), before, prompt.after, prompt.text)
    with overriding(
        adapter=adapter,
        callbacks=[*callbacks, run.recorder, RunCallback(run)],
        send_stream=None,
        stream_listeners=[],
        **{GATE: gate, RUN: run},
    ):
        enter_run()
        await _close_calls(run, agent, prompt, gate)
        with naming_missing_method():
            given = await _with_retries(run, partial(_given, run, agent, prompt, gate))
    return called.reply_of(given, agent.output_field)


async def _close_calls(run: ActiveRun, agent: Agent, prompt: Prompt, gate: ToolGate) -> None:
    """Give the calls of an interrupted turn their results, in order."""
    if not prompt.open_calls:
        return
    for call in run.turn.reopen(prompt.open_calls):
        tool = agent.tools.get(call.name)
        if tool is not None and is_idempotent(tool):
            await _call_tool(run, agent, call, gate)
        else:
            await in_thread(partial(run.turn.interrupt, call))
    prompt.after += [step.to_message_dict() for step in run.turn.messages]


async def _with_retries(run: ActiveRun, attempt: Callable[[], Any]) -> Any:
    """Try again while the provider fails and nothing has been said or done."""

    def worth_it(error: BaseException) -> bool:
        return _is_passing(error) and not run.spoke and run.stopped is None

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is not None:
            run.error("provider", error, retrying=True, attempt=state.attempt_number)

    retrying = AsyncRetrying(
        stop=stop_after_attempt(run.config.max_retries + 1)
        | stop_after_delay(run.config.retry_seconds),
        wait=wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT_SECONDS),
        retry=retry_if_exception(worth_it),
        before_sleep=report,
        reraise=True,
    )
    return await retrying(attempt)


def _is_passing(error: BaseException) -> bool:
    """Whether a provider's failure may pass: rate limits, timeouts, its own errors."""
    if not isinstance(error, Exception):
        return False
    status = getattr(error, "status_code", None)
    passing = isinstance(status, int) and (status in (408, 409, 429) or status >= 500)
    return passing or is_retryable_lm_error(error) or isinstance(error, ConnectionError)


async def _given(run: ActiveRun, agent: Agent, prompt: Prompt, gate: ToolGate) -> Any:
    """Return what a program gives, recorded as one program."""
    if called.leaves_program_call(agent.program):
        return await _module(run, agent, prompt)

    async def program(message: Any) -> Any:  # noqa: ARG001 - shown as the program's argument
        if called.is_module(agent.program):
            return await _module(run, agent, prompt)
        return await _conversation(run, agent, prompt, gate)

    purpose = called.purpose_of(agent.program) or agent.name
    recorded = record_step(kind="program", name=agent.name, purpose=purpose)(program)
    return await recorded(message=prompt.content)


async def _module(run: ActiveRun, agent: Agent, prompt: Prompt) -> Any:
    """Return what a DSPy module gives, its tokens shown while it runs."""
    inputs = {**prompt.inputs, cast("str", agent.input_field): prompt.text}
    call = partial(called.call_module, agent.program, run.threads)
    listeners = [FieldListener(voice.predict, voice.field) for voice in agent.voices]

    async def by_name(**named: Any) -> Any:
        with no_exit("the program"):
            return await call(named)

    if not listeners:
        return await by_name(**inputs)
    given: Any = None
    async for item in streamed(by_name, listeners)(**inputs):
        if isinstance(item, Piece):
            run.piece(item)
        elif isinstance(item, dspy.Prediction):
            given = item.given
    return given


async def _conversation(run: ActiveRun, agent: Agent, prompt: Prompt, gate: ToolGate) -> Any:
    """Return the answer of a callable over messages, its tools called for it."""
    asked: Messages = [*prompt.before, {"role": "user", "content": prompt.content}, *prompt.after]
    known = len(run.turn.messages)
    while True:
        run.check_limits()
        run.meter.ask()
        so_far = [step.to_message_dict() for step in run.turn.messages[known:]]
        messages = [*asked, *so_far]
        await run.tell("on_model_start", messages)
        given = await said(run, agent.program, messages)
        await run.tell("on_model_end", given)
        reply = called.reply_of(given, None)
        if reply is not None and reply.usage:
            run.meter.reported(reply.usage, reply.model_name)
        if reply is None or not reply.tool_calls or not agent.tools:
            return given
        await _call_tools(run, agent, reply, gate)


async def _call_tools(run: ActiveRun, agent: Agent, reply: called.Reply, gate: ToolGate) -> None:
    """Call the tools that a message asks for, side by side."""
    turns = [tool_turn(call) for call in reply.tool_calls or []]
    run.turn.announce(turns, reply.content, reply.reasoning)
    await asyncio.gather(*(_call_tool(run, agent, turn, gate) for turn in turns))


async def _call_tool(run: ActiveRun, agent: Agent, turn: ToolTurn, gate: ToolGate) -> None:
    tool = agent.tools.get(turn.name)
    if tool is None:
        begun = await anyio.to_thread.run_sync(run.begin_tool, turn.name, turn.arguments)
        known = ", ".join(sorted(agent.tools))
        run.end_tool(begun, f"Error: no tool is named {turn.name}; there are {known}.", 0.0, _ERROR)
        return
    try:
        await gate.acall(tool, turn.arguments)
    except Exception as error:  # the gate has stored it as the call's result
        run.hooks.tell_soon("on_error", error)


_ERROR: dict[str, Any] = {"is_error": True}


def tool_turn(call: Mapping[str, Any]) -> ToolTurn:
    """Return a call of a message as a turn of its tool."""
    function: Mapping[str, Any] = call.get("function") or {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = {"arguments": arguments}
    turn = ToolTurn(str(function.get("name")), arguments if isinstance(arguments, dict) else {})
    if isinstance(call.get("id"), str) and call["id"]:
        turn.call_id = call["id"]
    return turn


def _of_run(callback: Any, run: ActiveRun) -> bool:
    """Whether a callback belongs to a run around this one, or records what this run records."""
    if isinstance(callback, RunCallback):
        return True
    return isinstance(callback, StepRecorder) and callback.memory is run.line.memory


def tools_of(program: Any, given: Sequence[Any]) -> dict[str, Any]:
    """Return the tools of a program by name: those given, and those its modules hold."""
    tools = [tool if isinstance(tool, dspy.Tool) else dspy.Tool(tool) for tool in given]
    if called.is_module(program):
        for _, module in program.named_sub_modules():
            held = getattr(module, "tools", None)
            values = held.values() if isinstance(held, Mapping) else held or ()
            tools += [tool for tool in values if isinstance(tool, dspy.Tool)]
    return {str(tool.name): tool for tool in tools}
