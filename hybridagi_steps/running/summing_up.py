"""The last word of a run that hit a limit: one more LM call that says how far it came.

It is asked for only when the runner is configured so, costs one call beyond the limit, and never
turns a run that failed into one that completed.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from typing import Any

import dspy

from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.programs.dspy_settings import overriding
from hybridagi_steps.running import programs_called as called
from hybridagi_steps.running.answering import Agent, said
from hybridagi_steps.running.run import ActiveRun

_SECONDS = 60.0
_ASK = (
    "The work above was stopped before it was finished ({reason}). In a few sentences, say what "
    "was found so far and what is still open. Call no tools."
)


async def summary(run: ActiveRun, agent: Agent, reason: str) -> str | None:
    """Return a summary of the turn so far; None when it cannot be had, which is reported."""
    steps = run.turn.messages
    if not steps:
        return None
    earlier = ContextBuilder(budget=run.config.context_budget or 2**31, recent=None, k=0)
    try:
        messages = earlier.build(steps=steps).messages
        asked = [*messages, {"role": "user", "content": _ASK.format(reason=reason)}]
        async with asyncio.timeout(_SECONDS):
            return await _asked(run, agent, asked)
    except Exception as error:  # the run has failed anyway; its end must not depend on this
        run.error("summary", error)
        return None


async def _asked(run: ActiveRun, agent: Agent, messages: list[dict[str, Any]]) -> str | None:
    if not called.is_module(agent.program):
        reply = called.reply_of(await said(run, agent.program, messages), None)
        return reply.content if reply is not None else None
    model = agent.program.get_lm() if _own_model(agent.program) else dspy.settings.lm
    if model is None:
        return None
    with overriding(callbacks=[], send_stream=None):
        run.meter.ask()
        outputs = await model.acall(messages=messages)
    run.meter.answered(model, outputs)
    first = outputs[0] if outputs else None
    text = first.get("text") if isinstance(first, dict) else first
    return str(text) if text else None


def _own_model(program: Any) -> bool:
    return any(predict.lm is not None for predict in program.predictors())
