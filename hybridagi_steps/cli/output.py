"""How commands speak: tables for people, JSON for programs, progress for those who watch.

Text from a memory may hold anything, terminal escapes included, so everything printed for people
passes through `plain`. Tables fit the terminal, from 80 columns up; progress goes to standard
error and only to a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def print_json(value: Any) -> None:
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
