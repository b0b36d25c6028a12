"""Speak, AskUser, UpdateObjective, PastActionSearch, Predict: talking, recalling and thinking.

What is said stands in the session's chat history. Callbacks may be functions or coroutine
functions; `AskUser` without one has a language model play the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Unpack, cast

import dspy
from pydantic import TypeAdapter, ValidationError

from hybridagi_steps.dspy_types import QueryWithSteps
from hybridagi_steps.errors import InvalidMemoryError, InvalidSettingError
from hybridagi_steps.graph.prompts import shown_text
from hybridagi_steps.graph.run_state import ProgramSession
from hybridagi_steps.graph.tools.base import (
    Asked,
    GraphTool,
    ToolOptions,
    ToolUse,
    called_aside,
    settled,
)
from hybridagi_steps.programs.retriever import SearchableMemory, StepRetriever, Where
from hybridagi_steps.recording.scopes import RUN
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter


class Echo(GraphTool):
    """A tool whose result is what it was given."""

    def told_result(self, result: object, arguments: dict[str, Any]) -> Any:
        """Return the argument as the step remembers it."""
        return next(iter(arguments.values()), result)


class Speak(Echo):
    """Says something to the user; the last thing said is the run's final answer.

    Args:
        callback: Called with each message, as soon as it is said.
        options: `name` and `lm`, as every tool takes them.

    Raises:
        InvalidSettingError: The callback is no function.
    """

    instructions = "Write the message to the user that the prompt asks for."
    asks_for = {"message": Asked(str, "The message to the user")}  # noqa: RUF012

    def __init__(
        self,
        callback: Callable[[str], Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        super().__init__(**options)
        self.callback = _checked_callback(callback, self)

    def restore(self, session: ProgramSession, step: AgentStep) -> None:
        """Say it in the session alone."""
        session.say(shown_text(step.result))

    def use(self, use: ToolUse) -> str:
        """Say it and return it."""
        message = _said(use, "message")
        if self.callback is not None:
            settled(self.callback(message), self.name)
        return message

    async def ause(self, use: ToolUse) -> str:
        """Say it and return it."""
        message = _said(use, "message")
        if self.callback is not None:
            await called_aside(self.callback, message)
        return message


class _PlayTheUser(dspy.Signature):
    """You play the user of an assistant. Answer its question as the persona would."""

    persona: str = dspy.InputField()
    conversation: list[str] = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class AskUser(GraphTool):
    """Asks the user and returns the answer.

    Args:
        callback: Called with the question; returns the answer, or None, which pauses the run of a
            `StepRunner` until it is resumed with the answer. Without one a language model plays the
            user.
        persona: Whom it plays, unless the run has a variable `user_profile`.
        user_lm: The language model that plays the user, instead of the one configured.
        options: `name` and `lm`, as every tool takes them.

    Raises:
        InvalidSettingError: The callback is no function.
    """

    instructions = "Write the question to the user that the prompt asks for."
    asks_for = {"question": Asked(str, "The question to the user")}  # noqa: RUF012

    def __init__(
        self,
        callback: Callable[[str], Any] | None = None,
        *,
        persona: str = "Somebody who wants the objective reached and answers briefly.",
        user_lm: object = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        super().__init__(**options)
        self.callback = _checked_callback(callback, self)
        self.persona = persona
        self.user = dspy.Predict(_PlayTheUser)
        if user_lm is not None:
            self.user.set_lm(user_lm)
        self.own = (self.user,)

    def restore(self, session: ProgramSession, step: AgentStep) -> None:
        """Put question and answer into the session."""
        session.say(shown_text(step.arguments.get("question", "")))
        session.say(shown_text(step.result), "user")

    def use(self, use: ToolUse) -> str:
        """Ask and return the answer."""
        question = _said(use, "question")
        if self.callback is None:
            answer = self.user(**self._asked(use, question)).answer
        else:
            answer = settled(self.callback(question), self.name)
            answer = _pausing(question) if answer is None else answer
        return self._heard(use, answer)

    async def ause(self, use: ToolUse) -> str:
        """Ask and return the answer."""
        question = _said(use, "question")
        if self.callback is None:
            answer = (await self.user.acall(**self._asked(use, question))).answer
        else:
            answer = await called_aside(self.callback, question)
            answer = _pausing(question) if answer is None else answer
        return self._heard(use, answer)

    def _asked(self, use: ToolUse, question: str) -> dict[str, Any]:
        said = [f"{message.role}: {message.content}" for message in use.session.chat_history[:-1]]
        persona = use.session.variables.get("user_profile", self.persona)
        return {"persona": shown_text(persona), "conversation": said, "question": question}

    def _heard(self, use: ToolUse, answer: object) -> str:
        if answer is None:
            raise InvalidSettingError(
                f"the callback of {self.name} gave None for an answer; it returns what the user "
                "said, an empty text if that is nothing."
            )
        text = shown_text(answer)
        use.session.say(text, "user")
        return text


class UpdateObjective(Echo):
    """Changes what the run works towards; the agent itself and other runs keep theirs."""

    instructions = "Write the new objective of the run, as the prompt asks for."
    asks_for = {"new_objective": Asked(str, "The new objective")}  # noqa: RUF012

    def restore(self, session: ProgramSession, step: AgentStep) -> None:
        """Set the objective."""
        session.objective = shown_text(step.result)

    def use(self, use: ToolUse) -> str:
        """Set the objective of the run and return it."""
        use.session.objective = shown_text(use.arguments["new_objective"])
        return use.session.objective


def _pausing(question: str) -> str | None:
    """Return what the user has said since, or pause the run; outside of one nobody can answer."""
    run: Any = dspy.settings.get(RUN)
    return None if run is None else run.user_answer(question)


def _checked_callback(callback: object, tool: GraphTool) -> Any:
    if callback is not None and not callable(callback):
        raise InvalidSettingError(
            f"the callback of {type(tool).__name__} is a function, not {callback!r:.80}."
        )
    return callback


def _said(use: ToolUse, argument: str) -> str:
    text = shown_text(use.arguments[argument])
    use.session.say(text)
    return text


class PastActionSearch(GraphTool):
    """Finds past Actions by meaning and words.

    A language model may write several queries, one in a line, with a semicolon between them, or as
    a JSON list; a prompt that is used as it is holds several only as a list with marks, or as JSON.

    Args:
        memory: Where to look; by default the memory of the agent.
        k: Most steps wanted, over all queries.
        where: Which steps may be found, a StepFilter or its keys; by default Actions. In a run of
            a user those of that user, unless it names a `user_id`.
        retriever: A retriever to use instead, with its own memory, k, filter and reranker.
        options: `name` and `lm`, as every tool takes them.
    """

    instructions = "Write a query that finds past actions of use for the prompt."
    blocks = True
    asks_for = {  # noqa: RUF012
        "query": Asked(str, "What to look for, in a few words; several queries on a line each")
    }

    def __init__(
        self,
        memory: SearchableMemory | None = None,
        k: int = 5,
        where: Where = None,
        *,
        retriever: StepRetriever | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        super().__init__(**options)
        keys = {"step_types": ["Action"], **StepFilter.of(where).model_dump(exclude_unset=True)}
        self.k = k
        self.where = StepFilter.of(keys)
        self.retriever = retriever
        self.needs_memory = memory is None and retriever is None
        if memory is not None and retriever is None:
            self.retriever = StepRetriever(memory, k=k, where=self.where)

    def from_prompt(self, prompt: str) -> dict[str, Any]:
        """Return the query, or the queries of a list."""
        return {"query": _queries(prompt, r"\n", listed=True)}

    def from_prediction(self, prediction: dspy.Prediction) -> dict[str, Any]:
        """Return the query, or the queries, that a language model came up with."""
        return {"query": _queries(shown_text(prediction["query"]), r"[\n;]", listed=False)}

    def prediction_of(self, step: AgentStep) -> dict[str, Any]:
        """Return the query, or several on a line each."""
        query: str | list[str] = step.arguments["query"]
        return {"query": query if isinstance(query, str) else "\n".join(query)}

    def use(self, use: ToolUse) -> QueryWithSteps:
        """Return the steps found."""
        retriever = self.retriever or self._over(use.memory)
        hidden = [*(retriever.where.exclude_run_id or []), *use.run_ids]
        query = use.arguments["query"]
        # Of twice as many, those that are searches themselves are left out. Not called as a module:
        # the Action's step tells what happens here, and what it gave.
        with unnoted():
            found = StepRetriever.forward(
                retriever,
                query,
                k=2 * retriever.k,
                where={"exclude_run_id": hidden} if hidden else None,
            )
        hits = [hit for hit in found.hits if hit.step.tool != self.name][: retriever.k]
        return QueryWithSteps.from_hits(query, hits)

    def _over(self, memory: object) -> StepRetriever:
        if memory is None:
            raise InvalidMemoryError(memory, "search()")
        return StepRetriever(cast("SearchableMemory", memory), k=self.k, where=self.where)


_LIST = TypeAdapter(list[str])
_MARK = re.compile(r"^\s*(?:[-*•]|\(?\d{1,3}[.)])\s+")


def _queries(text: str, between: str, *, listed: bool) -> str | list[str]:
    """Return the queries that a text holds, a list if there are several.

    They are `between` matches of that pattern; `listed` ones all have a list's mark.
    """
    try:
        parts = _LIST.validate_json(text)
    except ValidationError:
        parts = [part for part in re.split(between, text) if part.strip()]
        if listed and not all(_MARK.match(part) for part in parts):
            return text
        parts = [_MARK.sub("", part).strip(" \t\r\"'") for part in parts]
    found = list(dict.fromkeys(part for part in parts if part.strip()))
    return found if len(found) > 1 else "".join(found)


class Predict(GraphTool):
    """Answers the prompt. With `disable_inference` the prompt itself is the result."""

    instructions = "Do what the prompt asks for, to reach the objective."

    def told_arguments(self, prompt: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the prompt: the answer is the result."""
        del arguments
        return {"prompt": prompt}

    def prediction_of(self, step: AgentStep) -> dict[str, Any]:
        """Return the answer."""
        return {"answer": step.result}

    def told_result(self, result: object, arguments: dict[str, Any]) -> Any:
        """Return the answer as the step remembers it."""
        return arguments.get("answer", result)

    def use(self, use: ToolUse) -> Any:
        """Return the answer."""
        return use.arguments["answer"]


class ChainOfThought(Predict):
    """Answers the prompt after reasoning; the reasoning is not part of the result."""

    def make_predictor(self, signature: type[dspy.Signature]) -> dspy.Module:
        """Return a predictor that reasons first."""
        return dspy.ChainOfThought(signature)
