"""A copy is killed again and again while its source is written to; in the end it is equal."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from hybridagi_steps.stores.sql import copied_rows, copy_tables

from .harness import LONGEST_ANSWER_SECONDS, Ledger, Setting, Tally
from .operations import Writer
from .processes import KILL, SENDS, SYNCS, WRITES, Shim, ask, ended_within, fork, kill

LANES = {"a": "default", "b": "default", "filled": "default"}
KILLS_PER_COPY = 6
_FIRST = 400
"""Steps that are there before."""
_PAGE = 20
"""Rows of a transaction, so that there are many moments between two of them."""


def attack(setting: Setting) -> Tally:
    """Kill copies until the time is over."""
    tally, shim, rows = Tally(), Shim(), 0
    while setting.going_on() or not tally.trials:
        ledger = Ledger(setting, tally, LANES)
        target = setting.new_address()
        if setting.server is not None and setting.chance.random() < 0.5:
            target = str(setting.new_folder("copy") / "copy.db")
        assert ended_within(ledger.start("filled", work=_fill), LONGEST_ANSWER_SECONDS) == 0
        if not ledger.check("before the first copy"):
            break
        busy = [name for name in LANES if name != "filled"]
        writers = [ledger.start(name) for name in busy]
        for name in busy:
            ledger.wait_for_notes(name)
        for _ in range(KILLS_PER_COPY):
            _kill_one(ledger, shim, target)
        for writer in writers:
            kill(writer)
        if not ledger.check("writers killed beside a copy"):
            break
        outcome = ask(partial(_copied, ledger, target), LONGEST_ANSWER_SECONDS)
        if not tally.outcome(outcome, "the copy that is not killed"):
            tally.found("lost", f"it cannot be finished: {outcome.error}")
            break
        rows += outcome.value["rows"]
        if outcome.value["again"]:
            tally.found("silently_changed", f"a finished copy differs: {outcome.value['again']}")
        # All that was acknowledged is in the copy as in its source, once; and nothing erased is.
        ledger.move_to(target)
        if not ledger.check("the copy"):
            break
    tally.figures["steps and messages of finished copies"] = rows
    return tally


def _fill(writer: Writer) -> None:
    """Write what takes some transactions to copy."""
    steps = [[f"filled.{n}", f"filler{n} filling", "filled.run"] for n in range(_FIRST)]
    writer.attempt({"do": "batch", "steps": steps})
    writer.attempt({"do": "flush"})


def _kill_one(ledger: Ledger, shim: Shim, target: str) -> None:
    """Let a copy begin or go on, and kill it at some moment."""
    tally, chance = ledger.tally, ledger.setting.chance
    after = chance.randint(1, 40) if chance.random() < 0.5 else chance.randint(1, 2_000)
    armed = shim.there and chance.random() < 0.6

    def copy() -> None:
        if armed:  # it reads here and writes there, one of which is seen
            shim.arm(ledger.setting.folder, WRITES | SYNCS | SENDS, after, KILL)
        _copied(ledger, target)

    process_id = fork(copy)
    seconds = chance.uniform(0, 1.5)
    time.sleep(seconds)
    code = ended_within(process_id, 0)
    tally.trials += code != 0
    if code not in (None, 0, -9):
        tally.found("untyped_errors", f"copy {tally.trials} ended with {code}")


def _copied(ledger: Ledger, target: str) -> dict[str, Any]:
    """Copy, and once more; return what there is, and what the second copy had to do."""
    for module in (copied_rows, copy_tables):
        vars(module)["PAGE"] = _PAGE
    with ledger.open("a") as memory:
        memory.copy_to(target)
        report = memory.copy_to(target)
    return {
        "rows": report.steps + report.messages,
        "again": report.written + report.removed,
    }
