"""The vocabulary: numbers of terms, and the pieces of words that share four letters.

The terms of a large memory are mostly references that stand in one step: in a dictionary of Python
they took more room than their postings a third. So they stand side by side as bytes, with a table
of numbers in which a hash says where to look: a file of the index brings both along. The words of a
thousand documents are looked up side by side, none of them as an object of its own. A hash is never
believed: the bytes are compared; and it begins with a secret, so that nobody makes up words that
all stand in one place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.records.step_text import tokens
from hybridagi_steps.records.store_values import FloatVector, distinct
from hybridagi_steps.search.forward_index import (
    Counts,
    TermSlots,
    Words,
    changing,
    counted,
    spans,
)

PIECE = 4
"""Bytes of a piece of a word: letters, in ASCII."""
MOST_ASKED = 10_000
"""Terms of queries whose numbers are remembered."""
Spelling = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""All terms as one UTF-8 text, and behind which byte of it each ends."""

_NAMES = ("text", "bounds", "slots", "secret")
_CHUNK = 8
"""Bytes that are compared at once; so many stand behind the last one of a text."""
_HASH_BITS = 15
_HASHES = 2**_HASH_BITS
_LEAST_SLOTS = 10
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_CHUNK + 1)], np.uint64)
_EMPTY = -1

_Places = npt.NDArray[np.int64]


class AskedText:
    """A text whose parts are sought, its words and its meaning; empty where a half is not asked."""

    def __init__(
        self, text: str, vector: FloatVector | None, *, words: bool, meaning: bool
    ) -> None:
        self.stems = tokens(text) if words else []
        self.vector = vector if meaning else None

    @cached_property
    def terms(self) -> list[str]:
        """The distinct stems."""
        return list(dict.fromkeys(self.stems))


class Spelled(NamedTuple):
    """Words in a text of UTF-8 that has eight bytes more behind it."""

    letters: npt.NDArray[np.uint8]
    starts: _Places
    lengths: _Places
    """In bytes."""

    def at(self, places: npt.NDArray[np.intp]) -> Spelled:
        """Return some of them."""
        return Spelled(self.letters, self.starts[places], self.lengths[places])

    def chunk(self, first: int, places: npt.NDArray[np.intp] | slice) -> npt.NDArray[np.uint64]:
        """Return eight bytes of some words from the first-th on; behind the last ones stand 0."""
        numbers = np.ndarray((len(self.letters) - _CHUNK + 1,), "<u8", self.letters, 0, (1,))
        rest = np.minimum(self.lengths[places] - first, _CHUNK)
        return numbers[self.starts[places] + first] & _MASKS[rest]

    def hashes(self, secret: np.uint64) -> npt.NDArray[np.uint64]:
        """Return a hash of each, of which the highest bits are best."""
        found = self.chunk(0, slice(None)) * secret
        longer = np.arange(len(found))
        for first in range(_CHUNK, int(self.lengths.max(initial=0)), _CHUNK):
            longer = longer[self.lengths[longer] > first]
            mixed = found[longer] ^ (found[longer] >> np.uint64(32)) ^ self.chunk(first, longer)
            found[longer] = mixed * secret
        return (found ^ (found >> np.uint64(32))) * secret

    def same(self, other: Spelled) -> npt.NDArray[np.bool_]:
        """Return which are spelled as the other ones in their places."""
        equal = self.lengths == other.lengths
        equal &= self.chunk(0, slice(None)) == other.chunk(0, slice(None))
        (longer,), first = equal.nonzero(), _CHUNK
        while len(longer := longer[self.lengths[longer] > first]):
            equal[longer] = same = self.chunk(first, longer) == other.chunk(first, longer)
            longer, first = longer[same], first + _CHUNK
        return equal


class Vocabulary:
    """The number of each term, from 0 in the order they came. Not thread-safe by itself."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Know no terms, or those that `to_arrays` described."""
        held = arrays or _nothing()
        self._text, self._bounds, self._slots, self._secret = (held[name] for name in _NAMES)
        self._count = len(self._bounds) - 1
        self._asked: dict[str, int] = {}

    def __len__(self) -> int:
        """How many numbers there are."""
        return self._count

    def find(self, terms: Sequence[str]) -> list[int]:
        """Return the number of each term, -1 of unknown ones."""
        if not self._asked.keys() >= {*terms}:
            if len(self._asked) > MOST_ASKED:
                self._asked.clear()
            self._asked.update(zip(terms, self._look_up(_spelled(terms)).tolist(), strict=True))
        return [self._asked[term] for term in terms]

    def number(self, words: Spelled) -> _Places:
        """Return the numbers of words; new ones get the next."""
        found = self._look_up(words)
        (unknown,) = (found < 0).nonzero()
        while len(unknown):
            fresh = words.at(unknown)
            hashes = fresh.hashes(self._secret[0])
            turn = np.argsort(hashes, kind="stable")
            self._add(fresh.at(np.sort(turn[changing(hashes[turn])])))
            found[unknown] = self._look_up(fresh)
            unknown = unknown[found[unknown] < 0]
        return found

    def spelling(self) -> Spelling:
        """Return how all terms are spelled."""
        bounds = self._bounds[: self._count + 1]
        return self._text[: int(bounds[-1])], bounds[1:]

    def keeping(self, used: npt.NDArray[np.bool_]) -> Vocabulary:
        """Return the used terms alone, numbered anew, in the same order."""
        kept = Vocabulary()
        if used.any():
            kept._add(self._terms(np.flatnonzero(used)))
        return kept

    def clear(self, numbers: _Places) -> None:
        """Forget how terms are spelled; their numbers stay, and say nothing but a length."""
        left = numbers[self._text[self._bounds[numbers]] > 0]
        if not len(left):
            return
        self._asked.clear()
        if not self._text.flags.writeable:
            self._text = self._text.copy()
        if not self._slots.flags.writeable:
            self._slots = self._slots.copy()
        behind, places = list[npt.NDArray[np.intp]](), self._places(self._terms(left))
        wanted = left
        while len(wanted):
            found = self._slots[places] == wanted
            behind.append(places[found])
            wanted, places = wanted[~found], self._behind(places[~found])
        # What stands behind one may be there only because that place was taken.
        places = np.concatenate(behind)
        self._slots[places] = _EMPTY
        moved: list[npt.NDArray[np.int32]] = []
        while len(places):
            places = distinct(self._behind(places))
            places = places[self._slots[places] != _EMPTY]
            moved.append(self._slots[places])
            self._slots[places] = _EMPTY
        terms = self._terms(left)
        self._text[spans(terms.starts, terms.lengths)] = 0
        self._put(np.sort(np.concatenate(moved)))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as flat arrays."""
        bounds = self._bounds[: self._count + 1]
        text = self._text[: int(bounds[-1]) + _CHUNK]
        return dict(zip(_NAMES, (text, bounds, self._slots.copy(), self._secret), strict=True))

    def _terms(self, numbers: npt.NDArray[Any]) -> Spelled:
        starts = self._bounds[numbers]
        return Spelled(self._text, starts, self._bounds[numbers + 1] - starts)

    def _look_up(self, words: Spelled) -> _Places:
        """Return the number of each word, -1 of an unknown one."""
        found = np.full(len(words.starts), _EMPTY, np.int64)
        places, left = self._places(words), np.arange(len(found) if self._count else 0)
        while len(left):
            numbers = self._slots[places].astype(np.intp)
            found[left] = numbers
            there = numbers >= 0  # of none the first term is compared
            (other,) = (there & ~words.same(self._terms(numbers * there))).nonzero()
            left, words, places = left[other], words.at(other), self._behind(places[other])
        return found

    def _places(self, words: Spelled) -> npt.NDArray[np.intp]:
        """Return where in the table the numbers of words stand, or behind what stands there."""
        bits = np.uint64(65 - len(self._slots).bit_length())
        return (words.hashes(self._secret[0]) >> bits).astype(np.intp)

    def _behind(self, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return (places + 1) & (len(self._slots) - 1)

    def _add(self, words: Spelled) -> None:
        """Give words that are unknown, and differ, the next numbers."""
        self._asked.clear()
        first, (text, _) = self._count, self.spelling()
        ends = len(text) + np.cumsum(words.lengths)
        self._count += len(ends)
        self._text = _with_room(self._text, len(text), int(ends[-1]) + _CHUNK)
        self._bounds = _with_room(self._bounds, first + 1, self._count + 1)
        letters = np.arange(len(text), int(ends[-1]))
        letters += np.repeat(words.starts + words.lengths - ends, words.lengths)
        self._text[len(text) : int(ends[-1])] = words.letters[letters]
        self._bounds[first + 1 : self._count + 1] = ends
        if 3 * self._count > 2 * len(self._slots):
            first, bits = 0, (2 * self._count).bit_length()
            self._slots = np.full(2**bits, _EMPTY, np.int32)
        elif not self._slots.flags.writeable:
            self._slots = self._slots.copy()
        numbers = np.arange(first, self._count, dtype=np.int32)
        self._put(numbers[self._text[self._bounds[numbers]] > 0])

    def _put(self, numbers: npt.NDArray[np.int32]) -> None:
        """Note in the table where terms are, given by their numbers, ascending."""
        places = self._places(self._terms(numbers))
        while len(numbers):
            free = self._slots[places] == _EMPTY
            # Of several the last one written stays: the first to come are common, and soon found.
            self._slots[places[free][::-1]] = numbers[free][::-1]
            left = self._slots[places] != numbers
            numbers, places = numbers[left], self._behind(places[left])


def _nothing() -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a vocabulary without terms."""
    return {
        "text": np.zeros(_CHUNK, np.uint8),
        "bounds": np.zeros(1, np.int64),
        "slots": np.full(2**_LEAST_SLOTS, _EMPTY, np.int32),
        "secret": np.frombuffer(os.urandom(_CHUNK), np.uint64) | np.uint64(1),
    }


def _with_room(held: npt.NDArray[Any], used: int, need: int) -> npt.NDArray[Any]:
    """Return an array that has room, and can be written to, with what is used of another."""
    if need <= len(held) and held.flags.writeable:
        return held
    grown = np.zeros(need + need // 4, held.dtype)
    grown[:used] = held[:used]
    return grown


def _spelled(words: Iterable[str]) -> Spelled:
    each = [word.encode("utf-8", "surrogatepass") for word in words]
    lengths = np.array([*map(len, each)], np.int64)
    letters = np.frombuffer(b"".join(each) + bytes(_CHUNK), np.uint8)
    return Spelled(letters, np.cumsum(lengths) - lengths, lengths)


def cut_words(text: str) -> tuple[Spelled, _Places]:
    """Return the words of a text, and how many stand before each of its control characters."""
    letters = np.frombuffer(text.encode("utf-8", "surrogatepass") + bytes(_CHUNK), np.uint8)
    (gaps,) = (letters[:-_CHUNK] <= ord(" ")).nonzero()
    lengths = np.diff(gaps, prepend=-1) - 1
    behind = np.cumsum(lengths > 0)[letters[gaps] < ord(" ")]
    (words,) = lengths.nonzero()
    lengths = lengths[words]
    return Spelled(letters, gaps[words] - lengths, lengths), np.diff(behind, prepend=0)


def piece_counts(
    words: Words, terms: Sequence[str], spelling: Spelling, slots: TermSlots
) -> Counts:
    """Count the pieces that words share with `terms`; words shorter than a piece have none."""
    sought = distinct(np.concatenate([_pieces(term.encode()) for term in ("", *terms)]))
    if not len(sought) or not len(words.ids):
        return np.zeros((len(words.lengths), len(sought)))
    owner, piece = _found_pieces(spelling, slots.used(words, len(spelling[1])), sought)
    first = np.append(0, np.flatnonzero(owner[1:] != owner[:-1]) + 1)[: len(owner)]
    having = slots.of(words, owner[first], len(spelling[1]))
    (found,) = (having >= 0).nonzero()
    document, place = words.at(found)
    inside = place < words.window[document]
    document, of_word = document[inside], having[found[inside]]
    each = np.diff(first, append=len(owner))[of_word]
    place = np.repeat(first[of_word] - np.cumsum(each) + each, each)
    place += np.arange(len(place))
    return counted(np.repeat(document, each), piece[place], len(words.lengths), len(sought))


def _found_pieces(
    spelling: Spelling, terms: npt.NDArray[np.intp], sought: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
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
    return terms[owner[found[same]]], slot[same]


def _hashed(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return numbers below `_HASHES`, the same for the same code."""
    return (codes * np.uint32(2_654_435_761)) >> np.uint32(32 - _HASH_BITS)


def _pieces(word: bytes) -> npt.NDArray[np.uint32]:
    each = [int.from_bytes(word[n : n + PIECE], "little") for n in range(len(word) - PIECE + 1)]
    return np.array(each, np.uint32)
