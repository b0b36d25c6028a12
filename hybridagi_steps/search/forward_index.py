"""The forward index: the words of each document in order, as numbers, beside the postings.

Postings say which documents hold a word; this says which words a document holds, where, and which
of them are its own. What is scored of candidates alone is counted from it: phrases, pieces of
words, and other documents' text (a parent, the turns around, the first steps of a tool). Four bytes
per word. It knows positions and term numbers, which its `LexicalIndex` hands out, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
"""Positions of documents."""

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
