"""ContextBuilder: from a session to the messages that a language model reads, under a budget.

In order: the system prompt; what opens the conversation, always a user; the tail of the session as
it is; what was recalled, quoted as data in one user message; the newest unit. So the beginning of a
growing session's prompts stays the same, byte for byte, as long as the tail's beginning stands, and
what changes from one to the next stands at the end. The newest unit is never cut or left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Literal, overload

from hybridagi_steps.context.compaction import Summarise, compact, expand, replaced, summarised
from hybridagi_steps.context.layout import (
    Layout,
    LayoutName,
    Quoted,
    check_layout,
    check_numbers,
    least_tokens,
    planned,
    recalled_in,
    stands_in_summary,
)
from hybridagi_steps.context.older_units import OlderUnits, lent
from hybridagi_steps.context.quoting import Recalled, filled
from hybridagi_steps.context.recall import Search, dependencies, found, query_of
from hybridagi_steps.context.receipt import Receipt, ReceiptEntry, SentPrompts
from hybridagi_steps.context.sources import (
    Source,
    newest_step,
    recallable,
    session_source,
    source_of,
    timed,
    tokens_of,
)
from hybridagi_steps.errors import ContextBudgetError, InvalidMemoryError, InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.provider_out import (
    AnthropicPrompt,
    anthropic_prompt,
    check_text,
    media_notes,
    openai_messages,
)
from hybridagi_steps.messages.units import Costs, Unit, Units
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.recording_hooks import note_steps
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.excerpts import extractive_summary, words
from hybridagi_steps.records.filters import StepFilter, Trust
from hybridagi_steps.records.json_reading import JsonObject
from hybridagi_steps.records.message import Step, own_copy
from hybridagi_steps.search.formulas import Aim
from hybridagi_steps.token_counters import (
    MESSAGE_TOKENS,
    CounterChoice,
    MessageCounter,
    token_counter,
)
from hybridagi_steps.validation import Where

_RECALL_SHARE = 0.35
"""Share of the room that recall may take from a tail that does not fit."""
_NEEDED = 5
"""Older units quoted because the newest messages use what they named first."""
_LEAST_FETCHED, _TYPICAL_TOKENS, _MOST_RECALLED = 8, 50, 1_600
"""Steps searched: as many as fit if they are of this length, then four times more."""


@dataclass(slots=True)
class Context:
    """Messages for a language model, and the receipt of what is in them."""

    messages: list[JsonObject]
    """In OpenAI's form, the system prompt first if there is one."""
    receipt: Receipt
    """What was kept and dropped, why, and what it costs."""
    system: str | None
    """The system prompt."""
    steps: list[Step]
    """The messages without the system prompt, as Steps."""
    _originals: Sequence[Step] = field(default=(), repr=False)
    _stable: int = field(default=0, repr=False)

    @property
    def recalled(self) -> list[str]:
        """Ids of the older steps, and messages, that it quotes."""
        return recalled_in(self.steps)

    @overload
    def for_provider(self, style: Literal["openai"] = "openai") -> list[JsonObject]: ...
    @overload
    def for_provider(
        self, style: Literal["anthropic"], *, cache: bool = False
    ) -> AnthropicPrompt: ...
    def for_provider(
        self, style: Literal["openai", "anthropic"] = "openai", *, cache: bool = False
    ) -> list[JsonObject] | AnthropicPrompt:
        """Return the context in a provider's form; Anthropic's has the system prompt beside it.

        Either is within the budget.

        Args:
            style: Whose form.
            cache: Whether Anthropic shall keep the prompt up to what was recalled, which is where
                the next one begins to differ. OpenAI keeps prompts by itself.
        """
        if style == "openai":
            return self.messages
        if style == "anthropic":
            return anthropic_prompt(self.system, self.steps, self._stable if cache else None)
        raise InvalidSettingError(f"style is openai or anthropic, not {style!r}.")

    def expand(self, summary_id: str) -> list[Step]:
        """Return the messages that a summary in this context stands for, as they were."""
        ids = {i for step in self.steps if step.id == summary_id for i in summarised(step)}
        found = (step for step in self._originals if step.id in ids and not summarised(step))
        return [own_copy(step) for step in found]

    def _repr_html_(self) -> str:
        """Show the context in a notebook."""
        from hybridagi_steps.display import context_html

        return context_html(self.messages, self.receipt.shown())


class ContextBuilder:
    """Builds contexts of sessions, under a token budget.

    Example:
        >>> asked = Step(session_id="s", role="user", content="Hello")
        >>> ContextBuilder(budget=100).build(steps=[asked]).messages
        [{'role': 'user', 'content': 'Hello'}]
    """

    def __init__(
        self,
        memory: StepMemory | None = None,
        budget: int = 4_000,
        recent: int | None = 6,
        k: int | None = None,
        *,
        counter: CounterChoice = "auto",
        where: Where = None,
        trust: Trust | None = None,
        aim: Aim | None = None,
        layout: LayoutName = "recent",
        cache_weight: float = 0.1,
        message_times: bool = False,
    ) -> None:
        """Set what every context of this builder gets.

        Args:
            memory: Where sessions are read and older steps are found. Without one, `build` takes
                `steps`, and only they are searched.
            budget: Most tokens of a context, in whichever provider's form it is asked for.
            recent: Newest units shown as they are: a unit is a message, or calls with their
                results. None shows as many as fit.
            k: Most older steps recalled; what the newest messages depend on comes on top. None
                recalls by rank until the budget is used, and 0 nothing.
            counter: Counts tokens: whatever `token_counter` takes.
            where: Which steps of the memory may be recalled. Unless it names a `user_id`, only
                those of the user that the running code is recorded for, else of the only user that
                the session's steps and messages name (who owns it, where messages alone do), else
                those of no user; None stands for all users.
            trust: Least trust of a step that may be recalled, as in `where`: `own`, `team`, or
                `imported`, which is all. What is not the user's own says where it comes from.
            aim: What the memory is searched for, as in `memory.search`: `next`, `episode`, `tool`.
                `next` asks what was done after a step like the newest recorded one; where none is
                recorded, the receipt says so.
            layout: `recent` shows `recent` units and gives the rest of the room to recall.
                `cached` keeps the conversation as it grows, up to two thirds of the budget, and
                then drops the older half at once: more tokens, of which a provider's prompt cache
                serves most. In both stand, in order, system prompt, history, recall, newest unit.
            cache_weight: What a token costs that comes from the provider's prompt cache, beside a
                fresh one, for `receipt.weighted_tokens`: 0.1 with Anthropic, OpenAI 0.1 to 0.5.
            message_times: Whether users' messages begin with the minute they were said in, UTC.

        Raises:
            InvalidMemoryError: The memory is none.
            InvalidSettingError: A number that means nothing, an unknown aim or layout, or no token
                counter.
            InvalidFilterError: An unknown key in `where`.
        """
        if memory is not None and not hasattr(memory, "repository"):
            raise InvalidMemoryError(memory, "repository()", "search()")
        check_numbers(budget=(budget, 1), k=(k, 0), recent=(recent, 1))
        self.memory, self.budget, self.recent, self.k = memory, budget, recent, k
        self.where = _recallable(where, trust)
        check_layout(layout, aim, cache_weight)
        self.aim: Aim | None = aim
        self.layout: LayoutName = layout
        self.cache_weight, self.message_times = cache_weight, message_times
        self._sent = SentPrompts()
        self._count = MessageCounter(token_counter(counter))

    @property
    def counter(self) -> TokenCounter:
        """Who counts the tokens."""
        return self._count.counter

    def build(
        self,
        *,
        session_id: str | None = None,
        steps: Iterable[AgentStep] | Iterable[Step] | None = None,
        query: str | None = None,
        system_prompt: str | None = None,
    ) -> Context:
        """Return the context of a session as it stands.

        Args:
            session_id: A session of the memory.
            steps: Or its messages, or the AgentSteps of a run, in order.
            query: What to recall older steps for; by default the last request and what was done
                last. It is no message of its own, unless the session is empty; an empty one
                without it recalls nothing.
            system_prompt: By default what leading system messages say.

        Raises:
            ContextBudgetError: System prompt and newest unit do not fit into the budget.
            UnknownSessionError: The memory has no such session.
            InvalidSettingError: Neither a session nor steps, or both; or no text for a text.
        """
        check_text("query", query)
        check_text("system_prompt", system_prompt)
        source = source_of(self.memory, session_id, steps, query)
        system, units, standing, costs, room = self._measured(source, system_prompt)
        receipt = Receipt(self.budget, self.counter.counter_id, cache_weight=self.cache_weight)
        if system and system.strip():
            cost = self._count.message({"role": "system", "content": system})
            receipt.keep(ReceiptEntry("system", "the system prompt", cost))
        layout = self._laid_out(units, costs, room, query, source, receipt)
        layout.report(receipt, source, self._count)
        if layout.recalled is not None:
            note_steps(layout.recalled.found.steps)
        if standing:
            receipt.drop(partial(stands_in_summary, source, standing))
        # Copies, so that nobody can change what is remembered of the session.
        shown = [own_copy(step) for step in self._messages(layout, source)]
        receipt.notes += [f"{step.id}: {note}" for step in shown for note in media_notes(step)]
        messages = openai_messages(system, shown)
        sent = self._sent.shared(source.session_id, messages, self._count)
        receipt.cached_tokens = min(receipt.tokens, sent)
        return Context(messages, receipt, system, shown, source.messages, layout.stable)

    def history(self, source: Source) -> tuple[str | None, list[Step]]:
        """Return the system prompt and the messages of a context without recall, for reading only.

        Raises:
            ContextBudgetError: System prompt and newest unit do not fit into the budget.
        """
        system, units, _, costs, room = self._measured(source, None)
        layout = self._planned(units, costs, room)
        return system, self._messages(layout, source)

    def compact(
        self,
        *,
        session_id: str | None = None,
        steps: Iterable[AgentStep] | Iterable[Step] | None = None,
        summarise: Summarise = extractive_summary,
    ) -> Step:
        """Return a summary of what is older than the recent units; append it to the session.

        From then on contexts show it instead of what it stands for; nothing is deleted.

        Args:
            session_id: A session of the memory.
            steps: Or its messages.
            summarise: A function from a text to a shorter one; by default no language model.

        Raises:
            InvalidSettingError: Nothing is older.
        """
        messages = source_of(self.memory, session_id, steps, None).messages
        return compact(messages, keep=self.recent or 6, summarise=summarise)

    def expand(
        self,
        messages: Iterable[Step],
        *,
        originals: Iterable[Step] = (),
        session_id: str | None = None,
    ) -> list[Step]:
        """Return messages with every summary replaced by what it stands for.

        Args:
            messages: Messages with summaries among them.
            originals: Where the messages are that do not stand beside their summary.
            session_id: Or the session that holds them.
        """
        held = originals if session_id is None else session_source(self.memory, session_id).messages
        return [own_copy(step) for step in expand(messages, held)]

    def _measured(
        self, source: Source, system_prompt: str | None
    ) -> tuple[str | None, Units, dict[str, str], Costs, int]:
        """Return the prompt, units, what summaries stand for, tokens, and how many are left."""
        system, known = source.in_units()
        system = system if system_prompt is None else system_prompt
        units, standing = replaced(known)
        costs = source.tokens(units, self._count)
        if self.message_times:
            costs = Costs(self._timed_costs(*each) for each in zip(units, costs, strict=True))
        needed = least_tokens(self._count, system, units[-1], sum(costs[-1]))
        if needed > self.budget:
            raise ContextBudgetError(needed, self.budget)
        return system, units, standing, costs, self.budget - needed

    def _timed_costs(self, unit: Unit, costs: Sequence[int]) -> tuple[int, ...]:
        pairs = ((said, timed(said)) for said in unit.messages)
        return tuple(
            cost if shown is said else tokens_of(shown, self._count)
            for (said, shown), cost in zip(pairs, costs, strict=True)
        )

    def _messages(self, layout: Layout, source: Source) -> list[Step]:
        messages = layout.messages(source.session_id)
        return [timed(message) for message in messages] if self.message_times else messages

    def _laid_out(
        self,
        units: Units,
        costs: Costs,
        room: int,
        query: str | None,
        source: Source,
        receipt: Receipt,
    ) -> Layout:
        """Return what is shown: the tail, what stands before it, what is recalled."""
        layout = self._planned(units, costs, room)
        if self.k == 0 or (not layout.hidden and self.memory is None):
            return layout
        if layout.cut_short and self.layout == "recent":
            reserved = int(room * _RECALL_SHARE)
            layout = self._planned(units, costs, room - reserved)
            layout.left += reserved
        asked = query if query and query.strip() else query_of(units)
        with lent(source.kept, layout.hidden) as older:
            layout.recalled = self._recalled(layout, older, asked, source, receipt)
        if layout.recalled is None and layout.cut_short:
            return self._planned(units, costs, room)
        return layout

    def _planned(self, units: Units, costs: Costs, room: int) -> Layout:
        share = (self.k != 0) * _RECALL_SHARE
        history = int((1 - share) * self.budget) if self.layout == "cached" else None
        return planned(units, costs, room, self.recent, self._count, history)

    def _recalled(
        self, layout: Layout, older: OlderUnits, query: str, source: Source, receipt: Receipt
    ) -> Quoted | None:
        """Return the message that quotes older steps, if one fits."""
        room = layout.left - MESSAGE_TOKENS
        if self.layout == "cached":  # what is recalled is new in every prompt
            room = min(room, int(_RECALL_SHARE * self.budget))
        search = Search(
            self.memory,
            *recallable(self.memory, source, self.where),
            layout.shown_ids(source),
            layout.shown,
            receipt.notes,
            self.aim,
            newest_step(self.memory, source) if self.aim == "next" else None,
        )
        if self.memory is not None:
            older.locate(self.memory.repository().store, layout.shown)
        firsts = dependencies(layout.tail[-2:], older)
        needed = list(islice(firsts, min(self.k or _NEEDED, _NEEDED)))
        most, known = self.k or sys.maxsize, {step.id for step in needed}
        wanted = words(query)

        def new(step: Recalled) -> bool:
            told = isinstance(step.of, Unit) or search.says_something_new(step.of)
            return told and step.id not in known

        width = min(most, max(_LEAST_FETCHED, room // _TYPICAL_TOKENS))
        while True:
            steps, more = found(query, width, older, search, source.messages)
            every = chain(needed, filter(new, steps))
            made = filled(every, room, most + len(needed), wanted, self._count.text)
            if made.full or not more or len(made.steps) >= most or width >= _MOST_RECALLED:
                break
            width = min(width * 4, _MOST_RECALLED)
        if (best := made.left_out) is not None:
            receipt.next_best = ReceiptEntry(best.id, best.why(), best.whole_tokens, best.rank)
        return None if not made.steps else Quoted(made, self._count.message({"content": made.text}))


def _recallable(where: Where, trust: Trust | None) -> StepFilter | None:
    own = None if where is None else StepFilter.of(where)
    return own if trust is None else StepFilter(trust=trust).and_(own or StepFilter())
