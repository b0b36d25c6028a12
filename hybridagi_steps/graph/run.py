"""ProgramRun: one run of an agent, from its first node to its result.

All state of a run is here, none on the interpreter. What it needs from the outside world it yields
as requests, so that the same code serves sync and async callers. Whatever goes wrong at a node is
written as that node's step. An Action with an ERROR edge and a tool that `observes` the error let
the run go on, with what went wrong as the result; anything else ends it. A language model that
cannot be reached always does, else a run without one would look like a finished one.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import dspy
from dspy.utils.exceptions import AdapterParseError

from hybridagi_steps.dspy_types import AgentStepList, QueryWithSteps
from hybridagi_steps.errors import LimitReachedError, UnknownToolError
from hybridagi_steps.graph.checks import label_key
from hybridagi_steps.graph.nodes import END, START, Action, Decision, Node, Program
from hybridagi_steps.graph.predictors import (
    arguments_asked,
    asked,
    choice_asked,
    offered,
    parts_of,
    place_of,
    predictor_of,
)
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.graph.prompts import shown_text
from hybridagi_steps.graph.resuming import ProgramAgent, node_prompt, past_steps, results_so_far
from hybridagi_steps.graph.run_state import (
    AgentOutput,
    FinishReason,
    Place,
    ProgramSession,
    Request,
    Result,
    RunError,
    Work,
    observed_text,
)
from hybridagi_steps.graph.tools.base import CallProgram, GraphTool, ToolUse
from hybridagi_steps.graph.tools.builtin import Speak
from hybridagi_steps.recording import step_shapes as shapes
from hybridagi_steps.recording.call_steps import NODE, FunctionStep
from hybridagi_steps.recording.manual_steps import OpenStep, RunSteps
from hybridagi_steps.recording.scopes import current_scope
from hybridagi_steps.recording.step_writer import Memory
from hybridagi_steps.recording.values import steps_held
from hybridagi_steps.recording_hooks import tell

_DEEPEST = 50


class Agent(ProgramAgent, Protocol):
    """What a run reads of its interpreter; it changes none of it."""

    nodes: dict[str, dspy.Module]
    memory: Memory | None
    max_iters: int
    decision_lm: object
    max_corrections: int
    on_error: str | None
    debug: bool
    verbose: bool


class ProgramRun:
    """One run, which changes the `session`; of `arguments` the entry program's call tells.

    It takes up again the run `before`, at the node where that one stopped.
    """

    def __init__(
        self,
        agent: Agent,
        session: ProgramSession,
        arguments: dict[str, Any],
        before: AgentOutput | None = None,
    ) -> None:
        self._agent = agent
        self._session = session
        self._arguments = arguments
        self._steps = RunSteps(agent.memory)
        self._recalled: dict[str, QueryWithSteps] = {}
        self._new_predictors: dict[str, dspy.Module | None] = {}
        self._visited = 0
        before = before or AgentOutput()
        self._before, self._waiting = before.program_trace.steps, list(before.stopped_at)
        self._inside: list[Place] | None = []
        self._path: list[Place] = []
        self._at = ""
        self._fatal: Exception | None = None
        self._observed: Exception | None = None
        self._depth = 0
        self._printed = 0
        self._last: Result | None = None
        self._last_before, self._spoken = results_so_far(self._before, agent.tools)

    def work(self) -> Work[AgentOutput]:
        """Run the entry program to its end, its limit or the first error that ends it."""
        entry = self._agent.entrypoint
        purpose = self._agent.programs.get(entry).description or entry
        finish: FinishReason = "finished"
        failure: RunError | None = None
        notes = {"resumes": self._before[-1].run_id} if self._before else {}
        try:
            yield from self._call(entry, purpose, self._arguments, notes=notes)
        except Exception as error:
            out_of_iters = error is self._fatal and isinstance(error, LimitReachedError)
            finish = "max_iters" if out_of_iters else "error"
            note = f"At the node {self._at} of the agent."
            if self._at and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            if finish == "error" and self._raises:
                raise
            failure = RunError.of(error)
        answer = self._answer if finish == "finished" else None
        return AgentOutput(
            finish_reason=finish,
            final_answer="" if answer is None else shown_text(answer.value),
            program_trace=AgentStepList(steps=self._steps.steps),
            session=self._session,
            error=failure,
            stopped_at=self._path if finish != "finished" else [],
            recording_errors=[
                RunError(type=each.error_type, message=str(each)) for each in self._steps.problems
            ],
        )

    @property
    def _raises(self) -> bool:
        """Whether what ends the run is raised: an optimiser would score what it is given."""
        agent = self._agent
        by_default = "return" if current_scope() is None else "raise"
        return agent.debug or (agent.on_error or by_default) == "raise"

    @property
    def _answer(self) -> Result | None:
        return self._spoken or (None if self._last and self._last.failed else self._last)

    @contextmanager
    def _step(self, told: FunctionStep, arguments: dict[str, Any]) -> Generator[OpenStep]:
        """Write one step around a block, and print it if so wished."""
        try:
            with self._steps.step(told, arguments) as step:
                self._print()
                yield step
        finally:
            self._print()

    def _print(self) -> None:
        if self._agent.verbose:
            for step in self._steps.steps[self._printed :]:
                print(step, flush=True)
            self._printed = len(self._steps.steps)

    def _call(
        self,
        name: str,
        purpose: str,
        arguments: dict[str, Any],
        program: GraphProgram | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Work[Result]:
        """Run a program between its ProgramCall and its ProgramEnd; return its last result."""
        is_entry = self._depth == 0
        told = FunctionStep("program", name, purpose, notes=notes or {})
        before, self._last = self._last, None
        with self._step(told, arguments) as step:
            yield from self._walk(name, program)
            result = self._last or Result(None, None)
            step.outcome = {"result": result.told}
            if is_entry:
                step.outcome = {"final_answer": None if self._answer is None else self._answer.said}
        self._last = self._last or before
        return result

    def _walk(self, name: str, program: GraphProgram | None) -> Work[None]:
        """Visit a program's nodes one after the other."""
        if self._depth >= _DEEPEST:
            raise LimitReachedError(
                f"{name!r} would be the program number {_DEEPEST + 1} inside one another.",
                limit="depth",
            )
        self._depth += 1
        try:
            program = program or self._agent.programs.get(name)
            node_id = self._waiting.pop(0)[1] if self._waiting else program.next(START)
            if not self._waiting:
                self._last, self._last_before = self._last_before, None
            while node_id != END:
                node_id = yield from self._visit(program, program.nodes[node_id])
        finally:
            self._depth -= 1

    def _visit(self, program: GraphProgram, node: Node) -> Work[str]:
        """Do what a node says and return the id of the next."""
        if self._inside is not None:
            self._path = [*self._inside, (program.name, node.id)]
        limit = self._agent.max_iters
        if self._visited >= limit:
            self._fatal = LimitReachedError(
                f"the run visited {limit} nodes, which is max_iters, and had not come to its end; "
                f"{place_of(program, node)} would have been next.",
                limit="max_iters",
            )
            raise self._fatal
        self._visited += 1
        self._at = place_of(program, node)
        if isinstance(node, Decision):
            label = yield from self._decide(program, node)
            return program.choices(node.id)[label]
        if isinstance(node, Action):
            return (yield from self._act(program, node))
        if isinstance(node, Program):
            with self._within(None if self._inside is None else self._path):
                yield from self._call(node.program, node.purpose, {}, notes={NODE: self._at})
        return program.next(node.id)

    @contextmanager
    def _within(self, path: list[Place] | None) -> Generator[None]:
        """Note where a called program stands; None: an Action called it, which is done again."""
        outside, self._inside = self._inside, path
        try:
            yield
        finally:
            self._inside = outside

    # -- actions

    def _act(self, program: GraphProgram, node: Action) -> Work[str]:
        """Use a tool and return the id of the next node, that of the ERROR edge when it failed."""
        tool = self._agent.tools.get(node.tool)
        on_error = program.on_error(node.id)
        try:
            result = yield from self._done(program, node, tool)
        except Exception as error:
            if error is self._fatal or (on_error is None and error is not self._observed):
                raise
            text = observed_text(shapes.error_fields(error)["error"])
            result = Result(text, text, failed=True)
        self._last = result
        if node.var_out is not None:
            self._session.variables[node.var_out] = result.value
        return on_error if result.failed and on_error is not None else program.next(node.id)

    def _done(self, program: GraphProgram, node: Action, tool: GraphTool | None) -> Work[Result]:
        """Do what an Action says and return its result."""
        agent = self._agent
        predictor = None if tool is None else self._predictor(program, node)
        own = (*parts_of(predictor), *(tool.own if tool is not None else ()))
        told = FunctionStep("action", node.tool, node.purpose, own=own, notes={NODE: self._at})
        arguments: dict[str, Any] = {}
        with self._step(told, arguments) as step:
            if tool is None:
                raise UnknownToolError(node.tool, list(agent.tools))
            asks = predictor is not None
            prompt, remembered = self._prompt(node, for_model=asks)
            if predictor is None:
                given = tool.from_prompt(prompt)
                kept = given if remembered == prompt else tool.remembered(remembered)
            else:
                ask = functools.partial(self._asked, predictor, tool.lm)
                with self._observing(tool):
                    given = yield from arguments_asked(ask, tool, prompt, agent.max_corrections)
                kept = given
            arguments.update(tool.told_arguments(remembered, kept))
            result = yield from self._used(tool, node, given, kept)
            step.outcome = result.told
        if isinstance(result.value, QueryWithSteps) and step.written is not None:
            self._recalled[str(step.written.id)] = result.value
        if isinstance(tool, Speak):
            self._spoken = result
        return result

    def _used(
        self, tool: GraphTool, node: Action, arguments: dict[str, Any], kept: dict[str, Any]
    ) -> Work[Result]:
        use = ToolUse(
            arguments=arguments,
            session=self._session,
            library=self._agent.programs,
            tools=list(self._agent.tools),
            memory=self._agent.memory,
            run_ids=self._steps.run_ids(),
        )
        with self._observing(tool):
            result = yield Request(
                now=functools.partial(tool.use, use), later=functools.partial(tool.ause, use)
            )
        if isinstance(result, CallProgram):
            purpose = node.purpose or result.name
            with self._within(None):
                return (yield from self._call(result.name, purpose, {}, result.program))
        return Result(result, tool.told_result(result, kept))

    # -- decisions

    def _decide(self, program: GraphProgram, node: Decision) -> Work[str]:
        labels = list(program.choices(node.id))
        predictor = self._predictor(program, node)
        assert predictor is not None  # noqa: S101 - every Decision asks a model
        how: Any = {"own": parts_of(predictor), "notes": {NODE: self._at}}
        told = FunctionStep("decision", node.id, node.purpose, tuple(offered(labels)), **how)
        arguments: dict[str, Any] = {}
        with self._step(told, arguments) as step:
            question, remembered = self._prompt(node, for_model=True)
            arguments["question"] = remembered
            ask = functools.partial(self._asked, predictor, self._agent.decision_lm)
            most = self._agent.max_corrections
            label, said = yield from choice_asked(ask, question, labels, most)
            step.outcome = {"choice": label}
            if label_key(said) != label_key(label):
                step.outcome["said"] = said
        return label

    # -- what nodes have in common

    def _predictor(self, program: GraphProgram, node: Node) -> dspy.Module | None:
        """Return the predictor of a node; a program met only now has its own for this run."""
        place = place_of(program, node)
        known = self._agent.nodes.get(place)
        if known is not None or (isinstance(node, Action) and node.disable_inference):
            return known
        if place not in self._new_predictors:
            self._new_predictors[place] = predictor_of(node, program, self._agent.tools)
        return self._new_predictors[place]

    def _prompt(self, node: Action | Decision, *, for_model: bool) -> tuple[str, str]:
        variables = self._session.variables
        tell(steps_held([variables.get(name) for name in node.var_in]))  # of earlier runs, too
        return node_prompt(node, self._at, self._session, for_model=for_model)

    def _asked(self, predictor: dspy.Module, lm: object, told: Mapping[str, str]) -> Work[Any]:
        """Ask a language model; that it cannot be asked ends the run."""
        objective = self._session.objective
        inputs = {"objective": objective, "past_steps": self._history(), **told}
        try:
            return (yield from asked(predictor, inputs, lm))
        except AdapterParseError:
            raise  # an answer, if one that cannot be read
        except Exception as error:
            self._fatal = error
            raise

    @contextmanager
    def _observing(self, tool: GraphTool) -> Generator[None]:
        """Note an error that the tool has its agent observe."""
        try:
            yield
        except tool.observes as error:
            self._observed = error
            raise

    def _history(self) -> str:
        """Return the last steps of this run as text for a prompt."""
        return past_steps(self._agent, [*self._before, *self._steps.steps], self._recalled)
