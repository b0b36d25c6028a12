"""The last word of a run that hit a limit: one more LM call that says how far it came.

It is asked for only when the runner is configured so, costs one call beyond the limit, and never
turns a run that failed into one that completed.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportCallIssue=false

from __future__ import annotations

import asyncio
from typing import Any, cast

import dspy

from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.programs.dspy_settings import overriding
from hybridagi_steps.running import program_adapter as called
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.answering import Agent
from hybridagi_steps.running.dspy_callback import SpendingCallback
from hybridagi_steps.running.saying import said
from hybridagi_steps.running.session_prompt import Messages, with_session

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
