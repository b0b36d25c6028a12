"""A program without a model, for a cluster to play with: it says again what was said, in words.

A word takes a moment, so that a stream can be watched, and whoever carries it out be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

WORD_SECONDS = 0.02


async def assistant(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Answer the last message."""
    yield "You said:"
    for word in str(messages[-1]["content"]).split():
        await asyncio.sleep(WORD_SECONDS)
        yield f" {word}"
