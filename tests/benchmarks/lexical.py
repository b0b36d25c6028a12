"""Our posting lists beside SQLite's full-text index: why words are not searched by FTS5.

Both hold the same stems of the same made-up steps and are asked for the best 50 of an OR query:
FTS5 by its own `bm25()`, ours by Okapi BM25 with exact scores. Time per query, and how far the
first ten agree; they cannot agree wholly, because FTS5 fixes k1 at 1.2 and gives a word that stands
in more than half of the steps next to no weight.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import cycle
from statistics import fmean
from typing import Any

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.step_text import tokens, window_text
from hybridagi_steps.search.bm25 import LexicalIndex
from tests.benchmarks.conditions import conditions, counts
from tests.benchmarks.corpus import made_queries, made_steps
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import Stopwatch, interleaved, ratio, typical

SIZES = "10000,100000"
POOL = 50
TOP = 10

_CREATE = """CREATE VIRTUAL TABLE words USING fts5(
    tokens, content = '', tokenize = "unicode61 remove_diacritics 0")"""
_INSERT = "INSERT INTO words (rowid, tokens) VALUES (?, ?)"
_SEARCH = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words) LIMIT ?"


def report(json_output: bool = False, **options: Any) -> None:
    """Print how the two compare; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(tables(result["steps"]), result)


def measure(sizes: str = SIZES, rounds: int = 40) -> dict[str, Any]:
    """Return times per query in milliseconds, seconds to build, and the agreement of the top 10.

    Args:
        sizes: Numbers of steps, with commas between them.
        rounds: Queries per measurement.
    """
    found = {str(size): _compared(size, rounds) for size in counts(sizes)}
    return {**conditions(sizes=sizes, rounds=rounds), "steps": found}


def _compared(size: int, rounds: int) -> dict[str, float]:
    documents = _documents(size)
    with Stopwatch() as building_ours:
        index = LexicalIndex()
        index.add(documents)
    with closing(sqlite3.connect(":memory:")) as connection:
        with Stopwatch() as building_theirs:
            connection.execute(_CREATE)
            rows = ((row, " ".join(words)) for row, words in documents)
            connection.executemany(_INSERT, rows)
        asked = [words for query in made_queries(2 * rounds) if (words := tokens(query))][:rounds]
        ours, theirs = cycle(asked), cycle(asked)
        rivals = {
            "ours": lambda: _by_postings(index, next(ours)),
            "fts5": lambda: _by_fts5(connection, next(theirs)),
        }
        samples = interleaved(rivals, len(asked), warm_up=3)
        shares = [
            _agreement(_by_postings(index, words), _by_fts5(connection, words)) for words in asked
        ]
    return {
        "ours_ms": typical(samples["ours"], "wall") / 1e3,
        "fts5_ms": typical(samples["fts5"], "wall") / 1e3,
        "times_faster": ratio(samples["fts5"], samples["ours"], "wall"),
        "agreement": fmean(shares),
        "ours_build_seconds": building_ours.sample.wall,
        "fts5_build_seconds": building_theirs.sample.wall,
    }


def _documents(size: int) -> list[tuple[int, list[str]]]:
    """Return (row, stems) of the window text of each made-up step."""
    found: list[tuple[int, list[str]]] = []
    before: AgentStep | None = None
    for row, step in enumerate(made_steps(size), start=1):
        parent = before if step.parent_id is not None else None
        found.append((row, tokens(window_text(step, parent))))
        before = step
    return found


def _by_postings(index: LexicalIndex, words: list[str]) -> list[int]:
    return index.match(words).top(POOL)[0].tolist()


def _by_fts5(connection: sqlite3.Connection, words: list[str]) -> list[int]:
    either = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
    return [row for (row,) in connection.execute(_SEARCH, (either, POOL))]


def _agreement(ours: list[int], theirs: list[int]) -> float:
    """Return the share of the first ten that both name."""
    most = min(TOP, len(ours))
    return len(set(ours[:TOP]) & set(theirs[:TOP])) / most if most else 1.0


def tables(sizes: dict[str, Any]) -> list[Table]:
    """Return what was measured of each size as a table."""
    names = {
        "ours_ms": "posting lists: ms per query",
        "fts5_ms": "FTS5 bm25(): ms per query",
        "times_faster": "times faster",
        "agreement": f"share of the top {TOP} in common",
        "ours_build_seconds": "posting lists: s to build",
        "fts5_build_seconds": "FTS5: s to build",
    }
    rows = [
        [name, *(number(found[key], 2) for found in sizes.values())] for key, name in names.items()
    ]
    columns = ["", *(f"{int(size):,} steps" for size in sizes)]
    return [Table(f"the best {POOL} by words", columns, rows)]
