"""Plain functions, `dspy.Tool`s and MCP tools as tools of a graph program.

Arguments are checked against the function's own signature before it runs, so that a model's
"three" never reaches a parameter that is a number. Whatever the function returns is the result.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, cast, get_type_hints

import dspy
from pydantic import ConfigDict, TypeAdapter, ValidationError

from hybridagi_steps.errors import InvalidSettingError, LimitReachedError, ToolInputError
from hybridagi_steps.graph.tools.base import (
    INPUTS,
    Asked,
    GraphTool,
    ToolUse,
    called_aside,
    node_signature,
    settled,
)
from hybridagi_steps.records.agent_step import AgentStep

_MOST_YIELDED = 10_000
"""Values of a generator: more than a model could be shown."""


class CallTool(GraphTool):
    """A tool that is called with named arguments, which a model writes as one JSON object.

    Each argument has a JSON schema, by its name; it may take arguments of any other name too.
    """

    def __init__(
        self,
        name: str,
        description: str,
        schemas: Mapping[str, Any],
        lm: object = None,
        *,
        takes_more: bool = False,
    ) -> None:
        super().__init__(name=name, lm=lm)
        self.description = description
        self.schemas = dict(schemas)
        self.takes_more = takes_more

    def predictor(self, purpose: str) -> dspy.Module | None:
        """Return a new predictor for one node; None when there are no arguments."""
        if not self.schemas and not self.takes_more:
            return None
        told = f"Call the tool {self.name} with the arguments that the prompt asks for."
        if self.description:
            told += f"\nWhat it does: {self.description}"
        told += f"\nIts arguments, as JSON schemas: {json.dumps(self.schemas, default=str)}"
        if self.takes_more:
            told += "\nIt takes arguments of other names too."
        asked = {"arguments": Asked(dict[str, Any], "The arguments by name, a JSON object")}
        return dspy.Predict(node_signature(told, purpose, INPUTS, asked))

    def from_prompt(self, prompt: str) -> dict[str, Any]:
        """Return the prompt as arguments: a JSON object of them, or the only one."""
        given = _json(prompt)
        if isinstance(given, dict) and (self.takes_more or set(given) <= set(self.schemas)):
            return cast("dict[str, Any]", given)
        if not self.schemas and (not self.takes_more or not prompt.strip()):
            return {}
        if len(self.schemas) != 1:
            raise ToolInputError(
                f"{self.name} takes {', '.join(self.schemas) or 'any named arguments'}: without a "
                "language model its prompt must be a JSON object with these keys."
            )
        [(name, schema)] = self.schemas.items()
        is_text = schema.get("type", "string") == "string"
        return {name: prompt if is_text or given is None else given}

    def from_prediction(self, prediction: dspy.Prediction) -> dict[str, Any]:
        """Return the arguments that a language model came up with."""
        return named_arguments(self.name, prediction["arguments"])

    def prediction_of(self, step: AgentStep) -> dict[str, Any]:
        """Return the arguments of a finished use as one object."""
        return {"arguments": step.arguments}

    def check(self, arguments: dict[str, Any]) -> None:
        """Check the names of the arguments."""
        unknown = [name for name in arguments if name not in self.schemas]
        if unknown and not self.takes_more:
            raise ToolInputError(
                f"{self.name} was called with arguments that do not fit: it takes no "
                f"{unknown[0]!r}, only {', '.join(self.schemas) or 'none'}."
            )


class FunctionTool(CallTool):
    """A function, or coroutine function, as a tool.

    Args:
        function: Called with named arguments, checked and converted by its annotations.
        name: What Actions call it; by default the function's name.
        description: What it does; by default its docstring.
        lm: The language model that its nodes ask.

    Raises:
        InvalidSettingError: It is no function, or takes arguments without names.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        lm: object = None,
    ) -> None:
        if not callable(function) or isinstance(function, type):
            raise InvalidSettingError(f"a FunctionTool needs a function, not {function!r:.80}.")
        shown = name or str(getattr(function, "__name__", type(function).__name__))
        self.function = function
        self._arguments = _arguments_of(function, shown)
        described = description if description is not None else inspect.getdoc(function) or ""
        schema = self._arguments.json_schema()
        takes_more = schema.get("additionalProperties") is not False
        super().__init__(shown, described, _schemas(schema), lm, takes_more=takes_more)

    def __getstate__(self) -> dict[str, Any]:
        # What checks is made at run time and cannot be pickled; the function tells all about it.
        return {key: value for key, value in self.__dict__.items() if key != "_arguments"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._arguments = _arguments_of(self.function, self.name)

    def check(self, arguments: dict[str, Any]) -> None:
        """Check arguments against the function's annotations."""
        self._checked(arguments)

    def use(self, use: ToolUse) -> Any:
        """Call the function; what a generator yields is a list."""
        given = self.function(**self._checked(use.arguments))
        given = _drained(cast("Any", given), self.name) if inspect.isasyncgen(given) else given
        return _listed(settled(given, self.name), self.name)

    async def ause(self, use: ToolUse) -> Any:
        """Call the function, in a thread unless it is a coroutine function."""
        given = await called_aside(self.function, **self._checked(use.arguments))
        if inspect.isasyncgen(given):
            return await _drained(cast("Any", given), self.name)
        if inspect.isgenerator(given):
            return await asyncio.to_thread(_listed, given, self.name)
        return given

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments converted; a text that does not fit is read as JSON then."""
        try:
            return self._arguments.validate_python(arguments)
        except ValidationError as error:
            wrong = {str(each["loc"][0]) for each in error.errors(include_url=False)}
            texts = [name for name in wrong if isinstance(arguments.get(name), str)]
            read = {name: _json(arguments[name]) for name in texts}
            if any(value is not None for value in read.values()):
                found = {name: value for name, value in read.items() if value is not None}
                return self._checked({**arguments, **found})
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ToolInputError(
                f"{self.name} was called with arguments that do not fit: {where}: {first['msg']}."
            ) from error


class DSPyTool(CallTool):
    """A `dspy.Tool`, MCP tools among them, as a tool of a graph program.

    Args:
        tool: The tool.
        lm: The language model that its nodes ask.
    """

    def __init__(self, tool: dspy.Tool, lm: object = None) -> None:
        super().__init__(
            str(tool.name), tool.desc or "", tool.args or {}, lm, takes_more=bool(tool.has_kwargs)
        )
        self.tool = tool
        self.own = (tool,)

    def use(self, use: ToolUse) -> Any:
        """Call the tool."""
        convert = dspy.settings.get("allow_tool_async_sync_conversion", False)
        if inspect.iscoroutinefunction(self.tool.func) and not convert:
            raise ToolInputError(
                f"the tool {self.name} is asynchronous: call the agent with "
                "`await agent.acall(…)`, on the event loop that the tool was made on."
            )
        return self.tool(**use.arguments)

    async def ause(self, use: ToolUse) -> Any:
        """Await the tool, in a thread when it is a plain function."""
        if inspect.iscoroutinefunction(self.tool.func):
            return await self.tool.acall(**use.arguments)
        return await called_aside(self.tool, **use.arguments)


def tools_by_name(tools: Iterable[Any] | Mapping[str, Any]) -> dict[str, GraphTool]:
    """Return tools of any kind by the name that Actions call them.

    Args:
        tools: GraphTools, `dspy.Tool`s and functions.

    Raises:
        InvalidSettingError: Something else, or two tools of one name.
    """
    given: Any = tools.values() if isinstance(tools, Mapping) else tools
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidSettingError(
            f"tools are a list, such as tools=[Speak()], or a dict; not {type(given).__name__}."
        )
    found: dict[str, GraphTool] = {}
    for each in given:
        tool = _as_tool(each)
        if tool.name in found:
            raise InvalidSettingError(f"two tools are named {tool.name!r}; give one another name.")
        found[tool.name] = tool
    return found


def _as_tool(given: object) -> GraphTool:
    if isinstance(given, GraphTool):
        return given
    if isinstance(given, dspy.Tool):
        return DSPyTool(given)
    if hasattr(given, "inputSchema") or hasattr(given, "input_schema"):
        raise InvalidSettingError(
            f"the MCP tool {getattr(given, 'name', '')!r} has no session to be called in: give "
            "dspy.Tool.from_mcp_tool(session, tool)."
        )
    if isinstance(given, type | dspy.Module) or not callable(given):
        shown = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InvalidSettingError(
            f"{shown} is no tool: give a tool object such as Speak(), a dspy.Tool, or a function; "
            "a module becomes one as FunctionTool(lambda question: module(question=question))."
        )
    return FunctionTool(given)


def _arguments_of(function: Callable[..., Any], name: str) -> TypeAdapter[dict[str, Any]]:
    """Return what checks and converts the named arguments of a function."""
    target = function.func if isinstance(function, functools.partial) else function
    target = target if inspect.isroutine(target) else type(target).__call__
    try:
        hints = get_type_hints(target, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise InvalidSettingError(f"the arguments of {name} cannot be read: {error}") from error
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidSettingError(
                f"{name} takes {parameter.name!r} by place; a tool's arguments have names."
            )

    def given(**arguments: object) -> dict[str, Any]:
        return arguments

    # Pydantic checks the arguments of any function by its signature: here they are all it gives.
    vars(given).update(__signature__=signature)
    given.__annotations__ = hints
    checked: Any = given  # a TypeAdapter takes functions; its annotations do not say so
    return TypeAdapter(checked, config=ConfigDict(arbitrary_types_allowed=True))


def _schemas(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of each argument, with shared definitions beside the first that needs them.

    A required argument has no `default`; that is how a model knows.
    """
    properties: dict[str, Any] = {
        name: {key: value for key, value in each.items() if key != "title"}
        for name, each in schema.get("properties", {}).items()
    }
    definitions = schema.get("$defs")
    if definitions and properties:
        first = next(iter(properties))
        properties[first] = {**properties[first], "$defs": definitions}
    return properties


def _listed(given: object, name: str) -> Any:
    """Return what a function gave, what a generator yields as a list."""
    if not inspect.isgenerator(given):
        return given
    items = list(itertools.islice(given, _MOST_YIELDED + 1))
    given.close()
    return _checked_length(items, name)


async def _drained(given: AsyncGenerator[Any, Any], name: str) -> list[Any]:
    """Return what an asynchronous generator yields; otherwise as `_listed`."""
    items: list[Any] = []
    async with contextlib.aclosing(given):
        async for item in given:
            items.append(item)
            if len(items) > _MOST_YIELDED:
                break
    return _checked_length(items, name)


def _checked_length(items: list[Any], name: str) -> list[Any]:
    if len(items) > _MOST_YIELDED:
        raise LimitReachedError(
            f"the tool {name} is a generator that yields over {_MOST_YIELDED:,} values; have it "
            "return the ones that matter.",
            limit="values",
        )
    return items


def named_arguments(name: str, given: object) -> dict[str, Any]:
    """Return what a language model gave as the arguments of a tool, read from a text if need be."""
    arguments = _json(given) if isinstance(given, str) else given
    if not isinstance(arguments, dict):
        raise ToolInputError(f"{name} takes named arguments, a JSON object, not {given!r:.200}.")
    return cast("dict[str, Any]", arguments)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
