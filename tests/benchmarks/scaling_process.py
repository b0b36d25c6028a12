"""One thing that a process does with a memory, once or over and over; `benchmarks scaling` runs it.

Prints milliseconds on both clocks and the resident megabytes of the process as JSON. Imports are
done, and the embedder's weights are loaded, before a clock starts.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from hybridagi_steps.context.builder import ContextBuilder
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep
from tests.benchmarks.corpus import messages_of, spoken
from tests.benchmarks.first_search import load_imports
from tests.benchmarks.timing import Sample, interleaved, timed
from tests.benchmarks.varied import varied_queries, varied_step, varied_steps

K = 10
SEARCH = "open and first search"
CLOSE = "close after it"
CONTEXT = "context of what fits 4,000 tokens"
EIGHT = "the same, eight sessions in turn"
RECALL = "the same, with what is recalled"
BESIDE = "with what is recalled, beside seven sessions"
IN_TURN = "with what is recalled, eight sessions in turn"
FIRST = "with what is recalled, the first of a session"
OPENED = "with what is recalled, the first of a process"
SESSIONS = 8
_NEW = 10**7
"""Number of the first step that no file has."""

LEAST = 1_000
"""Steps among which each kind of filter finds one that has what it asks for."""
_QUERIES = varied_queries()
"""None is asked for twice in a process."""

Work = Callable[[], object]
Where = Callable[[AgentStep], dict[str, Any]]

FILTERS: dict[str, Where] = {
    "user": lambda step: {"user_id": step.user_id},
    "session": lambda step: {"session_id": step.session_id},
    "run": lambda step: {"run_id": step.run_id},
    "program": lambda step: {"program": (step.inputs or {}).get("program")},
    "type": lambda step: {"step_types": step.step_type},
    "status": lambda step: {"status": step.status},
    "tool": lambda step: {"tools": step.tool},
    "`since`": lambda step: {"since": step.created_at},
    "`min_score`": lambda step: {"min_score": step.score},
    "metadata key of few values": lambda step: _of_metadata(step, "domain"),
    "metadata key of many values": lambda step: _of_metadata(step, "ticket"),
    "metadata key of few steps": lambda step: _of_metadata(step, "rare"),
    "metadata key of no step": lambda step: {"metadata": {f"key-{step.id}": True}},
}
"""What is asked of a search that wants steps that are like one step in this."""
ANOTHER, FIRST_BY = "search, another {} each", "first filter by {}"


def _of_metadata(step: AgentStep, key: str) -> dict[str, Any]:
    value = (step.metadata or {}).get(key)
    return {"metadata": None if value is None else {key: value}}


def _search(memory: StepMemory, **options: Any) -> Iterator[Work]:
    for query in _QUERIES:
        yield lambda query=query: memory.search(query, K, **options)


def _filtered(memory: StepMemory, kind: str) -> Iterator[Work]:
    """Yield searches that each want steps like another step of the memory."""
    chance, held = random.Random(kind + next(_QUERIES)), max(memory.stats()["steps"], LEAST)
    for query in _QUERIES:
        where: dict[str, Any] = {"": None}
        while None in where.values():  # that step has no tool, say
            where = FILTERS[kind](varied_step(chance.randrange(held)))
        yield lambda query=query, where=where: memory.search(query, K, where=where)


def _added(memory: StepMemory, size: int = 1) -> Iterator[Work]:
    for number in count(_NEW, size):
        steps = list(varied_steps(size, first=number))
        yield lambda steps=steps: memory.add(steps)


def _search_after_add(memory: StepMemory) -> Iterator[Work]:
    for add, search in zip(_added(memory), _search(memory), strict=False):
        add()
        yield search


def _add_and_search(memory: StepMemory) -> Iterator[Work]:
    for add, search in zip(_added(memory), _search(memory), strict=False):
        yield lambda add=add, search=search: (add(), search())


def _search_after_delete(memory: StepMemory) -> Iterator[Work]:
    for step, search in zip(memory.iter_steps(), _search(memory), strict=False):
        memory.delete(str(step.id))
        yield search


def _calls(call: Work) -> Iterator[Work]:
    while True:
        yield call


ONCE: dict[str, Callable[[StepMemory], Iterator[Work]]] = {
    **{
        FIRST_BY.format(kind): lambda memory, kind=kind: _filtered(memory, kind) for kind in FILTERS
    },
    "search after the first add": _search_after_add,
    SEARCH: _search,
    CLOSE: _search,
}
"""What a fresh process does once; but for the last two, after a search that is not counted."""

_LATER = 7
"""What is done once is done so often more, to be compared with it in the same process."""

OVER_AND_OVER: dict[str, Callable[[StepMemory], Iterator[Work]]] = {
    "search, hybrid": _search,
    "search, words": lambda memory: _search(memory, mode="lexical"),
    "search, meaning": lambda memory: _search(memory, mode="dense"),
    **{ANOTHER.format(kind): lambda memory, kind=kind: _filtered(memory, kind) for kind in FILTERS},
    "add of one": _added,
    "add of 1,000": lambda memory: _added(memory, 1_000),
    "search after an add": _search_after_add,
    "search after a delete": _search_after_delete,
    "`flush()`, nothing pending": lambda memory: _calls(memory.flush),
    "`stats()`": lambda memory: _calls(memory.stats),
}
"""What a process does many times, after a search and one round that are not counted."""
ADD_AND_SEARCH = "add of one, and a search"
ON_A_SERVER = {ADD_AND_SEARCH: _add_and_search}
"""Also many times, on PostgreSQL."""


def measured(address: str, what: str, rounds: int) -> dict[str, Any]:
    """Do one thing so many times; return what it took, by name where there are several.

    What a process does once is done once: the n-th of `rounds` processes asks other queries than
    those before, since one query may take twice what another does.
    """
    if what.startswith("session of "):
        return dict(_in_a_session(Path(address), int(what.split()[-1]), rounds))
    for _ in range(2 * (1 + _LATER) * (rounds - 1) if what in ONCE else 0):
        next(_QUERIES)
    if what in {SEARCH, CLOSE}:
        query, memories = next(_QUERIES), list[StepMemory]()  # it reads the texts it is made of
        opened = _shown([timed(lambda: memories.append(_opened(address, query)))])
        closing = timed(memories[0].close)
        return opened if what == SEARCH else _shown([closing])
    with StepMemory(address, durability="normal") as memory:
        memory.search(next(_QUERIES), K)
        if what in ONCE:
            first, *later = _timed(ONCE[what](memory), 1 + _LATER)
            return {**_shown([first]), "later_cpu_ms": median(one.cpu for one in later) * 1e3}
        works = (OVER_AND_OVER | ON_A_SERVER)[what](memory)
        return _shown(_timed(works, rounds + 1)[1:])


def ask_filters(memory: StepMemory) -> None:
    """Ask once by each key that a first filter is measured by: what was asked for is kept."""
    for kind in FILTERS:
        next(_filtered(memory, kind))()


def _opened(address: str, query: str) -> StepMemory:
    memory = StepMemory(address)
    memory.search(query, K)
    return memory


def _in_a_session(path: Path, size: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what building a context takes after `size` messages, of one session and of eight.

    Each context asks for something else.
    """
    said = spoken(SESSIONS * size)
    sessions = [f"session-{number}" for number in range(SESSIONS)]
    with StepMemory(path, embedder="hashing", durability="normal") as memory:
        builder = ContextBuilder(memory, k=0)
        for number, session in enumerate(sessions):
            own = said[number::SESSIONS]
            memory.repository().store.commit(session, messages_of(session, own))
            builder.build(session_id=session)
        yield from _in_turn(builder, sessions, rounds, CONTEXT, EIGHT)
        memory.flush()
        recalling = ContextBuilder(memory)
        recalling.build(session_id=sessions[0])
        first = [partial(recalling.build, session_id=name) for name in sessions[1:]]
        yield FIRST, _shown(_timed(first, len(first)))
        yield from _in_turn(recalling, sessions, rounds, BESIDE, IN_TURN)
    alone = path.with_name("alone.db")
    with StepMemory(alone, embedder="hashing", durability="normal") as memory:
        memory.repository().store.commit(sessions[0], messages_of(sessions[0], said[:size]))
        memory.search(next(_QUERIES))
        ContextBuilder(memory).build(session_id=sessions[0])
    with StepMemory(alone, embedder="hashing", durability="normal") as memory:
        memory.search(next(_QUERIES))
        builds = _asking(ContextBuilder(memory), cycle(sessions[:1]))
        yield OPENED, _shown(_timed(builds, 1))
        yield RECALL, _shown(_timed(builds, rounds))


def _asking(builder: ContextBuilder, sessions: Iterable[str]) -> Iterator[Work]:
    """Yield builds of contexts, each with another query."""
    for session, query in zip(sessions, _QUERIES, strict=False):
        yield partial(builder.build, session_id=session, query=query)


def _in_turn(
    builder: ContextBuilder, sessions: list[str], rounds: int, one: str, all_of_them: str
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what building takes of a session that was read just before, and of all in turn.

    Both build contexts of the same sessions, and none asks what another did.
    """
    in_turn = _asking(builder, cycle(sessions))
    again = _asking(builder, cycle(sessions))
    rivals = {all_of_them: lambda: next(in_turn)(), one: lambda: next(again)()}
    for what, samples in interleaved(rivals, min(rounds, 3 * SESSIONS)).items():
        yield what, _shown(samples)


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
    where, what, rounds, *others = sys.argv[1:]
    with TemporaryDirectory() as folder:
        load_imports(folder)
    for other in others:  # a memory of the same kind, which loads what this kind needs
        _opened(other, "warm up").close()
    print(orjson.dumps(measured(where, what, int(rounds))).decode())
