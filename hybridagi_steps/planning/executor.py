"""StepExecutor: carries out one step of a plan with minimal context, in a loop of tool calls.

A DSPy module with one predictor, so optimisers can improve its instructions. It knows one step and
what that step is given; the rest of the plan, other steps, merging and repeating are not its
business. The step ends with `finish_step`, whose artifacts are checked before it is accepted; what
is wrong goes back to the model as the answer of that call.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio
import dspy
import orjson
from dspy.utils.exceptions import AdapterParseError
from pydantic import BaseModel

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.errors import (
    ArtifactError,
    InvalidSettingError,
    LimitReachedError,
    ToolInputError,
    UnknownToolError,
)
from hybridagi_steps.graph.tools.base import is_async
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.messages.parts import is_call_id
from hybridagi_steps.planning.example_tasks import FINISH_TOOL
from hybridagi_steps.planning.plan import PlanStep
from hybridagi_steps.planning.settings import AtLeastOne, Count, Counter, checked
from hybridagi_steps.planning.step_prompts import (
    CACHE_MINIMUM,
    FILE_TOKENS,
    INSTRUCTIONS,
    CarryOutStep,
    WorkAdapter,
    make_brief,
    shared_text,
)
from hybridagi_steps.planning.usage import Purpose, spending_on
from hybridagi_steps.planning.worker import (
    ArtifactTypes,
    Finished,
    Problem,
    Work,
    checked_artifacts,
)
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.recording.step_shapes import first_line
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.running.stopping import own_cancellation
from hybridagi_steps.running.tool_calls import check_json
from hybridagi_steps.token_counters import CounterChoice
from hybridagi_steps.workspace.tools import workspace_tools
from hybridagi_steps.workspace.workspace import Workspace

T = TypeVar("T")

MOST_CHARACTERS = 40_000
"""Of a tool's answer, as a model sees it."""
_IDLE_TURNS = 3
"""Answers without a tool call, one after the other, until an attempt is given up."""


class _Settings(BaseModel):
    max_turns: AtLeastOne
    file_tokens: Count
    counter: Counter
    cache_minimum: Count


class StepExecutor(dspy.Module):
    """Carries out plan steps.

    Args:
        tools: Functions and DSPy tools (MCP tools among them) beside those of the workspace.
        max_turns: Answers of the model per attempt.
        file_tokens: What the contents of a step's files may take in its brief.
        artifact_types: Types that artifacts must have, by name, checked by pydantic.
        system_context: Added to the instructions: conventions, house rules.
        counter: Counts the tokens of files; see `token_counter`.
        cache_minimum: How long the common beginning of prompts is made, in tokens, by files that
            steps name, so that a provider's cache keeps it; 0 adds none.

    Raises:
        InvalidSettingError: Two tools of one name, what is no tool, or `max_turns` below 1.
    """

    records_itself = True
    """For recorders: the plan that runs it tells of its steps."""

    def __init__(
        self,
        tools: Iterable[Any] = (),
        *,
        max_turns: int = 20,
        file_tokens: int = FILE_TOKENS,
        artifact_types: ArtifactTypes | None = None,
        system_context: str = "",
        counter: CounterChoice = "auto",
        cache_minimum: int = CACHE_MINIMUM,
    ) -> None:
        super().__init__()
        given = {"max_turns": max_turns, "file_tokens": file_tokens, "counter": counter}
        settings = checked(_Settings, **given, cache_minimum=cache_minimum)
        told = "\n\n".join(filter(None, [INSTRUCTIONS, system_context]))
        self.work = dspy.Predict(CarryOutStep.with_instructions(told))
        self.tools = _as_tools(tools)
        self.max_turns, self.file_tokens = settings.max_turns, settings.file_tokens
        self.cache_minimum = settings.cache_minimum
        self.artifact_types, self.counter = dict(artifact_types or {}), settings.counter
        refuse_same_names([FINISH_TOOL, *(str(tool.name) for tool in self.tools)])

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Carry out one step; see `aforward`."""
        return anyio.run(lambda: self.aforward(**inputs))

    async def aforward(
        self,
        requirement: str,
        step: PlanStep,
        artifacts: Mapping[str, Any] | None = None,
        workspace: Workspace | None = None,
    ) -> dspy.Prediction:
        """Carry out one step.

        Returns:
            A prediction with `summary` and `artifacts`.

        Raises:
            WorkspaceError: A file that it names cannot be read.
            ArtifactError: The model did not hand on what the step promises.
            LimitReachedError: It took too many turns.
        """
        work = Work(requirement=requirement, step=step, artifacts=dict(artifacts or {}))
        done = await self.carry_out(work, workspace)
        return dspy.Prediction(summary=done.summary, artifacts=done.artifacts)

    async def carry_out(self, work: Work, workspace: Workspace | None) -> Finished:
        """Carry out one attempt of a step; errors as `aforward`."""
        brief = make_brief(
            work.step,
            work.artifacts,
            workspace,
            counter=self.counter,
            file_tokens=self.file_tokens,
            feedback=work.feedback,
            shared=work.shared,
        )
        finish = _FinishTool(work.step, self.artifact_types)
        tools = self._tools(workspace, finish)
        refuse_same_names(str(tool.name) for tool in tools)
        known = {str(tool.name): tool for tool in tools}
        caller = ToolCaller(known, FINISH_TOOL, work.problems)
        purpose = Purpose(work.step.id, work.attempt, brief.rest, {**work.shared, **brief.files})
        with spending_on(purpose), overriding(adapter=WorkAdapter()):
            given = {"shared": shared_text(work.requirement, work.shared), "brief": brief.text}
            await self._turns(given, tools, caller, finish)
        return Finished(summary=finish.summary, artifacts=finish.artifacts or {}, cut=brief.cut)

    def schemas(self, workspace: Workspace | None) -> list[dict[str, Any]]:
        """Return what a model is told of the tools; the same for all steps."""
        tools = self._tools(workspace, _FinishTool(PlanStep(id="any", goal="any"), {}))
        return [tool.format_as_litellm_function_call() for tool in tools]

    def _tools(self, workspace: Workspace | None, finish: _FinishTool) -> list[dspy.Tool]:
        own = map(dspy.Tool, workspace_tools(workspace)) if workspace else ()
        return [*own, *self.tools, finish.tool]

    async def _turns(
        self, given: dict[str, str], tools: list[dspy.Tool], caller: ToolCaller, finish: _FinishTool
    ) -> None:
        """Let the model work until it finishes."""
        turns: list[dict[str, Any]] = []
        idle = 0
        for _ in range(self.max_turns):
            thought, calls = await self._asked(given, turns, tools)
            if not calls:
                idle += 1
                if idle >= _IDLE_TURNS:
                    raise ArtifactError(
                        f"the model answered {idle} times without calling a tool and never "
                        f"finished; it last said: {thought[:200]!r}"
                    )
                turns += _nudge(thought)
                continue
            idle = 0
            messages = [_message(call) for call in calls]
            turns.append({"role": "assistant", "content": thought or None, "tool_calls": messages})
            for call, message in zip(calls, messages, strict=True):
                answer = await caller.answered(call.name, dict(call.args or {}), thought)
                turns.append({"role": "tool", "tool_call_id": message["id"], "content": answer})
            if finish.artifacts is not None:
                return
        told = f"; what it handed on was refused: {finish.refused}" if finish.refused else ""
        raise LimitReachedError(
            f"the model took {self.max_turns} turns and never finished{told}", limit="max_turns"
        )

    async def _asked(
        self, given: dict[str, str], turns: list[dict[str, Any]], tools: list[dspy.Tool]
    ) -> tuple[str, list[Any]]:
        """Return what the model thinks and the calls it wants."""
        try:
            said = await self.work.acall(**given, turns=list(turns), tools=tools)
        except AdapterParseError as error:
            return str(error.lm_response or ""), []
        calls = said.get("tool_calls")
        return said.get("thought") or "", list(calls.tool_calls) if calls is not None else []


class _FinishTool:
    """The tool that ends a step, and what was handed on with it."""

    def __init__(self, step: PlanStep, types: ArtifactTypes) -> None:
        self.summary = ""
        self.artifacts: dict[str, Any] | None = None
        self.refused = ""
        """Why what was handed on last was not accepted."""
        self._step, self._types = step, types
        # The same for every step: providers keep the beginnings of prompts, and tools come first.
        self.tool = dspy.Tool(
            self._finish,
            name=FINISH_TOOL,
            desc="End the step, once its goal is met; artifacts: by name, those of the brief.",
            args={"summary": {"type": "string"}, "artifacts": {"type": "object"}},
            arg_types={"summary": Any, "artifacts": Any},
        )

    def _finish(self, summary: str = "", artifacts: object = None, **beside: object) -> str:
        try:
            # Where nothing was promised, nobody minds how it was left out.
            given = _as_object(artifacts, list(beside)) if self._step.artifacts else {}
            self.artifacts = checked_artifacts(self._step, given, self._types)
        except ArtifactError as error:
            self.refused = str(error)
            raise
        self.summary = str(summary)
        return "done"


def _as_object(artifacts: Any, beside: list[str]) -> dict[str, Any]:
    """Return artifacts by name, also from a JSON text; `beside` are names of what stood outside."""
    if beside:
        raise ArtifactError(
            f"{', '.join(beside)} stood beside `artifacts`; put what is handed on inside it: "
            f'artifacts={{"{beside[0]}": …}}'
        )
    given = artifacts
    if isinstance(given, str) and given.strip():
        with suppress(ValueError, RecursionError):
            given = json.loads(given)
    if given is None or given == "":
        return {}
    if not isinstance(given, dict):
        kind = {str: "a text", list: "a list"}.get(type(given), "a single value")
        raise ArtifactError(
            f"`artifacts` was {kind}; it must be one object of names and values, such as "
            '{"name": value}'
        )
    return given


def refuse_same_names(names: Iterable[str]) -> None:
    """Pass if no name stands twice."""
    known: set[str] = set()
    for name in names:
        if name in known:
            raise InvalidSettingError(
                f"two tools are named {name!r}; give one another name. {FINISH_TOOL} and the "
                "tools of the workspace count, too."
            )
        known.add(name)


def _as_tools(given: Iterable[Any]) -> list[dspy.Tool]:
    if isinstance(given, str) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSettingError(
            f"tools is a list of functions and dspy.Tools, not {given!r:.80}; for one tool write "
            "[tool]."
        )
    listed = list(given)
    for each in listed:
        if not callable(each):
            raise InvalidSettingError(f"{each!r:.80} is no tool: give a function or a dspy.Tool.")
    return [each if isinstance(each, dspy.Tool) else dspy.Tool(each) for each in listed]


def _nudge(thought: str) -> list[dict[str, Any]]:
    reminder = f"Nothing was done. Call a tool, or {FINISH_TOOL} if the goal is met."
    said = [{"role": "assistant", "content": thought}] if thought else []
    return [*said, {"role": "user", "content": reminder}]


def _message(call: dspy.ToolCalls.ToolCall) -> dict[str, Any]:
    """Return a call in the provider's form, with an id that providers take."""
    return {
        "id": call.id if is_call_id(call.id) else f"call_{uuid4().hex[:12]}",
        "type": "function",
        "function": {
            "name": call.name,
            "arguments": json.dumps(dict(call.args or {}), ensure_ascii=False),
        },
    }


class ToolCaller:
    """Runs the tools of one attempt; errors that they raise are added to `problems`."""

    def __init__(
        self, tools: Mapping[str, dspy.Tool], finish: str, problems: list[Problem]
    ) -> None:
        self.problems = problems
        self._tools, self._finish = tools, finish

    @cached_property
    def _steps(self) -> RunSteps:
        return RunSteps()

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
        text = result if isinstance(result, str) else orjson.dumps(json_value(result, [])).decode()
        if len(text) > MOST_CHARACTERS:
            return f"{text[:MOST_CHARACTERS]}\n… {len(text) - MOST_CHARACTERS:,} characters cut"
        return text

    async def _called(self, tool: dspy.Tool, arguments: dict[str, Any], thought: str) -> Any:
        if tool.name == self._finish:
            return tool.func(**arguments)
        purpose = thought or first_line(tool.desc or "") or str(tool.name)
        told = FunctionStep("action", str(tool.name), purpose, own=(tool,))
        with self._steps.step(told, arguments) as step:
            if is_async(tool.func):
                step.outcome = await tool.acall(**arguments)
            else:
                call = in_own_thread(partial(tool, **arguments), "plan-step-tool")
                step.outcome = await asyncio.wrap_future(call)
            return step.outcome


def in_own_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Start a call in a thread that ends with the process if it must."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()
    context = copy_context()

    def work() -> None:
        try:
            answer.set_result(context.run(call))
        except StopIteration as error:  # nobody can await such an exception
            answer.set_exception(RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True, name=name).start()
    return answer


def _check_arguments(tool: dspy.Tool, arguments: Mapping[str, Any]) -> None:
    """Name what is missing or broken as the model knows it."""
    check_json(tool, arguments)
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
