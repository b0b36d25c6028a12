"""The forward index: the words of each document in order, as numbers, beside the postings.

Postings say which documents hold a word; this says which words a document holds, where, and which
of them are its own. What is scored of candidates alone is counted from it: phrases, pieces of
words, and other documents' text (a parent, the turns around, the first steps of a tool). Four bytes
per word. It knows positions and term numbers, which its `LexicalIndex` hands out, nothing else.

Below it stand the counts themselves: terms, phrases and pieces in words as the index gives them,
one row per document, and `bm25`, which makes scores of them. Phrases and pieces all weigh the same,
however common: weights by frequency changed nothing (see the decision record on retrieval), and
their frequencies are nowhere kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
"""Positions of documents."""
Counts = npt.NDArray[np.float64]
"""How often each document has what is asked for, shape (documents, things asked for)."""
Scores = npt.NDArray[np.float64]
"""One score per document."""
Spelling = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""All terms as one UTF-8 text, and behind which byte of it each ends."""

K1, B = 1.5, 0.75
"""Term saturation and length normalisation of BM25, the usual constants."""
PIECE = 4
"""Bytes of a piece of a word: letters, in ASCII."""

_NAMES = ("ids", "ends", "own_from")
_LARGEST = np.iinfo(np.uint16).max


class Words(NamedTuple):
    """Words of several documents, one after the other."""

    ids: npt.NDArray[np.uint32]
    """Number of each word's term."""
    document: npt.NDArray[np.intp]
    """Of each word, the place in what was asked for of the document it stands in; ascending."""
    lengths: npt.NDArray[np.int64]
    """Words of each document asked for."""


class ForwardIndex:
    """Term numbers of documents, by position. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._ids = np.empty(0, np.uint32)
        self._ends = np.empty(0, np.int64)
        self._own_from = np.empty(0, np.uint16)
        self._size = 0

    def append(self, ids: Sequence[int], own_from: int) -> None:
        """Add the next document; its own words begin at `own_from`."""
        start = self._end(self._size)
        self._ids = _with_room(self._ids, start, len(ids))
        self._ends = _with_room(self._ends, self._size, 1)
        self._own_from = _with_room(self._own_from, self._size, 1)
        self._ids[start : start + len(ids)] = ids
        self._ends[self._size] = start + len(ids)
        self._own_from[self._size] = min(own_from, len(ids), _LARGEST)
        self._size += 1

    def words(self, positions: Places, *, own: bool) -> Words:
        """Return the words of documents, all of them or their own; of position -1 none."""
        held = positions >= 0
        known = np.where(held, positions, 0)
        if not self._size:
            known, held = known[:0], held[:0]
        ends = self._ends[known]
        starts = np.where(known > 0, self._ends[known - 1], 0)
        if own:
            starts = starts + self._own_from[known]
        lengths = np.where(held, ends - starts, 0)
        if len(lengths) < len(positions):
            lengths = np.zeros(len(positions), np.int64)
            starts = lengths
        document = np.repeat(np.arange(len(positions)), lengths)
        before = np.cumsum(lengths) - lengths
        places = np.arange(len(document)) + (starts - before)[document]
        return Words(self._ids[places], document, lengths)

    @property
    def own_words(self) -> int:
        """Own words of all documents together."""
        return self._end(self._size) - int(self._own_from[: self._size].sum(dtype=np.int64))

    def renumber(self, live: npt.NDArray[np.bool_], terms: npt.NDArray[np.uint32]) -> None:
        """Keep the documents that are `live`; term t is called `terms[t]` from now on."""
        starts = np.concatenate(([0], self._ends[: self._size][:-1])) if self._size else self._ends
        lengths = self._ends[: self._size] - starts[: self._size]
        kept = np.repeat(live, lengths)
        self._ids = terms[self._ids[: len(kept)][kept]]
        self._ends = np.cumsum(lengths[live])
        self._own_from = self._own_from[: self._size][live]
        self._size = len(self._ends)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the index as flat arrays."""
        return {
            "ids": self._ids[: self._end(self._size)],
            "ends": self._ends[: self._size],
            "own_from": self._own_from[: self._size],
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ForwardIndex:
        """Return the index that `to_arrays` described."""
        index = cls()
        index._ids, index._ends, index._own_from = (arrays[name] for name in _NAMES)
        index._size = len(index._ends)
        return index

    def _end(self, size: int) -> int:
        return int(self._ends[size - 1]) if size else 0


def _with_room(array: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    """Return an array that can be written to and has room for `more` behind what is `used`."""
    if used + more <= len(array) and array.flags.writeable:
        return array
    grown = np.empty(max(used + more, used + used // 8, 1024), array.dtype)
    grown[:used] = array[:used]
    return grown


def bm25(
    counts: Counts,
    lengths: npt.NDArray[Any],
    weights: npt.NDArray[np.float64] | float,
    average: float,
) -> Scores:
    """Return the BM25 score of each document.

    Args:
        counts: Of each document and term.
        lengths: Words of each document.
        weights: Of each term, or one for all.
        average: Length of the average document of the collection.
    """
    damped = K1 * (1 - B + B * lengths / (average or 1.0))
    saturated = counts * (K1 + 1) / (counts + damped[:, None])
    return (saturated * weights).sum(axis=1)


def term_counts(words: Words, terms: npt.NDArray[np.int64], vocabulary: int) -> Counts:
    """Count terms, given by their numbers; -1 stands for one that no document holds."""
    slots = np.full(vocabulary + 1, -1, np.int32)
    slots[terms] = np.arange(len(terms))
    slots[-1] = -1
    slot = slots[words.ids]
    found = slot >= 0
    return _table(words.document[found], slot[found], len(words.lengths), len(terms))


def phrase_counts(words: Words, terms: npt.NDArray[np.int64], vocabulary: int) -> Counts:
    """Count pairs of terms that follow each other in `terms`, where a document has them so."""
    whole = (terms[:-1] >= 0) & (terms[1:] >= 0)
    pairs = np.unique((terms[:-1] * vocabulary + terms[1:])[whole])
    if not len(pairs) or len(words.ids) < 2:
        return np.zeros((len(words.lengths), len(pairs)))
    known = np.zeros(vocabulary, np.bool_)
    known[pairs // vocabulary] = True
    (begins,) = known[words.ids[:-1]].nonzero()
    begins = begins[words.document[begins] == words.document[begins + 1]]
    ids = words.ids.astype(np.int64)
    made = ids[begins] * vocabulary + ids[begins + 1]
    slot = np.minimum(np.searchsorted(pairs, made), len(pairs) - 1)
    found = pairs[slot] == made
    return _table(words.document[begins[found]], slot[found], len(words.lengths), len(pairs))


def piece_counts(words: Words, terms: Sequence[str], spelling: Spelling) -> Counts:
    """Count the pieces that words share with `terms`; words shorter than a piece have none."""
    sought = np.unique(np.concatenate([_pieces(term.encode()) for term in ("", *terms)]))
    if not len(sought) or not len(words.ids):
        return np.zeros((len(words.lengths), len(sought)))
    vocabulary = len(spelling[1])
    used = np.zeros(vocabulary, np.bool_)
    used[words.ids] = True
    (used_ids,) = used.nonzero()
    owner, slot = _found_pieces(spelling, used_ids, sought)
    having, place = np.unique(owner, return_inverse=True)
    if not len(having):
        return np.zeros((len(words.lengths), len(sought)))
    in_term = _table(place, slot, len(having), len(sought))
    return term_counts(words, used_ids[having], vocabulary) @ in_term


def _found_pieces(
    spelling: Spelling, terms: npt.NDArray[np.intp], sought: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return for each piece sought and found the place of the term that has it, and of itself."""
    text, ends = spelling
    starts = np.where(terms > 0, ends[terms - 1], 0)
    pieces = np.maximum(ends[terms] - starts - (PIECE - 1), 0)
    owner = np.repeat(np.arange(len(terms)), pieces)
    at = np.arange(len(owner)) + (starts - (np.cumsum(pieces) - pieces))[owner]
    codes = np.zeros(len(at), np.uint32)
    for byte in range(PIECE):
        codes |= text[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    slot = np.minimum(np.searchsorted(sought, codes), len(sought) - 1)
    found = sought[slot] == codes
    return owner[found], slot[found]


def _pieces(word: bytes) -> npt.NDArray[np.uint32]:
    """Return the pieces of one word as numbers."""
    each = [int.from_bytes(word[n : n + PIECE], "little") for n in range(len(word) - PIECE + 1)]
    return np.array(each, np.uint32)


def _table(
    documents: npt.NDArray[np.intp], slots: npt.NDArray[Any], count: int, width: int
) -> Counts:
    flat = np.bincount(documents * width + slots, minlength=count * width)
    return flat.reshape(count, width).astype(np.float64)
