"""How fast past steps are found: opening, searching, filtering, searching right after an append.

It fills one file per size with made-up steps (kept in `workdir`, built once) and asks the memory as
a program would. The vector index is also asked alone, beside the plain numpy product over
everything, which is both the oracle of its recall and the speed to beat. Others' indexes are asked
in `search_peers`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import orjson

from hybridagi_steps.embedders.vectors import unpacked
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows
from hybridagi_steps.search.step_index import StepIndex
from hybridagi_steps.stores import open_store
from tests.benchmarks import CHECKOUT
from tests.benchmarks.conditions import conditions, counts, folder_for
from tests.benchmarks.corpus import STEPS_PER_RUN, made_queries, made_steps
from tests.benchmarks.peers import check_names
from tests.benchmarks.search_peers import measure_peers, peer_tables
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import Sample, fastest, interleaved, ratio, timed, typical

SIZES = "10000,100000"
LEAST = 100 * STEPS_PER_RUN
"""Steps of which one in a hundred is a run."""
K = 10
NARROW = {"user_id": "user-7"}
"""One step in a hundred."""
WIDE = {"exclude_run_id": ["run-3"]}
"""All steps but those of one run."""
MANY = 1_000
"""Steps added at once before a search."""

_BATCH = 1_000
_QUERIES_PER_TURN = 20
"""A turn is a stretch of work: the 100 MB that numpy reads push all else out of the caches."""


def report(json_output: bool = False, **options: Any) -> None:
    """Print how fast steps are found; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(
    sizes: str = SIZES,
    rounds: int = 40,
    starts: int = 5,
    embedder: str = "wordllama",
    workdir: str | None = None,
    peers: str = "all",
    million: bool = False,
) -> dict[str, Any]:
    """Return wall times in milliseconds, and the index's recall, for each number of steps.

    Args:
        sizes: Numbers of steps, with commas between them.
        rounds: Queries per measurement.
        starts: Fresh processes that open the memory.
        embedder: Name of the embedder.
        workdir: Folder in which the built files are kept for the next time.
        peers: Whom to measure beside us: all, none, or how their names begin, with commas between.
        million: Measure the vector index and its peers at 1,000,000 vectors too.
    """
    check_names(peers)
    asked = counts(sizes)
    if min(asked) < LEAST:
        raise InvalidSettingError(f"fewer than {LEAST:,} steps have no 1 % to filter by.")
    with folder_for(workdir) as folder:
        found = {
            str(size): _measured(_built(folder, size, embedder), folder, rounds, starts)
            for size in asked
        }
        before = conditions()
        beside = measure_peers(
            [*asked, *([1_000_000] if million else [])],
            rounds=rounds,
            embedder=embedder,
            peers=peers,
            folder=folder,
        )
    options = {"sizes": sizes, "rounds": rounds, "starts": starts, "embedder": embedder}
    return {
        **conditions(**options, peers=peers, million=million),
        "steps": found,
        "peers_conditions": before,
        "peers": beside,
    }


def _built(folder: Path, size: int, embedder: str) -> Path:
    """Return a memory file of `size` made-up steps, indexed, with its cache beside it."""
    path = folder / f"steps-{size}-{embedder}.db"
    if path.exists():
        return path
    unfinished = folder / f"unfinished-{path.name}"
    with StepMemory(unfinished, embedder=embedder, durability="normal") as memory:
        for first in range(0, size, _BATCH):
            memory.add(made_steps(min(_BATCH, size - first), first=first))
        memory.flush()
        memory.search(made_queries(1)[0])
    for file in _files_of(unfinished):
        if not file.name.endswith(".lock"):
            file.rename(folder / file.name.removeprefix("unfinished-"))
    return path


def _files_of(path: Path) -> list[Path]:
    """Return a memory's files, the database last: where it is, all are."""
    return sorted(path.parent.glob(f"{path.name}*"), key=lambda file: file == path)


def _measured(path: Path, folder: Path, rounds: int, starts: int) -> dict[str, Any]:
    queries = made_queries(rounds)
    with StepMemory(path) as memory:
        searches = _searches(memory, queries)
    return {
        "first_search": _first_searches(path, folder, queries, starts),
        "search": searches,
        "after_adds": _after_adds(path),
        "index": _index_alone(path, queries),
    }


def _first_searches(
    path: Path, folder: Path, queries: Sequence[str], starts: int
) -> dict[str, float]:
    """Return what opening and the first answer take in a fresh process, after one warm-up."""
    module = "tests.benchmarks.first_search"
    path, folder = path.absolute(), folder.absolute()
    found: list[dict[str, float]] = []
    for query in islice(cycle(queries), starts + 1):
        command = [
            sys.executable,
            "-m",
            module,
            str(path.absolute()),
            query,
            str(folder.absolute()),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=CHECKOUT)
        found.append(orjson.loads(done.stdout))
    return {
        f"{name}_ms": median(sample[name] for sample in found[1:]) * 1e3
        for name in ("opened", "answered", "cpu")
    }


def _searches(memory: StepMemory, queries: Sequence[str]) -> dict[str, dict[str, float]]:
    asked: dict[str, Callable[[str], object]] = {
        "hybrid": lambda query: memory.search(query, K),
        "dense": lambda query: memory.search(query, K, mode="dense"),
        "lexical": lambda query: memory.search(query, K, mode="lexical"),
        "hybrid, 1 % of the steps": lambda query: memory.search(query, K, where=NARROW),
        "hybrid, all but one run": lambda query: memory.search(query, K, where=WIDE),
        "hybrid, `expand` program": lambda query: memory.search(query, K, expand="program"),
    }
    for search in asked.values():
        search(queries[0])
    return {name: _times(search, queries) for name, search in asked.items()}


def _times(search: Callable[[str], object], queries: Iterable[str]) -> dict[str, float]:
    """Return the median and the 95th percentile of a query's time, in milliseconds."""
    samples = [timed(lambda query=query: search(query)) for query in queries]
    walls = np.array([sample.wall for sample in samples]) * 1e3
    return {
        "p50_ms": float(np.median(walls)),
        "p95_ms": float(np.percentile(walls, 95)),
        "cpu_p50_ms": median(sample.cpu for sample in samples) * 1e3,
    }


def _after_adds(path: Path) -> dict[str, float]:
    """Return what a search takes right after appends, on a copy of the file."""
    queries = made_queries(8)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        for file in _files_of(path):
            shutil.copy(file, name)
        with StepMemory(Path(name) / path.name) as memory:
            memory.search(queries[0])
            one = [_search_after(memory, query, 1, n) for n, query in enumerate(queries)]
            many = [_search_after(memory, queries[n], MANY, n) for n in range(3)]
    return {
        "after_1_ms": median(sample.wall for sample in one) * 1e3,
        "after_many_ms": median(sample.wall for sample in many) * 1e3,
    }


def _search_after(memory: StepMemory, query: str, count: int, turn: int) -> Sample:
    """Add steps that are new to the memory, then search."""
    memory.add(made_steps(count, first=10**7 * (1 + (count > 1)) + turn * count))
    return timed(lambda: memory.search(query, K))


def _index_alone(path: Path, queries: Sequence[str]) -> dict[str, Any]:
    """Return times and recall of the vector index beside numpy over everything."""
    with StepMemory(path) as memory:
        embedder = memory.embedder
        vectors = embedder.embed_queries(queries)
    with closing(open_store(str(path))) as store:
        index = StepIndex(store, store.identity().store_id, None)
        index.follow(embedder.model_id, embedder.dimension)
        narrow = store.rows(StepFilter.of(NARROW))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return {
        "everything": _beside_numpy(index, units, None),
        "filtered": {"rows": len(narrow), **_beside_numpy(index, units, narrow)},
    }


def _beside_numpy(index: StepIndex, queries: FloatMatrix, rows: Rows | None) -> dict[str, Any]:
    arrays = index.own.vectors.to_arrays()
    held, matrix = arrays["rows"], unpacked(np.array(arrays["vectors"]))
    passing = None if rows is None else np.isin(held, rows)
    ours, theirs = cycle(queries), cycle(queries)

    def numpy_block() -> None:
        for _ in range(_QUERIES_PER_TURN):
            _exact(matrix, next(theirs), passing)

    def index_block() -> None:
        for _ in range(_QUERIES_PER_TURN):
            index.own.vectors.search(next(ours)[None], K, rows=rows)

    samples = interleaved({"numpy": numpy_block, "index": index_block}, len(queries), warm_up=3)
    return {
        "numpy_ms": typical(samples["numpy"], "wall", per=_QUERIES_PER_TURN) / 1e3,
        "index_ms": typical(samples["index"], "wall", per=_QUERIES_PER_TURN) / 1e3,
        "times_faster": ratio(samples["numpy"], samples["index"], "wall"),
        "times_faster_at_best": fastest(samples["numpy"], "wall")
        / fastest(samples["index"], "wall"),
        "recall": fmean(
            _share_found(
                index.own.vectors.search(query[None], K, rows=rows)[0].rows,
                held[_exact(matrix, query, passing)],
            )
            for query in queries
        ),
    }


def _exact(
    matrix: FloatMatrix, query: FloatVector, passing: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    """Return the places of the K best rows of a matrix, by numpy and nothing else."""
    scores = matrix @ query
    if passing is not None:
        scores[~passing] = -np.inf
    if len(scores) <= K:
        return np.argsort(-scores)
    best = np.argpartition(-scores, K)[:K]
    return best[np.argsort(-scores[best])]


def _share_found(found: Rows, wanted: Rows) -> float:
    return len(np.intersect1d(found, wanted)) / len(wanted) if len(wanted) else 1.0


def _tables(result: dict[str, Any]) -> list[Table]:
    sizes = result["steps"]
    rows: list[list[str]] = []

    def add(what: str, *path: str, digits: int = 1) -> None:
        rows.append([what, *(number(_at(found, path), digits) for found in sizes.values())])

    add("fresh process: open and first search, ms", "first_search", "answered_ms")
    for name in next(iter(sizes.values()))["search"]:
        add(f"search, {name}: p50, ms", "search", name, "p50_ms")
        add(f"search, {name}: p95, ms", "search", name, "p95_ms")
    add("search after 1 append, ms", "after_adds", "after_1_ms")
    add(f"search after {MANY:,} appends, ms", "after_adds", "after_many_ms")
    for part, name in (("everything", "index"), ("filtered", "index, 1 % filter")):
        add(f"{name}: ms", "index", part, "index_ms", digits=2)
        add(f"{name}: numpy over everything, ms", "index", part, "numpy_ms", digits=2)
        add(f"{name}: times faster", "index", part, "times_faster")
        add(f"{name}: times faster, both at their best", "index", part, "times_faster_at_best")
        add(f"{name}: recall@{K}", "index", part, "recall", digits=3)
    columns = ["", *(f"{int(size):,} steps" for size in sizes)]
    title = f"finding steps, {result['options']['embedder']}"
    return [Table(title, columns, rows), *peer_tables(result["peers"])]


def _at(found: dict[str, Any], path: Sequence[str]) -> float:
    value: Any = found
    for key in path:
        value = value[key]
    return float(value)
