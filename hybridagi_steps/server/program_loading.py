"""What the command line names as package.module:name: the program to run, what redacts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.redaction import Redact

if TYPE_CHECKING:
    from hybridagi_steps.running.runner import StepRunner


def load_runner(name: str, memory: StepMemory, *, ask_consent: bool = False) -> StepRunner:
    """Return a StepRunner of the program that `package.module:name` names.

    The name stands for a DSPy module, a class of one, an async callable over messages, a
    StepRunner's maker that takes `memory`, or what such a maker returns.

    Args:
        name: Where it is; modules in the working directory are found, too.
        memory: Where its runs are stored.
        ask_consent: Whether each tool has to be allowed by whoever reads the stream.
    """
    program = _make_program(_load("--program", name), name, memory)
    from hybridagi_steps.running.limits import StepRunnerConfig
    from hybridagi_steps.running.runner import StepRunner

    if isinstance(program, StepRunner):
        if program.memory is not memory:
            raise InvalidSettingError(
                f"{name} is a StepRunner over another memory; let it be a function that takes "
                "`memory` and returns the StepRunner."
            )
        if ask_consent:
            _set_consent(program, name)
        return program
    config = StepRunnerConfig(consent=_reader_decides if ask_consent else None)
    return StepRunner(program, memory, config=config)


def _set_consent(runner: StepRunner, name: str) -> None:
    """Let a runner that was made elsewhere ask the reader; it must not run without."""
    if runner.config.consent is not None:
        raise InvalidSettingError(
            f"--ask: the StepRunner of {name} has a consent of its own, which decides without the "
            "reader. Leave out --ask, or leave out that consent."
        )
    try:
        runner.config = replace(runner.config, consent=_reader_decides)
        asks = runner.config.consent is _reader_decides
    except (AttributeError, TypeError):
        asks = False
    if not asks:
        raise InvalidSettingError(
            f"--ask: the StepRunner of {name} does not take another config, so that its tools "
            "would run without asking. Set `consent` where it is made, and leave out --ask."
        )


def _reader_decides(_: object) -> None:
    """Decide nothing: the answer comes through the server."""


def load_redact(name: str) -> Redact:
    """Return the function that `package.module:name` names."""
    found = _load("--redact", name)
    if not callable(found) or inspect.isclass(found):
        raise InvalidSettingError(f"--redact {name} is no function that takes a text.")
    return cast("Redact", found)


def load_jobs(name: str) -> dict[str, Any]:
    """Return the kinds of bulk jobs, by name, that `package.module:name` names."""
    found = _load("--jobs", name)
    if not isinstance(found, dict):
        raise InvalidSettingError(f"--jobs {name} is no dict of functions by name.")
    return cast("dict[str, Any]", found)


def _load(option: str, name: str) -> object:
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise InvalidSettingError(f"{option} is package.module:name, not {name!r}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise InvalidSettingError(
            f"{option} {name} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return found


def _make_program(found: object, name: str, memory: StepMemory) -> Any:
    """Return the program itself: a class is made an object of, a maker is asked."""
    if not inspect.isclass(found) and not _takes_memory(found):
        return found
    make = cast("Callable[..., Any]", found)
    try:
        return make(memory) if _takes_memory(make) else make()
    except Exception as error:
        raise InvalidSettingError(
            f"--program {name} could not be made: {type(error).__name__}: {error}"
        ) from error


def _takes_memory(found: object) -> bool:
    """Whether something is called with a memory and nothing else."""
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return False
    needed = [
        parameter.name
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return needed == ["memory"]
