"""Postings in blocks of neighbouring documents, made of the forward index by one sort.

A block holds up to 65,536 documents, so that a posting takes three bytes (where in the block, how
often) and what a query adds up stays in the processor's cache. To a block nothing is added: newer
documents make a block of their own, small ones are made anew together with their neighbours, and
the newest few documents have none: their words are counted as they stand. So nothing that an
addition has to wait for grows with the memory.

Each list knows the most that its term can add, for an average length that is remembered; a longer
average raises it by no more than the ratio of the two.

Reference: O'Neil et al. 1996, "The Log-Structured Merge-Tree"; the blocks are Lucene's segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.search.forward_index import K1, B, ForwardIndex, Places
from hybridagi_steps.search.index_cache import PagedArray, unread

MOST_DOCUMENTS = 2**16
"""Documents of a block: a place in it takes two bytes."""
NEWEST = 256
"""Documents that may have no block: counting their words takes some 50 µs."""
SHORT_LIST, FEW_PLACES = 1_024, 2**14
"""Places of a term, and of all terms of a query in a block, up to which they are looked at at once:
asking numpy takes 12 µs a term, and a look at who can still be among the best pays for itself only
in longer lists."""
FURTHER = 0.2
"""What a further word counts, where 1 is what a single word of an average document counts; the best
on the half of the shipped runs that is for tuning, see `python -m tests.benchmarks quality`."""

_LEAST = float(np.finfo(np.float32).tiny)
_STEPS = 255
_AT_ONCE = 2**12
"""Documents whose words are sorted at a time: sorting those of a whole block took 250 MB."""
_ROUNDING = 1e-5
_GROWTH = 2
"""A block is made anew with newer documents if it has no more than so many times as many."""

Lengths = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float32]
_NAMES = ("terms", "starts", "most", "positions", "counts")


class Posting(NamedTuple):
    """Where a term stands in a block, ascending, and how often; 0: as a further word."""

    positions: npt.NDArray[np.uint16]
    counts: npt.NDArray[Any]

    def add_to(
        self,
        sums: Sums,
        weight: float,
        lengths: Lengths,
        average: float,
        wanted: npt.NDArray[np.uint16] | None = None,
    ) -> None:
        """Add what the term says to the sums of its documents, or of the wanted ones among them.

        Those are places in the block, ascending.
        """
        if wanted is None:
            sums[self.positions] += self.scores(slice(None), weight, lengths, average)
            return
        place = np.searchsorted(self.positions, wanted)
        place[place == len(self.positions)] = 0
        (held,) = (self.positions[place] == wanted).nonzero()
        sums[wanted[held]] += self.scores(place[held], weight, lengths, average)

    def scores(
        self,
        places: npt.NDArray[np.intp] | slice,
        weight: float | npt.NDArray[np.float64],
        lengths: Lengths,
        average: float,
    ) -> Sums:
        """Return what the term, or each of several, says of the documents in some places."""
        counts = self.counts[places]
        scores = counts.astype(np.float32)
        below = lengths[self.positions[places]]
        below *= np.float32(K1 * B / average)
        below += np.float32(K1 * (1 - B))
        below += scores
        scores /= below
        scores *= np.asarray(weight * (K1 + 1), np.float32)
        if not counts.all():
            (further,) = (counts == 0).nonzero()
            scores[further] = np.broadcast_to(weight, counts.shape)[further] * FURTHER
        return scores


class Found(NamedTuple):
    """What a block has of a query's terms."""

    block: slice
    """The positions of its documents."""
    postings: list[Posting]
    most: npt.NDArray[np.float64]
    """The most that a document can have of each term, at a weight of 1."""


class Lists(NamedTuple):
    """Of some terms, their places among those of a block, and where their lists begin and end."""

    place: npt.NDArray[np.intp]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


@dataclass
class PostingBlock:
    """The postings of the documents from position `first` on.

    Term `terms[n]` stands in `positions[starts[n]:starts[n + 1]]`; terms ascend.
    """

    first: int
    size: int
    average: float
    """Average length for which `most` was computed."""
    terms: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.uint32]
    most: npt.NDArray[np.uint8]
    """The most that each term adds, in 255ths of what it could add if documents had no length."""
    positions: npt.NDArray[np.uint16]
    counts: npt.NDArray[Any]
    at: int = -1
    """Where `positions` and `counts` begin in a file, read when they are needed; -1: in none."""

    @property
    def end(self) -> int:
        """The first position behind it."""
        return self.first + self.size

    def lists(self, terms: npt.NDArray[np.int64]) -> Lists:
        """Return where the lists of distinct terms stand; of one it does not have an empty one."""
        place = np.searchsorted(self.terms, terms.astype(np.uint32))
        place = np.minimum(place, len(self.terms) - 1)
        starts = self.starts[place].astype(np.int64)
        stops = np.where(self.terms[place] == terms, self.starts[place + 1], starts)
        return Lists(place, starts, stops)

    def without(self, gone: Places) -> PostingBlock:
        """Return the block without what some of its documents have; they keep their places."""
        dead = np.zeros(self.size, np.bool_)
        dead[gone - self.first] = True
        kept = ~dead[self.positions]
        before = np.append(0, np.cumsum(kept))[self.starts]
        (had,) = np.diff(before).nonzero()
        lists = {"positions": self.positions[kept], "counts": self.counts[kept]}
        lists["starts"] = before[np.append(had, len(self.terms))].astype(np.uint32)
        return replace(self, terms=self.terms[had], most=self.most[had], at=-1, **lists)

    def find(self, lists: Lists, average: float) -> Found:
        """Return what the block has of some terms, for an average length of documents."""
        place, starts, stops = lists
        postings = [
            Posting(self.positions[start:stop], self.counts[start:stop])
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        raised = self.most[place] * (max(1.0, average / self.average) / _STEPS)
        most = np.where(stops > starts, np.minimum(raised, 1.0) * (K1 + 1), 0.0)
        return Found(slice(self.first, self.end), postings, most)


class PostingBlocks:
    """The blocks over a forward index; its newest documents may have none."""

    def __init__(self) -> None:
        self._blocks: list[PostingBlock] = []
        self._unread: Sequence[PagedArray] = ()

    @property
    def end(self) -> int:
        """How many documents have a block."""
        return self._blocks[-1].end if self._blocks else 0

    def find(self, terms: npt.NDArray[np.int64], average: float) -> Iterator[Found]:
        """Yield what each block has of distinct terms, for an average length of documents."""
        blocks = [block for block in self._blocks if len(block.terms)]
        lists = [block.lists(terms) for block in blocks]
        self._need(blocks, [(each.starts, each.stops) for each in lists])
        for block, each in zip(blocks, lists, strict=True):
            yield block.find(each, average)

    def _need(self, blocks: Sequence[PostingBlock], spans: Sequence[tuple[Places, Places]]) -> None:
        """Have some postings of each block read, of all of them at once."""
        found = [
            (starts + block.at, stops + block.at)
            for block, (starts, stops) in zip(blocks, spans, strict=True)
            if block.at >= 0
        ]
        for column in self._unread if found else ():
            column.need(*map(np.concatenate, zip(*found, strict=True)))

    def _need_whole(self, blocks: Sequence[PostingBlock]) -> None:
        self._need(
            blocks,
            [(b.starts[:1].astype(np.int64), b.starts[-1:].astype(np.int64)) for b in blocks],
        )

    def follow(self, forward: ForwardIndex, lengths: Lengths, average: float) -> None:
        """Make blocks of all documents, by position; small ones join those that are new."""
        first, size, small = self.end, len(lengths), list[PostingBlock]()
        while self._blocks and first < size:
            last = self._blocks[-1]
            if last.size == MOST_DOCUMENTS or last.size > _GROWTH * (size - first):
                break
            small.append(self._blocks.pop())
            first = last.first
        self._need_whole(small)
        for start in range(first, size, MOST_DOCUMENTS):
            stop, parts = min(start + MOST_DOCUMENTS, size), list[PostingBlock]()
            while small and small[-1].first == start and small[-1].end <= stop:
                parts.append(small.pop())
                start = parts[-1].end
            parts += _parts(forward, slice(start, stop), lengths, average)
            self._blocks.append(_joined(parts))

    def clear(self, gone: Places) -> None:
        """Forget what documents have, given ascending; they keep their places."""
        for place, block in enumerate(self._blocks):
            first, last = np.searchsorted(gone, (block.first, block.end))
            if first < last:
                self._need_whole([block])
                self._blocks[place] = block.without(gone[first:last])

    def renumber(
        self,
        live: npt.NDArray[np.bool_],
        terms: npt.NDArray[np.int64],
        forward: ForwardIndex,
        lengths: Lengths,
        average: float,
    ) -> None:
        """Keep documents that are `live`; term t is called `terms[t]`.

        The forward index and the lengths are those of afterwards: a block of which something is
        gone is made anew.
        """
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            first, size = self.end, int(np.count_nonzero(live[block.first : block.end]))
            if size == block.size:
                named = terms[block.terms].astype(np.uint32)
                self._blocks.append(replace(block, first=first, terms=named))
            elif size:
                span = slice(first, first + size)
                self._blocks.append(_joined([*_parts(forward, span, lengths, average)]))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all blocks as flat arrays."""
        blocks = self._blocks
        self._need_whole(blocks)
        kinds = {"terms": np.uint32, "starts": np.uint32, "most": np.uint8, "positions": np.uint16}
        empty = [np.empty(0, kinds.get(name, np.uint8)) for name in _NAMES]
        return {
            "sizes": np.array([[block.size, len(block.terms)] for block in blocks], np.int64),
            "averages": np.array([block.average for block in blocks]),
            **{
                name: np.concatenate([none, *(getattr(block, name) for block in blocks)])
                for name, none in zip(_NAMES, empty, strict=True)
            },
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> PostingBlocks:
        """Return the blocks that `to_arrays` described, as views; of a file read when needed."""
        found = cls()
        at: dict[str, int] = dict.fromkeys(_NAMES, 0)
        lists = {name: unread(arrays, name) for name in ("positions", "counts")}
        columns = {name: lists[name][0] if name in lists else arrays[name] for name in at}
        found._unread = [paged for _, paged in lists.values() if paged is not None]

        def cut(count: int, *names: str) -> dict[str, npt.NDArray[Any]]:
            for name in names:
                at[name] += count
            return {name: columns[name][at[name] - count : at[name]] for name in names}

        sizes = arrays["sizes"].reshape(-1, 2).tolist()
        for (size, terms), average in zip(sizes, arrays["averages"].tolist(), strict=True):
            first, begins = found.end, at["positions"] if found._unread else -1
            parts = cut(terms, "terms", "most") | cut(terms + 1, "starts")
            parts |= cut(int(parts["starts"][-1]), *lists)
            block = PostingBlock(first, size, average, **parts, at=begins)
            found._blocks.append(block)
        return found


def _parts(
    forward: ForwardIndex, span: slice, lengths: Lengths, average: float
) -> Iterator[PostingBlock]:
    for start in range(span.start, span.stop, _AT_ONCE):
        yield _made(forward, slice(start, min(start + _AT_ONCE, span.stop)), lengths, average)


def _joined(parts: Sequence[PostingBlock]) -> PostingBlock:
    """Return one block of neighbours: each term's lists one behind the other."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0].first
    terms = np.unique(np.concatenate([part.terms for part in parts]))
    places = [np.searchsorted(terms, part.terms) for part in parts]
    sizes = np.zeros(len(terms) + 1, np.int64)
    most = np.zeros(len(terms), np.uint8)
    for part, place in zip(parts, places, strict=True):
        sizes[place + 1] += np.diff(part.starts)
        most[place] = np.maximum(most[place], part.most)
    starts = np.cumsum(sizes)
    positions = np.empty(int(starts[-1]), np.uint16)
    counts = np.empty(len(positions), np.result_type(*(part.counts for part in parts)))
    behind = starts.copy()
    for part, place in zip(parts, places, strict=True):
        held = np.diff(part.starts)
        target = np.repeat(behind[place] - part.starts[:-1], held) + np.arange(len(part.positions))
        positions[target] = part.positions + np.uint16(part.first - first)
        counts[target] = part.counts
        behind[place] += held
    # What each adds at most was found for its own average; for the least it holds of all.
    average, size = min(part.average for part in parts), parts[-1].end - first
    lists = starts.astype(np.uint32), most, positions, counts
    return PostingBlock(first, size, average, terms, *lists)


def _made(forward: ForwardIndex, span: slice, lengths: Lengths, average: float) -> PostingBlock:
    """Return the block of some documents: all their words in one order, by term and place."""
    size = span.stop - span.start
    words = forward.read(np.arange(int(span.start), int(span.stop)))
    keys = words.ids.astype(np.int64)
    keys <<= 17
    keys |= words.document << 1
    keys |= words.in_window
    del words
    keys.sort()
    (first,) = np.diff(keys >> 1, prepend=-1).nonzero()
    counts = np.add.reduceat(keys & 1, first) if len(first) else keys
    keys = keys[first] >> 1
    positions, term = (keys & 0xFFFF).astype(np.uint16), keys >> 16
    (starts,) = np.diff(term, prepend=-1).nonzero()
    often = counts.astype(np.float32)
    share = often / (often + K1 * (1 - B + B * lengths[span][positions] / (average or 1.0)))
    share[counts == 0] = FURTHER / (K1 + 1)
    most = np.maximum.reduceat(share, starts) if len(starts) else share
    bounds = np.minimum(np.ceil(most * (1 + _ROUNDING) * _STEPS), _STEPS).astype(np.uint8)
    counts = counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
    terms, lists = term[starts].astype(np.uint32), np.append(starts, len(term)).astype(np.uint32)
    average = average or 1.0
    return PostingBlock(span.start, size, average, terms, lists, bounds, positions, counts)


class BlockSums:
    """What the terms so far add up to, for each document of a block, or for those that pass.

    These are given by their places, ascending, or as a flag for each; None: all.
    """

    def __init__(
        self, size: int, passing: npt.NDArray[np.uint16] | npt.NDArray[np.bool_] | None
    ) -> None:
        flags = passing is None or passing.dtype == np.bool_
        self.values = np.zeros(size, np.float32)
        self.wanted: npt.NDArray[Any] | None = None if flags else passing
        """The places of the only documents that still matter; None: they are not listed yet."""
        self._passing = passing if flags else None

    @property
    def nothing_passes(self) -> bool:
        """Whether nothing is left that counts."""
        return self.wanted is not None and not len(self.wanted)

    def narrow(self, bar: float) -> None:
        """List the documents that reach a bar; one that is not above 0 tells nothing."""
        if bar > 0:
            self.wanted = self.reaching(bar)

    def reaching(self, bar: float) -> npt.NDArray[Any]:
        """Return the places of what counts, reaches a bar and is above 0."""
        above = np.float32(max(bar, _LEAST))
        if self.wanted is not None:
            return self.wanted[self.values[self.wanted] >= above]
        reaching = self.values >= above
        if self._passing is not None:
            reaching &= self._passing
        return reaching.nonzero()[0].astype(np.uint16)
