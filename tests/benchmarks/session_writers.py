"""Many processes that append to one session at once: ours and the neighbours', counted afterwards.

Each process appends one message at a time and takes the time of each call; then the session is read
back by a fresh process. What was acknowledged and is not there is lost; a call that raised is
refused. Every peer runs with its own documented calls; one that is not installed is left out.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeArgument=false

from __future__ import annotations

import multiprocessing
import operator
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, TypedDict

from hybridagi_steps.protocols import Durability
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.stores.sqlite import SqliteStepStore
from tests.benchmarks.peers import OURS

SESSION = "bench"
_START_SECONDS, _END_SECONDS = 120, 1800
"""How long all of them may take to begin, and each of them to end."""
_TEXT = "The airline moved the booking to Friday and refunded the difference in fare. " * 3

Append = Callable[[str], None]
"""Appends one message that begins with a name of its own."""


class Rival(NamedTuple):
    """Who keeps a conversation, and how it is written and read."""

    name: str
    package: str
    """The module that must be there."""
    open: Callable[[Path, Durability], Append]
    read: Callable[[Path], list[str]]
    """Returns what the messages of the session begin with, in order."""


def contest(rival: Rival, processes: int, appends: int, durability: Durability) -> dict[str, Any]:
    """Let processes append to one session at once; return times in milliseconds, and losses."""
    if find_spec(rival.package) is None:
        return {"missing": rival.package}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ready, results = context.Barrier(processes + 1), context.Queue()
        work = (rival, Path(folder), durability, appends, ready, results)
        workers = [
            context.Process(target=_append_all, args=(str(n), *work)) for n in range(processes)
        ]
        for worker in workers:
            worker.start()
        ready.wait(_START_SECONDS)
        begun = time.perf_counter()
        told = [results.get(timeout=_END_SECONDS) for _ in workers]
        seconds = time.perf_counter() - begun
        for worker in workers:
            worker.join()
        stored = rival.read(Path(folder))
    acknowledged = {name for names, _, _ in told for name in names}
    times = sorted(taken for _, all_taken, _ in told for taken in all_taken)
    return {
        "acknowledged": len(acknowledged),
        "refused": sum(refused for _, _, refused in told),
        "lost": len(acknowledged - set(stored)),
        "doubled": len(stored) - len(set(stored)),
        "per_second": len(acknowledged) / seconds,
        "median_ms": median(times) * 1e3,
        "p99_ms": times[int(0.99 * (len(times) - 1))] * 1e3,
        "max_ms": times[-1] * 1e3,
    }


def _append_all(
    name: str,
    rival: Rival,
    folder: Path,
    durability: Durability,
    appends: int,
    ready: Any,
    results: Any,
) -> None:
    append = rival.open(folder, durability)
    names, times, refused = list[str](), list[float](), 0
    ready.wait(_START_SECONDS)
    for number in range(appends):
        begun = time.perf_counter()
        try:
            append(f"{name}.{number}")
        except Exception:  # noqa: BLE001, RUF100 - whatever a peer raises, the message was refused
            refused += 1
        else:
            names.append(f"{name}.{number}")
        times.append(time.perf_counter() - begun)
    results.put((names, times, refused))


def _open_ours(folder: Path, durability: Durability) -> Append:
    store = SqliteStepStore(folder / "steps.db", durability=durability)

    def append(name: str) -> None:
        message = Step(session_id=SESSION, role=MessageRole.USER, content=f"{name} {_TEXT}")
        store.commit(SESSION, [message])

    return append


def _read_ours(folder: Path) -> list[str]:
    with closing(SqliteStepStore(folder / "steps.db")) as store:
        stored = store.messages(SESSION)
        if [one.sequence for one in stored] != list(range(1, len(stored) + 1)):
            raise AssertionError("the sequences have a gap")
        return [str(one.content).partition(" ")[0] for one in stored]


def _open_agents(folder: Path, durability: Durability) -> Append:
    from tests.benchmarks.peers import StepRecord
    from tests.benchmarks.peers.agents_session import SessionWriter

    writer = SessionWriter(folder, durability)
    unused: Any = None

    def append(name: str) -> None:
        item = {"role": "user", "content": f"{name} {_TEXT}"}
        writer.add_each([StepRecord(unused, name, SESSION, item, "", [])])

    return append


def _read_agents(folder: Path) -> list[str]:
    import asyncio

    from agents import SQLiteSession

    session = SQLiteSession(SESSION, folder / "sessions.db")
    items: Any = asyncio.run(session.get_items())
    session.close()
    return [item["content"].partition(" ")[0] for item in items]


class _State(TypedDict):
    messages: Annotated[list, operator.add]


def _listen(_state: Any) -> dict[str, list[Any]]:
    return {"messages": []}


def _graph(folder: Path, durability: Durability) -> tuple[Any, Any]:
    """Return a graph that adds the messages it is given to those it keeps."""
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    connection = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False, timeout=30)
    connection.execute(f"PRAGMA synchronous = {durability}")
    builder: Any = StateGraph(_State)
    builder.add_node("listen", _listen)
    builder.add_edge(START, "listen")
    builder.add_edge("listen", END)
    graph = builder.compile(checkpointer=SqliteSaver(connection))
    return graph, {"configurable": {"thread_id": SESSION}}


def _open_langgraph(folder: Path, durability: Durability) -> Append:
    graph, config = _graph(folder, durability)

    def append(name: str) -> None:
        said = {"role": "user", "content": f"{name} {_TEXT}"}
        graph.invoke({"messages": [said]}, config, durability="sync")

    return append


def _read_langgraph(folder: Path) -> list[str]:
    graph, config = _graph(folder, "normal")
    kept = graph.get_state(config).values.get("messages", [])
    return [one["content"].partition(" ")[0] for one in kept]


RIVALS = (
    Rival(OURS, "hybridagi_steps", _open_ours, _read_ours),
    Rival("OpenAI Agents SQLiteSession", "agents", _open_agents, _read_agents),
    Rival("LangGraph SqliteSaver", "langgraph", _open_langgraph, _read_langgraph),
)
"""Who is measured; ours first."""


def kill_loop(kills: int) -> dict[str, int]:
    """Kill a process that commits units, again and again; count what is lost or half there.

    A unit is an assistant's call, the tool's result and the AgentStep behind both.
    """
    context = multiprocessing.get_context("fork")
    acknowledged: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.db"
        for number in range(kills):
            reading, writing = os.pipe()
            worker = context.Process(target=_commit_units, args=(path, str(number), writing))
            worker.start()
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                heard = pipe.read(20 + 37 * (number % 11))
                worker.kill()
                heard += pipe.read()
            worker.join()
            acknowledged |= set(heard.decode().split())
        with closing(SqliteStepStore(path)) as store:
            stored = store.messages(SESSION)
            steps = {str(step.id) for step in store.get([str(one.content) for one in stored[::2]])}
            problems = len(store.verify())
    calls = {str(one.content) for one in stored[::2]}
    answered = {str(one.tool_call_id) for one in stored[1::2]}
    return {
        "kills": kills,
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged - calls),
        "half_units": len(calls ^ answered) + len(calls ^ steps),
        "problems": problems,
    }


def _commit_units(path: Path, name: str, pipe: int) -> None:
    from hybridagi_steps.records.agent_step import AgentStep, AgentStepType

    store = SqliteStepStore(path, durability="normal")
    number = 0
    while True:
        unit = f"{name}.{number}"
        call = Step(session_id=SESSION, role=MessageRole.ASSISTANT, content=unit)
        call.tool_calls = [{"id": unit, "type": "function"}]
        result = Step(session_id=SESSION, role=MessageRole.TOOL, content=_TEXT, tool_call_id=unit)
        store.commit(SESSION, [call, result], [AgentStep(id=unit, step_type=AgentStepType.Action)])
        os.write(pipe, f"{unit}\n".encode())
        number += 1
