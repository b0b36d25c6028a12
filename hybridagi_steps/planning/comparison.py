"""Comparison: what a plan's calls take, beside the same answers in one conversation, by price.

Tokens are counted raw, and weighted by what a provider's prompt cache charges: what stood at the
beginning of an earlier prompt is read at a discount, what is written to the cache may cost more,
and beginnings below a minimum are not kept. Fresh small prompts save tokens and lose money where
the rival's growing conversation is cached, so no figure stands alone. Calls count one after the
other: steps that begin at once each write what they share.

Before any step is begun it is an estimate. The prompts are made as they will be, of the files as
they are now; what models and tools will say is taken to be as long as in the tasks that ship with
the library. The files that prompts begin with are chosen here, too, since that is known at the same
moment and for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dspy.clients.model_metadata import model_info
from pydantic import BaseModel, ConfigDict

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.planning.executor import StepExecutor
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.planning.step_prompts import (
    CACHE_MINIMUM,
    make_brief,
    shared_files,
    shared_text,
)
from hybridagi_steps.planning.usage import PLANNING, LMCall
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.token_counters import MessageCounter, is_estimate
from hybridagi_steps.workspace.workspace import Workspace

LAST = 6
"""Messages that the rival with the last messages keeps, beside instructions and requirement."""

TURNS = 2
"""Answers of the model for a step, the one that ends it included."""
_ANSWER_TOKENS, _RESULT_TOKENS, _ARTIFACT_TOKENS = 170, 50, 30
"""Medians of the six tasks, rounded."""
_WORD = "word "
"""About one token with every counter."""


class PriceTable(NamedTuple):
    """What a token costs by how a provider's prompt cache treats it."""

    name: str
    read: float = 1.0
    """A token of a prompt that is read from the cache."""
    write: float = 1.0
    """One that is written to it."""
    minimum: int = 0
    """The shortest beginning of a prompt that is kept."""
    fresh: float = 1.0
    """A token of a prompt beside the cache."""
    answer: float = 1.0
    """One that is generated."""


PRICE_TABLES = (
    PriceTable("none"),
    PriceTable("0.5x", 0.5),
    PriceTable("0.25x", 0.25),
    PriceTable("0.1x", 0.1),
    PriceTable("0.1x, writes 1.25x, from 1,024", 0.1, 1.25, CACHE_MINIMUM),
)
"""No cache, and caches as providers have them, in tokens of a prompt."""


class Priced(BaseModel):
    """What the same answers cost by one price table."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    ours: float
    """As the plan was run, planning included."""
    full_history: float
    """In one conversation."""

    @property
    def saving(self) -> float | None:
        """Share of the full history's cost that was saved; negative when it would cost less."""
        return 1 - self.ours / self.full_history if self.full_history else None


class Comparison(BaseModel):
    """Tokens of one plan with three kinds of context, answers included."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: str = "replay"
    """How it was counted: `replay`, the same answers with other prompts, or `estimate`."""
    calls: int
    """Calls that were compared."""
    ours: int
    """Tokens as the plan was run, planning included."""
    planning: int
    """Of these, tokens of planning."""
    tool_schemas: int
    """Of these, tokens of the tools' schemas, which every call sends."""
    full_history: int
    """Tokens if every call had seen all that was said before it."""
    last_messages: int
    """Tokens if every call had seen the last messages only."""
    last: int = LAST
    """How many messages that are."""
    counter: str
    """The tokenizer of all counts."""
    estimated: bool
    """Whether it estimates."""
    priced: dict[str, Priced] = {}
    """Tokens weighted by each of `PRICE_TABLES`, by its name."""
    money: Priced | None = None
    """US dollars, where DSPy knows the model's prices."""

    @property
    def saving(self) -> float | None:
        """Share of the full history's tokens that was saved; negative when more was spent."""
        return 1 - self.ours / self.full_history if self.full_history else None

    def __str__(self) -> str:
        """The figures in a line."""
        share = "-" if self.saving is None else f"{100 * self.saving:.0f} %"
        return (
            f"{self.ours:,} tokens; full history {self.full_history:,}, last {self.last} "
            f"{self.last_messages:,}; saving {share} ({self.kind}, {self.counter})"
        )

    @property
    def dearer(self) -> list[str]:
        """Names of the price tables by which the full history would cost less."""
        return [name for name, each in self.priced.items() if (each.saving or 0.0) < 0]


def compare(
    calls: Iterable[LMCall], order: Sequence[str], counter: TokenCounter, last: int = LAST
) -> Comparison:
    """Count a plan's calls as they were, and as they would have been with other contexts."""
    listed = [call for call in calls if call.answer is not None]
    place = {step_id: number for number, step_id in enumerate(order)}
    working = [call for call in listed if call.part in place]
    working.sort(key=lambda call: (place[call.part], call.attempt))
    other = [call for call in listed if call.part not in place and call.part != PLANNING]
    count = _Counter(counter)
    ours = [count.prompt(call, call.messages) for call in listed]
    full, recent = _with_history(working, count, last)
    aside = [count.prompt(call, call.messages) for call in other]
    planned = [count.prompt(call, call.messages) for call in listed if call.part == PLANNING]

    def priced(table: PriceTable) -> Priced:
        return Priced(ours=_price(ours, table), full_history=_price([*full, *aside], table))

    money = _money(listed)
    return Comparison(
        calls=len(listed),
        ours=sum(each.tokens for each in ours),
        planning=sum(each.tokens for each in planned),
        tool_schemas=sum(count.tools(call) for call in listed),
        full_history=sum(each.tokens for each in (*full, *aside)),
        last_messages=sum(each.tokens for each in (*recent, *aside)),
        last=last,
        counter=counter.counter_id,
        estimated=is_estimate(counter),
        priced={table.name: priced(table) for table in PRICE_TABLES},
        money=money and priced(money),
    )


class _Prompt(NamedTuple):
    """One call: the parts of its prompt, each with what tells it from others and its tokens."""

    parts: list[tuple[str, int]]
    """Tools and instructions come first."""
    answer: int

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.parts) + self.answer


def _price(prompts: Sequence[_Prompt], table: PriceTable) -> float:
    """Return what calls cost one after the other, whichever beginnings it pays to keep."""
    return min(_price_of(prompts, table, kept) for kept in (2, None))


def _price_of(prompts: Sequence[_Prompt], table: PriceTable, kept: int | None) -> float:
    """Return what calls cost when the first `kept` parts of each prompt are kept, or all."""
    known: set[int] = set()
    total = 0.0
    for parts, answer in prompts:
        beginning, length, read, written = 0, 0, 0, 0
        for number, (key, tokens) in enumerate(parts):
            beginning, length = hash((beginning, key)), length + tokens
            if beginning in known:
                read = length
            elif length >= table.minimum and (kept is None or number < kept):
                known.add(beginning)
                written = length - read
        fresh = length - read - written
        total += table.read * read + table.write * written + table.fresh * fresh
        total += table.answer * answer
    return total


def _money(calls: Sequence[LMCall]) -> PriceTable | None:
    """Return the prices of the model, if all calls were priced and asked the same one."""
    models = {call.model_name for call in calls}
    if not calls or len(models) > 1 or any(call.cost is None for call in calls):
        return None
    provider, _, model = str(calls[0].model_name).partition("/")
    prices = model_info(provider, model)
    fresh, answer = prices.get("input_cost_per_token"), prices.get("output_cost_per_token")
    if fresh is None or answer is None:
        return None
    read = prices.get("cache_read_input_token_cost", fresh)
    write = prices.get("cache_creation_input_token_cost", fresh)
    return PriceTable("dollars", read, write, CACHE_MINIMUM, fresh, answer)


def _with_history(
    calls: Sequence[LMCall], count: _Counter, last: int
) -> tuple[list[_Prompt], list[_Prompt]]:
    """Return all calls with the full history, and with its last messages."""
    full: list[_Prompt] = []
    recent: list[_Prompt] = []
    said: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    before: LMCall | None = None
    for call in calls:
        said += call.messages[1:] if before is None else _new_messages(before, call, shown)
        shown |= call.files
        # One conversation has one set of tools, and one beginning.
        same = call.model_copy(update={"tools": calls[0].tools})
        instructions = calls[0].messages[:1]
        full.append(count.prompt(same, [*instructions, *said]))
        recent.append(count.prompt(same, [*instructions, *_tail(said, last)]))
        before = call
    return full, recent


def _new_messages(before: LMCall, call: LMCall, shown: dict[str, str]) -> list[dict[str, Any]]:
    """Return what one conversation would have gained between two calls."""
    answer = [before.answer] if before.answer is not None else []
    if (before.part, before.attempt) == (call.part, call.attempt):
        # The answer stands in the next prompt, followed by what the tools gave.
        new = call.messages[len(before.messages) :]
        return new if new and new[0]["role"] == "assistant" else [*answer, *new]
    files = {path: text for path, text in call.files.items() if shown.get(path) != text}
    parts = [call.fresh or "", *(f"## {path}\n{text}" for path, text in files.items())]
    brief = {"role": "user", "content": "\n\n".join(filter(None, parts))}
    return [*answer, *map(_result, (before.answer or {}).get("tool_calls") or ()), brief]


def _result(call: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a call that ended a step: providers refuse a call without one."""
    return {"role": "tool", "tool_call_id": call.get("id"), "content": "done"}


def _tail(said: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the first message, which holds the requirement, and the last ones.

    A tool's answer is never parted from its call, as providers demand.
    """
    begin = max(1, len(said) - last)
    while begin > 1 and said[begin]["role"] == "tool":
        begin -= 1
    return [*said[:1], *said[begin:]]


class _Counter(MessageCounter):
    """Counts calls."""

    def prompt(self, call: LMCall, messages: Iterable[dict[str, Any]]) -> _Prompt:
        parts = [(json.dumps(call.tools, sort_keys=True), self.tools(call))]
        parts += [(json.dumps(each, sort_keys=True), self.message(each)) for each in messages]
        return _Prompt(parts, 0 if call.answer is None else self.message(call.answer))

    def tools(self, call: LMCall) -> int:
        """Return the tokens of tool schemas, counted as JSON text."""
        return self.text(json.dumps(call.tools, ensure_ascii=False)) if call.tools else 0


def files_to_share(
    executor: StepExecutor, requirement: str, plan: Plan, workspace: Workspace | None
) -> dict[str, str]:
    """Return the files with which the prompts of all steps begin, so that a cache keeps them."""
    if workspace is None or len(plan.steps) < 2:
        return {}
    told = [executor.work.signature.instructions, shared_text(requirement, {})]
    known = [json.dumps(executor.schemas(workspace)), *told]
    missing = executor.cache_minimum - sum(map(executor.counter.count, known))
    named = [path for step in plan.steps for path in dict.fromkeys(step.files)]
    return shared_files(named, workspace, executor.counter, missing)


def estimated(
    executor: StepExecutor,
    requirement: str,
    plan: Plan,
    workspace: Workspace | None,
    *,
    shared: Mapping[str, str],
    spent: Sequence[LMCall] = (),
) -> Comparison:
    """Return what a plan will cost; `spent` are calls that were made for it already."""
    system = "\n\n".join([executor.work.signature.instructions, shared_text(requirement, shared)])
    schemas, calls = executor.schemas(workspace), list(spent)
    for step in plan.steps:
        makers = (plan.step(name) for name in step.dependencies)
        seen = {f"{m.id}.{n}": _WORD * _ARTIFACT_TOKENS for m in makers for n in m.artifacts}
        try:
            brief = make_brief(step, seen, workspace, counter=executor.counter, shared=shared)
        except WorkspaceError:  # a step before it makes the file, or it will fail
            unread = step.model_copy(update={"files": []})
            brief = make_brief(unread, seen, workspace, counter=executor.counter)
        messages = [_message("system", system), _message("user", brief.text)]
        for _ in range(TURNS):
            answer = _message("assistant", _WORD * _ANSWER_TOKENS)
            call = LMCall(part=step.id, messages=messages, tools=schemas, answer=answer)
            call.fresh, call.files = brief.rest, {**shared, **brief.files}
            calls.append(call)
            messages = [*messages, answer, _message("tool", _WORD * _RESULT_TOKENS)]
    order = [step.id for step in plan.steps]
    return compare(calls, order, executor.counter).model_copy(update={"kind": "estimate"})


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
