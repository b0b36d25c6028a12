"""What a fresh process needs to search a memory on a server; `benchmarks capacity` runs it.

Prints bytes resident for the index, and seconds of CPU of both sides, as JSON. Imports are done and
the embedder is loaded before anything is counted, by a search in another memory.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import orjson
import psutil

from hybridagi_steps.memory import IN_MEMORY, StepMemory
from tests.benchmarks.corpus import made_queries, made_step

SEARCHES = 100


def cpu_of_server(process_id: int) -> float:
    """Return the seconds of CPU that a server and all its processes, past ones too, have used."""
    first = psutil.Process(process_id)
    spent = sum(first.cpu_times()[:4])
    for child in first.children(recursive=True):
        try:
            spent += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return spent


def searched(address: str, server: int, budget: str | None) -> dict[str, float]:
    """Return what the index of a memory, and a search in it or in its database, take."""
    with StepMemory(IN_MEMORY) as warm:
        warm.add(made_step(0))
        warm.search("warm up")
    queries = made_queries(SEARCHES + 1)
    resident, cpu = psutil.Process().memory_info().rss, time.process_time()
    with StepMemory(address, memory_budget=budget) as memory:
        memory.search(queries.pop(), 10)
        build = time.process_time() - cpu
        index = psutil.Process().memory_info().rss - resident
        theirs, spent = cpu_of_server(server), list[float]()
        for query in queries:
            cpu = time.process_time()
            memory.search(query, 10)
            spent.append(time.process_time() - cpu)
        theirs = cpu_of_server(server) - theirs
    return {
        "index_bytes": index,
        "process_bytes": psutil.Process().memory_info().rss,
        "build_cpu": build,
        "search_cpu": median(spent),
        "search_server_cpu": theirs / SEARCHES,
    }


if __name__ == "__main__":
    print(orjson.dumps(searched(sys.argv[1], int(sys.argv[2]), sys.argv[3] or None)).decode())
