"""Whether a context holds what the next step needs: evidence recall under a budget of tokens.

A later step of a shipped run uses a value (an id, a name, a number) that neither its task nor any
input named before: the earlier step whose result named it first is the evidence. A new session asks
with the later step's inputs, and what it is shown must hold the evidence *with the values*: a step
that was condensed until its value is gone does not count. The question is asked twice, with the
values in it and with each of them blotted out, as before anybody knew them.

All runs go on side by side, an hour a step: a question sees what every run had done by then and
nothing of its own future. Rivals get the same budget, the question included: the best hits of the
same search, whole, until the budget is full; and the last steps of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hybridagi_steps.context.builder import ContextBuilder
from hybridagi_steps.errors import ContextBudgetError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.parts import json_text
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.excerpts import identifiers
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.token_counters import MESSAGE_TOKENS, is_estimate, token_counter
from tests.benchmarks.ranking import Values, interval, interval_text, paired
from tests.benchmarks.tables import Table, number

BUDGETS = (500, 1_000, 2_000, 4_000)
BUILDER, PLAIN, LAST = "ContextBuilder", "plain top-k until full", "last n"
BLOT = "…"
"""Stands in a question where a value was."""

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_LEAST_VALUE, _MOST_VALUE = 4, 80
"""Characters of a value that a step may be said to have from elsewhere."""
_PLAIN_HITS = 200
_ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class Shown:
    """What one way of filling a context showed."""

    ids: frozenset[str]
    text: str
    tokens: int


class Evidence(NamedTuple):
    """What must stand in a context."""

    step_id: str | None
    """The step that must be quoted; None: whoever says it."""
    values: frozenset[str] = frozenset()
    """What must be read there, in `plain` form."""

    def stands_in(self, shown: Shown) -> bool:
        """Whether a context holds it whole."""
        quoted = self.step_id is None or self.step_id in shown.ids
        return quoted and all(value in shown.text for value in self.values)


@dataclass(frozen=True)
class EvidenceQuestion:
    """What a new session asks, and what must stand in its context."""

    text: str
    run_id: str
    evidence: tuple[Evidence, ...]
    until: datetime | None = None
    """Nothing younger may be seen."""


def side_by_side(steps: Iterable[AgentStep]) -> list[AgentStep]:
    """Return the steps as if all runs had begun at once and each step had taken an hour."""
    ages: dict[str | None, int] = {}
    found: list[AgentStep] = []
    for step in steps:
        age = ages[step.run_id] = ages.get(step.run_id, -1) + 1
        found.append(step.model_copy(update={"created_at": _BEGIN + age * _HOUR}))
    return found


def evidence_questions(
    steps: Sequence[AgentStep], tasks: dict[str, str], asking: Iterable[str], *, blotted: bool
) -> list[EvidenceQuestion]:
    """Return what the later steps of some runs needed from earlier ones.

    Args:
        steps: Of all runs, in order, as `side_by_side` gives them.
        tasks: What each run was asked to do.
        asking: The runs that ask.
        blotted: Whether the values are taken out of the questions.
    """
    runs: dict[str, list[AgentStep]] = {}
    for step in steps:
        runs.setdefault(str(step.run_id), []).append(step)
    return [
        question
        for run_id in asking
        for question in _questions(runs.get(run_id, []), tasks[run_id], blotted=blotted)
    ]


def _questions(run: list[AgentStep], task: str, *, blotted: bool) -> Iterator[EvidenceQuestion]:
    given = [plain(f"{task} {json_text(step.inputs)}") for step in run]
    said = [plain(json_text(step.outputs)) for step in run]
    for place, step in enumerate(run):
        evidence: dict[str, frozenset[str]] = {}
        for value in used_values(step):
            first = next((n for n in range(place) if value in given[n] or value in said[n]), None)
            if first is not None and value not in given[first]:
                source = id_text(run[first].id)
                evidence[source] = evidence.get(source, frozenset()) | {value}
        if evidence:
            asked = asked_text(step)
            if blotted:
                asked = _without(asked, {value for values in evidence.values() for value in values})
            needed = tuple(Evidence(source, values) for source, values in evidence.items())
            yield EvidenceQuestion(asked, str(step.run_id), needed, step.created_at - _HOUR / 2)


def used_values(step: AgentStep) -> set[str]:
    """Return the values that a step used, in `plain` form: those of its arguments.

    Of a step that has no arguments, because it only speaks, the ids and numbers that it says; JSON
    is no speech but what a tool without arguments found.
    """
    said = json_text(step.result)
    if step.arguments:
        leaves = [leaf for leaf in _leaves(step.arguments) if len(leaf) <= _MOST_VALUE]
        values = [*leaves, *identifiers(json_text(step.arguments))]
    else:
        values = [] if said.lstrip().startswith(("{", "[")) else identifiers(said)
    return {plain(value) for value in values if len(value) >= _LEAST_VALUE} - {plain("")}


def _leaves(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
                yield from _leaves(inner)
        case list():
            for inner in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _leaves(inner)
        case str():
            yield value
        case _:
            pass


def plain(text: str) -> str:
    """Return the words of a text in one form, blanks around each: so `in` finds whole words."""
    read = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    return f" {' '.join(_WORDS.findall(read.casefold()))} "


def asked_text(step: AgentStep) -> str:
    """Return the inputs of a step as a question."""
    arguments = json_text(step.arguments) if step.arguments else ""
    return "\n".join(part for part in (step.purpose, step.tool or "", arguments) if part)


def _without(text: str, values: Iterable[str]) -> str:
    """Return a text with every value blotted out."""
    for value in sorted(values, key=len, reverse=True):
        pattern = r"\W+".join(map(re.escape, value.split()))
        text = re.sub(rf"(?<!\w){pattern}(?!\w)", BLOT, text, flags=re.IGNORECASE)
    return text


def evidence_recall(
    memory: StepMemory, steps: Sequence[AgentStep], questions: Sequence[EvidenceQuestion]
) -> dict[str, Any]:
    """Return for every budget what share of the evidence each way shows, with its tokens.

    Args:
        memory: Holds the steps.
        steps: The same, in the order in which they happened.
        questions: What is asked.
    """
    counter = token_counter("auto")
    ways = _Ways(memory, sorted(steps, key=lambda step: step.created_at), counter)
    found: dict[str, dict[str, Values]] = {
        str(budget): {BUILDER: {}, PLAIN: {}, LAST: {}} for budget in BUDGETS
    }
    standing: dict[str, dict[str, Values]] = {
        budget: {name: {} for name in names} for budget, names in found.items()
    }
    tokens: dict[str, dict[str, list[int]]] = {
        budget: {name: [] for name in names} for budget, names in found.items()
    }
    for question in questions:
        for name, shown in ways.shown(question):
            for budget, context in zip(found, shown, strict=True):
                values = found[budget][name].setdefault(question.run_id, [])
                values.append(_share(context, question))
                read = standing[budget][name].setdefault(question.run_id, [])
                read.append(_values_read(context, question))
                tokens[budget][name].append(context.tokens)
    return {
        "questions": len(questions),
        "runs": len({question.run_id for question in questions}),
        "counter": counter.counter_id,
        "estimated": is_estimate(counter),
        "budgets": {
            budget: {
                "recall": {name: interval(values)._asdict() for name, values in ways.items()},
                "tokens": {
                    name: sum(each) / max(1, len(each)) for name, each in tokens[budget].items()
                },
                "ahead_of_plain": interval(paired(ways[BUILDER], ways[PLAIN]))._asdict(),
                "values": {
                    name: interval(values)._asdict() for name, values in standing[budget].items()
                },
                "values_ahead_of_plain": interval(
                    paired(standing[budget][BUILDER], standing[budget][PLAIN])
                )._asdict(),
            }
            for budget, ways in found.items()
            if questions
        },
    }


def _share(context: Shown, question: EvidenceQuestion) -> float:
    """Return the share of the evidence that is there with all of its values."""
    there = [needed.stands_in(context) for needed in question.evidence]
    return sum(there) / len(there)


def _values_read(context: Shown, question: EvidenceQuestion) -> float:
    """Return the share of the values that stand there, in whichever step."""
    values = {value for needed in question.evidence for value in needed.values}
    return sum(value in context.text for value in values) / len(values) if values else 1.0


class _Ways:
    """The rivals: each fills a context for a question, at every budget."""

    def __init__(
        self, memory: StepMemory, steps: Sequence[AgentStep], counter: TokenCounter
    ) -> None:
        self._memory, self._steps, self._counter = memory, steps, counter
        self._texts: dict[str, tuple[str, int]] = {}

    def shown(self, question: EvidenceQuestion) -> Iterator[tuple[str, list[Shown]]]:
        """Yield each rival's name with what it shows at every budget."""
        where = StepFilter(until=question.until)
        yield BUILDER, [self._built(question, where, budget) for budget in BUDGETS]
        hits = self._memory.search(question.text, _PLAIN_HITS, where=where)
        yield PLAIN, self._filled(question, [hit.step for hit in hits])
        seen = [s for s in self._steps if question.until is None or s.created_at <= question.until]
        yield LAST, self._filled(question, seen[: -_PLAIN_HITS - 1 : -1])

    def _built(self, question: EvidenceQuestion, where: StepFilter, budget: int) -> Shown:
        builder = ContextBuilder(self._memory, budget=budget, where=where, counter=self._counter)
        asked = Step(session_id="asking", role=MessageRole.USER, content=question.text)
        try:
            context = builder.build(steps=[asked])
        except ContextBudgetError:  # the question alone is longer
            return Shown(frozenset(), "", 0)
        texts = [json_text(message.get("content")) for message in context.messages]
        told = "\n".join(texts).replace(question.text, "", 1)
        return Shown(frozenset(context.recalled), plain(told), context.receipt.tokens)

    def _filled(self, question: EvidenceQuestion, steps: Sequence[AgentStep]) -> list[Shown]:
        """Return contexts of whole steps, the first ones that fit."""
        asked = self._counter.count(question.text) + 2 * MESSAGE_TOKENS
        return [self._fill(steps, budget, asked) for budget in BUDGETS]

    def _fill(self, steps: Sequence[AgentStep], budget: int, used: int) -> Shown:
        ids: list[str] = []
        texts: list[str] = []
        for step in steps:
            text, tokens = self._text_of(step)
            if used + tokens <= budget:
                used += tokens
                ids.append(id_text(step.id))
                texts.append(text)
        return Shown(frozenset(ids), "".join(texts), used)

    def _text_of(self, step: AgentStep) -> tuple[str, int]:
        """Return a step whole, as plainly as can be, in `plain` form, with its tokens."""
        key = id_text(step.id)
        if key not in self._texts:
            text = f"{asked_text(step)}\n-> {json_text(step.outputs)}\n"
            self._texts[key] = plain(text), self._counter.count(text)
        return self._texts[key]


def evidence_table(title: str, found: dict[str, Any]) -> Table:
    """Return what contexts hold of the evidence, a row for each budget and way.

    Steps count that are quoted with their values, and values that stand there in whichever step.
    """
    rows: list[list[str]] = []
    for budget, each in found["budgets"].items():
        for name in each["recall"]:
            rows.append([f"{int(budget):,}", name, number(each["tokens"][name], 0)])
            for what, ahead in (("recall", "ahead_of_plain"), ("values", "values_ahead_of_plain")):
                above = interval_text(each[ahead], signed=True) if name == BUILDER else ""
                rows[-1] += [interval_text(each[what][name]), above]
    above = f"above {PLAIN} [95 %]"
    columns = ["budget", "", "tokens", "evidence there [95 %]", above, "values there [95 %]", above]
    about = f"{found['questions']} questions of {found['runs']} runs, tokens by {found['counter']}"
    return Table(f"{title}: {about}", columns, rows)
