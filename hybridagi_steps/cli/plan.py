"""`hybridagi-steps plan`: make a plan of a requirement and run it, watched by a tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridagi_steps.cli.options import AsJson, opened

if TYPE_CHECKING:
    from hybridagi_steps.planning.results import PlanResult
    from hybridagi_steps.planning.tasks import Task
    from hybridagi_steps.planning.workspace import Workspace

FAILED = 1
"""Exit code of a plan that did not succeed."""


def plan(
    requirement: Annotated[str, typer.Argument(help="What is wanted.")] = "",
    workspace: Annotated[
        Path, typer.Option("--workspace", help="The directory to work on.", metavar="DIR")
    ] = Path(),
    model: Annotated[
        str,
        typer.Option("--model", envvar="HYBRIDAGI_STEPS_MODEL", help="provider/model, as in DSPy."),
    ] = "",
    api_base: Annotated[
        str | None, typer.Option("--api-base", help="Address of the model's server.")
    ] = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Run this plan in place of making one.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only make and print a plan.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="A command that steps may run; repeatable."),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, help="Steps at once.")] = 4,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Tokens that may be spent.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", min=0, help="Dollars that may be spent.")
    ] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Undo everything if the plan fails.")
    ] = False,
    durable: Annotated[
        str | None, typer.Option("--durable", help="Database of a durable queue.", metavar="FILE")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Names the run; the same key goes on with it.")
    ] = None,
    db: Annotated[
        str | None,
        typer.Option("--db", envvar="HYBRIDAGI_STEPS_DB", help="Memory to record into."),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Replay a shipped task in a new DIR, offline.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cut a requirement into small steps, and carry them out side by side in a directory.

    Exit code 0 means that every step succeeded, 1 that one did not, 2 that nothing could be run.
    """
    from contextlib import ExitStack

    from hybridagi_steps.cli import output

    replayed = _task(task, workspace) if task else None
    wanted = requirement or (replayed.requirement if replayed else "")
    written = _plan_text(plan_file)
    if not wanted.strip() and written is None:
        raise typer.BadParameter('say what is wanted: hybridagi-steps plan "…" --workspace DIR.')
    commands = replayed.commands if replayed else tuple(allow or ())
    with ExitStack() as stack:
        options: dict[str, Any] = {
            "lm": _model(replayed, model, api_base),
            "memory": stack.enter_context(opened(db, "default")) if db else None,
            "workspace": _workspace(workspace, commands),
            "max_parallel": parallel,
            "max_tokens": max_tokens,
            "max_cost": max_cost,
            "on_failure": "rollback" if rollback else "keep",
            "durable": durable,
        }
        if dry_run:
            typer.echo(output.plain(_planned(wanted, written, options)))
            return
        result = _run(wanted, written, key, options, quiet=as_json)
    if as_json:
        output.print_json(result.to_dict())
    else:
        _tell(result)
    if not result.success:
        raise typer.Exit(FAILED)


def _run(
    wanted: str, written: str | None, key: str | None, options: dict[str, Any], *, quiet: bool
) -> PlanResult:
    from hybridagi_steps.cli import output
    from hybridagi_steps.cli.plan_tree import PlanTree
    from hybridagi_steps.planning.orchestrator import Orchestrator

    if quiet:
        return Orchestrator(**options).run(wanted, plan=written, key=key)
    with PlanTree(output.console(), wanted) as tree:
        return Orchestrator(**options, on_event=tree).run(wanted, plan=written, key=key)


def _planned(wanted: str, written: str | None, options: dict[str, Any]) -> str:
    """Return the text of the plan that would be run."""
    from hybridagi_steps.planning.orchestrator import Orchestrator
    from hybridagi_steps.records.plan import Plan

    if written is not None:
        return Plan.parse(written).to_text()
    return Orchestrator(**options).make_plan(wanted).to_text()


def _tell(result: PlanResult) -> None:
    """Say how it ended and what it cost."""
    from hybridagi_steps.cli.output import plain

    spent = result.token_usage.total
    if result.error is not None:
        typer.echo(plain(f"{type(result.error).__name__}: {result.error}"))
    for step in result.steps:
        if step.error is not None:
            typer.echo(plain(f"{step.id}: {type(step.error).__name__}: {step.error}"))
    tokens = "unknown" if spent.total_tokens is None else f"{spent.total_tokens:,}"
    typer.echo(f"{result.status}; {spent.calls} calls, {tokens} tokens.")
    if result.rolled_back:
        typer.echo("the workspace was brought back to what it was.")


def _task(name: str, workspace: Path) -> Task:
    """Return a shipped task, its files in a new directory."""
    from hybridagi_steps.planning.tasks import task

    found = task(name)
    if workspace.exists() and any(workspace.iterdir()):
        raise typer.BadParameter(f"--task needs a new directory; {workspace} holds something.")
    found.copy_workspace(workspace)
    return found


def _model(replayed: Task | None, name: str, api_base: str | None) -> Any:
    if replayed is not None:
        from hybridagi_steps.planning.replaying import replaying_lm

        return replaying_lm(replayed)
    if not name:
        raise typer.BadParameter("name a model: --model provider/model, or HYBRIDAGI_STEPS_MODEL.")
    from hybridagi_steps.planning.named_model import named_model

    return named_model(name, api_base)


def _workspace(directory: Path, commands: tuple[str, ...]) -> Workspace:
    from hybridagi_steps.planning.workspace import Workspace

    return Workspace(directory, commands=commands)


def _plan_text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--plan: {path} cannot be read: {error}") from error
