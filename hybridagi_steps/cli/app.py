"""The commands put together. Nothing heavy is imported here or in the modules it names."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridagi_steps import __version__
from hybridagi_steps.cli import demo, exchange, plan, serve, sessions
from hybridagi_steps.cli import maintenance as keeping
from hybridagi_steps.cli import steps as reading

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Step memory for DSPy: find again what your programs did. "
    "Start with `hybridagi-steps demo`.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hybridagi-steps {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback answers it
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Show the help when no command is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("demo")(demo.demo)
app.command("import")(exchange.import_steps)
app.command("search")(reading.search)
app.command("show")(reading.show)
app.command("runs")(reading.runs)
app.command("sessions")(sessions.sessions)
app.command("fork")(sessions.fork)
app.command("export")(exchange.export_steps)
app.command("stats")(keeping.stats)
app.command("verify")(keeping.verify)
app.command("reembed")(keeping.reembed)
app.command("vacuum")(keeping.vacuum)
app.command("purge")(keeping.purge)
app.command("revoke")(keeping.revoke)
app.command("plan")(plan.plan)
app.command("serve")(serve.serve)
app.command("mcp")(serve.mcp)
app.command("worker")(serve.worker)
app.add_typer(serve.token_app, name="token")
