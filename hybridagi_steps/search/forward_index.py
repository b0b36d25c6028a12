"""The forward index: the words of each document in order, as numbers, beside the postings.

Postings say which documents hold a word; this says which words a document holds, where, and which
of them are its own. Postings are made of it, and what is scored of candidates alone is counted from
it: words, phrases, pieces of words, and other documents' text (a parent, the turns around, the
first steps of a tool). Nearly every word takes two bytes: a term's number below `_DIRECT` is one
unit, a larger one two. It knows positions and term numbers, which its `LexicalIndex` hands out,
nothing else.

Below it stand the counts themselves: terms, phrases and pieces in words as the index gives them,
one row per document, and `bm25`, which makes scores of them. Phrases and pieces all weigh the same,
however common: weights by frequency changed nothing (see the decision record on retrieval), and
their frequencies are nowhere kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.records.store_values import distinct
from hybridagi_steps.search.index_cache import PagedArray, Patched, unread

Places = npt.NDArray[np.int64]
"""Positions of documents."""
Counts = npt.NDArray[np.float64]
"""How often each document has what is asked for, shape (documents, things asked for)."""
Scores = npt.NDArray[np.float64]
"""One score per document."""
Slots = npt.NDArray[np.int32]
"""Of each word, which of the terms asked for it is; -1: none."""

K1, B = 1.5, 0.75
"""Term saturation and length normalisation of BM25, the usual constants."""
AT_ONCE = 2**15
"""Documents whose words are looked at in one go."""

_KINDS = {"units": np.uint16, "ends": np.int64, "own_from": np.uint16, "window": np.uint32}
_LARGEST = np.iinfo(np.uint16).max
_DIRECT = 0xE000
"""Numbers below it are one unit; of larger ones this plus the high bits, then the low bits."""
_LOW_BITS = 15
_RUN = 100
"""Units side by side that take as long to gather one by one as to be copied at once."""


class Words:
    """Words of several documents, one after the other: the number of each one's term.

    Of the words of each document asked for so many (`window`) are no further ones; those come last.
    They are for reading only.
    """

    def __init__(self, ids: npt.NDArray[Any], lengths: Places, window: Places) -> None:
        self.ids, self.lengths, self.window = ids, lengths, window
        self._stops = np.cumsum(lengths)

    @cached_property
    def document(self) -> Places:
        """Of each word, the place in what was asked for of the document it stands in; ascending."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def in_window(self) -> npt.NDArray[np.bool_]:
        """Of each word, whether it is no further one."""
        runs = np.stack((self.window, self.lengths - self.window), axis=1).ravel()
        return np.repeat(np.arange(len(runs)) % 2 == 0, runs)

    def at(self, found: Places) -> tuple[Places, Places]:
        """Return the document of some words, and the place in it; most are not asked for it."""
        document = np.searchsorted(self._stops, found, side="right")
        return document, found - (self._stops - self.lengths)[document]


class ForwardIndex:
    """Term numbers of documents, by position. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(0, kind) for name, kind in _KINDS.items()
        }
        self._unread: PagedArray | None = None
        self._file: Mapping[str, npt.NDArray[Any]] = {}
        """Where columns are that nobody has asked for yet: who looks for words alone needs none."""
        self._size = 0
        self._cleared: Places = np.empty(0, np.int64)
        """Documents that are gone, of which nothing may be saved, but their length."""
        self.all_own = 0
        """Own words of all documents together."""

    def own_lengths(self, positions: Places) -> Places:
        """Return how many own words documents have."""
        window = self._of_each("window", positions).astype(np.int64)
        return window - self._of_each("own_from", positions)

    def extend(
        self, ids: npt.NDArray[np.int64], lengths: Places, own_from: Places, window: Places
    ) -> None:
        """Add the next documents: their words, one after the other, as numbers of terms.

        Each has the words of its window first, its own from some place on, then further ones, by
        which it is found, and which make it no longer.
        """
        units, ends = _encoded(ids)
        start = self._end()
        self._put("units", start, units)
        self._put("ends", self._size, start + ends[np.cumsum(lengths)])
        own_from = np.minimum(own_from, _LARGEST)
        self.all_own += int(window.sum() - own_from.sum())
        self._put("own_from", self._size, own_from)
        self._put("window", self._size, window)
        self._size += len(lengths)

    def read(self, positions: Places) -> Words:
        """Return all words of documents, further ones too, of position -1 none."""
        there = positions >= 0
        window = np.where(there, self._of_each("window", positions), 0).astype(np.int64)
        stops = self._of_each("ends", positions)
        starts = np.where(positions > 0, self._of_each("ends", positions - 1), 0)
        lengths = np.where(there, stops - starts, 0)
        if self._unread is not None:
            self._unread.need(starts, starts + lengths)
        behind = np.cumsum(lengths)
        units = self._gathered(starts - behind + lengths, lengths, behind)
        (high,) = (units >= _DIRECT).nonzero()
        ids: npt.NDArray[Any] = units
        if len(high):
            ids = units.astype(np.uint32)
            ids[high] = ((ids[high] - _DIRECT) << _LOW_BITS) | ids[high + 1]
            document = np.searchsorted(behind, high, side="right")
            lengths = lengths - np.bincount(document, minlength=len(positions))
            ids = np.delete(ids, high + 1)
        return Words(ids, lengths, window)

    def _gathered(self, offsets: Places, lengths: Places, behind: Places) -> npt.NDArray[np.uint16]:
        """Return units of documents one behind the other, each so far from where they stand.

        Messages of a session are neighbours: what stands side by side is taken at once.
        """
        units = self._columns["units"]
        if not len(behind) or not behind[-1]:
            return units[:0]
        held = lengths > 0
        begins = np.append((behind - lengths)[held][run := changing(offsets[held])], behind[-1])
        if len(begins) * _RUN > behind[-1]:
            places = np.repeat(offsets, lengths)
            places += np.arange(len(places))
            return units[places]
        begins, apart = begins.tolist(), offsets[held][run].tolist()
        parts = [units[at + a : at + b] for at, (a, b) in zip(apart, pairwise(begins), strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def own_words(self, positions: Places) -> tuple[Words, Places, Places]:
        """Return all words of documents, and where in each its own begin and end; of -1 none."""
        words = self.read(positions)
        first = np.where(positions >= 0, self._of_each("own_from", positions), 0).astype(np.int64)
        return words, first, words.window

    def renumber(self, live: npt.NDArray[np.bool_], terms: npt.NDArray[np.int64]) -> None:
        """Keep the documents that are `live`; term t is called `terms[t]` from now on."""
        kept, smaller = np.flatnonzero(live), ForwardIndex()
        for start in range(0, len(kept), AT_ONCE):
            positions = kept[start : start + AT_ONCE]
            words = self.read(positions)
            own_from = self._of_each("own_from", positions).astype(np.int64)
            smaller.extend(terms[words.ids], words.lengths, own_from, words.window)
        self.__dict__ = smaller.__dict__

    def clear(self, positions: Places) -> None:
        """Forget which words documents had: the first term stands in the place of each."""
        self._cleared = distinct(np.concatenate((self._cleared, positions)))

    def to_arrays(self, *, patched: bool = False) -> dict[str, Any]:
        """Return the index as flat arrays, or units that stand in a file `Patched`."""
        arrays = {name: self._column(name)[: self._size] for name in _KINDS if name != "units"}
        totals = np.array([self._size, self.all_own], np.int64)
        return {**arrays, "units": self._units(patched=patched), "totals": totals}

    def _units(self, *, patched: bool) -> Any:
        """Return all units, those of cleared documents 0, as a matrix: of it files read by page."""
        stops = self._of_each("ends", self._cleared)
        starts = np.where(self._cleared > 0, self._of_each("ends", self._cleared - 1), 0)
        cleared = spans(starts, stops - starts)
        units, end = self._column("units"), self._end()
        if patched and self._unread is not None:
            filed = len(self._unread)
            more = units[filed:end].copy()
            more[cleared[cleared >= filed] - filed] = 0
            return Patched(self._unread, cleared[cleared < filed], 0, more[:, None])
        self._read_all()
        units = self._column("units")[:end]
        if len(cleared):
            units = units.copy()
            units[cleared] = 0
        return units[:, None]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ForwardIndex:
        """Return the index that `to_arrays` described; of a file words are read when asked for."""
        index = cls()
        units, index._unread = unread(arrays, "units")
        index._columns, index._file = {"units": units.reshape(-1)}, arrays
        index._size, index.all_own = arrays["totals"].tolist()
        return index

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = self._file[name]
        return self._columns[name]

    def _put(self, name: str, at: int, values: npt.NDArray[Any]) -> None:
        """Write values behind what a column has, in a larger one where there is no room."""
        column, need = self._column(name), at + len(values)
        if need > len(column) or not column.flags.writeable:
            if name == "units":
                self._read_all()
            column = np.empty(max(need, at + at // 8, 1024), column.dtype)
            column[:at] = self._columns[name][:at]
            self._columns[name] = column
        column[at:need] = values

    def _of_each(self, name: str, positions: Places) -> npt.NDArray[Any]:
        if not self._size:
            return np.zeros(len(positions), np.int64)
        return self._column(name)[np.maximum(positions, 0)]

    def _read_all(self) -> None:
        if self._unread is not None:
            self._unread.need(np.array([0]), np.array([len(self._unread)]))
            self._unread = None

    def _end(self) -> int:
        return int(self._column("ends")[self._size - 1]) if self._size else 0


def spans(starts: Places, lengths: Places) -> Places:
    """Return all numbers of some spans, one after the other."""
    places = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    places += np.arange(len(places))
    return places


def _encoded(ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint16], Places]:
    """Return the units of words, and behind which unit each word ends, from a 0 on."""
    if int(ids.max(initial=0)) < _DIRECT:
        return ids.astype(np.uint16), np.arange(len(ids) + 1)
    wide = ids >= _DIRECT
    ends = np.concatenate(([0], np.cumsum(1 + wide)))
    units = np.empty(int(ends[-1]), np.uint16)
    units[ends[:-1]] = np.where(wide, _DIRECT + (ids >> _LOW_BITS), ids)
    units[ends[1:][wide] - 1] = ids[wide] & ((1 << _LOW_BITS) - 1)
    return units, ends


class TermSlots:
    """Tells which of a few terms words are, by a table that is kept: it has all terms."""

    def __init__(self) -> None:
        self._table = np.empty(0, np.int32)
        self._marks = np.empty(0, np.bool_)

    def used(self, words: Words, vocabulary: int) -> Places:
        """Return the numbers of all terms that words are, ascending."""
        if vocabulary > len(self._marks):
            self._marks = np.zeros(vocabulary + vocabulary // 8, np.bool_)
        self._marks[words.ids] = True
        (found,) = self._marks.nonzero()
        self._marks[found] = False
        return found

    def of(self, words: Words, terms: npt.NDArray[np.int64], vocabulary: int) -> Slots:
        """Return which of `terms` each word is; those are distinct, -1 for unknown ones."""
        if vocabulary > len(self._table):
            self._table = np.full(vocabulary + vocabulary // 8, -1, np.int32)
        known = terms >= 0
        self._table[terms[known]] = known.nonzero()[0]
        found = self._table.take(words.ids)
        self._table[terms[known]] = -1
        return found


def changing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which values are not what stands before them."""
    found = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def bm25(
    counts: Counts,
    lengths: npt.NDArray[Any],
    weights: npt.NDArray[np.float64] | float,
    average: float,
) -> Scores:
    """Return the BM25 score of each document, by the counts of each document and term.

    `weights` are of each term, or one for all; `average` is the collection's.
    """
    damped = K1 * (1 - B + B * lengths / (average or 1.0))
    saturated = counts * (K1 + 1) / (counts + damped[:, None])
    return (saturated * weights).sum(axis=1)


class FoundTerms:
    """Where in the windows of documents some terms stand; `slots` says which of them each word is.

    `width` is how many terms there are.
    """

    def __init__(self, words: Words, slots: Slots, width: int) -> None:
        self.lengths = words.window
        """Words of each document's window."""
        (places,) = (slots >= 0).nonzero()
        document, place = words.at(places)
        inside, slot = place < words.window[document], slots[places]
        count = len(words.lengths)
        anywhere = counted(document, slot, count, width)
        self._places, self._document, self._slot = (x[inside] for x in (places, document, slot))
        here = counted(self._document, self._slot, count, width)
        self.counts = np.where(anywhere > 0, here, -1.0)
        """How often documents have each term; 0: among their further words alone, -1: nowhere."""

    def phrases(self, asked: Slots) -> Counts:
        """Count pairs of terms that follow each other in `asked`, where a document has them so."""
        width = int(asked.max(initial=-1)) + 1
        whole = (asked[:-1] >= 0) & (asked[1:] >= 0)
        pairs = distinct((asked[:-1] * width + asked[1:])[whole])
        places, document, slot = self._places, self._document, self._slot
        follows = (places[1:] == places[:-1] + 1) & (document[1:] == document[:-1])
        (begins,) = follows.nonzero()
        made = slot[begins] * width + slot[begins + 1]
        pair = np.searchsorted(pairs, made)
        if len(pairs):
            pair[pair == len(pairs)] = 0
            (found,) = (pairs[pair] == made).nonzero()
            begins, pair = begins[found], pair[found]
        else:
            begins, pair = begins[:0], pair[:0]
        return counted(document[begins], pair, len(self.lengths), len(pairs))


def counted(
    documents: npt.NDArray[Any],
    slots: npt.NDArray[Any],
    count: int,
    width: int,
    often: npt.NDArray[Any] | None = None,
) -> Counts:
    """Count pairs of a document and a thing asked for, shape (count, width); each so often."""
    flat = np.bincount(documents * width + slots, often, minlength=count * width)
    return flat.reshape(count, width).astype(np.float64)


def to_best(scores: Scores) -> Scores:
    """Return scores divided by the best."""
    best = scores.max(initial=0.0)
    return scores / best if best else scores


def summed(counts: Counts, owners: npt.NDArray[np.intp], count: int) -> Counts:
    """Return the sums of the rows of each owner."""
    width = counts.shape[1]
    place = np.repeat(owners * width, width) + np.tile(np.arange(width, dtype=np.intp), len(owners))
    flat = np.bincount(place, counts.ravel(), minlength=count * width)
    return flat.reshape(count, width).astype(np.float64, copy=False)


def by_name(names: Sequence[str], parts: Scores) -> list[dict[str, float]]:
    """Return each row's parts by name, without those that were not looked at."""
    found = [dict(zip(names, values, strict=True)) for values in parts.tolist()]
    missing = np.isnan(parts).any()
    return (
        [{n: v for n, v in one.items() if not np.isnan(v)} for one in found] if missing else found
    )
