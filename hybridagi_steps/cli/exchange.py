"""Commands that move steps between files and a memory."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridagi_steps.cli.options import (
    DEFAULT_DB,
    AsJson,
    Background,
    Db,
    Namespace,
    Redact,
    existing,
    handed_out,
    named,
    opened,
    print_json,
    with_filter,
)

if TYPE_CHECKING:
    from hybridagi_steps.exchange import ImportReport
    from hybridagi_steps.records.filters import StepFilter

Salvage = Annotated[
    bool,
    typer.Option(
        "--salvage",
        help="Write all that is whole of a damaged file, and name the rest; exit code 1 when "
        "something is not whole.",
    ),
]
NAMED = 10
"""Skipped records shown; --json shows more."""
NOTHING_UNDERSTOOD = 3
"""Exit code: all was stored as data, and not one step says anything."""


def import_steps(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSON, JSONL or Parquet file.")],
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            help="auto (told by the content), jsonl (own), parquet (own), anthropic, autogen, "
            "batch_output, chatgpt, claude_ai, claude_code, codex, dspy, gemini, inspect, "
            "langchain, langfuse, langgraph, langsmith, letta, mlflow, openai, openai_agents, "
            "openhands, otlp, pydantic_ai, sharegpt, swe_agent, tau_bench or toolbench.",
        ),
    ] = "auto",
    session: Annotated[
        str | None, typer.Option("--session", help="Session of steps that name none.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="User of steps that name none.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 when a record or a file was skipped.")
    ] = False,
    background: Background = False,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """Store the steps of a file; twice is harmless."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.errors import ExchangeError
    from hybridagi_steps.exchange import check_file, import_file

    check_file(file)  # what cannot be read must not leave an empty memory behind
    if background:
        how = {"format": format_name, "session_id": session, "user_id": user}
        with opened(db, namespace) as memory:
            handed_out(memory, "import", path=str(file.resolve()), **how)
        return
    with opened(db, namespace, redact) as memory, render.progress("importing") as watch:
        report = import_file(
            memory, file, format=format_name, session_id=session, user_id=user, progress=watch
        )
    _index(db, namespace)
    is_refused = report.skipped_count == report.read
    if as_json:
        print_json(report._asdict())
    else:
        _print_report(report, named(db), is_refused=is_refused)
    if is_refused and report.read:
        raise ExchangeError(f"{file}: not one of {report.read:,} records could be imported.")
    if is_refused:
        kind = "" if format_name == "auto" else f" of the format {format_name}"
        raise ExchangeError(f"{file}: no record{kind} was found in it.")
    if report.added and not report.understood:
        raise typer.Exit(NOTHING_UNDERSTOOD)
    if strict and (report.skipped_count or report.broken_files):
        raise typer.Exit(1)


def _print_report(report: ImportReport, target: str, *, is_refused: bool) -> None:
    """Print what an import did, and why records were skipped."""
    from hybridagi_steps.cli import render

    already = f", {report.already_there:,} were there already" if report.already_there else ""
    typer.echo(f"{report.added:,} steps added to {target}{already}.")
    for note in report.notes:
        typer.echo(f"  {render.plain(note)}", err=True)
    skipped = report.skipped
    if is_refused:  # one reason for all lines is said once
        skipped = [next(lines) for _, lines in groupby(skipped, itemgetter(1))]
    for line, reason in skipped[:NAMED]:
        typer.echo(f"  line {line} skipped: {render.plain(reason)}", err=True)
    if (hidden := report.skipped_count - len(skipped[:NAMED])) > 0:
        typer.echo(f"  and {hidden:,} more records skipped", err=True)


def _index(db: str, namespace: str) -> None:
    """Make the first search quick; steps that cannot be embedded now will be when searched."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.errors import EmbedderError

    try:
        with existing(db, namespace) as memory, render.progress("indexing") as watch:
            memory.flush(watch)
    except EmbedderError as error:
        typer.echo(f"imported, not indexed yet: {error}", err=True)


@with_filter
def export_steps(
    where: StepFilter,
    file: Annotated[str, typer.Argument(metavar="FILE", help="- is standard output.")] = "-",
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            help="jsonl (whole steps), parquet (the same, in columns), otlp (OpenTelemetry spans), "
            "openai (fine-tuning examples, of what recall shows); auto: by the file's name, else "
            "jsonl.",
        ),
    ] = "auto",
    vectors: Annotated[bool, typer.Option("--vectors", help="Write embeddings too.")] = False,
    salvage: Salvage = False,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
) -> None:
    """Write steps to a file, by default all of them as JSONL."""
    if salvage:
        filtered = bool(where.model_dump(exclude_none=True))
        if vectors or format_name not in ("auto", "jsonl") or filtered:
            raise typer.BadParameter(
                "--salvage writes everything that is whole, as jsonl; choose among it on import."
            )
        _salvage(file, db, namespace)
    else:
        _export(file, format_name, where, vectors, db, namespace)


def _export(
    file: str, format_name: str, where: StepFilter, vectors: bool, db: str, namespace: str
) -> None:
    from hybridagi_steps.exchange import export_file
    from hybridagi_steps.exchange.records import check_session

    left_out: list[str] = []
    with existing(db, namespace) as memory:
        if where.session_id is not None:
            check_session(memory, where.session_id)
        count = export_file(
            memory, file, format=format_name, where=where, vectors=vectors, left_out=left_out.append
        )
    unit = "runs" if format_name == "openai" else "steps"
    typer.echo(f"{count:,} {unit} written{'' if file == '-' else f' to {file}'}.", err=True)
    if left_out:
        typer.echo(f"{len(left_out):,} runs left out: no assistant speaks in them.", err=True)


def _salvage(file: str, db: str, namespace: str) -> None:
    """Write what is whole, name what is not."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.exchange import salvage_file

    lost = 0

    def name(line: str) -> None:
        nonlocal lost
        lost += 1
        typer.echo(f"  {render.plain(line)}", err=True)

    count = salvage_file(db, file, damaged=name, namespace=namespace)
    typer.echo(f"{count:,} steps written{'' if file == '-' else f' to {file}'}.", err=True)
    if lost:
        typer.echo(f"{lost:,} things were not whole.", err=True)
        raise typer.Exit(1)
