"""What tests of durable plans run in processes of their own: a plan whose steps note that they ran.

`python plan_worker.py run FOLDER` runs the plan; `serve FOLDER` only does work from the queue.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from hybridagi_steps.durable.plan_steps import DurableQueue
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.workspace.workspace import Workspace

KEY = "release-7"
STEPS = ("first", "left", "right", "slow", "last")
DEPENDENCIES = {"left": ["first"], "right": ["first"], "slow": ["left"], "last": ["slow", "right"]}


def plan() -> Plan:
    """Return five steps, one of them slow while a file says so."""
    steps = [
        PlanStep(id=name, goal="g", dependencies=DEPENDENCIES.get(name, []), artifacts=["by"])
        for name in STEPS
    ]
    return Plan(name="p", description="a plan that is cut short", steps=steps)


def orchestrator(folder: Path, *, serves: bool) -> Orchestrator:
    """Return one whose steps append to a log and write a file of their own."""

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        assert workspace is not None
        with (folder / "log").open("a") as log:
            log.write(f"begin {work.step.id} {os.getpid()}\n")
        while work.step.id == "slow" and (folder / "wait").exists():
            await anyio.sleep(0.02)
        workspace.write(f"{work.step.id}.txt", str(os.getpid()))
        with (folder / "log").open("a") as log:
            log.write(f"end {work.step.id} {os.getpid()}\n")
        return Finished(summary="done", artifacts={"by": os.getpid()})

    database = os.environ.get("PLAN_QUEUE", str(folder / "queue.sqlite"))
    queue = DurableQueue(database, poll_seconds=0.05, serves=serves)
    workspace = Workspace(folder / "files", state=folder / "state")
    return Orchestrator(executor=execute, workspace=workspace, durable=queue)


def main() -> None:
    """Run the plan, or serve."""
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "serve":
        made = orchestrator(folder, serves=True)
        assert made.durable is not None
        made.durable.serve(made)
        return
    made = orchestrator(folder, serves=command == "run")
    result = made.run(plan=plan(), key=KEY)
    assert made.durable is not None
    made.durable.close()
    print(result)
    sys.exit(0 if result.success else 1)


if __name__ == "__main__":
    main()
