"""The vocabulary: numbers of terms, and the pieces of words that share four letters.

The terms of a large memory are mostly references that stand in one step: in a dictionary of Python
they took more room than their postings a third. So they stand side by side as bytes, with a sorted
table of hashes that a file of the index brings along. A dictionary holds those at hand: what was
asked for lately, and new terms until the table takes them in. A hash is never believed: the bytes
are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.store_values import distinct
from hybridagi_steps.search.forward_index import Counts, TermSlots, Words, counted
from hybridagi_steps.search.key_columns import Column

PIECE = 4
"""Bytes of a piece of a word: letters, in ASCII."""
AT_HAND = 2**17
"""Terms in the dictionary, 100 to 150 bytes each, from which the table takes them in."""
COMMON = 256
"""Terms of more than one in so many documents stay at hand."""
Spelling = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""All terms as one UTF-8 text, and behind which byte of it each ends."""

_KINDS = {"text": np.uint8, "ends": np.int64, "hashes": np.uint64, "numbers": np.int32}
_HASH_BITS = 15
_HASHES = 2**_HASH_BITS


class Vocabulary:
    """The number of each term, from 0 in the order they came. Not thread-safe by itself."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Know no terms, or those that `to_arrays` described."""
        held = arrays or {name: np.empty(0, kind) for name, kind in _KINDS.items()}
        self._text, self._ends = Column(held["text"]), Column(held["ends"])
        self._count = len(held["ends"])
        # Of the first terms: hashes ascending, and beside each the number of its term.
        self._hashes, self._numbers = held["hashes"], held["numbers"]
        self._at_hand, self._most_at_hand = _AtHand(self), AT_HAND
        self._unspelled = list[str]()

    def __len__(self) -> int:
        """How many numbers there are."""
        return self._count

    def find(self, term: str) -> int:
        """Return the number of a term, -1 for an unknown one."""
        known = self._at_hand.get(term)
        if known is None and (known := self._look_up(term)) >= 0:
            self._at_hand[term] = known
        return known

    def number(self, terms: Iterable[str], count: int) -> npt.NDArray[np.int64]:
        """Return the numbers of so many terms; new ones get the next."""
        return np.fromiter(map(self._at_hand.__getitem__, terms), np.int64, count)

    def number_one(self, term: str) -> int:
        """Return the number of a term that is not at hand; a new one gets the next."""
        found = self._look_up(term)
        if found < 0:
            found = self._count
            self._count += 1
            self._unspelled.append(term)
        return found

    def spelling(self) -> Spelling:
        """Return how all terms are spelled."""
        if self._unspelled:
            spelled = [_spelled(term) for term in self._unspelled]
            ends = len(self._text.values) + np.cumsum([*map(len, spelled)])
            self._text.extend(np.frombuffer(b"".join(spelled), np.uint8))
            self._ends.extend(ends)
            self._unspelled.clear()
        return self._text.values, self._ends.values

    def shrink(self, holding: npt.NDArray[np.int32], documents: int) -> None:
        """Keep no more terms at hand than are worth it, given how many documents hold each."""
        if len(self._at_hand) < self._most_at_hand:
            return
        self._take_in()
        kept, common = _AtHand(self), holding > documents / COMMON
        kept.update((term, n) for term, n in self._at_hand.items() if common[n])
        self._at_hand, self._most_at_hand = kept, max(AT_HAND, 2 * len(kept))

    def keep(self, used: npt.NDArray[np.bool_]) -> None:
        """Forget the other terms; those left are numbered anew, in the same order."""
        self._take_in()
        text, ends = self.spelling()
        lengths, renumbered = np.diff(ends, prepend=0), np.cumsum(used) - 1
        self._text = Column(text[np.repeat(used, lengths)])
        self._ends = Column(np.cumsum(lengths[used]))
        self._count = len(self._ends.values)
        kept = used[self._numbers]
        self._hashes = self._hashes[kept]
        self._numbers = renumbered[self._numbers[kept]].astype(np.int32)
        self._at_hand = _AtHand(self)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as flat arrays."""
        self._take_in()
        text, ends = self.spelling()
        return {"text": text, "ends": ends, "hashes": self._hashes, "numbers": self._numbers}

    def _look_up(self, term: str) -> int:
        """Return the number of a term by the table, -1 where that has none."""
        if not len(self._hashes):
            return -1
        spelled = _spelled(term)
        code, text, ends = np.uint64(_code(spelled)), self._text.values, self._ends.values
        first, last = (int(self._hashes.searchsorted(code, side)) for side in ("left", "right"))
        for number in self._numbers[first:last].tolist():
            if text[ends[number - 1] if number else 0 : ends[number]].tobytes() == spelled:
                return number
        return -1

    def _take_in(self) -> None:
        """Let the table have all terms."""
        text, ends = self.spelling()
        first = len(self._hashes)
        if first == len(ends):
            return
        bounds = np.concatenate(([0], ends))[first:].tolist()
        codes = [_code(text[start:end].tobytes()) for start, end in pairwise(bounds)]
        fresh = np.array(codes, np.uint64)
        order = np.argsort(fresh)
        places = np.searchsorted(self._hashes, fresh[order])
        self._hashes = np.insert(self._hashes, places, fresh[order])
        self._numbers = np.insert(self._numbers, places, (order + first).astype(np.int32))


class _AtHand(dict[str, int]):
    """Numbers of terms; one that is asked for by `[]` is looked up, or gets the next."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __missing__(self, term: str) -> int:
        self[term] = number = self._vocabulary.number_one(term)
        return number


def _spelled(term: str) -> bytes:
    return term.encode("utf-8", "surrogatepass")


def _code(spelled: bytes) -> int:
    return int.from_bytes(blake2b(spelled, digest_size=8).digest(), "little")


def piece_counts(
    words: Words, terms: Sequence[str], spelling: Spelling, slots: TermSlots
) -> Counts:
    """Count the pieces that words share with `terms`; words shorter than a piece have none."""
    sought = distinct(np.concatenate([_pieces(term.encode()) for term in ("", *terms)]))
    if not len(sought) or not len(words.ids):
        return np.zeros((len(words.lengths), len(sought)))
    used = np.zeros(len(spelling[1]), np.bool_)
    used[words.ids] = True
    (used_ids,) = used.nonzero()
    owner, piece = _found_pieces(spelling, used_ids, sought)
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    having = slots.of(words, used_ids[owner[first]], len(spelling[1]))
    (found,) = (having >= 0).nonzero()
    of_word = having[found]
    each = np.diff(first, append=len(owner))[of_word]
    document = np.repeat(words.document[found], each)
    place = np.repeat(first[of_word] - np.cumsum(each) + each, each) + np.arange(len(document))
    return counted(document, piece[place], len(words.lengths), len(sought))


def _found_pieces(
    spelling: Spelling, terms: npt.NDArray[np.intp], sought: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return for each piece sought and found the place of the term that has it, and of itself."""
    text, ends = spelling
    starts = np.where(terms > 0, ends[terms - 1], 0)
    pieces = np.maximum(ends[terms] - starts - (PIECE - 1), 0)
    owner = np.repeat(np.arange(len(terms)), pieces)
    at = np.arange(len(owner)) + (starts - (np.cumsum(pieces) - pieces))[owner]
    # Every byte of the text with the three behind it.
    codes = np.ndarray((max(len(text) - PIECE + 1, 0),), "<u4", text, 0, (1,))[at]
    likely = np.zeros(_HASHES, np.bool_)
    likely[_hashed(sought)] = True
    (found,) = likely[_hashed(codes)].nonzero()
    slot = np.minimum(np.searchsorted(sought, codes[found]), len(sought) - 1)
    same = sought[slot] == codes[found]
    return owner[found[same]], slot[same]


def _hashed(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return numbers below `_HASHES`, the same for the same code."""
    return (codes * np.uint32(2_654_435_761)) >> np.uint32(32 - _HASH_BITS)


def _pieces(word: bytes) -> npt.NDArray[np.uint32]:
    """Return the pieces of one word as numbers."""
    each = [int.from_bytes(word[n : n + PIECE], "little") for n in range(len(word) - PIECE + 1)]
    return np.array(each, np.uint32)
