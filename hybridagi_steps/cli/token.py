"""Commands for the tokens of a server."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

token_app = typer.Typer(help="Tokens of the server.", no_args_is_help=True)


@token_app.callback()
def tokens_of_server() -> None:
    """Make tokens for `serve --tokens FILE`."""


@token_app.command("add")
def add_token(
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
    from hybridagi_steps.server.tokens import Caller, Tokens, TokenScope, check_word, new_token

    for what, words in (("--user", [] if user is None else [user]), ("--namespace", namespace)):
        for word in words or ():
            check_word(what, word)
    try:
        scopes = frozenset(map(TokenScope, scope or ["read", "append"]))
    except ValueError as error:
        raise typer.BadParameter(f"--scope is one of {', '.join(TokenScope)}; {error}.") from error
    made, line = new_token(Caller(scopes, user, frozenset(namespace or ())))
    Tokens({made: Caller(scopes, user)})
    try:
        kept = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(kept, "r+b") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(size - 1, 0))
            ended = lines.read(1) in (b"", b"\n")
            lines.write(f"{line}\n".encode() if ended else f"\n{line}\n".encode())
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}.") from error
    warn_if_open(file)
    typer.echo(made)


def warn_if_open(file: str) -> None:
    """Warn of a file of tokens that others on this machine may read."""
    if os.name == "posix" and (mode := Path(file).stat().st_mode & 0o777) & 0o044:
        typer.echo(
            f"warning: others can read {file} (mode {mode:03o}): chmod 600 {shlex.quote(file)}",
            err=True,
        )
