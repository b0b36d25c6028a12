"""Errors of graph programs, their prompts and tools."""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.errors.base import StepsError


class ProgramError(StepsError, ValueError):
    """A graph program that is not sound; nothing was run."""


class InvalidProgramError(ProgramError):
    """All that is wrong with a graph program; `problems` holds one line each."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the program {name!r} cannot be built:{listed}")
        self.name, self.problems = name, list(problems)


class ProgramTextError(ProgramError):
    """The text form of a program cannot be read; `line` and `column` count from 1."""

    def __init__(self, message: str, *, line: int, column: int, name: str | None = None) -> None:
        where = f"{name}, " if name else ""
        super().__init__(f"{where}line {line}, column {column}: {message}")
        self.line, self.column, self.name = line, column, name


class _UnknownNameError(StepsError, KeyError):
    _kind = "thing"

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        listed = f"; known are {', '.join(sorted(known))}" if known else ""
        super().__init__(f"no {self._kind} is named {name!r}{listed}.")
        self.name = name


class UnknownProgramError(_UnknownNameError, ProgramError):
    """No program has this name."""

    _kind = "program"


class ProtectedProgramError(ProgramError):
    """An agent reached for an entry program, or for one that it depends on."""


class PromptError(ProgramError):
    """A prompt template with a syntax error, a missing variable, or a reach for attributes."""


class DecisionError(ProgramError):
    """A language model was asked to choose, and what it answered is none of the options."""

    def __init__(self, answer: str, options: Sequence[str], asked: int) -> None:
        super().__init__(
            f"the model was asked {asked} times and last answered {answer[:200]!r}, which is none "
            f"of {', '.join(options)}. Reword the question, take another model for the decision, "
            "or add an edge labelled OTHERWISE."
        )
        self.answer, self.options, self.asked = answer, list(options), asked


class UnknownToolError(_UnknownNameError):
    """No tool has this name."""

    _kind = "tool"


class ToolInputError(StepsError, ValueError):
    """What a tool was called with does not fit its arguments; it was not run."""
