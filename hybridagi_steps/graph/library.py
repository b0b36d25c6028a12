"""Where an interpreter and its tools look programs up: a contract, and the simple case of a dict.

A `ProgramMemory` is a library that lasts and can be searched by meaning; programs given as a list
are one that lives as long as its interpreter. Either says which programs an agent may not touch:
the entry program and what that depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, Self, cast

from hybridagi_steps.errors import InvalidSettingError, ProtectedProgramError, UnknownProgramError
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.records.step_text import tokens


class ProgramLibrary(Protocol):
    """Programs by name."""

    def names(self) -> list[str]:
        """Return the names of all programs, sorted."""
        ...

    def get(self, name: str, /) -> GraphProgram:
        """Return a program; UnknownProgramError if there is none."""
        ...

    def search(self, query: str, k: int = 5) -> list[GraphProgram]:
        """Return the programs that fit a query best, without protected ones."""
        ...

    def is_protected(self, name: str, /) -> bool:
        """Whether agents must leave the program alone."""
        ...


class ProgramShelf:
    """Programs that were given to an interpreter.

    Args:
        programs: The programs.
    """

    def __init__(self, programs: Iterable[GraphProgram]) -> None:
        self._programs = {program.name: copy_of(program) for program in programs}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def names(self) -> list[str]:
        """Return the names of all programs, sorted."""
        return sorted(self._programs)

    def get(self, name: str, /) -> GraphProgram:
        """Return a program."""
        if name not in self._programs:
            raise UnknownProgramError(name, self.names())
        return self._programs[name]

    def search(self, query: str, k: int = 5) -> list[GraphProgram]:
        """Return the programs that share most words with a query."""
        asked = set(tokens(query))
        found = [
            (len(asked & set(tokens(f"{program.name} {program.description}"))), program)
            for _, program in sorted(self._programs.items())
        ]
        best = sorted(found, key=lambda scored: -scored[0])
        return [program for score, program in best[:k] if score]

    def is_protected(self, name: str, /) -> bool:
        """Return False: which are, its interpreter knows."""
        del name
        return False


class EntryGuard:
    """A library in which one more program is protected, with all that it depends on.

    Args:
        library: The library.
        entrypoint: The program that runs begin with.
    """

    def __init__(self, library: ProgramLibrary, entrypoint: str) -> None:
        self.library = library
        self._own = _reachable(library, entrypoint)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def names(self) -> list[str]:
        """Return the names of all programs, sorted."""
        return sorted({*self._own, *self.library.names()})

    def get(self, name: str, /) -> GraphProgram:
        """Return a program; the agent's own as they were when it was made."""
        return self._own[name] if name in self._own else self.library.get(name)

    def own(self) -> list[GraphProgram]:
        """Return the entry program and all that it depends on, as far as they are known."""
        return list(self._own.values())

    def search(self, query: str, k: int = 5) -> list[GraphProgram]:
        """Return the programs that fit a query best, without protected ones."""
        found = self.library.search(query, k + len(self._own))
        return [program for program in found if program.name not in self._own][:k]

    def is_protected(self, name: str, /) -> bool:
        """Whether agents must leave the program alone."""
        return name in self._own or self.library.is_protected(name)


def copy_of(program: GraphProgram) -> GraphProgram:
    """Return a program that later changes to the other do not reach."""
    copied = GraphProgram(program.name, program.description, program.var_in)
    copied.nodes, copied.edges = dict(program.nodes), list(program.edges)
    return copied


def open_to_agents(library: ProgramLibrary, name: str) -> GraphProgram:
    """Return a program that an agent asked for by name."""
    if library.is_protected(name):
        raise ProtectedProgramError(
            f"the program {name!r} is an entry program, or one depends on it; agents may not call, "
            "read or replace it."
        )
    try:
        return library.get(name)
    except UnknownProgramError:
        known = [each for each in library.names() if not library.is_protected(each)]
        raise UnknownProgramError(name, known) from None


def _reachable(library: ProgramLibrary, entrypoint: str) -> dict[str, GraphProgram]:
    """Return a program and all that it calls, however far down, as far as they are known."""
    known = set(library.names())
    found: dict[str, GraphProgram] = {}
    waiting = [entrypoint]
    while waiting:
        name = waiting.pop(0)
        if name in known and name not in found:
            found[name] = library.get(name)
            waiting += found[name].calls()
    return found


def programs_of(given: object) -> list[GraphProgram]:
    """Return programs given as one, several, a dict or text."""
    if isinstance(given, GraphProgram):
        return [given]
    if isinstance(given, str):
        return [GraphProgram.from_cypher(given)]
    if isinstance(given, Mapping):
        named = cast("Mapping[str, GraphProgram | str]", given)
        return [
            GraphProgram.from_cypher(each, str(name)) if isinstance(each, str) else each
            for name, each in named.items()
        ]
    if isinstance(given, Iterable):
        return [program for each in cast("Iterable[Any]", given) for program in programs_of(each)]
    raise InvalidSettingError(
        f"programs are GraphPrograms, their text, or a ProgramMemory; not {type(given).__name__}."
    )
