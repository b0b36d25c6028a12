"""Settings of an orchestrator: its arguments, checked once and resolved, for all parts of a run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import dspy
from dspy.utils.callback import BaseCallback
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.errors import InvalidSettingError, StepsError
from hybridagi_steps.programs.adapters import retrying
from hybridagi_steps.recording.blocks import RunHandle, record
from hybridagi_steps.recording.scopes import CALLBACKS, overriding, own_callbacks
from hybridagi_steps.recording.step_writer import Memory, check_memory
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.redaction import Redact
from hybridagi_steps.token_counters import token_counter
from hybridagi_steps.workspace.workspace import Workspace

M = TypeVar("M", bound=BaseModel)

Listener = Callable[[StepEvent], Any]
Count = Annotated[int, Field(ge=0, strict=True)]
AtLeastOne = Annotated[int, Field(ge=1, strict=True)]
Amount = Annotated[float, Field(ge=0, strict=True)]
Counter = Annotated[Any, BeforeValidator(token_counter)]

_KINDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "string": "a text"}


def checked(kind: type[M], **values: object) -> M:
    """Return a model of settings."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> StepsError:
    """Return what is wrong with the first setting that is."""
    fault = error.errors(include_url=False)[0]
    context, value = fault.get("ctx", {}), fault["input"]
    if isinstance(own := context.get("error"), StepsError):
        return own
    if "ge" in context:
        wanted, shown = f"at least {context['ge']:g}", f"{value}"
    else:
        kind = _KINDS.get(fault["type"].split("_")[0], fault["msg"])
        wanted, shown = context.get("expected", kind), f"{value!r:.80}"
    return InvalidSettingError(f"{fault['loc'][0]} is {wanted}, not {shown}.")


def _workspace(given: object) -> Workspace | None:
    """Return a workspace, made of a path if need be."""
    if isinstance(given, str | Path):
        return Workspace(given)
    if not isinstance(given, Workspace | None):
        raise InvalidSettingError(
            f"workspace is a Workspace or the path of a directory, not {given!r:.80}."
        )
    return given


def _memory(given: Memory | None) -> Memory | None:
    return None if given is None else check_memory(given)


class Settings(BaseModel):
    """The arguments of an `Orchestrator`, which says what they mean."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    tools: Any
    workspace: Annotated[Workspace | None, BeforeValidator(_workspace)]
    memory: Annotated[Any, AfterValidator(_memory)]
    lm: object
    planner: Any
    executor: Any
    system_context: str
    artifact_types: Mapping[str, Any] | None
    max_parallel: AtLeastOne
    max_attempts: AtLeastOne
    max_replans: Count
    max_retries: Count
    max_tokens: Count | None
    max_cost: Amount | None
    step_timeout_seconds: Amount | None
    timeout_seconds: Amount | None
    on_failure: Literal["keep", "rollback"]
    reuse: bool
    durable: object
    progress: bool
    on_event: Listener | None
    session_id: str | None
    counter: Counter

    step_executor: Any = None
    """The `StepExecutor`, if steps are carried out by one: its prompts are known beforehand."""
    predictors: tuple[Any, ...] = ()
    """Predictors that the executor asks: memory tells of them by the tools that they called."""
    tool_names: tuple[str, ...] = ()
    """Of all tools that a step may call."""

    @cached_property
    def redact(self) -> Redact | None:
        """What the memory lets nobody keep."""
        return getattr(self.memory, "redact", None)

    @contextmanager
    def recorded(self, ledger: BaseCallback) -> Generator[RunHandle | None]:
        """Have the block ask `lm`, recorded into `memory`, with its calls counted by a ledger."""
        with ExitStack() as stack:
            stack.enter_context(retrying(self.lm or dspy.settings.get("lm"), self.max_retries))
            run = None
            if self.memory is not None:
                run = stack.enter_context(record(self.memory, session_id=self.session_id))
            # First of all: what the ledger refuses must not have begun for anybody else.
            stack.enter_context(overriding(**{CALLBACKS: (ledger, *own_callbacks())}))
            yield run
