"""Where the work of a plan is done: here, or (durable.py) by whoever takes it from a queue.

A dispatcher does an attempt of a step and remembers the few decisions that a run must not take
twice. In this process nothing outlives the run, so nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from hybridagi_steps.planning.work import Outcome, Work
from hybridagi_steps.planning.worker import StepWorker


class Dispatcher(Protocol):
    """Has work done."""

    async def do(self, work: Work) -> Outcome:
        """Have an attempt done; work of a key that was done before is not done again."""
        ...

    async def remember(self, key: str, make: Callable[[], Awaitable[str]]) -> str:
        """Return what was remembered under a key; make it first if nothing was."""
        ...

    async def known(self, key: str) -> str | None:
        """Return what was remembered under a key, None when nothing was."""
        ...


class InProcess:
    """Does all work in this process.

    Args:
        worker: Does it.
    """

    def __init__(self, worker: StepWorker) -> None:
        self._worker = worker

    async def do(self, work: Work) -> Outcome:
        """Do an attempt."""
        return await self._worker.do(work)

    async def remember(self, key: str, make: Callable[[], Awaitable[str]]) -> str:  # noqa: ARG002 - each run is the first
        """Make it."""
        return await make()

    async def known(self, key: str) -> str | None:  # noqa: ARG002
        """Know nothing of other runs."""
        return None
