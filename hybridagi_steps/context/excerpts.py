"""Long texts made short without a language model: the fragments that matter, as they stand.

Nothing is written anew, so nothing is made up. A fragment is a line or a sentence, or a piece of a
long one; those that hold wanted words come first, then those that hold ids and numbers, because
later actions need exactly these; what is chosen stays in its order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from hybridagi_steps.records.step_text import tokens

GAP = " […] "
"""Stands where something was left out."""

_FRAGMENT_CHARACTERS = 160
_SUMMARY_CHARACTERS = 2_000
_WORDS_OF = 40_000
_SHORT_CHARACTERS = 200
_WANTED_WORDS = 2
"""Words of the query that a fragment must share to be kept without a new id."""

_IDENTIFIER = re.compile(r"(?=[\w@./:#-]*[\d_@])[A-Za-z0-9#][\w@./:#-]*[A-Za-z0-9]")
_BREAKS = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[,;}\]])\s+")


def identifiers(text: str) -> list[str]:
    """Return the ids and numbers in a text, each once: names, codes, dates, paths with a digit."""
    return list(dict.fromkeys(_IDENTIFIER.findall(text)))


@lru_cache(maxsize=4_096)
def identifier_set(text: str) -> frozenset[str]:
    """Return the ids and numbers in a text, to be asked for many."""
    return frozenset(_IDENTIFIER.findall(text))


@lru_cache(maxsize=4_096)
def words(text: str) -> tuple[str, ...]:
    """Return the words by which a text is found: stems, and ids as they stand."""
    begin = text[:_WORDS_OF]
    return (*tokens(begin), *(found.lower() for found in identifiers(begin)))


def condensed(text: str, wanted: Collection[str], known: set[str]) -> str:
    """Return a text without the fragments that bring nothing: no wanted word, no new id or number.

    A short text comes back as it is.

    Args:
        text: Any text.
        wanted: Words, as `words` gives them, that make a fragment matter.
        known: Ids and numbers that the reader has seen; those of the text are added.
    """
    if len(text) <= _SHORT_CHARACTERS:
        known.update(identifiers(text))
        return text
    fragments = _fragments(text)
    sought = set(wanted)
    chosen: list[int] = []
    for number, fragment in enumerate(fragments):
        fresh = [name for name in identifiers(fragment) if name not in known]
        if fresh or number == 0 or len(sought.intersection(words(fragment))) >= _WANTED_WORDS:
            chosen.append(number)
            known.update(fresh)
    return _joined(fragments, chosen)


def excerpt(text: str, characters: int, wanted: Collection[str] = ()) -> str:
    """Return the fragments of a text that matter most, at most `characters` long altogether.

    Args:
        text: Any text; one that is short enough comes back as it is.
        characters: Most characters of the result.
        wanted: Words, as `words` gives them, that make a fragment matter.
    """
    if len(text) <= characters:
        return text
    fragments = _fragments(text)
    sought = set(wanted)
    order = sorted(range(len(fragments)), key=lambda n: (-_worth(fragments[n], sought, n), n))
    chosen: set[int] = set()
    room = characters
    for number in order:
        cost = len(fragments[number]) + len(GAP)
        if cost <= room:
            chosen.add(number)
            room -= cost
    return _joined(fragments, sorted(chosen)) or text[:characters]


def extractive_summary(text: str) -> str:
    """Return the gist of a text in its own words: what a summariser is by default."""
    return excerpt(text, _SUMMARY_CHARACTERS)


def _joined(fragments: Sequence[str], chosen: Sequence[int]) -> str:
    """Return the chosen fragments, a mark where something between them is left out."""
    parts: list[str] = []
    for place, number in enumerate(chosen):
        if place:
            parts.append(" " if number == chosen[place - 1] + 1 else GAP)
        parts.append(fragments[number])
    if chosen and chosen[-1] < len(fragments) - 1:
        parts.append(GAP.rstrip())
    return "".join(parts)


def _fragments(text: str) -> list[str]:
    found: list[str] = []
    for line in _BREAKS.split(text):
        line = line.strip()
        for start in range(0, len(line), _FRAGMENT_CHARACTERS):
            found.append(line[start : start + _FRAGMENT_CHARACTERS])
    return found


def _worth(fragment: str, sought: set[str], place: int) -> float:
    hits = len(sought.intersection(words(fragment))) if sought else 0
    first = 1.0 if place == 0 else 0.0
    return 2.0 * hits + first + 0.5 * min(4, len(identifiers(fragment)))
