"""PlanGenerator: makes a plan of a requirement, and another one when a plan has failed.

A DSPy module with two predictors, so optimisers can improve both. What the model writes is read by
the tolerant parser and checked before anything is run; what is wrong with it goes back to the model
a bounded number of times. It may begin with the most similar plan that once succeeded: a plan's run
is a ProgramCall of `Orchestrator` that holds the requirement, and a ProgramEnd that holds the plan
as it stood when it had succeeded. So a plan is found as any other step is; in a run that is
recorded for a user, only that user's. Running plans is no concern of this module.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import dspy
from dspy.utils.exceptions import AdapterParseError
from pydantic import BaseModel

from hybridagi_steps.errors import PlanError
from hybridagi_steps.graph.run_state import Request, Work, adriven, driven
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.fences import fenced, inert
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.settings import Amount, Count, checked
from hybridagi_steps.programs.adapters import with_retries
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.recording_hooks import active_user_id, note_steps, unnoted
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit

T = TypeVar("T")

MAX_REPAIRS = 2
ORCHESTRATOR = "Orchestrator"
"""The program that a plan's run is in memory."""
_CANDIDATES = 10
_MOST_FILES = 200

_FORM = """\
PLAN: a title
DESCRIPTION: what the plan is for

STEP: a_short_id
TYPE: analyze | generate | modify | validate | cleanup
GOAL: what holds when the step is done
DESCRIPTION: how to get there
FILES: files it must see, relative to the workspace, or none
DEPENDENCIES: ids of steps that must come before, or none
NEEDS: artifacts of theirs that it must see, if not all
ARTIFACTS: name: shape - note; or none. A shape is string, number, integer, boolean, array,
  object, any, /pattern/, ["string"] or {"field": "string"}
END_PLAN"""


class MakePlan(dspy.Signature):  # noqa: D101 - its docstring is the prompt
    __doc__ = f"""\
Cut a requirement into small steps. Each sees the requirement, its own goal and description, the
files it names and the artifacts of its dependencies, and nothing else. Independent steps run side
by side: let them write different files. Hand on little: signatures, facts, names. End with a step
that validates. Use this form:

{_FORM}"""

    requirement: str = dspy.InputField(desc="What the user wants")
    surroundings: str = dspy.InputField(desc="Files and tools that there are")
    example: str = dspy.InputField(desc="A plan that succeeded for a similar requirement, or none")
    feedback: str = dspy.InputField(desc="What was wrong with the plan before this one, or none")
    plan: str = dspy.OutputField(desc="The plan, in the form above")


class ChangePlan(dspy.Signature):  # noqa: D101
    __doc__ = f"""\
A plan was run and steps of it failed. Write the steps that are to be done in place of those that
failed or were skipped, under new ids. They may depend on each other and on the finished steps. Use
exactly this form:

{_FORM}"""

    requirement: str = dspy.InputField(desc="What the user wants")
    finished: str = dspy.InputField(desc="Steps that are done, with what they hand on")
    undone: str = dspy.InputField(desc="The steps that failed or were skipped, as planned")
    failures: str = dspy.InputField(desc="Why they failed")
    feedback: str = dspy.InputField(desc="What was wrong with the plan before this one, or none")
    plan: str = dspy.OutputField(desc="The new steps, in the form above")


class PlanAdapter(dspy.ChatAdapter):
    """Asks for one text, a plan, in plain sections; the field marks of DSPy's form say no more."""

    def __init__(self) -> None:
        super().__init__(use_json_adapter_fallback=False)

    def format(
        self, signature: type[dspy.Signature], demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the messages: instructions, examples, what is given."""
        shown = [
            message
            for demo in demos
            if "plan" in demo
            for message in (
                {"role": "user", "content": _sections(signature, demo)},
                {"role": "assistant", "content": demo["plan"]},
            )
        ]
        asked = {"role": "user", "content": _sections(signature, inputs)}
        return [{"role": "system", "content": signature.instructions}, *shown, asked]

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Return all that was answered as the plan, out of DSPy's form if it was written so."""
        if "[[ ## plan ## ]]" in completion:
            return super().parse(signature, completion)
        with suppress(ValueError, RecursionError):
            said: Any = json.loads(completion)
            if isinstance(said, dict) and isinstance(text := cast("Any", said).get("plan"), str):
                return {"plan": text}
        return {"plan": completion}


def _sections(signature: type[dspy.Signature], given: Mapping[str, Any]) -> str:
    """Return what is given, each input under its name, but for those that are `none`."""
    told = ((name, str(given.get(name) or "none")) for name in signature.input_fields)
    return "\n\n".join(f"# {name.capitalize()}\n{text}" for name, text in told if text != "none")


class _Settings(BaseModel):
    max_repairs: Count
    min_similarity: Amount


class PlanGenerator(dspy.Module):
    """Makes plans: `PlanGenerator()(requirements="…")` is a `Plan` that can be run.

    Args:
        memory: Where plans of the past are looked up; the most similar one that succeeded is shown
            as an example. Without it there is none.
        max_repairs: How often an unsound plan is given back with what is wrong.
        min_similarity: How similar a requirement must be for its plan to be shown, 0 to 1.
    """

    def __init__(
        self,
        memory: StepMemory | None = None,
        *,
        max_repairs: int = MAX_REPAIRS,
        min_similarity: float = 0.3,
    ) -> None:
        super().__init__()
        settings = checked(_Settings, max_repairs=max_repairs, min_similarity=min_similarity)
        self.make = dspy.Predict(MakePlan)
        self.change = dspy.Predict(ChangePlan)
        self.memory = memory
        self.max_repairs, self.min_similarity = settings.max_repairs, settings.min_similarity

    def forward(
        self, requirements: str, files: Sequence[str] = (), tools: Sequence[str] = ()
    ) -> Plan:
        """Make a plan.

        Args:
            requirements: What the user wants.
            files: Paths that there are.
            tools: Names of the tools that steps may use.

        Raises:
            PlanParseError: What the model wrote cannot be read, nor any of its repairs.
            InvalidPlanError: It can be read and not be run; names every problem.
        """
        return driven(self._made(requirements, files, tools))

    async def aforward(
        self, requirements: str, files: Sequence[str] = (), tools: Sequence[str] = ()
    ) -> Plan:
        """Make a plan; see `forward`."""
        return await adriven(self._made(requirements, files, tools))

    async def replan(
        self,
        requirements: str,
        finished: str,
        undone: Plan,
        failures: str,
        accept: Callable[[Plan], list[PlanStep]],
    ) -> list[PlanStep]:
        """Return steps to do in place of those that failed.

        Args:
            requirements: What the user wants.
            finished: What is done, in words.
            undone: The steps that failed or were skipped.
            failures: Why.
            accept: Returns the steps as they will be run, or raises a PlanError.

        Raises:
            PlanError: The model found no acceptable steps.
        """
        given = {
            "requirement": requirements,
            "finished": fenced("finished", finished) if finished else "none",
            "undone": inert(undone.to_text()),
            "failures": fenced("failures", failures),
        }
        return await adriven(self._sound(self.change, given, accept))

    def _made(self, requirements: str, files: Sequence[str], tools: Sequence[str]) -> Work[Plan]:
        example = None
        if self.memory is not None:
            example = similar_plan(self.memory, requirements, self.min_similarity)
        given = {
            "requirement": requirements,
            "surroundings": inert(_surroundings(files, tools)),
            "example": fenced("example", example) if example else "none",
        }
        return (yield from self._sound(self.make, given, _checked))

    def _sound(
        self, predict: dspy.Predict, given: dict[str, str], accept: Callable[[Plan], T]
    ) -> Work[T]:
        """Ask for a plan until it is acceptable, or repairs have run out."""
        feedback = "none"
        for repairs_left in range(self.max_repairs, -1, -1):
            text = yield from _written(predict, {**given, "feedback": feedback})
            try:
                return accept(Plan.parse(text, check=False))
            except PlanError as error:
                if not repairs_left:
                    raise
                feedback = inert(f"{error}\n\nThe plan was:\n{text}")
        raise AssertionError  # the loop returns or raises


def new_steps(plan: Plan, done: set[str], taken: set[str]) -> list[PlanStep]:
    """Return the steps of a changed plan that are new, under ids that nobody has.

    A model that was asked for new steps often writes the whole plan again: what is done is left
    out, and a step under an id that is taken gets another one.
    """
    new = [step for step in plan.steps if step.id not in done]
    names: dict[str, str] = {}
    used = taken | {step.id for step in new}
    for step in new:
        if step.id in taken:
            number = next(n for n in range(2, len(used) + 3) if f"{step.id}_{n}" not in used)
            names[step.id] = f"{step.id}_{number}"
            used.add(names[step.id])
    return [
        step.model_copy(
            update={
                "id": names.get(step.id, step.id),
                "dependencies": [names.get(name, name) for name in step.dependencies],
            }
        )
        for step in new
    ]


def _written(predict: dspy.Predict, given: dict[str, str]) -> Work[str]:
    """Return what a model wrote."""
    lm = with_retries(predict.lm) or dspy.settings.lm
    try:
        with overriding(adapter=PlanAdapter()):
            said = yield Request(
                lambda: predict(**given, lm=lm), lambda: predict.acall(**given, lm=lm)
            )
    except AdapterParseError as error:
        return str(error.lm_response or "")
    return str(said["plan"] or "")


def _checked(plan: Plan) -> Plan:
    plan.check()
    return plan


def _surroundings(files: Sequence[str], tools: Sequence[str]) -> str:
    listed = "\n".join(files[:_MOST_FILES]) or "none"
    more = f"\n… and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else ""
    return f"Files:\n{listed}{more}\nTools: {', '.join(tools) or 'none'}"


def similar_plan(memory: StepMemory, requirement: str, min_similarity: float = 0.0) -> str | None:
    """Return the text of the plan that succeeded for the most similar requirement."""
    if not requirement.strip():
        return None
    where = {"program": ORCHESTRATOR, "step_types": ["ProgramCall"], **of_this_user(memory)}
    with unnoted():
        hits: Iterable[StepHit] = memory.search(requirement, k=_CANDIDATES, where=where)
    for hit in hits:
        if hit.score < min_similarity:
            break
        if (hit.step.inputs or {}).get("program") != ORCHESTRATOR:
            continue
        if (end := _end_of(memory, hit.step)) is not None:
            note_steps([hit.step, end])
            return str((end.outputs or {})["plan"])
    return None


def of_this_user(memory: StepMemory) -> dict[str, Any]:
    """Return the condition that a step is of the user whose run this is, if it is anybody's."""
    user_id = active_user_id(memory)
    return {} if user_id is None else {"user_id": user_id}


def _end_of(memory: StepMemory, call: AgentStep) -> AgentStep | None:
    """Return the end of a plan's run that succeeded: it holds the plan."""
    if call.run_id is None:
        return None
    ends = {"run_id": str(call.run_id), "step_types": ["ProgramEnd"], "program": ORCHESTRATOR}
    found: list[AgentStep] = memory.find(ends).steps
    for end in found:
        plan = (end.outputs or {}).get("plan")
        if end.status == "ok" and str(end.program_id) == str(call.id) and isinstance(plan, str):
            return end
    return None
