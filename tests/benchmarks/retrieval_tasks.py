"""Retrieval tasks with known answers, made of the real runs that travel in the package.

Two questions are asked of every source that can answer them. *State before a step*: what an agent
knew before a step (the last user message, else the task, and the step before) should find steps of
other runs that used the same function or tool; the agent's own run is out of sight. *Task*: a run's
task should find the steps of that run. Not asked: FireAct for same functions (it has one),
tau-bench for `respond` (most of its steps), SWE-agent (three runs) and Who&When for tasks (its
first step quotes the task: the answer would stand in the question). All of their steps are in the
memory that is searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from hybridagi_steps.exchange.shipped_runs import shipped_runs
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.step_text import cut, own_text, text_hash

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
_SAME_FUNCTION = ("tau-bench", "Who&When", "ToolBench")
_FROM_TASK = ("tau-bench", "FireAct", "ToolBench")


@dataclass(frozen=True)
class Question:
    """A query whose answer is known."""

    text: str
    run_id: str
    unseen: bool
    """Whether the run that asks is kept out of the answer."""
    wanted: frozenset[int]
    """Hashes of the own texts that answer it."""


@dataclass(frozen=True)
class Task:
    """Questions of one kind about one source."""

    name: str
    questions: list[Question]


def shipped_tasks() -> dict[str, str]:
    """Return what each shipped run was asked to do, by run id."""
    return {row["run_id"]: row["task"] for row in shipped_runs()}


def retrieval_tasks(steps: list[AgentStep], half: Half) -> list[Task]:
    """Return the tasks, asked by the runs of one half."""
    tasks = shipped_tasks()
    asking = half_of_runs(tasks, half)
    same = [
        Task(f"state → same function, {source}", list(_same_function(_of(steps, source), tasks)))
        for source in _SAME_FUNCTION
    ]
    own = [
        Task(f"task → steps, {source}", list(_from_task(_of(steps, source), tasks)))
        for source in _FROM_TASK
    ]
    return [
        Task(task.name, [asked for asked in task.questions if asked.run_id in asking])
        for task in (*same, *own)
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


def _same_function(steps: list[AgentStep], tasks: dict[str, str]) -> Iterator[Question]:
    by_id = {id_text(step.id): step for step in steps}
    users: dict[str, list[AgentStep]] = {}
    for step in steps:
        if step.step_type == AgentStepType.Action and step.tool and step.tool not in _TALK:
            users.setdefault(step.tool, []).append(step)
    for same in users.values():
        for step in same:
            others = (other for other in same if other.run_id != step.run_id)
            wanted = frozenset(text_hash(own_text(other)) for other in others)
            if wanted:
                run_id = str(step.run_id)
                parent = by_id.get(id_text(step.parent_id)) if step.parent_id else None
                yield Question(_state(step, parent, tasks[run_id]), run_id, True, wanted)


def _state(step: AgentStep, parent: AgentStep | None, task: str) -> str:
    """Return what was known before a step was chosen; nothing of the step itself."""
    request = cut((step.metadata or {}).get("last_user") or task, _REQUEST)
    return f"{request} | {cut(own_text(parent), _PREVIOUS)}" if parent else request


def _from_task(steps: list[AgentStep], tasks: dict[str, str]) -> Iterator[Question]:
    runs: dict[str, set[int]] = {}
    for step in steps:
        runs.setdefault(str(step.run_id), set()).add(text_hash(own_text(step)))
    for run_id, wanted in runs.items():
        yield Question(tasks[run_id], run_id, False, frozenset(wanted))


def _of(steps: list[AgentStep], source: str) -> list[AgentStep]:
    return [step for step in steps if _source_of(str(step.run_id)) == source]


def _source_of(run_id: str) -> str:
    return _SOURCES[run_id.partition("-")[0]]
