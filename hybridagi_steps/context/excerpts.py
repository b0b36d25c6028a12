"""Long texts made short without a language model: the fragments that matter, as they stand.

Nothing is written anew, so nothing is made up. A fragment is a line or a sentence, or a piece of a
long one; those that hold wanted words come first, then those that hold ids and numbers, because
later actions need exactly these; what is chosen stays in its order.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from hybridagi_steps.records.step_text import tokens

GAP = " […] "
"""Stands where something was left out."""

_FRAGMENT_CHARACTERS = 160
_SUMMARY_CHARACTERS = 2_000
_WORDS_OF = 4_000

_IDENTIFIER = re.compile(r"(?=[\w@./:#-]*[\d_@])[A-Za-z0-9#][\w@./:#-]*[A-Za-z0-9]")
_BREAKS = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[,;}\]])\s+")


def identifiers(text: str) -> list[str]:
    """Return the ids and numbers in a text, each once: names, codes, dates, paths with a digit."""
    return list(dict.fromkeys(_IDENTIFIER.findall(text)))


@lru_cache(maxsize=4_096)
def words(text: str) -> tuple[str, ...]:
    """Return the words by which a text is found: stems, and ids as they stand."""
    begin = text[:_WORDS_OF]
    return (*tokens(begin), *(found.lower() for found in identifiers(begin)))


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
    parts: list[str] = []
    for number in sorted(chosen):
        if parts:
            parts.append(" " if number - 1 in chosen else GAP)
        parts.append(fragments[number])
    return "".join(parts) or text[:characters]


def extractive_summary(text: str) -> str:
    """Return the gist of a text in its own words: what a summariser is by default."""
    return excerpt(text, _SUMMARY_CHARACTERS)


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
