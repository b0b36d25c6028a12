"""Retrieval tasks with known answers, made of the real runs that travel in the package.

Two questions are asked of every source that can answer them. *State before a step*: what an agent
knew before a step (the last user message, else the task, and the step before) should find steps of
other runs that used the same function or tool; the agent's own run is out of sight. *Task*: a run's
task should find the steps of that run. Not asked: FireAct for same functions (it has one),
tau-bench for `respond` (most of its steps), SWE-agent (three runs) and Who&When for tasks (its
first step quotes the task: the answer would stand in the question). All of their steps are in the
memory that is searched. Beside these a task of ToolBench should find steps of other runs that used
its tools: which tool can do this. It is no part of the mean, which is over the six above.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from hybridagi_steps.exchange.shipped_runs import shipped_runs
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.step_text import cut, own_text, text_hash
from hybridagi_steps.search.formulas import Aim

Half = Literal["tune", "report"]
"""Which runs ask: those on which constants are chosen, or those on which they are reported."""

_REQUEST, _PREVIOUS = 300, 400
_TALK = ("respond",)
_SOURCES = {
    "tau": "tau-bench",
    "fireact": "FireAct",
    "whowhen": "Who&When",
    "sweagent": "SWE-agent",
    "toolbench": "ToolBench",
}
_SAME_FUNCTION: dict[str, Aim] = {"tau-bench": "next", "Who&When": "next", "ToolBench": "tool"}
"""What is asked for: what an agent did next or, among thousands of tools, which can do this."""
_FROM_TASK = ("tau-bench", "FireAct", "ToolBench")
_WITH_TOOLS = ("ToolBench",)


@dataclass(frozen=True)
class Question:
    """A query whose answer is known."""

    text: str
    run_id: str
    unseen: bool
    """Whether the run that asks is kept out of the answer."""
    wanted: frozenset[int]
    """Hashes of the own texts that answer it."""
    state: AgentStep | None = None
    """The step before, where the question is what to do after it."""
    tools: tuple[str, ...] = ()
    """What somebody may name who knows of which tools the answers are: all that any question of
    the source is about, or those of the run sought."""


@dataclass(frozen=True)
class Task:
    """Questions of one kind about one source."""

    name: str
    questions: list[Question]
    aim: Aim
    in_mean: bool = True
    """Whether it is one of the tasks that the mean is over."""


def shipped_tasks() -> dict[str, str]:
    """Return what each shipped run was asked to do, by run id."""
    return {row["run_id"]: row["task"] for row in shipped_runs()}


def retrieval_tasks(steps: list[AgentStep], half: Half) -> list[Task]:
    """Return the tasks, asked by the runs of one half."""
    tasks = shipped_tasks()
    asking = half_of_runs(tasks, half)
    found = [
        *(
            Task(f"state → same function, {name}", _same_function(_of(steps, name), tasks), aim)
            for name, aim in _SAME_FUNCTION.items()
        ),
        *(
            Task(f"task → steps, {name}", _from_task(_of(steps, name), tasks), "episode")
            for name in _FROM_TASK
        ),
        *(
            Task(f"task → its tools, {name}", _tools_of(_of(steps, name), tasks), "tool", False)
            for name in _WITH_TOOLS
        ),
    ]
    return [
        replace(task, questions=[asked for asked in task.questions if asked.run_id in asking])
        for task in found
    ]


def half_of_runs(run_ids: Iterable[str], half: Half) -> set[str]:
    """Return every other run of each source, in the order of a hash: nobody chose them."""
    chosen: set[str] = set()
    for source in _SOURCES.values():
        runs = sorted((run for run in run_ids if _source_of(run) == source), key=_shuffled)
        chosen.update(runs[half == "report" :: 2])
    return chosen


def _shuffled(run_id: str) -> bytes:
    return hashlib.sha256(run_id.encode()).digest()


def _same_function(steps: list[AgentStep], tasks: dict[str, str]) -> list[Question]:
    by_id = {id_text(step.id): step for step in steps}
    found: list[Question] = []
    users = _users(steps)
    for same in users.values():
        for step in same:
            wanted = _texts(other for other in same if other.run_id != step.run_id)
            if wanted:
                run_id = str(step.run_id)
                parent = by_id.get(id_text(step.parent_id)) if step.parent_id else None
                text = _state(step, parent, tasks[run_id])
                found.append(Question(text, run_id, True, wanted, parent, (*users,)))
    return found


def _users(steps: Iterable[AgentStep]) -> dict[str, list[AgentStep]]:
    """Return the steps that used each tool."""
    users: dict[str, list[AgentStep]] = {}
    for step in steps:
        if step.step_type == AgentStepType.Action and step.tool and step.tool not in _TALK:
            users.setdefault(step.tool, []).append(step)
    return users


def _state(step: AgentStep, parent: AgentStep | None, task: str) -> str:
    """Return what was known before a step was chosen; nothing of the step itself."""
    request = cut((step.metadata or {}).get("last_user") or task, _REQUEST)
    return f"{request} | {cut(own_text(parent), _PREVIOUS)}" if parent else request


def _from_task(steps: list[AgentStep], tasks: dict[str, str]) -> list[Question]:
    runs = _by_run(steps)
    return [
        Question(tasks[run], run, False, _texts(made), tools=_tools(made))
        for run, made in runs.items()
    ]


def _tools_of(steps: list[AgentStep], tasks: dict[str, str]) -> list[Question]:
    users = _users(steps)
    found: list[Question] = []
    for run_id, made in _by_run(steps).items():
        same = [other for tool in _users(made) for other in users[tool] if other.run_id != run_id]
        if same:
            found.append(Question(tasks[run_id], run_id, True, _texts(same), tools=_tools(same)))
    return found


def _tools(steps: Iterable[AgentStep]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.tool for step in steps if step.tool))


def _texts(steps: Iterable[AgentStep]) -> frozenset[int]:
    return frozenset(text_hash(own_text(step)) for step in steps)


def _by_run(steps: Iterable[AgentStep]) -> dict[str, list[AgentStep]]:
    runs: dict[str, list[AgentStep]] = {}
    for step in steps:
        runs.setdefault(str(step.run_id), []).append(step)
    return runs


def _of(steps: list[AgentStep], source: str) -> list[AgentStep]:
    return [step for step in steps if _source_of(str(step.run_id)) == source]


def _source_of(run_id: str) -> str:
    return _SOURCES[run_id.partition("-")[0]]
