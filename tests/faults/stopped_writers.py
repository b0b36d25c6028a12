"""A writer is stopped inside a transaction: others read and search, and are told if they write."""

from __future__ import annotations

import inspect
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from hybridagi_steps import StepMemory

from .harness import Ledger, Setting, Tally, opened
from .operations import Writer, step_of
from .processes import SENDS, STOP, WRITES, Shim, ask, kill

LANES = {"a": "default"}
ANSWER_SECONDS = 10.0
"""How long a reader may take while a writer is stopped."""
TIMEOUT_SECONDS = 1.0
"""How long others wait for the writer, where a memory can be told."""
_KNOWS_TIMEOUT = "timeout_seconds" in inspect.signature(StepMemory.__init__).parameters
_OWN_TIMEOUT_SECONDS = 75.0
"""Longer than a memory waits that cannot be told."""


def attack(setting: Setting) -> Tally:
    """Stop writers until the time is over."""
    tally, shim, seen = Tally(), Shim(), Counter[str]()
    while setting.going_on() or not tally.trials:
        ledger = Ledger(setting, tally, LANES)
        outcome = ask(partial(_fill, ledger.address), 60)
        assert not outcome.error, outcome.error
        for _ in range(6):
            well = _trial(ledger, shim, seen)
            if not well or not setting.going_on():
                break
    tally.figures |= dict(seen)
    tally.figures["timeout of others"] = f"{TIMEOUT_SECONDS:g} s" if _KNOWS_TIMEOUT else "its own"
    return tally


def _fill(address: str) -> None:
    with opened(address, "default", "hashing") as memory:
        memory.add([step_of(f"old.{n}", f"oldword{n} text", "old run") for n in range(50)])
        memory.search("oldword1")
        memory.add([step_of(f"new.{n}", f"newword{n} text", "new run") for n in range(5)])


def _trial(ledger: Ledger, shim: Shim, seen: Counter[str]) -> bool:
    tally, chance = ledger.tally, ledger.setting.chance
    after = chance.randint(1, 60 if chance.random() < 0.5 else 600)

    def ready(_: StepMemory) -> None:
        if not shim.there:
            return
        if ledger.folder is not None:
            shim.arm(ledger.folder, WRITES, after, STOP)
        else:
            shim.arm(ledger.notes, SENDS, after, STOP)

    process_id = ledger.start("a", ready=ready, work=_batches)
    ledger.wait_for_notes("a")
    if not _stopped(process_id):
        os.kill(process_id, signal.SIGSTOP)
    tally.trials += 1
    what = f"writer {tally.trials} stopped"
    try:
        for name, question in _QUESTIONS.items():
            began = time.monotonic()
            outcome = ask(partial(question, ledger.address), ANSWER_SECONDS)
            seen[f"slowest {name}, ms"] = max(
                seen[f"slowest {name}, ms"], round(1_000 * (time.monotonic() - began))
            )
            if tally.outcome(outcome, f"{what}, {name}") and not outcome.value:
                tally.found("lost", f"{what}: {name} does not find what was stored before")
            elif outcome.error and outcome.typed:
                tally.found("hung", f"{what}: {name} is held up: {outcome.error}")
        if _KNOWS_TIMEOUT or ledger.setting.seconds > 4 * _OWN_TIMEOUT_SECONDS:
            _write(ledger, what, seen)
    finally:
        kill(process_id)
    return ledger.check(what)


def _stopped(process_id: int, seconds: float = 1.5) -> bool:
    """Wait until a process has stopped itself."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        done, status = os.waitpid(process_id, os.WNOHANG | os.WUNTRACED)
        if done:
            return os.WIFSTOPPED(status)
        time.sleep(0.005)
    return False


def _batches(writer: Writer) -> None:
    """Write large batches, so that nearly always a transaction is open."""
    while True:
        lane = writer.lane
        steps = [step for _ in range(30) for step in (lane.made("batch") or {})["steps"]]
        writer.attempt({"do": "batch", "steps": steps})


def _find(address: str) -> bool:
    with opened(address, "default", "hashing") as memory:
        found = memory.find({"run_id": "new run"}).steps
        return len(found) == 5 and bool(memory.get_steps(["old.3"]))


def _search(address: str) -> bool:
    with opened(address, "default", "hashing") as memory:
        return [str(hit.step.id) for hit in memory.search("newword3", 1)] == ["new.3"]


_QUESTIONS: dict[str, Callable[[str], bool]] = {"find": _find, "search": _search}


def _write(ledger: Ledger, what: str, seen: Counter[str]) -> None:
    """Write beside the stopped one: done at once, or refused within the timeout."""
    more: dict[str, Any] = {"timeout_seconds": TIMEOUT_SECONDS} if _KNOWS_TIMEOUT else {}
    limit = TIMEOUT_SECONDS + ANSWER_SECONDS if _KNOWS_TIMEOUT else _OWN_TIMEOUT_SECONDS

    def write() -> bool:
        with StepMemory(ledger.address, embedder="hashing", **more) as memory:
            memory.add(step_of(f"other.{ledger.tally.trials}", "another text", "r"))
        return True

    outcome = ask(write, limit)
    ledger.tally.outcome(outcome, f"{what}, writing beside it")
    seen["writes refused with a typed error"] += outcome.typed
    seen["writes that had no need to wait"] += outcome.value is True
