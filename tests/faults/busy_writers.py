"""Eight processes write without pause while one searches: nothing lost, no gap, nothing unseen.

The figures are how long a search takes beside them and alone, in the same memory: p50, p99 and the
ratio of the p99s.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hybridagi_steps import StepMemory

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally, opened
from .operations import step_of
from .processes import ask, fork, kill

WRITERS = 8
LONGEST_SEARCH_SECONDS = 30.0
"""After which a search counts as hung."""
_SESSION = "shared"


def attack(setting: Setting) -> Tally:
    """Write and search for most of the time, then search alone."""
    tally = Tally()
    address, notes = setting.new_address(), setting.new_folder("notes")
    outcome = ask(partial(_begin, address), LONGEST_ANSWER_SECONDS)
    assert not outcome.error, outcome.error
    before = ask(partial(_search, address, notes, setting.seconds / 6, 1), _limit(setting))
    seeds = [setting.chance.randrange(1 << 60) for _ in range(WRITERS)]
    writers = [fork(partial(_write, address, notes / f"{n}", seeds[n])) for n in range(WRITERS)]
    try:
        under_load = ask(partial(_search, address, notes, setting.seconds / 2, 2), _limit(setting))
    finally:
        for process_id in writers:
            kill(process_id)
    after = ask(partial(_search, address, notes, setting.seconds / 6, 3), _limit(setting))
    for name, outcome in (("alone", before), ("beside 8 writers", under_load), ("alone", after)):
        if tally.outcome(outcome, f"searches {name}"):
            tally.trials += len(outcome.value["seconds"])
            for word in outcome.value["unseen"]:
                tally.found("lost", f"search {name} does not find {word}, acknowledged before it")
    _check(tally, address, notes)
    if not (before.error or under_load.error or after.error):
        alone = before.value["seconds"] + after.value["seconds"]
        tally.figures = _figures(alone, under_load.value["seconds"])
    return tally


def _limit(setting: Setting) -> float:
    return setting.seconds + LONGEST_SEARCH_SECONDS


def _begin(address: str) -> None:
    with opened(address, "default", "hashing") as memory:
        memory.add([step_of(f"first {n}", f"firstword{n} refund", "r") for n in range(500)])
        memory.search("firstword1")


def _write(address: str, notes: Path, seed: int) -> None:
    """Add steps and messages for ever, and note each when it is acknowledged."""
    chance, name = random.Random(seed), notes.name
    with (
        opened(address, "default", "hashing") as memory,
        notes.open("w", buffering=1) as acknowledged,
        asyncio.Runner() as loop,
    ):
        repo, number = memory.repository(), 0
        while True:
            number += 1
            word = f"w{name}x{number}z"
            if number % 8:
                filler = " ".join(f"v{chance.randrange(999)}" for _ in range(20))
                memory.add(step_of(word, f"{word} {filler}", f"run {name}"))
                acknowledged.write(f"step {word}\n")
            else:
                loop.run(repo.append(_SESSION, {"role": "user", "content": word}))
                acknowledged.write(f"said {word}\n")


def _search(address: str, notes: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Search for the newest acknowledged steps; return how long it took, and what was not found."""
    chance = random.Random(seed)
    took, unseen = list[float](), list[str]()
    with opened(address, "default", "hashing") as memory:
        memory.search("refund")
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            word = _newest(notes, chance) or f"firstword{chance.randrange(500)}"
            began = time.monotonic()
            hits = memory.search(word, 3)
            took.append(time.monotonic() - began)
            if word not in [hit.step.purpose for hit in hits]:
                unseen.append(word)
    return {"seconds": took, "unseen": unseen}


def _newest(notes: Path, chance: random.Random) -> str:
    """Return the last step that one of the writers was told is stored."""
    path = notes / str(chance.randrange(WRITERS))
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, 2) - 400, 0))
        lines = file.read().split(b"\n")[1:-1]
    steps = [line[5:].decode() for line in lines if line.startswith(b"step ")]
    return steps[-1] if steps else ""


def _check(tally: Tally, address: str, notes: Path) -> None:
    """Look for every acknowledged step and message, and for gaps in the session."""
    lines = [line for path in notes.iterdir() for line in path.read_text().split("\n")[:-1]]
    steps = {line[5:] for line in lines if line.startswith("step ")}
    said = {line[5:] for line in lines if line.startswith("said ")}
    tally.checked += len(steps) + len(said)
    outcome = ask(partial(_read, address), 4 * LONGEST_ANSWER_SECONDS)
    if not tally.outcome(outcome, "reading it all"):
        return
    found = outcome.value
    for name, wanted, there in (
        ("steps", steps, set(found["steps"])),
        ("messages", said, set(found["said"])),
    ):
        if gone := wanted - there:
            tally.found("lost", f"{len(gone)} {name}, such as {min(gone)}", len(gone))
    if found["sequences"] != list(range(1, len(found["sequences"]) + 1)):
        tally.found("half_written", "the sequences of the session have gaps or duplicates")
    for problem in found["verify"]:
        tally.found("half_written", f"verify says {problem}")


def _read(address: str) -> dict[str, Any]:
    async def messages(memory: StepMemory) -> list[Any]:
        return list(await memory.repository().get_steps(_SESSION))

    with opened(address, "default", "hashing") as memory:
        told = asyncio.run(messages(memory))
        return {
            "steps": [str(step.id) for step in memory.iter_steps()],
            "said": [str(one.content) for one in told],
            "sequences": [one.sequence for one in told],
            "verify": memory.verify(),
        }


def _figures(alone: list[float], under_load: list[float]) -> dict[str, Any]:
    def of(seconds: list[float]) -> Callable[[float], float]:
        return lambda share: float(np.quantile(seconds, share)) * 1_000

    one, many = of(alone), of(under_load)
    return {
        "searches alone": len(alone),
        "beside 8 writers": len(under_load),
        "alone p50, ms": round(one(0.5), 1),
        "alone p99, ms": round(one(0.99), 1),
        "beside p50, ms": round(many(0.5), 1),
        "beside p99, ms": round(many(0.99), 1),
        "p99 ratio": round(many(0.99) / one(0.99), 1),
    }
