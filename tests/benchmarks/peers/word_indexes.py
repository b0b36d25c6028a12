"""Who finds steps by their words, of files on disk: our posting lists, and SQLite's FTS5.

Both are given the stems of a step and return the rows of the best by BM25 of an OR query. Ours is
what a memory keeps of words in the file of its index, and is opened as a memory opens it: a page is
read when it is first needed. FTS5 keeps no text, and its file is mapped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from hybridagi_steps.search.bm25 import LexicalIndex
from hybridagi_steps.search.index_cache import load_cache, save_cache
from hybridagi_steps.search.step_index import FORMAT
from tests.benchmarks.peers import WordDocument

_CREATE = """CREATE VIRTUAL TABLE words USING fts5(
    tokens, content = '', tokenize = "unicode61 remove_diacritics 0")"""
_INSERT = "INSERT INTO words (rowid, tokens) VALUES (?, ?)"
_SEARCH = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words) LIMIT ?"
_MAPPED = 2**32


class MemoryWords:
    """The index of words in a file like the one beside a memory."""

    settings = "posting lists and the words of each row in order, exact scores; read by page"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "words.index"
        file = load_cache(self._path, {"format": FORMAT})
        self._index = LexicalIndex() if file is None else LexicalIndex.from_arrays(file)

    def add(self, documents: Sequence[WordDocument]) -> None:
        """Add documents to a new index, and write its file."""
        self._index.add(documents)
        assert save_cache(self._path, {"format": FORMAT}, self._index.to_arrays())

    def search(self, words: Sequence[str], k: int) -> list[int]:
        """Return the best rows."""
        return self._index.match(words).top(k)[0].tolist()

    def close(self) -> None:
        """Nothing to close: the file goes with the index."""


class Fts5Words:
    """A contentless FTS5 table, optimised after loading."""

    settings = "contentless table, optimised; mapped; bm25() with its own constants"

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "words.db", isolation_level=None)
        self._connection.execute(f"PRAGMA mmap_size = {_MAPPED}")

    def add(self, documents: Sequence[WordDocument]) -> None:
        """Insert documents in one transaction."""
        self._connection.execute("BEGIN")
        self._connection.execute(_CREATE)
        rows = ((row, " ".join(words)) for row, words in documents)
        self._connection.executemany(_INSERT, rows)
        self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        self._connection.execute("COMMIT")

    def search(self, words: Sequence[str], k: int) -> list[int]:
        """Return the best rows."""
        either = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
        return [row for (row,) in self._connection.execute(_SEARCH, (either, k))]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
