"""One run from its first event to its last: prepare, answer, store, and end truthfully.

Whatever happens, a run ends once, with one final event, and the turn it leaves is whole: open calls
are answered, what was said is kept as a partial message, and the steps behind it are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import dspy

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.errors import LimitReachedError, MessageError
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.recording.step_shapes import error_fields
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.running import program_adapter as called
from hybridagi_steps.running.active_run import ActiveRun, shown_error
from hybridagi_steps.running.answering import Agent, Messages, Prompt, answer, said, with_session
from hybridagi_steps.running.dspy_callback import SpendingCallback
from hybridagi_steps.running.program_adapter import Reply, is_module
from hybridagi_steps.running.stopping import RunStopped, Stop, no_exit, own_cancellation

_log = logging.getLogger("hybridagi_steps")
_GRACE_SECONDS = 2.0
"""How long a cancelled program may take to clean up before it is left alone."""
_THREAD_SECONDS = 0.5
"""The same for a program in a thread, which nothing tells that it is cancelled."""


@dataclass(slots=True)
class Start:
    """What a run begins with."""

    prepare: Callable[[ActiveRun], Prompt]
    """Stores the user's message if it is new and returns what the program is given; may block."""
    finish: Callable[[ActiveRun], None] | None = None
    """Called once the answer is stored, such as to adopt its branch; may block."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    """Said with RUN_STARTED."""


@dataclass(slots=True)
class Ending:
    """How a run ended."""

    status: str
    """completed, failed or cancelled."""
    reason: str
    error: BaseException | None = None


_FINAL = {
    "completed": StepEventType.RUN_COMPLETED,
    "failed": StepEventType.RUN_FAILED,
    "cancelled": StepEventType.RUN_CANCELLED,
}


async def execute(run: ActiveRun, agent: Agent, start: Start) -> None:
    """Run a program to its end; what goes wrong becomes events."""
    run.emit(StepEventType.RUN_STARTED, data={"depth": run.info.depth, **start.data})
    clock = None
    if (seconds := run.config.timeout_seconds) is not None:
        stop = Stop("timeout", f"the run took longer than {seconds:g} s.")
        clock = asyncio.get_running_loop().call_later(seconds, run.stop, stop)
    work = asyncio.get_running_loop().create_task(_work(run, agent, start))
    try:
        ending = await _ended(run, agent, work)
    except Exception as error:  # a defect of ours must still end the run
        _log.exception("run %s could not be ended", run.info.run_id)
        ending = Ending("failed", "error", error)
    finally:
        if clock is not None:
            clock.cancel()
    await _close(run, ending)


async def _work(run: ActiveRun, agent: Agent, start: Start) -> None:
    await run.tell("on_run_start")
    run.check()
    prompt = await in_thread(partial(start.prepare, run))
    with no_exit(agent.name), own_cancellation(agent.name):
        reply = await answer(run, agent, prompt)
    run.check()
    if reply is None or _is_empty(run, agent, reply):
        raise MessageError(
            f"{agent.name} returned nothing that can be an answer; return a text, a message, or a "
            "Prediction with an output field."
        )
    # In one go: a run that is stopped now has both or neither.
    await in_thread(partial(_conclude, run, reply, start.finish))


def _is_empty(run: ActiveRun, agent: Agent, reply: Reply) -> bool:
    """Whether a callable said nothing and called no tool; a module's empty field is an answer."""
    if is_module(agent.program) or reply.content or reply.tool_calls or reply.outputs:
        return False
    return not any(step.has_tool_calls() for step in run.turn.messages)


async def _ended(run: ActiveRun, agent: Agent, work: asyncio.Task[None]) -> Ending:
    """Wait for the work, or stop it; then leave a whole turn."""
    stopping = asyncio.get_running_loop().create_task(run.stop_requested.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # the event loop is closing
        run.stop(Stop("cancelled", "the event loop was closed."))
    stopping.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=_GRACE_SECONDS)
        await run.threads.ended(_THREAD_SECONDS)
    error = _error_of(work)
    if error is None and work.done() and not work.cancelled():
        return Ending("completed", "completed")
    await in_thread(partial(_close_calls, run))
    last_word = None
    if run.config.termination_summary and run.stopped is not None and run.stopped.is_limit:
        last_word = await summary(run, agent, run.stopped.message)
    return await in_thread(partial(_cut_short, run, error, last_word))


def _close_calls(run: ActiveRun) -> None:
    """Answer open calls."""
    try:
        run.turn.close_open_calls()
    except Exception as problem:
        if problem is not run.turn.lost:  # that is told of at the end, once
            run.error("storage", problem)


def _error_of(work: asyncio.Task[None]) -> BaseException | None:
    return work.exception() if work.done() and not work.cancelled() else None


def _conclude(run: ActiveRun, reply: Reply, finish: Callable[[ActiveRun], None] | None) -> None:
    """Store the answer, then do what is to be done with it."""
    _store_answer(run, reply)
    if finish is not None:
        finish(run)


def _store_answer(run: ActiveRun, reply: Reply) -> None:
    run.turn.close_open_calls()
    root = _program_end(run, Ending("completed", "completed"))
    metadata: dict[str, Any] = {"outputs": reply.outputs} if reply.outputs else {}
    try:
        run.turn.store_answer(
            reply.content,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            agent_step_id=None if root is None else str(root.id),
            metadata={**metadata, "run": {"status": "completed", "reason": "completed"}},
        )
    except BaseException:
        run.turn.ended = False  # it has still to say that it failed
        raise
    run.turn.answered = True


def _cut_short(run: ActiveRun, error: BaseException | None, last_word: str | None) -> Ending:
    """Leave a whole turn behind a run that did not complete; return how it ended."""
    ending = _ending_of(run, error)
    if run.turn.answered and run.stopped is not None and error is None:
        # It was stopped after its answer was stored: nothing is missing.
        return Ending("completed", "completed")
    try:
        _store_last_words(run, ending, last_word)
    except Exception as problem:
        if ending.error is None:
            ending = Ending("failed", "storage", problem)
        for refused in (problem, *run.turn.rescue()):
            if refused is not ending.error:  # that one is told of when the run ends
                run.error("storage", refused)
    return ending


def _store_last_words(run: ActiveRun, ending: Ending, last_word: str | None) -> None:
    """Keep what was being said, and what was said of it; then the steps behind it."""
    _, text = run.drafts.newest_text()
    how = {"status": ending.status, "reason": ending.reason}
    if text and not run.turn.answered:
        step_id = _partial_step(run, text)
        note = {"partial": True, "run": how}
        if last_word is None:
            _program_end(run, ending)
        run.turn.store_answer(text, agent_step_id=step_id, metadata=note)
    root = _program_end(run, ending)
    if last_word is not None:
        root_id = None if root is None else str(root.id)
        note = {"summary": True, "run": how}
        run.turn.store_answer(last_word, agent_step_id=root_id, metadata=note)
    run.turn.store_rest()


def _ending_of(run: ActiveRun, error: BaseException | None) -> Ending:
    stop = error.stop if isinstance(error, RunStopped) else run.stopped
    if stop is not None and (error is None or isinstance(error, RunStopped)):
        if stop.reason == "cancelled":
            return Ending("cancelled", "cancelled")
        problem = stop.error
        if stop.is_limit:
            problem = LimitReachedError(stop.message, limit=stop.reason)
        return Ending("failed", stop.reason, problem)
    if error is None:
        return Ending("cancelled", "cancelled")
    return Ending("failed", "error", error)


def _partial_step(run: ActiveRun, text: str) -> str:
    """Mark the AgentStep of an answer that was cut short; return its id."""
    for step in reversed(run.turn.steps.waiting()):
        unfinished = step.status in ("cancelled", "error")
        if step.step_type is AgentStepType.Action and unfinished and step.tool is None:
            step.status, step.outputs = "partial", {**(step.outputs or {}), "text": text}
            return str(step.id)
    inputs: dict[str, Any] = {"purpose": "answer", "arguments": {}}
    return str(run.add_step(AgentStepType.Action, inputs, {"text": text}, "partial").id)


def _program_end(run: ActiveRun, ending: Ending) -> AgentStep | None:
    """Say in the outermost ProgramEnd how the run ended; write one if the program could not."""
    root = run.turn.steps.root_call
    if root is None or run.turn.ended:
        return run.turn.steps.root_end
    if run.turn.steps.root_end is None:
        status: StepStatus = "cancelled" if ending.status == "cancelled" else "error"
        outputs = {} if ending.error is None else error_fields(ending.error)
        inputs = {"program": root.program}
        run.add_step(AgentStepType.ProgramEnd, inputs, outputs, status)
    end = run.turn.steps.root_end
    if end is not None:
        how = {"status": ending.status, "reason": ending.reason}
        end.metadata = {**(end.metadata or {}), "run": how}
        if ending.status != "completed":  # the program tells how it was cut off, not why
            told = {key: value for key, value in (end.outputs or {}).items() if key != "error"}
            end.outputs = told if ending.error is None else {**told, **error_fields(ending.error)}
    run.turn.ended = True
    return end


async def _close(run: ActiveRun, ending: Ending) -> None:
    """Say how the run ended."""
    await in_thread(run.turn.close)
    run.consents.close()
    metrics = run.meter.run_metrics()
    if run.parent is not None:
        run.parent.meter.nested(metrics)
    data: dict[str, Any] = {
        "status": ending.status,
        "termination_reason": ending.reason,
        "metrics": metrics.model_dump(mode="json", exclude_none=True),
        "branch_id": run.line.branch_id,
        "last_sequence": run.line.last,
    }
    if ending.error is not None:
        data["error"] = shown_error(ending.error, run.line.memory.redact)
        run.error("run", ending.error)
        await run.tell("on_error", ending.error)
    if run.recorder.errors:
        data["recording_errors"] = [str(problem) for problem in run.recorder.errors]
    await run.tell("on_run_end", ending.status, data)
    await run.hooks.drain()
    if run.when_ended is not None:
        run.when_ended()
    run.emit(_FINAL[ending.status], data=data)


_SECONDS = 60.0
_INSTRUCTIONS = (
    "The work above was stopped before it was finished. In a few sentences, say what was found so "
    "far and what is still open. Call no tools."
)


async def summary(run: ActiveRun, agent: Agent, reason: str) -> str | None:
    """Return a summary of the turn so far; None when it cannot be had, which is reported."""
    steps = run.turn.messages
    if not steps:
        return None
    earlier = ContextBuilder(budget=run.config.context_budget or 2**31, recent=None, k=0)
    try:
        messages = earlier.build(steps=steps).messages
        async with asyncio.timeout(_SECONDS):
            return await _asked(run, agent, messages, reason)
    except Exception as error:  # the run has failed anyway; its end must not depend on this
        run.error("summary", error)
        return None


async def _asked(run: ActiveRun, agent: Agent, messages: Messages, reason: str) -> str | None:
    if not called.is_module(agent.program):
        run.meter.ask()
        asked = [*messages, {"role": "user", "content": f"{_INSTRUCTIONS}\n\n{reason}"}]
        reply = called.reply_of(await said(run, agent.program, asked), None)
        return (reply.content or None) if reply is not None else None
    models = [predict.lm for predict in agent.program.predictors() if predict.lm is not None]
    adapter = with_session(dspy.settings.get("adapter"), messages)
    counting = SpendingCallback(run)
    with overriding(adapter=adapter, callbacks=[counting], send_stream=None, stream_listeners=[]):
        signature = cast("Any", dspy.Signature("stopped_because -> summary", _INSTRUCTIONS))
        predict = dspy.Predict(signature)
        answer = await predict.acall(stopped_because=reason, lm=models[-1] if models else None)
    return str(answer.summary) if answer.summary else None
