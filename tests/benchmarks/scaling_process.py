"""One thing that a process does with a memory, once or over and over; `benchmarks scaling` runs it.

Prints milliseconds on both clocks and the resident megabytes of the process as JSON. Imports are
done, and the embedder's weights are loaded, before a clock starts.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

import hybridagi_steps as hs
from hybridagi_steps.context.builder import ContextBuilder
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import to_messages
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import MessageRole, Step
from tests.benchmarks.corpus import USERS, made_queries, made_steps
from tests.benchmarks.first_search import load_imports
from tests.benchmarks.timing import Sample, timed

K = 10
SEARCH = "open and first search"
CONTEXT = "context of what fits 4,000 tokens"
RECALL = "the same, with what is recalled"
TURN = "message through StepRunner, plain callable"
_NEW = 10**7
"""Number of the first made-up step that no file has."""
_QUERIES = 200
REGIONS = 100

Work = Callable[[], object]


def labelled(step: AgentStep) -> AgentStep:
    """Return a step with a metadata key by which one in a hundred is told."""
    region = int(step.created_at.timestamp()) % REGIONS
    return step.model_copy(update={"metadata": {"region": f"region-{region}"}})


def _search(memory: StepMemory, **options: Any) -> Iterator[Work]:
    for query in made_queries(_QUERIES):
        yield lambda query=query: memory.search(query, K, **options)


def _filtered(memory: StepMemory, where: Callable[[int], dict[str, Any]]) -> Iterator[Work]:
    """Yield searches that each ask by another value."""
    for number, query in enumerate(made_queries(_QUERIES)):
        yield lambda query=query, number=number: memory.search(query, K, where=where(number))


def _user(number: int) -> dict[str, Any]:
    return {"user_id": f"user-{number % USERS}"}


def _region(number: int) -> dict[str, Any]:
    return {"metadata": {"region": f"region-{number % REGIONS}"}}


def _since(number: int) -> dict[str, Any]:
    return {"since": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=7 * number)}


def _score(number: int) -> dict[str, Any]:
    return {"min_score": number % 7 / 6}


def _added(memory: StepMemory, size: int = 1) -> Iterator[Work]:
    for number in count(_NEW, size):
        steps = [labelled(step) for step in made_steps(size, first=number)]
        yield lambda steps=steps: memory.add(steps)


def _search_after_add(memory: StepMemory) -> Iterator[Work]:
    for add, search in zip(_added(memory), _search(memory), strict=False):
        add()
        yield search


def _search_after_delete(memory: StepMemory) -> Iterator[Work]:
    for step, search in zip(memory.iter_steps(), _search(memory), strict=False):
        memory.delete(str(step.id))
        yield search


def _calls(call: Work) -> Iterator[Work]:
    while True:
        yield call


ONCE: dict[str, Callable[[StepMemory], Iterator[Work]]] = {
    "first filter by user": lambda memory: _filtered(memory, _user),
    "first filter by metadata": lambda memory: _filtered(memory, _region),
    "first filter by `since`": lambda memory: _filtered(memory, _since),
    "first filter by `min_score`": lambda memory: _filtered(memory, _score),
    "search after the first add": _search_after_add,
    SEARCH: _search,
}
"""What a fresh process does once; but for the last, after a search that is not counted."""

OVER_AND_OVER: dict[str, Callable[[StepMemory], Iterator[Work]]] = {
    "search, hybrid": _search,
    "search, words": lambda memory: _search(memory, mode="lexical"),
    "search, meaning": lambda memory: _search(memory, mode="dense"),
    "search, another user each": lambda memory: _filtered(memory, _user),
    "search, another metadata value each": lambda memory: _filtered(memory, _region),
    "search, another `since` each": lambda memory: _filtered(memory, _since),
    "search, another `min_score` each": lambda memory: _filtered(memory, _score),
    "add of one": _added,
    "add of 1,000": lambda memory: _added(memory, 1_000),
    "search after an add": _search_after_add,
    "search after a delete": _search_after_delete,
    "`flush()`, nothing pending": lambda memory: _calls(memory.flush),
    "`stats()`": lambda memory: _calls(memory.stats),
}
"""What a process does many times, after a search and one round that are not counted."""


def measured(path: Path, what: str, rounds: int) -> dict[str, Any]:
    """Do one thing so many times; return what it took, by name where there are several."""
    if what.startswith("session of "):
        return dict(_in_a_session(path, int(what.split()[-1]), rounds))
    if what == SEARCH:
        [query] = made_queries(1)  # which reads the texts it is made of
        return _shown([timed(lambda: _opened(path, query))])
    with StepMemory(path, durability="normal") as memory:
        memory.search(made_queries(1)[0], K)
        if what in ONCE:
            return _shown(_timed(ONCE[what](memory), 1))
        return _shown(_timed(OVER_AND_OVER[what](memory), rounds + 1)[1:])


def ask_filters(memory: StepMemory) -> None:
    """Ask once by each key that a first filter is measured by: what was asked for is kept."""
    for where in (_user, _region, _since, _score):
        next(_filtered(memory, where))()


def _opened(path: Path, query: str) -> None:
    with StepMemory(path) as memory:
        memory.search(query, K)


def _in_a_session(path: Path, size: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what a turn of a plain callable, and building a context, take after `size` messages."""
    spoken = to_messages(shipped_steps(), session_id="long", carry=False)
    texts = [message.content for message in spoken if isinstance(message.content, str)]
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    said = [  # nobody says the same 900 things again and again: each has its number
        Step(session_id="long", role=roles[n % 2], content=f"{texts[n % len(texts)]} ({n})")
        for n in range(size)
    ]
    with StepMemory(path, embedder="hashing", durability="normal") as memory:
        memory.repository().store.commit("long", said)
        memory.flush()
        builder = ContextBuilder(memory, k=0)
        builder.build(session_id="long")
        yield CONTEXT, _shown(_timed(_calls(lambda: builder.build(session_id="long")), rounds))
        recalling = ContextBuilder(memory)
        recalling.build(session_id="long")
        yield RECALL, _shown(_timed(_calls(lambda: recalling.build(session_id="long")), rounds))
        runner = hs.StepRunner(_answered, memory)
        turn = _calls(lambda: asyncio.run(runner.run("long", "And the next one?")))
        yield TURN, _shown(_timed(turn, rounds + 1)[1:])


def _answered(messages: list[dict[str, Any]]) -> str:
    return f"There is nothing to add to {len(messages)} messages."


def _timed(works: Iterable[Work], rounds: int) -> list[Sample]:
    return [timed(work) for work, _ in zip(works, range(rounds), strict=False)]


def _shown(samples: list[Sample]) -> dict[str, float]:
    walls = [sample.wall * 1e3 for sample in samples]
    return {
        "p50_ms": median(walls),
        "p99_ms": float(np.percentile(walls, 99)),
        "cpu_ms": median(sample.cpu for sample in samples) * 1e3,
        "rss_mb": _peak_kilobytes() / 1024,
    }


def _peak_kilobytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # What getrusage tells on Linux is never less than what the parent had when it forked.
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


if __name__ == "__main__":
    where = Path(sys.argv[1])
    load_imports(str(where.parent))
    print(orjson.dumps(measured(where, sys.argv[2], int(sys.argv[3]))).decode())
