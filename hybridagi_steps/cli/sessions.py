"""Commands for sessions: list them, read one, fork one. A fork copies nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridagi_steps.cli.options import DEFAULT_DB, AsJson, Db, Namespace, existing, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.run import RunResult


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
    """List sessions, the one written last first; or read one.

    One that was only recorded has no messages; its runs are shown.
    """
    from hybridagi_steps.cli import render

    with existing(db, namespace) as memory:
        data, shown = _listed(memory, session_id, limit + 1, offset)
    if as_json:
        print_json(data[:limit])
    elif not data:
        typer.echo("no sessions." if session_id is None else "no messages.")
    else:
        render.console().print(shown(data[:limit]))
        if len(data) > limit:
            typer.echo(f"--offset {offset + limit} shows more.")


def _listed(
    memory: StepMemory, session_id: str | None, limit: int, offset: int
) -> tuple[list[dict[str, Any]], Callable[[list[dict[str, Any]]], Table]]:
    """Return what there is, and what makes a table of it."""
    from hybridagi_steps.display.terminal import runs_table, sessions_table
    from hybridagi_steps.errors import UnknownSessionError

    if session_id is None:
        found = memory.sessions(limit=limit, offset=offset)
        return [asdict(summary) for summary in found], sessions_table
    store = memory.repository().store
    try:
        messages = store.messages(session_id, offset + 1, offset + limit)
    except UnknownSessionError:
        runs = memory.runs(limit=limit, offset=offset, where={"session_id": session_id})
        if not runs and not offset:
            raise
        return [run._asdict() for run in runs], runs_table
    return [step.model_dump(mode="json", exclude_none=True) for step in messages], _messages


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
        print_json({"new_session_id": made.session_id, "sequence": made.sequence})
        return
    typer.echo(render.one_line(made.session_id))


def resume(
    session_id: Annotated[str, typer.Argument(metavar="ID", help="The session of the run.")],
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="A call that may run.", metavar="CALL")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", help="A call that may not.", metavar="CALL")
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option("--answer", help="What the user says to a question.", metavar="CALL=TEXT"),
    ] = None,
    program: Annotated[
        str | None, typer.Option("--program", help="What goes on.", metavar="MODULE:NAME")
    ] = None,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what a run that paused waits for; with --program let it go on with the answers."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.errors import InvalidSettingError
    from hybridagi_steps.running.pending_calls import pending_calls

    answers = _answers(allow or [], deny or [], answer or [])
    if answers and program is None:
        raise InvalidSettingError("--program names what goes on with the answers.")
    with existing(db, namespace) as memory:
        if program is not None:
            result = _gone_on(memory, session_id, program, answers)
            if result is not None and result.status != "paused":
                data = {"run_id": result.run_id, "status": result.status, "text": result.text}
                if as_json:
                    print_json(data | ({"error": result.error} if result.error else {}))
                elif result.text or result.status == "completed":
                    typer.echo(render.one_line(result.text))
                if result.status != "completed":
                    why = f"run {result.run_id} {result.status}: {result.error or result.reason}"
                    typer.echo(f"hybridagi-steps: {render.one_line(why)}", err=True)
                    raise typer.Exit(1)
                return
        waiting = [call._asdict() for call in pending_calls(memory, session_id)]
    if as_json:
        print_json(waiting)
        return
    for call in waiting:
        about = f"{call['call_id']}: {call['waits_for']} of {call['tool']}({call['arguments']})"
        typer.echo(render.one_line(about))
    if not waiting:
        typer.echo("nothing waits for an answer.")


def _answers(allow: list[str], deny: list[str], answer: list[str]) -> dict[str, bool | str]:
    """Return what is said to each call; refuse to say two things to one."""
    from hybridagi_steps.errors import InvalidSettingError

    said: list[tuple[str, bool | str]] = [(name, True) for name in allow]
    said += [(name, False) for name in deny]
    for name, equals, text in (each.partition("=") for each in answer):
        if not equals:
            raise InvalidSettingError(f"--answer takes CALL=TEXT, not {name!r:.80}.")
        said.append((name, text))
    answers: dict[str, bool | str] = {}
    for name, value in said:
        if answers.setdefault(name, value) != value:
            raise InvalidSettingError(
                f"call {name!r:.80} takes one of --allow, --deny and --answer, and one text."
            )
    return answers


def _gone_on(
    memory: StepMemory, session_id: str, program: str, answers: dict[str, bool | str]
) -> RunResult | None:
    """Let a run go on; refuse answers that come after somebody else's."""
    import asyncio

    from hybridagi_steps.errors import SequenceConflictError
    from hybridagi_steps.records.run import RunResult
    from hybridagi_steps.server.program_loading import load_runner

    runner, cause = load_runner(program, memory), None
    try:
        result = asyncio.run(RunResult.of_any(runner.resume(session_id, answers=answers)))
        late = result is not None and (result.error or "").startswith("SequenceConflictError:")
    except SequenceConflictError as error:
        result, late, cause = None, True, error
    if not late:
        return result
    raise SequenceConflictError(
        f"session {session_id!r}: nothing waits for this any more; somebody else has answered "
        "meanwhile if something did."
    ) from cause


def _messages(found: list[dict[str, Any]]) -> Table:
    from hybridagi_steps.cli.render import plain, table

    made = table("#", "role", "message", right=("#",))
    made.expand = True
    made.columns[2].ratio = 1
    for step in found:
        asked: list[dict[str, Any]] = step.get("tool_calls") or []
        calls = [f"→ {_called(call)}" for call in asked]
        content = step.get("content")
        text = content if isinstance(content, str | None) else str(content)
        made.add_row(
            str(step["sequence"]), step["role"], plain("\n".join(filter(None, [text, *calls])))
        )
    return made


def _called(call: dict[str, Any]) -> str:
    from hybridagi_steps.records.json_reading import as_object

    function = as_object(call.get("function"))
    return f"{function.get('name', '?')}({function.get('arguments', '')})"
