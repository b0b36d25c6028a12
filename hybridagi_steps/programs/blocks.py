"""Where a recording stands: among DSPy's callbacks, from where a block is entered until it is left.

DSPy keeps its callbacks in a context variable. Blocks need not be left in the order they were
entered in (generators that take turns), nor where they were entered (fixtures, tasks). So a block
that is left takes away its own recorder and no other, wherever it finds itself, and closes it: one
that stayed behind in another context takes up nothing more. Whatever it stood for has its place
back.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy
from dspy.dsp.utils.settings import main_thread_config, thread_local_overrides

from hybridagi_steps.programs.dspy_settings import override
from hybridagi_steps.recording.call_tree import Labels, Run
from hybridagi_steps.recording.recorder import StepRecorder


class Block:
    """One block of code that is recorded as one run, from when this is made until `leave`.

    Its recorder stands in the place of any recorder on the same memory, and joins the run of that.
    """

    def __init__(self, memory: Any, labels: Labels) -> None:
        found = [_here(c) for c in dspy.settings.get("callbacks", [])]
        known = [c for c in found if c is not None]
        replaced = [c for c in known if isinstance(c, StepRecorder) and c.memory is memory]
        others = [c for c in known if c not in replaced]
        for recorder in replaced:
            recorder.replaces = tuple(_without_closed(recorder.replaces))
        self.recorder = (replaced[0] if replaced else StepRecorder(memory)).for_run(labels)
        self.recorder.replaces = tuple(replaced)
        self._open = [c for c in known if not _is_closed(c)]
        self._standing = [*others, self.recorder]
        self._before = thread_local_overrides.get()
        override(callbacks=list(self._standing))
        self._own = thread_local_overrides.get()

    @property
    def run(self) -> Run:
        """The run that the block is recorded as."""
        run = self.recorder.run
        assert run is not None  # noqa: S101 - for_run gives one
        return run

    @property
    def stands_here(self) -> bool:
        """Whether the running code is in the block, and in no other on the same memory."""
        return any(each is self.recorder for each in dspy.settings.get("callbacks", []))

    def leave(self) -> None:
        """Record nothing more, and take the recorder away from here."""
        self.recorder.closed = True
        current = thread_local_overrides.get()
        untouched = current is self._own and current["callbacks"] == self._standing
        if untouched and not any(_is_closed(c) for c in self._open):
            thread_local_overrides.set(self._before)
        elif any(_is_closed(c) for c in current.get("callbacks", ())):
            _take_closed_away(current)
        if self.recorder in main_thread_config["callbacks"]:  # configured while it stood there
            left = _without_closed(main_thread_config["callbacks"])
            main_thread_config["callbacks"] = left

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *problem: object) -> None:
        self.leave()


def _take_closed_away(settings: Any) -> None:
    """Leave what others put among the callbacks meanwhile, and the recorders still open."""
    left = _without_closed(settings["callbacks"])
    fewer = {**settings, "callbacks": left}
    if left == main_thread_config["callbacks"]:
        del fewer["callbacks"]  # what is configured later is to count here again
    thread_local_overrides.set(type(settings)(fewer))


def _without_closed(callbacks: Sequence[Any]) -> list[Any]:
    """Return callbacks with each closed recorder's place given back to what it had replaced."""
    left: list[Any] = []
    for each in callbacks:
        for callback in _without_closed(each.replaces) if _is_closed(each) else [each]:
            if not any(callback is known for known in left):
                left.append(callback)
    return left


def _is_closed(callback: Any) -> bool:
    return isinstance(callback, StepRecorder) and callback.closed


def _here(callback: Any) -> Any:
    return callback.here if isinstance(callback, StepRecorder) else callback
