"""Counting what a query asks for in the words of candidates: terms, phrases, pieces of words.

Every function takes words as the forward index gives them and returns one row of counts per
document; `bm25` turns counts into scores. Phrases and pieces all weigh the same, however common:
on the shipped runs weights by frequency changed nothing (see the decision record), and their
frequencies are nowhere kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.search.bm25 import K1, B, LexicalIndex
from hybridagi_steps.search.forward_index import Words

PIECE = 4
"""Bytes of a piece of a word: letters, in ASCII."""

Counts = npt.NDArray[np.float64]
"""How often each document has what is asked for, shape (documents, things asked for)."""
Scores = npt.NDArray[np.float64]


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


def piece_counts(words: Words, terms: Sequence[str], index: LexicalIndex) -> Counts:
    """Count the pieces that words share with `terms`; words shorter than a piece have none."""
    sought = np.unique(np.concatenate([_pieces(term.encode()) for term in ("", *terms)]))
    if not len(sought) or not len(words.ids):
        return np.zeros((len(words.lengths), len(sought)))
    used = np.zeros(index.vocabulary, np.bool_)
    used[words.ids] = True
    (used_ids,) = used.nonzero()
    owner, slot = _found_pieces(index, used_ids, sought)
    having, place = np.unique(owner, return_inverse=True)
    if not len(having):
        return np.zeros((len(words.lengths), len(sought)))
    in_term = _table(place, slot, len(having), len(sought))
    return term_counts(words, used_ids[having], index.vocabulary) @ in_term


def _found_pieces(
    index: LexicalIndex, terms: npt.NDArray[np.intp], sought: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return for each piece sought and found the place of the term that has it, and of itself."""
    text, ends = index.spelling()
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
