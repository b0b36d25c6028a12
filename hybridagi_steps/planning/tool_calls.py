"""The tool calls of a step: run, recorded, and answered in words that a model can use.

Synchronous tools run in threads of their own which nobody waits for when a step is given up: a tool
that never returns must not keep the plan, or the process, from ending. What an abandoned tool still
writes goes into a copy of the workspace that nobody merges.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import dspy
import orjson

from hybridagi_steps.errors import ToolInputError, UnknownToolError
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.planning.work import Problem
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.recording.step_shapes import first_line
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.running.cancelling import own_cancellation

T = TypeVar("T")

MOST_CHARACTERS = 40_000
"""Of a tool's answer, as a model sees it."""


class ToolCaller:
    """Runs the tools of one attempt.

    Args:
        tools: The tools by name.
        finish: Name of the tool that ends the step; the step's own end tells of it.
        problems: Errors that tools raise are added to it.
    """

    def __init__(
        self, tools: Mapping[str, dspy.Tool], finish: str, problems: list[Problem]
    ) -> None:
        self.problems = problems
        self._tools, self._finish = tools, finish
        self._steps = RunSteps()

    async def answered(self, name: str, arguments: dict[str, Any], thought: str) -> str:
        """Call a tool; return its result, or what went wrong, as the model is to see it."""
        try:
            tool = self._tools.get(name)
            if tool is None:
                raise UnknownToolError(name, list(self._tools))
            _check_arguments(tool, arguments)
            with own_cancellation(f"the tool {name}"):
                result = await self._called(tool, arguments, thought)
        except (Exception, SystemExit) as error:
            problem = Problem.of(error, name)
            self.problems.append(problem)
            return inert(f"{problem.type}: {problem.message}")
        text = result if isinstance(result, str) else _json_text(result)
        if len(text) > MOST_CHARACTERS:
            return f"{text[:MOST_CHARACTERS]}\n… {len(text) - MOST_CHARACTERS:,} characters cut"
        return text

    async def _called(self, tool: dspy.Tool, arguments: dict[str, Any], thought: str) -> Any:
        if tool.name == self._finish:
            return tool.func(**arguments)
        purpose = thought or first_line(tool.desc or "") or str(tool.name)
        told = FunctionStep("action", str(tool.name), purpose, own=(tool,))
        with self._steps.step(told, arguments) as step:
            if _is_async(tool.func):
                step.outcome = await tool.acall(**arguments)
            else:
                step.outcome = await in_own_thread(partial(tool, **arguments))
            return step.outcome


async def in_own_thread(call: Callable[[], T]) -> T:
    """Return what a call gives, from a thread that ends with the process if it must."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def work() -> None:
        try:
            result = context.run(call)
        except StopIteration as error:  # a future takes no such exception
            told, given = answer.set_exception, RuntimeError(f"StopIteration: {error}")
        except BaseException as error:
            told, given = answer.set_exception, error
        else:
            told, given = answer.set_result, result
        with suppress(RuntimeError):  # the loop is closed: the step was given up long ago
            loop.call_soon_threadsafe(_settle, answer, told, given)

    threading.Thread(target=work, daemon=True, name="plan-step-tool").start()
    return await answer


def _settle(answer: asyncio.Future[Any], told: Callable[[Any], None], given: Any) -> None:
    if not answer.done():
        told(given)


def _check_arguments(tool: dspy.Tool, arguments: Mapping[str, Any]) -> None:
    """Name missing arguments as the model knows them.

    Raises:
        ToolInputError: One without a default is missing.
    """
    parameters = inspect.signature(tool.func).parameters.values()
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in arguments
    ]
    if missing:
        raise ToolInputError(f"{tool.name} needs {', '.join(missing)}.")


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object may have an async __call__
    )


def _json_text(value: Any) -> str:
    return orjson.dumps(json_value(value, [])).decode()
