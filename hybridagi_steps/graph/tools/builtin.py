"""Speak, AskUser, UpdateObjective: what passes between the agent and its user.

What is said stands in the session's chat history. Callbacks may be functions or coroutine
functions; `AskUser` without one has a language model play the user.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.graph.prompts import shown_text
from hybridagi_steps.graph.tools.base import (
    Asked,
    GraphTool,
    ToolUse,
    called_aside,
    settled,
)


class Echo(GraphTool):
    """A tool whose result is what it was given."""

    def told_result(self, result: Any, arguments: dict[str, Any]) -> Any:
        """Return the argument as the step remembers it."""
        return next(iter(arguments.values()), result)


class Speak(Echo):
    """Says something to the user; the last thing said is the run's final answer.

    Args:
        callback: Called with each message, as soon as it is said.
        name: What Actions call it.
        lm: The language model that its nodes ask.

    Raises:
        InvalidSettingError: The callback is no function.
    """

    instructions = "Write the message to the user that the prompt asks for."
    asks_for = {"message": Asked(str, "The message to the user")}  # noqa: RUF012

    def __init__(
        self,
        callback: Callable[[str], Any] | None = None,
        *,
        name: str | None = None,
        lm: Any = None,
    ) -> None:
        super().__init__(name=name, lm=lm)
        self.callback = _checked_callback(callback, self)

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
        callback: Called with the question; returns the answer. Without one a language model plays
            the user.
        persona: Whom it plays.
        user_lm: The language model that plays the user, instead of the one configured.
        name: What Actions call it.
        lm: The language model that its nodes ask.

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
        user_lm: Any = None,
        name: str | None = None,
        lm: Any = None,
    ) -> None:
        super().__init__(name=name, lm=lm)
        self.callback = _checked_callback(callback, self)
        self.persona = persona
        self.user = dspy.Predict(_PlayTheUser)
        if user_lm is not None:
            self.user.set_lm(user_lm)
        self.own = (self.user,)

    def use(self, use: ToolUse) -> str:
        """Ask and return the answer."""
        question = _said(use, "question")
        if self.callback is None:
            answer = self.user(**self._asked(use, question)).answer
        else:
            answer = settled(self.callback(question), self.name)
        return self._heard(use, answer)

    async def ause(self, use: ToolUse) -> str:
        """Ask and return the answer."""
        question = _said(use, "question")
        if self.callback is None:
            answer = (await self.user.acall(**self._asked(use, question))).answer
        else:
            answer = await called_aside(self.callback, question)
        return self._heard(use, answer)

    def _asked(self, use: ToolUse, question: str) -> dict[str, Any]:
        said = [f"{message.role}: {message.content}" for message in use.session.chat_history[:-1]]
        return {"persona": self.persona, "conversation": said, "question": question}

    def _heard(self, use: ToolUse, answer: Any) -> str:
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

    def use(self, use: ToolUse) -> str:
        """Set the objective of the run and return it."""
        use.session.objective = shown_text(use.arguments["new_objective"])
        return use.session.objective


def _checked_callback(callback: Any, tool: GraphTool) -> Any:
    if callback is not None and not callable(callback):
        raise InvalidSettingError(
            f"the callback of {type(tool).__name__} is a function, not {callback!r:.80}."
        )
    return callback


def _said(use: ToolUse, argument: str) -> str:
    text = shown_text(use.arguments[argument])
    use.session.say(text)
    return text
