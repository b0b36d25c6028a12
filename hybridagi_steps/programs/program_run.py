"""ProgramRun: one run of an agent, from its first node to its result.

All state of a run is here, none on the interpreter. The run walks the graph; what it needs from the
outside world it yields as requests, so that the same code serves sync and async callers. Whatever
goes wrong at a node is written as that node's step and ends the run; cancellation passes through.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import dspy

from hybridagi_steps.errors import (
    DecisionError,
    LimitReachedError,
    ToolInputError,
    UnknownToolError,
)
from hybridagi_steps.programs import step_shapes as shapes
from hybridagi_steps.programs.adapters import StepContext
from hybridagi_steps.programs.call_steps import FunctionStep
from hybridagi_steps.programs.decision_labels import chosen, fallback_of, offered
from hybridagi_steps.programs.driving import Request, Work
from hybridagi_steps.programs.graph_program import GraphProgram
from hybridagi_steps.programs.node_asking import asked
from hybridagi_steps.programs.node_predictors import place_of, predictor_of
from hybridagi_steps.programs.program_checks import label_key
from hybridagi_steps.programs.program_library import ProgramLibrary
from hybridagi_steps.programs.program_nodes import END, START, Action, Decision, Node, Program
from hybridagi_steps.programs.prompt_rendering import rendered, shown_text
from hybridagi_steps.programs.run_state import AgentOutput, FinishReason, ProgramSession, RunError
from hybridagi_steps.programs.run_steps import RunSteps
from hybridagi_steps.programs.tools.graph_tool import CallProgram, GraphTool, ToolUse
from hybridagi_steps.programs.tools.talking import Speak
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.predictions import AgentStepList, QueryWithSteps

_DEEPEST = 50


@dataclass(frozen=True)
class RunSettings:
    """What an interpreter decides for all its runs."""

    entrypoint: str
    library: ProgramLibrary
    tools: Mapping[str, GraphTool]
    predictors: Mapping[str, dspy.Module]
    memory: Any
    num_history: int
    max_iters: int
    commit_decision_steps: bool
    decision_lm: Any
    max_corrections: int


class Result(NamedTuple):
    """What an Action or a program gave."""

    value: Any
    """The thing itself, for variables and tools."""
    told: Any
    """The same for the record: recalled steps stand in it as their ids."""


class ProgramRun:
    """One run.

    Args:
        settings: What the interpreter decides.
        session: The run's state, changed as it goes.
        arguments: What the caller gave, as the entry program's call tells it.
    """

    def __init__(
        self, settings: RunSettings, session: ProgramSession, arguments: dict[str, Any]
    ) -> None:
        self._settings = settings
        self._session = session
        self._arguments = arguments
        self._steps = RunSteps(settings.memory)
        self._recalled: dict[str, QueryWithSteps] = {}
        self._new_predictors: dict[str, dspy.Module | None] = {}
        self._visited = 0
        self._out_of_iters: LimitReachedError | None = None
        self._depth = 0
        self._last: Result | None = None
        self._spoken: Result | None = None

    def work(self) -> Work[AgentOutput]:
        """Run the entry program to its end, its limit or its first error."""
        entry = self._settings.entrypoint
        purpose = self._settings.library.get(entry).description or entry
        finish: FinishReason = "finished"
        failure: RunError | None = None
        try:
            yield from self._call(entry, purpose, self._arguments)
        except Exception as error:
            finish = "max_iters" if error is self._out_of_iters else "error"
            failure = RunError(**shapes.error_fields(error)["error"])
        return AgentOutput(
            finish_reason=finish,
            final_answer="" if self._answer is None else shown_text(self._answer.value),
            program_trace=AgentStepList(steps=self._steps.steps),
            session=self._session,
            error=failure,
        )

    @property
    def _answer(self) -> Result | None:
        return self._spoken or self._last

    # -- programs

    def _kept(tool: GraphTool, remembered: str) -> dict[str, Any]:
    """Return the arguments that the remembered form of a prompt makes."""
    try:
        return tool.from_prompt(remembered)
    except ToolInputError:
        return {"prompt": remembered}


def _parts(module: dspy.Module | None) -> tuple[Any, ...]:
    """Return a node's module and the predictors in it: all that the node's step tells."""
    if module is None:
        return ()
    return tuple({id(part): part for part in (module, *module.predictors())}.values())
