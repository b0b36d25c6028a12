"""Commands that keep a memory in order: what it holds, whether it holds together, what to drop."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridagi_steps.cli.options import (
    DEFAULT_DB,
    AsJson,
    Background,
    Db,
    Namespace,
    check_there,
    existing,
    handed_out,
    named,
    print_json,
    with_filter,
)

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.filters import StepFilter
    from hybridagi_steps.records.provenance import Revocation
    from hybridagi_steps.records.store_values import Erased

_MOST_NAMED = 5
_WATCH_SECONDS = 0.5


def stats(db: Db = DEFAULT_DB, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Say what a memory holds."""
    with existing(db, namespace) as memory:
        found = memory.stats()
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    from hybridagi_steps.cli import render

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
        print_json({"steps": steps, "problems": problems})
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
    background: Background = False,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
) -> None:
    """Embed every step anew, with this embedder."""
    from hybridagi_steps.cli import render

    if background:
        with existing(db, namespace) as memory:
            handed_out(memory, "reembed", embedder=embedder)
        return
    with existing(db, namespace) as memory, render.progress("embedding") as watch:
        memory.reembed(embedder, watch)
        after = memory.stats()
    typer.echo(f"{after['steps']:,} steps embedded with {after['embedder']}.")


def jobs(
    cancel: Annotated[
        str | None, typer.Option("--cancel", help="Stop this job after its batch.", metavar="ID")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Let this job go on.", metavar="ID")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Until none waits or runs.")] = False,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List long work that was handed out, with how far it is; stop it, or let it go on."""
    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory:
        if cancel is None and resume is None and _none_handed_out(memory):
            print_json([]) if as_json else render.console().print(render.jobs_table([]))
            return
        from rich.live import Live

        from hybridagi_steps.durable.session_runs import DurableRunner

        with DurableRunner(memory=memory) as durable:
            for asked, do in ((cancel, durable.jobs.cancel), (resume, durable.jobs.resume)):
                if asked is not None and not do(asked):
                    was = durable.jobs.get(asked).status
                    raise typer.BadParameter(f"job {asked} is {was}: nothing changed.")
            found = durable.jobs.list()
            if as_json:
                print_json([asdict(job) for job in found])
                return
            if not watch:
                render.console().print(render.jobs_table(found))
                return
            with Live(render.jobs_table(found), console=render.console()) as shown:
                while any(job.status in ("waiting", "running") for job in found):
                    time.sleep(_WATCH_SECONDS)
                    shown.update(render.jobs_table(found := durable.jobs.list()))


def _none_handed_out(memory: StepMemory) -> bool:
    """Whether a queue in a file has no job: to load what could say more takes a second."""
    from hybridagi_steps.outside_files import queue_of_jobs, queues_of
    from hybridagi_steps.stores.address import is_server

    if is_server(memory.whole_address):
        return False
    with suppress(sqlite3.Error):  # else who opens it says what is wrong
        found = queues_of(Path(f"{memory.whole_address}.runs").absolute())
        return queue_of_jobs(memory.namespace) not in {name for name, *_ in found}
    return False


def vacuum(db: Db = DEFAULT_DB, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Give the space of deleted steps back."""
    with existing(db, namespace) as memory:
        before = memory.stats()["bytes"]
        memory.vacuum()
        after = memory.stats()["bytes"]
    if as_json:
        print_json({"bytes_before": before, "bytes": after})
        return
    typer.echo(f"{named(db)}: {before:,} bytes before, {after:,} now.")


def backup(
    target: Annotated[Path, typer.Argument(help="A file that is not there yet.")],
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
) -> None:
    """Write a memory's file into a new one, while others write; to restore, put it back."""
    with existing(db, None) as memory:
        size = memory.backup(target)
    if as_json:
        print_json({"path": str(target), "bytes": size})
        return
    typer.echo(f"{target}: {size:,} bytes, all namespaces of {named(db)}.")


def copy(
    source: Annotated[str, typer.Argument(help="A memory: a file, or postgresql://…")],
    target: Annotated[str, typer.Argument(help="Where to: a file, or postgresql://…")],
    move: Annotated[
        bool, typer.Option("--move", help="Erase the old place then, if nobody wrote to it.")
    ] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Copy a memory, as it is now, into an empty one at another address."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.stores import refuse_older
    from hybridagi_steps.stores.placement import placed

    check_there(source, namespace)
    refuse_older(placed(source)[0])
    with existing(source, namespace) as memory, render.progress("copying") as watch:
        report = (memory.move_to if move else memory.copy_to)(target, watch)
    if as_json:
        print_json(asdict(report))
        return
    typer.echo(
        f"{report.steps:,} steps, {report.messages:,} messages and {report.sessions:,} sessions of "
        f"{named(source)} are in {named(target)}, as of {report.as_of:%H:%M:%S} UTC; "
        "counts and sums are equal."
    )
    for place in report.unreached:
        typer.echo(
            render.one_line(f"not reached, and may still hold some of it: {place}"), err=True
        )
    if report.others:
        others = ", ".join(report.others)
        typer.echo(render.one_line(f"other namespaces there, not copied: {others}"), err=True)


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

    if where.picks_nothing:
        raise typer.BadParameter("purge needs a filter: --run, --session, --user, --until, …")
    with existing(db, namespace) as memory:
        if not yes:
            store = memory.repository().store
            count = sum(1 for each in meant_by(store, where) for _ in store.iter_steps(each))
            sessions = len(doomed_by(store, where).sessions)
            _confirm(count, sessions, named(db))
        erased = memory.purge(where)
    if as_json:
        print_json({"erased": int(erased), **vars(erased)})
        return
    found = "" if erased else "nothing matched (runs in queues are not counted): "
    typer.echo(f"{found}{int(erased):,} steps and messages erased from {named(db)}.")
    for place in erased.unreached:
        typer.echo(
            render.one_line(f"not reached, and may still hold some of it: {place}"), err=True
        )
    if erased.messages_left:
        typer.echo(render.one_line(_stays(erased)), err=True)


def _stays(erased: Erased) -> str:
    sessions = ", ".join(erased.sessions_left[:_MOST_NAMED])
    rest = len(erased.sessions_left) - _MOST_NAMED
    return (
        f"{erased.messages_left:,} matching messages stay in the sessions {sessions}"
        f"{f' and {rest:,} more' if rest > 0 else ''}: "
        "purge --session ID erases one whole, revoke with the same filter hides them."
    )


def _confirm(count: int, sessions: int, db: str) -> None:
    import sys

    what = f"{count:,} steps" + (f" and all messages of {sessions:,} sessions" if sessions else "")
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{what} would be erased from {db}; say --yes to do it.")
    typer.confirm(f"Erase {what} from {db} for good?", abort=True)


@with_filter
def retain(
    where: StepFilter,
    days: Annotated[float, typer.Option("--days", help="How much is kept; 0.5 is half a day.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Remove what is older than so many days, sessions and runs as wholes, without asking."""
    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory, render.progress("removing") as watch:
        done = memory.retain(days, where, dry_run=dry_run, progress=watch)
    if as_json:
        print_json({**asdict(done), "before": done.before.isoformat()})
    else:
        typer.echo(f"{named(db)}: {done}.")


@with_filter
def revoke(
    where: StepFilter,
    undo: Annotated[
        str | None, typer.Option("--undo", help="Take this revocation back.", metavar="ID")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List what was revoked.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, for the list.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is hit.")] = False,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Hide what a filter names, and all that descends from it, from every search."""
    filtered = bool(where.model_dump(exclude_none=True))
    if (undo is not None) + listed + filtered != 1:
        raise typer.BadParameter("give a filter (--source, --run, --user, …), --undo ID or --list.")
    with existing(db, namespace) as memory:
        if listed:
            _show(memory.revocations(), as_json=as_json)
            return
        known = {each.id: each for each in memory.revocations()}
        if undo is not None and undo not in known:
            raise typer.BadParameter(f"no revocation has the id {undo!r}; --list lists them.")
        before = {name for name, each in known.items() if each.undone_at is not None}
        done = (
            memory.revoke(where, reason=reason, dry_run=dry_run)
            if undo is None
            else memory.reinstate(undo)
        )
    if as_json:
        _show([done], as_json=True)
    elif undo in before:
        typer.echo(f"{undo} was undone before, {done.undone_at:%Y-%m-%d %H:%M}: nothing changed.")
    else:
        typer.echo(_outcome(done, named(db), dry_run=dry_run))


def grant(
    role: Annotated[str, typer.Argument(help="A role of the database.")],
    rights: Annotated[
        str, typer.Option("--rights", help="reader, writer (removes nothing), server, or none.")
    ],
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
) -> None:
    """Bind a PostgreSQL role to a namespace; as the owner of the tables."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.stores.placement import placed
    from hybridagi_steps.stores.postgres import roles

    db, namespace = placed(db, namespace)
    roles.grant(db, role, roles.as_rights(rights), namespace=namespace)
    does = "sees nothing of" if rights == "none" else f"is {rights} of"
    typer.echo(render.one_line(f"{role} {does} namespace {namespace} in {named(db)}."))


def _outcome(done: Revocation, db: str, *, dry_run: bool) -> str:
    if done.undone_at is not None:
        rest = done.matched + done.descended - len(done.step_ids)
        left = f"; {rest:,} stay hidden by another revocation, or were deleted" if rest else ""
        back = f"{len(done.step_ids):,} steps{_messages(len(done.message_ids))}"
        return f"{back} are back in {db}{left}."
    what = f"{done.matched:,} steps and {done.descended:,} that descend from them"
    what += _messages(done.messages)
    if dry_run:
        return f"{what} would be hidden in {db}."
    if done.id is None:
        return f"nothing matched: no step and no message is hidden in {db}."
    return f"{what} are hidden in {db}; --undo {done.id} takes it back."


def _messages(count: int) -> str:
    return f", and {count:,} messages of sessions," if count else ""


def _show(found: list[Revocation], *, as_json: bool) -> None:
    from hybridagi_steps.cli import render

    if as_json:
        print_json([_json_data(each) for each in found])
        return
    if not found:
        typer.echo("nothing was revoked.")
        return
    table = render.table(
        *("revoked", "when", "steps", "messages", "undone"), right=("steps", "messages")
    )
    table.columns[0].min_width = max(len(each.id or "") for each in found)
    for each in found:
        undone = "" if each.undone_at is None else f"{each.undone_at:%Y-%m-%d %H:%M}"
        conditions = render.one_line(
            ", ".join(f"{key}={value}" for key, value in each.where.items())
        )
        told = "\n".join(filter(None, (each.reason, render.one_line(conditions), each.id)))
        counts = f"{each.matched:,} + {each.descended:,}"
        when = f"{each.created_at:%Y-%m-%d %H:%M}"
        table.add_row(*map(render.plain, (told, when, counts, f"{each.messages:,}", undone)))
    render.console().print(table)


def _json_data(revocation: Revocation) -> dict[str, Any]:
    """Return a revocation as JSON, times as ISO texts."""
    values = asdict(revocation)
    for name in ("created_at", "undone_at"):
        values[name] = None if values[name] is None else values[name].isoformat()
    return values
