"""Steps, hits and runs as tables and trees for a terminal, readable from 80 columns up."""

from __future__ import annotations

import codecs
import json
import shutil
import sys
from collections.abc import Hashable, Mapping, Sequence
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from hybridagi_steps.display.view import (
    StepView,
    call_view,
    hit_view,
    run_view,
    session_holds,
    step_view,
    tree_view,
)

Data = Mapping[str, Any]
"""A step, hit or run as plain data."""

_COLOURS = {"action": "blue", "decision": "magenta", "call": "green", "end": "green"}
_STATUS_COLOURS = {
    "running": "blue",
    "failed": "red",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "paused": "yellow",
}
_BAR = 8
_MOST_KIN = 20
_MOST_IN_TREE = 1_000
_USUAL_WIDTH = 120


def hits_table(hits: Sequence[Data]) -> Table:
    """Return search hits as a table: rank, score, what was done, why, what came of it."""
    made = table("#", "score", "step", right=("#",))
    made.columns[2].ratio = 1
    made.expand = True
    for rank, hit in enumerate(hits, start=1):
        view = hit_view(rank, hit)
        # Wrapped, not cut: the next command asks for it.
        shown_id = (f"  {one_line(view.step.id)}", "dim")
        body = [_headline(view.step, shown_id), *_below(view.step)]
        if hit.get("sequence") is not None:
            place = _place(hit["session_id"], hit["sequence"], shown_id)
            body = [_headline(view.step), *_below(view.step), place]
        if view.why:
            body.append(_cut(styled((view.why, "dim italic"))))
        body += [_cut(styled(("  ↳ ", "dim"), *_short(step))) for step in view.context]
        made.add_row(str(rank), _bar(hit["score"]), Group(*body))
    return made


def runs_table(runs: Sequence[Data]) -> Table:
    """Return runs as a table: what each was asked, above its id; its costs where they are given."""
    costs = ("tokens", "cost") if runs and "tokens" in runs[0] else ()
    right = ("steps", "tokens", "cost")
    made = _wide(table("run", "started", "status", "steps", "score", *costs, right=right))
    for run in runs:
        score, view = run["score"], run_view(run)
        made.add_row(
            Group(
                _cut(styled((one_line(run["title"]), ""))),
                styled((one_line(run["run_id"]), "dim")),
            ),
            plain(run["started_at"])[5:16].replace("T", " "),
            styled(
                (run["status"], _STATUS_COLOURS.get(run["status"], "")),
                (" " + view["errors"], "yellow"),
            ),
            f"{run['steps']:,}",
            "" if score is None else f"{score:.2g}",
            *(_cost(run.get(name)) for name in costs),
        )
    return made


def _wide(made: Table) -> Table:
    """Let the first column of a table take the room that the next two leave."""
    made.expand = True
    made.columns[0].ratio = 1
    made.columns[1].no_wrap = made.columns[2].no_wrap = True
    return made


def _cost(value: object) -> str:
    """Return what a run took as it stands in its column: a word, a count or dollars."""
    if isinstance(value, float):
        return f"${value:.4f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else plain(value)


def sessions_table(sessions: Sequence[Data]) -> Table:
    """Return sessions as a table: what each is called, or how it begins, above its id."""
    made = _wide(table("session", "written", "holds"))
    for session in sessions:
        origin = session["forked_from"]
        fork = f"  fork of {one_line(origin)} at {session['forked_at']}" if origin else ""
        made.add_row(
            Group(
                _cut(styled((one_line(session["title"] or session["first_message"]), ""))),
                styled((one_line(session["session_id"]), "dim"), (fork, "dim")),
            ),
            plain(session["updated_at"])[5:16].replace("T", " "),
            session_holds(session),
        )
    return made


def rows_table(rows: Sequence[Sequence[object]], *, whole: str) -> Table:
    """Return rows as a table, the first one its head; all but one column is cut to what fits.

    Blanks before a text indent it.
    """
    made = table(*map(str, rows[0]))
    made.padding = (0, 1, 0, 0)
    for column in made.columns:
        column.no_wrap = column.header == whole
    for row in rows[1:]:
        texts = [str(cell) for cell in row]
        indents = [text[: len(text) - len(text.lstrip(" "))] for text in texts]
        lines = [" ".join(text.split()) for text in texts]
        made.add_row(*(_cut(styled((f"{a}{b}", ""))) for a, b in zip(indents, lines, strict=True)))
    return made


def depth_first(names: Sequence[Hashable], parents: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the positions of a forest's nodes, each after its parent, and how deep they stand.

    Those whose parent is no node are roots; siblings stay in order.
    """
    below: dict[Hashable, list[int]] = {}
    for n, parent in enumerate(parents):
        below.setdefault(parent, []).append(n)
    known, found = set(names), list[tuple[int, int]]()
    waiting = [(n, 0) for n, parent in reversed([*enumerate(parents)]) if parent not in known]
    while waiting:
        n, depth = waiting.pop()
        found.append((n, depth))
        waiting += [(child, depth + 1) for child in reversed(below.get(names[n], ()))]
    return found


def run_tree(steps: Sequence[Data]) -> RenderableType:
    """Return steps as a tree, what a program did inside the program; of one run with its id."""
    count = f"{len(steps):,} step{'' if len(steps) == 1 else 's'}"
    runs = {step.get("run_id") for step in steps}
    run_id = runs.pop() if len(runs) == 1 else None
    more = f"  {count}" if run_id else ""
    tree = Tree(styled((f"run {one_line(run_id)}" if run_id else count, "bold"), (more, "dim")))
    _grow(tree, tree_view(steps[:_MOST_IN_TREE]))
    if (hidden := len(steps) - _MOST_IN_TREE) > 0:
        tree.add(styled((f"… and {hidden:,} more; --json shows all", "dim")))
    return tree


def step_page(
    step: Data,
    parents: Sequence[Data],
    children: Sequence[Data],
    place: tuple[str | None, int] | None = None,
) -> RenderableType:
    """Return everything about one step: what led to it, what it was, what followed.

    A message is told as a step, with its place.
    """
    view = step_view(step)
    parts: list[RenderableType] = [_headline(view)]
    if place is not None:
        parts.append(_place(*place))
    parts += [*_kin("after", parents), *_kin("before", children)]
    for name, text in view.sections:
        parts += [styled(("\n" + name, "dim bold")), Padding(Text(plain(text)), (0, 0, 0, 2))]
    return Group(*parts)


def prompt_page(calls: Sequence[Data], *, whole: bool = True) -> RenderableType:
    """Return what a model saw, call by call, and what came back; or only how much that was."""
    parts: list[RenderableType] = []
    for call in calls:
        title, messages, tools = call_view(call)
        parts.append(styled(("\nwhat the model saw", "dim bold"), (f"  {title}", "dim")))
        if tools:
            parts.append(styled((f"  tools: {tools}", "dim")))
        if not whole:
            size = sum(len(str(message["content"])) for message in messages)
            known = f"  {len(messages):,} messages, {size:,} characters; --prompt shows them"
            parts.append(styled((known, "dim")))
            continue
        for message in messages:
            parts.append(styled((f"  {message['role']}", "bold")))
            parts.append(Padding(Text(plain(message["content"])), (0, 0, 0, 4)))
    return Group(*parts)


def _place(session_id: str | None, sequence: int, *more: tuple[object, str]) -> Text:
    """Say where a message stands; a narrow terminal wraps it, for all of it may be copied."""
    return styled((f"message {sequence:,} of session {one_line(session_id)}", "cyan"), *more)


def _kin(label: str, steps: Sequence[Data]) -> list[Text]:
    rows: list[Text] = []
    for step in steps[:_MOST_KIN]:
        view = step_view(step)
        rows.append(_cut(styled((f"  {label} {one_line(view.id)}  ", "dim"), *_short(view))))
    if (hidden := len(steps) - _MOST_KIN) > 0:
        rows.append(styled((f"  and {hidden:,} more", "dim")))
    return rows


def _grow(tree: Tree, views: Sequence[StepView]) -> None:
    for view in views:
        _grow(tree.add(_cut(styled(*_head(view), *_told(view)))), view.children)


def _headline(view: StepView, *more: tuple[object, str]) -> Text:
    facts = " · ".join(view.facts)
    line = styled(*_head(view), (f"  {facts}" if facts else "", "dim"), *more)
    return line if more else _cut(line)


def _below(view: StepView) -> list[Text]:
    found: list[Text] = []
    if view.about:
        found.append(_cut(styled((view.about, ""))))
    if view.outcome:
        found.append(_cut(styled(("→ ", "dim"), (view.outcome, ""))))
    return found


def _told(view: StepView) -> list[tuple[object, str]]:
    """Return what a step was about and what came of it, behind its title."""
    about = [(f"  {view.about}", "")] if view.about else []
    return [*about, *([(f"  → {view.outcome}", "dim")] if view.outcome else [])]


def _head(view: StepView) -> list[tuple[object, str]]:
    parts: list[tuple[object, str]] = [(f"{view.hop} ", "dim")] if view.hop else []
    parts += [(view.kind, _COLOURS.get(view.style, "")), (f" {view.title}", "bold")]
    if view.status:
        parts.append((f" {view.status}", "bold red"))
    if view.after:
        parts.append((f" ({view.after})", "dim"))
    return parts


def _short(view: StepView) -> list[tuple[object, str]]:
    return [(f"{view.hop} ", "dim"), (view.title, ""), *_told(view)]


def _bar(score: float) -> Text:
    filled = round(_BAR * min(1.0, max(0.0, score)))
    return styled((f"{score:.3f} ", ""), ("━" * filled, "blue"), ("─" * (_BAR - filled), "dim"))


def _cut(text: Text) -> Text:
    """Keep a text on one line: what does not fit is cut with a mark."""
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


ASCII_FALLBACK = "hybridagi_steps_ascii"
"""The name of `ascii_fallback` among the error handlers of codecs."""
_IN_ASCII = str.maketrans("─━│┃├└┌┐╰╭↳→▸›·…–—✓✗↻■“”‘’", "--||++++++>>>>*~--+x@#\"\"''")


def ascii_fallback(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding has no letter for: lines and marks by ASCII, the rest by escapes.

    Every drawn mark becomes one character, so that columns stay where they are.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_IN_ASCII)
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text), error.end


codecs.register_error(ASCII_FALLBACK, ascii_fallback)


def printable(text: str) -> str:
    """Return text that standard output can encode: the same, where that has all its letters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, ASCII_FALLBACK).decode(encoding)


_KEPT_UNPRINTABLE = {"\n", "\t", "\u200d"}


def plain(text: object) -> str:
    """Return text without what would act on a terminal: controls, escapes, direction marks."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in _KEPT_UNPRINTABLE else "\ufffd" for c in shown)


def one_line(text: object) -> str:
    """Return a name on one line: as Python writes it where it cannot be seen, so that none is lost.

    An id is printed to be typed again; one with a line break must not seem to be two.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with a header and thin rules; columns in `right` hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False, header_style="bold dim")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    return made


def styled(*parts: tuple[object, str]) -> Text:
    """Return parts of text, each in its style, harmless to a terminal."""
    return Text.assemble(*[(plain(text), style) for text, style in parts])


def as_text(shown: RenderableType) -> str:
    """Return a table or tree as plain text for standard output, as wide as the terminal.

    In a notebook, too.
    """
    out = StringIO()
    screen = Console(
        file=out,
        width=shutil.get_terminal_size((_USUAL_WIDTH, 24)).columns,
        color_system=None,
        force_jupyter=False,  # it would draw there, and return nothing
        highlight=False,
        markup=False,
        emoji=False,
    )
    screen.print(shown)
    lines = (line.rstrip() for line in out.getvalue().splitlines())
    return printable("\n".join(lines).strip("\n"))
