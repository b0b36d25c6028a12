"""Older steps worth another look: found by meaning and words, with what the newest messages need.

What left the tail of a session is ranked by the words it shares with what is being done now; what
memory holds of other runs is searched; both ranks are fused (Cormack et al. 2009, "Reciprocal rank
fusion"). An older unit that first named an id or number which the newest messages use is a
dependency: it comes before what was found. How much of it all is quoted is the budget's affair
(see quoting.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from hybridagi_steps.context.older_units import OlderUnits
from hybridagi_steps.context.quoting import Recalled
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.messages.message_steps import message_steps
from hybridagi_steps.messages.parts import json_text
from hybridagi_steps.messages.units import SYNTHETIC, Unit, unit_text
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.excerpts import identifiers, words
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.json_reading import text_of
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.step_identity import given_answer
from hybridagi_steps.search.formulas import Aim
from hybridagi_steps.search.ranking import RankedRow
from hybridagi_steps.search.searcher import Found
from hybridagi_steps.validation import for_recall

_RANK_OFFSET = 60
_OVERFETCH = 20
_WIDER, _MOST_FETCHED = 4, 1_600
"""How much further is looked behind steps that may not be recalled, and how far at most."""
_WHOSE = (
    "steps of users were not recalled, since it is not known whose conversation this is: "
    "ContextBuilder(where={'user_id': …}) names the user, None means everybody"
)
_SAME_WORDS = 0.1
"""A step is worth recalling if more than this share of its words is not shown, or any id."""
_SHARES_WORDS = "shares words with what is done now".__str__
_QUERY_REQUEST, _QUERY_LAST = 300, 400

_LEAST_NAME, _MOST_NAMES = 4, 100
"""Shorter ids and numbers say nothing of where they come from; more are not followed."""


def query_of(units: Sequence[Unit]) -> str:
    """Return what a session is about right now: the last request, and what was done since.

    What nobody said asks for nothing.
    """
    request = next((u for u in reversed(units) if u.begins_with_user() and _is_said(u)), None)
    asked = text_of(request.messages[0].content)[:_QUERY_REQUEST] if request else ""
    last = next((unit for unit in reversed(units) if _is_said(unit)), None)
    done = unit_text(last)[:_QUERY_LAST] if last is not None and last is not request else ""
    return " | ".join(text for text in (asked.strip(), done.strip()) if text)


def _is_said(unit: Unit) -> bool:
    return not (unit.messages[0].metadata or {}).get(SYNTHETIC)


class Candidate(NamedTuple):
    """What may be recalled, made only if its turn comes, and the answer it gives as others may."""

    step_id: str
    made: Callable[[], Recalled]
    answer: str | None = None


class _Situation(NamedTuple):
    """A question and the steps so far, as a memory takes them for `next`; needs no DSPy."""

    queries: str
    steps: list[AgentStep]


@dataclass(slots=True)
class Search:
    """Where older steps are searched, and what need not be found."""

    memory: StepMemory | None
    """None searches the session's own older units only."""
    where: StepFilter
    """Which steps of the memory may be found."""
    of_nobody: bool
    """Whether of them only those may be that name no user."""
    shown_ids: set[str]
    """Messages and steps that are shown as they are."""
    shown: Sequence[Unit]
    """What is shown as it is."""
    notes: list[str]
    """Receives what could not be done."""
    aim: Aim | None = None
    """What the search is for, as `memory.search` has it."""
    state: AgentStep | None = None
    """The newest recorded step: that after which `next` asks what was done."""
    _shown_words: set[str] | None = None
    _said: set[str] | None = None
    """Ids of the session's messages."""

    def hits(
        self, query: str, k: int, older: OlderUnits, line: Sequence[Step]
    ) -> tuple[list[Candidate], bool]:
        """Return steps of the memory that are not shown, best first, and whether there are more.

        What the session itself said is at hand: nothing of it is read.
        """
        if self.memory is None:
            return [], False
        wanted = k + min(len(self.shown_ids), _OVERFETCH)
        while True:
            rows, others, new = self._ranked(self.memory, query, wanted), 0, list[Candidate]()
            said = [each or "" for each in older.messages_in([row.row for row in rows])]
            units = [*map(older.showing, said)]
            read = self._read(self.memory, rows, said, units)
            for row, message_id, unit in zip(rows, said, units, strict=True):
                found = read.get(row.row)
                if found is None:
                    if unit and message_id not in self.shown_ids:
                        why = partial(_why_own, row, line, unit, message_id)
                        new.append(of_unit(unit, why))
                elif self._is_anothers(found, line):
                    others += 1
                elif id_text(found.step.id) not in self.shown_ids:
                    new.append(self._hit(found, older))
            more = len(rows) >= wanted
            if len(new) >= k or not others or not more or wanted >= _MOST_FETCHED:
                break
            wanted = min(wanted * _WIDER, _MOST_FETCHED)
        if others:
            self._note(_WHOSE)
        return _repeats_last(new[:k]), more or len(new) > k

    def _read(
        self,
        memory: StepMemory,
        rows: Sequence[RankedRow],
        said: Sequence[str],
        units: Sequence[Unit | None],
    ) -> dict[int, Found]:
        """Return what stands in rows by row, but for messages that are at hand."""
        unknown = [
            row
            for row, message_id, unit in zip(rows, said, units, strict=True)
            if not unit and message_id not in self.shown_ids
        ]
        if not unknown:
            return {}
        return {one.hit.row: one for one in memory.searcher.read(unknown, self.where.session_id)}

    def _is_anothers(self, found: Found, line: Sequence[Step]) -> bool:
        """Whether a user's step must not be told: what the session itself said may be."""
        if not self.of_nobody or found.step.user_id is None:
            return False
        if self._said is None:
            self._said = {message.id for message in line}
        return found.place is None or id_text(found.step.id) not in self._said

    def _hit(self, found: Found, older: OlderUnits) -> Candidate:
        why, step_id = partial(_why, found), id_text(found.step.id)
        answer = given_answer(found.step) if found.place is None else None
        if unit := older.showing(step_id):
            return of_unit(unit, why)._replace(answer=answer)
        # Where only nobody's steps may be told, one that names a user is the session's own.
        users = [found.step.user_id] if self.of_nobody else self.where.users or [None]
        return Candidate(step_id, partial(_recalled_hit, found, why, users), answer)

    def _ranked(self, memory: StepMemory, query: str, k: int) -> list[RankedRow]:
        asked, aim = self._asked(query)
        where, search = for_recall(self.where), memory.searcher.ranked
        try:
            return search(asked, k, where, mode="hybrid", aim=aim)
        except EmbedderError as error:
            self._note(f"searched by words only: {error}")
            return search(asked, k, where, mode="lexical", aim=aim)

    def _asked(self, query: str) -> tuple[object, Aim | None]:
        """Return what the memory is asked, and with which aim."""
        if self.aim != "next":
            return query, self.aim
        if self.state is None:
            self._note("searched without aim='next': no step is recorded of this conversation yet")
            return query, None
        return _Situation(query, [self.state]), self.aim

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def says_something_new(self, step: AgentStep) -> bool:
        """Whether a step has words that are not shown, or an id or number: answers are such."""
        values = [step.purpose, *step.arguments.values(), *(step.outputs or {}).values()]
        text = " ".join(map(json_text, values))
        said = set(words(text))
        if self._shown_words is None:
            self._shown_words = {word for unit in self.shown for word in words(unit_text(unit))}
        new = said - self._shown_words
        named = {name.lower() for name in identifiers(text) if len(name) >= _LEAST_NAME}
        return len(new) > _SAME_WORDS * len(said) or not new.isdisjoint(named)


def found(
    query: str, k: int, older: OlderUnits, search: Search, line: Sequence[Step]
) -> tuple[Iterator[Recalled], bool]:
    """Return up to k older steps that matter most for a query, and whether there are more.

    Twice as many are compared as the budget takes: each is made when it is asked for.

    Args:
        query: What is being done now.
        k: Most steps wanted.
        older: The session's units that are not shown.
        search: Where else to look.
        line: The session's messages.
    """
    if not query.strip() or k < 1:
        return iter(()), False
    scores: dict[str, float] = {}
    makers: dict[str, Callable[[], Recalled]] = {}

    def rank(steps: Iterable[Candidate]) -> None:
        for place, step in enumerate(steps):
            makers.setdefault(step.step_id, step.made)
            scores[step.step_id] = scores.get(step.step_id, 0.0) + 1 / (_RANK_OFFSET + place)

    rank(of_unit(unit, _SHARES_WORDS) for unit in older.by_words(query, 2 * k))
    hits, more = search.hits(query, k, older, line)
    rank(hits)
    best = sorted(scores, key=lambda step_id: -scores[step_id])

    def made() -> Iterator[Recalled]:
        for place, step_id in enumerate(best[:k], start=1):
            step = makers[step_id]()
            step.rank = place
            yield step

    return made(), more or len(best) > k


def _repeats_last(hits: Sequence[Candidate]) -> list[Candidate]:
    """Return what was found, with answers that a better one gives too behind all others."""
    first: list[Candidate] = []
    repeats: list[Candidate] = []
    answers: set[str] = set()
    for hit in hits:
        (repeats if hit.answer in answers else first).append(hit)
        answers |= {hit.answer} if hit.answer else set()
    return first + repeats


def _why(found: Found) -> str:
    why = found.why()
    return f"similar: {why}" if why else "similar"


def _why_own(row: RankedRow, line: Sequence[Step], unit: Unit, message_id: str) -> str:
    """Return why a message of the session itself was found."""
    at = next(n for n in range(unit.place, -1, -1) if line[n].id == message_id)
    turns = (n for n in range(at, -1, -1) if line[n].is_user_step())
    start = next(islice(turns, 1, None), 0)  # of the turn before its own
    turn = line[start : at + 1]
    step = message_steps(turn, [one.user_id for one in turn])[-1].step
    return "similar" if step is None else _why(Found(row, step, None))


def dependencies(newest: Sequence[Unit], older: OlderUnits) -> Iterator[Recalled]:
    """Yield the older units that first named an id or number which the newest units use.

    Args:
        newest: Units that are shown.
        older: Units that are not.
    """
    texts = (unit_text(unit) for unit in reversed(newest))
    used = [name for text in texts for name in identifiers(text) if len(name) >= _LEAST_NAME]
    taken = set[str]()
    for name in dict.fromkeys(used[:_MOST_NAMES]):
        if (unit := older.first_naming(name)) is None:
            continue
        step = of_unit(unit, f"first named {name[:60]}".__str__)
        if step.step_id not in taken:
            taken.add(step.step_id)
            yield step.made()


def of_unit(unit: Unit, why: Callable[[], str]) -> Candidate:
    """Return a unit of the session as what may be recalled."""
    if unit.shows is None:
        first = unit.messages[0]
        unit.shows = next(iter(shown_steps(first)), first.id)
    return Candidate(unit.shows, partial(_recalled_unit, unit, unit.shows, why))


def _recalled_unit(unit: Unit, step_id: str, why: Callable[[], str]) -> Recalled:
    """Return a unit of the session as something to quote."""
    first = unit.messages[0]
    span = (unit.place - len(unit) + 1, unit.place)
    line = ("session", first.session_id)
    return Recalled(step_id, first.run_id, first.created_at, unit, why, line, span)


def _recalled_hit(found: Found, why: Callable[[], str], users: Sequence[str | None]) -> Recalled:
    step, place = found.step, found.place
    origin = None if step.user_id in users else "another user"
    if (source := source_of(step.metadata)) is not None:
        origin = f"imported: {source}"
    line, span = ("run", step.run_id), (step.hop, step.hop)
    if place is not None:  # a message of a session, with the one that it answers
        line = ("session", place.session_id)
        span = (place.sequence - (2 if step.purpose and step.outputs else 1), place.sequence - 1)
    step_id = id_text(step.id)
    return Recalled(step_id, step.run_id, step.created_at, step, why, line, span, origin)
