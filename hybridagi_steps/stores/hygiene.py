"""Hygiene: what a memory keeps for good, what it forgets with all that came of it, and procedures.

A memory is one of these. What descends from a step is what `revoke` says: the steps that recalled
it, the call of a program that it stands in, and so on. A procedure is made of what good runs have
in common and of nothing else: a text that only one of them has is not copied into another step.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable
from uuid import UUID, uuid5

from hybridagi_steps.errors import (
    InvalidFilterError,
    InvalidQueryError,
    InvalidStepError,
    UnknownStepError,
)
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.provenance import RECALLED, SOURCE, source_of
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.store_values import Erased
from hybridagi_steps.records.trials import TRIAL_END, TrialTable, summaries
from hybridagi_steps.stores.listing import OnStore, StepIds, step_id_texts
from hybridagi_steps.validation import (
    StepId,
    Steps,
    Where,
    check_score,
    for_recall,
    in_every_scope,
    of_steps,
    one_id,
    whole_number,
)


@runtime_checkable
class TracksDeletions(Protocol):
    """What a store has besides that knows when its files need no rewriting; else a purge does it.

    It is known of all that was deleted or overwritten, by whichever process and operation, from the
    commit of that on until `compact` has erased it, wherever one of them was killed.
    """

    def compaction_owed(self) -> bool:
        """Return whether something that was deleted may still be in a file of this store."""
        ...


class Scoring(OnStore):
    """What a memory knows of runs and scores."""

    redact: Redact | None

    def score(self, run_id: str, value: float, feedback: str | None = None) -> None:
        """Say how good a run was; its steps inherit it unless they have a score of their own.

        Raises:
            UnknownRunError: No step carries this run id.
            InvalidStepError: The value is no finite number, or the feedback cannot be stored.
        """
        check_score(value)
        if feedback is not None and self.redact is not None:
            feedback = redacted(feedback, self.redact)
        self._open_store.score_run(one_id(run_id), float(value), feedback)

    def score_steps(self, scores: Mapping[StepId, float]) -> None:
        """Say how good single steps were, all or none; they stay as they are but for that.

        Raises:
            UnknownStepError: No step has one of these ids.
            InvalidStepError: `scores` is no mapping, or a value no finite number.
        """
        if not isinstance(scores, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidStepError(
                "score_steps takes a mapping of ids to scores, such as {step.id: 1.0}, not "
                f"{type(scores).__name__}; score(run_id, value) scores a whole run."
            )
        for value in scores.values():
            check_score(value)
        self._open_store.score_steps({one_id(name): float(v) for name, v in scores.items()})

    def run_scores(self, run_ids: Iterable[StepId]) -> dict[str, float]:
        """Return how good runs were, whatever single steps of theirs are scored; by run id."""
        found = self._open_store.run_scores([one_id(run_id) for run_id in run_ids])
        return {run_id: score for run_id, (score, _) in found.items()}

    def _feedback_on(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return what was said of runs in words; runs of which nothing was said are missing."""
        found = self._open_store.run_scores(run_ids)
        return {run_id: said for run_id, (_, said) in found.items() if said is not None}

    def trials(self, compile_id: str | None = None) -> TrialTable:
        """Return what was tried inside `compile` and `Evaluate`: of each candidate how it did.

        Args:
            compile_id: One compilation, or evaluation outside of any; None: all.

        Returns:
            A list of `TrialSummary`, the newest compilation first and of each the best candidate;
            it prints as a table, GEPA's as the tree of their `origin`.

        Raises:
            InvalidQueryError: `compile_id` is no text.
        """
        if compile_id is not None and not isinstance(compile_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidQueryError(f"a compile_id is a text, not {type(compile_id).__name__}.")
        marked = StepFilter(metadata={TRIAL_END: True}, scope=EVERY_SCOPE)
        ends = self._open_store.iter_steps(marked)
        return summaries(ends, compile_id, self._feedback_on)


PINNED, PROCEDURE = "pinned", "procedure"
"""The keys of `metadata`."""
_GOOD, _FEWEST_CALLS = 0.5, 2
_NAMES = UUID("2b0a3d5e-8f0d-5d8a-9f0b-3a1f6f1f7c10")
_EVERYTHING = 2**62


@dataclass(frozen=True, slots=True)
class Procedure:
    """A sequence of calls that several good runs made, as one step."""

    program: str
    """The program that the runs called; without one `procedure`."""
    calls: tuple[tuple[str, dict[str, Any]], ...]
    """Each tool with its arguments: values that all runs share, else the name in braces."""
    run_ids: tuple[str, ...]
    """The runs it is made of."""
    step: AgentStep
    """The ProgramCall that says so; `metadata.recalled` names the steps it is made of."""

    def __str__(self) -> str:
        return f"{self.program}: {_in_a_line(self.calls)} ({len(self.run_ids)} runs)"

    def to_cypher(self) -> str:
        """Return it as the text of a graph program, which `GraphProgram.from_cypher` reads."""
        nodes = ['(start:Control {id: "start"})', '(end:Control {id: "end"})']
        names = [f"step_{number}" for number in range(1, len(self.calls) + 1)]
        for name, (tool, arguments) in zip(names, self.calls, strict=True):
            values = {"id": name, "tool": tool, "purpose": f"Call {tool}"}
            values["prompt"] = f"Call {tool} with {_pairs(arguments) or 'no arguments'}"
            written = ", ".join(f"{key}: {json.dumps(text)}" for key, text in values.items())
            nodes.append(f"({name}:Action {{{written}}})")
        way = ["start", *names, "end"]
        edges = [f"({a})-[:NEXT]->({b})" for a, b in pairwise(way)]
        return "CREATE\n" + ",\n".join([*nodes, *edges]) + "\n"


class Hygiene(Scoring):
    """What a memory does to stay useful."""

    @abstractmethod
    def update(self, steps: Steps) -> None:
        """Store steps, replacing those whose id is stored already; all or nothing."""

    @abstractmethod
    def delete(self, ids: StepIds) -> int:
        """Delete steps with their text and embedding; return how many there were."""

    def pin(self, ids: StepIds, *, pinned: bool = True) -> None:
        """Keep steps whatever `forget` matches; `where={"metadata": {"pinned": True}}` finds them.

        `purge`, `delete` and `clear`, which erase by name, take pinned steps, too.

        Args:
            ids: The steps.
            pinned: False lets them go again.

        Raises:
            UnknownStepError: No step has one of these ids; none was pinned.
        """
        wanted = list(dict.fromkeys(step_id_texts(ids)))
        steps = self._open_store.get(wanted, vectors=True)
        if missing := set(wanted) - {id_text(step.id) for step in steps}:
            raise UnknownStepError(min(missing))
        scores = self.run_scores({step.run_id for step in steps if step.run_id is not None})
        for step in steps:
            rest = {key: value for key, value in (step.metadata or {}).items() if key != PINNED}
            step.metadata = {**rest, PINNED: True} if pinned else rest or None
            if step.score is not None and step.score == scores.get(str(step.run_id)):
                step.score = None  # it shows its run's, and goes on doing so
        self.update(steps)

    def forget(self, where: Where, *, dry_run: bool = False) -> Erased:
        """Delete matching steps, trial runs included, with everything that descends from them.

        Pinned steps stay. `revoke` hides the same reversibly, and what is recorded later, too.

        Args:
            where: What to forget.
            dry_run: Only count.

        Returns:
            How many steps; `messages_left` counts messages of sessions that match or show one:
            these stay, for `revoke` hides and `purge` erases them.

        Raises:
            InvalidFilterError: No condition that leaves anything out; `clear` deletes everything.
        """
        asked = of_steps(where)
        if asked.passes_everything:
            raise InvalidFilterError(
                "forget needs a condition that leaves something out; clear() deletes everything."
            )
        found = self._open_store.revoke(in_every_scope(asked), None, dry_run=True)
        going = [
            id_text(step.id)
            for step in self._open_store.get(found.step_ids)
            if not (step.metadata or {}).get(PINNED)
        ]
        if not dry_run and going:
            self.delete(going)
        return Erased(len(going), messages_left=len(found.message_ids))

    def consolidate(
        self, where: Where = None, *, least: int = 3, dry_run: bool = True
    ) -> list[Procedure]:
        """Find sequences of tools that good runs made alike, and keep each as one ProgramCall.

        The runs stay. A procedure belongs to the user whose runs it is made of; it descends from
        their steps, so `revoke` and `forget` of one reach it. Doing it again replaces it.

        Args:
            where: Whose steps are looked at; trial runs only where their scope is named.
            least: How many runs must have made the same calls, each with a score of at least .5.
            dry_run: Only tell; False stores the procedures.

        Returns:
            Those of most runs first.

        Raises:
            InvalidSettingError: `least` is no whole number above one.
        """
        whole_number("least", least, 2)
        runs: dict[str, list[AgentStep]] = defaultdict(list)
        for step in self._open_store.find(for_recall(of_steps(where)), limit=_EVERYTHING):
            if step.run_id is not None:
                runs[step.run_id].append(step)
        good = {run for run, score in self.run_scores(runs).items() if score >= _GOOD}
        alike: dict[tuple[Any, ...], list[list[AgentStep]]] = defaultdict(list)
        for run_id in runs:
            steps = sorted(runs[run_id], key=lambda step: step.hop)
            used = [step for step in steps if step.tool]
            whole = all(step.status == "ok" for step in used)
            if run_id in good and whole and len(used) >= _FEWEST_CALLS:
                program = next((step.program for step in steps if step.program), None)
                key = steps[0].user_id, program or PROCEDURE, tuple(step.tool for step in used)
                alike[key].append(used)
        found = [
            _procedure(user, program, held)
            for (user, program, _), held in alike.items()
            if len(held) >= least
        ]
        if not dry_run and found:
            self.update([each.step for each in found])
        return sorted(found, key=lambda each: -len(each.run_ids))


def _procedure(user_id: str | None, program: str, runs: Sequence[Sequence[AgentStep]]) -> Procedure:
    calls = tuple(_common(steps) for steps in zip(*runs, strict=True))
    steps = [step for run in runs for step in run]
    run_ids = tuple(str(run[0].run_id) for run in runs)
    metadata: dict[str, Any] = {
        PROCEDURE: {"calls": [tool for tool, _ in calls], "runs": list(run_ids)},
        RECALLED: [id_text(step.id) for step in steps],
    }
    outside = next((step.metadata for step in steps if source_of(step.metadata)), None)
    if outside is not None:  # made of what came from outside, it came from there
        metadata |= {key: outside[key] for key in (SOURCE, "format") if key in outside}
    name = json.dumps([user_id, program, [tool for tool, _ in calls]])
    step = AgentStep(
        id=uuid5(_NAMES, name),
        step_type=AgentStepType.ProgramCall,
        inputs={
            "program": program,
            "purpose": f"Procedure of {len(runs)} runs that ended well: {_in_a_line(calls)}",
            "arguments": {},
        },
        user_id=user_id,
        metadata=metadata,
    )
    return Procedure(program, calls, run_ids, step)


def _common(steps: Sequence[AgentStep]) -> tuple[str, dict[str, Any]]:
    """Return the tool that steps used, with the arguments that all of them have in common."""
    arguments = {
        key: value if all(step.arguments[key] == value for step in steps) else f"{{{key}}}"
        for key, value in steps[0].arguments.items()
        if all(key in step.arguments for step in steps)
    }
    return str(steps[0].tool), arguments


def _pairs(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in arguments.items())


def _in_a_line(calls: Iterable[tuple[str, dict[str, Any]]]) -> str:
    return " -> ".join(f"{tool}({_pairs(arguments)})" for tool, arguments in calls)
