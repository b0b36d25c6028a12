"""GraphTool: what a tool of a graph program is.

A tool says what a language model has to come up with (`asks_for`), gets that as arguments, and
does its work. The predictor that asks the model belongs to the program's node, not to the tool: one
tool serves many nodes, and each of them learns on its own.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, TypedDict

import anyio
import dspy
from dspy.signatures import make_signature

from hybridagi_steps.errors import ToolInputError
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.graph.program_memory import ProgramLibrary
from hybridagi_steps.graph.run_state import ProgramSession
from hybridagi_steps.recording.step_writer import Memory
from hybridagi_steps.records.agent_step import AgentStep

INPUTS: Mapping[str, str] = {
    "objective": "What the whole run works towards",
    "past_steps": "What was done before in this run",
    "prompt": "What to do now",
}
"""What every node's predictor is told."""


class CallProgram(NamedTuple):
    """What a tool gives back to have a program run as part of its Action."""

    name: str
    program: GraphProgram | None = None
    """The program itself; None to look it up among the agent's."""


class Asked(NamedTuple):
    """One thing that a language model has to come up with."""

    kind: Any
    description: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool: everything it may know of the run."""

    arguments: dict[str, Any]
    """What the tool is called with."""
    session: ProgramSession
    """The run's state, which the tool may change."""
    library: ProgramLibrary
    """The programs of the agent."""
    tools: Sequence[str] = ()
    """The names of the agent's tools."""
    memory: Memory | None = None
    """The step memory of the agent."""
    run_ids: list[str] = field(default_factory=list[str])
    """The runs that the use is part of."""


class ToolOptions(TypedDict, total=False):
    """What every tool takes, besides what it needs for itself; see `GraphTool`."""

    name: str | None
    lm: object


class GraphTool(ABC):
    """A tool of a graph program; subclass it to make one.

    Copies are the tool itself: it keeps no state of a run.

    Args:
        name: What Actions call it; by default the name of the class.
        lm: The language model that its nodes ask, instead of the one configured. A node whose
            predictor was given one of its own, as `set_lm` does, asks that.
    """

    instructions: ClassVar[str] = "Do what the prompt asks for."
    """What a language model is told about the tool."""
    asks_for: Mapping[str, Asked] = {"answer": Asked(str, "The answer")}
    """What a language model has to come up with; its names are the tool's arguments."""
    observes: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of its use that the agent is told of and goes on after; any other ends the run."""
    blocks: ClassVar[bool] = False
    """Whether its use waits for something, so that it is done in a thread."""
    own: tuple[Any, ...] = ()
    """Modules inside the tool whose work the Action's step tells."""

    def __init__(self, *, name: str | None = None, lm: object = None) -> None:
        self.name = name or type(self).__name__
        self.lm = lm

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def predictor(self, purpose: str) -> dspy.Module | None:
        """Return a new predictor for one node; None when there is nothing to come up with."""
        if not self.asks_for:
            return None
        signature = node_signature(self.instructions, purpose, INPUTS, self.asks_for)
        return self.make_predictor(signature)

    def make_predictor(self, signature: type[dspy.Signature]) -> dspy.Module:
        """Return the DSPy module that fills in a signature."""
        return dspy.Predict(signature)

    def from_prompt(self, prompt: str) -> dict[str, Any]:
        """Return the arguments when no language model is asked: the prompt as it is."""
        return dict.fromkeys(list(self.asks_for)[:1], prompt)

    def remembered(self, prompt: str) -> dict[str, Any]:
        """Return the arguments that the remembered form of a prompt makes."""
        try:
            return self.from_prompt(prompt)
        except ToolInputError:
            return {"prompt": prompt}

    def from_prediction(self, prediction: dspy.Prediction) -> dict[str, Any]:
        """Return the arguments that a language model came up with."""
        return {name: prediction[name] for name in self.asks_for}

    def prediction_of(self, step: AgentStep) -> dict[str, Any]:
        """Return what a language model came up with for a finished use, of which the step tells."""
        return {name: step.arguments[name] for name in self.asks_for if name in step.arguments}

    def check(self, arguments: dict[str, Any]) -> None:
        """Refuse arguments that do not fit; the language model that gave them is asked again.

        Raises:
            ToolInputError: What is wrong with them.
        """
        del arguments  # by default whatever was asked for will do

    def told_arguments(self, prompt: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the step remembers them."""
        del prompt
        return arguments

    def told_result(self, result: object, arguments: dict[str, Any]) -> Any:
        """Return the result as the step remembers it, beside the arguments that it remembers."""
        del arguments
        return result

    def restore(self, session: ProgramSession, step: AgentStep) -> None:
        """Change the session as a finished use changed it, of which the step tells.

        For a run that is read back from its steps to be taken up where it stopped; by default a use
        changes nothing but the variable of its node's `var_out`, which is restored for it.
        """
        del session, step

    @abstractmethod
    def use(self, use: ToolUse) -> Any:
        """Do the work and return the result, or a `CallProgram`."""

    async def ause(self, use: ToolUse) -> Any:
        """Do the work without blocking the event loop; by default as `use`."""
        return await asyncio.to_thread(self.use, use) if self.blocks else self.use(use)


def node_signature(
    instructions: str, purpose: str, inputs: Mapping[str, str], outputs: Mapping[str, Asked]
) -> type[dspy.Signature]:
    """Return the signature of one node's predictor."""
    fields: dict[str, Any] = {
        name: (str, dspy.InputField(desc=desc)) for name, desc in inputs.items()
    }
    fields |= {
        name: (asked.kind, dspy.OutputField(desc=asked.description))
        for name, asked in outputs.items()
    }
    told = f"{instructions}\n\nPurpose of this step: {purpose}" if purpose else instructions
    return make_signature(fields, told)


def settled(value: object, name: str) -> Any:
    """Return what a callback gave, running it to its end when it is a coroutine."""
    if not inspect.isawaitable(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(lambda: value)
    if inspect.iscoroutine(value):
        value.close()
    raise ToolInputError(f"{name} is asynchronous: call the agent with `await agent.acall(…)`.")


def is_async(function: object) -> bool:
    """Whether calling it gives something to await."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object may have an async one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def called_aside(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Call a function or coroutine function without blocking the event loop."""
    if is_async(function):
        return await function(*args, **kwargs)
    value = await asyncio.to_thread(function, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value
