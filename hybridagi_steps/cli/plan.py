"""`hybridagi-steps plan`: make a plan of a requirement and run it, watched by a tree."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hybridagi_steps.cli.options import AsJson, opened, print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from hybridagi_steps.planning.example_tasks import Task
    from hybridagi_steps.planning.results import PlanResult
    from hybridagi_steps.records.event import StepEvent

FAILED = 1
"""Exit code of a plan that did not succeed."""
_LOOKS = {
    "waiting": ("·", "dim"),
    "running": ("▸", "bold"),
    "retrying": ("↻", "yellow"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "cancelled": ("■", "yellow"),
    "replaced": ("~", "dim"),
}
_MOST_LETTERS = 90


_Requirement = Annotated[str, typer.Argument(help="What is wanted.")]
_Directory = Annotated[
    Path, typer.Option("--workspace", help="The directory to work on.", metavar="DIR")
]
_Model = Annotated[
    str, typer.Option("--model", envvar="HYBRIDAGI_STEPS_MODEL", help="provider/model, as in DSPy.")
]
_ApiBase = Annotated[str | None, typer.Option("--api-base", help="Address of the model's server.")]
_PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="Run this plan in place of making one.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only make and print a plan.")]
_Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        help="A command that steps may run; repeatable. Confined to DIR by bubblewrap where that "
        "is installed; elsewhere it has your rights, and find -exec, sed e, "
        "tar --checkpoint-action and any test runner are arbitrary code.",
    ),
]
_AllowRead = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-read",
        help="What a confined command may read beside DIR and the system's programs; repeatable.",
        metavar="PATH",
    ),
]
_Sandbox = Annotated[
    str, typer.Option("--sandbox", help="Confine commands: auto, required or off.")
]
_AllowWrite = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-write",
        help="A place that steps may change although others run it, such as .github/workflows, "
        ".envrc or .vscode; repeatable.",
        metavar="PLACE",
    ),
]
_Parallel = Annotated[int, typer.Option("--parallel", min=1, help="Steps at once.")]
_Replans = Annotated[
    int, typer.Option("--replans", min=0, help="How often failed steps are planned anew.")
]
_MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Tokens that may be spent.")
]
_MaxCost = Annotated[
    float | None, typer.Option("--max-cost", min=0, help="Dollars that may be spent.")
]
_Rollback = Annotated[bool, typer.Option("--rollback", help="Undo everything if the plan fails.")]
_Durable = Annotated[
    str | None, typer.Option("--durable", help="Database of a durable queue.", metavar="FILE")
]
_Key = Annotated[
    str | None, typer.Option("--key", help="Names the run; the same key goes on with it.")
]
_Priority = Annotated[
    int,
    typer.Option("--priority", min=-1_000, max=1_000, help="In a queue; the smallest goes first."),
]
_Memory = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="HYBRIDAGI_STEPS_DB", help="Memory to record into.", metavar="FILE"
    ),
]
_Task = Annotated[
    str | None, typer.Option("--task", help="Replay a shipped task in a new DIR, offline.")
]


def plan(
    requirement: _Requirement = "",
    workspace: _Directory = Path(),
    model: _Model = "",
    api_base: _ApiBase = None,
    plan_file: _PlanFile = None,
    dry_run: _DryRun = False,
    allow: _Allow = None,
    allow_read: _AllowRead = None,
    allow_write: _AllowWrite = None,
    sandbox: _Sandbox = "auto",
    parallel: _Parallel = 4,
    replans: _Replans = 1,
    max_tokens: _MaxTokens = None,
    max_cost: _MaxCost = None,
    rollback: _Rollback = False,
    durable: _Durable = None,
    key: _Key = None,
    priority: _Priority = 0,
    db: _Memory = None,
    task: _Task = None,
    as_json: AsJson = False,
) -> None:
    """Cut a requirement into small steps, and carry them out side by side in a directory.

    Exit code 0 means that every step succeeded, 1 that one did not, 2 that nothing could be run.
    """
    from contextlib import ExitStack

    from hybridagi_steps.cli import render
    from hybridagi_steps.workspace.workspace import Workspace

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
            "workspace": Workspace(
                workspace,
                commands=commands,
                sandbox=sandbox,  # pyright: ignore[reportArgumentType] - checked there
                readable=allow_read or (),
                consent={p.removeprefix("./").rstrip("/") for p in allow_write or ()}.__contains__,
            ),
            "max_parallel": parallel,
            "max_replans": replans,
            "max_tokens": max_tokens,
            "max_cost": max_cost,
            "on_failure": "rollback" if rollback else "keep",
            "durable": durable,
        }
        if dry_run:
            return typer.echo(render.plain(_planned(wanted, written, options)))
        named = {"plan": written, "key": key, "priority": priority}
        return _end(_run(wanted, named, options, quiet=as_json), as_json=as_json)


def _run(wanted: str, named: dict[str, Any], options: dict[str, Any], *, quiet: bool) -> PlanResult:
    from hybridagi_steps.cli import render
    from hybridagi_steps.planning.orchestrator import Orchestrator

    if quiet:
        return Orchestrator(**options).run(wanted, **named)
    with PlanTree(render.console(), wanted) as tree:
        return Orchestrator(**options, on_event=tree).run(wanted, **named)


def _planned(wanted: str, written: str | None, options: dict[str, Any]) -> str:
    """Return the text of the plan that would be run."""
    from hybridagi_steps.planning.orchestrator import Orchestrator
    from hybridagi_steps.planning.plan import Plan

    if written is not None:
        return Plan.parse(written).to_text()
    return Orchestrator(**options).make_plan(wanted).to_text()


def _end(result: PlanResult, *, as_json: bool) -> None:
    """Say how it ended and what it cost; end with an exit code that tells whether it succeeded."""
    if as_json:
        print_json(result.to_dict())
    else:
        _print_outcome(result)
    if not result.success:
        raise typer.Exit(FAILED)


def _print_outcome(result: PlanResult) -> None:
    from hybridagi_steps.cli.render import plain

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
    from hybridagi_steps.planning.example_tasks import task

    found = task(name)
    try:
        if workspace.exists() and any(workspace.iterdir()):
            raise typer.BadParameter(f"--task needs a new directory; {workspace} holds something.")
        found.copy_workspace(workspace)
    except NotADirectoryError as error:
        raise typer.BadParameter(f"--task needs a new directory; {workspace} is a file.") from error
    except OSError as error:
        message = f"--task cannot make {workspace}: {error.strerror or error}."
        raise typer.BadParameter(message) from error
    return found


def _model(replayed: Task | None, name: str, api_base: str | None) -> Any:
    if replayed is not None:
        from hybridagi_steps.planning.example_tasks import replaying_lm

        return replaying_lm(replayed)
    if not name:
        raise typer.BadParameter("name a model: --model provider/model, or HYBRIDAGI_STEPS_MODEL.")
    from hybridagi_steps.planning.orchestrator import named_model

    return named_model(name, api_base)


def _plan_text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--plan: {path} cannot be read: {error}") from error


class PlanTree:
    """Shows a plan while it runs, as a tree on the terminal; give it every event.

    When nobody watches, each step that ends is a plain line.
    """

    def __init__(self, console: Console, title: str) -> None:
        from rich.live import Live

        self._title = title
        self._states: dict[str, str] = {}
        self._outcomes: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._before: dict[str, list[str]] = {}
        self._console = console
        self._live = Live(self.tree(), console=console, auto_refresh=False, transient=False)

    def __call__(self, event: StepEvent) -> None:
        """Take note of what happened."""
        from hybridagi_steps.cli.render import styled

        data = event.data or {}
        if "steps" in data:
            self._plan(data)
        elif event.step_id is not None and "status" in data:
            self._step(event, data)
        elif "message" in data:
            self._say(styled((f"  {data['message']}", "yellow")))
        if self._console.is_terminal:
            self._live.update(self.tree(), refresh=True)

    def __enter__(self) -> PlanTree:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def tree(self) -> Tree:
        """Return the plan as it stands: each step below the last of those it waits for."""
        from rich.tree import Tree

        from hybridagi_steps.cli.render import plain

        root = Tree(plain(self._title)[:_MOST_LETTERS] or "plan")
        branches: dict[str, Tree] = {}
        for name, before in self._before.items():
            above = next((branches[b] for b in reversed(before) if b in branches), root)
            branches[name] = above.add(self._line(name))
        return root

    def _plan(self, data: dict[str, Any]) -> None:
        for step in cast("list[dict[str, Any]]", data["steps"]):
            self._names[step["id"]] = step["title"]
            self._before[step["id"]] = step["depends_on"]
        self._states |= {**dict.fromkeys(self._before, "waiting"), **data.get("states", {})}

    def _step(self, event: StepEvent, data: dict[str, Any]) -> None:
        name = str(event.step_id)
        self._states[name] = data["status"]
        if event.snapshot is not None:
            self._outcomes[name] = str(event.snapshot.content or "")
            self._say(self._line(name))

    def _say(self, line: Text) -> None:
        if not self._console.is_terminal:
            self._console.print(line)

    def _line(self, name: str) -> Text:
        from hybridagi_steps.cli.render import styled

        sign, style = _LOOKS[self._states.get(name, "waiting")]
        outcome = " ".join(self._outcomes.get(name, "").split())[:_MOST_LETTERS]
        shown = self._names.get(name, name)
        return styled((f"{sign} {shown}", style), (f"  {outcome}" if outcome else "", "dim"))
