"""The grammar of patterns over runs, and the automaton that a pattern becomes.

It knows the text of a pattern and the steps it is held against; `patterns` says what users get. The
automaton has about one state per word; all places in it that the steps so far may have led to are
followed at once, each with the earliest step it began at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import get_args

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus

_GRAMMAR = r"""
?start: sequence
?sequence: either ("->" either)*
?either: repeated ("|" repeated)*
?repeated: part [REPEAT]
?part: WORD -> word | QUOTED -> quoted | "..." -> anything | "(" sequence ")"
REPEAT: "+" | "*" | "?"
WORD: /\w+(?:\.\w+)*/
QUOTED: /"[^"]*"|`[^`]*`/
%ignore /\s+/
"""
_LONGEST = 1_000
_DONE = 0
_Wanted = Callable[[AgentStep], bool]


@dataclass(slots=True)
class _State:
    after: list[int]
    wanted: _Wanted | None = None
    """What a step must be to go on; None: no step is needed."""


@dataclass(slots=True)
class Pattern:
    """A pattern, ready to be held against runs."""

    states: list[_State] = field(default_factory=lambda: [_State([])])
    begin: int = _DONE
    names: set[str] = field(default_factory=set[str])
    """The names of tools, programs and predictors in it."""

    def first_in(self, steps: Sequence[AgentStep]) -> tuple[int, int] | None:
        """Return where steps first match, as far as they do: begin and end of a slice."""
        found: tuple[int, int] | None = None
        now: dict[int, int] = {}
        for place, step in enumerate(steps):
            if found is None:
                self._enter(now, self.begin, place)
            then: dict[int, int] = {}
            for state, began in now.items():
                wanted = self.states[state].wanted
                if wanted is not None and wanted(step):
                    for following in self.states[state].after:
                        self._enter(then, following, began)
            began = then.get(_DONE)
            if began is not None and (found is None or began <= found[0]):
                found = began, place + 1
            if found is not None:  # what began later cannot be the first match
                then = {state: began for state, began in then.items() if began <= found[0]}
            now = then
            if found is not None and not now:
                break
        return found

    def _enter(self, states: dict[int, int], state: int, began: int) -> None:
        """Add a state and all that need no step after it."""
        waiting = [state]
        while waiting:
            each = waiting.pop()
            if each in states and states[each] <= began:
                continue
            states[each] = began
            if self.states[each].wanted is None:
                waiting.extend(self.states[each].after)

    def add(self, tree: Tree[Token], after: int) -> int:
        """Add what a part of the text means before a state; return the state it begins with."""
        if tree.data in ("word", "quoted"):
            return self._state([after], self._wanted(tree))
        if tree.data == "anything":
            return self._repeated(lambda again: self._state([again], lambda _: True), after, "*")
        parts = [part for part in tree.children if isinstance(part, Tree)]
        if tree.data == "sequence":
            for part in reversed(parts):
                after = self.add(part, after)
            return after
        if tree.data == "either":
            return self._state([self.add(part, after) for part in parts])
        return self._repeated(lambda again: self.add(parts[0], again), after, str(tree.children[1]))

    def _repeated(self, part: Callable[[int], int], after: int, how: str) -> int:
        if how == "?":
            return self._state([part(after), after])
        again = self._state([after])
        begin = part(again)
        self.states[again].after.append(begin)
        return again if how == "*" else begin

    def _state(self, after: list[int], wanted: _Wanted | None = None) -> int:
        self.states.append(_State(after, wanted))
        return len(self.states) - 1

    def _wanted(self, tree: Tree[Token]) -> _Wanted:
        text = str(tree.children[0])
        name = text[1:-1] if tree.data == "quoted" else text
        if tree.data == "word" and name in AgentStepType.__members__:
            return lambda step: str(step.step_type) == name
        if tree.data == "word" and name in get_args(StepStatus):
            return lambda step: step.status == name
        self.names.add(name)
        return lambda step: name in names_of(step)


def names_of(step: AgentStep) -> tuple[str | None, ...]:
    """Return what a pattern may call a step."""
    return step.tool, step.program, step.predictor


def read_pattern(text: str) -> Pattern:
    """Read a pattern."""
    if not isinstance(text, str) or len(text) > _LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidQueryError(f"a pattern is a text of at most {_LONGEST:,} characters.")
    try:
        tree = _parser().parse(text)  # pyright: ignore[reportUnknownMemberType] - typed in part
    except UnexpectedInput as error:
        found: object = getattr(error, "token", None)
        ended = getattr(found, "type", None) == "$END"
        place = "at the end" if ended else f"at column {error.column}"
        raise InvalidQueryError(
            f"the pattern {json.dumps(text[:80])} does not parse {place}; one that does is "
            '"Decision -> search+ -> (error | ...)".'
        ) from error
    pattern = Pattern()
    pattern.begin = pattern.add(tree, _DONE)
    return pattern


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)
