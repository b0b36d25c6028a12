"""Our posting lists beside SQLite's full-text index and tantivy: time, memory, and what they find.

All hold the same stems of the same varied steps in files, and are asked for the best 50 of an OR
query, in turns, by a process that has asked as many others before (of FTS5 none). What is resident
is told by a fresh process each (words_process.py). The first ten cannot agree wholly: ours are by
exact Okapi BM25, FTS5 gives a word that stands in more than half of the steps next to no weight,
and both others fix k1 at 1.2.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import orjson

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.step_text import glimpse_text, own_text, tokens
from hybridagi_steps.search.step_index import FORMAT
from tests.benchmarks import CHECKOUT
from tests.benchmarks.conditions import conditions, counts
from tests.benchmarks.peers import (
    NOT_INSTALLED,
    OURS,
    WORDS,
    Peer,
    WordDocument,
    WordSearcher,
    check_names,
    chosen,
    folder_bytes,
)
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import interleaved, ratio, timed, typical
from tests.benchmarks.varied import varied_queries, varied_steps

SIZES = "10000,100000"
POOL = 50
TOP = 10
FTS5, TANTIVY = "SQLite FTS5", "tantivy"
SEARCHES = 200
"""Asked by a fresh process before its memory is looked at."""
_BUILT = "built.json"


def report(json_output: bool = False, **options: Any) -> None:
    """Print how they compare; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(tables(result["steps"]), result)


def measure(
    sizes: str = SIZES, rounds: int = 40, peers: str = "all", workdir: str | None = None
) -> dict[str, Any]:
    """Return times per query in milliseconds, memory, seconds to build, and what they agree on.

    Args:
        sizes: Numbers of steps, with commas between them.
        rounds: Queries per measurement.
        peers: Whom to measure beside us and FTS5: all, none, or how their names begin.
        workdir: Folder in which what was built is kept for the next time.
    """
    check_names(peers)
    asked = chosen(WORDS, f"{peers},{FTS5}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(workdir or name)
        found = {str(size): _compared(folder, size, rounds, asked) for size in counts(sizes)}
    return {**conditions(sizes=sizes, rounds=rounds, peers=peers), "steps": found}


def _compared(folder: Path, size: int, rounds: int, peers: Sequence[Peer]) -> dict[str, Any]:
    made = {peer.name: folder / f"stems-{size}-{FORMAT}" / peer.name for peer in peers}
    built = _built(made, size, peers)
    with ExitStack() as stack:
        opened: dict[str, WordSearcher] = {}
        for peer in peers:
            if (adapter := peer.load()) is not None:
                opened[peer.name] = adapter(made[peer.name])
                stack.callback(opened[peer.name].close)
        times, shares = _finding(opened, word_queries(2 * rounds))
        settings = {name: searcher.settings for name, searcher in opened.items()}
    found: dict[str, Any] = {
        "ours_ms": times[OURS]["ms"],
        "fts5_ms": times[FTS5]["ms"],
        "times_faster": times[FTS5]["ratio"],
        "agreement": shares[FTS5],
        "ours_build_seconds": built[OURS],
        "fts5_build_seconds": built[FTS5],
        "ours": {**times[OURS], **_resident(made[OURS], OURS)},
        "settings": settings,
    }
    if TANTIVY in opened:
        more = {"agreement": shares[TANTIVY], "build_seconds": built[TANTIVY]}
        found[TANTIVY] = {**times[TANTIVY], **more, **_resident(made[TANTIVY], TANTIVY)}
    elif TANTIVY in made:
        found[TANTIVY] = {"missing": NOT_INSTALLED}
    return found


def _built(made: dict[str, Path], size: int, peers: Sequence[Peer]) -> dict[str, float]:
    """Fill the indexes that are not there; return the seconds that filling each of them took."""
    documents: list[WordDocument] = []
    found: dict[str, float] = {}
    for peer in peers:
        if (adapter := peer.load()) is None:
            continue
        folder = made[peer.name]
        if not folder.exists():
            documents = documents or _documents(size)
            folder.parent.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
            searcher: WordSearcher = adapter(unfinished)
            took = timed(lambda: searcher.add(documents))  # noqa: B023 - called at once
            searcher.close()
            (unfinished / _BUILT).write_bytes(orjson.dumps(took.wall))
            unfinished.rename(folder)
        found[peer.name] = orjson.loads((folder / _BUILT).read_bytes())
    return found


def _finding(
    opened: dict[str, WordSearcher], asked: Sequence[list[str]]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return what a query of the second half takes of each, and what both name of our first ten."""
    others, asked = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    for name, searcher in opened.items():
        if name != FTS5:  # which would take as long again, and whose pages the system holds
            for words in others:
                searcher.search(words, POOL)
    answers: dict[str, list[list[int]]] = {name: [] for name in opened}
    rivals = {name: _turn(each, asked, answers[name]) for name, each in opened.items()}
    samples = interleaved(rivals, len(asked), warm_up=0)
    times = {
        name: {
            "ms": typical(taken, "wall") / 1e3,
            "cpu_ms": typical(taken, "cpu") / 1e3,
            "p99_ms": float(np.percentile([sample.wall for sample in taken], 99)) * 1e3,
            "ratio": ratio(taken, samples[OURS], "wall"),
        }
        for name, taken in samples.items()
    }
    pairs = {name: zip(answers[OURS], theirs, strict=True) for name, theirs in answers.items()}
    return times, {name: fmean(_agreement(*pair) for pair in each) for name, each in pairs.items()}


def _turn(
    searcher: WordSearcher, asked: Sequence[list[str]], answers: list[list[int]]
) -> Callable[[], object]:
    waiting = iter(asked)
    return lambda: answers.append(searcher.search(next(waiting), POOL))


def _resident(folder: Path, name: str) -> dict[str, float]:
    """Let a fresh process ask; return by how much it grew, and the bytes of the files."""
    command = [sys.executable, "-m", "tests.benchmarks.words_process", str(folder.absolute()), name]
    done = subprocess.run(command, check=True, cwd=CHECKOUT, stdout=subprocess.PIPE)
    return {**orjson.loads(done.stdout.splitlines()[-1]), "file_mb": folder_bytes(folder) / 2**20}


def word_queries(count: int) -> list[list[str]]:
    """Return the stems of queries."""
    return list(islice((words for query in varied_queries() if (words := tokens(query))), count))


def _documents(size: int) -> list[WordDocument]:
    """Return (row, stems) of the window text of each step."""
    found: list[WordDocument] = []
    before: AgentStep | None = None
    for row, step in enumerate(varied_steps(size), start=1):
        parent = before if step.parent_id is not None else None
        found.append((row, tokens(glimpse_text(parent) + own_text(step))))
        before = step
    return found


def _agreement(ours: list[int], theirs: list[int]) -> float:
    """Return the share of the first ten that both name."""
    most = min(TOP, len(ours))
    return len(set(ours[:TOP]) & set(theirs[:TOP])) / most if most else 1.0


def tables(sizes: dict[str, Any]) -> list[Table]:
    """Return what was measured of each size as a table."""
    rows = [
        [name, *(_cell(found, key.split("/"), digits) for found in sizes.values())]
        for key, (name, digits) in _ROWS.items()
    ]
    columns = ["", *(f"{int(size):,} steps" for size in sizes)]
    settings = {**list(sizes.values())[-1].get("settings", {})}
    notes = [f"{name}: {words}" for name, words in settings.items()]
    return [Table(f"the best {POOL} by words", columns, rows, notes)]


_ROWS = {
    "ours_ms": ("posting lists: ms per query", 2),
    "ours/p99_ms": ("posting lists: p99", 2),
    "tantivy/ms": ("tantivy: ms per query", 2),
    "tantivy/p99_ms": ("tantivy: p99", 2),
    "tantivy/ratio": ("tantivy's time in units of ours", 2),
    "fts5_ms": ("FTS5 bm25(): ms per query", 2),
    "times_faster": ("FTS5's time in units of ours", 1),
    "ours/resident_mb": (f"posting lists: MB resident after {SEARCHES} searches", 0),
    "tantivy/resident_mb": ("tantivy: the same", 0),
    "ours/file_mb": ("posting lists: MB of files, resident once all is read", 0),
    "tantivy/file_mb": ("tantivy: the same", 0),
    "tantivy/agreement": (f"share of the top {TOP} that tantivy names", 2),
    "agreement": (f"share of the top {TOP} that FTS5 names", 2),
    "ours_build_seconds": ("posting lists: s to build", 2),
    "tantivy/build_seconds": ("tantivy: s to build", 2),
    "fts5_build_seconds": ("FTS5: s to build", 2),
}


def _cell(found: dict[str, Any], path: Sequence[str], digits: int) -> str:
    value: Any = found
    for key in path:
        if "missing" in value:
            return str(value["missing"])
        if (value := value.get(key)) is None:
            return number(None)
    return number(value, digits)
