"""Clocks for noisy machines: CPU beside wall time, rivals interleaved, ratios taken pair by pair.

Two rivals measured one after the other may meet two different machines, so they take turns, round
by round, and what counts is the median of the ratios of neighbours. CPU time is this process's own,
all its threads; waiting for a disk shows in wall time only.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Literal, TypeVar

from hybridagi_steps.errors import InvalidSettingError

Clock = Literal["cpu", "wall"]
"""Which time: `cpu` of this process, or `wall`."""

Material = TypeVar("Material")

Samples = dict[str, list["Sample"]]
"""What each rival took, round by round."""


@dataclass(frozen=True)
class Sample:
    """What one call took, in seconds."""

    cpu: float
    wall: float

    def of(self, clock: Clock) -> float:
        """Return the time on one clock, in seconds."""
        return self.cpu if clock == "cpu" else self.wall


class Stopwatch(AbstractContextManager["Stopwatch"]):
    """Measures the body of a with-statement."""

    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        cpu = time.process_time() - self._cpu
        self.sample = Sample(cpu, time.perf_counter() - self._wall)


def timed(function: Callable[[], object]) -> Sample:
    """Call once and return what it took."""
    with Stopwatch() as watch:
        function()
    return watch.sample


def interleaved(
    rivals: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    before: Callable[[str], object] | None = None,
) -> Samples:
    """Let rivals take turns; return what each round took.

    Args:
        rivals: What to call, by name.
        rounds: How often each is measured.
        warm_up: Rounds that are not counted.
        before: Called with a rival's name before each of its turns, outside the clock.

    Raises:
        InvalidSettingError: There is no round to measure.
    """
    if rounds < 1:
        raise InvalidSettingError(f"{rounds} rounds measure nothing; ask for more.")
    samples: Samples = {name: [] for name in rivals}
    with _old_objects_left_alone():
        for number in range(warm_up + rounds):
            for name, function in rivals.items():
                if before is not None:
                    before(name)
                sample = timed(function)
                if number >= warm_up:
                    samples[name].append(sample)
    return samples


def in_turns(
    rivals: Mapping[str, Callable[[Material], object]],
    made: Callable[[int], Material],
    rounds: int,
    *,
    warm_up: int = 1,
) -> Samples:
    """Let rivals take turns, each with what is made for its turn outside the clock.

    Args:
        rivals: What to call, by name.
        made: Makes what all of them get in turn 0, 1, …; each gets its own.
        rounds: How often each is measured.
        warm_up: Rounds that are not counted.
    """
    turns = {name: count() for name in rivals}
    waiting: list[Material] = []

    def working(rival: Callable[[Material], object]) -> Callable[[], object]:
        return lambda: rival(waiting.pop())

    return interleaved(
        {name: working(rival) for name, rival in rivals.items()},
        rounds,
        warm_up=warm_up,
        before=lambda name: waiting.append(made(next(turns[name]))),
    )


@contextmanager
def _old_objects_left_alone() -> Generator[None]:
    """Keep the garbage collector to what is made from now on.

    Else it would walk through every imported library now and then, in whosever turn that falls.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def typical(samples: list[Sample], clock: Clock, *, per: int = 1) -> float:
    """Return the median time of one of `per` equal parts of a call, in microseconds."""
    return median(sample.of(clock) for sample in samples) / per * 1e6


def fastest(samples: list[Sample], clock: Clock, *, per: int = 1) -> float:
    """Return the least time of one of `per` equal parts of a call, in microseconds."""
    return min(sample.of(clock) for sample in samples) / per * 1e6


def ratio(ours: list[Sample], theirs: list[Sample], clock: Clock) -> float:
    """Return the median over rounds of our time in units of theirs."""
    pairs = zip(ours, theirs, strict=True)
    return median(a.of(clock) / b.of(clock) for a, b in pairs)


def excess(ours: list[Sample], theirs: list[Sample], *, per: int = 1) -> dict[str, float]:
    """Return what our calls take over theirs, for one of `per` equal parts, in microseconds.

    The median over rounds on both clocks; and the CPU between the fastest rounds, which a busy
    machine disturbs least.
    """
    clocks: tuple[Clock, ...] = ("cpu", "wall")
    pairs = list(zip(ours, theirs, strict=True))
    found = {
        f"{clock}_us": median(a.of(clock) - b.of(clock) for a, b in pairs) / per * 1e6
        for clock in clocks
    }
    least = fastest(ours, "cpu", per=per) - fastest(theirs, "cpu", per=per)
    return {**found, "cpu_us_least": least}
