"""The tasks that ship with the library: real work on small repositories, with a check of its own.

A task is a requirement, a workspace to change, an acceptance test that was written before the plan,
a plan, and the turns of a language model that carry the plan out. The turns were written by hand
and are labelled so (`scripted`): they measure what an executor does with a plan, not what a model
can do. What runs plans is no concern of this module.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.testing import Reply, ScriptedLM, ToolCall
from hybridagi_steps.workspace.command import CommandResult, run_command
from hybridagi_steps.workspace.confined import IGNORED

FINISH_TOOL = "finish_step"
"""The call that ends a step in a replay; its arguments are `summary` and `artifacts`."""

_OUTPUT_BYTES = 20_000


class ReplayTurn(NamedTuple):
    """One answer of the model while it worked on a step."""

    step: str
    """Id of the plan's step."""
    message: dict[str, Any]
    """The assistant message in the provider's form, with tool calls."""

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls of the message."""
        calls: list[dict[str, Any]] = self.message.get("tool_calls") or []
        return [
            ToolCall(
                call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"]
            )
            for call in calls
        ]


@dataclass(frozen=True)
class Task:
    """One task: what is wanted, what to work on, and how to tell whether it was done."""

    name: str
    title: str
    requirement: str
    """What a user asks for."""
    commands: Sequence[str]
    """What the workspace has to allow, as `Workspace(commands=…)` takes it."""
    acceptance: Sequence[str]
    """The command that accepts the work; `{acceptance}` and `{workspace}` stand for folders."""
    replay_kind: Literal["scripted", "recorded"]
    """Where the turns come from: written by hand, or answered by a model."""
    folder: Path
    """Where its files are."""

    def plan_text(self) -> str:
        """Return the plan as it was written."""
        return (self.folder / "plan.txt").read_text("utf-8")

    def plan(self) -> Plan:
        """Return the plan."""
        return Plan.parse(self.plan_text())

    def replay(self) -> list[ReplayTurn]:
        """Return the turns of the model, step by step in the order of the plan."""
        lines = (self.folder / "replay.jsonl").read_text("utf-8").splitlines()
        return [ReplayTurn(**json.loads(line)) for line in lines]

    def copy_workspace(self, target: Path) -> None:
        """Put a fresh copy of the files to work on into a folder that is empty or not there."""
        _copy(self.folder / "workspace", target)

    def accept(self, workspace: Path, *, timeout_seconds: float = 60.0) -> CommandResult:
        """Run the acceptance test on a workspace; exit code 0 means that the work is done."""
        with tempfile.TemporaryDirectory(prefix="steps-acceptance-") as folder:
            _copy(self.folder / "acceptance", Path(folder))
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
    top = Path(str(files("hybridagi_steps.data"))) / "plans"
    return [_task(file.parent) for file in sorted(top.glob("*/task.json"))]


def task(name: str) -> Task:
    """Return one task."""
    known = {each.name: each for each in tasks()}
    if name not in known:
        raise WorkspaceError(f"no task is named {name!r}; there are {', '.join(known)}")
    return known[name]


def _task(folder: Path) -> Task:
    stored: dict[str, Any] = json.loads((folder / "task.json").read_text("utf-8"))
    return Task(replay_kind=stored.pop("replay"), folder=folder, **stored)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder, without what installers compile beside Python files."""
    shutil.copytree(
        source,
        target,
        ignore=shutil.ignore_patterns(*IGNORED),
        copy_function=shutil.copyfile,
        dirs_exist_ok=True,
    )


_STEP = re.compile(r"^# Step (\S+) \(", re.MULTILINE)


def replaying_lm(task: Task, **options: Any) -> ScriptedLM:
    """Return a model that carries out a task's plan as it was written down."""
    turns: dict[str, list[Reply]] = {}
    for turn in task.replay():
        said = turn.message.get("content")
        turns.setdefault(turn.step, []).append([*([said] if said else []), *turn.calls])

    def answer(request: Any) -> Reply:
        brief = next((m.text or "" for m in request.messages if _STEP.search(m.text or "")), None)
        if brief is None:
            return task.plan_text()
        found = _STEP.search(brief)
        assert found is not None  # noqa: S101 - the brief was chosen by it
        said = sum(message.role == "assistant" for message in request.messages)
        known = turns.get(found[1], [])
        if said >= len(known):
            return IndexError(f"{task.name} has {len(known)} turns of step {found[1]}")
        return known[said]

    options.setdefault("model", f"replay/{task.name}")
    return ScriptedLM(answer, **options)
