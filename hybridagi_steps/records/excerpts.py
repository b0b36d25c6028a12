"""Long texts made short without a language model: the fragments that matter, as they stand.

Nothing is written anew, so nothing is made up. A fragment is a line or a sentence, or a piece of a
long one; those that hold wanted words come first, then those that hold ids and numbers, because
later actions need exactly these; what is chosen stays in its order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

from hybridagi_steps.records.step_text import ascii_words, tokens

GAP, GAP_OF_LINES = " […] ", "\n[…]\n"
"""Stands where something was left out, the second between two lines. What stood inside a line never
begins one: a mark stands before it, so that nobody's words pass for the name of who speaks."""

_FRAGMENT_CHARACTERS = 160
_SUMMARY_CHARACTERS = 2_000
_WORDS_OF = 40_000
_IDENTIFIERS_OF = 400_000
"""Characters of a text in which ids are looked for."""

# No pattern here may look ahead: texts of one long run would cost quadratic time.
_RUN = re.compile(r"[\w@./:#-]+")
_TELLING = re.compile(r"[\d_@]")
_BEGIN, _END = re.compile(r"[A-Za-z0-9#]"), re.compile(r"[A-Za-z0-9]")
_RUNS = re.sub(rb"[^\w@./:#-]", b" ", bytes(range(128))).ljust(256)
_KINDS = re.sub(rb"[^1 ]", b"a", re.sub(rb"[\d_@]", b"1", _RUNS))
"""What stands for each byte of a text where only runs and what tells in them are wanted."""
_NO_BEGIN, _NO_END = "_@./:-", "_@./:-#"
_BREAKS = re.compile(
    r"[.!?。！？\n,;}\]](?:(?<=[.!?])\s+|(?<=[。！？])\s*|(?<=\n)\n*|(?<=[,;}\]])(?:\n+|\s+))"
)
"""Begins with all that breaks begin with: else each place of a text is looked at four times."""
_PIECE = re.compile(
    rf".{{1,{_FRAGMENT_CHARACTERS}}}(?:(?<=\s)|\Z)|.{{1,{_FRAGMENT_CHARACTERS}}}", re.DOTALL
)


def identifiers(text: str) -> list[str]:
    """Return the ids and numbers in a text, each once: names, codes, dates, paths with a digit.

    Complexity: linear in the text, of which the first 400,000 characters are looked at.
    """
    return list(dict.fromkeys(_identifiers(text)))


def _identifiers(text: str) -> Iterator[str]:
    """Yield what lies between the first and the last letter or digit of each telling run."""
    text = text[:_IDENTIFIERS_OF]
    if not text.isascii():
        text = ascii_words(text)
    if text.isascii():
        yield from _ascii_identifiers(text)
        return
    for run in _RUN.findall(text):
        if run.isalpha():  # as most are: none of them tells
            continue
        begin, end = _BEGIN.search(run), _END.search(run[::-1])
        if begin is None or end is None or not _TELLING.search(run, begin.start()):
            continue
        name = run[begin.start() : len(run) - end.start()]
        if len(name) > 1:
            yield name


def _ascii_identifiers(text: str) -> Iterator[str]:
    """Yield the same of a text in ASCII, of which only what tells is looked at."""
    kinds, end = text.encode().translate(_KINDS) + b" ", 0
    while (telling := kinds.find(b"1", end)) >= 0:
        begin, end = kinds.rfind(b" ", end, telling) + 1, kinds.find(b" ", telling)
        run = text[begin:end].lstrip(_NO_BEGIN)
        name = run.rstrip(_NO_END)
        if len(name) > 1 and kinds.find(b"1", end - len(run), end) >= 0:
            yield name


@lru_cache(maxsize=4_096)
def words(text: str) -> tuple[str, ...]:
    """Return the words by which a text is found: stems, and ids as they stand."""
    return words_and_names(text)[0]


def words_and_names(text: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the words by which a text is found, and the ids and numbers in it."""
    begin, names = text[:_WORDS_OF], identifiers(text)
    named = names if len(begin) == len(text) else identifiers(begin)
    return (*tokens(begin), *(name.lower() for name in named)), names


class Fragments:
    """A text in the fragments that excerpts are made of, with what makes each matter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._fragments = _fragments(text)
        self._worth = [1.0] + [0.0] * len(self._fragments)
        """What each is worth whatever is wanted: to be the first, and its ids and numbers."""
        self._holding: dict[str, tuple[int, ...]] = {}
        """Which fragments hold each word."""
        for number, fragment in enumerate(self._fragments):
            found, names = words_and_names(fragment)
            self._worth[number] += 0.5 * min(4, len(names))
            here = (number,)
            for word in {*found}:
                self._holding[word] = self._holding.get(word, ()) + here

    def excerpt(self, characters: int, wanted: Collection[str] = ()) -> str:
        """Return an excerpt, as the function of that name does."""
        if len(self.text) <= characters:
            return self.text
        worth = self._worth.copy()
        for word in {*wanted}:
            for number in self._holding.get(word, ()):
                worth[number] += 2.0
        chosen, room = list[int](), characters - len(GAP)
        # Of equal ones the first stays the first.
        order = sorted(range(len(self._fragments)), key=worth.__getitem__, reverse=True)
        for number in order:
            cost = len(self._fragments[number]) + len(GAP)
            if cost <= room:
                chosen.append(number)
                room -= cost
                if room <= len(GAP):
                    break
        return _joined(self._fragments, sorted(chosen)) or _beginning(self.text, characters)


def excerpt(text: str, characters: int, wanted: Collection[str] = ()) -> str:
    """Return the fragments of a text that matter most, at most `characters` long altogether.

    Args:
        text: Any text; one that is short enough comes back as it is.
        characters: Most characters of the result.
        wanted: Words, as `words` gives them, that make a fragment matter.
    """
    return text if len(text) <= characters else Fragments(text).excerpt(characters, wanted)


def extractive_summary(text: str) -> str:
    """Return the gist of a text in its own words: what a summariser is by default."""
    return excerpt(text, _SUMMARY_CHARACTERS)


def _joined(fragments: Sequence[str], chosen: Sequence[int]) -> str:
    """Return the chosen fragments as they stood, a mark where something was left out."""
    if not chosen:
        return ""

    def inside(number: int) -> bool:
        return number > 0 and not fragments[number - 1].endswith("\n")

    parts = [GAP.lstrip()] if inside(chosen[0]) else [""]
    for number, after in zip(chosen, [*chosen[1:], len(fragments)], strict=True):
        fragment = fragments[number]
        if after == number + 1:
            parts.append(fragment)
            continue
        kept = fragment.rstrip()
        gap = GAP_OF_LINES if "\n" in fragment[len(kept) :] else GAP
        parts += [kept, gap[:-1] + " " if after < len(fragments) and inside(after) else gap]
    return "".join(parts).rstrip()


def _fragments(text: str) -> list[str]:
    """Return the fragments of a text with the blanks behind them: joined, they are the text."""
    text, found, start = text.strip(), list[str](), 0
    for end in [*(gap.end() for gap in _BREAKS.finditer(text)), len(text)]:
        if end - start > _FRAGMENT_CHARACTERS:
            found += [piece[0] for piece in _PIECE.finditer(text, start, end)]
        elif end > start:
            found.append(text[start:end])
        start = end
    return found


def _beginning(text: str, characters: int) -> str:
    """Return the beginning of a text up to a blank, if there is one."""
    begin = text[:characters]
    return begin[: begin.rfind(" ")].rstrip() or begin if " " in begin else begin
