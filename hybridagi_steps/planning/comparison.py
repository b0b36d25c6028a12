"""What a plan would have cost with other contexts: the same calls and answers, other prompts.

Nothing is asked again. The recorded calls are taken in the order of the plan as turns of one
conversation, and every prompt is counted as it would have been with the full history, and with its
last messages only. All three ways are counted by one tokenizer, tool schemas included.

To be fair to the full history it pays for nothing twice: the requirement stands in it once, no
artifact is passed on, no file is shown again that was shown unchanged, and it does without a
planner. What our way spends on planning is counted against it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from hybridagi_steps.planning.usage import PLANNING, LMCall
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.token_counters import MessageCounter, is_estimate

LAST = 6
"""Messages that the rival with the last messages keeps, beside instructions and requirement."""


class Comparison(BaseModel):
    """Tokens of one plan with three kinds of context, answers included."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: str = "replay"
    """How the rivals were counted: the same answers, replayed with other prompts."""
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


def compare(
    calls: Iterable[LMCall], order: Sequence[str], counter: TokenCounter, last: int = LAST
) -> Comparison:
    """Count a plan's calls as they were, and as they would have been with other contexts.

    Args:
        calls: Every call of the plan.
        order: The ids of its steps; the conversation follows it.
        counter: Counts all ways.
        last: Messages that the rival with the last messages keeps.
    """
    listed = [call for call in calls if call.answer is not None]
    place = {step_id: number for number, step_id in enumerate(order)}
    working = [call for call in listed if call.part in place]
    working.sort(key=lambda call: (place[call.part], call.attempt))
    count = _Counter(counter)
    planning = sum(map(count.call, (call for call in listed if call.part == PLANNING)))
    other = [call for call in listed if call.part not in place and call.part != PLANNING]
    aside = sum(map(count.call, other))
    full, recent = _with_history(working, count, last)
    return Comparison(
        calls=len(listed),
        ours=sum(map(count.call, working)) + planning + aside,
        planning=planning,
        tool_schemas=sum(count.tools(call.tools) for call in listed),
        full_history=full + aside,
        last_messages=recent + aside,
        last=last,
        counter=counter.counter_id,
        estimated=is_estimate(counter),
    )


def _with_history(calls: Sequence[LMCall], count: _Counter, last: int) -> tuple[int, int]:
    """Return the tokens of all calls with the full history, and with its last messages."""
    full = recent = 0
    head: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    before: LMCall | None = None
    for call in calls:
        if before is None:
            head = call.messages[:1]
            said = call.messages[1:]
            shown = dict(call.files)
        else:
            said += _new_messages(before, call, shown)
        fixed = count.messages(head) + count.tools(call.tools) + count.answer(call)
        full += fixed + count.messages(said)
        recent += fixed + count.messages(_tail(said, last))
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
    shown |= call.files
    parts = [call.fresh or "", *(f"## {path}\n{text}" for path, text in files.items())]
    return [*answer, {"role": "user", "content": "\n\n".join(filter(None, parts))}]


def _tail(said: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the first message, which holds the requirement, and the last ones.

    A tool's answer is never parted from its call, as providers demand.
    """
    begin = max(1, len(said) - last)
    while begin > 1 and said[begin]["role"] == "tool":
        begin -= 1
    return [*said[:1], *said[begin:]]


class _Counter:
    """Counts calls, and remembers what it has counted."""

    def __init__(self, counter: TokenCounter) -> None:
        self._messages = MessageCounter(counter)
        self._schemas: dict[str, int] = {}

    def call(self, call: LMCall) -> int:
        """Return the tokens of a call as it was made."""
        return self.messages(call.messages) + self.tools(call.tools) + self.answer(call)

    def messages(self, messages: Iterable[dict[str, Any]]) -> int:
        return sum(map(self._messages.message, messages))

    def answer(self, call: LMCall) -> int:
        return 0 if call.answer is None else self._messages.message(call.answer)

    def tools(self, tools: list[dict[str, Any]]) -> int:
        """Return the tokens of tool schemas, counted as JSON text."""
        if not tools:
            return 0
        text = json.dumps(tools, ensure_ascii=False)
        if text not in self._schemas:
            self._schemas[text] = self._messages.text(text)
        return self._schemas[text]
