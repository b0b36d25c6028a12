"""Retry and edit as functions, with the session's repository named; see `StepRunner.retry`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.running.limits import AgentSession
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.sessions.repository import SessionRepository


async def retry_from_sequence(
    session_id: str | AgentSession, sequence: int, repo: SessionRepository, runner: StepRunner
) -> AsyncGenerator[StepEvent]:
    """Keep the user's message at `sequence` and answer it once more; nothing is lost.

    Args:
        session_id: The session; an AgentSession with a user lets the run act for that one, in place
            of whom the turn was recorded for.
        sequence: Where the user's message stands.
        repo: Where the session is kept.
        runner: Runs the program.

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
    session_id: str | AgentSession,
    sequence: int,
    message: Any,
    repo: SessionRepository,
    runner: StepRunner,
) -> AsyncGenerator[StepEvent]:
    """Replace the user's message at `sequence` and answer the new one; nothing is lost.

    Args:
        session_id: As `retry_from_sequence` takes it.
        sequence: Where the user's message stands.
        message: What the user says in its place.
        repo: Where the session is kept.
        runner: Runs the program.

    Raises:
        As `retry_from_sequence`.
    """
    async with aclosing(runner.edit(session_id, sequence, message, repository=repo)) as events:
        async for event in events:
            yield event
