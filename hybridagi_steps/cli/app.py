"""The commands put together: of those that a command line does not name, nothing is imported."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hybridagi_steps import __version__

COMMANDS = {
    "demo": "demo:demo",
    "import": "exchange:import_steps",
    "search": "steps:search",
    "show": "steps:show",
    "runs": "steps:runs",
    "sessions": "sessions:sessions",
    "fork": "sessions:fork",
    "resume": "sessions:resume",
    "export": "exchange:export_steps",
    "stats": "maintenance:stats",
    "verify": "maintenance:verify",
    "reembed": "maintenance:reembed",
    "jobs": "maintenance:jobs",
    "vacuum": "maintenance:vacuum",
    "copy": "maintenance:copy",
    "backup": "maintenance:backup",
    "purge": "maintenance:purge",
    "retain": "maintenance:retain",
    "revoke": "maintenance:revoke",
    "grant": "maintenance:grant",
    "plan": "plan:plan",
    "open": "serve:open_page",
    "serve": "serve:serve",
    "mcp": "serve:mcp",
    "worker": "serve:worker",
    "token": "token:token_app",
}
"""Where each command is."""


class SingleValueCommand(TyperCommand):
    """A command that refuses an option with one value that stands twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        _, _, order = self.make_parser(ctx).parse_args([*args])
        for option, count in Counter(order).items():
            is_single = not option.multiple and not getattr(option, "is_flag", False)
            if count > 1 and is_single and option.opts[0].startswith("-"):
                raise typer.BadParameter(
                    f"{option.opts[0]} takes one value; it stands there twice."
                )
        return super().parse_args(ctx, args)


def application(asked: str | None = None) -> typer.Typer:
    """Return the command line, with the command asked for alone where there is one of that name."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Step memory for DSPy: find again what your programs did. "
        "Start with `hybridagi-steps demo`.",
    )
    app.callback(invoke_without_command=True)(start)
    for name in [asked] if asked in COMMANDS else COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(f"hybridagi_steps.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            for each in command.registered_commands:
                each.cls = SingleValueCommand
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=SingleValueCommand)(command)
    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hybridagi-steps {__version__}")
        raise typer.Exit


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
