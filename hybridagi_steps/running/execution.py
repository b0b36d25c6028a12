"""One run from its first event to its last: prepare, answer, store, and end truthfully.

Whatever happens, a run ends once, with one final event, and the turn it leaves is whole: open calls
are answered, what was said is kept as a partial message, and the steps behind it are stored.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import dspy

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.errors import LimitReachedError, MessageError
from hybridagi_steps.recording.scopes import CALLBACKS, overriding
from hybridagi_steps.recording.step_shapes import error_fields
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.answering import Messages, Prompt, answer, with_session
from hybridagi_steps.running.model_events import SpendingCallback
from hybridagi_steps.running.program_adapter import Agent, Reply, call_function, reply_of
from hybridagi_steps.running.starting import Start
from hybridagi_steps.running.stopping import RunStopped, Stop, no_exit, own_cancellation
from hybridagi_steps.running.streaming import shown_error

_log = logging.getLogger("hybridagi_steps")
_GRACE_SECONDS = 2.0
"""How long a cancelled program may take to clean up before it is left alone."""
_THREAD_SECONDS = 0.5
"""The same for a program in a thread, which nothing tells that it is cancelled."""
_SUMMARY_SECONDS = 60.0
_SUMMARY = (
    "The work above was stopped before it was finished. In a few sentences, say what was found so "
    "far and what is still open. Call no tools."
)
_FINAL = {
    "completed": StepEventType.RUN_COMPLETED,
    "failed": StepEventType.RUN_FAILED,
    "cancelled": StepEventType.RUN_CANCELLED,
    "paused": StepEventType.RUN_PAUSED,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    status: str
    """completed, failed, cancelled or paused."""
    reason: str
    error: BaseException | None = None

    @property
    def shown(self) -> dict[str, str]:
        """What steps and messages say of it."""
        return {"status": self.status, "reason": self.reason}


_COMPLETED, _PAUSED = Ending("completed", "completed"), Ending("paused", "paused")


async def execute(run: ActiveRun, agent: Agent, start: Start, began: float) -> None:
    """Run a program to its end; what goes wrong becomes events.

    Args:
        run: The run, which has begun.
        agent: Its program.
        start: What it begins with.
        began: When, by the event loop's clock.
    """
    loop = asyncio.get_running_loop()
    if (seconds := run.config.timeout_seconds) is not None:
        stop = Stop("timeout", f"the run took longer than {seconds:g} s.")
        run.switch.limit(began + seconds, partial(run.stop, stop))
    try:
        ending = await _ended(run, agent, start, loop.create_task(_work(run, agent, start)))
    except Exception as error:  # a defect of ours must still end the run
        _log.exception("run %s could not be ended", run.info.run_id)
        ending = Ending("failed", "error", error)
    finally:
        run.switch.end_limit()
    await _close(run, ending)


async def _work(run: ActiveRun, agent: Agent, start: Start) -> None:
    if (prompt := start.prepared) is None:
        await run.hooks.tell("on_run_start")
        run.check()
        prompt = await in_thread(partial(_prepared_late, run, start))
    run.check()
    if isinstance(prompt, BaseException):
        start.prepared = None
        raise prompt
    with no_exit(agent.name), own_cancellation(agent.name):
        reply = await answer(run, agent, prompt)
    run.check()
    if reply is None or _is_empty(run, agent, reply):
        raise MessageError(
            f"{agent.name} returned nothing that can be an answer; return a text, a message, or a "
            "Prediction with an output field."
        )
    # In one go: a run that is stopped now has both or neither.
    with run.events.held():
        await in_thread(partial(_conclude, run, reply, start))


def _prepared_late(run: ActiveRun, start: Start) -> Prompt:
    """Prepare a run of which hooks have heard; they may have taken time since the line was read."""
    run.line.look_again()
    return start.prepare(run)


def _is_empty(run: ActiveRun, agent: Agent, reply: Reply) -> bool:
    """Whether a callable said nothing and called no tool; a module's empty field is an answer."""
    if agent.is_module or reply.content or reply.tool_calls or reply.outputs:
        return False
    return not any(step.has_tool_calls() for step in run.turn.messages)


async def _ended(run: ActiveRun, agent: Agent, start: Start, work: asyncio.Task[None]) -> Ending:
    """Wait for the work, or stop it; then leave a whole turn, or one that can be gone on with."""
    try:
        await asyncio.wait({work, run.switch.requested}, return_when=asyncio.FIRST_COMPLETED)
        if run.switch.is_pausing:  # what else is in flight ends first
            await asyncio.wait({run.switch.requested})
    except asyncio.CancelledError:  # the event loop is closing
        run.stop(Stop("cancelled", "the event loop was closed."))
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=_GRACE_SECONDS)
        await run.threads.ended(_THREAD_SECONDS)
    error = None
    if work.done() and not work.cancelled() and (error := work.exception()) is None:
        return _COMPLETED
    if run.switch.is_pausing and (error is None or isinstance(error, RunStopped)):
        return await in_thread(partial(_paused, run, agent, start))
    await in_thread(partial(_close_calls, run))
    last_word = None
    if run.config.termination_summary and run.stopped is not None and run.stopped.is_limit:
        last_word = await _summary(run, agent, run.stopped.message)
    return await in_thread(partial(_cut_short, run, error, last_word))


def _paused(run: ActiveRun, agent: Agent, start: Start) -> Ending:
    """Leave a turn that is gone on with once its open calls are answered."""
    try:
        run.questions.arrange(call.step_id for call in run.turn.open_calls())
        if run.line.root_call is None:  # a call of an earlier attempt waits on
            inputs: dict[str, Any] = {
                "program": agent.name,
                "purpose": agent.purpose,
                "arguments": {},
            }
            run.add_step(AgentStepType.ProgramCall, inputs, {}, "ok")
        if (end := _program_end(run, _PAUSED)) is not None:
            how = {**_PAUSED.shown, "waiting": run.questions.all()}
            end.metadata = {**(end.metadata or {}), "run": how}
        run.store_open_calls()
        run.line.commit()
        if start.finish is not None:
            start.finish()
    except Exception as problem:
        return Ending("failed", "storage", problem)
    return _PAUSED


def _close_calls(run: ActiveRun) -> None:
    """Answer open calls."""
    try:
        run.turn.close_open_calls()
    except Exception as problem:
        if problem is not run.line.lost:  # that is told of at the end, once
            run.events.error("storage", problem)


def _conclude(run: ActiveRun, reply: Reply, start: Start) -> None:
    """Store the answer, then do what is to be done with it."""
    run.turn.close_open_calls()
    root = _program_end(run, _COMPLETED)
    metadata: dict[str, Any] = {"outputs": reply.outputs} if reply.outputs else {}
    try:
        run.turn.store_answer(
            reply.content,
            reasoning_content=reply.reasoning,
            tool_calls=reply.tool_calls,
            agent_step_id=None if root is None else str(root.id),
            metadata={**metadata, "run": _COMPLETED.shown},
        )
    except BaseException:
        run.line.ended = False  # it has still to say that it failed
        raise
    run.turn.answered = True
    if start.finish is not None:
        start.finish()


def _cut_short(run: ActiveRun, error: BaseException | None, last_word: str | None) -> Ending:
    """Leave a whole turn behind a run that did not complete; return how it ended."""
    ending = _ending_of(run, error)
    if run.turn.answered and run.stopped is not None and error is None:
        return _COMPLETED  # it was stopped after its answer was stored: nothing is missing
    try:
        _store_last_words(run, ending, last_word)
    except Exception as problem:
        if ending.error is None:
            ending = Ending("failed", "storage", problem)
        for refused in (problem, *run.line.rescue()):
            if refused is not ending.error:  # that one is told of when the run ends
                run.events.error("storage", refused)
    return ending


def _store_last_words(run: ActiveRun, ending: Ending, last_word: str | None) -> None:
    """Keep what was being said, and what was said of it; then the steps behind it."""
    text = run.events.newest_text()
    if text and not run.turn.answered:
        step_id = _partial_step(run, text)
        if last_word is None:
            _program_end(run, ending)
        note = {"partial": True, "run": ending.shown}
        run.turn.store_answer(text, agent_step_id=step_id, metadata=note)
    root = _program_end(run, ending)
    if last_word is not None:
        root_id = None if root is None else str(root.id)
        note = {"summary": True, "run": ending.shown}
        run.turn.store_answer(last_word, agent_step_id=root_id, metadata=note)
    run.line.commit()


def _ending_of(run: ActiveRun, error: BaseException | None) -> Ending:
    stop = error.stop if isinstance(error, RunStopped) else run.stopped
    if error is not None and not isinstance(error, RunStopped):
        return Ending("failed", "error", error)
    if stop is None or stop.reason == "cancelled":
        return Ending("cancelled", "cancelled")
    if stop.is_limit:
        return Ending("failed", stop.reason, LimitReachedError(stop.message, limit=stop.reason))
    return Ending("failed", stop.reason, stop.error)


def _partial_step(run: ActiveRun, text: str) -> str:
    """Mark the AgentStep of an answer that was cut short; return its id."""
    for step in reversed(run.line.waiting()):
        unfinished = step.status in ("cancelled", "error")
        if step.step_type is AgentStepType.Action and unfinished and step.tool is None:
            step.status, step.outputs = "partial", {**(step.outputs or {}), "text": text}
            return str(step.id)
    inputs: dict[str, Any] = {"purpose": "answer", "arguments": {}}
    return str(run.add_step(AgentStepType.Action, inputs, {"text": text}, "partial").id)


def _program_end(run: ActiveRun, ending: Ending) -> AgentStep | None:
    """Say in the outermost ProgramEnd how the run ended; write one if the program could not."""
    line = run.line
    if line.root_call is None or line.ended:
        return line.root_end
    if line.root_end is None:
        status: StepStatus = "cancelled" if ending.status == "cancelled" else "error"
        outputs = {} if ending.error is None else error_fields(ending.error)
        run.add_step(AgentStepType.ProgramEnd, {"program": line.root_call.program}, outputs, status)
    if (end := line.root_end) is not None:
        end.metadata = {**(end.metadata or {}), "run": ending.shown}
        if ending.status != "completed":  # the program tells how it was cut off, not why
            outputs = {key: value for key, value in (end.outputs or {}).items() if key != "error"}
            error = {} if ending.error is None else error_fields(ending.error)
            end.outputs = {**outputs, **error}
        if ending is _PAUSED:
            end.status = "paused"
    line.ended = True
    return end


async def _close(run: ActiveRun, ending: Ending) -> None:
    if not run.line.close_at_once():
        await in_thread(run.line.close)
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
    if ending is _PAUSED:
        data["waiting"] = run.questions.all()
    run.error = ending.error
    if ending.error is not None:
        data["error"] = shown_error(ending.error, run.line.memory.redact)
        run.events.error("run", ending.error)
        await run.hooks.tell("on_error", ending.error)
    if run.recorder.errors:
        data["recording_errors"] = [str(problem) for problem in run.recorder.errors]
    await run.hooks.tell("on_run_end", ending.status, data)
    await run.hooks.drain()
    run.when_ended()
    run.events.emit(_FINAL[ending.status], data)


async def _summary(run: ActiveRun, agent: Agent, reason: str) -> str | None:
    """Return a summary of the turn so far; None when it cannot be had, which is reported."""
    steps = run.turn.messages
    if not steps:
        return None
    earlier = ContextBuilder(budget=run.config.context_budget or 2**31, recent=None, k=0)
    try:
        messages = earlier.build(steps=steps).messages
        async with asyncio.timeout(_SUMMARY_SECONDS):
            return await _asked(run, agent, messages, reason)
    except Exception as error:  # the run has failed anyway; its end must not depend on this
        run.events.error("summary", error)
        return None


async def _asked(run: ActiveRun, agent: Agent, messages: Messages, reason: str) -> str | None:
    if not agent.is_module:
        run.meter.ask()
        asked = [*messages, {"role": "user", "content": f"{_SUMMARY}\n\n{reason}"}]
        reply = reply_of(await call_function(run, agent.program, asked), None)
        return (reply.content or None) if reply is not None else None
    models = [predict.lm for predict in agent.program.predictors() if predict.lm is not None]
    adapter = with_session(dspy.settings.get("adapter"), lambda: messages)
    counting = SpendingCallback(run)
    apart: dict[str, Any] = {
        "callbacks": [],
        CALLBACKS: (counting,),
        "send_stream": None,
        "stream_listeners": [],
    }
    with overriding(adapter=adapter, **apart):
        signature = cast("Any", dspy.Signature("stopped_because -> summary", _SUMMARY))
        predict = dspy.Predict(signature)
        answer = await predict.acall(stopped_because=reason, lm=models[-1] if models else None)
    return str(answer.summary) if answer.summary else None
