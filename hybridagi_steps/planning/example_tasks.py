"""The tasks that ship with the library: real work on small repositories, with a check of its own.

A task is a requirement, a workspace to change, an acceptance test that was written before the plan,
a plan, and the turns of a language model that carry the plan out. The turns were written by hand
and are labelled so (`scripted`): they measure what an executor does with a plan, not what a model
can do. What runs plans is no concern of this module.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.testing import Reply, ScriptedLM, ToolCall
from hybridagi_steps.workspace.command import CommandResult, run_command
from hybridagi_steps.workspace.confined import IGNORED

FINISH_TOOL = "finish_step"
"""The call that ends a step in a replay; its arguments are `summary` and `artifacts`."""

_OUTPUT_BYTES = 20_000


class ToolUse(NamedTuple):
    """One tool call of a turn, its arguments decoded."""

    id: str
    name: str
    arguments: dict[str, Any]


class ReplayTurn(NamedTuple):
    """One answer of the model while it worked on a step."""

    step: str
    """Id of the plan's step."""
    message: dict[str, Any]
    """The assistant message in the provider's form, with tool calls."""

    @property
    def calls(self) -> list[ToolUse]:
        """The tool calls of the message."""
        calls: list[dict[str, Any]] = self.message.get("tool_calls") or []
        return [
            ToolUse(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in calls
        ]


@dataclass(frozen=True)
class Task:
    """One task: what is wanted, what to work on, and how to tell whether it was done."""

    name: str
    title: str
    requirement: str
    """What a user asks for."""
    commands: tuple[str, ...]
    """What the workspace has to allow, as `Workspace(commands=…)` takes it."""
    acceptance: tuple[str, ...]
    """The command that accepts the work; `{acceptance}` and `{workspace}` stand for folders."""
    replay_kind: Literal["scripted", "recorded"]
    """Where the turns come from: written by hand, or answered by a model."""
    folder: Traversable
    """Where its files are."""

    def plan_text(self) -> str:
        """Return the plan as it was written."""
        return self.folder.joinpath("plan.txt").read_text("utf-8")

    def plan(self) -> Plan:
        """Return the plan."""
        return Plan.parse(self.plan_text())

    def replay(self) -> list[ReplayTurn]:
        """Return the turns of the model, step by step in the order of the plan."""
        lines = self.folder.joinpath("replay.jsonl").read_text("utf-8").splitlines()
        return [ReplayTurn(**json.loads(line)) for line in lines]

    def copy_workspace(self, target: Path) -> None:
        """Put a fresh copy of the files to work on into a folder that is empty or not there."""
        _copy(self.folder.joinpath("workspace"), target)

    def accept(self, workspace: Path, *, timeout_seconds: float = 60.0) -> CommandResult:
        """Run the acceptance test on a workspace; exit code 0 means that the work is done."""
        with tempfile.TemporaryDirectory(prefix="steps-acceptance-") as folder:
            _copy(self.folder.joinpath("acceptance"), Path(folder))
            places = {"acceptance": folder, "workspace": str(workspace)}
            argv = [word.format_map(places) for word in self.acceptance]
            argv[0] = sys.executable if argv[0] == "python" else argv[0]
            return run_command(
                argv,
                Path(folder),
                timeout_seconds=timeout_seconds,
                output_bytes=_OUTPUT_BYTES,
            )


def tasks() -> list[Task]:
    """Return the tasks that ship with the library, by name."""
    top = files("hybridagi_steps.data").joinpath("plans")
    folders = [folder for folder in top.iterdir() if folder.joinpath("task.json").is_file()]
    return [_task(folder) for folder in sorted(folders, key=lambda folder: folder.name)]


def task(name: str) -> Task:
    """Return one task."""
    known = {each.name: each for each in tasks()}
    if name not in known:
        raise WorkspaceError(f"no task is named {name!r}; there are {', '.join(known)}")
    return known[name]


def _task(folder: Traversable) -> Task:
    stored = cast("dict[str, Any]", json.loads(folder.joinpath("task.json").read_text("utf-8")))
    return Task(
        name=stored["name"],
        title=stored["title"],
        requirement=stored["requirement"],
        commands=tuple(stored["commands"]),
        acceptance=tuple(stored["acceptance"]),
        replay_kind=stored["replay"],
        folder=folder,
    )


def _copy(source: Traversable, target: Path) -> None:
    """Copy a folder of the package, which need not be a folder on disk."""
    target.mkdir(parents=True, exist_ok=True)
    for inner in _contents(source):
        if inner.is_dir():
            _copy(inner, target / inner.name)
        else:
            (target / inner.name).write_bytes(inner.read_bytes())


def _contents(folder: Traversable) -> Iterator[Traversable]:
    """Yield what is in a folder, without what installers compile beside Python files."""
    return (inner for inner in folder.iterdir() if inner.name not in IGNORED)


_STEP = re.compile(r"^# Step (\S+) \(", re.MULTILINE)


def replaying_lm(task: Task, **options: Any) -> ScriptedLM:
    """Return a model that carries out a task's plan as it was written down.

    Args:
        task: The task.
        options: What `ScriptedLM` takes.
    """
    turns: dict[str, list[Reply]] = {}
    for turn in task.replay():
        calls = [ToolCall(call.name, call.arguments, call.id) for call in turn.calls]
        said = turn.message.get("content")
        turns.setdefault(turn.step, []).append([*([said] if said else []), *calls])

    def answer(request: Any) -> Reply:
        brief = next((m.text or "" for m in request.messages if _STEP.search(m.text or "")), None)
        if brief is None:
            return {"plan": task.plan_text()}
        found = _STEP.search(brief)
        assert found is not None  # noqa: S101 - the brief was chosen by it
        said = sum(message.role == "assistant" for message in request.messages)
        known = turns.get(found[1], [])
        if said >= len(known):
            return IndexError(f"{task.name} has {len(known)} turns of step {found[1]}")
        return known[said]

    options.setdefault("model", f"replay/{task.name}")
    return ScriptedLM(answer, **options)
