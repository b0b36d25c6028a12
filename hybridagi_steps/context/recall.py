"""Older steps worth another look: found by meaning and words, with what the newest messages need.

What left the tail of a session is ranked by the words it shares with what is being done now; what
memory holds of other runs is searched; both ranks are fused (Cormack et al. 2009, "Reciprocal rank
fusion"). An older unit that first named an id or number which the newest messages use is a
dependency: it comes before what was found. How much of it all is quoted is the budget's affair
(see quoting.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybridagi_steps.context.older_units import OlderUnits
from hybridagi_steps.context.quoting import Recalled
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.messages.parts import json_text
from hybridagi_steps.messages.units import SYNTHETIC, Unit, unit_text
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.excerpts import identifiers, words
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.json_reading import text_of
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.step_identity import given_answer
from hybridagi_steps.search.formulas import Aim

_RANK_OFFSET = 60
_OVERFETCH = 20
_WIDER, _MOST_FETCHED = 4, 1_600
"""How much further is looked behind steps that may not be recalled, and how far at most."""
_WHOSE = (
    "steps of users were not recalled, since it is not known whose conversation this is: "
    "ContextBuilder(where={'user_id': …}) names the user, None means everybody"
)
_SAME_WORDS = 0.1
"""A step is worth recalling if more than this share of its words is not shown."""
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
    shown_words: set[str]
    """Words that are shown as they are."""
    notes: list[str]
    """Receives what could not be done."""
    aim: Aim | None = None
    """What the search is for, as `memory.search` has it."""
    state: AgentStep | None = None
    """The newest recorded step: that after which `next` asks what was done."""

    def hits(self, query: str, k: int) -> tuple[list[StepHit], bool]:
        """Return steps of the memory that are not shown, best first, and whether there are more."""
        if self.memory is None:
            return [], False
        wanted = k + min(len(self.shown_ids), _OVERFETCH)
        while True:
            hits = self._found(self.memory, query, wanted)
            own = [hit for hit in hits if not self.of_nobody or hit.step.user_id is None]
            new = [hit for hit in own if id_text(hit.step.id) not in self.shown_ids]
            others, more = len(hits) - len(own), len(hits) >= wanted
            if len(new) >= k or not others or not more or wanted >= _MOST_FETCHED:
                break
            wanted = min(wanted * _WIDER, _MOST_FETCHED)
        if others:
            self._note(_WHOSE)
        return new[:k], more or len(new) > k

    def _found(self, memory: StepMemory, query: str, k: int) -> list[StepHit]:
        asked, options = self._asked(query)
        with unnoted():  # what is quoted of it is noted
            try:
                return memory.search(asked, k, where=self.where, **options)
            except EmbedderError as error:
                self._note(f"searched by words only: {error}")
                return memory.search(asked, k, where=self.where, mode="lexical", **options)

    def _asked(self, query: str) -> tuple[Any, dict[str, Any]]:
        """Return what the memory is asked, and with which aim."""
        if self.aim != "next":
            return query, {} if self.aim is None else {"aim": self.aim}
        if self.state is None:
            self._note("searched without aim='next': no step is recorded of this conversation yet")
            return query, {}
        return _Situation(query, [self.state]), {"aim": self.aim}

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def says_something_new(self, step: AgentStep) -> bool:
        """Whether a step has words that are not shown."""
        values = [step.purpose, *step.arguments.values(), *(step.outputs or {}).values()]
        said = set(words(" ".join(map(json_text, values))))
        return len(said - self.shown_words) > _SAME_WORDS * len(said)


def found(query: str, k: int, older: OlderUnits, search: Search) -> tuple[list[Recalled], bool]:
    """Return up to k older steps that matter most for a query, and whether there are more.

    Args:
        query: What is being done now.
        k: Most steps wanted.
        older: The session's units that are not shown.
        search: Where else to look.
    """
    if not query.strip() or k < 1:
        return [], False
    ranked: dict[str, tuple[float, Recalled]] = {}

    def rank(step: Recalled, place: int) -> None:
        known = ranked.get(step.id, (0.0, step))
        ranked[step.id] = (known[0] + 1 / (_RANK_OFFSET + place), known[1])

    for place, unit in enumerate(older.by_words(query, 2 * k)):
        rank(recalled_unit(unit, "shares words with what is done now"), place)
    hits, more = search.hits(query, k)
    for place, hit in enumerate(_repeats_last(hits)):
        unit = older.showing(id_text(hit.step.id))
        why = f"similar: {hit.why}" if hit.why else "similar"
        if unit:
            rank(recalled_unit(unit, why), place)
        else:
            rank(_recalled_hit(hit, why, search.where.user_id), place)
    best = [step for _, step in sorted(ranked.values(), key=lambda scored: -scored[0])]
    for place, step in enumerate(best, start=1):
        step.rank = place
    return best[:k], more or len(best) > k


def _repeats_last(hits: Sequence[StepHit]) -> list[StepHit]:
    """Return hits with answers that a better one gives too behind all others."""
    first: list[StepHit] = []
    repeats: list[StepHit] = []
    answers: set[str] = set()
    for hit in hits:
        answer = given_answer(hit.step) if hit.kind == "step" else None
        (repeats if answer in answers else first).append(hit)
        answers |= {answer} if answer else set()
    return first + repeats


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
        step = recalled_unit(unit, f"first named {name[:60]}")
        if step.id not in taken:
            taken.add(step.id)
            yield step


def recalled_unit(unit: Unit, why: str) -> Recalled:
    """Return a unit of the session as something to quote."""
    first = unit.messages[0]
    step_id = next(iter(shown_steps(first)), first.id)
    span = (unit.place - len(unit.messages) + 1, unit.place)
    line = ("session", first.session_id)
    return Recalled(step_id, first.run_id, first.created_at, unit, why, line, span)


def _recalled_hit(hit: StepHit, why: str, user_id: str | None) -> Recalled:
    step = hit.step
    origin = None if step.user_id == user_id else "another user"
    if (source := source_of(step.metadata)) is not None:
        origin = f"imported: {source}"
    line, span = ("run", step.run_id), (step.hop, step.hop)
    if hit.sequence is not None:  # a message of a session, with the one that it answers
        line = ("session", hit.session_id)
        span = (hit.sequence - (2 if step.purpose and step.outputs else 1), hit.sequence - 1)
    step_id = id_text(step.id)
    return Recalled(step_id, step.run_id, step.created_at, step, why, line, span, origin)
