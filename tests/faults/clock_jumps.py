"""The clock jumps back years and ahead a century: order and sequences do not follow it."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any

from hybridagi_steps import StepMemory

from .harness import LONGEST_ANSWER_SECONDS, Ledger, Setting, Tally, opened
from .operations import step_of
from .processes import ask, kill

LANES = {"a": "default", "b": "default", "c": "alone"}
_CENTURY = 100 * 365 * 86_400.0
_COUNT = 25
_TRIALS_PER_MEMORY = 10


def attack(setting: Setting) -> Tally:
    """Let the clocks of writers jump until the time is over."""
    tally, wrong = Tally(), Counter[str]()
    while setting.going_on():
        ledger = Ledger(setting, tally, LANES)
        for _ in range(_TRIALS_PER_MEMORY):
            seed = setting.chance.randrange(1 << 60)
            jumping = {name: partial(jump, random.Random(f"{seed}{name}")) for name in LANES}
            writers = [ledger.start(name, before=jumping[name]) for name in LANES]
            for name, process_id in zip(LANES, writers, strict=True):
                ledger.wait_for_notes(name)
                time.sleep(setting.chance.uniform(0.05, 0.2))
                kill(process_id)
            tally.trials += 1
            well = ledger.check(f"clock jumps {tally.trials}")
            if not well or not setting.going_on(0.3):
                break
        _check_order(setting, tally, wrong)
    tally.figures["lists in the wrong order"] = dict(wrong)
    return tally


def jump(chance: random.Random) -> None:
    """Let every clock of this process but the monotonic one jump at each look."""
    whole, now = time.time, datetime

    def jumped() -> float:
        return whole() + chance.choice((0, -10, 3_600, -40 * 365 * 86_400, _CENTURY))

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, now)

    class Jumping(now, metaclass=Kind):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return now.fromtimestamp(jumped(), tz or UTC)

        @classmethod
        def fromisoformat(cls, date_string: str, /) -> Any:
            return now.fromisoformat(date_string)  # no object of this class: nothing keeps such

    time.time = jumped
    for name, module in list(sys.modules.items()):
        if name.startswith("hybridagi_steps") and getattr(module, "datetime", None) is now:
            module.datetime = Jumping  # pyright: ignore[reportAttributeAccessIssue] - for this process only


def _check_order(setting: Setting, tally: Tally, wrong: Counter[str]) -> None:
    """Write one thing after the other; lists must tell them in that order."""
    address, chance = setting.new_address(), random.Random(setting.chance.randrange(1 << 60))
    outcome = ask(lambda: _orders(address, partial(jump, chance)), LONGEST_ANSWER_SECONDS)
    tally.trials += 1
    if not tally.outcome(outcome, "lists under a jumping clock"):
        return
    tally.checked += 3 * _COUNT
    for name, told, right in outcome.value:
        if told != right:
            wrong[name] += 1
            tally.found("silently_changed", f"{name}: {told[:6]} …, not {right[:6]} …")


def _orders(address: str, jumping: Callable[[], None]) -> list[tuple[str, list[Any], list[Any]]]:
    """Return, for each list, what it tells and what is right."""
    jumping()
    names = [f"n{number}" for number in range(_COUNT)]
    with opened(address, "default", "hashing") as memory:
        for name in names:
            memory.add(step_of(name, f"{name} text", f"run {name}"))
        found = [str(step.id) for step in memory.find(limit=99).steps]
        newest = [str(step.id) for step in memory.find(limit=99, newest_first=True).steps]
        runs = [run.run_id for run in memory.runs()]
        sessions, sequences = asyncio.run(_said(memory, names))
    back = names[::-1]
    return [
        ("find", found, names),
        ("find, newest first", newest, back),
        ("runs, newest first", runs, [f"run {name}" for name in back]),
        ("sessions, the one written last first", sessions, back),
        ("sequences", sequences, list(range(1, _COUNT + 1))),
    ]


async def _said(memory: StepMemory, names: list[str]) -> tuple[list[str], list[int]]:
    repo = memory.repository()
    for name in names:
        await repo.append(name, {"role": "user", "content": name})
    listed = [session.session_id for session in await repo.sessions()]
    for name in names:
        await repo.append("one", {"role": "user", "content": name})
    return listed, [message.sequence for message in await repo.get_steps("one")]
