"""What MCP tells a model: lines that name each step, short enough to be read in passing.

Five hits take 2,000 characters at most, and a page of a run 6,000; an id leads to the details. What
is quoted was said by anybody: it stands in one line with what names it, so that it begins none
itself, no mark of a chat template acts in it, and what is shown is what it says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from hybridagi_steps.messages.fences import PREFACE, inert
from hybridagi_steps.messages.recalled_text import recalled_text
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.excerpts import words
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.json_values import transformed
from hybridagi_steps.records.store_values import RunSummary
from hybridagi_steps.server.views import run_metrics, titles, without_vectors

FIVE_HITS, PAGE = 2_000, 6_000
"""Most characters of five hits, and of a page of a run, as far as ids leave room."""
PAGE_STEPS = 30
_HIT = (FIVE_HITS - len(PREFACE)) // 5 - 1
_STEP = (PAGE - len(PREFACE) - 400) // PAGE_STEPS - 1
_LEAST = 60
"""Characters that a text gets, however long its ids are."""
_LONGEST_VALUE = 4_000
"""Characters of one text among the details of a step."""
_DEEPEST = 6


def hit_lines(hits: Sequence[StepHit], query: str | None) -> str:
    """Return hits, best first: how well each matches, what names it, and what it says."""
    if not hits:
        return "No steps found."
    wanted = words(query or "")
    return "\n".join([PREFACE, *(_hit(n, hit, wanted) for n, hit in enumerate(hits, 1))])


def run_lines(runs: Iterable[RunSummary]) -> str:
    """Return runs, newest first."""
    told = (
        f"run {run.run_id}: {run.started_at[:16]}, {_counted(run.steps, run.errors)}, {run.title}"
        for run in runs
    )
    return "\n".join([PREFACE, *map(_flat, told)])


def run_outline(run_id: str, steps: Sequence[AgentStep], offset: int) -> str:
    """Return a run in lines, what a program did indented under it; a page from `offset` on."""
    metrics, errors = run_metrics(steps), sum(step.status == "error" for step in steps)
    facts = [_counted(len(steps), errors)]
    facts += [f"{metrics.total_tokens:,} tokens"] if metrics.total_tokens else []
    facts += [f"{metrics.duration_ms / 1000:.1f} s"] if metrics.duration_ms else []
    title = "".join(titles(steps[:1]).values())
    depths: dict[str, int] = {}
    lines: list[str] = []
    for step in steps:
        depth = min(depths.get(step.program_id or "", -1) + 1, _DEEPEST)
        if step.step_type == AgentStepType.ProgramCall:
            depths[id_text(step.id)] = depth
        head = f"{step.hop:>3} {'  ' * depth}{step.step_type} {id_text(step.id)}: "
        lines.append(head + _said(step, _STEP - len(head), ()))
    shown = lines[offset : offset + PAGE_STEPS]
    if (end := offset + len(shown)) < len(lines):
        shown.append(f"{len(lines) - end:,} more; offset={end} shows them.")
    return "\n".join([PREFACE, _flat(f"run {run_id}: {', '.join(facts)}, {title}"), *shown])


def step_details(step: AgentStep) -> dict[str, Any]:
    """Return all that is known of a step; texts of it are cut that would fill a prompt."""

    def cut(value: Any, _: str) -> Any:
        if not isinstance(value, str) or len(value) <= _LONGEST_VALUE:
            return inert(value) if isinstance(value, str) else value
        more = len(value) - _LONGEST_VALUE
        return f"{inert(value[:_LONGEST_VALUE])}… ({more:,} characters more)"

    (data,) = without_vectors([step])
    return transformed(data, cut, lambda members, _: map(inert, members))


def _hit(number: int, hit: StepHit, wanted: Collection[str]) -> str:
    run = f", run {hit.step.run_id}" if hit.step.run_id else ""
    if hit.kind == "message":
        run = f", session {hit.session_id} at {hit.sequence}"
    head = _flat(f"{number}. {hit.score:.2f} {hit.kind} {id_text(hit.step.id)}{run}: ")
    return f"{head} {_said(hit.step, _HIT - len(head) - 1, wanted)}"


def _said(step: AgentStep, length: int, wanted: Collection[str]) -> str:
    length = max(length, _LEAST)
    return _flat(recalled_text(step, length=length, wanted=wanted))[:length]


def _counted(steps: int, errors: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}" + (
        f" ({errors:,} failed)" if errors else ""
    )


def _flat(text: str) -> str:
    return " ".join(inert(text).split())
