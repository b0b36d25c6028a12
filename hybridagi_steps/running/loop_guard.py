"""LoopGuard: a hook that notices when a run repeats its tool calls for nothing.

It keeps the last calls of the runs under way and asks `find_loops` after each. What it says names
tools, never arguments: those may hold what redaction keeps out of logs and events.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any, Literal, get_args

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.optimize.patterns import Loop, find_loops
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.running.hooks import RunHook, RunInfo
from hybridagi_steps.running.limits import ToolRequest
from hybridagi_steps.running.stopping import RunVetoed

_log = logging.getLogger("hybridagi_steps")
_LOOKED_BACK = 100
"""The last calls of a run that are looked at."""


class LoopGuard(RunHook):
    """Warns of a loop in a run's tool calls, or stops the run; `find_loops` says what one is.

    Example:
        >>> guard = LoopGuard("stop", waiting={"sleep"})  # StepRunner(agent, memory, hooks=[guard])
    """

    def __init__(
        self, action: Literal["warn", "stop"] = "warn", *, waiting: Collection[str] = ()
    ) -> None:
        """Make a guard, which may watch several runs at once.

        Args:
            action: `warn` logs each kind of loop of a call once; `stop` ends the run as vetoed.
            waiting: Tools that poll, which may be called again.

        Raises:
            InvalidSettingError: There is no such action.
        """
        if action not in get_args(Literal["warn", "stop"]):
            raise InvalidSettingError(f"action is 'warn' or 'stop', not {action!r}.")
        self._action, self._waiting = action, frozenset(waiting)
        self._lock = threading.Lock()
        self._calls: dict[str, deque[AgentStep]] = defaultdict(lambda: deque(maxlen=_LOOKED_BACK))
        self._hops: dict[str, int] = defaultdict(int)
        self._told: dict[str, set[tuple[str, ...]]] = defaultdict(set)

    def on_tool_end(self, run: RunInfo, request: ToolRequest, result: Any) -> None:
        """Look at the calls so far.

        Raises:
            RunVetoed: They hold a loop, and `action` is `stop`.
        """
        failed = isinstance(result, BaseException)
        shown = f"{type(result).__name__}: {result}" if failed else result
        with self._lock:  # tools may end in several threads
            self._hops[run.run_id] += 1
            calls = self._calls[run.run_id]
            calls.append(
                AgentStep(
                    step_type=AgentStepType.Action,
                    hop=self._hops[run.run_id],
                    inputs={"tool": request.tool, "arguments": request.arguments},
                    outputs={"result": shown},
                    run_id=run.run_id,
                )
            )
            loops = find_loops(calls, waiting=self._waiting)
        for loop in loops:
            self._note(run.run_id, loop)

    def on_run_end(self, run: RunInfo, status: str, data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's face
        """Forget the run."""
        for known in (self._calls, self._hops, self._told):
            known.pop(run.run_id, None)

    def _note(self, run_id: str, loop: Loop) -> None:
        if self._action == "stop":
            raise RunVetoed(f"the run repeats itself: {loop.outline}.")
        key = (loop.kind, *loop.calls)
        if key not in self._told[run_id]:
            self._told[run_id].add(key)
            _log.warning("run %s repeats itself: %s.", run_id, loop.outline)
