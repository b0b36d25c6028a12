"""Programs without a model, for a cluster to play with: one says again what was said, in words.

A word takes a moment, so that a stream can be watched, and whoever carries it out be killed. The
other one asks for a tool again and again, each time with messages that are stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import hybridagi_steps as hs

WORD_SECONDS = 0.02
ERRAND_SECONDS, ERRANDS = 3.0, 10


async def assistant(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Answer the last message."""
    yield "You said:"
    for word in str(messages[-1]["content"]).split():
        await asyncio.sleep(WORD_SECONDS)
        yield f" {word}"


def errands(memory: hs.StepMemory) -> hs.StepRunner:
    """Return a runner whose program goes on errands, one after the other, for half a minute."""
    return hs.StepRunner(_errand, memory, tools=[walk])


async def walk(place: int) -> str:
    """Go to a place."""
    await asyncio.sleep(ERRAND_SECONDS)
    return f"was at {place}"


def _errand(messages: list[dict[str, Any]]) -> dict[str, Any] | str:
    place = sum(message["role"] == "tool" for message in messages)
    if place == ERRANDS:
        return "All is well."
    function = {"name": "walk", "arguments": json.dumps({"place": place})}
    call = {"id": f"call-{place}", "type": "function", "function": function}
    return {"role": "assistant", "content": f"On to {place}.", "tool_calls": [call]}
