"""PartialIndex: what one search has read of a namespace, scored as if all of it were there.

The candidates of a query with what stands around them make an index of some hundred rows, by the
same classes as an index of all rows, so that the same functions rank it. What depends on all rows,
how many there are and hold a word, the database has counted. Rows that a filter holds back are
known by their links alone: a walk goes on behind them, and nothing shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.store_values import Rows, StemCounts, TextRow, VectorRow, among
from hybridagi_steps.search.bm25 import LexicalIndex, Statistics, inverse_frequency
from hybridagi_steps.search.columns.row_filter import RowFilter
from hybridagi_steps.search.columns.step_columns import StepColumns, TurnColumns, turns_of
from hybridagi_steps.search.forward_index import Places, bm25
from hybridagi_steps.search.indexing import Held
from hybridagi_steps.search.posting_blocks import FURTHER
from hybridagi_steps.search.step_index import Shard
from hybridagi_steps.search.vector_index import FaissIndex

Passing = Callable[[Rows], npt.NDArray[np.bool_]]
"""Which of some rows a filter lets through."""


class Filtered(NamedTuple):
    """The rows that pass some filters."""

    rows: Rows | None
    """None where nearly all pass."""
    passing: Passing


class CountedWords(LexicalIndex):
    """The words of some documents, which weigh what they do among all."""

    def __init__(self, counts: StemCounts) -> None:
        """Score by `counts`; they have every term that is asked for."""
        super().__init__()
        self._counts = counts

    def __len__(self) -> int:
        """Number of all documents."""
        return self._counts.documents

    def statistics(self, terms: Iterable[str]) -> Statistics:
        """Return what the weights of terms depend on, counted in all documents."""
        held = {term: self._counts.holding[term] for term in terms}
        return Statistics(self._counts.documents, self.average_length, held)

    @property
    def average_length(self) -> float:
        """Words of the average of all documents."""
        return self._counts.words / max(self._counts.documents, 1)

    @property
    def average_own_length(self) -> float:
        """Own words of the average of all documents."""
        return self._counts.own_words / max(self._counts.documents, 1)


class PartialIndex:
    """Some rows of a namespace."""

    whole = False

    def __init__(
        self, dimension: int, filters: RowFilter, counts: StemCounts, passing: Passing
    ) -> None:
        """Begin with nothing.

        `filters` number the keys of rows, asked only by some aims; `counts` are of all rows, with
        every stem that a query has; `passing` says which rows may be found.
        """
        self.columns, self.turns = StepColumns(), TurnColumns()
        self.filters, self._passing = filters, passing
        self.own = Shard(CountedWords(counts), FaissIndex(dimension))
        self.scoped = Shard(LexicalIndex(), FaissIndex(dimension))
        self._known: set[int] = set()

    def shards(self, *, own_only: bool) -> list[Shard]:
        """Return the shards to search."""
        return [self.own] if own_only else [self.own, self.scoped]

    def missing(self, rows: Rows) -> Rows:
        """Return those of some rows that were not added yet."""
        return np.array([row for row in rows.tolist() if row not in self._known], np.int64)

    def add(self, texts: Iterable[TextRow]) -> Rows:
        """Take rows in; return those that may be found, ascending, those known before as well."""
        given = {text.row: text for text in texts}
        fresh = [text for row, text in given.items() if row not in self._known]
        rows = np.array(sorted(given), np.int64)
        passing = rows[self._passing(rows)]
        shown = {*passing.tolist()}
        found = [text for text in fresh if text.row in shown]
        self._known.update(text.row for text in fresh)
        self.columns.add(fresh)
        self.turns.add(turns_of(found))
        for shard, scoped in ((self.own, False), (self.scoped, True)):
            worded = [text for text in found if text.scoped == scoped and text.text_hash]
            if worded:
                shard.lexical.add_lines((text.row, text.tokens) for text in worded)
        return passing

    def holds(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows were added and may be found."""
        own, scoped = (s.lexical.positions_of(rows) >= 0 for s in (self.own, self.scoped))
        return own | scoped

    def add_vectors(self, vectors: Sequence[VectorRow]) -> None:
        """Take in vectors, those of rows that were added and may be found."""
        held = self.holds(np.array([each.row for each in vectors], np.int64)).tolist()
        vectors = [each for each, holds in zip(vectors, held, strict=True) if holds]
        for shard, scoped in ((self.own, False), (self.scoped, True)):
            usable = [v for v in vectors if v.vector is not None and v.scoped == scoped]
            if usable:
                rows = np.array([each.row for each in usable], np.int64)
                shard.vectors.add(rows, np.stack([np.asarray(each.vector) for each in usable]))


def none_of(rows: Rows, gone: Rows) -> npt.NDArray[np.bool_]:
    """Return which of some rows are not gone."""
    return ~among(rows, gone)


def with_unsaved(texts: Iterable[TextRow], counts: StemCounts) -> StemCounts:
    """Return counts with rows that are not saved yet."""
    documents, words, own_words, holding = counts
    for text in texts:
        if text.text_hash and not text.scoped:
            window, further, *_ = (*text.tokens.split("\n", 2), "")
            documents += 1
            words += len(window.split())
            own_words += len(window.rpartition("\t")[2].split())
            held = {*window.split(), *further.split()}
            holding = {stem: n + (stem in held) for stem, n in holding.items()}
    return StemCounts(documents, words, own_words, holding)


def saved_first(saved: list[VectorRow], held: Held, rows: Rows) -> list[VectorRow]:
    """Return vectors of some rows: those saved, else those held."""
    known = {each.row for each in saved}
    asked = {*rows.tolist()}
    more = [v for row, v in held.vectors.items() if row not in known and row in asked]
    return [*saved, *more]


def window_scores(words: str, counts: StemCounts, terms: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the BM25 score of words as they are stored, without making an index of them.

    Words are given as `SearchView.holding` does; `counts` are of all rows.
    """
    data = np.frombuffer(f"{words}\x01".encode(), np.uint8)
    (ends,), (lines,) = ((data == byte).nonzero() for byte in (1, ord("\n")))
    begins, lines = np.append(0, ends[:-1] + 1), np.append(lines, len(data))
    first = np.searchsorted(lines, begins)
    window = np.minimum(lines[first], ends)
    last = np.minimum(lines[np.minimum(first + 1, len(lines) - 1)], ends)
    edges = np.flatnonzero(np.diff(data > ord(" "), prepend=False))
    words_from, sizes = edges[::2], edges[1::2] - edges[::2]
    lengths = np.searchsorted(words_from, window) - np.searchsorted(words_from, begins)
    at, term = _found(data, words_from, sizes, [each.encode() for each in terms])
    row = np.searchsorted(ends, at)
    inside, near = at < window[row], at < last[row]
    cell, shape = row * len(terms) + term, (len(ends), len(terms))
    held = np.bincount(cell[inside], minlength=len(ends) * len(terms)).reshape(shape)
    further = np.bincount(cell[near & ~inside], minlength=held.size).reshape(shape) > 0
    documents = max(counts.documents, 1)
    holding = np.array([counts.holding[term] for term in terms])
    weights = inverse_frequency(documents, np.minimum(holding, documents))
    of_windows = bm25(held.astype(np.float64), lengths, weights, counts.words / documents)
    return of_windows + FURTHER * (further @ weights)


def _found(
    data: npt.NDArray[np.uint8], begins: Places, sizes: Places, terms: Sequence[bytes]
) -> tuple[Places, Places]:
    """Return where words are that are one of some terms, and which."""
    found, kinds = [begins[:0]], sizes * 256 + data[begins]
    for term in terms:
        places = begins[kinds == len(term) * 256 + term[0]]
        letters = data[places[:, None] + np.arange(len(term))]
        found.append(places[(letters == np.frombuffer(term, np.uint8)).all(axis=1)])
    return np.concatenate(found), np.repeat(np.arange(len(terms)), [len(f) for f in found[1:]])
