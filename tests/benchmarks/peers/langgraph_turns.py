"""LangGraph: a graph of one node over `MessagesState`, kept by `SqliteSaver` after each turn.

The saver is in WAL with synchronous NORMAL, as ours is, and writes before a turn returns.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from tests.benchmarks.peers import answered
from tests.benchmarks.peers.sqlite_settings import read_back


class SaverTalker:
    """One graph; each session is a thread of it."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = NORMAL")
        saver = SqliteSaver(self._connection)
        saver.setup()
        builder = StateGraph(MessagesState)
        builder.add_node("answer", _answered)
        builder.add_edge(START, "answer")
        builder.add_edge("answer", END)
        self._graph: Any = builder.compile(checkpointer=saver)
        self.settings = f"{read_back(self._connection)}; durability='sync'"

    def begin(self, session: str, said: Sequence[str]) -> None:
        """Put messages into the state of a new thread."""
        kinds = (HumanMessage, AIMessage)
        messages = [kinds[n % 2](text) for n, text in enumerate(said)]
        self._graph.update_state(_config(session), {"messages": messages}, as_node="answer")

    def turn(self, session: str, message: str) -> str:
        """Invoke the graph with one more message."""
        given = {"messages": [HumanMessage(message)]}
        state = self._graph.invoke(given, _config(session), durability="sync")
        return str(state["messages"][-1].content)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _answered(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(answered(len(state["messages"])))]}


def _config(session: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": session}}
