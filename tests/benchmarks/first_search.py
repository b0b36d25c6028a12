"""Times the first search of a fresh process; `benchmarks search` runs it once per sample.

Imports are done before the clock starts: a search in another memory has loaded them. Opening the
memory, the embedder's weights, the index cache and the answer are inside. Prints seconds as JSON.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import orjson

from hybridagi_steps.memory import IN_MEMORY, StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType


class FirstSearch(NamedTuple):
    """Seconds from the start, and how many hits there were."""

    opened: float
    answered: float
    cpu: float
    hits: int


def first_search(address: str, query: str) -> FirstSearch:
    """Open a memory, answer one query, and say how long it took."""
    began, began_cpu = time.perf_counter(), time.process_time()
    with StepMemory(address) as memory:
        opened = time.perf_counter()
        hits = memory.search(query)
        answered, answered_cpu = time.perf_counter(), time.process_time()
    return FirstSearch(opened - began, answered - began, answered_cpu - began_cpu, len(hits))


def load_imports(folder: str) -> None:
    """Load every module a search needs, by searches in memories of one step."""
    for address, embedder in ((IN_MEMORY, "wordllama"), (f"{folder}/warm-up.db", "hashing")):
        with StepMemory(address, embedder=embedder) as memory:
            memory.update(AgentStep(id="warm-up", step_type=AgentStepType.Action, inputs={}))
            memory.search("warm up")


if __name__ == "__main__":
    load_imports(sys.argv[3])
    print(orjson.dumps(first_search(sys.argv[1], sys.argv[2])._asdict()).decode())
