"""Recorded: a program that carries its recording along, wherever DSPy copies or streams it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import dspy
from dspy.predict.parameter import Parameter

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.recording.blocks import Block
from hybridagi_steps.recording.call_tree import Labels
from hybridagi_steps.recording.step_writer import check_memory

_PREFIX = "program."
_ITSELF = "self"
"""How DSPy names a predictor among its own parameters."""


class ProgramShell(dspy.Module):
    """A module around a program that DSPy takes for the program itself.

    Predictors, demos, saved state and language models are those of the program inside; so are
    attributes that the shell does not have.
    """

    adds_no_step = True
    """For recorders: the program inside tells everything."""
    own_names: ClassVar[frozenset[str]] = frozenset({"program", "memory", "callbacks", "history"})
    """What the shell has of its own, also when the program inside has such a name."""

    program: Any

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Return the parameters of the program inside, by the names they have there."""
        return self.program.named_parameters()

    def map_named_predictors(self, func: Callable[[Any], Any]) -> Self:
        """Replace each predictor of the program inside by what `func` makes of it."""
        if isinstance(self.program, dspy.Predict):
            self.program = func(self.program)
        else:
            self.program.map_named_predictors(func)
        return self

    def dump_state(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the state of the program inside."""
        return self.program.dump_state(*args, **options)

    def load_state(self, state: Mapping[str, Any], **options: Any) -> None:
        """Load a state of the program inside, or of a shell that named it `program`."""
        self.program.load_state(_without_prefix(self.program, state), **options)

    @property
    def _compiled(self) -> bool:
        """Whether optimisers leave the program inside as it is."""
        return getattr(self.__dict__.get("program"), "_compiled", False)

    @_compiled.setter
    def _compiled(self, compiled: bool) -> None:
        if "program" in self.__dict__:  # DSPy sets it first of all
            self.program._compiled = compiled  # noqa: SLF001 - DSPy's own mark, set from outside

    def __getattr__(self, name: str) -> Any:
        """Return what only the program inside has: names of parameters are paths to them."""
        if name in self.own_names or name.startswith("__") or "program" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.program if name == _ITSELF else getattr(self.program, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what only the program inside has, there."""
        own = name in self.own_names or name in self.__dict__ or hasattr(type(self), name)
        if own or "program" not in self.__dict__ or not hasattr(self, name):
            super().__setattr__(name, value)
        elif name == _ITSELF:
            self.program = value
        else:
            setattr(self.program, name, value)


class Recorded(ProgramShell):
    """A program that records itself, wherever it is called.

    Use it where a block cannot reach: optimisers copy programs, streams outlive blocks, servers
    call programs from many threads. Each outermost call is one run;
    inside an active run on the same memory it joins that. Predictors, demos, saved state and
    language models are those of the program inside.

    Args:
        program: Any DSPy module.
        memory: Where steps go; copies share it, a pickle reopens it.
        session_id: The session the steps belong to.
        user_id: Whose history it is.
        tags: Kept in each step's metadata.
        scope: Marks the steps as trials, hidden unless asked for.
        keep_prompts: Whether what models are sent and give is kept, too: `memory.prompt_of(id)`.

    Raises:
        InvalidSettingError: `program` is no instance of `dspy.Module`.
        InvalidMemoryError: `memory` has no `add` and `run`, or keeps no prompts.
        InvalidStepError: A label that no step can carry.
    """

    own_names = ProgramShell.own_names | {"labels"}

    def __init__(
        self,
        program: Any,
        memory: Any,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        tags: Mapping[str, Any] | None = None,
        scope: str | None = None,
        keep_prompts: bool = False,
    ) -> None:
        super().__init__()
        self.program = checked_program(program, "Recorded", _ELSEWHERE)
        self.memory = check_memory(memory, keep_prompts=keep_prompts)
        self.labels = Labels.of(session_id, user_id, tags, scope, keep_prompts)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program and record it."""
        with Block(self.memory, self.labels):
            return self.program(*args, **kwargs)

    async def aforward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program asynchronously and record it."""
        with Block(self.memory, self.labels):
            return await self.program.acall(*args, **kwargs)


_ELSEWHERE = (
    "; a function or tool is recorded by hs.record_step, or in a block: with hs.record(memory)."
)


def checked_program(program: object, taker: str, otherwise: str = ".") -> Any:
    """Return a program, if it is one; `otherwise` ends what is said if not."""
    if isinstance(program, dspy.Module):
        return program
    given = f"the class {program.__name__}" if isinstance(program, type) else repr(program)[:80]
    raise InvalidSettingError(
        f'{taker} takes a dspy.Module instance, such as dspy.Predict("question -> answer"), not '
        f"{given}{otherwise}"
    )


def _without_prefix(program: Any, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state under the names of `program`: it may have been saved with `program.` before.

    A predictor's own state has no names.
    """
    if isinstance(program, Parameter):
        return state.get(_PREFIX.rstrip("."), state)
    if all(name in state for name, _ in program.named_parameters()):
        return state
    return {name.removeprefix(_PREFIX): value for name, value in state.items()}
