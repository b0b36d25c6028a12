"""Trial runs: what runs inside `compile` and `Evaluate` is marked, however it is recorded.

An optimiser runs a program hundreds of times, and none of that is the user's own history. A
`Recorded` program meets its recorder only inside such a run, too late to see that it began. So the
two DSPy classes that begin trials carry one callback of ours as a class attribute, where DSPy looks
for an instance's callbacks; it puts the scope into DSPy's settings, which DSPy itself carries into
threads and tasks. It costs nothing outside of trials and records nothing itself.
"""

# ruff: noqa: ARG002 - the handlers' signatures are DSPy's
from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.teleprompt.teleprompt import Teleprompter
from dspy.utils.callback import BaseCallback

_SETTING = "hybridagi_steps_scope"


def current_scope() -> str | None:
    """Return the scope of the trial that is running here, None in the user's own history."""
    return dspy.settings.get(_SETTING)


class ScopeMarker(BaseCallback):
    """Names the outermost evaluation or compilation for everything that runs inside it."""

    def __init__(self) -> None:
        self._entered: dict[str, AbstractContextManager[None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> ScopeMarker:
        return self

    def on_evaluate_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Enter `evaluate:<id>`."""
        self._enter(call_id, f"evaluate:{call_id}")

    def on_compile_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Enter `compile:<optimiser>:<id>`."""
        self._enter(call_id, f"compile:{type(instance).__name__}:{call_id}")

    def _enter(self, call_id: str, scope: str) -> None:
        if current_scope() is not None:
            return
        override = overriding(**{_SETTING: scope})
        override.__enter__()
        self._entered[call_id] = override

    def _leave(self, call_id: str, outputs: object, exception: BaseException | None = None) -> None:
        """Leave it."""
        override = self._entered.pop(call_id, None)
        if override is not None:
            override.__exit__(None, None, None)

    on_evaluate_end = on_compile_end = _leave


def watch_trials() -> None:
    """Let DSPy's evaluations and optimisers name their trials; doing so twice changes nothing."""
    for begins_trials in (dspy.Evaluate, Teleprompter):
        known: list[Any] = getattr(begins_trials, "callbacks", [])
        if not any(isinstance(callback, ScopeMarker) for callback in known):
            begins_trials.callbacks = [*known, ScopeMarker()]


_log = logging.getLogger("hybridagi_steps")


@contextmanager
def overriding(**settings: object) -> Generator[None]:
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


def override(**settings: object) -> Any:
    """Override settings until the block around this ends; return the token that undoes it."""
    current = thread_local_overrides.get()
    return thread_local_overrides.set(type(current)({**current, **settings}))
