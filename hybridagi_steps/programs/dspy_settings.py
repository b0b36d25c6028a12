"""Overriding one DSPy setting for the code that runs from here.

`dspy.context` copies every setting of the moment, so that a `dspy.configure` inside it shows no
effect. Recording must not be noticed like that: this overrides what it is given and nothing else.
DSPy carries the override into its threads and tasks.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from dspy.dsp.utils.settings import thread_local_overrides

_log = logging.getLogger("hybridagi_steps")


@contextmanager
def overriding(**settings: Any) -> Generator[None]:
    """Override settings inside the block."""
    token = override(**settings)
    try:
        yield
    finally:
        try:
            thread_local_overrides.reset(token)
        except ValueError:
            # The block was left in another context than it was entered in, as some frameworks do
            # with generator fixtures; the override ends with the context it was made in.
            _log.debug("recording: a block was left in another context than it was entered in.")


def override(**settings: Any) -> Any:
    """Override settings until the block around this ends; return the token that undoes it."""
    current = thread_local_overrides.get()
    return thread_local_overrides.set(type(current)({**current, **settings}))
