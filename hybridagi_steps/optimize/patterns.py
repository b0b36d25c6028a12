"""Patterns in what runs did: loops, runs that follow a pattern, and sequences that recur.

Calls compare by tool and canonical arguments, results with white space and runs of digits
collapsed: a timestamp makes no difference. Nothing here asks a model. A pattern is read by a
grammar of its own and matched by a set of states that walks over the steps once, so the time grows
with the number of steps times the length of the pattern, whatever the pattern is.

Reference: Thompson 1968, "Regular expression search algorithm".
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import orjson

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.optimize.pattern_text import names_of, read_pattern
from hybridagi_steps.optimize.stored_runs import GOOD, runs_of, steps_given
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.listings import Lines
from hybridagi_steps.records.step_identity import names_steps
from hybridagi_steps.records.step_text import cut
from hybridagi_steps.validation import Steps, Where, whole_number

LoopKind = Literal["same result", "same call", "sequence"]
_log = logging.getLogger("hybridagi_steps")
_DIGITS = re.compile(r"\d+")
_PERIODS, _SAME_CALLS = (2, 3), 3
_SHOWN = 60


@dataclass(frozen=True, slots=True, repr=False)
class Loop:
    """Calls of one run that were made again."""

    kind: LoopKind
    """The same call with the same result at least twice, the same call at least three times, or a
    sequence of two or three calls repeated at once."""
    calls: tuple[str, ...]
    """The tools or predictors called, in order; one but for a sequence."""
    steps: tuple[AgentStep, ...]
    """All steps that are part of it, the first time included."""
    times: int
    """How often it was done."""

    @property
    def outline(self) -> str:
        """What was repeated, without arguments: fit for a log."""
        if self.kind == "sequence":
            return f"{' -> '.join(self.calls)} repeated {self.times} times"
        ended = "gave the same result" if self.kind == "same result" else "was called"
        return f"{self.calls[0]} {ended} {self.times} times"

    def __str__(self) -> str:
        named = self.outline
        if self.kind != "sequence":
            named = call_text(self.steps[0]) + named.removeprefix(self.calls[0])
        return f"{named} (steps {', '.join(str(step.hop) for step in self.steps)})"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class RunMatch:
    """A run that holds a pattern."""

    run_id: str
    steps: tuple[AgentStep, ...]
    """Where it first holds it: from the first step that matched to the last."""
    score: float | None
    """How good the run was."""


@dataclass(frozen=True, slots=True)
class CommonSequence:
    """Tools that runs used one after the other."""

    calls: tuple[str, ...]
    run_ids: tuple[str, ...]
    """The runs that hold it, of those that were asked for."""
    share: float | None
    """Share of those among all scored runs with this sequence that ended well."""

    def __str__(self) -> str:
        ended = "" if self.share is None else f", {self.share:.0%} of all such runs ended well"
        return f"{' -> '.join(self.calls)}: {len(self.run_ids)} runs{ended}"


def find_loops(steps: Steps, *, waiting: Collection[str] = ()) -> list[Loop]:
    """Find calls that were repeated for nothing: as they stand, a sign that a run is stuck.

    Args:
        steps: Steps of one run or several, in order; each run is looked at by itself.
        waiting: Tools that poll, such as `sleep`: calling them again is no loop.

    Returns:
        Loops in the order of their first step; the three kinds are those of `Loop.kind`. A call
        without arguments compares by its purpose, too, where results are not compared.
    """
    runs: dict[str | None, list[AgentStep]] = defaultdict(list)
    for step in steps_given(steps):
        if (name := called(step)) is not None and name not in waiting:
            runs[step.run_id].append(step)
    return Lines(loop for calls in runs.values() for loop in _loops(calls))


def find_runs(memory: StepMemory, pattern: str, *, where: Where = None) -> list[RunMatch]:
    """Find runs in which steps follow one another as a pattern says.

    `Decision -> search+ -> error`: a Decision, directly after it one or more steps with the tool
    `search`, directly after these a step that failed. A word is a step type, a status (`ok`,
    `error`, `partial`, `cancelled`), else the name of a tool, program or predictor; in quotes it is
    always a name. `a | b` is either, `+ * ?` are one or more, any number, at most one, `...` is any
    number of any steps, and parentheses hold together what belongs together; `|` binds closer than
    `->`.

    Args:
        memory: Whose runs.
        pattern: At most 1,000 characters.
        where: Which steps are looked at; others are as if they were not there. By default those of
            the user that the run around it names, and where none is named everybody's.

    Returns:
        Each run once, with the first place where it holds the pattern, as far as that reaches.
        Where there is none, a name in it that none of these steps has is told in a warning.

    Raises:
        InvalidQueryError: The pattern does not parse; the message names the place.
    """
    wanted = read_pattern(pattern)
    runs = runs_of(memory, where, closed=True)
    found = ((run_id, wanted.first_in(steps), steps) for run_id, steps in runs.items())
    matched = [(run_id, steps[slice(*span)]) for run_id, span, steps in found if span is not None]
    if not matched:
        _warn_of_unknown(wanted.names, runs)
    scores = memory.run_scores(run_id for run_id, _ in matched)
    return [RunMatch(run_id, tuple(steps), scores.get(run_id)) for run_id, steps in matched]


def _warn_of_unknown(asked: set[str], runs: Mapping[str, Sequence[AgentStep]]) -> None:
    known = {name for steps in runs.values() for step in steps for name in names_of(step) if name}
    for name in sorted(asked - known) if runs else ():
        near = get_close_matches(name, known, 3)
        hint = f"; near it are {', '.join(near)}" if near else ""
        _log.warning("find_runs: no step here has the tool, program or predictor %r%s.", name, hint)


def common_sequences(
    memory: StepMemory,
    n: tuple[int, int] = (2, 5),
    *,
    good: bool | None = True,
    where: Where = None,
    limit: int = 20,
) -> list[CommonSequence]:
    """Return the sequences of calls that most runs have in common.

    Args:
        memory: Whose runs.
        n: Least and greatest number of calls.
        good: Of runs that ended well (a score of at least .5); False: of those that did not; None:
            of all, unscored ones included.
        where: Which steps are looked at, as `find_runs` has it.
        limit: Most sequences returned.

    Returns:
        Those of at least two runs, of most runs first, then the longest; a sequence that stands in
        a longer one of the same runs is left out.

    Raises:
        InvalidSettingError: `n` is no range of whole numbers above zero, or `limit` is below 1.
    """
    if not isinstance(n, Sequence) or isinstance(n, str) or len(n) != 2:  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidSettingError(f"n is (least, greatest), such as (2, 5), not {n!r:.80}.")
    least, most = (whole_number("n", each, 1) for each in n)
    if least > most:
        raise InvalidSettingError(f"n is (least, greatest); {least} is above {most}.")
    whole_number("limit", limit, 1)
    runs = runs_of(memory, where, closed=True)
    called_in = {run_id: call_names(steps) for run_id, steps in runs.items()}
    ended = {run_id: score >= GOOD for run_id, score in memory.run_scores(runs).items()}
    holders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run_id, calls in called_in.items():
        for sequence in dict.fromkeys(_sequences(calls, least, most)):
            holders[sequence].append(run_id)
    found: list[CommonSequence] = []
    for calls, everyone in holders.items():
        asked = [run for run in everyone if good is None or ended.get(run) is good]
        known = [ended[run] for run in everyone if run in ended]
        share = sum(known) / len(known) if known else None
        if len(asked) > 1:
            found.append(CommonSequence(calls, tuple(asked), share))
    found.sort(key=lambda each: (-len(each.run_ids), -len(each.calls), each.calls))
    kept: list[CommonSequence] = []
    for each in sorted(found, key=lambda each: -len(each.calls)):
        if not any(_within(each, longer) for longer in kept):
            kept.append(each)
    return Lines([each for each in found if each in kept][:limit])


def called(step: AgentStep) -> str | None:
    """Return the tool or predictor that an Action called."""
    return step.tool or step.predictor if step.step_type == AgentStepType.Action else None


def call_names(steps: Sequence[AgentStep]) -> list[str]:
    """Return the tools that steps used, in order; where there are none, the predictors."""
    tools = [step.tool for step in steps if step.tool]
    return tools or [name for step in steps if (name := called(step))]


def call_text(step: AgentStep) -> str:
    """Return a call in a line: what was called, and with what."""
    told = {key: value for key, value in step.arguments.items() if not names_steps(value)}
    said = ", ".join(f"{key}={cut(value, _SHOWN)}" for key, value in told.items())
    return f"{called(step) or step.step_type}({cut(said, 2 * _SHOWN)})"


def _loops(steps: list[AgentStep]) -> list[Loop]:
    same: dict[tuple[str, str], list[AgentStep]] = defaultdict(list)
    alike: dict[str, list[AgentStep]] = defaultdict(list)
    for step in steps:
        if (result := _result(step)) is not None:
            same[_call(step, blind=True), result].append(step)
        alike[_call(step)].append(step)
    found = [
        Loop("same result", _names(each[:1]), tuple(each), len(each)) for each in same.values()
    ]
    found = [loop for loop in found if loop.times > 1]
    told = {tuple(map(id, loop.steps)) for loop in found}
    found += [
        Loop("same call", _names(each[:1]), tuple(each), len(each))
        for each in alike.values()
        if len(each) >= _SAME_CALLS and tuple(map(id, each)) not in told
    ]
    found += _repeated(steps)
    places = {id(step): place for place, step in enumerate(steps)}
    return sorted(found, key=lambda loop: places[id(loop.steps[0])])


def _repeated(steps: list[AgentStep]) -> Iterator[Loop]:
    """Yield sequences of two or three calls, not all the same, that follow on themselves."""
    calls, begin = [_call(step) for step in steps], 0
    while begin < len(calls):
        for period in _PERIODS:
            times = 1
            unit = calls[begin : begin + period]
            while calls[begin + times * period : begin + (times + 1) * period] == unit:
                times += 1
            if times > 1 and len(set(unit)) > 1:
                part = steps[begin : begin + times * period]
                yield Loop("sequence", _names(part[:period]), tuple(part), times)
                begin += times * period - 1
                break
        begin += 1


def _names(steps: Sequence[AgentStep]) -> tuple[str, ...]:
    return tuple(called(step) or "" for step in steps)


def _call(step: AgentStep, *, blind: bool = False) -> str:
    """Return what calls compare by; `blind` to why a call without arguments was made."""
    purpose = "" if blind or step.arguments else step.purpose
    return f"{called(step)} {_canonical(step.arguments)} {purpose}"


def _result(step: AgentStep) -> str | None:
    """Return what results compare by; None: there is none yet."""
    if not step.outputs:
        return None
    value = step.outputs if step.result is None else step.result
    text = value if isinstance(value, str) else _canonical(value)
    return " ".join(_DIGITS.sub("0", text).split())


def _canonical(value: object) -> str:
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=str, option=options).decode()


def _sequences(calls: Sequence[str], least: int, most: int) -> Iterator[tuple[str, ...]]:
    for length in range(least, most + 1):
        for begin in range(len(calls) - length + 1):
            yield tuple(calls[begin : begin + length])


def _within(one: CommonSequence, longer: CommonSequence) -> bool:
    if one.run_ids != longer.run_ids or len(one.calls) >= len(longer.calls):
        return False
    return one.calls in _sequences(longer.calls, len(one.calls), len(one.calls))
