"""The PostgreSQL server is killed under its writers and started again: `full` loses nothing."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from functools import partial
from pathlib import Path

from hybridagi_steps.errors import StepsError

from .harness import Ledger, Setting, Tally
from .operations import Writer
from .processes import ended_within

LANES = {"a": "default", "b": "default", "c": "alone"}
PATIENCE_SECONDS = 60.0
_TRIALS_PER_MEMORY = 8


def attack(setting: Setting) -> Tally:
    """Kill the server, or one of its processes, until the time is over."""
    tally, ways, errors = Tally(), Counter[str](), Counter[str]()
    assert setting.server is not None
    setting.server.keep_memory_in_files()
    while setting.going_on():
        ledger = Ledger(setting, tally, LANES)
        for _ in range(_TRIALS_PER_MEMORY):
            way = setting.chance.choice(("all at once", "its first process", "a connection's"))
            ways[way] += 1
            if not _trial(ledger, way) or not setting.going_on():
                break
        errors += ledger.errors
    tally.figures |= {"killed": dict(ways), "errors": dict(errors)}
    return tally


def _trial(ledger: Ledger, way: str) -> bool:
    tally, server, chance = ledger.tally, ledger.setting.server, ledger.setting.chance
    assert server is not None
    stop = ledger.notes / "stop"
    stop.unlink(missing_ok=True)
    writers = {name: ledger.start(name, work=partial(_through, stop)) for name in LANES}
    for name in writers:
        ledger.wait_for_notes(name)
    time.sleep(chance.uniform(0.05, 0.4))
    everyone = server.processes()
    chosen = {"its first process": everyone[:1], "a connection's": everyone[-1:]}
    server.kill(chosen.get(way, everyone))
    time.sleep(chance.uniform(0, 0.3))
    if way != "a connection's":
        server.kill(everyone)
        server.start()
    server.wait()
    stop.touch()
    tally.trials += 1
    what = f"server kill {tally.trials} ({way})"
    for name, process_id in writers.items():
        code = ended_within(process_id, PATIENCE_SECONDS)
        if code in (None, 3):
            tally.found("hung", f"{what}: writer {name} does not go on after the restart")
        elif code:
            tally.found("untyped_errors", f"{what}: writer {name} ended with {code}")
    return ledger.check(what)


def _through(stop: Path, writer: Writer) -> None:
    """Write until the server is gone, or until told to stop; go on when it answers again."""
    endless = writer.lane.endless()
    if not writer.go_on(itertools.takewhile(lambda _: not stop.exists(), endless)):
        return
    give_up = time.monotonic() + PATIENCE_SECONDS / 2
    while time.monotonic() < give_up:
        try:
            writer.memory.stats()
            break
        except StepsError:
            time.sleep(0.05)
    again = writer.lane.new_only()
    if all(writer.attempt(next(again)) for _ in range(3)):
        raise SystemExit(3)
