"""Comparison: the tokens of a plan's calls, beside the same answers in one conversation.

Tokens are counted raw, and those among them that a provider's prompt cache can have read before:
what stood at the beginning of an earlier prompt. Fresh small prompts save tokens, while one growing
conversation is cached, so no figure stands alone. Calls count one after the other. The files that
prompts begin with are chosen here, too, since a cache is their reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from hybridagi_steps.planning.executor import StepExecutor
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.planning.step_prompts import shared_files, shared_text
from hybridagi_steps.planning.usage import PLANNING, LMCall
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.token_counters import MessageCounter, is_estimate
from hybridagi_steps.workspace.workspace import Workspace

LAST = 6
"""Messages that the rival with the last messages keeps, beside instructions and requirement."""


class Comparison(BaseModel):
    """Tokens of one plan with three kinds of context, answers included."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    calls: int
    """Calls that were compared."""
    ours: int
    """Tokens as the plan was run, planning included."""
    ours_cached: int
    """Of these, tokens of prompts that stood at the beginning of an earlier one."""
    planning: int
    """Of these, tokens of planning."""
    tool_schemas: int
    """Of these, tokens of the tools' schemas, which every call sends."""
    full_history: int
    """Tokens if every call had seen all that was said before it."""
    full_history_cached: int
    """Of these, tokens of prompts that stood at the beginning of an earlier one."""
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
            f"{self.ours:,} tokens, {self.ours_cached:,} cached; full history "
            f"{self.full_history:,}, {self.full_history_cached:,} cached; last {self.last} "
            f"{self.last_messages:,}; saving {share} ({self.counter})"
        )


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
    return Comparison(
        calls=len(listed),
        ours=sum(each.tokens for each in ours),
        ours_cached=_cached(ours),
        planning=sum(each.tokens for each in planned),
        tool_schemas=sum(count.tools(call) for call in listed),
        full_history=sum(each.tokens for each in (*full, *aside)),
        full_history_cached=_cached([*full, *aside]),
        last_messages=sum(each.tokens for each in (*recent, *aside)),
        last=last,
        counter=counter.counter_id,
        estimated=is_estimate(counter),
    )


class _Prompt(NamedTuple):
    """One call: the parts of its prompt, each with what tells it from others and its tokens."""

    parts: list[tuple[str, int]]
    """Tools and instructions come first."""
    answer: int

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.parts) + self.answer


def _cached(prompts: Sequence[_Prompt]) -> int:
    """Return how many tokens stood at the beginning of an earlier prompt."""
    known: set[int] = set()
    total = 0
    for prompt in prompts:
        beginning, length, cached = 0, 0, 0
        for key, tokens in prompt.parts:
            beginning, length = hash((beginning, key)), length + tokens
            cached = length if beginning in known else cached
            known.add(beginning)
        total += cached
    return total


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
