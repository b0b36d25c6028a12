"""LangGraph's `SqliteSaver`: an agent's graph whose state, its messages, is kept after each step.

The graph is the smallest agent there is: one node adds one step to the list of messages, until
there are no more. It runs with `durability="sync"`, so that each step is on disk before the next,
in WAL as the saver sets up itself. With nothing saved the same graph shows what the graph costs;
with `DeltaChannel` (opt-in, beta) only what is new is kept.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from hybridagi_steps.memory import Durability
from tests.benchmarks.peers import StepRecord
from tests.benchmarks.peers.sqlite_settings import read_back


def _extended(held: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*held, *(item for write in writes for item in write)]


class _State(TypedDict):
    messages: Annotated[list, operator.add]


class _DeltaState(TypedDict):
    messages: Annotated[list, DeltaChannel(_extended)]


class BareLoop:
    """The graph without a checkpointer."""

    state: type = _State

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._saver = self._open(folder, durability)
        self._threads = 0
        self._graph: Any = None
        self._config: Any = {}

    def _open(self, folder: Path, durability: Durability) -> SqliteSaver | None:
        """Save nothing."""
        return None

    @property
    def settings(self) -> str:
        """Say what the connection says."""
        if self._saver is None:
            return "nothing is kept: what the graph itself costs"
        return f"{read_back(self._saver.conn)}; durability='sync'"

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Run the agent: one step of the graph for each record."""
        waiting = iter(records)

        def act(_state: Any) -> dict[str, list[Any]]:
            return {"messages": [next(waiting).values]}

        def more(state: Any) -> str:
            return "act" if len(state["messages"]) < len(records) else END

        builder = StateGraph(self.state)
        builder.add_node("act", act)
        builder.add_edge(START, "act")
        builder.add_conditional_edges("act", more)
        self._graph = builder.compile(checkpointer=self._saver)
        self._threads += 1
        self._config = {
            "recursion_limit": len(records) + 2,
            "configurable": {"thread_id": str(self._threads)},
        }
        durability: Any = None if self._saver is None else "sync"
        self._graph.invoke({"messages": []}, self._config, durability=durability)

    def checkpoints(self) -> Iterator[int]:
        """Yield how many messages the graph's kept states had, newest first."""
        if self._graph is None:
            return
        for state in self._graph.get_state_history(self._config):
            yield len(state.values.get("messages", ()))

    def close(self) -> None:
        """Close the connection."""
        if self._saver is not None:
            self._saver.conn.close()


class SaverLoop(BareLoop):
    """The graph with the saver, on a connection with a synchronous setting like ours."""

    def _open(self, folder: Path, durability: Durability) -> SqliteSaver | None:
        connection = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False)
        connection.execute(f"PRAGMA synchronous = {durability}")
        saver = SqliteSaver(connection)
        saver.setup()
        return saver


class DocumentedSaverLoop(SaverLoop):
    """The saver on the connection that `from_conn_string` makes: synchronous FULL."""

    def _open(self, folder: Path, durability: Durability) -> SqliteSaver | None:
        return super()._open(folder, "full")


class DeltaSaverLoop(SaverLoop):
    """The same, its messages in a `DeltaChannel`."""

    state = _DeltaState
