"""What a run hears from DSPy: models asked and answering, and the tools that a model asks for.

Stands behind the recorder among the callbacks, so a step is recorded before it is told of here.
"""


# ruff: noqa: ARG002 - the signatures are those of DSPy
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from typing import Any

import anyio.from_thread
import dspy
from dspy.utils.callback import ACTIVE_CALL_ID

from hybridagi_steps.messages.parts import is_call_id
from hybridagi_steps.recording import step_shapes as shapes
from hybridagi_steps.recording.scopes import override
from hybridagi_steps.recording.usage import MeteringCallback, Usage
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.token_stream import CLOSING_TOOLS
from hybridagi_steps.running.turn import ToolTurn


class SpendingCallback(MeteringCallback):
    """Counts what a run's models cost."""

    def __init__(self, run: ActiveRun) -> None:
        super().__init__()
        self._run = run

    def begin(self, inputs: dict[str, Any]) -> None:
        """Count the call."""
        self._run.meter.ask()

    def end(self, begun: None, usage: Usage, outputs: Any, exception: BaseException | None) -> None:
        """Add what it cost."""
        if exception is None:
            self._run.meter.answered(usage)


class RunCallback(SpendingCallback):
    """Follows one run."""

    def __init__(self, run: ActiveRun) -> None:
        super().__init__(run)
        self._used_ids: set[str] = set()
        self._said: dict[str | None, str] = {}

    def on_lm_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Stop here when the run was stopped or has spent what it may; else count and tell."""
        self._run.check_limits()
        if not _reaches_event_loop():
            override(send_stream=None)  # DSPy would fail to send pieces, and the call with it
        super().on_lm_start(call_id, instance, inputs)
        self._run.tell_now("on_model_start", _messages(inputs))
        self._run.check()

    def on_lm_end(
        self, call_id: str, outputs: object, exception: BaseException | None = None
    ) -> None:
        """Note what it said and tell."""
        super().on_lm_end(call_id, outputs, exception)
        if exception is None:
            self._said[ACTIVE_CALL_ID.get()] = shapes.said(outputs)
        self._run.tell_now("on_model_end", outputs)

    def on_module_end(
        self, call_id: str, outputs: object, exception: BaseException | None = None
    ) -> None:
        """Note the tools that a predictor asks for."""
        said = self._said.pop(call_id, None)
        if exception is not None or not isinstance(outputs, dspy.Prediction):
            return
        calls = self._calls(outputs)
        if calls:
            thought = outputs.get("next_thought")
            if thought is None or isinstance(thought, str):
                # Beside native calls DSPy drops the text; it is what the model said.
                self._run.turn.announce(calls, thought or said, None)
            else:
                self._run.turn.announce(calls, None, str(getattr(thought, "content", thought)))

    def _calls(self, outputs: dspy.Prediction) -> list[ToolTurn]:
        name = outputs.get("next_tool_name")
        if isinstance(name, str):
            arguments = outputs.get("next_tool_args")
            asked = [ToolTurn(name, dict(arguments) if isinstance(arguments, dict) else {})]
        else:
            asked = [
                self._turn(call)
                for value in (outputs[key] for key in outputs.keys())  # noqa: SIM118 - no dict
                if isinstance(value, dspy.ToolCalls)
                for call in value.tool_calls
            ]
        return [call for call in asked if call.name not in CLOSING_TOOLS]

    def _turn(self, call: Any) -> ToolTurn:
        """Return a call with the provider's id, unless that is none or used before."""
        turn = ToolTurn(str(call.name), dict(call.args or {}))
        given = getattr(call, "id", None)
        if isinstance(given, str) and is_call_id(given) and given not in self._used_ids:
            turn.call_id = given
            self._used_ids.add(given)
        return turn


def _reaches_event_loop() -> bool:
    """Whether pieces can be sent from here: on an event loop, or in a worker thread of one.

    Threads that a program or `dspy.Parallel` starts are neither.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:
            return False
        except (asyncio.CancelledError, CancelledError):
            return True
    return True


def _messages(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    named: Any = inputs.get("messages") or (inputs.get("kwargs") or {}).get("messages")
    if isinstance(named, list):
        return named
    prompt = inputs.get("prompt")
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []
