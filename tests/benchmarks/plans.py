"""What small steps with minimal context save, and whether the work is still done.

The tasks that ship with the library are run through the orchestrator, with a model that replays
turns written by hand, and each workspace is given to its acceptance test. The prompts of the run
are counted as they were, and as they would have been with the full history and with its last
messages; see planning/comparison.py for what the full history is spared. So the savings are of
replayed answers (`replay`): with less in sight a real model may need other turns, or fail.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from hybridagi_steps.planning.comparison import LAST, compare
from hybridagi_steps.planning.example_tasks import Task, replaying_lm, tasks
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.token_counters import is_estimate, token_counter
from hybridagi_steps.workspace.workspace import Workspace
from tests.benchmarks.conditions import conditions
from tests.benchmarks.tables import Table, number, print_json, print_tables

CLAIMED_SAVING = 0.93
"""What street-race's description of its StepExecutor claims, about 4 k instead of 56 k tokens; it
was never measured there."""

_COUNTS = (
    *("full_history", "full_history_cached", "last_messages"),
    *("ours", "ours_cached", "planning", "tool_schemas"),
)
_PARALLEL_STEPS, _PARALLEL_SECONDS, _AT_ONCE = 8, 1.0, 4


def report(json_output: bool = False, **options: Any) -> None:
    """Print what plans cost and whether they succeeded; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(counter: str = "auto", last: int = LAST, steps: int = 200) -> dict[str, Any]:
    """Return tokens and success of each task, and the orchestrator's own time.

    Args:
        counter: Counts tokens: `auto`, `estimate`, `tiktoken`, or a tokenizer file.
        last: How many messages the rival with the last messages keeps.
        steps: Length of the plan whose overhead is timed.
    """
    tokens = token_counter(counter)
    return {
        **conditions(counter=counter, last=last, steps=steps),
        "counter": tokens.counter_id,
        "estimated": is_estimate(tokens),
        "last": last,
        "claimed_saving": CLAIMED_SAVING,
        "tasks": {task.name: _task(task, counter, last) for task in tasks()},
        "overhead_ms_per_step": _overhead(steps),
        "parallel_seconds": _parallel(),
    }


def _task(task: Task, counter: str, last: int) -> dict[str, Any]:
    """Run one task and its acceptance test."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        task.copy_workspace(files)
        workspace = Workspace(files, commands=task.commands, state=Path(folder) / "state")
        orchestrator = Orchestrator(workspace=workspace, lm=replaying_lm(task), counter=counter)
        result = orchestrator.run(requirements=task.requirement)
        accepted = task.accept(files).exit_code == 0
    order = [step.id for step in result.steps]
    compared = compare(result.token_usage.calls, order, result.counter, last)
    return {
        **compared.model_dump(),
        "saving": compared.saving,
        "answers": task.replay_kind,
        "steps": len(result.steps),
        "succeeded": result.success,
        "accepted": accepted,
    }


def _overhead(steps: int) -> float:
    """Return milliseconds that the orchestrator needs for a step that does nothing."""

    async def nothing(work: Work, workspace: Workspace | None) -> Finished:
        return Finished()

    chain = [
        PlanStep(id=f"s{n}", goal="g", dependencies=[f"s{n - 1}"] if n else [])
        for n in range(steps)
    ]
    orchestrator = Orchestrator(executor=nothing)
    times = [orchestrator.run(plan=Plan(steps=chain), requirements="r") for _ in range(5)]
    return median(result.duration_ms for result in times) / steps


def _parallel() -> float:
    """Return seconds that eight steps of a second take, four at a time."""
    import anyio

    async def wait(work: Work, workspace: Workspace | None) -> Finished:
        await anyio.sleep(_PARALLEL_SECONDS)
        return Finished()

    plan = Plan(steps=[PlanStep(id=f"s{n}", goal="g") for n in range(_PARALLEL_STEPS)])
    begun = time.perf_counter()
    Orchestrator(executor=wait, max_parallel=_AT_ONCE).run(plan=plan, requirements="r")
    return time.perf_counter() - begun


def _tables(result: dict[str, Any]) -> list[Table]:
    about = "about " if result["estimated"] else ""
    found: dict[str, dict[str, Any]] = result["tasks"]
    claimed = ["(claimed by street-race)", *["-"] * 8, _percent(result["claimed_saving"])]
    spent = Table(
        f"{about}tokens of a whole plan, by context (replay)",
        [
            "task",
            "history",
            "cached",
            f"last {result['last']}",
            "ours",
            "cached",
            "plan",
            "tools",
            "done",
            "saving",
        ],
        [
            *(_row(name, each) for name, each in found.items()),
            _sum(found),
            claimed,
        ],
        (
            "done: the plan succeeded and the acceptance test, run on the workspace, passed.",
            f"Counted by {result['counter']}; answers written by hand, the same for all contexts.",
            "full: the whole history. planning, tools (their schemas): what they take of ours.",
            "cached: stood at the beginning of an earlier prompt; answers never are.",
            "The full history needs no plan and passes nothing on twice.",
            "What street-race claims has never been measured; it stands here to compare with.",
        ),
    )
    own = Table(
        "the orchestrator itself",
        ["", "measured", "at most"],
        [
            ["ms per step that does nothing", number(result["overhead_ms_per_step"], 2), "2.00"],
            ["s for 8 steps of 1 s, 4 at once", number(result["parallel_seconds"], 2), "2.50"],
        ],
    )
    return [spent, own]


def _row(name: str, task: dict[str, Any]) -> list[str]:
    counts = (task[key] for key in _COUNTS)
    done = "yes" if task["succeeded"] and task["accepted"] else "no"
    return [name, *(number(count, 0) for count in counts), done, _percent(task["saving"])]


def _sum(found: dict[str, dict[str, Any]]) -> list[str]:
    total = {key: sum(task[key] for task in found.values()) for key in _COUNTS}
    done = sum(task["succeeded"] and task["accepted"] for task in found.values())
    saving = 1 - total["ours"] / total["full_history"] if total["full_history"] else None
    counts = [number(total[key], 0) for key in _COUNTS]
    return ["all", *counts, f"{done} of {len(found)}", _percent(saving)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
