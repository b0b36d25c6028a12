"""Rounds of tool calls: which tool serves which call, and whose message is stored next.

A round is one answer of a model with its calls. Calls are stored before their tools run, results in
the order of the calls, and a round that begins while one is open has its messages after that one's.
Safe for threads; nothing here stores anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import orjson

from hybridagi_steps.messages.names import tool_name
from hybridagi_steps.records.ids import new_id
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.message import Step, StepMetrics


@dataclass(slots=True, eq=False)
class ToolTurn:
    """One tool call and its result."""

    name: str
    arguments: dict[str, Any]
    call_id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")
    step_id: UUID = field(default_factory=new_id)
    """The AgentStep that tells it."""
    begun: bool = False
    result: Step | None = None
    """The message to be stored, once there is one."""

    def as_message_part(self) -> dict[str, Any]:
        """Return the call as providers write it."""
        arguments = orjson.dumps(json_value(self.arguments, [])).decode()
        function = {"name": tool_name(self.name), "arguments": arguments}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(slots=True, eq=False)
class Round:
    """An assistant's message with calls, and their results."""

    calls: list[ToolTurn]
    content: str | None = None
    reasoning: str | None = None
    metrics: StepMetrics | None = None
    stored: bool = False
    answered: int = 0
    """Results stored."""


class Rounds:
    """The rounds of one run that are not wholly stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Round] = []
        self._announced: Round | None = None

    def announce(self, asked: Round, unserved: Callable[[ToolTurn], Step]) -> None:
        """Note what a model asks for; its round is open when the first of its tools begins.

        Calls of open rounds that no tool has begun to serve are given the result of `unserved`.
        """
        with self._lock:
            for call in self._calls():
                if not call.begun and call.result is None:
                    call.result = unserved(call)
            self._announced = asked

    def begin(
        self, name: str, arguments: dict[str, Any], metrics: Callable[[], StepMetrics | None]
    ) -> ToolTurn:
        """Return the call that a tool begins to serve; one that nobody asked for is a round.

        `metrics` is called when a round opens: what its model took.
        """
        with self._lock:
            call = self._asked_for(name, arguments, metrics)
            if call is None:
                call = ToolTurn(name, arguments)
                self._open.append(Round([call], metrics=metrics()))
            call.begun = True
            return call

    def reopen(self, calls: Sequence[ToolTurn]) -> None:
        """Take up calls whose message is stored already."""
        with self._lock:
            self._open.append(Round(list(calls), stored=True))

    def answer(self, call: ToolTurn, result: Step) -> None:
        """Give a call its result, the first one if a tool ends while it is cut off."""
        with self._lock:
            if call.result is None:
                call.result = result

    def waits(self, call: ToolTurn) -> bool:
        """Tell whether a call's result is still to be stored."""
        with self._lock:
            return any(call in each.calls[each.answered :] for each in self._open)

    def end(self) -> list[ToolTurn]:
        """Open no round any more; return the calls without a result."""
        with self._lock:
            self._announced = None
            return [call for call in self._calls() if call.result is None]

    def next_due(self) -> tuple[Round, Step | None] | None:
        """Return whose message is to be stored next, a result or (None) that of its calls."""
        with self._lock:
            while self._open:
                first = self._open[0]
                if not first.stored:
                    return first, None
                if first.answered < len(first.calls):
                    result = first.calls[first.answered].result
                    return None if result is None else (first, result)
                self._open.pop(0)
            return None

    def drop(self, refused: Round) -> None:
        """Forget a round whose calls were not stored: its tools do not run."""
        with self._lock:
            self._open.remove(refused)

    def _calls(self) -> list[ToolTurn]:
        return [call for each in self._open for call in each.calls]

    def _asked_for(
        self, name: str, arguments: dict[str, Any], metrics: Callable[[], StepMetrics | None]
    ) -> ToolTurn | None:
        """Return the call that a model asked for, its round being open from now on."""
        for each in (self._announced, *self._open):
            waiting = [] if each is None else [c for c in each.calls if not c.begun]
            fitting = [call for call in waiting if call.name == name]
            exact = [call for call in fitting if call.arguments == arguments]
            if not fitting or each is None:
                continue
            if each is self._announced:
                each.metrics, self._announced = metrics(), None
                self._open.append(each)
            return (exact or fitting)[0]
        return None
