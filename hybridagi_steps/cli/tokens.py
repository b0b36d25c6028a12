"""The command for tokens of the server: make one, and let a file of tokens know it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

app = typer.Typer(help="Tokens of the server.", no_args_is_help=True)


@app.callback()
def token() -> None:
    """Make tokens for `serve --tokens FILE`."""


@app.command("add")
def add(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where its digest is kept.")],
    user: Annotated[
        str | None, typer.Option("--user", help="Whose it is; needed without --scope as-any-user.")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="read, append, delete, as-any-user or admin; repeatable. Else read and append.",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", help="A memory it is for; repeatable. Any by default."),
    ] = None,
) -> None:
    """Print a new token, once; the file gets its digest, and can be given to `serve --tokens`."""
    from hybridagi_steps.server.tokens import Caller, Tokens, TokenScope, new_token

    try:
        scopes = frozenset(map(TokenScope, scope or ["read", "append"]))
    except ValueError as error:
        raise typer.BadParameter(f"--scope is one of {', '.join(TokenScope)}; {error}.") from error
    made, line = new_token(Caller(scopes, user, frozenset(namespace or ())))
    Tokens({made: Caller(scopes, user)})
    try:
        kept = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(kept, "a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}.") from error
    typer.echo(made)
