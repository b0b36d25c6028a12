"""Settings of ours among DSPy's: overridden for a block, carried by DSPy into threads and tasks.

`dspy.settings.callbacks` belongs to the user, who may set it, override it and save it inside a
recorded block. Our callbacks stand under a key of their own, and two places of DSPy learn of it:
what calls callbacks finds ours beside the user's, and a copy of the settings leaves our keys out.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import dspy
from dspy.dsp.utils.settings import Settings, thread_local_overrides
from dspy.utils import callback

TRIALS = "hybridagi_steps_trials"
"""The setting that holds what is being tried: a `recording.trials.Level`."""

CALLBACKS = "hybridagi_steps_callbacks"
"""The setting that holds our callbacks, in the order they are called, before the user's."""
RUN = "hybridagi_steps_run"
"""The setting that carries the run of a `StepRunner` to the code inside it."""
_PREFIX = "hybridagi_steps"
"""How the names of all our settings begin."""

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


def own_callbacks() -> Sequence[Any]:
    """Return our callbacks here, those that others of them hide included."""
    return dspy.settings.get(CALLBACKS, ())


def active_callbacks() -> list[Any]:
    """Return what a call that begins here is reported to: our callbacks, then the user's.

    A callback may have `hides(other)`: of two recorders of one memory only the inner one is active.
    """
    known: list[Any] = dspy.settings.get("callbacks", [])
    own = own_callbacks()
    if not own:
        return known
    inner_first = [each for each in reversed(own) if hasattr(each, "hides")]
    hidden = {
        id(outer)
        for place, each in enumerate(inner_first)
        for outer in (*inner_first[place + 1 :], *known)
        if each.hides(outer)
    }
    return [each for each in (*own, *known) if id(each) not in hidden]


class _DispatchSettings:
    """DSPy's settings as its dispatch of callbacks reads them."""

    def get(self, key: str, default: object = None) -> Any:
        return active_callbacks() if key == "callbacks" else dspy.settings.get(key, default)

    def __getattr__(self, name: str) -> Any:
        return active_callbacks() if name == "callbacks" else getattr(dspy.settings, name)


class _DispatchModule:
    """DSPy as its dispatch of callbacks sees it."""

    settings = _DispatchSettings()

    def __getattr__(self, name: str) -> Any:
        return getattr(dspy, name)


def join_dispatch() -> None:
    """Have DSPy call our callbacks and keep our settings out of copies; twice changes nothing."""
    dispatch: Any = callback
    if isinstance(dispatch.dspy, _DispatchModule):
        return
    dispatch.dspy = _DispatchModule()
    whole = Settings.copy

    @functools.wraps(whole)
    def copy(settings: Any) -> Any:
        copied = whole(settings)
        for name in [name for name in copied if name.startswith(_PREFIX)]:
            del copied[name]
        return copied

    cast("Any", Settings).copy = copy


join_dispatch()
