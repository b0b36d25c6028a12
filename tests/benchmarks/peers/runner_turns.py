"""Our own `StepRunner` with a callable, plain or awaited, its memory's messages indexed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hybridagi_steps as hs
from hybridagi_steps.memory import StepMemory
from tests.benchmarks.corpus import messages_of
from tests.benchmarks.peers import answered


def _answered(messages: list[dict[str, Any]]) -> str:
    return answered(len(messages))


async def _awaited(messages: list[dict[str, Any]]) -> str:
    return answered(len(messages))


class RunnerTalker:
    """One memory and one runner; turns are awaited in one event loop that stays open."""

    settings = "WAL, synchronous=NORMAL; what fits into 8,000 tokens is sent; steps recorded, too"
    config = hs.StepRunnerConfig()
    program = staticmethod(_answered)

    def __init__(self, folder: Path) -> None:
        self._memory = StepMemory(folder / "steps.db", embedder="hashing", durability="normal")
        self._runner = hs.StepRunner(self.program, self._memory, config=self.config)
        self._loop = asyncio.Runner()

    def begin(self, session: str, said: Sequence[str]) -> None:
        """Commit messages, and let their words be made."""
        self._memory.repository().store.commit(session, messages_of(session, said))
        self._memory.flush()

    def turn(self, session: str, message: str) -> str:
        """Run one message to its answer."""
        return self._loop.run(self._runner.run(session, message)).text

    def close(self) -> None:
        """Close the event loop and the memory."""
        self._loop.close()
        self._memory.close()


class WholeTalker(RunnerTalker):
    """The same where a model is sent all that was said."""

    settings = "WAL, synchronous=NORMAL; all messages are sent; steps recorded, too"
    config = hs.StepRunnerConfig(context_budget=None, max_history=10**6)


class AwaitedTalker(RunnerTalker):
    """The same with a coroutine function, as a client of a model is: it needs no thread."""

    program = staticmethod(_awaited)
