"""Trajectories: what a ReAct agent's predictor was shown, in the keys and the words of DSPy.

A step does not hold the turns before it again: it names their steps. So they are read back from
the memory that has them. A turn is stored as the Action of its tool, under the thought that led
there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import dspy
from dspy.adapters.types.tool import ToolCallResults  # pyright: ignore[reportMissingTypeStubs]

from hybridagi_steps.errors import InvalidStepError, MemoryClosedError, UnknownRunError
from hybridagi_steps.memory import OPEN_MEMORIES, StepMemory
from hybridagi_steps.messages.fences import inert_json
from hybridagi_steps.recording.call_steps import TURN, UNSAID
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType

TRAJECTORY, NEXT_TOOL = "trajectory", "next_tool_name"
TOOL_CALLS = "tool_calls"
"""The output in which the predictor of `dspy.ReActV2` gives what it calls."""
_THOUGHT, _HISTORY, _TOOLS = "next_thought", "history", "tools"


def trajectory_of(step: AgentStep, memory: StepMemory | None = None) -> dict[str, Any]:
    """Return the turns that a ReAct agent's predictor was shown before it gave a step.

    Args:
        step: A tool's Action in a `dspy.ReAct` or `dspy.ReActV2` agent, the step of its extracting
            predictor, or its ProgramEnd, which is given all turns.
        memory: Where its run is; by default the memory of this process that has it.

    Returns:
        `thought_0`, `tool_name_0`, `tool_args_0`, `observation_0` and so on, as `dspy.ReAct` writes
        its trajectory; an error's observation has its type and message, no traceback. Empty before
        the first turn, and of a step outside of any agent. A turn in which the model only called a
        tool has the thought `""`.

    Raises:
        InvalidStepError: It is no step.
        UnknownRunError: No open memory has the step's run.
    """
    if not isinstance(cast("object", step), AgentStep):
        raise InvalidStepError(f"trajectory_of reads a step, such as memory.get(id), not {step!r}.")
    own = TURN in (step.metadata or {}) and step.step_type is AgentStepType.Action
    shown: dict[str, Any] = {}
    for turn in _turns_around(step, memory):
        if turn.hop >= step.hop or (own and _turn(turn) >= _turn(step)):
            continue
        number = len(shown) // 4
        name, arguments = turn.tool, turn.arguments
        if name is None:  # it named no tool that there is
            outputs = turn.outputs or {}
            name, arguments = outputs.get("next_tool_name"), outputs.get("next_tool_args")
        shown |= {
            f"thought_{number}": "" if (turn.metadata or {}).get(UNSAID) else turn.purpose,
            f"tool_name_{number}": name,
            f"tool_args_{number}": arguments,
            f"observation_{number}": _observation(turn),
        }
    return shown


def _turns_around(step: AgentStep, memory: StepMemory | None) -> list[AgentStep]:
    if step.run_id is None or step.program_id is None:
        return []
    if memory is not None:
        run = memory.run_steps(step.run_id)
    else:
        _, run = run_of_open_memory(step.run_id) or (None, [])
    if run:
        return [s for s in run if s.program_id == step.program_id and TURN in (s.metadata or {})]
    raise UnknownRunError(
        step.run_id,
        f"no open memory has the run {step.run_id!r}; open the one that it was recorded in.",
    )


def run_of_open_memory(run_id: str) -> tuple[StepMemory, list[AgentStep]] | None:
    """Return the memory of this process that has a run, with its steps; None: none has."""
    for known in OPEN_MEMORIES.valuerefs():
        with suppress(MemoryClosedError):  # another thread may close it just now
            if (memory := known()) is not None and (steps := memory.run_steps(run_id)):
                return memory, steps
    return None


def _turn(step: AgentStep) -> int:
    return (step.metadata or {})[TURN]


def _observation(step: AgentStep) -> Any:
    error: Any = (step.outputs or {}).get("error")
    if not isinstance(error, dict):
        return step.result
    return f"Execution error in {step.tool}: {error.get('type')}: {error.get('message')}"  # pyright: ignore[reportUnknownMemberType]


def is_turn(step: AgentStep) -> bool:
    """Whether a step is a turn of a ReAct agent."""
    return step.tool is not None and TURN in (step.metadata or {})


def turn_fields(step: AgentStep, memory: StepMemory) -> dict[str, Any]:
    """Return what the predictor of `dspy.ReAct` was asked in a turn, and what it gave."""
    calls = memory.get_steps([step.program_id]) if step.program_id is not None else []
    asked = calls[0].arguments if calls else {}
    thought = "" if (step.metadata or {}).get(UNSAID) else step.purpose
    chosen = {"next_thought": thought, NEXT_TOOL: step.tool, "next_tool_args": step.arguments}
    return {**inert_json({**asked, **chosen}), TRAJECTORY: shown_trajectory(step, memory)}


def shown_trajectory(step: AgentStep, memory: StepMemory) -> str:
    """Return the turns before a step as `dspy.ReAct` shows them."""
    turns = inert_json(trajectory_of(step, memory))  # before the marks of the adapter's own
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    signature: Any = dspy.Signature(f"{', '.join(turns)} -> x")
    return adapter.format_user_message_content(signature, turns)


def calls_of_turn(step: AgentStep, memory: StepMemory) -> list[AgentStep]:
    """Return the calls that were made in the same turn as one, that one included, in order."""
    return _calls_by_turn(step, memory)[_turn(step)]


def call_turn_fields(step: AgentStep, memory: StepMemory) -> dict[str, Any]:
    """Return what the predictor of `dspy.ReActV2` was asked in a turn, and what it gave.

    As there, inputs are asked in the first turn and stand in the history of later ones.
    """
    calls = memory.get_steps([step.program_id]) if step.program_id is not None else []
    asked: dict[str, Any] = inert_json(dict(calls[0].arguments)) if calls else {}
    messages: list[dict[str, Any]] = []
    for number, made in sorted(_calls_by_turn(step, memory).items()):
        event = {**asked, _THOUGHT: _thought_of(made[0])}
        tool_calls, results = _tool_calls(number, made)
        if number == _turn(step):
            return {**event, TOOL_CALLS: tool_calls, _HISTORY: dspy.History(messages=messages)}
        answered = tool_calls.model_copy(update={"tool_call_results": results})
        messages.append({**event, TOOL_CALLS: answered})
        asked = {}
    raise InvalidStepError(f"the run of the step {step.id} has not got it any more.")


def agent_question(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a `dspy.ReActV2` agent was asked, of what its predictor is called with."""
    history: Any = arguments.get(_HISTORY)
    [*messages] = history.messages[:1] if isinstance(history, dspy.History) else ()
    first: dict[str, Any] = messages[0] if messages else {}
    context = (_HISTORY, _TOOLS, _THOUGHT, TOOL_CALLS)
    return {key: value for key, value in {**first, **arguments}.items() if key not in context}


def _calls_by_turn(step: AgentStep, memory: StepMemory) -> dict[int, list[AgentStep]]:
    """Return the calls of an agent up to the turn of one of them."""
    found: dict[int, list[AgentStep]] = {}
    for turn in _turns_around(step, memory):
        if turn.tool is not None and _turn(turn) <= _turn(step):
            found.setdefault(_turn(turn), []).append(turn)
    return {number: sorted(calls, key=lambda call: call.hop) for number, calls in found.items()}


def _thought_of(step: AgentStep) -> str:
    return "" if (step.metadata or {}).get(UNSAID) else str(inert_json(step.purpose))


def _tool_calls(turn: int, calls: list[AgentStep]) -> tuple[Any, ToolCallResults]:
    """Return calls and their results, tied by ids as `dspy.ReActV2` makes them."""
    ids = [f"call_{turn}_{place}" for place in range(len(calls))]
    made: list[dict[str, Any]] = [
        {"id": call_id, "name": call.tool, "args": inert_json(dict(call.arguments))}
        for call_id, call in zip(ids, calls, strict=True)
    ]
    told: Any = dspy.ToolCalls.model_validate({"tool_calls": made})
    results = ToolCallResults.from_tool_calls_and_values(
        told,
        [inert_json(_observation(call)) for call in calls],
        [call.status == "error" for call in calls],
    )
    return told, results
