"""Workers and clients of durable runs are killed: what was handed out is done, and stored once."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUntypedBaseClass=false, reportUnknownArgumentType=false, reportArgumentType=false

from __future__ import annotations

import asyncio
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally, opened
from .processes import ask, fork, kill

SESSIONS = 4
KILLS = 3
WORKER_SECONDS = 120.0
"""How long the last worker may take for what the killed ones left."""


def attack(setting: Setting) -> Tally:
    """Kill clients and workers until the time is over."""
    tally = Tally()
    if find_spec("dbos") is None:
        tally.skipped = "dbos is not installed"
        return tally
    for name in ("dbos", "dspy"):
        import_module(name)  # so that children need not
    kills = 0
    while setting.going_on() or not tally.trials:
        folder = setting.new_folder("memory")
        client = fork(partial(_submit, folder, setting.chance.randrange(1 << 40)))
        for number in range(KILLS):
            worker = fork(partial(_work, folder))
            time.sleep(setting.chance.uniform(0.5, 3.0))
            if number == 0:
                kill(client)
            kill(worker)
            kills += 1
        tally.trials += 1
        last = fork(partial(_work, folder))
        outcome = ask(partial(_ended, folder), WORKER_SECONDS)
        kill(last)
        _judge(tally, outcome.value if tally.outcome(outcome, f"round {tally.trials}") else None)
    tally.figures["workers killed"] = kills
    return tally


def _judge(tally: Tally, found: dict[str, Any] | None) -> None:
    what = f"round {tally.trials}"
    if found is None:
        return
    tally.checked += found["runs"]
    for run in found["lost"]:
        tally.found("lost", f"{what}: run {run} was handed out, and is not done")
    for session in found["half"]:
        tally.found("half_written", f"{what}: session {session}")
    for problem in found["verify"]:
        tally.found("half_written", f"{what}: verify says {problem}")


def _submit(folder: Path, seed: int) -> None:
    """Hand out runs for ever, and note each when it is acknowledged."""
    from hybridagi_steps import DurableRunner

    with (folder / "handed out").open("w", buffering=1) as acknowledged, _memory(folder) as memory:
        durable = DurableRunner(memory=memory)
        for number in range(60):
            session = f"session {(seed + number) % SESSIONS}"
            run = asyncio.run(durable.submit(session, f"question {number}"))
            acknowledged.write(f"{run} {session}\n")
            time.sleep(0.02)
        time.sleep(LONGEST_ANSWER_SECONDS)


def _memory(folder: Path) -> Any:
    return opened(str(folder / "steps.db"), "default", "hashing")


def _work(folder: Path) -> None:
    """Be a worker until killed."""
    import dspy

    from hybridagi_steps import DurableRunner, StepRunner
    from hybridagi_steps.testing import ScriptedLM, request_text

    def look(place: str) -> str:
        """Look somewhere."""
        time.sleep(0.02)
        return f"seen at {place}"

    def reply(request: Any) -> Any:
        if "next_tool_name" not in request_text(request):
            return {"reasoning": "r", "answer": "Paris"}
        seen = sum(message.role == "tool" for message in request.messages[-2:])
        tool = "finish" if seen or "observation_" in request_text(request) else "look"
        told = {"next_thought": "t", "next_tool_name": tool}
        return told | {"next_tool_args": {} if tool == "finish" else {"place": "home"}}

    class Agent(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.react = dspy.ReAct("question -> answer", tools=[look], max_iters=5)

        def forward(self, question: str) -> Any:
            return self.react(question=question)

    agent = Agent()
    agent.set_lm(ScriptedLM(reply))
    with _memory(folder) as memory:
        DurableRunner(StepRunner(agent, memory), poll_seconds=0.05).run_worker()


def _ended(folder: Path) -> dict[str, Any]:
    """Wait for all runs; return what is missing and what is not whole."""
    from hybridagi_steps import DurableRunner

    noted = folder / "handed out"  # missing where the client was killed before it began
    lines = noted.read_text().split("\n")[:-1] if noted.exists() else []
    runs = dict(line.split(" ", 1) for line in lines)
    lost, half = list[str](), set[str]()
    with _memory(folder) as memory:
        durable = DurableRunner(memory=memory, poll_seconds=0.05)
        for run in runs:
            result = asyncio.run(durable.result(run))
            if result.status != "completed" or result.text != "Paris":
                lost.append(f"{run}: {result.status}")
        repo = memory.repository()
        for session in set(runs.values()):
            line = asyncio.run(repo.get_steps(session))
            handed_out = [run for run, its in runs.items() if its == session]
            half.update(_wrong_in(session, line, handed_out))
        return {"runs": len(runs), "lost": lost, "half": sorted(half), "verify": memory.verify()}


def _wrong_in(session: str, line: list[Any], handed_out: list[str]) -> list[str]:
    """Return what is wrong with a session in which these runs were done."""
    wrong: list[str] = []
    if [one.sequence for one in line] != list(range(1, len(line) + 1)):
        wrong.append(f"{session}: its sequences have a gap")
    asked = [one.id for one in line if one.is_user_step()]
    for run in handed_out:
        if asked.count(run) != 1:
            wrong.append(f"{session}: the question of {run} stands there {asked.count(run)} times")
    asked_for = [cast("dict[str, Any]", call) for one in line for call in one.tool_calls or ()]
    calls = [call["id"] for call in asked_for]
    results = [one.tool_call_id for one in line if one.is_tool_step()]
    if calls != results or len(set(calls)) != len(calls):
        wrong.append(f"{session}: {len(calls)} calls have {len(results)} results")
    return wrong
