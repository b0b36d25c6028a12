"""Libraries of graph programs: where interpreters and tools look programs up by name or purpose.

`ProgramLibrary` is the contract: `AgentPrograms` lives as long as its interpreter, a
`ProgramMemory` lasts. There a program is one entry in a namespace of its own beside the steps, so
what keeps steps safe and searchable keeps programs, and no search for experience ever meets one.
What is embedded is the program's name, its description and the purposes of its nodes; the text
form, from which the program comes back exactly, lies beside that. Programs are read again when
another process changed them. Each library says which programs an agent may not touch: the entry
program and what that depends on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self, cast
from uuid import NAMESPACE_URL, UUID, uuid5

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import (
    InvalidQueryError,
    InvalidSettingError,
    InvalidStepError,
    ProgramError,
    ProtectedProgramError,
    UnknownProgramError,
)
from hybridagi_steps.graph.nodes import reached
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.step_text import tokens
from hybridagi_steps.validation import checked_redact, refused_redaction

NAMESPACE_SUFFIX = ".programs"
"""Appended to a step memory's namespace."""


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

    def update(self, programs: GraphProgram, /) -> None:
        """Store a program, replacing one of the same name."""
        ...


class AgentPrograms:
    """The programs of one agent, `given`, or of a `library`, where they last.

    Its entry program is protected, with all that it depends on.
    """

    def __init__(
        self,
        entrypoint: str,
        given: Iterable[GraphProgram] = (),
        library: ProgramLibrary | None = None,
    ) -> None:
        self._library = library
        self._known = {program.name: program.copy() for program in given}
        self._own = _reachable(self, entrypoint)
        self._known |= self._own

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def names(self) -> list[str]:
        """Return the names of all programs, sorted."""
        return sorted({*self._known, *(self._library.names() if self._library else ())})

    def get(self, name: str, /) -> GraphProgram:
        """Return a program; the agent's own as they were when it was made."""
        if name in self._known:
            return self._known[name]
        if self._library is None:
            raise UnknownProgramError(name, self.names())
        return self._library.get(name)

    def own(self) -> list[GraphProgram]:
        """Return the entry program and all that it depends on, as far as they are known."""
        return list(self._own.values())

    def search(self, query: str, k: int = 5) -> list[GraphProgram]:
        """Return the programs that fit a query best, without protected ones.

        Of given programs those that share most words with it.
        """
        if self._library is not None:
            found = self._library.search(query, k + len(self._own))
        else:
            asked = set(tokens(query))
            shared = {
                name: len(asked & set(tokens(f"{name} {self._known[name].description}")))
                for name in self.names()
            }
            best = sorted(filter(shared.__getitem__, shared), key=lambda name: -shared[name])
            found = [self._known[name] for name in best]
        return [program for program in found if program.name not in self._own][:k]

    def is_protected(self, name: str, /) -> bool:
        """Whether agents must leave the program alone."""
        return name in self._own or (self._library is not None and self._library.is_protected(name))

    def update(self, programs: GraphProgram, /) -> None:
        """Store a program where it lasts; InvalidSettingError if the agent was given a list."""
        if self._library is None:
            raise InvalidSettingError(
                "programs can be kept in a ProgramMemory: give the agent one in place of a list, "
                "or the tool, AddGraphProgram(programs)."
            )
        self._library.update(programs)


class ProgramMemory:
    """Programs that last.

    Args:
        memory: A StepMemory to keep them beside, or the address of one.
        protected: Names of entry programs. Agents may not call or read these, nor anything that
            they depend on.
        embedder: As for a StepMemory; by default that of `memory`.
        redact: Called with the description of a program and with purposes, prompts and questions
            before it is stored; by default that of `memory`. Names and labels stay as they are.

    Example:
        >>> programs = ProgramMemory(":memory:", embedder="hashing")
        >>> from hybridagi_steps.programs import Action
        >>> greet = GraphProgram("greet", "Greet a guest").add(Action("hi", "Speak", "Greet"))
        >>> programs.add(greet.connect("start", "hi").connect("hi", "end"))
        >>> [program.name for program in programs.search("welcome a guest")]
        ['greet']
    """

    def __init__(
        self,
        memory: StepMemory | str | os.PathLike[str] = ":memory:",
        *,
        protected: Sequence[str] = ("main",),
        embedder: Embedder | str | None = None,
        redact: Redact | None = None,
    ) -> None:
        own = memory.redact if isinstance(memory, StepMemory) else None
        self.redact = checked_redact(own if redact is None else redact)
        self.protected = tuple(protected)
        self._steps = _beside(memory, embedder)
        self._lock = ForkSafeLock()
        self._read: dict[str, tuple[str, GraphProgram]] = {}

    def add(self, programs: GraphProgram | str | Iterable[Any] | Mapping[str, Any]) -> None:
        """Store programs; all or nothing.

        Raises:
            ProgramError: A name is taken; `update` replaces it.
            InvalidProgramError: A program is not sound; what it calls may come later.
        """
        given = programs_of(programs)
        names = [program.name for program in given]
        taken = [name for name in names if name in self or names.count(name) > 1]
        if taken:
            raise ProgramError(f"a program {taken[0]!r} is there already; update() replaces it.")
        self._steps.add([self._entry(program) for program in given])

    def update(self, programs: GraphProgram | str | Iterable[Any] | Mapping[str, Any]) -> None:
        """Store programs, replacing those of the same name; all or nothing.

        Raises:
            InvalidProgramError: A program is not sound; what it calls may come later.
        """
        self._steps.update([self._entry(program) for program in programs_of(programs)])

    def remove(self, name: str) -> None:
        """Forget a program.

        Raises:
            UnknownProgramError: There is none of this name.
            ProtectedProgramError: An entry program calls it, however far down.
        """
        callers = [entry for entry in self.protected if entry in self and entry != name]
        callers = [entry for entry in callers if name in self.dependencies(entry)]
        if callers:
            raise ProtectedProgramError(
                f"the entry program {callers[0]!r} depends on {name!r}; update or remove "
                f"{callers[0]!r} first."
            )
        if not self._steps.delete(_id(name)):
            raise UnknownProgramError(name, self.names())

    def clear(self) -> None:
        """Forget every program, entry programs too."""
        self._steps.clear()

    def get(self, name: str, /) -> GraphProgram:
        """Return a program, a copy of your own.

        Raises:
            UnknownProgramError: There is none of this name.
        """
        found = self._steps.get_steps(_id(name))
        if not found:
            raise UnknownProgramError(name, self.names())
        return self._program(found[0])

    def names(self) -> list[str]:
        """Return the names of all programs, sorted."""
        return sorted(step.program or "" for step in self._steps.iter_steps())

    def exist(self, name: str) -> bool:
        """Return whether a program has this name."""
        return self._steps.exist(_id(name))

    def search(self, query: str, k: int = 5) -> list[GraphProgram]:
        """Find programs by what they are for, best first, without protected ones.

        Raises:
            InvalidQueryError: An empty query, or k below 1.
        """
        if k < 1:
            raise InvalidQueryError(f"k is at least 1, not {k!r}.")
        hidden = self._protected_names()
        asked = query if self.redact is None else redacted(query, self.redact)
        hits = self._steps.search(asked, k + len(hidden))
        found = [hit.step for hit in hits if hit.step.program not in hidden]
        return [self._program(step) for step in found[:k]]

    def dependencies(self, name: str) -> list[str]:
        """Return the names of all programs that one calls, however far down, nearest first.

        A name that no program has is listed too.

        Raises:
            UnknownProgramError: There is no program `name`.
        """
        known = reached(self.get(name).calls(), lambda n: self.get(n).calls() if n in self else ())
        return list(known)

    def is_protected(self, name: str, /) -> bool:
        """Return whether agents must leave a program alone."""
        return name in self._protected_names()

    def close(self) -> None:
        """Release the file."""
        self._steps.close()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.exist(name)

    def __iter__(self) -> Iterator[GraphProgram]:
        return (self.get(name) for name in self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._steps, self.protected, self.redact)

    def __repr__(self) -> str:
        return f"ProgramMemory({self._steps.address!r}, {len(self)} programs)"

    def _protected_names(self) -> set[str]:
        entries = [name for name in self.protected if name in self]
        return {*self.protected, *(each for name in entries for each in self.dependencies(name))}

    def _entry(self, program: GraphProgram) -> AgentStep:
        """Return a program as it is stored."""
        if self.redact is not None:
            try:
                program = program.rewritten(partial(redacted, redact=self.redact))
            except InvalidStepError:
                raise
            except Exception as error:
                raise refused_redaction(f"of the program {program.name!r}", error) from None
        return _entry(program.build())

    def _program(self, step: AgentStep) -> GraphProgram:
        """Return the program of an entry; its text is parsed once."""
        name, text = step.program or "", str((step.metadata or {})["text"])
        with self._lock:
            known = self._read.get(name)
        if known is None or known[0] != text:
            known = (text, GraphProgram.from_cypher(text, name))
            with self._lock:
                self._read[name] = known
        return known[1].copy()


def _beside(
    memory: StepMemory | str | os.PathLike[str], embedder: Embedder | str | None
) -> StepMemory:
    if isinstance(memory, StepMemory):
        return StepMemory(
            memory.whole_address,
            embedder=embedder if embedder is not None else memory.embedder,
            namespace=memory.namespace + NAMESPACE_SUFFIX,
            durability=memory.durability,
        )
    return StepMemory(
        memory,
        embedder="auto" if embedder is None else embedder,
        namespace=f"default{NAMESPACE_SUFFIX}",
    )


def _reopened(steps: StepMemory, protected: Sequence[str], redact: Redact | None) -> ProgramMemory:
    opened = ProgramMemory.__new__(ProgramMemory)
    kept = {"protected": tuple(protected), "redact": redact}
    opened.__dict__.update(kept, _steps=steps, _lock=ForkSafeLock(), _read={})
    return opened


def _id(name: str) -> UUID:
    return uuid5(NAMESPACE_URL, f"hybridagi-steps:program:{name}")


def _entry(program: GraphProgram) -> AgentStep:
    purposes = [getattr(node, "purpose", "") for node in program.nodes.values()]
    return AgentStep(
        id=_id(program.name),
        step_type=AgentStepType.Action,
        inputs={
            "purpose": f"{program.name}: {program.description}",
            "program": program.name,
            "arguments": {"does": "; ".join(purpose for purpose in purposes if purpose)},
        },
        metadata={"text": program.to_cypher(), "calls": program.calls()},
    )


def _reachable(library: ProgramLibrary, entrypoint: str) -> dict[str, GraphProgram]:
    """Return a program and all that it calls, however far down, as far as they are known."""
    known, found = set(library.names()), dict[str, GraphProgram]()

    def calls(name: str) -> list[str]:
        found.update({name: library.get(name)} if name in known else {})
        return found[name].calls() if name in found else []

    reached([entrypoint], calls)
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
