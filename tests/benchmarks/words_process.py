"""By how much a fresh process grows that searches by words; `benchmarks lexical` runs it.

Imports are done and the queries are at hand before its memory is looked at; then the index is
opened and searched. Prints resident megabytes as JSON; files that are mapped count as far as they
were read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import psutil

from tests.benchmarks.lexical import POOL, SEARCHES, word_queries
from tests.benchmarks.peers import WORDS, WordSearcher


def grown(folder: Path, name: str) -> dict[str, float]:
    """Return the megabytes that opening an index and searching in it take."""
    [adapter] = [found for p in WORDS if p.name == name and (found := p.load()) is not None]
    queries, process = word_queries(SEARCHES), psutil.Process()
    before = process.memory_info().rss
    searcher: WordSearcher = adapter(folder)
    for words in queries:
        searcher.search(words, POOL)
    return {"resident_mb": (process.memory_info().rss - before) / 2**20}


if __name__ == "__main__":
    print(orjson.dumps(grown(Path(sys.argv[1]), sys.argv[2])).decode())
