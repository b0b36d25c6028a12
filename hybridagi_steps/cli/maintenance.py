"""Commands that keep a memory in order: what it holds, whether it holds together, what to drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hybridagi_steps.cli.options import (
    DEFAULT_DB,
    AsJson,
    Db,
    Namespace,
    existing,
    named,
    with_filter,
)

if TYPE_CHECKING:
    from hybridagi_steps.records.filters import StepFilter


def stats(db: Db = DEFAULT_DB, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Say what a memory holds."""
    from rich.table import Table

    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory:
        found = memory.stats()
    if as_json:
        render.print_json(found)
        return
    shown = Table.grid(padding=(0, 2))
    for key, value in found.items():
        number = f"{value:,}" if isinstance(value, int) else value
        shown.add_row(render.styled((key.replace("_", " "), "dim")), render.plain(number))
    render.console().print(shown)


def verify(db: Db = DEFAULT_DB, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Check that a memory holds together (else exit code 1)."""
    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory:
        problems = memory.verify()
        steps = memory.stats()["steps"]
    if as_json:
        render.print_json({"steps": steps, "problems": problems})
    else:
        for problem in problems:
            typer.echo(render.plain(problem))
        if not problems:
            typer.echo(f"all well: {steps:,} steps in {named(db)} hold together.")
    if problems:
        raise typer.Exit(1)


def reembed(
    embedder: Annotated[
        str,
        typer.Argument(help="auto, wordllama, hashing, or sentence-transformers with its model."),
    ] = "auto",
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
) -> None:
    """Embed every step anew, with this embedder."""
    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory, render.progress("embedding") as watch:
        memory.reembed(embedder, watch)
        after = memory.stats()
    typer.echo(f"{after['steps']:,} steps embedded with {after['embedder']}.")


def vacuum(db: Db = DEFAULT_DB, namespace: Namespace = "default") -> None:
    """Give the space of deleted steps back."""
    with existing(db, namespace) as memory:
        before = memory.stats()["bytes"]
        memory.vacuum()
        after = memory.stats()["bytes"]
    typer.echo(f"{named(db)}: {before:,} bytes before, {after:,} now.")


@with_filter
def purge(
    where: StepFilter,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Erase what a filter names, for good; of --session or --user alone the messages, too."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.erasure import doomed_by, meant_by

    if where.passes_everything:
        raise typer.BadParameter("purge needs a filter: --run, --session, --user, --until, …")
    with existing(db, namespace) as memory:
        if not yes:
            store = memory.repository().store
            count = sum(1 for each in meant_by(store, where) for _ in memory.iter_steps(each))
            sessions = len(doomed_by(store, where).sessions)
            _confirm(count, sessions, named(db))
        erased = memory.purge(where)
    if as_json:
        render.print_json({"erased": int(erased), "unreached": list(erased.unreached)})
        return
    found = "" if erased else "nothing matched: "
    typer.echo(f"{found}{int(erased):,} steps and messages erased from {named(db)}.")
    for place in erased.unreached:
        typer.echo(render.plain(f"not reached, and may still hold some of it: {place}"), err=True)


def _confirm(count: int, sessions: int, db: str) -> None:
    import sys

    what = f"{count:,} steps" + (f" and all messages of {sessions:,} sessions" if sessions else "")
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{what} would be erased from {db}; say --yes to do it.")
    typer.confirm(f"Erase {what} from {db} for good?", abort=True)
