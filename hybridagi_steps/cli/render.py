"""Steps, hits and runs as tables and trees for a terminal, readable from 80 columns up."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from hybridagi_steps.display.view import StepView, step_view, tree_view

if TYPE_CHECKING:
    from hybridagi_steps.records.agent_step import AgentStep
    from hybridagi_steps.records.filters import StepHit
    from hybridagi_steps.records.store_values import MessagePlace, RunSummary

_COLOURS = {"action": "blue", "decision": "magenta", "call": "green", "end": "green"}
_BAR = 8
_MOST_KIN = 20
_MOST_IN_TREE = 1_000


def hits_table(hits: Sequence[StepHit]) -> Table:
    """Return search hits as a table: rank, score, what was done, why, what came of it."""
    made = table("#", "score", "step", right=("#",))
    made.columns[2].ratio = 1
    made.expand = True
    for rank, hit in enumerate(hits, start=1):
        view = _view(hit.step)
        if hit.sequence is None:
            body = [_headline(view, (f"  {view.id}", "dim")), *_below(view)]
        else:
            place = _place(hit.session_id, hit.sequence, (f"  {view.id}", "dim"))
            body = [_headline(view), *_below(view), place]
        if hit.why:
            body.append(_cut(styled((hit.why, "dim italic"))))
        body += [_cut(styled(("  ↳ ", "dim"), *_short(_view(s)))) for s in hit.context]
        made.add_row(str(rank), _bar(hit.score), Group(*body))
    return made


def runs_table(runs: Sequence[RunSummary], first_steps: Mapping[str, AgentStep]) -> Table:
    """Return runs as a table; `first_steps` holds what each began with, by id."""
    made = table("run", "started", "steps", "errors", "score", "begins", right=("steps",))
    made.expand = True
    made.columns[5].ratio = 1
    made.columns[0].no_wrap = made.columns[1].no_wrap = True
    for run in runs:
        first = first_steps.get(run.first_step)
        made.add_row(
            _cut(styled((run.run_id, ""))),
            plain(run.started_at)[:16].replace("T", " "),
            f"{run.steps:,}",
            styled((run.errors or "", "red")),
            "" if run.score is None else f"{run.score:.2g}",
            _cut(styled(*_beginning(first))) if first else "",
        )
    return made


def run_tree(steps: Sequence[AgentStep]) -> RenderableType:
    """Return the steps of a run as a tree, what a program did inside the program."""
    count = f"{len(steps):,} step{'' if len(steps) == 1 else 's'}"
    run_id = steps[0].run_id if steps else None
    tree = Tree(styled((f"run {run_id}" if run_id else count, "bold"), (f"  {count}", "dim")))
    _grow(tree, tree_view([step_data(step) for step in steps[:_MOST_IN_TREE]]))
    if (hidden := len(steps) - _MOST_IN_TREE) > 0:
        tree.add(styled((f"… and {hidden:,} more; --json shows all", "dim")))
    return tree


def step_page(
    step: AgentStep,
    parents: Sequence[AgentStep],
    children: Sequence[AgentStep],
    place: MessagePlace | None = None,
) -> RenderableType:
    """Return everything about one step: what led to it, what it was, what followed.

    A message is told as a step, with its place.
    """
    view = _view(step)
    parts: list[RenderableType] = [_headline(view)]
    if place is not None:
        parts.append(_place(*place))
    parts += [*_kin("after", parents), *_kin("before", children)]
    for name, text in view.sections:
        parts += [styled(("\n" + name, "dim bold")), Padding(Text(plain(text)), (0, 0, 0, 2))]
    return Group(*parts)


def _place(session_id: str | None, sequence: int, *more: tuple[object, str]) -> Text:
    """Say where a message stands; a narrow terminal wraps it, for all of it may be copied."""
    return styled((f"message {sequence:,} of session {session_id}", "cyan"), *more)


def _kin(label: str, steps: Sequence[AgentStep]) -> list[Text]:
    rows: list[Text] = []
    for step in steps[:_MOST_KIN]:
        view = _view(step)
        rows.append(_cut(styled((f"  {label} {view.id}  ", "dim"), *_short(view))))
    if (hidden := len(steps) - _MOST_KIN) > 0:
        rows.append(styled((f"  and {hidden:,} more", "dim")))
    return rows


def _grow(tree: Tree, views: Sequence[StepView]) -> None:
    for view in views:
        outcome = (
            [(f"  → {view.outcome}", "dim")] if view.outcome else [(f"  {view.purpose}", "dim")]
        )
        _grow(tree.add(_cut(styled(*_head(view), *outcome))), view.children)


def _headline(view: StepView, *more: tuple[object, str]) -> Text:
    facts = " · ".join(view.facts)
    return _cut(styled(*_head(view), (f"  {facts}" if facts else "", "dim"), *more))


def _below(view: StepView) -> list[Text]:
    found: list[Text] = []
    if view.purpose:
        found.append(_cut(styled((view.purpose, ""))))
    if view.outcome:
        found.append(_cut(styled(("→ ", "dim"), (view.outcome, ""))))
    return found


def _head(view: StepView) -> list[tuple[object, str]]:
    parts: list[tuple[object, str]] = [(f"{view.hop} ", "dim")]
    parts += [(view.kind, _COLOURS.get(view.style, "")), (f" {view.title}", "bold")]
    if view.status:
        parts.append((f" {view.status}", "bold red"))
    if view.after:
        parts.append((f" ({view.after})", "dim"))
    return parts


def _short(view: StepView) -> list[tuple[object, str]]:
    outcome = f" → {view.outcome}" if view.outcome else ""
    return [(f"{view.hop} ", "dim"), (view.title, ""), (outcome, "dim")]


def _beginning(step: AgentStep) -> list[tuple[object, str]]:
    view = _view(step)
    return [(view.title, "bold"), (f"  {view.purpose}" if view.purpose else "", "")]


def _bar(score: float) -> Text:
    filled = round(_BAR * min(1.0, max(0.0, score)))
    return styled((f"{score:.3f} ", ""), ("━" * filled, "blue"), ("─" * (_BAR - filled), "dim"))


def _cut(text: Text) -> Text:
    """Keep a text on one line: what does not fit is cut with a mark."""
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


def step_data(step: AgentStep) -> dict[str, Any]:
    """Return a step as JSON data, without its vector."""
    return step.model_dump(mode="json", exclude={"vector"})


def _view(step: AgentStep) -> StepView:
    return step_view(step_data(step))


_KEPT_UNPRINTABLE = {"\n", "\t", "\u200d"}
_PIPE_WIDTH = 120


class PipeConsole(Console):
    """A console that lets its caller know when the reader of a pipe has gone."""

    def on_broken_pipe(self) -> None:
        """Raise, where rich would end the process with an error code."""
        raise BrokenPipeError


def plain(text: object) -> str:
    """Return text without what would act on a terminal: controls, escapes, direction marks."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in _KEPT_UNPRINTABLE else "\ufffd" for c in shown)


def console() -> Console:
    """Return a console on standard output: as wide as the terminal, 120 columns in a pipe."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return PipeConsole(highlight=False, markup=False, emoji=False, width=_asked_width() or width)


def print_json(value: object) -> None:
    """Print a value as JSON, indented, as it is."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with a header and thin rules; columns in `right` hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False, header_style="bold dim")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    return made


def styled(*parts: tuple[object, str]) -> Text:
    """Return parts of text, each in its style, harmless to a terminal."""
    return Text.assemble(*[(plain(text), style) for text, style in parts])


@contextmanager
def progress(label: str) -> Generator[Callable[[int, int], None]]:
    """Give a function to call with (done, total); it draws a bar when somebody watches."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    watcher = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=watcher, disable=not watcher.is_terminal) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=max(total, 1))


def _asked_width() -> int | None:
    """Return the width that the variable COLUMNS asks for."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdigit() and int(asked) >= 40 else None
