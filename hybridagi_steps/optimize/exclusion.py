"""Exclusion: which steps a program may not learn from, named by the user or tied to a test.

Similarity is no fence: a rewording of a test question is a test question, and steps that are alike
mostly are of other tasks. So ties are said, by a `group` of a run's inputs, and followed: a run in
whose prompts a tied step stood may repeat its answer, and so may the run that recalled that one.
What is judged is whole runs, by all that was asked in them. A run of which this cannot be told is
out: it has no outermost call, its group cannot be had, or it recalled what is not there any more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from numbers import Integral
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

from hybridagi_steps.errors import InvalidFilterError, InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.recording.trials import example_key
from hybridagi_steps.recording.values import plain
from hybridagi_steps.recording_hooks import active_user_id, unnoted
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.provenance import recalled_by
from hybridagi_steps.records.redaction import redacted
from hybridagi_steps.records.trials import TRIAL
from hybridagi_steps.validation import StepId, Where, id_texts

Group = Callable[[dict[str, Any]], Hashable | None] | Literal["inputs"]
"""Tells which runs belong together, by the inputs of the outermost program, as JSON has them; runs
of which it gives None are left out. It gives a text, bytes, a finite number, a truth value, a date,
a UUID, a member of an enumeration, or a tuple or frozenset of such; all else, of which two may be
alike and not equal, counts as None. "inputs" says that equal inputs are the only ties; one that a
call leaves out equals its default."""

_MOST_RUNS = 50_000
_MOST_ECHOES = 50_000
_UNTOLD = "recalled_more"
_log = logging.getLogger("hybridagi_steps")


class Exclusion(NamedTuple):
    """Steps that are not to be learned from; made by `exclude`."""

    where: StepFilter = StepFilter()
    """What is left passes this filter."""
    examples: frozenset[str] = frozenset()
    """Left out are the runs on these examples, and what descends from them."""


class exclude:  # noqa: N801 - reads as a phrase: exclude.runs(ids)
    """Name what a program is not to learn from."""

    @staticmethod
    def examples(ids: str | Iterable[str]) -> Exclusion:
        """Leave out runs on these examples, as `metadata.trial` names them, and their echoes.

        Raises:
            InvalidFilterError: `ids` is neither a name nor several.
        """
        if not isinstance(ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidFilterError(f"exclude.examples takes names of examples, not {ids!r:.80}.")
        return Exclusion(examples=frozenset([ids] if isinstance(ids, str) else map(str, ids)))

    @staticmethod
    def runs(ids: StepId | Iterable[StepId]) -> Exclusion:
        """Leave out these runs."""
        return Exclusion(StepFilter(exclude_run_id=id_texts(ids)))

    @staticmethod
    def after(time: datetime | str) -> Exclusion:
        """Leave out what was made at this time or later."""
        return Exclusion(StepFilter(until=time))

    @staticmethod
    def where(matching: Where) -> Exclusion:
        """Leave out the steps that match a filter."""
        return Exclusion(StepFilter(exclude=[StepFilter.of(matching)]))


Exclusions = Exclusion | Iterable[Exclusion] | None


def exclusions(given: Exclusions) -> tuple[Exclusion, ...]:
    """Return what is excluded, one by one."""
    several = [given] if isinstance(given, Exclusion) else list(given or ())
    for each in several:
        if not isinstance(each, Exclusion):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidFilterError(
                f"exclude takes what hs.exclude makes, such as hs.exclude.runs(ids), not {each!r}."
            )
    return tuple(several)


def narrowed(where: Where, excluded: Sequence[Exclusion]) -> StepFilter:
    """Return a filter without what is excluded; runs on `examples` are judged by a `Fence`."""
    found = StepFilter.of(where)
    for each in excluded:
        found = found.and_(each.where) or found  # none of them names what another may contradict
    return found


def examples_of(excluded: Iterable[Exclusion]) -> frozenset[str]:
    """Return the examples the runs on which are excluded."""
    return frozenset(name for each in excluded for name in each.examples)


class Learnable(NamedTuple):
    """Which steps of a memory may be learned from."""

    memory: StepMemory
    where: StepFilter
    examples: frozenset[str]
    """Those of runs on these, and of what descends from them, may not."""


def learnable(
    memory: StepMemory, where: Where, exclude: Exclusions, min_score: float | None
) -> Learnable:
    """Return what may be learned from: what passes a filter and has a score, less the excluded."""
    excluded = exclusions(exclude)
    scored = Exclusion(StepFilter(min_score=min_score))
    return Learnable(memory, narrowed(where, (*excluded, scored)), examples_of(excluded))


def of_served_user(memory: StepMemory, asked: StepFilter | None) -> StepFilter | None:
    """Keep to the user that the run around this names, unless the filter says whose.

    None when nothing passes.
    """
    user_id = active_user_id(memory)
    if asked is None or user_id is None or asked.says_whose:
        return asked
    return asked.and_(StepFilter(user_id=user_id))


def checked_group(group: Group | None) -> Group | None:
    """Return what says which runs belong together."""
    if group is None or group == "inputs" or callable(group):
        return group
    raise InvalidSettingError(
        'group is a function of a program\'s inputs, such as lambda inputs: inputs["task_id"], or '
        f'"inputs", not {group!r:.80}.'
    )


class Ties(NamedTuple):
    """What runs have in common that know each other's answers."""

    groups: frozenset[int] = frozenset()
    examples: frozenset[str] = frozenset()

    def with_any_of(self, other: Ties) -> bool:
        """Whether two have anything in common."""
        return not (
            self.groups.isdisjoint(other.groups) and self.examples.isdisjoint(other.examples)
        )

    def __or__(self, other: Ties) -> Ties:  # type: ignore[override]
        return Ties(self.groups | other.groups, self.examples | other.examples)


class Echo(NamedTuple):
    """What is known of something that a predictor gave in a trial."""

    seen: tuple[str, ...] = ()
    """Ids of the steps that it may repeat."""
    ties: Ties = Ties()
    """Whose answer it is."""


class Echoes(dict[int, Echo]):
    """Echoes by a hash of what predictors were asked and gave; the oldest go when there are many.

    Optimisers make demonstrations of what predictors gave in trials, and do not say of which.
    """

    def note(self, told: int, seen: Iterable[str], ties: Ties) -> None:
        """Note one more trial in which this was given."""
        if len(self) >= _MOST_ECHOES:
            del self[next(iter(self))]
        known = self.get(told, Echo())
        self[told] = Echo(tuple(dict.fromkeys([*known.seen, *seen])), known.ties | ties)


class _Run(NamedTuple):
    """What a run says of itself, up to one of its steps."""

    hop: int
    ties: Ties | None
    """None: it cannot be told."""
    recalled: frozenset[str]


class Fence:
    """Judges which runs of a memory are tied to others, and remembers what it has read.

    `group` says which belong together; None asks only for examples and descent. `defaults` are what
    inputs are that a call leaves out, where inputs are compared.
    """

    def __init__(
        self, memory: StepMemory, group: Group | None, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self._memory, self.group = memory, group
        self._defaults = self._stored(defaults or {})
        self._runs: dict[str, _Run] = {}
        self.untold: set[str] = set()
        """Runs of which no ties can be told, as far as they were met: they are out for all."""

    def group_of(self, inputs: Mapping[str, Any]) -> int | None:
        """Return the group of a call that is made now, as a hash; None when there is none."""
        return self._group(self._stored(inputs))

    def _stored(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs as the memory would keep them."""
        copied, redact = plain(dict(inputs), []), self._memory.redact
        return copied if redact is None else redacted(copied, redact)

    def tied(self, steps: Iterable[AgentStep], ties: Ties) -> set[str]:
        """Return which of the runs of some steps have these ties, or may have them.

        A step without a run is told by its own id.
        """
        found: set[str] = set()
        for step in steps:
            known = None if step.run_id is None else self._ties_of(step)
            if known is None and step.run_id is not None:
                self.untold.add(step.run_id)
            if known is None or known.with_any_of(ties):
                found.add(step.run_id or str(step.id))
        return found

    def _ties_of(self, step: AgentStep) -> Ties | None:
        """Return the ties of a step's run and of all that it descends from; None: not known."""
        found, seen, edge = Ties(), set[str](), [step]
        while edge:
            sources: set[str] = set()
            for each in edge:
                run = self._run(each)
                if run is None or run.ties is None:
                    return None
                found |= run.ties
                sources |= run.recalled - seen
            seen |= sources
            edge = self._memory.get_steps(sorted(sources)) if sources else []
            if len(edge) < len(sources):
                return None
        return found

    def _run(self, step: AgentStep) -> _Run | None:
        if step.run_id is None:
            return None
        known = self._runs.get(step.run_id)
        if known is None or known.hop < step.hop:
            if len(self._runs) >= _MOST_RUNS:
                self._runs.clear()
            known = self._runs[step.run_id] = self._read(self._memory.run_steps(step.run_id))
        return known

    def _read(self, steps: Sequence[AgentStep]) -> _Run:
        recalled, examples = self._went_before(steps), set[str]()
        untold = False
        for step in steps:
            metadata = step.metadata or {}
            recalled.update(recalled_by(metadata))
            untold = untold or _UNTOLD in metadata
            label: Any = metadata.get(TRIAL)
            if isinstance(label, dict) and label.get("example") is not None:  # pyright: ignore[reportUnknownMemberType]
                examples.add(str(label["example"]))  # pyright: ignore[reportUnknownArgumentType]
        groups = {self._group(dict(step.arguments)) for step in steps if _is_outermost(step)}
        if self.group is None:
            groups = set[int | None]()
        elif not groups or None in groups:
            untold = True
        known = frozenset(group for group in groups if group is not None)
        ties = None if untold else Ties(known, frozenset(examples))
        return _Run(max((step.hop for step in steps), default=0), ties, frozenset(recalled))

    def _went_before(self, steps: Sequence[AgentStep]) -> set[str]:
        """Return steps of other runs that these go on from, whose answers they may repeat.

        That is the run before in their session, and the one that they branched off or were called
        by.
        """
        own = {id_text(step.id) for step in steps}
        others = {id_text(step.parent_id) for step in steps if step.parent_id is not None} - own
        found = self._memory.get_steps(sorted(others)) if others else []
        session_id = next((step.session_id for step in steps if step.session_id is not None), None)
        if session_id is not None:
            began = min(step.created_at for step in steps)
            earlier = StepFilter(session_id=session_id, until=began, scope=EVERY_SCOPE)
            with unnoted():
                found += self._memory.find(earlier, limit=1, newest_first=True).steps
        return {id_text(step.id) for step in found}

    def _group(self, inputs: dict[str, Any]) -> int | None:
        """Return a group as a hash, which holds nothing of what may be erased."""
        if self.group is None:
            return None
        try:
            if isinstance(self.group, str):
                known = self._defaults.items()
                found = example_key(dict(each for each in inputs.items() if each not in known))
            else:
                found = self.group(inputs)
            return hash(found) if _is_comparable(found) else None
        except Exception as error:  # any a user's function may raise: such a run is out
            _log.debug("group fails on the inputs of a run: %s", type(error).__name__)
            return None


def _is_comparable(group: object) -> bool:
    """Whether a group equals itself whenever it is made of the same inputs."""
    if isinstance(group, tuple | frozenset):
        parts = cast("Iterable[object]", group)
        return all(each is None or _is_comparable(each) for each in parts)
    if isinstance(group, float):
        return math.isfinite(group)
    return isinstance(group, str | bytes | Integral | Enum | UUID | date)


def _is_outermost(step: AgentStep) -> bool:
    """Whether a step tells what a run was asked: a program's call, or a predictor's alone."""
    asks = step.step_type is AgentStepType.ProgramCall or step.predictor is not None
    return step.program_id is None and asks
