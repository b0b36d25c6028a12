"""Writers are killed at random moments, in the middle of every operation there is."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from .harness import Ledger, Opener, Setting, Tally, opened
from .operations import EVERY, Writer
from .processes import (
    KILL,
    RENAMES,
    SENDS,
    SYNCS,
    TRUNCATES,
    UNLINKS,
    WRITES,
    Shim,
    ended_within,
    kill,
)

LANES = {"a": "default", "b": "default", "c": "alone", "d": "alone large"}
TRIALS_PER_MEMORY = 40
_IN_LARGE = ("flush", "reembed", "vacuum", "purge_run", "purge_session")
_LARGE = 2_050
"""Steps from which on an index file is kept."""


def attack(setting: Setting, open_memory: Opener = opened) -> Tally:
    """Kill writers until the time is over."""
    tally, shim, under_way = Tally(), Shim(), Counter[str]()
    turns = list(EVERY)
    setting.chance.shuffle(turns)
    while setting.going_on():
        ledger = Ledger(setting, tally, LANES, open_memory)
        fill(ledger)
        for _ in range(TRIALS_PER_MEMORY):
            focus = turns[tally.trials % len(turns)]
            if not _trial(ledger, shim, focus) or not setting.going_on():
                break
        under_way += ledger.under_way
    inside = {name: under_way[name] for name in EVERY if under_way[name]}
    tally.figures["killed inside"] = inside
    tally.figures["operations never cut"] = [name for name in EVERY if name not in inside]
    return tally


def fill(ledger: Ledger) -> None:
    """Give lane d enough steps for an index file of its own."""

    def work(writer: Writer) -> None:
        writer.memory.reembed("hashing")
        names = (f"d.filler{n}" for n in range(_LARGE))
        steps = [[name, f"{name.replace('.', '')} filling", "d.run.filler"] for name in names]
        writer.attempt({"do": "batch", "steps": steps})
        writer.attempt({"do": "flush"})

    def reembed(writer: Writer) -> None:
        writer.memory.reembed("hashing")

    for name, only in {"c": reembed, "d": work}.items():
        code = ended_within(ledger.start(name, work=only), 60)
        assert code == 0, f"filling lane {name} ended with {code}"
    ledger.check("before the first kill")


def _trial(ledger: Ledger, shim: Shim, focus: str) -> bool:
    """Kill three writers, each at its moment; look at what they left."""
    tally, chance = ledger.tally, ledger.setting.chance
    third = "d" if focus in _IN_LARGE else "c"
    moment = _moment(ledger, shim, focus, chance)
    writers = {
        name: ledger.start(name, focus, ready=lambda _: moment()) for name in ("a", "b", third)
    }
    for name, process_id in writers.items():
        ledger.wait_for_notes(name)
        time.sleep(chance.uniform(0, 0.3))
        kill(process_id)
    tally.trials += len(writers)
    return ledger.check(f"kill {tally.trials} during {focus}")


def _moment(ledger: Ledger, shim: Shim, focus: str, chance: random.Random) -> Callable[[], None]:
    """Return what arms a writer to kill itself in the middle of a system call."""
    after = chance.randint(1, 40) if chance.random() < 0.5 else chance.randint(1, 600)
    kinds = WRITES | SYNCS
    if focus in ("flush", "vacuum", "purge_run", "purge_session", "clear", "reembed"):
        kinds |= RENAMES | TRUNCATES | UNLINKS
    by_call = shim.there and chance.random() < 0.6

    def arm() -> None:
        if by_call and ledger.folder is not None:
            shim.arm(ledger.folder, kinds, after, KILL)
        elif by_call:
            shim.arm(ledger.notes, SENDS, after, KILL)

    return arm
