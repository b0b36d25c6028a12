"""The id of a step that is spoken of before it is written.

A message that asks for a tool is stored before the tool runs, and names the step that will tell
what the tool gave. Whoever stores it announces the id here; the recorder takes it when the tool
begins. It is taken once: what the tool itself calls gets ids of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

_ANNOUNCED: ContextVar[UUID | None] = ContextVar("hybridagi_steps_announced", default=None)


@contextmanager
def announcing(step_id: UUID) -> Generator[None]:
    """Let the next tool that begins inside the block leave a step with this id."""
    token = _ANNOUNCED.set(step_id)
    try:
        yield
    finally:
        _ANNOUNCED.reset(token)


def taken_step_id() -> UUID | None:
    """Return the id announced here and forget it; None when there is none."""
    announced = _ANNOUNCED.get()
    if announced is not None:
        _ANNOUNCED.set(None)
    return announced
