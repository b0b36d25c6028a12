"""Simulates a year of namespaces with a heavy tail on databases that fill up. Knows no database.

Sizes follow Zipf's law: the namespace of rank r gets a share of 1/r of the steps. Each begins on
some day of the first half of the time and grows evenly to its size. A new one goes to the database
with the most room. One that is fuller than the mark gives namespaces away, the smallest one that is
enough; where none has room for any, a database is added. A namespace is never cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MARK, TARGET = 0.7, 0.6
"""How full a database may be before it gives namespaces away, and how full all are after that."""
MILESTONES = (0.01, 0.1, 0.25, 0.5, 1.0)
"""Shares of the steps at which the state is noted."""
_SECONDS_A_DAY = 86_400
_BUSY_SECONDS = 3_600

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one step, and one second of load, take of a database."""

    bytes_per_step: float
    append_cpu: float
    """Seconds of a database's CPU for an append."""
    wal_bytes: float
    """Of an append."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a database has."""

    disk_bytes: float
    cores: float


@dataclass
class State:
    """Where the namespaces are at a milestone."""

    steps: int
    day: int
    databases: int
    fullest: float
    emptiest: float
    moves: int
    moved_steps: int


@dataclass
class Outcome:
    """What the simulation came to."""

    states: list[State] = field(default_factory=list["State"])
    sizes: Numbers = field(default_factory=lambda: np.zeros(0))
    """Steps of each namespace in the end."""
    over: int = 0
    """Namespaces that are larger than a database may be full."""
    busiest_cores: float = 0.0
    """Cores of the busiest database in all but one in a hundred seconds of the busiest hour."""
    busiest_wal: float = 0.0
    """Bytes of write-ahead log a second that it writes then."""
    appends_per_second: float = 0.0
    """Of all, in the busiest hour."""


def shares(namespaces: int, exponent: float) -> Numbers:
    """Return the share of the steps of each namespace, largest first, by Zipf's law."""
    weights = np.arange(1, namespaces + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def simulate(
    costs: Costs,
    limits: Limits,
    *,
    namespaces: int,
    steps: int,
    days: int,
    exponent: float,
    peak: float,
    seed: int = 7,
) -> Outcome:
    """Let namespaces begin and grow, day by day, and move where a database gets too full.

    Args:
        costs: Of a step.
        limits: Of each database.
        namespaces: How many.
        steps: Of all in the end.
        days: In which they come.
        exponent: Of Zipf's law; 0 makes all alike.
        peak: How many times the average the busiest hour has.
        seed: Of what is by chance.
    """
    chance = np.random.default_rng(seed)
    sizes = shares(namespaces, exponent) * steps
    begins = chance.integers(0, max(days // 2, 1), namespaces)
    room = limits.disk_bytes / costs.bytes_per_step
    home = np.full(namespaces, -1)
    outcome = Outcome(sizes=sizes, over=int((sizes > MARK * room).sum()))
    databases, moves, moved, waiting = 1, 0, 0.0, list(MILESTONES)
    now = np.zeros(namespaces)
    for day in range(1, days + 1):
        grown = np.clip((day - begins) / (days - begins), 0.0, 1.0)
        now = sizes * grown
        used = _used(now, home, databases)
        for one in np.flatnonzero((now > 0) & (home < 0)):
            home[one] = int(used.argmin())
            used[home[one]] += now[one]
        databases, taken = _relieved(now, home, used, room, databases)
        moves, moved = moves + len(taken), moved + float(now[taken].sum())
        while waiting and now.sum() >= waiting[0] * steps * (1 - 1e-9):
            used = _used(now, home, databases) / room
            outcome.states.append(
                State(
                    steps=round(now.sum()),
                    day=day,
                    databases=databases,
                    fullest=float(used.max()),
                    emptiest=float(used.min()),
                    moves=moves,
                    moved_steps=int(moved),
                )
            )
            waiting.pop(0)
    rates = sizes / (days - begins) / _SECONDS_A_DAY * peak
    _load(outcome, costs, _used(rates, home, databases), chance)
    return outcome


def _used(amounts: Numbers, home: NDArray[np.int64], databases: int) -> Numbers:
    """Return the sum of what namespaces have, by database."""
    placed = home >= 0
    return np.bincount(home[placed], weights=amounts[placed], minlength=databases).astype(float)


def _relieved(
    now: Numbers, home: NDArray[np.int64], used: Numbers, room: float, databases: int
) -> tuple[int, list[int]]:
    """Move namespaces off databases that are too full; return how many there are, and who moved."""
    taken: list[int] = []
    for full in np.flatnonzero(used > MARK * room):
        there = sorted(np.flatnonzero(home == full), key=lambda one: now[one])
        while (excess := used[full] - TARGET * room) > 0 and len(there) > 1:
            target = int(used.argmin())
            fitting = [one for one in there if used[target] + now[one] <= TARGET * room]
            if not fitting:
                if now[there[0]] > TARGET * room:
                    break  # none fits anywhere
                used, databases = np.append(used, 0.0), databases + 1
                continue
            one = next((one for one in fitting if now[one] >= excess), fitting[-1])
            there.remove(one)
            home[one] = target
            used[target] += now[one]
            used[full] -= now[one]
            taken.append(int(one))
    return databases, taken


def _load(outcome: Outcome, costs: Costs, rates: Numbers, chance: np.random.Generator) -> None:
    """Note what the busiest database has to do in an hour of appends that come by chance."""
    arrived = chance.poisson(rates, (_BUSY_SECONDS, len(rates)))
    busiest = float(np.percentile(arrived, 99, axis=0).max())
    outcome.appends_per_second = float(rates.sum())
    outcome.busiest_cores = busiest * costs.append_cpu
    outcome.busiest_wal = busiest * costs.wal_bytes
