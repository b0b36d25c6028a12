"""Orchestrator: makes a plan of a requirement and runs it, step by step and side by side.

Holds settings only; every run has a state of its own (plan_run.py), so one orchestrator may run
many plans, at once and from any thread. Async at the core: `run` is `arun` for code without an
event loop, and works inside of one, too, as in a notebook.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4

import anyio
import dspy
import orjson
from anyio.from_thread import start_blocking_portal
from anyio.to_thread import run_sync

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.planning.example_tasks import FINISH_TOOL
from hybridagi_steps.planning.executor import StepExecutor, refuse_same_names
from hybridagi_steps.planning.generator import PlanGenerator
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.planning.plan_run import PlanIncompleteError, PlanRun
from hybridagi_steps.planning.queued_steps import QueueWorker, Resuming
from hybridagi_steps.planning.results import EventLine, PlanResult, ProgressBar
from hybridagi_steps.planning.settings import Listener, Settings, checked
from hybridagi_steps.planning.worker import ArtifactTypes, Executor
from hybridagi_steps.programs.adapters import retrying
from hybridagi_steps.recording.step_writer import Memory
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.redaction import redacted
from hybridagi_steps.token_counters import CounterChoice
from hybridagi_steps.validation import checked_priority
from hybridagi_steps.workspace.tools import workspace_tools
from hybridagi_steps.workspace.workspace import Workspace

if TYPE_CHECKING:
    from hybridagi_steps.durable.plan_steps import DurableQueue

T = TypeVar("T")


class Orchestrator:
    """Runs plans.

    Args:
        tools: Functions and DSPy tools that every step may call, MCP tools among them.
        workspace: The directory that plans work on, or its path; its tools (read_file, write_file,
            list_files, search_files, run_command) are added to those of every step.
        memory: Where runs are recorded, and where similar plans are found.
        lm: The language model; by default DSPy's.
        planner: Makes plans; by default a `PlanGenerator` on `memory`.
        executor: Carries out steps: a `StepExecutor`, or a coroutine function that takes a `Work`
            and a workspace and returns a `Finished`. By default a `StepExecutor` on `tools`.
        system_context: Added to the instructions of every step, if `executor` is not given.
        artifact_types: Types that artifacts must have, by name, checked by pydantic.
        max_parallel: Steps that run side by side.
        max_attempts: How often a step is tried before it has failed.
        max_replans: How often other steps are planned in the place of those that failed.
        max_retries: How often a provider that refuses a call is asked again; it counts in place of
            the client's `num_retries`, and nothing else repeats a refused call.
        max_tokens: Tokens a run may spend, planning included; looked at before each call.
        max_cost: US dollars a run may spend; looked at before each call.
        step_timeout_seconds: When an attempt of a step is given up.
        timeout_seconds: When a run is given up.
        on_failure: `keep` what succeeded when a plan fails, or `rollback` the workspace.
        reuse: Take over what an earlier run in `memory` found out, for a step that changes no file
            and whose requirement, artifacts and whole workspace are the same.
        durable: A `DurableQueue`, or the path or address of its database: steps become work in a
            queue that outlives this process. Needs the extra `durable`.
        progress: Show a bar on the terminal.
        on_event: Given each StepEvent; must not block.
        session_id: The session in memory that runs belong to.
        counter: Counts tokens where no provider does; see `token_counter`.

    Raises:
        InvalidSettingError: A number that is too small or none, two tools of one name, or what is
            no workspace, tool or queue.
        InvalidMemoryError: `memory` is none.
        MissingExtraError: `durable` was asked for and is not installed.
    """

    def __init__(
        self,
        tools: Iterable[Any] = (),
        *,
        workspace: Workspace | Path | str | None = None,
        memory: Memory | None = None,
        lm: object = None,
        planner: Any = None,
        executor: StepExecutor | Executor | None = None,
        system_context: str = "",
        artifact_types: ArtifactTypes | None = None,
        max_parallel: int = 4,
        max_attempts: int = 2,
        max_replans: int = 1,
        max_retries: int = 2,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        step_timeout_seconds: float | None = 600.0,
        timeout_seconds: float | None = None,
        on_failure: Literal["keep", "rollback"] = "keep",
        reuse: bool = False,
        durable: DurableQueue | Path | str | None = None,
        progress: bool = False,
        on_event: Listener | None = None,
        session_id: str | None = None,
        counter: CounterChoice = "auto",
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        settings = checked(Settings, **given)
        made = settings.executor or StepExecutor(
            settings.tools,
            system_context=system_context,
            artifact_types=artifact_types,
            counter=settings.counter,
        )
        execute, tool_names, predictors = _execution(made, settings.workspace)
        types = {**getattr(made, "artifact_types", {}), **(artifact_types or {})}
        resolved = {
            "artifact_types": types,
            "executor": execute,
            "planner": planner or PlanGenerator(settings.memory),
            "predictors": predictors,
            "step_executor": made if isinstance(made, StepExecutor) else None,
            "tool_names": tool_names,
        }
        self.settings = settings.model_copy(update=resolved)
        self.durable = _queue(durable)
        self._running: dict[str, tuple[PlanRun, asyncio.AbstractEventLoop]] = {}

    @property
    def workspace(self) -> Workspace | None:
        """The directory that plans work on."""
        return self.settings.workspace

    def run(
        self,
        requirements: str | None = None,
        *,
        plan: Plan | str | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> PlanResult:
        """Run a plan to its end.

        Args:
            requirements: What the user wants; a plan is made of it, unless one is given.
            plan: The plan, or its text.
            key: Names the run. With a durable queue, the same key goes on with a run that was cut
                short, and repeats no step that had finished.
            priority: Of the steps that wait in a durable queue, those of the plan with the smallest
                go first, then the oldest; from -1,000 to 1,000.

        Returns:
            What became of every step; a failed step is no exception.

        Raises:
            PlanParseError: The plan's text cannot be read.
            InvalidPlanError: The plan cannot be run; names every problem. Nothing was run.
            InvalidSettingError: Neither a requirement nor a plan was given, one is of another type,
                the key belongs to another run, or there is no such priority.
        """
        run = partial(self.arun, requirements, plan=plan, key=key, priority=priority)
        return run_blocking(run)

    async def arun(
        self,
        requirements: str | None = None,
        *,
        plan: Plan | str | None = None,
        key: str | None = None,
        priority: int = 0,
        on_event: Listener | None = None,
    ) -> PlanResult:
        """Run a plan to its end; see `run`. `on_event` is given the events of this run alone."""
        _check_given(requirements, plan, key)
        checked_priority(priority)
        parsed = Plan.parse(plan, check=False) if isinstance(plan, str) else plan
        own = (parsed.description or parsed.name) if parsed is not None else ""
        requirement = (requirements or own).strip()
        if not requirement and parsed is None:
            raise InvalidSettingError("say what is wanted: run(requirements=…) or run(plan=…).")
        name, settings = key or uuid4().hex, self.settings
        if self.durable is not None and (redact := settings.redact) is not None:
            # Before the queue sees anything; so this is what the plan works on.
            requirement, name = redacted(requirement, redact), redacted(name, redact)
            parsed = parsed and Plan.parse(redacted(parsed.to_text(), redact), check=False)
        told = [listener for listener in (on_event, settings.on_event) if listener is not None]
        if settings.progress:
            told.append(ProgressBar())
        events = EventLine(name, settings.session_id, told)
        resuming = Resuming(name, settings, self.durable, priority)
        run = PlanRun(settings, resuming, events, requirement, parsed)
        entry = (run, asyncio.get_running_loop())
        if self._running.setdefault(name, entry) is not entry:
            raise InvalidSettingError(f"a run with the key {name!r} is under way already.")
        try:
            if self.durable is not None:
                await run_sync(self.durable.open, self.plan_worker())
                await run.claim_key()
            return await run.carry_out()
        finally:
            del self._running[name]

    def make_plan(self, requirements: str) -> Plan:
        """Make a plan and run nothing.

        Raises:
            PlanError: The model found no plan that can be run.
        """
        _check_given(requirements, None, None)
        settings = self.settings
        files = [] if settings.workspace is None else settings.workspace.list()
        with retrying(settings.lm or dspy.settings.get("lm"), settings.max_retries):
            return settings.planner(
                requirements=requirements, files=files, tools=settings.tool_names
            )

    def as_tool(self, name: str, description: str) -> dspy.Tool:
        """Return a `dspy.Tool` that takes a requirement, plans and carries it out, and reports.

        What it answers names the steps and what they handed on. A plan that did not succeed is an
        error of the tool, so that who called it learns why. Async programs call it; a sync one
        needs `allow_tool_async_sync_conversion` of DSPy's settings.
        """

        async def carry_out(requirement: str) -> str:
            result = await self.arun(requirement)
            if not result.success:
                raise PlanIncompleteError(str(result.error or result.status))
            done = "\n".join(f"{step.id}: {step.summary}" for step in result.steps if step.summary)
            handed_on = orjson.dumps(json_value(result.artifacts, [])).decode()
            return f"{done}\nArtifacts: {handed_on}" if result.artifacts else done or "done"

        return dspy.Tool(carry_out, name=name, desc=description)

    async def stream(
        self,
        requirements: str | None = None,
        *,
        plan: Plan | str | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> AsyncIterator[StepEvent]:
        """Run a plan and yield what happens; leaving the loop early cancels the run."""
        events: asyncio.Queue[StepEvent | None] = asyncio.Queue()
        run = partial(self.arun, requirements, plan=plan, key=key, priority=priority)
        work = asyncio.ensure_future(run(on_event=events.put_nowait))
        work.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await work
        finally:
            work.cancel()
            await asyncio.wait([work])

    def cancel(self, key: str | None = None) -> None:
        """Stop a run, or all of them, from any thread; its result says `cancelled`."""
        for name, (run, loop) in list(self._running.items()):
            if key is None or name == key:
                run.cancelled = True
                loop.call_soon_threadsafe(run.scope.cancel)

    def plan_worker(self) -> QueueWorker:
        """Return who does the steps that a durable queue hands out."""
        return QueueWorker(self.settings)


async def run_step_executor(
    requirements: str,
    lm: object = None,
    system_context: str = "",
    tools: Iterable[Any] = (),
    *,
    model_factory: Callable[[], Any] | None = None,
    **options: Any,
) -> PlanResult:
    """Make a plan of a requirement and run it.

    Args:
        requirements: What the user wants.
        lm: The language model; by default DSPy's.
        system_context: Added to the instructions of every step.
        tools: Functions and DSPy tools that steps may call.
        model_factory: Makes the language model, in the place of `lm`.
        options: Whatever else an `Orchestrator` takes.

    Raises:
        InvalidSettingError: `lm` and `model_factory` are both given, or one cannot be used.
    """
    if model_factory is not None:
        if lm is not None or not callable(model_factory):
            raise InvalidSettingError("model_factory is called for a model; `lm` is one: give one.")
        lm = model_factory()
    orchestrator = Orchestrator(tools, lm=lm, system_context=system_context, **options)
    return await orchestrator.arun(requirements)


def _check_given(requirements: object, plan: object, key: object) -> None:
    """Pass if a run was given what it can take."""
    if isinstance(requirements, Plan):
        raise InvalidSettingError("a plan is given by name: run(plan=…).")
    if not isinstance(requirements, str | None):
        raise InvalidSettingError(f"requirements is a text, not {requirements!r:.80}.")
    if not isinstance(plan, Plan | str | None):
        raise InvalidSettingError(
            f"plan is a Plan or its text, not {plan!r:.80}; Plan.model_validate reads a dict."
        )
    if not isinstance(key, str | None):
        raise InvalidSettingError(f"key is a text, not {key!r:.80}: run(key={str(key)[:80]!r}).")


def _execution(
    executor: StepExecutor | Executor, workspace: Workspace | None
) -> tuple[Executor, tuple[str, ...], tuple[Any, ...]]:
    """Return how an executor is called, the names of all tools, and its predictors."""
    own = [] if workspace is None else [tool.__name__ for tool in workspace_tools(workspace)]
    if isinstance(executor, StepExecutor):
        names = [*own, *(str(tool.name) for tool in executor.tools)]
        refuse_same_names([FINISH_TOOL, *names])
        return executor.carry_out, tuple(names), (executor.work,)
    if not callable(executor):  # pyright: ignore[reportUnnecessaryComparison] - callers err
        raise InvalidSettingError(f"{executor!r:.80} cannot carry out steps: give a function.")
    return executor, tuple(own), ()


def named_model(name: str, api_base: str | None = None) -> Any:
    """Return a language model, by `provider/model`; keys are read from the provider's variables.

    `api_base` is the address of a server that speaks the provider's protocol.
    """
    if api_base is None:
        return dspy.LM(name)
    # Servers on one's own machine ask for no key, clients insist on one.
    return dspy.LM(name, api_base=api_base, api_key="none")


def _queue(durable: DurableQueue | Path | str | None) -> DurableQueue | None:
    if durable is None:
        return None
    from hybridagi_steps.durable.plan_steps import DurableQueue

    return durable if isinstance(durable, DurableQueue) else DurableQueue(durable)


def run_blocking(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, in a thread if this one has an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(start)
    # An interrupt of this thread leaves the block, which cancels what runs there and waits for it.
    with start_blocking_portal(name="plan") as portal:
        return portal.call(start)
