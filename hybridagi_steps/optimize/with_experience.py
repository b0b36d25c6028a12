"""WithExperience: a program whose predictors see what worked in a like state before.

It is a copy of the program in a shell that adds no step. Each predictor of exactly the class
`dspy.Predict` becomes one that asks the memory before it asks the model; names, signatures,
demonstrations and saved state stay as DSPy has them, so optimisers, threads, asyncio and copies
take it for the program itself. `KNNSteps` is the same as a teleprompter.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast
from weakref import WeakKeyDictionary

import dspy
from dspy.teleprompt.teleprompt import Teleprompter
from dspy.utils.exceptions import AdapterParseError

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.optimize.demos import LeftOut, defaults_of, unwrapped
from hybridagi_steps.optimize.exclusion import (
    Exclusion,
    Exclusions,
    Group,
    checked_group,
    exclusions,
    narrowed,
)
from hybridagi_steps.optimize.recall import Experience, OutermostCall, Shown
from hybridagi_steps.optimize.receipt import Receipt
from hybridagi_steps.optimize.stored_runs import check_memory
from hybridagi_steps.recording.recorded_program import ProgramShell, checked_program
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.recording.step_shapes import (
    RECALLED_IDS,
    RUN_ID,
    STEP_ID,
    module_arguments,
    predict_arguments,
)
from hybridagi_steps.recording.trials import current_level
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.search.formulas import Mode
from hybridagi_steps.validation import Where, chosen, is_number, whole_number

_Predict: Any = dspy.Predict
_CALL = "hybridagi_steps_experience"
"""The setting of DSPy, carried into threads and tasks, that holds the `OutermostCall`."""
_last: ContextVar[Mapping[Experience, Receipt] | None] = ContextVar(
    "hybridagi_steps_last_recall", default=None
)
_log = logging.getLogger("hybridagi_steps")


class DemoSource(NamedTuple):
    """Where one demonstration of a predictor comes from."""

    origin: Literal["memory", "bootstrapped", "given"]
    """A step of a memory; a run that an optimiser made; or somebody's example."""
    step_id: str | None = None
    run_id: str | None = None
    recalled: tuple[str, ...] = ()
    """Ids of the steps that an optimiser's run had recalled before it gave this."""


class LearnedProgram(ProgramShell):
    """A program that says where its demonstrations come from.

    Attributes:
        left_out: How many steps were not made demonstrations of when it was compiled, by reason.
    """

    own_names: ClassVar[frozenset[str]] = ProgramShell.own_names | {"left_out"}

    def __init__(self, program: dspy.Module) -> None:
        super().__init__()
        self.program, self.left_out = program, LeftOut()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        return self.program(*args, **kwargs)

    async def aforward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program asynchronously."""
        return await self.program.acall(*args, **kwargs)

    def as_compiled(self) -> Self:
        """Return it, marked as optimisers mark what they have made."""
        self._compiled = True
        return self

    def provenance(self) -> dict[str, list[DemoSource]]:
        """Return where the fixed demonstrations of each predictor come from, in their order.

        What `WithExperience` recalls besides them is told by `last_recall` and `metadata.recalled`.
        """
        named: list[tuple[str, Any]] = self.named_predictors()
        return {name: [_source(demo) for demo in predict.demos] for name, predict in named}


class ExperiencedPredict(dspy.Predict):
    """A predictor that asks a memory before it asks the model."""

    told_as = "Predict"
    """The class that steps name it by."""
    experience: Experience

    @property
    def recalls(self) -> dict[str, Any]:
        """What it recalls, as trials tell it apart from one that recalls otherwise, or nothing."""
        return self.experience.settings()

    def forward(self, **kwargs: Any) -> Any:
        """Predict with what is recalled."""
        call = self._call()
        if call is None:
            return _Predict.forward(self, **kwargs)
        shown = self.experience.shown(self, kwargs, call)
        with _own_signature(self, kwargs):
            given = _Predict.forward(self, **_with(self, kwargs, shown))
        self.experience.remember(predict_arguments(self, {"kwargs": kwargs}), given, call)
        return given

    async def aforward(self, **kwargs: Any) -> Any:
        """Predict asynchronously; the search runs in a thread."""
        call = self._call()
        if call is None:
            return await _Predict.aforward(self, **kwargs)
        shown = await asyncio.to_thread(self.experience.shown, self, kwargs, call)
        with _own_signature(self, kwargs):
            given = await _Predict.aforward(self, **_with(self, kwargs, shown))
        self.experience.remember(predict_arguments(self, {"kwargs": kwargs}), given, call)
        return given

    def _call(self) -> OutermostCall | None:
        """Return the call of the program that this is part of; alone it recalls nothing."""
        call: OutermostCall | None = dspy.settings.get(_CALL)
        return call if call is not None and call.experience is self.experience else None


class WithExperience(LearnedProgram):
    """A program that recalls, for each call of a predictor, what was done in a like state.

    The demonstrations stand after the predictor's own, the best one last. What is recalled are ok
    steps of the same predictor and signature, else of the same signature, in the user's own
    history; runs under way are left out. Inside an evaluation, a compilation or a recording with a
    scope nothing is recalled unless `group` is given; then no step of the call's own group, of the
    same example, and of a run that descends from one of these is ever seen, nor does it vote.

    Args:
        program: Any program; it is copied.
        memory: Where to recall from; None recalls nothing.
        k: Most demonstrations a call is given, at least 1.
        where: Which steps may be recalled.
        min_score: Least score of a step or its run; for memories that are poisoned or well scored.
        prefer: How much a score above or below .5 counts in the ranking.
        group: Says which runs know each other's answers: a function of the inputs of the outermost
            program, as JSON has them, or "inputs" if only equal inputs do.
        exclude: What `hs.exclude` names.
        max_tokens: What the demonstrations of one call may take; the worst are dropped first.
        warn: Whether the instructions of a call say so when half of the like attempts failed.
        mode: By what a like state is found: words and meaning (`hybrid`), or one of them. Meaning
            alone (`dense`) suits short requests in everyday words, such as those of a classifier.
        on_error: `plain` runs the program as without memory when recall fails; `raise` raises.

    Raises:
        InvalidSettingError: `program` is no `dspy.Module`, or another argument means nothing.
        InvalidMemoryError: `memory` is no step memory.
        InvalidFilterError: An unknown key in `where`, or something else in `exclude`.
    """

    own_names: ClassVar[frozenset[str]] = LearnedProgram.own_names | {"experience"}

    def __init__(
        self,
        program: dspy.Module,
        memory: StepMemory | None,
        k: int = 3,
        *,
        where: Where = None,
        min_score: float | None = None,
        prefer: float = 0.05,
        group: Group | None = None,
        exclude: Exclusions = (),
        max_tokens: int = 1500,
        warn: bool = True,
        mode: Mode = "hybrid",
        on_error: Literal["plain", "raise"] = "plain",
    ) -> None:
        inner = checked_program(program, "WithExperience")
        inner = inner.program if isinstance(inner, WithExperience) else inner
        if memory is not None:
            check_memory(memory)
        if not is_number(prefer) or not math.isfinite(prefer):
            raise InvalidSettingError(f"prefer is a number, such as 0.05, not {prefer!r:.80}.")
        excluded = exclusions(exclude)
        self.experience = Experience(
            memory,
            whole_number("k", k, 1),
            narrowed(where, (*excluded, Exclusion(StepFilter(min_score=min_score)))),
            prefer,
            checked_group(group),
            excluded,
            whole_number("max_tokens", max_tokens, 0),
            warn,
            chosen("on_error", on_error, Literal["plain", "raise"]),
            chosen("mode", mode, Mode),
            defaults_of(inner),
        )
        super().__init__(_experienced(inner.deepcopy(), self.experience))

    @property
    def memory(self) -> StepMemory | None:
        """Where it recalls from."""
        return self.experience.memory

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, its predictors with what they recall."""
        with self._called(args, kwargs):
            return self.program(*args, **kwargs)

    async def aforward(self, *args: Any, **kwargs: Any) -> Any:
        """Run it asynchronously."""
        with self._called(args, kwargs):
            return await self.program.acall(*args, **kwargs)

    def dump_state(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the program's state; its demonstrations say what they may repeat."""
        for predict in self.predictors():
            self.experience.mark_echoes(predict, predict.demos)
        return super().dump_state(*args, **options)

    def last_recall(self) -> Receipt:
        """Return what was recalled for the last call in this thread or task, of each predictor."""
        found = (_last.get() or {}).get(self.experience)
        return Receipt() if found is None else found

    @contextmanager
    def _called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[None]:
        around: OutermostCall | None = dspy.settings.get(_CALL)
        if around is not None and around.experience is self.experience:  # a part of that program
            yield
            return
        receipt, inputs = Receipt(), None
        if self._is_outermost():
            inputs = module_arguments(unwrapped(self), {"args": args, "kwargs": kwargs})
        _last.set(WeakKeyDictionary({**(_last.get() or {}), self.experience: receipt}))
        with overriding(**{_CALL: OutermostCall(self.experience, inputs, receipt, self.program)}):
            yield

    def _is_outermost(self) -> bool:
        """Whether no other program of a trial stands around it."""
        level, callers = current_level(), list[Any](dspy.settings.caller_modules or ())
        around = callers[level.callers if level is not None else 0 :]
        outside = around[: around.index(self)] if self in around else []
        return all(isinstance(each, ProgramShell) for each in outside)


class KNNSteps(Teleprompter):
    """A teleprompter that gives a program experience: `WithExperience` under its usual face.

    Nothing is run; each call of the compiled program asks the model once.

    Args:
        memory: Where to recall from.
        k: Most demonstrations a call is given.
        options: What else `WithExperience` takes.

    Raises:
        StepsError: As `WithExperience` does.
    """

    def __init__(self, memory: StepMemory | None, k: int = 3, **options: Any) -> None:
        self.memory, self.k, self.options = memory, k, options
        WithExperience(dspy.Predict("question -> answer"), memory, k, **options)  # checks them

    def compile(self, student: dspy.Module, **_: Any) -> WithExperience:
        """Return the student with experience; whatever sets are given is not looked at."""
        return WithExperience(student, self.memory, self.k, **self.options)


def _experienced(program: dspy.Module, experience: Experience) -> dspy.Module:
    """Give each plain predictor of a program experience, and say which ones are left alone.

    A part that has experience of its own gets this one, as a program that is given once more does.
    """
    for _, part in program.named_sub_modules(WithExperience):
        cast("WithExperience", part).experience = experience
    others: list[str] = []
    for name, predict in program.named_sub_modules(dspy.Predict):
        if type(predict) in (dspy.Predict, ExperiencedPredict):
            predict.__class__ = ExperiencedPredict
            cast("ExperiencedPredict", predict).experience = experience
        else:
            others.append(f"{name.removeprefix('self.')} ({type(predict).__name__})")
    if others:
        _log.warning("WithExperience: these predictors recall nothing: %s.", ", ".join(others))
    return program


def _with(predict: dspy.Predict, kwargs: Mapping[str, Any], shown: Shown) -> dict[str, Any]:
    """Return what a predictor is called with, and what it is shown."""
    given = {**kwargs, "demos": shown.demos}
    if shown.warning is not None:
        signature: Any = kwargs.get("signature", predict.signature)
        signature = dspy.Signature(signature) if isinstance(signature, str) else signature
        told = f"{signature.instructions}\n{shown.warning}"
        given["signature"] = signature.with_instructions(told)
    return given


@contextmanager
def _own_signature(predict: dspy.Predict, kwargs: Mapping[str, Any]) -> Generator[None]:
    """Let an answer that cannot be parsed name the signature by which GEPA finds its predictor."""
    try:
        yield
    except AdapterParseError as error:
        vars(error)["signature"] = kwargs.get("signature", predict.signature)
        raise


def _source(demo: Any) -> DemoSource:
    if demo.get(STEP_ID):
        return DemoSource("memory", demo[STEP_ID], demo.get(RUN_ID))
    origin = "bootstrapped" if demo.get("augmented") else "given"
    return DemoSource(origin, recalled=tuple(demo.get(RECALLED_IDS) or ()))
