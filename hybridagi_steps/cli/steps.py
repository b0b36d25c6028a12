"""Commands that find and show steps. None of them changes a memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridagi_steps.cli.options import (
    DEFAULT_DB,
    AsJson,
    Db,
    Namespace,
    existing,
    print_json,
    step_data,
    with_filter,
)

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.filters import StepFilter, StepHit

_MANY = 2_000
"""Pending texts and vectors that take longer than people wait without a sign."""


@with_filter
def search(
    where: StepFilter,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to look for.")] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", help="Find steps like this step or message.", metavar="ID"),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Most hits wanted.")] = 5,
    mode: Annotated[str, typer.Option("--mode", help="hybrid, dense or lexical.")] = "hybrid",
    aim: Annotated[
        str | None,
        typer.Option(
            "--aim",
            help="What it is for: next (after a step like --like), episode (the run that did this) "
            "or tool (which can do this).",
        ),
    ] = None,
    expand: Annotated[
        str | None, typer.Option("--expand", help="Show parents, following or program too.")
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Least score of a hit, 0 to 1.")
    ] = None,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Find steps by meaning and words, or by likeness."""
    if min_score is not None and not 0 <= min_score <= 1:
        raise typer.BadParameter(f"--min-score is a number from 0 to 1, not {min_score}.")
    if (text is None) == (like is None):
        raise typer.BadParameter("say what to look for: either TEXT or --like ID.")
    if aim == "next" and like is None:
        raise typer.BadParameter("--aim next asks what followed a step: name it with --like ID.")
    options: dict[str, Any] = {"where": where, "mode": mode, "expand": expand}
    options |= {"min_score": min_score, "aim": aim}
    with existing(db, namespace) as memory:
        hits = _found(memory, text, like, k, options)
    _print_hits(hits, as_json=as_json)


def show(
    step_id: Annotated[
        str, typer.Argument(metavar="ID", help="A step, message or run, or its first 6 characters.")
    ],
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Show all that the model saw, where that was kept.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a step or a session's message with its kin, or a run as a tree."""
    from hybridagi_steps.cli.finding import find, lineage
    from hybridagi_steps.server.views import prompt_for

    with existing(db, namespace) as memory:
        found = find(memory, step_id)
        if isinstance(found, list):
            if as_json:
                print_json([step_data(step) for step in found])
                return
            from hybridagi_steps.cli import render

            render.console().print(render.run_tree(found))
            return
        parents, children = lineage(memory, found)
        calls = prompt_for(memory, str(found.step.id))
    if as_json:
        place = {} if found.place is None else {"kind": "message", **found.place._asdict()}
        print_json(
            {
                "step": step_data(found.step),
                "parents": [step_data(step) for step in parents],
                "children": [step_data(step) for step in children],
                "prompt": [call.model_dump(mode="json", exclude_none=True) for call in calls],
                **place,
            }
        )
        return
    from hybridagi_steps.cli import render

    page = render.step_page(found.step, parents, children, found.place, calls, whole=prompt)
    render.console().print(page)


def runs(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most runs shown.")] = 20,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Runs passed over.")] = 0,
    scope: Annotated[
        str | None,
        typer.Option("--scope", help="Trials of a scope, such as compile:…; * for all runs."),
    ] = None,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List runs, newest first, without trials: what each was asked, how it ended, what it took."""
    with existing(db, namespace) as memory:
        found = memory.runs(limit=limit, offset=offset, scope=scope)
        told = [run._asdict() | {"tokens": run.tokens, "cost": run.cost} for run in found]
    if as_json:
        print_json(told)
    elif not found:
        typer.echo("no runs.")
    else:
        from hybridagi_steps.cli import render
        from hybridagi_steps.display.terminal import runs_table

        render.console().print(runs_table(told))
        if found.next_offset is not None:
            typer.echo(f"{len(found):,} runs; --offset {found.next_offset} shows more.")


def _found(
    memory: StepMemory, text: str | None, like: str | None, k: int, options: dict[str, Any]
) -> list[StepHit]:
    if options["mode"] != "lexical":
        _index_watched(memory)
    if like is not None:
        from hybridagi_steps.cli.finding import steps_like

        return steps_like(memory, like, k, **options)
    return memory.search(text or "", k, **options)


def _index_watched(memory: StepMemory) -> None:
    """Index with a progress bar what the search would otherwise be silent about for long."""
    counts = memory.stats()
    if counts["pending_texts"] + counts["pending_vectors"] < _MANY:
        return
    from hybridagi_steps.cli import render
    from hybridagi_steps.errors import DiskFullError, ReadOnlyStorageError

    # Where nothing can be saved the search itself does without, and says so.
    with suppress(ReadOnlyStorageError, DiskFullError), render.progress("indexing") as watch:
        memory.flush(watch)


def _print_hits(hits: list[StepHit], *, as_json: bool) -> None:
    if as_json:
        left_out = {"step": {"vector"}, "context": {"__all__": {"vector"}}}
        print_json([hit.model_dump(mode="json", exclude=left_out) for hit in hits])
    elif hits:
        from hybridagi_steps.cli import render

        render.console().print(render.hits_table(hits))
    else:
        typer.echo("no steps found.")
