"""A process forks while its threads search and write: children use the memory, nobody hangs."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from hybridagi_steps import StepMemory

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally, opened
from .operations import step_of
from .processes import ask, ended_within, fork

CHILDREN = 8
CHILD_SECONDS = 30.0


def attack(setting: Setting) -> Tally:
    """Fork until the time is over."""
    tally, number = Tally(), 0
    while setting.going_on() or not number:
        number += 1
        address = setting.new_address()
        outcome = ask(partial(_parent, address), CHILDREN * CHILD_SECONDS)
        what = f"round {number} of {CHILDREN} forks"
        tally.trials += CHILDREN
        if not tally.outcome(outcome, what):
            continue
        for kind, child in outcome.value["failed"]:
            tally.found(kind, f"{what}: child {child} of a busy parent")
        _check(tally, address, outcome.value["acknowledged"], what)
    return tally


def _parent(address: str) -> dict[str, Any]:
    """Search and write in threads while children are made; return what went wrong."""
    with opened(address, "default", "hashing") as memory:
        memory.add([step_of(f"first {n}", f"word{n} refund order", "r") for n in range(300)])
        memory.search("refund")  # FAISS and the index are in use before the first fork
        stop, written = threading.Event(), list[str]()
        errors = list[BaseException]()
        work: list[Callable[[], None]] = [
            lambda: _write_until(memory, stop, written),
            lambda: _search_until(memory, stop),
        ]
        threads = [threading.Thread(target=_kept, args=(one, errors)) for one in work]
        for thread in threads:
            thread.start()
        failed: list[tuple[str, int]] = []
        children = [fork(partial(_child, memory, number)) for number in range(CHILDREN)]
        for number, process_id in enumerate(children):
            code = ended_within(process_id, CHILD_SECONDS)
            if code is None:
                failed.append(("hung", number))
            elif code:
                failed.append(("lost" if code == 3 else "untyped_errors", number))
        stop.set()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
    children_wrote = [f"child {n}.{m}" for n in range(CHILDREN) for m in range(3)]
    return {"failed": failed, "acknowledged": written + ([] if failed else children_wrote)}


def _kept(work: Callable[[], None], errors: list[BaseException]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001, RUF100 - raised again where it is seen
        errors.append(error)


def _write_until(memory: StepMemory, stop: threading.Event, written: list[str]) -> None:
    while not stop.is_set() and len(written) < 20_000:
        name = f"parent {len(written)}"
        memory.add(step_of(name, f"{name} text", "r"))
        written.append(name)


def _search_until(memory: StepMemory, stop: threading.Event) -> None:
    while not stop.is_set():
        memory.search("refund order", 3)


def _child(memory: StepMemory, number: int) -> None:
    """Use the memory of the parent: write, find by search, read."""
    faulthandler.dump_traceback_later(CHILD_SECONDS - 5)  # where it stands, if it hangs
    for n in range(3):
        name, word = f"child {number}.{n}", f"born{number}x{n}"
        memory.add(step_of(name, f"{word} text", "r"))
        hits = memory.search(word, 1, mode="lexical")
        if [str(hit.step.id) for hit in hits] != [name] or not memory.exist(name):
            raise SystemExit(3)
    with suppress(Exception):
        memory.close()


def _check(tally: Tally, address: str, acknowledged: list[str], what: str) -> None:
    outcome = ask(partial(_read, address), LONGEST_ANSWER_SECONDS)
    if not tally.outcome(outcome, what):
        return
    tally.checked += len(acknowledged)
    if gone := set(acknowledged) - set(outcome.value["ids"]):
        tally.found("lost", f"{what}: {len(gone)} steps, such as {min(gone)!r}", len(gone))
    for problem in outcome.value["verify"]:
        tally.found("half_written", f"{what}: verify says {problem}")


def _read(address: str) -> dict[str, Any]:
    with opened(address, "default", "hashing") as memory:
        return {"ids": [str(step.id) for step in memory.iter_steps()], "verify": memory.verify()}
