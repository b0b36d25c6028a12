"""Okapi BM25 over the words of steps, exact, in memory.

Words in order stand in the forward index, which scores any row exactly; postings of blocks of
documents name the best rows without adding up all that hold a word. Both take removed documents
along, which are not counted and go when they are many, or before all is saved. What the words are
is decided elsewhere.

Reference: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.store_values import Rows, distinct
from hybridagi_steps.search.forward_index import (
    K1,
    B,
    Counts,
    ForwardIndex,
    FoundTerms,
    Slots,
    TermSlots,
    Words,
    changing,
)
from hybridagi_steps.search.index_cache import CacheFile
from hybridagi_steps.search.posting_blocks import (
    FEW_PLACES,
    FURTHER,
    NEWEST,
    SHORT_LIST,
    BlockSums,
    Found,
    Posting,
    PostingBlocks,
)
from hybridagi_steps.search.vector_rows import RowPositions, standing_among
from hybridagi_steps.search.vocabulary import Spelled, Vocabulary, cut_words

FEW = 256
"""Documents whose words are counted one by one rather than looked for in postings."""
NARROW = 0.1
"""Share of the documents up to which a filter lists them; those of a wider one are marked."""
LONG = 16
"""Lists of more than one in so many documents are worth a look at who can still be among the
best."""
LOOK_UP = 8
"""Documents are looked up in a list that is so many times longer; a shorter one is added up."""
DEAD_SHARE = 0.1
"""Share of removed documents from which they are dropped."""

_ROUNDING = 1e-5
_ONE = np.int32(1)
_AT_ONCE = 2**13
_ADDED_AT_ONCE = 1_000
"""Documents whose words are held as texts at a time: they take some fifty times their numbers."""

_Positions = npt.NDArray[np.int64]
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

    def weights(self, terms: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the inverse document frequency of each term; never negative."""
        holding = [min(self.frequencies.get(term, 0), self.documents) for term in terms]
        return inverse_frequency(self.documents, np.array(holding))

    def group_weights(self, terms: Sequence[str], size: float) -> npt.NDArray[np.float64]:
        """Return about the weights of terms in groups of so many documents, each one text.

        As if all documents stood in such groups, each term in any of them.
        """
        held = np.array([self.frequencies[term] for term in terms]) / max(self.documents, 1)
        groups = round(self.documents / size)
        return inverse_frequency(groups, groups * (1 - (1 - np.minimum(held, 1)) ** size))


def inverse_frequency(documents: int, holding: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the weight of terms that so many of the documents hold; never negative."""
    return np.log1p((documents - holding + 0.5) / (holding + 0.5))


class ReadWords(NamedTuple):
    """The words of documents, and where some terms stand among them."""

    words: Words
    found: FoundTerms


class Grouping(NamedTuple):
    """Documents in groups."""

    group_of: npt.NDArray[np.int32]
    """The group of each position, -1: in none."""
    words: npt.NDArray[Any]
    """How many words each group has."""


class LexicalIndex:
    """The words of documents, each known by its row number. Not thread-safe by itself."""

    def __init__(self) -> None:
        self.forward = ForwardIndex()
        """The same documents, in order, by position."""
        self.slots = TermSlots()
        self._blocks = PostingBlocks()
        self.vocabulary = Vocabulary()
        self._holding = np.zeros(0, np.int32)
        self._rows = np.empty(0, np.int64)
        self._lengths = np.empty(0, np.float32)
        self._live = np.empty(0, np.bool_)
        self._gone_before: _Positions = self._rows[:0]
        """Removed documents that left nothing in the file this began with."""
        self._size = 0
        self._documents, self._words = 0, 0
        self._places = RowPositions()
        self._grouping: tuple[Rows, npt.NDArray[Any], Grouping] | None = None

    def __len__(self) -> int:
        """Number of live documents."""
        return self._documents

    def add(self, documents: Iterable[tuple[int, Sequence[str]] | Document]) -> None:
        """Add documents as (row, words); a row already held is replaced.

        A `Document` may have further words: they are found, with a count of 0, which weighs
        `FURTHER`, and do not make it longer. New ones get a block when they are first looked in.
        """
        held = (d if isinstance(d, Document) else Document(*d) for d in documents)
        self.add_lines((each.row, _line(each)) for each in held)

    def add_lines(self, lines: Iterable[tuple[int, str]]) -> None:
        """Add documents as (row, line) in the form that `TextRow.tokens` has; see `add`.

        No word becomes an object of its own: making them took longer than all that is done with
        them, and a collector of garbage would walk over lists of them again and again.
        """
        given = iter(lines)
        while some := dict(islice(given, _ADDED_AT_ONCE)):
            words, parts = cut_words("\r".join(map(_in_three_parts, some.values())) + "\r")
            self._add([*some], words, parts.reshape(-1, 3))
        self._drop_if_many()

    def _add(self, added: Sequence[int], words: Spelled, lengths: npt.NDArray[np.int64]) -> None:
        """Add documents without blocks; lengths of the others' words, own ones and further ones."""
        rows = np.array(added, np.int64)
        if not self._places.extended_by(self.rows(), rows):
            self.remove(rows)
        whole, window = lengths.sum(axis=1), lengths[:, :2].sum(axis=1)
        ids = self.vocabulary.number(words)
        self._count_in(ids, whole)
        self.forward.extend(ids, whole, lengths[:, 0], window)
        self._take_in(rows, window)

    def _count_in(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """Count which terms documents hold, given their words and how many each has."""
        if (terms := len(self.vocabulary)) > len(self._holding):
            grown = np.zeros(terms + terms // 8 + 64, np.int32)
            grown[: len(self._holding)] = self._holding
            self._holding = grown
        held = (ids << 32) | np.repeat(np.arange(len(lengths)), lengths)
        held.sort()
        np.add.at(self._holding, held[changing(held)] >> 32, _ONE)

    def _take_in(self, rows: Rows, lengths: npt.NDArray[np.int64]) -> None:
        end = self._size + len(rows)
        self._reserve(len(rows))
        self._rows[self._size : end], self._lengths[self._size : end] = rows, lengths
        self._live[self._size : end] = True
        self._size, self._grouping = end, None
        self._places.follow(self.rows())
        self._documents, self._words = self._documents + len(rows), self._words + int(lengths.sum())

    def remove(self, rows: Rows) -> int:
        """Forget rows; unknown ones are skipped. Returns how many were held."""
        positions = self.positions_of(rows)
        positions = distinct(positions[positions >= 0])
        if not len(positions):
            return 0
        self._live[positions], self._grouping = False, None
        self._documents -= len(positions)
        self._words -= int(self._lengths[positions].sum(dtype=np.float64))
        self.forward.all_own -= int(self.forward.own_lengths(positions).sum())
        for start in range(0, len(positions), _AT_ONCE):
            words = self.forward.read(positions[start : start + _AT_ONCE])
            held = distinct((words.document << 32) | words.ids) & 0xFFFFFFFF
            np.subtract.at(self._holding, held, 1)
        return len(positions)

    def _drop_if_many(self) -> None:
        if self._documents < (1 - DEAD_SHARE) * self._size:
            self._drop_removed()

    def statistics(self, terms: Iterable[str]) -> Statistics:
        """Return what the weights of `terms` depend on, counting live documents only."""
        numbers = zip(asked := [*terms], self.vocabulary.find(asked), strict=True)
        found = {t: 0 if n < 0 else int(self._holding[n]) for t, n in numbers}
        return Statistics(self._documents, self.average_length, found)

    def match(self, terms: Iterable[str], statistics: Statistics | None = None) -> Match:
        """Return what scores documents against the distinct words of a query, given as to `add`.

        `statistics` are the weights of another collection; by default this index's own.
        """
        distinct = list(dict.fromkeys(terms))
        known = statistics or self.statistics(distinct)
        weights = known.weights(distinct)
        return Match(self, self.numbers(distinct), weights, known.average_length or 1.0)

    def read(self, positions: _Positions, terms: npt.NDArray[np.int64]) -> ReadWords:
        """Return the words of documents, and what of distinct terms is among them."""
        words = self.forward.read(positions)
        slots = self.slots.of(words, terms, len(self.vocabulary))
        return ReadWords(words, FoundTerms(words, slots, len(terms)))

    def counts(self, positions: _Positions, terms: npt.NDArray[np.int64]) -> Counts:
        """Return how often documents have each of distinct terms, as `FoundTerms` says."""
        if len(positions) <= _AT_ONCE:
            return self.read(positions, terms).found.counts
        parts = np.split(positions, range(_AT_ONCE, len(positions), _AT_ONCE))
        return np.concatenate([self.read(part, terms).found.counts for part in parts])

    def found(self, terms: npt.NDArray[np.int64], average: float) -> Iterable[Found]:
        """Yield what each block of documents has of distinct terms, which all are known."""
        if self._size - self._blocks.end > NEWEST:
            self._follow_with_blocks()
        yield from self._blocks.find(terms, average)
        if (first := self._blocks.end) < self._size:
            newest = np.arange(first, self._size)
            yield _newest_found(slice(first, self._size), self.counts(newest, terms))

    def lengths(self, positions: _Positions | slice) -> npt.NDArray[np.float32]:
        """Return how many words documents have."""
        return self._lengths[: self._size][positions]

    def live(self) -> _Flags | None:
        """Return which positions are not removed; None when all are there."""
        return None if self._documents == self._size else self._live[: self._size]

    def numbers(self, terms: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the number of each term, -1 for those that no document holds."""
        return np.array(self.vocabulary.find([*terms]), np.int64)

    @property
    def average_length(self) -> float:
        """Words of the average live document."""
        return self._words / self._documents if self._documents else 0.0

    @property
    def average_own_length(self) -> float:
        """Own words of the average live document."""
        return self.forward.all_own / self._documents if self._documents else 0.0

    def grouping(self, rows: Rows, groups: npt.NDArray[Any], count: int) -> Grouping:
        """Return documents in groups, each taken as one text; the last answer is remembered.

        Those not held are skipped; groups are numbered below `count`.
        """
        known = self._grouping
        if known is None or known[0] is not rows or known[1] is not groups:
            positions = self.positions_of(rows)
            group_of = np.full(self._size, -1, np.int32)
            group_of[positions[positions >= 0]] = groups[positions >= 0]
            held = group_of >= 0
            words = np.bincount(group_of[held], self._lengths[: self._size][held], minlength=count)
            known = self._grouping = rows, groups, Grouping(group_of, words)
        return known[2]

    def in_groups(
        self, terms: Sequence[str], grouping: Grouping
    ) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.int32], npt.NDArray[Any]]]:
        """Yield places of terms, groups in which these stand, and how often, a part at a time."""
        numbers = self.numbers(terms)
        (known,) = (numbers >= 0).nonzero()
        for part in self.found(numbers[known], 1.0):
            group_of, places = grouping.group_of[part.block], range(len(part.postings))
            short = [n for n in places if len(part.postings[n].positions) <= SHORT_LIST]
            for some in (short, *([n] for n in places if n not in short)):
                if not some:
                    continue
                of, posting = _as_one(part, some)
                groups = group_of[posting.positions]
                held = (groups >= 0) & (posting.counts > 0)
                yield known[of[held]], groups[held], posting.counts[held]

    def merge(self) -> None:
        """Give all a block; forget what removed documents had, and words that none holds any more.

        Their places stay until they are many: else all others would have to move.
        """
        self._drop_if_many()
        self._follow_with_blocks()
        gone = np.setdiff1d(self._gone(), self._gone_before, assume_unique=True)
        if len(gone):
            self.forward.clear(gone)
            self._blocks.clear(gone)
            self.vocabulary.clear(np.flatnonzero(self._holding[: len(self.vocabulary)] == 0))

    def _gone(self) -> _Positions:
        return np.flatnonzero(~self._live[: self._size])

    def _follow_with_blocks(self) -> None:
        self._blocks.follow(self.forward, self._lengths[: self._size], self.average_length)

    def _drop_removed(self) -> None:
        live, used = self._live[: self._size], self._holding[: len(self.vocabulary)] > 0
        renumbered = np.cumsum(used) - 1
        self.vocabulary = self.vocabulary.keeping(used)
        self._holding = self._holding[: len(used)][used]
        self.forward.renumber(live, renumbered)
        self._rows = self._rows[: self._size][live]
        self._lengths = self._lengths[: self._size][live]
        self._blocks.renumber(live, renumbered, self.forward, self._lengths, self.average_length)
        self._size, self._grouping, self._places = len(self._rows), None, RowPositions()
        self._places.follow(self._rows)
        self._live, self._gone_before = np.ones(self._size, np.bool_), self._rows[:0]

    def to_arrays(self, *, patched: bool = False) -> dict[str, Any]:
        """Return the whole index as flat arrays, merged; what stands in a file may be `Patched`."""
        self.merge()
        gone = self._gone()
        return {
            **({"gone": gone} if len(gone) else {}),
            "holding": self._holding[: len(self.vocabulary)],
            "rows": self._rows[: self._size],
            "lengths": self._lengths[: self._size],
            **{f"term_{name}": array for name, array in self.vocabulary.to_arrays().items()},
            **{
                f"forward_{name}": array
                for name, array in self.forward.to_arrays(patched=patched).items()
            },
            **{f"block_{name}": array for name, array in self._blocks.to_arrays().items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> LexicalIndex:
        """Return the index that `to_arrays` described."""
        index = cls()
        index.vocabulary = Vocabulary(_part("term_", arrays))
        index._holding = arrays["holding"].copy()
        index._rows, index._lengths = arrays["rows"], arrays["lengths"]
        index.forward = ForwardIndex.from_arrays(_part("forward_", arrays))
        index._blocks = PostingBlocks.from_arrays(_part("block_", arrays))
        index._size = len(index._rows)
        index._places.follow(index._rows)
        index._live = np.ones(index._size, np.bool_)
        index._documents, index._words = index._size, int(index._lengths.sum(dtype=np.float64))
        if "gone" in arrays:
            gone = index._gone_before = arrays["gone"]
            index._live[gone] = False
            index._documents -= len(gone)
            index._words -= int(index._lengths[gone].sum(dtype=np.float64))
        return index

    def rows(self) -> Rows:
        """Return the row of each position, removed documents included."""
        return self._rows[: self._size]

    def positions_of(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the live position of each row, -1 where it is not held."""
        if not self._size:
            return np.full(len(rows), -1, np.int64)
        positions = self._places.find(self.rows(), rows)
        return np.where((positions >= 0) & self._live[positions], positions, -1)

    def _reserve(self, more: int) -> None:
        need = self._size + more
        if need <= len(self._live) and self._rows.flags.writeable:
            return
        room = max(need, 2 * len(self._live), 1024)
        for name in ("_rows", "_lengths", "_live"):
            old = getattr(self, name)
            grown = np.zeros(room, old.dtype)
            grown[: self._size] = old[: self._size]
            setattr(self, name, grown)


def _newest_found(span: slice, counts: Counts) -> Found:
    """Return what documents without a block have, given how often; -1: not at all."""
    held = [np.flatnonzero(each >= 0) for each in counts.T]
    postings = [
        Posting(places.astype(np.uint16), each[places])
        for places, each in zip(held, counts.T, strict=True)
    ]
    return Found(span, postings, np.array([(K1 + 1) * bool(len(places)) for places in held]))


def _part(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
    if isinstance(arrays, CacheFile):
        return arrays.part(prefix)
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}


class Best:
    """The best k documents so far; two sums of the same may differ by a share, the slack."""

    def __init__(self, k: int, slack: float) -> None:
        self._k, self._slack = k, slack
        self.least = 0.0
        """Below it nothing is among the best k."""
        self.positions, self.sums = np.empty(0, np.int64), np.empty(0, np.float32)

    def learn_from(self, sums: BlockSums) -> None:
        """Learn from unfinished sums, as long as nothing else is known."""
        if not len(self.positions):
            self._raise(sums.values[sums.reaching(self.least)])

    def take_in(self, first: int, sums: BlockSums) -> None:
        """Take in what stands in a block, which begins at position `first`."""
        places = sums.reaching(self.least)
        self.positions = np.concatenate((self.positions, places.astype(np.int64) + first))
        self.sums = np.concatenate((self.sums, sums.values[places]))
        self._raise(self.sums)
        kept = self.sums >= self.least
        self.positions, self.sums = self.positions[kept], self.sums[kept]

    def _raise(self, sums: _Scores) -> None:
        if (before := len(sums) - self._k) >= 0:
            kth = float(np.partition(sums, before)[before])
            self.least = max(self.least, kth * (1 - self._slack))


class Match:
    """The scores of one query over one index, exact for any row.

    The best are found block by block without adding up every document: rare terms first, and once
    the common ones alone cannot reach the k best so far any more, only the documents that still can
    get there are looked up in the long lists.

    Reference: Turtle and Flood 1995, "Query evaluation: strategies and optimizations" (max-score).
    """

    def __init__(
        self,
        index: LexicalIndex,
        terms: npt.NDArray[np.int64],
        weights: npt.NDArray[np.float64],
        average: float,
    ) -> None:
        # Everywhere in the same order: documents that have the same get the same sum.
        order = np.argsort(-weights, kind="stable")
        order = order[terms[order] >= 0]
        self._index, self.terms, self._weights = index, terms[order], weights[order]
        self._average = average

    def slots(self, terms: Iterable[str]) -> Slots:
        """Return where among the terms of `read` each of the query's stands; -1: nowhere."""
        place = {number: slot for slot, number in enumerate(self.terms.tolist())}
        return np.array([place.get(n, -1) for n in self._index.numbers(terms).tolist()], np.int32)

    def of(self, rows: Rows) -> _Scores:
        """Return the exact score of each row; 0 for rows not held."""
        return self._at(self._index.positions_of(rows))

    def read(self, rows: Rows) -> tuple[ReadWords, _Scores]:
        """Return the words of rows, beside them their scores."""
        positions = self._index.positions_of(rows)
        read = self._index.read(positions, self.terms)
        return read, self._scores(positions, read.found.counts)

    def top(self, k: int, rows: Rows | None = None) -> tuple[Rows, _Scores]:
        """Return up to k best rows with a score above 0, best first, ties by row."""
        if rows is not None and len(rows) <= FEW:
            held, scores = rows, self.of(rows)
        else:
            positions, scores = self._contenders(k, rows)
            held = self._index.rows()[positions]
        chosen = _best(scores, k)
        order = np.lexsort((held[chosen], -scores[chosen]))[:k]
        return held[chosen][order], scores[chosen][order]

    def _at(self, positions: _Positions) -> _Scores:
        return self._scores(positions, self._index.counts(positions, self.terms))

    def _scores(self, positions: _Positions, counts: Counts) -> _Scores:
        if not len(self._index.rows()):
            return np.zeros(len(positions), np.float32)
        lengths = self._index.lengths(np.maximum(positions, 0)).astype(np.float64)
        damped = K1 * (1 - B + B * lengths / self._average)
        often = counts * (K1 + 1) / (np.maximum(counts, 0) + damped[:, None])
        often = np.where(counts > 0, often, np.where(counts == 0, FURTHER, 0.0))
        return (often * self._weights).sum(axis=1).astype(np.float32)

    def _contenders(self, k: int, rows: Rows | None) -> tuple[_Positions, _Scores]:
        """Return positions among which are the k best, with their scores."""
        index, best = self._index, Best(k, _ROUNDING * (1 + len(self.terms) / 100))
        listed, passing = None, index.live()
        if rows is not None and len(rows) <= NARROW * len(index.rows()):
            positions = index.positions_of(rows)
            listed = np.sort(positions[positions >= 0])
        elif rows is not None:
            marked = standing_among(index.rows(), rows)
            passing = marked if passing is None else marked & passing
        for found in index.found(self.terms, self._average):
            passes, first, last = None, found.block.start, found.block.stop
            if listed is not None:
                start, stop = np.searchsorted(listed, (first, last))
                passes = (listed[start:stop] - first).astype(np.uint16)
            elif passing is not None:
                passes = passing[found.block]
            self._search_block(found, passes, best)
        return best.positions, best.sums

    def _search_block(
        self, found: Found, passing: _Flags | npt.NDArray[np.uint16] | None, best: Best
    ) -> None:
        """Look in one block for what may be among the best; only what is passing counts."""
        most = found.most * self._weights
        left = [*np.cumsum(most[::-1])[::-1].tolist(), 0.0]
        lengths = self._index.lengths(found.block)
        sums = BlockSums(len(lengths), passing)
        sizes = np.cumsum([len(posting.positions) for posting in found.postings])
        if left[0] < best.least or sums.nothing_passes or not sizes.any():
            return
        together = int(sizes.searchsorted(FEW_PLACES, "right"))
        if together:  # the rarest; to the last bit what one after the other would add
            of, every = _as_one(found, range(together))
            scores = every.scores(slice(None), self._weights[of], lengths, self._average)
            np.add.at(sums.values, every.positions.astype(np.intp), scores)
        for number in range(together, len(sizes)):
            posting, weight = found.postings[number], self._weights[number]
            size = len(posting.positions)
            if not size:
                continue
            if size > len(lengths) // LONG:
                best.learn_from(sums)
            sums.narrow(best.least - left[number])
            if sums.nothing_passes:
                return
            wanted = sums.wanted
            few = wanted is not None and size > LOOK_UP * len(wanted)
            posting.add_to(sums.values, weight, lengths, self._average, wanted if few else None)
        best.take_in(found.block.start, sums)


def _as_one(found: Found, places: Sequence[int]) -> tuple[npt.NDArray[np.intp], Posting]:
    """Return the postings of some terms as one, and before it the term of each of its documents."""
    some = [found.postings[place] for place in places]
    of = np.repeat(np.array(places, np.intp), [len(each.positions) for each in some])
    positions = np.concatenate([each.positions for each in some])
    return of, Posting(positions, np.concatenate([each.counts for each in some]))


def _line(document: Document) -> str:
    _, words, further, first = document
    return f"{' '.join(words[:first])}\t{' '.join(words[first:])}\n{' '.join(further)}"


def _in_three_parts(line: str) -> str:
    """Return words that show another document, a tab, own ones, a line feed, further ones."""
    if line.count("\n") != 1:
        window, further, *_ = (*line.split("\n", 2), "")
        line = f"{window}\n{further}"
    return line if "\t" in line else f"\t{line}"


def _best(scores: _Scores, k: int) -> npt.NDArray[np.intp]:
    """Return the places of the k best scores above 0, and of ties with the last."""
    if len(scores) <= k:
        return np.flatnonzero(scores > 0)
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero((scores >= least) & (scores > 0))
