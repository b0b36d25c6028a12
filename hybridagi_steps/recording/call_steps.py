"""What each kind of call leaves in the memory: the steps of programs, predictors, tools, functions.

A program is a ProgramCall and a ProgramEnd around what it does; a predictor is an Action, or a
Decision when its only output is a closed choice; a tool is an Action, whose purpose in a ReAct
agent is the thought that led to it. Knows how calls read as steps, not how they are noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import dspy

from hybridagi_steps.recording import step_shapes as shapes
from hybridagi_steps.recording.attempts import ATTEMPTS, Attempt, Attempts, compared
from hybridagi_steps.recording.call_tree import Call
from hybridagi_steps.recording.react_loop import ReActLoop
from hybridagi_steps.recording.step_writer import StepWriter
from hybridagi_steps.recording.usage import Usage
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.store_values import CLOSING

TURN = "turn"
"""The key of metadata that says in which turn of a ReAct agent a tool was called, from 0."""
UNSAID = "unsaid"
"""The key of metadata that marks a tool which an agent called without saying why."""
NODE = "node"
"""The key of metadata that names the node of a graph program which a step tells, `program.node`."""
CHOSEN_FIELD = "output_field"
"""The key of a Decision's metadata that says in which output field the predictor chose."""
REASONED = "reasoning"
"""The key of a step's metadata that keeps why its predictor answered as it did."""
_CODERS = ("RLM", "CodeAct")
"""Programs of DSPy that set their interpreter up by code of their own, and give it their inputs."""


Kind = Literal["program", "predict", "tool", "function"]
_TRAJECTORIES_KEPT = 16
Trajectory = tuple[Any, dict[str, Any]]
"""What an agent gives back of its turns, and the steps that tell them already."""
_CANCELLED = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)


@dataclass(slots=True)
class Doing:
    """What a call in flight is, and what it has cost so far."""

    kind: Kind
    name: str
    usage: Usage = field(default_factory=Usage)
    loop: ReActLoop | None = None
    prompts: list[LMCall] = field(default_factory=list[LMCall])
    """What its models were sent and gave, where that is to be kept."""
    answer_text: str = ""
    """The text of the model's last answer."""
    trajectories: list[Trajectory] = field(default_factory=list[Trajectory])
    """Those that came out of agents inside."""
    function: FunctionStep | None = None
    """For a tool that is a recorded function: how that reads as a step."""
    asked: bool = False
    """Whether a predictor in it has answered."""
    attempts: Attempts | None = None
    """What it tries, of which it chooses one."""
    begun: bool = False
    """Whether its ProgramCall was stored; an end without a beginning is left out."""

    def add_answer(self, usage: Usage, text: str) -> None:
        """Note what a model answered, and what that cost."""
        self.usage.add(usage)
        self.answer_text = text


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """How a plain function reads as a step."""

    kind: Literal["action", "decision", "program"]
    name: str
    purpose: str
    options: tuple[str, ...] = ()
    own: tuple[Any, ...] = ()
    """Modules and tools that do its work: this step tells what they did, they leave none."""
    function: Callable[..., Any] | None = None
    """The function; None when the step's arguments are filled in until it ends."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Kept in the metadata of its steps."""
    watch: Callable[[AgentStep, bool], None] | None = None
    """Is given each of its steps as it was written, and whether that could be stored."""


CODE = FunctionStep("action", "python", "Run code")
"""How code reads as a step that RLM, CodeAct or another program wrote, whatever interprets it."""

ASKED = FunctionStep("action", "", "Ask the language model")
"""How it reads that a program asks its model without a predictor."""


class CallSteps:
    """Writes the steps of calls."""

    def __init__(self, writer: StepWriter) -> None:
        self._writer = writer

    def begin_program(self, call: Call, purpose: str, arguments: dict[str, Any]) -> None:
        """Write the ProgramCall that everything inside belongs to."""
        inputs = {"program": call.state.name, "purpose": purpose, "arguments": arguments}
        tail = self._writer.write(
            call, AgentStepType.ProgramCall, inputs, None, follows=call.followed
        )
        if tail is None:
            return
        call.state.begun, call.within = True, None  # what it does stands inside the program
        call.program_id = str(tail.step_id)
        call.path.leave(call.strand, call.followed, tail)

    def end(self, call: Call, outputs: object, exception: BaseException | None) -> None:
        """Write the last step of a call."""
        self._write_end(call, outputs, exception)
        above = call.parent
        if call.attempt is None or above is None or not isinstance(above.state, Doing):
            return
        if above.state.attempts is not None and above.attempt is not call.attempt:
            above.state.attempts.ended.append(Attempt(outputs, call.attempt))
            if above.attempt is not None:
                above.attempt += call.attempt

    def _write_end(self, call: Call, outputs: object, exception: BaseException | None) -> None:
        match call.state:
            case Doing(kind="predict"):
                self._end_predict(call, outputs, exception)
            case Doing(kind="tool"):
                self._end_tool(call, outputs, exception)
            case Doing(kind="function") if call.subject.kind != "program":
                self._end_function(call, call.subject, outputs, exception)
            case Doing():
                losers = self._told_attempts(call, outputs)
                self._end_program(call, shapes.output_fields(outputs), exception)
                if losers and call.run is not None:
                    self._writer.set_apart(call.run, losers, f"attempt:{call.call_id}")
            case _:
                """A level that only sets its steps apart."""

    def _told_attempts(self, call: Call, outputs: object) -> list[AgentStep]:
        """Let a ProgramEnd tell of what was tried; return the steps that ordinary recall loses."""
        attempts: Attempts | None = call.state.attempts
        losers: list[Attempt] = []
        if attempts is None:
            told = compared(call.subject, call.inputs, outputs)
        else:
            attempts.close()
            told, losers = attempts.told(outputs)
        if told:
            call.notes = {**call.notes, ATTEMPTS: told}
        return [] if call.scope else [step for attempt in losers for step in attempt.steps]

    def _end_program(
        self, call: Call, outputs: dict[str, Any], exception: BaseException | None
    ) -> None:
        doing: Doing = call.state
        if not doing.begun and call.watch is None:
            return
        if doing.loop is not None:
            self._keep_idle_thought(call, doing.loop)
            trajectory = outputs.get(doing.loop.trajectory_field)
            doing.trajectories.append((trajectory, doing.loop.trajectory()))
        for name, value in outputs.items():
            for trajectory, steps in doing.trajectories:
                if value is trajectory and value is not None:
                    outputs[name] = steps
        if call.parent is not None and isinstance(call.parent.state, Doing):
            above = call.parent.state
            above.trajectories = [*above.trajectories, *doing.trajectories][-_TRAJECTORIES_KEPT:]
        inputs = {"program": doing.name}
        self._end(call, AgentStepType.ProgramEnd, inputs, outputs, exception, stored=doing.begun)

    def _end_predict(self, call: Call, outputs: object, exception: BaseException | None) -> None:
        """Write what a predictor gave; a ReAct agent's thought waits for its tool."""
        predict = call.subject
        if call.parent is not None and isinstance(call.parent.state, Doing):
            call.parent.state.asked = True
        arguments = shapes.predict_arguments(predict, call.inputs)
        loop = _loop_around(call)
        call.note_recalled(shapes.steps_in_demos(predict, call.inputs))
        if loop is not None:
            if exception is None and loop.agent.react is predict and call.parent is not None:
                self._keep_idle_thought(call.parent, loop)
                call.parent.recalled.update(call.recalled)
                doing: Doing = call.state
                fields = shapes.output_fields(outputs)
                fields["next_thought"] = fields.get("next_thought") or doing.answer_text
                loop.think(call, arguments, fields, doing.usage, doing.prompts)
                return
            if "trajectory" in arguments:
                arguments["trajectory"] = loop.trajectory()
        purpose = shapes.purpose_of(predict)
        choice = shapes.choice_of(shapes.signature_of(predict, call.inputs))
        if choice is None:
            inputs: dict[str, Any] = {"purpose": purpose, "arguments": arguments}
            fields = shapes.output_fields(outputs)
            self._end(call, AgentStepType.Action, inputs, fields, exception)
            return
        inputs = {"purpose": purpose, "options": choice.options, "arguments": arguments}
        call.notes = {**call.notes, CHOSEN_FIELD: choice.field}
        fields = {} if outputs is None else shapes.decided(choice, outputs)
        self._end(call, AgentStepType.Decision, inputs, fields, exception)

    def _end_tool(self, call: Call, outputs: object, exception: BaseException | None) -> None:
        """Write what a tool gave; what closes a ReAct agent stands beside its path, not on it."""
        doing: Doing = call.state
        loop = _loop_around(call)
        thought, thinking_ms = ("", 0.0) if loop is None else loop.act(doing.usage, doing.prompts)
        step = doing.function or FunctionStep("action", doing.name, doing.name)
        if loop is not None and loop.thought is not None:
            call.maker = loop.thought.maker
        own = step.purpose if step.purpose != step.name else ""
        purpose = thought or own or shapes.first_line(call.subject.desc or "") or doing.name
        step = replace(step, name=doing.name, purpose=purpose)
        if loop is not None:
            call.notes = {**call.notes, TURN: loop.turns - 1}
            if not thought:
                call.notes[UNSAID] = True
            if doing.name == loop.closing_tool and exception is None:
                call.scope, call.outer_path = call.scope or CLOSING, None
        step_id = self._end_function(call, step, outputs, exception, thinking_ms=thinking_ms)
        if loop is not None and step_id is not None:
            loop.step_ids.append(step_id)

    def keep_reasoning(self, call: Call, outputs: object) -> None:
        """Keep what a predictor said to explain itself whose answer the step of `call` tells."""
        step = call.subject
        if isinstance(step, FunctionStep) and step.own and isinstance(outputs, dspy.Prediction):
            said = {name: outputs.get(name) for name in shapes.REASONING}
            if reasons := [text for text in said.values() if text is not None]:
                call.notes = {**call.notes, REASONED: reasons[0]}

    def is_of_tool(self, call: Call | None, step: FunctionStep) -> bool:
        """Whether `call` is that of a tool which is this very function: its step tells of both."""
        if call is None or not isinstance(call.state, Doing) or call.state.kind != "tool":
            return False
        if step.kind == "program" or call.state.function is not None:
            return False
        if not shapes.wraps(call.subject.func, step.function):
            return False
        call.state.function = step
        return True

    def code_given(self, call: Call | None, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what code that `call` runs is told of; None: no model has written that code."""
        coders = tuple(kind for name in _CODERS if (kind := getattr(dspy, name, None)) is not None)
        if call is None or not isinstance(call.subject, coders):
            return {name: value for name, value in inputs.items() if value}
        return {"code": inputs.get("code")} if call.state.asked else None

    def _end_function(
        self,
        call: Call,
        step: FunctionStep,
        outputs: object,
        exception: BaseException | None,
        *,
        thinking_ms: float = 0.0,
    ) -> str | None:
        """Write the Action or Decision of a function or tool; return its id."""
        if step.kind == "decision":
            step_type, own = AgentStepType.Decision, {"options": list(step.options)}
            fields = shapes.choice_fields(outputs)
        else:
            step_type, own = AgentStepType.Action, {"tool": step.name} if step.name else {}
            fields = {"result": outputs}
        inputs = {"purpose": step.purpose, **own, "arguments": dict(call.inputs)}
        return self._end(call, step_type, inputs, fields, exception, thinking_ms=thinking_ms)

    def _end(
        self,
        call: Call,
        step_type: AgentStepType,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        exception: BaseException | None,
        *,
        thinking_ms: float = 0.0,
        stored: bool = True,
    ) -> str | None:
        """Write the last step of a call, after whatever happened inside; return its id."""
        doing: Doing = call.state
        status: StepStatus = "ok"
        if exception is not None:
            outputs = shapes.error_fields(exception)
            status = "cancelled" if isinstance(exception, _CANCELLED) else "error"
        spent = call.elapsed_ms
        tail = self._writer.write(
            call,
            step_type,
            inputs,
            outputs,
            follows=call.path.tails(),
            status=status,
            metrics=doing.usage.metrics(
                spent + thinking_ms, spent if doing.kind in ("tool", "function") else None
            ),
            stored=stored,
        )
        if tail is None:
            return None
        if doing.prompts:
            self._writer.write_prompts(call, tail, doing.prompts)
        call.end_with(tail)
        return str(tail.step_id)

    def _keep_idle_thought(self, agent: Call, loop: ReActLoop) -> None:
        """Write a thought that led to no tool as an Action of its own."""
        thought = loop.idle_thought()
        if thought is None:
            return
        followed = agent.path.enter(agent.strand)
        tail = self._writer.write(
            agent,
            AgentStepType.Action,
            {"purpose": thought.text, "arguments": thought.arguments},
            thought.outputs,
            follows=followed,
            metrics=thought.usage.metrics(thought.duration_ms),
            maker=thought.maker,
            notes={TURN: loop.turns - 1},
        )
        if tail is not None:
            if thought.prompts:
                self._writer.write_prompts(agent, tail, thought.prompts)
            agent.path.leave(agent.strand, followed, tail)


def asks_by_itself(call: Call | None) -> bool:
    """Whether a model that is asked inside `call` is asked by a program, or by the code it runs.

    Predictors and tools tell themselves what their models cost.
    """
    if call is None or not isinstance(call.state, Doing):
        return True
    return call.state.kind == "program" or call.subject is CODE


def _loop_around(call: Call) -> ReActLoop | None:
    above = call.parent.state if call.parent is not None else None
    return above.loop if isinstance(above, Doing) else None
