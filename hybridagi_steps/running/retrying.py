"""Retry and edit as functions, with the session's repository named; see `StepRunner.retry`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.sessions import SessionRepository


async def retry_from_sequence(
    session_id: str, sequence: int, repo: SessionRepository, runner: StepRunner
) -> AsyncGenerator[StepEvent]:
    """Keep the user's message at `sequence` and answer it once more; nothing is lost.

    Raises:
        UnknownSessionError: No such session.
        UnknownSequenceError: It has no message at `sequence`.
        MessageError: The message there is not a user's.
        SequenceConflictError: The session has a run in flight.
    """
    async with aclosing(runner.retry(session_id, sequence, repository=repo)) as events:
        async for event in events:
            yield event


async def edit_from_sequence(
    session_id: str, sequence: int, message: Any, repo: SessionRepository, runner: StepRunner
) -> AsyncGenerator[StepEvent]:
    """Replace the user's message at `sequence` and answer the new one; nothing is lost.

    Raises:
        As `retry_from_sequence`.
    """
    async with aclosing(runner.edit(session_id, sequence, message, repository=repo)) as events:
        async for event in events:
            yield event
