"""Older steps quoted in one message: as many as the budget holds, whole where they fit.

They are taken by rank until the room is used up. The best stand whole; once these have filled a
first part of the room, a long one is cut to the fragments that matter, to leave room for those
behind it. Neighbours of a run or a session stand together in their order under one
mark with their day, and no mark is closed: the next one ends it. What is quoted is data between
marks that it cannot hold (see messages/fences.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache

from hybridagi_steps.messages.fences import STEP_MARK, Quotable, inert, opening, sealed
from hybridagi_steps.messages.recalled_text import recalled_text
from hybridagi_steps.messages.units import Unit, unit_text
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.excerpts import Fragments
from hybridagi_steps.records.message import in_utc

_LEAST_TOKENS = 24
"""An excerpt of fewer tokens says nothing."""
_MOST_CUT = 8
"""How many times shorter than the whole an excerpt of few tokens may be: else a shorter step serves
better."""
_WHOLE_FIRST = 1_000
"""Tokens that the best steps fill whole, however long each is: what the next action needs stands
in the text of the best more often than in excerpts of many."""
_SHARE, _ALWAYS_WHOLE = 0.15, 100
"""Share of the room that is left, or so many tokens if they are more, that a step behind these may
take before all others had their turn: one long result is not worth the ten steps behind it."""
_SLACK = 0.95
"""Share of its room that an excerpt is aimed at; what it costs is counted anyway."""

Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(slots=True)
class Recalled:
    """One older step, ready to be quoted."""

    id: str
    run_id: str | None
    made: datetime
    of: AgentStep | Unit
    """The step, or the unit of this session, that is quoted."""
    why: Callable[[], str]
    """Says why it was found, if somebody asks."""
    line: tuple[str, str | None]
    """The run or session it stands in."""
    span: tuple[int, int]
    """Its first and last place there; those that follow each other are neighbours."""
    origin: str | None = None
    """Where it comes from, in a few words; None when it is of the user whose context this is."""
    rank: int | None = None
    """Its place among what was found, from 1; None of what the newest messages need."""
    whole: str = ""
    """What it says, uncut and inert."""
    text: str = ""
    """What is quoted of it."""
    mark: str = ""
    """What stands before it, as far as its cost goes."""
    tokens: int = 0
    """What it costs; 0 as long as it does not fit."""
    whole_tokens: int = 0
    """What it costs uncut."""

    @property
    def cut(self) -> bool:
        """Whether it is not quoted whole."""
        return self.tokens < self.whole_tokens

    @property
    def of_session(self) -> bool:
        """Whether it is a part of this conversation that is not shown."""
        return isinstance(self.of, Unit)

    def said(self) -> str:
        """Return what it says, uncut and inert."""
        if isinstance(self.of, AgentStep):
            return inert(recalled_text(self.of, dated=False))
        return _quotable(self.of).text

    def excerpt(self, length: int, wanted: Collection[str]) -> str:
        """Return what it says in at most so many characters, inert."""
        if isinstance(self.of, AgentStep):
            return inert(recalled_text(self.of, length=length, wanted=wanted, dated=False))
        if self.of.fragments is None:
            self.of.fragments = Fragments(unit_text(self.of))
        return _quotable(self.of).excerpt(self.of.fragments.excerpt(length, wanted))

    def head(self) -> str:
        """Return the mark that begins a group of neighbours: their day, and whence they come."""
        return _head(in_utc(self.made).date(), self.origin)


@dataclass(slots=True)
class Filled:
    """What a room was filled with."""

    steps: list[Recalled] = field(default_factory=list[Recalled])
    """What is quoted, best first."""
    left_out: Recalled | None = None
    """The best that is not there, or not whole."""
    left: int = 0
    """Tokens that nothing was found for."""
    text: str = ""
    """Of the message that quotes them."""

    @property
    def full(self) -> bool:
        """Whether no further step would fit, even cut."""
        return self.left < _LEAST_TOKENS


def filled(
    found: Iterable[Recalled], room: int, most: int, wanted: Collection[str], count: Count
) -> Filled:
    """Return the steps that fit into so many tokens, best first, each whole where it fits.

    Behind the first, which stand whole, a step gets a share of the room that is left in its turn,
    and what is too long for that is cut. What nobody needed in the end goes to those that were
    cut, the best first.

    Args:
        found: What to quote, best first.
        room: Tokens there are, the marks around everything included.
        most: Most steps to quote.
        wanted: Words that make a fragment of a text matter.
        count: Counts tokens.

    Complexity: linear in the texts; each is counted once, one that is cut a few times.
    """
    made = Filled(left=room - count(sealed("recalled", "")))
    for step in _different(found, made.steps):
        if len(made.steps) >= most:
            break
        if made.full:
            made.left_out = made.left_out or step
            break
        first = _WHOLE_FIRST - (room - made.left)
        share = min(made.left, max(_ALWAYS_WHOLE, int(_SHARE * made.left), first))
        if _fit(step, share, wanted, count):
            made.steps.append(step)
            made.left -= step.tokens
        elif made.left_out is None:
            made.left_out = step
    for step in (step for step in made.steps if step.cut):
        if made.full:
            break
        made.left += step.tokens
        _fit(step, made.left, wanted, count)
        made.left -= step.tokens
    made.left_out = next((step for step in made.steps if step.cut), made.left_out)
    if (best := made.left_out) is not None and not best.whole_tokens:
        best.whole_tokens = count(f"{best.mark}\n{best.text}\n")
    while made.steps:
        made.text = _block_text(made.steps)
        if (over := count(made.text) - room) <= 0:
            break
        made.left_out = made.steps.pop()
        made.left -= over
    return made


def _different(found: Iterable[Recalled], kept: Sequence[Recalled]) -> Iterator[Recalled]:
    """Yield steps that do not say the same as one before, each with its text and mark."""
    texts: set[str] = set()
    held: set[tuple[object, int]] = set()
    for step in found:
        step.whole = step.text = step.said()
        if step.text in texts:
            continue
        texts.add(step.text)
        group, (first, last) = (step.line, step.head()), step.span
        joins = not held.isdisjoint({(group, first - 1), (group, last + 1)})
        step.mark = STEP_MARK if joins else step.head()
        yield step
        if kept and kept[-1] is step:
            held |= {(group, first), (group, last)}


def _block_text(steps: Sequence[Recalled]) -> str:
    """Return the text of the message that quotes steps: run by run, the oldest first.

    Those of this session come last.
    """
    lines: dict[object, list[Recalled]] = {}
    for step in sorted(steps, key=lambda step: (step.of_session, step.made)):
        lines.setdefault((step.of_session, step.line), []).append(step)
    told: list[str] = []
    before: Recalled | None = None
    for step in (step for line in lines.values() for step in sorted(line, key=_place)):
        joins = before is not None and _follows(before, step)
        told += [STEP_MARK if joins else step.head(), step.text]
        before = step
    return sealed("recalled", "\n".join(told))


def _fit(step: Recalled, room: int, wanted: Collection[str], count: Count) -> bool:
    """Cut a step's text if it is too long; False, and as it was, if too little would be left."""
    had = step.text, step.tokens
    if not step.whole_tokens:
        step.whole_tokens = count(f"{step.mark}\n{step.whole}\n")
    if step.whole_tokens <= room:
        step.text, step.tokens = step.whole, step.whole_tokens
        return True
    length = int(_SLACK * len(step.whole) * room / step.whole_tokens)
    least = max(_LEAST_TOKENS, min(_ALWAYS_WHOLE, step.whole_tokens // _MOST_CUT))
    while room >= least and length >= _LEAST_TOKENS:
        step.text = step.excerpt(length, wanted)
        step.tokens = count(f"{step.mark}\n{step.text}\n")
        if step.tokens <= room:
            return True
        length = length * 4 // 5
    step.text, step.tokens = had
    return False


def _quotable(unit: Unit) -> Quotable:
    if unit.quoted is None:
        unit.quoted = Quotable.of(unit_text(unit))
    return unit.quoted


@lru_cache(maxsize=256)
def _head(day: date, origin: str | None) -> str:
    return opening(f"run {day}", origin=origin)


def _follows(one: Recalled, other: Recalled) -> bool:
    return (
        one.line == other.line and one.span[1] + 1 == other.span[0] and one.head() == other.head()
    )


def _place(step: Recalled) -> tuple[int, int]:
    return step.span
