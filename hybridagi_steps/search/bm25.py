"""Okapi BM25 over the words of steps, exact, in memory.

Postings are three flat arrays (one run of document positions per term), so a query is a handful of
vectorised additions and every document's score is exact, whatever the filter; no candidate list is
ever guessed. Fresh documents wait in a small dict until they are merged. Removed documents stay in
the postings, are not counted, and go at the next merge. What the words are is decided elsewhere.

Reference: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.store_values import Rows
from hybridagi_steps.search.forward_index import K1, B, ForwardIndex, Spelling

FURTHER = 0.2
"""What a further word counts, where a single word of an average document counts 1; the best on the
half of the shipped runs that is for tuning, see `python -m tests.benchmarks quality`."""

NARROW = 0.1
"""Share of the documents up to which looking each one up beats scoring all."""

LONG = 16
"""Lists with more than one in so many documents are worth a look at who can still be among the
best."""
FEW = 4
"""Fewer than one in so many documents are looked up one by one."""

_ROUNDING = 1e-5
_ALL = slice(None)
_MERGE_AT_LEAST = 2_000
_MERGE_SHARE = 0.1

_Positions = npt.NDArray[np.int32]
_Lengths = npt.NDArray[np.float32]
_Scores = npt.NDArray[np.float32]
_Flags = npt.NDArray[np.bool_]


class Document(NamedTuple):
    """The words of one row."""

    row: int
    words: Sequence[str]
    further: Sequence[str] = ()
    own_from: int = 0
    """Where its own words begin; those before are another's."""


class Statistics(NamedTuple):
    """What the weights of a query's terms depend on."""

    documents: int
    average_length: float
    frequencies: dict[str, int]
    """Number of documents that hold each query term."""

    def weight(self, term: str) -> float:
        """Return the inverse document frequency of a term; never negative."""
        holding = min(self.frequencies.get(term, 0), self.documents)
        return float(inverse_frequency(self.documents, np.array(holding)))


def inverse_frequency(documents: int, holding: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the weight of terms that so many of the documents hold; never negative."""
    return np.log1p((documents - holding + 0.5) / (holding + 0.5))


@dataclass
class Postings:
    """Merged postings: term t stands in `positions[starts[t]:starts[t + 1]]`, ascending."""

    starts: npt.NDArray[np.int64]
    positions: _Positions
    counts: npt.NDArray[np.uint16]


class LexicalIndex:
    """The words of documents, each known by its row number. Not thread-safe by itself."""

    def __init__(self) -> None:
        self.forward = ForwardIndex()
        """The same documents, in order, by position."""
        self._terms: dict[str, int] = {}
        self._spelled = _Spelling()
        self._merged = _no_postings()
        self._fresh: dict[int, tuple[list[int], list[int]]] = {}
        self._fresh_documents = 0
        self._rows = np.empty(0, np.int64)
        self._lengths = np.empty(0, np.float32)
        self._live = np.empty(0, np.bool_)
        self._size = 0
        self._documents, self._words = 0, 0
        self._damped: tuple[tuple[float, int], _Lengths] = (0.0, -1), np.empty(0, np.float32)
        self._by_row: tuple[Rows, npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Number of live documents."""
        return self._documents

    def add(self, documents: Iterable[tuple[int, Sequence[str]] | Document]) -> None:
        """Add documents as (row, words); a row already held is replaced.

        A `Document` may have further words: they are found, with a count of 0, which weighs
        `FURTHER`, and do not make it longer.
        """
        added = [d if isinstance(d, Document) else Document(*d) for d in documents]
        self.remove(np.array([document.row for document in added], np.int64))
        self._reserve(len(added))
        for row, words, further, own_from in added:
            position = self._size
            self._rows[position], self._lengths[position] = row, len(words)
            self._live[position] = True
            counted = dict.fromkeys(further, 0) | Counter(words)
            for word, count in counted.items():
                term = self._terms.setdefault(word, len(self._terms))
                positions, counts = self._fresh.setdefault(term, ([], []))
                positions.append(position)
                counts.append(min(count, 65_535))
            self.forward.append([self._terms[word] for word in words], own_from)
            self._size += 1
            self._documents, self._words = self._documents + 1, self._words + len(words)
        self._fresh_documents += len(added)
        self._by_row = None
        if self._fresh_documents > max(_MERGE_AT_LEAST, _MERGE_SHARE * self._size):
            self.merge()

    def remove(self, rows: Rows) -> int:
        """Forget rows; unknown ones are skipped. Returns how many were held."""
        positions = self.positions_of(rows)
        positions = np.unique(positions[positions >= 0])
        self._live[positions] = False
        self._documents -= len(positions)
        self._words -= int(self._lengths[positions].sum())
        return len(positions)

    def statistics(self, terms: Iterable[str]) -> Statistics:
        """Return what the weights of `terms` depend on, counting live documents only."""
        live, whole = self._live[: self._size], self._documents == self._size
        postings = {term: self._posting(term)[0] for term in set(terms)}
        found = {t: len(p) if whole else int(live[p].sum()) for t, p in postings.items()}
        return Statistics(self._documents, self.average_length, found)

    def match(self, terms: Iterable[str], statistics: Statistics | None = None) -> Match:
        """Return what scores documents against the distinct query terms.

        Args:
            terms: The query's words, as they were given to `add`.
            statistics: Weights of another collection; by default this index's own.
        """
        distinct = list(dict.fromkeys(terms))
        known = statistics or self.statistics(distinct)
        lists = [
            TermScores(*self._posting(term), np.float32(known.weight(term))) for term in distinct
        ]
        return Match(self, lists, self._damping(known.average_length or 1.0))

    def _damping(self, average: float) -> _Lengths:
        """Return what a document's length adds to how often a term must stand in it."""
        if self._damped[0] != (average, self._size):
            lengths = self._lengths[: self._size]
            damped = (K1 * (1 - B + B * lengths / average)).astype(np.float32)
            self._damped = (average, self._size), damped
        return self._damped[1]

    def live(self) -> _Flags | None:
        """Return which positions are not removed; None when all are there."""
        return None if self._documents == self._size else self._live[: self._size]

    def counts_of(self, terms: Sequence[str], rows: Rows) -> npt.NDArray[np.int64]:
        """Return how often each row has each term, shape (rows, terms).

        0 stands for a term among a row's further words, -1 for one that it has nowhere.
        """
        found = np.full((len(rows), len(terms)), -1, np.int64)
        wanted = self.positions_of(rows).astype(np.int32)
        for number, term in enumerate(terms):
            held, counts = self._posting(term)
            if len(held):
                place = held.searchsorted(wanted)
                place[place == len(held)] = 0
                (there,) = (held[place] == wanted).nonzero()
                found[there, number] = counts[place[there]]
        return found

    def numbers(self, terms: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the number of each term, -1 for those that no document holds."""
        return np.array([self._terms.get(term, -1) for term in terms], np.int64)

    @property
    def average_length(self) -> float:
        """Words of the average live document."""
        return self._words / self._documents if self._documents else 0.0

    @property
    def average_own_length(self) -> float:
        """Own words of the average document, removed ones included until they go."""
        return self.forward.own_words / self._size if self._size else 0.0

    def grouped(
        self, terms: Sequence[str], rows: Rows, groups: npt.NDArray[Any], count: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Count terms in groups of documents, each taken as one text.

        Args:
            terms: What to count.
            rows: The documents; those not held are skipped.
            groups: The group of each of them, below `count`.
            count: How many groups there are.

        Returns:
            How often each group has each term, shape (groups, terms), and the words of each group.
        """
        positions = self.positions_of(rows)
        group_of = np.full(self._size, -1, np.int64)
        group_of[positions[positions >= 0]] = groups[positions >= 0]
        held = group_of >= 0
        lengths = np.bincount(group_of[held], self._lengths[: self._size][held], minlength=count)
        counts = np.zeros((count, len(terms)))
        for place, term in enumerate(terms):
            found, often = self._posting(term)
            group = group_of[found]
            known = group >= 0
            counts[:, place] = np.bincount(group[known], often[known], minlength=count)
        return counts, lengths

    @property
    def vocabulary(self) -> int:
        """How many term numbers there are."""
        return len(self._terms)

    def spelling(self) -> Spelling:
        """Return all terms as one UTF-8 text, and behind which byte of it each ends."""
        self._spelled.follow(self._terms)
        return self._spelled.text, self._spelled.ends

    def merge(self) -> None:
        """Fold fresh documents into the postings and drop removed ones."""
        live = self._live[: self._size]
        renumbered = np.cumsum(live, dtype=np.int64) - 1
        merged = _merge(self._merged, self._fresh, len(self._terms))
        kept = live[merged.positions]
        if not kept.all():
            before = np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))
            merged = Postings(before[merged.starts], merged.positions[kept], merged.counts[kept])
        positions = renumbered[merged.positions].astype(np.int32)
        # Words that no document holds any more are forgotten with the documents that held them.
        used = np.diff(merged.starts) > 0
        names = [term for term, kept in zip(self._terms, used.tolist(), strict=True) if kept]
        self._terms = {term: number for number, term in enumerate(names)}
        self.forward.renumber(live, (np.cumsum(used) - 1).astype(np.uint32))
        self._spelled = _Spelling()
        starts = np.concatenate((merged.starts[:-1][used], merged.starts[-1:]))
        self._merged = Postings(starts, positions, merged.counts)
        self._rows = self._rows[: self._size][live]
        self._lengths = self._lengths[: self._size][live]
        self._size = len(self._rows)
        self._live = np.ones(self._size, np.bool_)
        self._damped = (0.0, -1), self._damped[1]
        self._fresh, self._fresh_documents, self._by_row = {}, 0, None

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole index as flat arrays, merged."""
        self.merge()
        words = "\n".join(self._terms).encode()
        return {
            "terms": np.frombuffer(words, np.uint8),
            "starts": self._merged.starts,
            "positions": self._merged.positions,
            "counts": self._merged.counts,
            "rows": self._rows,
            "lengths": self._lengths,
            **{f"forward_{name}": array for name, array in self.forward.to_arrays().items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> LexicalIndex:
        """Return the index that `to_arrays` described."""
        index = cls()
        words = arrays["terms"].tobytes().decode()
        names = words.split("\n") if words else []
        index._terms = {word: number for number, word in enumerate(names)}
        index._merged = Postings(arrays["starts"], arrays["positions"], arrays["counts"])
        index._rows, index._lengths = arrays["rows"], arrays["lengths"]
        index.forward = ForwardIndex.from_arrays(
            {name: arrays[f"forward_{name}"] for name in ("ids", "ends", "own_from")}
        )
        index._size = len(index._rows)
        index._live = np.ones(index._size, np.bool_)
        index._documents, index._words = index._size, int(index._lengths.sum(dtype=np.float64))
        return index

    def rows(self) -> Rows:
        """Return the row of each position, removed documents included."""
        return self._rows[: self._size]

    def _posting(self, term: str) -> tuple[_Positions, npt.NDArray[np.uint16]]:
        """Return where a term stands, ascending, and how often."""
        positions, counts = np.empty(0, np.int32), np.empty(0, np.uint16)
        number = self._terms.get(term)
        if number is None:
            return positions, counts
        starts = self._merged.starts
        if number + 1 < len(starts):
            run = slice(int(starts[number]), int(starts[number + 1]))
            positions, counts = self._merged.positions[run], self._merged.counts[run]
        if number in self._fresh:
            new_positions, new_counts = self._fresh[number]
            positions = np.concatenate((positions, np.array(new_positions, np.int32)))
            counts = np.concatenate((counts, np.array(new_counts, np.uint16)))
        return positions, counts

    def positions_of(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the live position of each row, -1 where it is not held."""
        if not self._size or not len(rows):
            return np.full(len(rows), -1, np.int64)
        if self._by_row is None:
            order = np.argsort(self._rows[: self._size], kind="stable")
            self._by_row = self._rows[order], order
        known, order = self._by_row
        # A replaced row stands twice; the last of equal rows is the newest.
        found = np.searchsorted(known, rows, side="right") - 1
        positions = order[np.maximum(found, 0)]
        held = (found >= 0) & (self._rows[positions] == rows) & self._live[positions]
        return np.where(held, positions, -1)

    def _reserve(self, more: int) -> None:
        need = self._size + more
        if need <= len(self._live):
            return
        room = max(need, 2 * len(self._live), 1024)
        for name in ("_rows", "_lengths", "_live"):
            old = getattr(self, name)
            grown = np.zeros(room, old.dtype)
            grown[: self._size] = old[: self._size]
            setattr(self, name, grown)


class _Spelling:
    """The bytes of all terms side by side, kept as terms are added."""

    def __init__(self) -> None:
        self.text, self.ends = np.empty(0, np.uint8), np.empty(0, np.int64)

    def follow(self, terms: dict[str, int]) -> None:
        fresh = [*islice(reversed(terms), len(terms) - len(self.ends))]
        if not fresh:
            return
        spelled = [term.encode("utf-8", "replace") for term in reversed(fresh)]
        ends = len(self.text) + np.cumsum([len(term) for term in spelled])
        self.text = np.concatenate((self.text, np.frombuffer(b"".join(spelled), np.uint8)))
        self.ends = np.concatenate((self.ends, ends))


class TermScores(NamedTuple):
    """One term of a query: where it stands, how often, and its weight."""

    positions: _Positions
    counts: npt.NDArray[np.uint16]
    weight: np.float32

    @property
    def most(self) -> float:
        """The most that it can add to a score."""
        return float(self.weight) * (K1 + 1)

    def scores(self, damped: _Lengths, places: npt.NDArray[np.intp] | slice = _ALL) -> _Scores:
        """Return what the term adds to its documents, or to those at some places of the list."""
        counts = self.counts[places]
        often = counts.astype(np.float32)
        below = often + damped.take(self.positions[places])
        added: _Scores = np.divide(often * (K1 + 1), below, dtype=np.float32)
        added[counts == 0] = FURTHER
        return added * self.weight


class Match:
    """The scores of one query over one index, exact for any row.

    The best are found without adding up every document: once the documents that hold the rarer
    terms are so good that the common terms alone cannot reach the k best, only those that still can
    get there are looked up in the long lists.

    Reference: Turtle and Flood 1995, "Query evaluation: strategies and optimizations" (max-score).
    """

    def __init__(self, index: LexicalIndex, terms: list[TermScores], damped: _Lengths) -> None:
        self._index, self._damped = index, damped
        self._terms = sorted(terms, key=lambda term: len(term.positions))

    def of(self, rows: Rows) -> _Scores:
        """Return the exact score of each row; 0 for rows not held."""
        positions = self._index.positions_of(rows).astype(np.int32)
        known, place = np.unique(positions, return_inverse=True)
        scores = np.zeros(len(known), np.float32)
        self._look_up(self._terms, known, scores)
        return np.where(positions >= 0, scores[place], np.float32(0.0))

    def top(self, k: int, rows: Rows | None = None) -> tuple[Rows, _Scores]:
        """Return up to k best rows with a score above 0, best first, ties by row."""
        size = len(self._damped)
        if rows is not None and len(rows) <= NARROW * size:
            held, scores = rows, self.of(rows)
            chosen = _best(scores, k)
        else:
            positions, scores = self._contenders(k, self._passing(rows))
            held, chosen = self._index.rows()[positions], _best(scores, k)
        order = np.lexsort((held[chosen], -scores[chosen]))[:k]
        return held[chosen][order], scores[chosen][order]

    def _passing(self, rows: Rows | None) -> _Flags | None:
        """Return which positions may be found; None: all."""
        if rows is None:
            return self._index.live()
        positions = self._index.positions_of(rows)
        passing = np.zeros(len(self._damped), np.bool_)
        passing[positions[positions >= 0]] = True
        return passing

    def _contenders(self, k: int, passing: _Flags | None) -> tuple[_Positions, _Scores]:
        """Return positions among which are the k best, with their scores."""
        size = len(self._damped)
        scores = np.zeros(size, np.float32)
        left, seen, looked = sum(term.most for term in self._terms), 0, 0
        for number, term in enumerate(self._terms):
            if len(term.positions) > size // LONG and seen >= 2 * looked:
                looked = seen
                found = _still_possible(scores, passing, left, k)
                if found is not None:
                    best = scores[found]
                    self._look_up(self._terms[number:], found, best)
                    return found, best
            scores[term.positions] += term.scores(self._damped)
            left -= term.most
            seen += len(term.positions)
        if passing is not None:
            scores[~passing] = 0.0
        return np.arange(size, dtype=np.int32), scores

    def _look_up(self, terms: list[TermScores], positions: _Positions, scores: _Scores) -> None:
        """Add what terms say of some positions, which ascend."""
        for term in terms:
            if len(term.positions):
                place = np.searchsorted(term.positions, positions)
                place[place == len(term.positions)] = 0
                held = term.positions[place] == positions
                scores[held] += term.scores(self._damped, place[held])


def _still_possible(
    scores: _Scores, passing: _Flags | None, left: float, k: int
) -> _Positions | None:
    """Return the positions that can be among the k best; None: too many, or any.

    Args:
        scores: What the terms so far add up to.
        passing: Which positions count; None: all.
        left: The most that the other terms can add.
        k: How many are wanted.
    """
    (touched,) = scores.nonzero()
    if passing is not None:
        touched = touched[passing[touched]]
    if len(touched) < k:
        return None
    reached = scores[touched]
    least = np.partition(reached, len(reached) - k)[len(reached) - k] * (1 - _ROUNDING) - left
    possible = touched[reached >= least] if least > 0 else touched[:0]
    return possible.astype(np.int32) if 0 < len(possible) < len(scores) // FEW else None


def _best(scores: _Scores, k: int) -> npt.NDArray[np.intp]:
    """Return the places of the k best scores above 0, and of ties with the last."""
    if len(scores) <= k:
        return np.flatnonzero(scores > 0)
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero((scores >= least) & (scores > 0))


def _no_postings() -> Postings:
    return Postings(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.uint16))


def _merge(old: Postings, fresh: dict[int, tuple[list[int], list[int]]], terms: int) -> Postings:
    """Return postings with the fresh ones after the old ones of each term."""
    old_sizes = np.zeros(terms, np.int64)
    old_sizes[: len(old.starts) - 1] = np.diff(old.starts)
    new_sizes = np.zeros(terms, np.int64)
    for term, (positions, _) in fresh.items():
        new_sizes[term] = len(positions)
    starts = np.concatenate(([0], np.cumsum(old_sizes + new_sizes)))
    positions = np.empty(int(starts[-1]), np.int32)
    counts = np.empty(int(starts[-1]), np.uint16)
    # Each old run moves right by what the terms before it gained.
    moved = np.arange(len(old.positions)) + np.repeat(
        starts[:-1] - np.concatenate(([0], np.cumsum(old_sizes)))[:-1], old_sizes
    )
    positions[moved], counts[moved] = old.positions, old.counts
    for term, (new_positions, new_counts) in fresh.items():
        run = slice(int(starts[term] + old_sizes[term]), int(starts[term + 1]))
        positions[run], counts[run] = new_positions, new_counts
    return Postings(starts, positions, counts)
