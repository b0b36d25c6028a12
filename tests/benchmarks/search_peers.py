"""How fast the nearest vectors are found: our index and others', one query, one thread.

Each size runs in a process of its own in which every library is told to use one thread. All hold
the same vectors: embeddings of varied steps, each of a user who has one in a hundred. Peers take
turns of up to twenty queries in a hot loop; NumPy's exact product is the oracle of recall and the
unit of speed. A filter is evaluated inside the clock: of one user, as one program asks, and of
another user with each query, as a server is asked. After adds, the next search is inside too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

import numpy as np
import orjson

from hybridagi_steps.embedders.resolution import resolve_embedder
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows
from hybridagi_steps.search.ranking import POOL
from tests.benchmarks import CHECKOUT
from tests.benchmarks.corpus import STEPS_PER_RUN, USERS
from tests.benchmarks.peers import NOT_INSTALLED, OURS, SEARCHERS, Peer, VectorSearcher, chosen
from tests.benchmarks.peers.memory_index import MemoryIndex, RowsKnown
from tests.benchmarks.tables import Table, number
from tests.benchmarks.timing import Sample, Samples, interleaved, ratio, timed, typical
from tests.benchmarks.varied import varied_queries, varied_steps

K = 10
ADDS = 1_000
NUMPY = "NumPy exact"
KNOWN = f"{OURS}, rows known"
_USER = "user-7"
_QUERIES = 100
_QUERIES_PER_TURN = 20
_SECONDS_PER_TURN = 0.1
_ADD_ROUNDS = 5
_BATCH = 10_000
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "LANCE_CPU_THREADS",
)


Ask = Callable[[FloatVector], Sequence[int]]
"""Returns the nearest rows of a query."""


class Corpus(NamedTuple):
    """Vectors to find, whose they are, and vectors to ask for."""

    vectors: FloatMatrix
    users: list[str]
    queries: FloatMatrix


def measure_peers(
    sizes: Sequence[int], *, rounds: int, embedder: str, peers: str, folder: Path
) -> dict[str, Any]:
    """Return what each peer takes at each size; vectors are kept in `folder` for the next time."""
    who = chosen(SEARCHERS, peers)
    if NUMPY not in [peer.name for peer in who]:
        who.insert(1, next(peer for peer in SEARCHERS if peer.name == NUMPY))
    names = ",".join(peer.name for peer in who)
    return {
        "versions": {peer.name: peer.version() for peer in who},
        "threads": 1,
        "sizes": {
            str(size): _in_one_thread(size, rounds, embedder, names, folder) for size in sizes
        },
    }


def _in_one_thread(
    size: int, rounds: int, embedder: str, peers: str, folder: Path
) -> dict[str, Any]:
    """Measure one size in a fresh process whose libraries use one thread."""
    path = corpus_file(folder, size, embedder)
    arguments = orjson.dumps([str(path.absolute()), size, rounds, peers]).decode()
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, arguments],
        check=True,
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        env={**os.environ, **dict.fromkeys(_THREADS, "1")},
    )
    return orjson.loads(done.stdout.splitlines()[-1])


def corpus_file(folder: Path, size: int, embedder: str) -> Path:
    """Return the file of vectors, unit length, made if it is not there: those to add come last."""
    path = folder / f"embeddings-{size}-{embedder.replace('/', '-')}.npy"
    if path.exists():
        return path
    model = resolve_embedder(embedder)
    parts: list[FloatMatrix] = [model.embed_queries(list(islice(varied_queries(), _QUERIES)))]
    total = size + _ADD_ROUNDS * ADDS
    for first in range(0, total, _BATCH):
        steps = varied_steps(min(_BATCH, total - first), first=first)
        parts.append(model.embed_documents([own_text(step) for step in steps]))
    vectors = np.concatenate(parts).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    np.save(unfinished, vectors)
    unfinished.rename(path)
    return path


def measure_size(corpus: Corpus, size: int, rounds: int, peers: Sequence[Peer]) -> dict[str, Any]:
    """Return what each peer takes to find, to filter and to add, beside NumPy and beside us."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        opened: dict[str, VectorSearcher] = {}
        for peer in peers:
            adapter = peer.load()
            if adapter is None:
                found[peer.name] = {"missing": NOT_INSTALLED}
                continue
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            searcher: VectorSearcher = adapter(place)
            stack.callback(searcher.close)
            rows = np.arange(size)
            build = timed(lambda: _load(searcher, rows, corpus))  # noqa: B023 - called at once
            opened[peer.name] = searcher
            found[peer.name] = {"build_seconds": build.wall, "settings": searcher.settings}
        asked = {name: _everything(searcher) for name, searcher in opened.items()}
        for name, row in _finding(asked, corpus.queries, rounds).items():
            found[name]["everything"] = row
        share = _recall_of_a_pool(opened, corpus.queries)
        found[OURS]["settings"] += f"; recall@{POOL}, as a memory's search ranks: {share:.5f}"
        asked = {name: _of_one_user(searcher) for name, searcher in opened.items()}
        asked[KNOWN] = _among_known(cast("MemoryIndex", opened[OURS]))
        found[KNOWN] = {"settings": "a filter's rows found before the clock: the index alone"}
        for name, row in _finding(asked, corpus.queries, rounds).items():
            found[name]["filtered"] = row
        users = {query.tobytes(): f"user-{n % USERS}" for n, query in enumerate(corpus.queries)}
        asked = {name: _of_its_user(searcher, users) for name, searcher in opened.items()}
        for name, row in _finding(asked, corpus.queries, rounds).items():
            found[name]["filtered_in_turn"] = row
        for name, row in _adding(opened, corpus, size).items():
            found[name]["adds"] = row
    return {"dimension": corpus.vectors.shape[1], "peers": found}


def _load(searcher: VectorSearcher, rows: Rows, corpus: Corpus) -> None:
    searcher.add(rows, corpus.vectors[: len(rows)], corpus.users[: len(rows)])
    searcher.settle()


def _everything(searcher: VectorSearcher) -> Ask:
    return lambda query: searcher.search(query, K)


def _of_one_user(searcher: VectorSearcher) -> Ask:
    return lambda query: searcher.search_of(query, K, _USER)


def _of_its_user(searcher: VectorSearcher, users: dict[bytes, str]) -> Ask:
    return lambda query: searcher.search_of(query, K, users[query.tobytes()])


def _among_known(searcher: MemoryIndex) -> Ask:
    known = RowsKnown(searcher, _USER)
    return lambda query: known.search(query, K)


def _finding(asked: dict[str, Ask], queries: FloatMatrix, rounds: int) -> dict[str, Any]:
    """Return what one query takes of each, beside NumPy and beside us, and its recall."""
    turns = {name: _turn(ask, queries) for name, ask in asked.items()}
    samples = interleaved({name: turn for name, (turn, _) in turns.items()}, rounds, warm_up=1)
    each = {name: _per_query(taken, turns[name][1]) for name, taken in samples.items()}
    wanted = [set(asked[NUMPY](query)) for query in queries]
    return {
        name: {
            **_times(each, name),
            "recall": fmean(
                len(rows & set(ask(query))) / len(rows)
                for query, rows in zip(queries, wanted, strict=True)
            ),
        }
        for name, ask in asked.items()
    }


def _recall_of_a_pool(opened: dict[str, VectorSearcher], queries: FloatMatrix) -> float:
    """Return which share of the nearest that a memory's search ranks our index names."""
    found = [[set(opened[name].search(q, POOL)) for name in (NUMPY, OURS)] for q in queries]
    return fmean(len(exact & ours) / len(exact) for exact, ours in found)


def _per_query(samples: Sequence[Sample], count: int) -> list[Sample]:
    return [Sample(sample.cpu / count, sample.wall / count) for sample in samples]


def _turn(ask: Ask, queries: FloatMatrix) -> tuple[Callable[[], None], int]:
    """Return a call that asks several queries, and how many: fewer of who is slow."""
    waiting = cycle(queries)
    ask(next(waiting))
    once = timed(lambda: ask(next(waiting)))
    count = max(1, min(_QUERIES_PER_TURN, int(_SECONDS_PER_TURN / once.wall)))

    def turn() -> None:
        for _ in range(count):
            ask(next(waiting))

    return turn, count


def _times(samples: Samples, name: str) -> dict[str, float]:
    return {
        "wall_ms": typical(samples[name], "wall") / 1e3,
        "cpu_ms": typical(samples[name], "cpu") / 1e3,
        "times_faster_than_numpy": ratio(samples[NUMPY], samples[name], "wall"),
        "wall_ratio": ratio(samples[name], samples[OURS], "wall"),
        "cpu_ratio": ratio(samples[name], samples[OURS], "cpu"),
    }


def _adding(opened: dict[str, VectorSearcher], corpus: Corpus, size: int) -> dict[str, Any]:
    """Return what 1,000 adds and the search after them take; the last one added must be found."""
    samples = interleaved(
        {name: _add_turn(searcher, corpus, size) for name, searcher in opened.items()},
        _ADD_ROUNDS,
        warm_up=0,
    )
    return {name: _times(samples, name) for name in opened}


def _add_turn(searcher: VectorSearcher, corpus: Corpus, size: int) -> Callable[[], None]:
    starts = iter(range(size, size + _ADD_ROUNDS * ADDS, ADDS))

    def add_and_search() -> None:
        rows = np.arange(first := next(starts), first + ADDS)
        searcher.add(rows, corpus.vectors[rows], [corpus.users[row] for row in rows])
        found = searcher.search(corpus.vectors[rows[-1]], K)
        assert int(rows[-1]) in found

    return add_and_search


def _corpus(path: Path, size: int) -> Corpus:
    held = np.load(path)
    users = [f"user-{row // STEPS_PER_RUN % USERS}" for row in range(size + _ADD_ROUNDS * ADDS)]
    return Corpus(held[_QUERIES:], users, held[:_QUERIES])


def peer_tables(found: dict[str, Any]) -> list[Table]:
    """Return one table per size of what `measure_peers` found, a row for each searcher."""
    known: dict[str, None] = dict.fromkeys(found["versions"].values())
    return [
        Table(
            f"nearest vectors of {int(size):,}, dimension {part['dimension']}, one query, 1 thread",
            ["", "", "ms", "CPU ms", "x ours", "x NumPy", f"recall@{K}"],
            [
                [what, name, *_cells(row, measured)]
                for what, measured in _MEASURED.items()
                for name, row in part["peers"].items()
                if measured in row or "missing" in row
            ],
            ["hot loop, interleaved", ", ".join(known), *_settings(part["peers"])],
        )
        for size, part in found["sizes"].items()
    ]


_MEASURED = {
    "nearest of all": "everything",
    "nearest within 1 %": "filtered",
    "another 1 % each time": "filtered_in_turn",
    f"{ADDS:,} adds, then searchable": "adds",
}


def _settings(peers: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {row.get('missing') or row['settings']}"
        + (f"; built in {row['build_seconds']:.1f} s" if "build_seconds" in row else "")
        for name, row in peers.items()
    ]


def _cells(row: dict[str, Any], measured: str) -> list[str]:
    if "missing" in row:
        return [str(row["missing"]), *[""] * 4]
    times = row[measured]
    return [
        number(times["wall_ms"]),
        number(times["cpu_ms"]),
        number(times["wall_ratio"], 2),
        number(times["times_faster_than_numpy"], 1),
        number(times["recall"]) if "recall" in times else "",
    ]


if __name__ == "__main__":
    _path, _size, _rounds, _names = orjson.loads(sys.argv[1])
    _found = measure_size(_corpus(Path(_path), _size), _size, _rounds, chosen(SEARCHERS, _names))
    print(orjson.dumps(_found).decode())
