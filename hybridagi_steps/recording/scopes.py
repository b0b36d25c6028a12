"""Settings of ours among DSPy's: overridden for a block, carried by DSPy into threads and tasks."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.dsp.utils.settings import thread_local_overrides

TRIALS = "hybridagi_steps_trials"
"""The setting that holds what is being tried: a `recording.trials.Level`."""

_log = logging.getLogger("hybridagi_steps")


def current_scope() -> str | None:
    """Return the scope of the trial that is running here, None in the user's own history."""
    level = dspy.settings.get(TRIALS)
    return None if level is None else level.scope


@contextmanager
def overriding(**settings: object) -> Generator[None]:
    """Override settings inside the block."""
    token = override(**settings)
    try:
        yield
    finally:
        undo(token)


def undo(token: Any) -> None:
    """End an override."""
    try:
        thread_local_overrides.reset(token)
    except ValueError:
        # The block was left in another context than it was entered in, as some frameworks do
        # with generator fixtures; the override ends with the context it was made in.
        _log.debug("recording: a block was left in another context than it was entered in.")


def override(**settings: object) -> Any:
    """Override settings until the block around this ends; return the token that undoes it."""
    current = thread_local_overrides.get()
    return thread_local_overrides.set(type(current)({**current, **settings}))
