"""What one run of an agent knows and gives back: session, result. Plain values, no behaviour.

A run's state never stands on the interpreter or on a tool, so that one agent serves many threads
and a copy of it begins with nothing. `ProgramSession` is what programs and tools read and write;
`AgentOutput` is what the caller gets.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from hybridagi_steps.dspy_types import AgentStepList, PredictionModel, QueryWithSteps
from hybridagi_steps.graph.prompts import recorded_text
from hybridagi_steps.recording.step_shapes import error_fields
from hybridagi_steps.records.agent_step import shown

FinishReason = Literal["max_iters", "finished", "error"]
"""How a run ended."""

Place = tuple[str, str]
"""The name of a program and the id of a node in it."""

_OBSERVED_OF_ERROR = 2_000


class ChatMessage(BaseModel):
    """Something said between the agent and its user."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    role: Literal["user", "assistant"]
    """Who said it."""
    content: str
    """What was said."""


class ProgramSession(BaseModel):
    """What a run knows: pass it to the next call to go on with the conversation."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    query: str = ""
    """What the user asked."""
    objective: str = ""
    """What the run works towards; at first the query."""
    variables: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Results by the name their node's `var_out` gave them, and the caller's own."""
    chat_history: list[ChatMessage] = Field(default_factory=list[ChatMessage])
    """What was said, oldest first."""

    def say(self, content: str, role: Literal["user", "assistant"] = "assistant") -> None:
        """Add a message."""
        self.chat_history.append(ChatMessage(role=role, content=content))

    def going_on(
        self,
        query: str,
        variables: dict[str, Any],
        objective: str | None = None,
        *,
        resumed: bool = False,
    ) -> ProgramSession:
        """Return the session of the next run: the same conversation and variables, a new query.

        Args:
            query: What the user asks.
            variables: What the run knows besides.
            objective: What it works towards; by default the query.
            resumed: Whether it takes up the run of this session: the same query is not said again,
                and works towards the same.
        """
        again = resumed and query == self.query
        if again and objective is None:
            objective = self.objective
        messages = [message.model_copy() for message in self.chat_history]
        following = ProgramSession(
            query=query,
            objective=query if objective is None else objective,
            variables={**self.variables, **variables},
            chat_history=messages,
        )
        if query and not again:
            following.say(query, "user")
        return following


class RunError(BaseModel):
    """Why a run ended early; equal to another that says the same."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """The name of the error's class."""
    message: str
    """What it said."""
    traceback: str = Field(default="", repr=False)
    """Where it was raised, as Python prints it; empty for what recording failed at."""

    _exception: Exception | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return what is to be told of an exception, and the exception with it."""
        told = error_fields(error)["error"]
        made = cls(**told, traceback="".join(traceback.format_exception(error)))
        made._exception = error
        return made

    @property
    def exception(self) -> Exception | None:
        """The exception with its traceback; it stays in the process it was raised in.

        None in what was read from JSON or from a pickle: not every exception can be brought back.
        """
        return self._exception

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunError) and self.model_dump() == other.model_dump()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.model_copy()  # an exception is not copied: that would lose its traceback

    def __getstate__(self) -> dict[Any, Any]:
        return {**super().__getstate__(), "__pydantic_private__": {"_exception": None}}


def observed_text(error: Mapping[str, Any]) -> str:
    """Return what an agent that goes on is told of an error, of `type` and `message`."""
    return f"Error: {error['type']}: {error['message']}"[:_OBSERVED_OF_ERROR]


class AgentOutput(PredictionModel):
    """What a `GraphInterpreter` gives back."""

    finish_reason: FinishReason = "finished"
    """Whether the program came to its end, ran out of steps, or failed."""
    final_answer: str = ""
    """What was last said to the user; if nothing was said, the last result as text.

    Empty unless the run finished: what came before is in the trace and in the chat history.
    """
    program_trace: AgentStepList = Field(default_factory=AgentStepList)
    """The run's steps, the failing one included, as they were recorded."""
    session: ProgramSession = Field(default_factory=ProgramSession)
    """What the run knew at its end."""
    stopped_at: list[Place] = Field(default_factory=list[Place])
    """The node where it stopped, behind those that called its program; empty when it finished."""
    error: RunError | None = None
    """Why it did not finish, None when it did."""
    recording_errors: list[RunError] = Field(default_factory=list[RunError])
    """What recording it failed at; empty when all is well. The trace holds every step anyway."""

    def told_fields(self) -> dict[str, Any]:
        """Return what steps and messages tell of it: its steps and its session tell the rest."""
        told: dict[str, Any] = {
            "final_answer": self.final_answer,
            "finish_reason": self.finish_reason,
        }
        if self.error is None:
            return told
        return {**told, "error": {"type": self.error.type, "message": self.error.message}}

    def _repr_html_(self) -> str:
        """Show the steps in a notebook."""
        from hybridagi_steps.display import steps_html

        steps = [shown(step) for step in self.program_trace.steps]
        return steps_html(steps, title=f"{self.finish_reason}: {self.final_answer[:200]}")


class Result(NamedTuple):
    """What an Action or a program gave."""

    value: Any
    """The thing itself, for variables and tools."""
    told: Any
    """The same for the record: recalled steps stand in it as their ids."""
    failed: bool = False
    """Whether it is what went wrong, which is no answer."""

    @property
    def said(self) -> Any:
        """The same as an answer: a text where it would be nothing but recalled steps."""
        return recorded_text(self.told) if isinstance(self.told, QueryWithSteps) else self.told


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """Something to be done outside, in the two ways it can be done."""

    now: Callable[[], Any]
    later: Callable[[], Awaitable[Any]]


Work = Generator[Request, Any, T]


def driven(work: Work[T]) -> T:
    """Do the work and return its result, answering each request at once."""
    try:
        request = next(work)
        while True:
            try:
                answer = request.now()
            except BaseException as error:  # the work decides what it stands
                request = work.throw(error)
            else:
                request = work.send(answer)
    except StopIteration as done:
        return done.value


async def adriven(work: Work[T]) -> T:
    """Do the work and return its result, awaiting the answer to each request."""
    try:
        request = next(work)
        while True:
            try:
                answer = await request.later()
            except BaseException as error:  # the work decides what it stands
                request = work.throw(error)
            else:
                request = work.send(answer)
    except StopIteration as done:
        return done.value
