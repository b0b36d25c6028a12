"""Older steps worth another look: found by meaning and words, quoted as data with their origin.

What left the tail of a session is ranked by the words it shares with what is being done now; what
memory holds of other runs is searched; both ranks are fused (Cormack et al. 2009, "Reciprocal rank
fusion"). An older unit that first named an id or number which the newest messages use is a
dependency: it comes along behind what was found. Long texts are cut down to what matters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from hybridagi_steps.context.excerpts import condensed, excerpt, identifier_set, identifiers, words
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.messages.fences import marked, opening, sealed
from hybridagi_steps.messages.parts import field_lines, json_text
from hybridagi_steps.messages.units import SYNTHETIC, Unit
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.json_reading import as_object, text_of
from hybridagi_steps.records.message import MessageRole, Step, in_utc
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.search.bm25 import Document, LexicalIndex

_RANK_OFFSET = 60
_OVERFETCH = 20
_WIDER, _MOST_FETCHED = 4, 400
"""How much further is looked behind steps that may not be recalled, and how far at most."""
_WHOSE = (
    "steps of users were not recalled, since it is not known whose conversation this is: "
    "ContextBuilder(where={'user_id': …}) names the user, None means everybody"
)
_SAME_WORDS = 0.1
"""A step is worth recalling if more than this share of its words is not shown."""
_LEAST_TOKENS = 24
_CLOSING = 8
"""Tokens of what closes a run's block, generously."""
_CHARACTERS_PER_TOKEN = 3
_QUERY_REQUEST, _QUERY_LAST = 300, 400
_COMMONEST = 0.3
"""A word in more than this share of the older units tells none of them apart."""

_LEAST_NAME, _MOST_NAMES = 4, 100
"""Shorter ids and numbers say nothing of where they come from; more are not followed."""

Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(slots=True)
class Recalled:
    """One older step, ready to be quoted."""

    id: str
    run_id: str | None
    made: datetime
    text: str
    why: str
    unit: Unit | None = None
    """The unit of this session it is, if it is one."""
    origin: str | None = None
    """Where it comes from, in a few words; None when it is of the user whose context this is."""
    tokens: int = 0

    def quoted(self) -> str:
        """Return the step between marks, with its origin; its run stands around it."""
        when = in_utc(self.made).strftime("%Y-%m-%dT%H:%MZ")
        return marked("step", self.text, id=self.id, when=when, origin=self.origin)


def query_of(units: Sequence[Unit]) -> str:
    """Return what a session is about right now: the last request, and what was done since.

    What nobody said asks for nothing.
    """
    said = [unit for unit in units if not (unit.messages[0].metadata or {}).get(SYNTHETIC)]
    request = next((unit for unit in reversed(said) if unit.begins_with_user()), None)
    asked = text_of(request.messages[0].content)[:_QUERY_REQUEST] if request else ""
    last = said[-1] if said else None
    done = unit_text(last)[:_QUERY_LAST] if last is not None and last is not request else ""
    return " | ".join(text for text in (asked.strip(), done.strip()) if text)


def unit_text(unit: Unit) -> str:
    """Return what a unit's messages say, as lines of text."""
    return "\n".join(line for message in unit.messages for line in _message_lines(message))


def step_lines(step: AgentStep) -> str:
    """Return what a step did and what came of it, with nothing cut."""
    called = f"{step.tool or step.program or ''}({json_text(step.arguments)})"
    lines = [step.purpose, called if step.tool or step.program or step.arguments else ""]
    if outputs := step.outputs:
        lines.append(f"-> {field_lines(outputs)}")
    return f"{step.step_type}: " + "\n".join(line for line in lines if line)


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

    def hits(self, query: str, k: int) -> list[StepHit]:
        """Return steps of the memory that say something which is not shown, best first."""
        if self.memory is None:
            return []
        wanted = k + min(len(self.shown_ids), _OVERFETCH)
        while True:
            hits = self._found(self.memory, query, wanted)
            own = [hit for hit in hits if not self.of_nobody or hit.step.user_id is None]
            new = [hit for hit in own if self._says_something_new(hit.step)][:k]
            others = len(hits) - len(own)
            if len(new) == k or not others or len(hits) < wanted or wanted >= _MOST_FETCHED:
                break
            wanted = min(wanted * _WIDER, _MOST_FETCHED)
        if others:
            self.notes.append(_WHOSE)
        return new

    def _found(self, memory: StepMemory, query: str, k: int) -> list[StepHit]:
        with unnoted():  # what is quoted of it is noted
            try:
                return memory.search(query, k, where=self.where)
            except EmbedderError as error:
                if (note := f"searched by words only: {error}") not in self.notes:
                    self.notes.append(note)
                return memory.search(query, k, where=self.where, mode="lexical")

    def _says_something_new(self, step: AgentStep) -> bool:
        if id_text(step.id) in self.shown_ids:
            return False
        values = [step.purpose, *step.arguments.values(), *(step.outputs or {}).values()]
        said = set(words(" ".join(map(json_text, values))))
        return len(said - self.shown_words) > _SAME_WORDS * len(said)


def found(query: str, k: int, older: Sequence[Unit], search: Search) -> list[Recalled]:
    """Return the k older steps that matter most for a query, best first.

    Args:
        query: What is being done now.
        k: Most steps wanted.
        older: The session's units that are not shown.
        search: Where else to look.
    """
    if not query.strip() or k < 1:
        return []
    by_step = {step_id: unit for unit in older for m in unit.messages for step_id in shown_steps(m)}
    ranked: dict[str, tuple[float, Recalled]] = {}

    def rank(step: Recalled, place: int) -> None:
        known = ranked.get(step.id, (0.0, step))
        ranked[step.id] = (known[0] + 1 / (_RANK_OFFSET + place), known[1])

    for place, unit in enumerate(_by_words(query, older, k)):
        rank(recalled_unit(unit, "shares words with what is done now"), place)
    for place, hit in enumerate(search.hits(query, k)):
        unit = by_step.get(id_text(hit.step.id))
        why = f"similar: {hit.why}" if hit.why else "similar"
        if unit:
            rank(recalled_unit(unit, why), place)
        else:
            rank(_recalled_step(hit.step, why, search.where.user_id), place)
    best = sorted(ranked.values(), key=lambda scored: -scored[0])
    return [step for _, step in best[:k]]


def dependencies(
    newest: Sequence[Unit], older: Sequence[Unit], known: Collection[str]
) -> Iterator[Recalled]:
    """Yield the older units that first named an id or number which the newest units use.

    Args:
        newest: Units that are shown.
        older: Units that are not, in order.
        known: Ids of what is quoted already.
    """
    texts = (unit_text(unit) for unit in reversed(newest))
    used = [name for text in texts for name in identifiers(text) if len(name) >= _LEAST_NAME]
    named = [identifier_set(unit_text(unit)) for unit in older]
    taken = set(known)
    for name in dict.fromkeys(used[:_MOST_NAMES]):
        holding = [n for n, names in enumerate(named) if name in names]
        if not holding or len(holding) > max(1, _COMMONEST * len(older)):
            continue
        step = recalled_unit(older[holding[0]], f"first named {name[:60]}")
        if step.id not in taken:
            taken.add(step.id)
            yield step


def fitted(
    steps: Sequence[Recalled], room: int, query: str, seen: set[str], count: Count
) -> list[Recalled]:
    """Return the steps that fit into so many tokens, each cut to what it adds, in their order.

    Each may take half of what is left, the last all of it; a text that is longer is cut further.

    Args:
        steps: What to quote, best first.
        room: Tokens there are.
        query: Its words make a fragment of a text matter.
        seen: Ids and numbers that are shown already; those of the quoted texts are added.
        count: Counts tokens.
    """
    wanted = words(query)
    kept: list[Recalled] = []
    room -= count(block_text([]))
    for place, step in enumerate(steps):
        new_run = all(step.run_id != other.run_id for other in kept)
        left = room - (count(opening("run", id=step.run_id)) + _CLOSING if new_run else 0)
        share = left if place == len(steps) - 1 else left // 2
        step.text = condensed(step.text, wanted, seen)
        if _fit(step, share, wanted, count):
            kept.append(step)
            room = left - step.tokens
    return kept


def block_text(steps: Sequence[Recalled]) -> str:
    """Return the text of the message that quotes recalled steps: run by run, the oldest first."""
    runs: dict[tuple[bool, str | None], list[str]] = {}
    for step in sorted(steps, key=_age):
        runs.setdefault((step.unit is not None, step.run_id), []).append(step.quoted())
    by_run = (
        "\n".join([opening("run", id=run_id), *quoted, "</run>"])
        for (_, run_id), quoted in runs.items()
    )
    return sealed("recalled", "\n".join(by_run))


def recalled_unit(unit: Unit, why: str) -> Recalled:
    """Return a unit of the session as something to quote."""
    first = unit.messages[0]
    step_id = next(iter(shown_steps(first)), first.id)
    return Recalled(step_id, first.run_id, first.created_at, unit_text(unit), why, unit)


def _age(step: Recalled) -> tuple[bool, int, datetime]:
    """Return what sorts steps of elsewhere before those of the session, each by age."""
    return step.unit is not None, step.unit.place if step.unit else 0, step.made


def _recalled_step(step: AgentStep, why: str, user_id: str | None) -> Recalled:
    origin = None if step.user_id == user_id else "another user"
    if (source := source_of(step.metadata)) is not None:
        origin = f"imported: {source}"
    told = (id_text(step.id), step.run_id, step.created_at, step_lines(step), why)
    return Recalled(*told, origin=origin)


def _fit(step: Recalled, room: int, wanted: Collection[str], count: Count) -> bool:
    """Cut a step's text so that it fits; False if nothing worth reading would be left."""
    step.tokens = count("\n" + step.quoted())
    if step.tokens <= room:
        return True
    whole = step.text
    frame = step.tokens - count(whole)
    characters = (room - frame) * _CHARACTERS_PER_TOKEN
    while characters >= _LEAST_TOKENS * _CHARACTERS_PER_TOKEN:
        step.text = excerpt(whole, characters, wanted)
        step.tokens = count("\n" + step.quoted())
        if step.tokens <= room:
            return True
        characters = characters * 4 // 5
    step.text = whole
    return False


def _by_words(query: str, older: Sequence[Unit], k: int) -> list[Unit]:
    """Return the older units that share the rarest words with the query, best first."""
    if not older:
        return []
    index = LexicalIndex()
    index.add(Document(n, words(unit_text(unit))) for n, unit in enumerate(older))
    rows, _ = index.match(words(query)).top(2 * k)
    return [older[int(row)] for row in rows]


def _message_lines(message: Step) -> Iterator[str]:
    text = text_of(message.content)
    if message.role is MessageRole.TOOL:
        yield f"result: {text}"
    elif text:
        yield f"{message.role.value}: {text}"
    for call in message.tool_calls or ():
        function = as_object(call.get("function"))
        yield f"call: {function.get('name')}({function.get('arguments')})"
