"""The console: output for people and for programs, with progress where somebody watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from hybridagi_steps.cli.options import step_data
from hybridagi_steps.display import terminal
from hybridagi_steps.display.terminal import one_line, plain, table
from hybridagi_steps.display.terminal import styled as styled

if TYPE_CHECKING:
    from hybridagi_steps.durable.bulk_jobs import BulkJob
    from hybridagi_steps.records.agent_step import AgentStep
    from hybridagi_steps.records.filters import StepHit
    from hybridagi_steps.records.prompts import LMCall
    from hybridagi_steps.records.store_values import MessagePlace

_PIPE_WIDTH = 120


def hits_table(hits: Iterable[StepHit]) -> Table:
    """Return search hits as a table."""
    return terminal.hits_table([hit.shown() for hit in hits])


def run_tree(steps: Iterable[AgentStep]) -> RenderableType:
    """Return the steps of a run as a tree."""
    return terminal.run_tree([step_data(step) for step in steps])


def step_page(
    step: AgentStep,
    parents: Iterable[AgentStep],
    children: Iterable[AgentStep],
    place: MessagePlace | None = None,
    calls: Sequence[LMCall] = (),
    *,
    whole: bool = False,
) -> RenderableType:
    """Return everything about one step, or a message told as one, with its place.

    `calls` are what the model saw, if that was kept; they are shown as a `whole`, or in short.
    """
    kin = [[step_data(each) for each in some] for some in (parents, children)]
    page = terminal.step_page(step_data(step), *kin, place=place)
    asked = [call.model_dump(mode="json", exclude_none=True) for call in calls]
    return Group(page, terminal.prompt_page(asked, whole=whole)) if asked else page


def jobs_table(jobs: Iterable[BulkJob]) -> Table:
    """Return bulk jobs as a table, with a bar each."""
    shown = table("job", "kind", "", "done", right=("done",))
    for job in jobs:
        bar = ProgressBar(max(job.total, 1), job.done, width=24)
        status = job.status if job.error is None else f"failed: {job.error}"
        done = f"{job.done:,} of {job.total:,}" if job.total else ""
        shown.add_row(job.id, one_line(job.kind), Group(plain(status), bar), done)
    return shown


class PipeConsole(Console):
    """A console that lets its caller know when the reader of a pipe has gone."""

    def on_broken_pipe(self) -> None:
        """Raise, where rich would end the process with an error code."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console on standard output: as wide as the terminal, 120 columns in a pipe."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return PipeConsole(highlight=False, markup=False, emoji=False, width=_asked_width() or width)


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
