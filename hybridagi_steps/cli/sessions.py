"""Commands for sessions: list them, read one, fork one. A fork copies nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridagi_steps.cli.options import DEFAULT_DB, AsJson, Db, Namespace, existing

if TYPE_CHECKING:
    from rich.table import Table

    from hybridagi_steps.records.message import Step
    from hybridagi_steps.records.store_values import SessionSummary

_SHOWN_ID = 36


def sessions(
    session_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The session to read.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most lines shown.")] = 20,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Lines passed over.")] = 0,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List sessions, the one written last first; or read the messages of one."""
    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory:
        store = memory.repository().store
        if session_id is None:
            listed = store.sessions(limit=limit + 1, offset=offset)
            data, shown = [asdict(summary) for summary in listed], _sessions(listed[:limit])
        else:
            found = store.messages(session_id, offset + 1, offset + limit + 1)
            data = [step.model_dump(mode="json", exclude_none=True) for step in found]
            shown = _messages(found[:limit])
    if as_json:
        render.print_json(data[:limit])
    elif not data:
        typer.echo("no sessions." if session_id is None else "no messages.")
    else:
        render.console().print(shown)
        if len(data) > limit:
            typer.echo(f"--offset {offset + limit} shows more.")


def fork(
    session_id: Annotated[str, typer.Argument(metavar="ID", help="The session to fork.")],
    sequence: Annotated[int, typer.Argument(help="The last message that both share.")],
    new_id: Annotated[
        str | None, typer.Option("--as", help="Id of the new session.", metavar="ID")
    ] = None,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Start a session that shares another's messages up to one; print its id.

    Between tool calls and their results it goes back to before the calls, and says so.
    """
    import asyncio

    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory:
        made = asyncio.run(memory.repository().fork(session_id, sequence, new_id))
    if as_json:
        render.print_json({"new_session_id": made.session_id, "sequence": made.sequence})
        return
    typer.echo(render.plain(made.session_id))


def _sessions(listed: list[SessionSummary]) -> Table:
    from hybridagi_steps.cli.render import plain, styled, table

    made = table("session", "written", "length", "begins", right=("length",))
    made.expand = True
    made.columns[3].ratio = 1
    made.columns[0].no_wrap = made.columns[1].no_wrap = True
    for summary in listed:
        origin = f"{summary.forked_from} at {summary.forked_at}" if summary.forked_from else ""
        made.add_row(
            plain(summary.session_id)[:_SHOWN_ID],
            summary.updated_at[2:16].replace("T", " "),
            f"{summary.messages:,}",
            styled((summary.first_message, ""), (f"  (fork of {origin})" if origin else "", "dim")),
        )
    return made


def _messages(found: list[Step]) -> Table:
    from hybridagi_steps.cli.render import plain, table

    made = table("#", "role", "message", right=("#",))
    made.expand = True
    made.columns[2].ratio = 1
    for step in found:
        calls = [f"→ {_called(call)}" for call in step.tool_calls or []]
        content = step.content if isinstance(step.content, str | None) else str(step.content)
        made.add_row(
            str(step.sequence), step.role.value, plain("\n".join(filter(None, [content, *calls])))
        )
    return made


def _called(call: dict[str, Any]) -> str:
    from hybridagi_steps.records.json_reading import as_object

    function = as_object(call.get("function"))
    return f"{function.get('name', '?')}({function.get('arguments', '')})"
