"""BootstrapFromMemory: a teleprompter whose demonstrations are runs that were recorded before.

Nothing is run and no model is asked. Of each predictor's past steps it takes some that differ: as
many different outputs as there is room for, and inputs far from one another; the same ones for the
same seed. What a validation example knows is fenced off as in a trial.
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.optimize.demos import (
    LeftOut,
    collapsed,
    defaults_of,
    demos_of,
    node_fields_of,
    predictor_name,
    steps_of,
    told_hash,
)
from hybridagi_steps.optimize.examples import runs_as_examples
from hybridagi_steps.optimize.exclusion import (
    Exclusions,
    Fence,
    Group,
    Ties,
    checked_group,
    exclusions,
    learnable,
    narrowed,
)
from hybridagi_steps.optimize.stored_runs import check_memory
from hybridagi_steps.optimize.with_experience import LearnedProgram
from hybridagi_steps.recording.attempts import read_score
from hybridagi_steps.recording.recorded_program import checked_program
from hybridagi_steps.recording.step_shapes import RUN_ID, STEP_ID, options_of
from hybridagi_steps.recording.trials import example_key
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_text import tokens
from hybridagi_steps.validation import Where, whole_number

_LOOKED_AT = 2_000
"""Newest steps of a predictor, and newest runs of a program, that are looked at."""
_WORDS = re.compile(r"\w+|[^\w\s]")
_log = logging.getLogger("hybridagi_steps")


class BootstrapFromMemory(Teleprompter):
    """Gives predictors demonstrations from stored runs; asks no model.

    Args:
        memory: Where the runs are.
        max_demos: Most demonstrations of each predictor, at least 1.
        where: Which steps may be used; by default the history of the user that the run around it
            names, and where none is named everybody's, without trials.
        min_score: Least score of a step or its run; one without a score is not used then.
        metric: Scores stored runs again, of the example of the trainset with the same inputs and
            what the run gave; runs without a point are not used. One for which it gives None or
            NaN, or raises, stays unscored.
        group: Says which runs know the answers of validation examples, as `WithExperience` has it.
            Without it only runs with equal inputs are tied, and steps that hold an answer which a
            single example has, in whole words of any case, are left out besides; labels of a closed
            set (Literal, an enumeration, bool) are no such answers.
        exclude: What `hs.exclude` names.
        seed: Which of many equally good choices is made.

    Raises:
        InvalidSettingError: An argument that means nothing.
        InvalidMemoryError: `memory` is no step memory.
        InvalidFilterError: An unknown key in `where`, or something else in `exclude`.
    """

    def __init__(
        self,
        memory: StepMemory,
        max_demos: int = 8,
        *,
        where: Where = None,
        min_score: float | None = None,
        metric: Callable[..., Any] | None = None,
        group: Group | None = None,
        exclude: Exclusions = (),
        seed: int = 0,
    ) -> None:
        check_memory(memory)
        self.memory, self.max_demos = memory, whole_number("max_demos", max_demos, 1)
        self.exclude = exclusions(exclude)
        self.where = narrowed(where, ())
        self.min_score = StepFilter(min_score=min_score).min_score
        if metric is not None and not callable(metric):
            raise InvalidSettingError(f"metric is a function, or None, not {metric!r:.80}.")
        self.metric, self.seed = metric, seed
        self.group: Group | None = checked_group(group)

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: Sequence[dspy.Example] = (),
        valset: Sequence[dspy.Example] | None = None,
        **_: Any,
    ) -> LearnedProgram:
        """Return a copy of the student with demonstrations.

        Args:
            student: Any program.
            trainset: Examples whose labels `metric` needs.
            valset: Examples that the program will be judged by: no demonstration knows them.

        Returns:
            The copy; its `provenance()` says where each demonstration comes from, its `left_out`
            how many steps were not used, by reason, of which a warning tells, too.

        Raises:
            InvalidSettingError: `group` fails, or gives nothing, on an example of the valset.
        """
        compiled = checked_program(student, "BootstrapFromMemory").deepcopy()
        fence = _Validation(self.memory, self.group, valset or (), compiled)
        least = self.min_score if self.metric is None else None
        learned_from = learnable(self.memory, self.where, self.exclude, least)
        judged, left_out = self._judged(compiled, trainset), LeftOut()
        for name, predict in compiled.named_predictors():
            steps = steps_of(learned_from, predictor_name(compiled, name), predict)
            steps, read = islice(steps, _LOOKED_AT), node_fields_of(compiled, predict)
            demos = [*demos_of(steps, predict, self.memory, left_out, read)]
            usable = [demo for demo in demos if self._passes(judged.get(str(demo.get(RUN_ID))))]
            passed = [*fence.passed(usable)]
            left_out["the metric"] += len(demos) - len(usable)
            left_out["knows a validation example"] += len(usable) - len(passed)
            predict.demos = _spread(collapsed(passed), self.max_demos, self.seed)
        left_out = +left_out
        why = ", ".join(f"{count:,}: {reason}" for reason, count in left_out.items())
        if not any(predict.demos for predict in compiled.predictors()):
            _log.warning(
                "BootstrapFromMemory: no stored step can be used (%s); the program is as before.",
                why or "none of these predictors",
            )
        elif left_out:
            _log.warning("BootstrapFromMemory: left out are steps (%s).", why)
        compiled = compiled if isinstance(compiled, LearnedProgram) else LearnedProgram(compiled)
        compiled.left_out = left_out
        return compiled.as_compiled()

    def _passes(self, score: float | None) -> bool:
        """Whether a run with such a score by the metric may be used."""
        if self.metric is None:
            return True
        if score is None:
            return self.min_score is None
        return score > 0 if self.min_score is None else score >= self.min_score

    def _judged(
        self, program: dspy.Module, trainset: Iterable[dspy.Example]
    ) -> dict[str, float | None]:
        """Return what the metric says of each run; of one that it cannot judge None."""
        if self.metric is None:
            return {}
        labelled = {example_key(dict(each.inputs())): each for each in trainset}
        judged: dict[str, float | None] = {}
        usable = learnable(self.memory, self.where, self.exclude, None)
        for run in islice(runs_as_examples(usable, program, None, LeftOut()), _LOOKED_AT):
            asked = labelled.get(example_key(dict(run.inputs())), run.inputs())
            given = dspy.Prediction(**dict(run.labels()))
            try:
                score, _ = read_score(self.metric(asked, given))
            except Exception as error:  # any a metric may raise: the run stays unscored
                _log.debug("the metric fails on a stored run: %s", type(error).__name__)
                score = None
            judged.setdefault(str(run[RUN_ID]), score)
        return judged


class _Validation:
    """Keeps what knows a validation example out of demonstrations."""

    def __init__(
        self,
        memory: StepMemory,
        group: Group | None,
        valset: Sequence[dspy.Example],
        program: dspy.Module,
    ) -> None:
        self._memory = memory
        self._fence = Fence(memory, group or "inputs", defaults_of(program))
        groups = [self._fence.group_of(dict(each.inputs())) for each in valset]
        if None in groups:
            raise InvalidSettingError(
                f"group gives nothing for valset[{groups.index(None)}], so that it cannot be told "
                "which runs know its answer: let it give a text, a number or a tuple of such for "
                "the inputs of each example."
            )
        named = (example.get("id") for example in valset)
        self._ties = Ties(
            frozenset(group for group in groups if group is not None),
            frozenset(str(name) for name in named if name is not None),
        )
        closed = _closed_fields(program)
        self._answers = set[str]() if group is not None else _telling_answers(valset, closed)

    def passed(self, demos: Sequence[dspy.Example]) -> list[dspy.Example]:
        """Return demonstrations of runs that know no validation example."""
        if not any(self._ties):
            return [*demos]
        steps = self._memory.get_steps([str(demo[STEP_ID]) for demo in demos])
        out = self._fence.tied(steps, self._ties)
        clean = (demo for demo in demos if demo.get(RUN_ID) and demo[RUN_ID] not in out)
        return [demo for demo in clean if not self._tells(demo)]

    def _tells(self, demo: dspy.Example) -> bool:
        said = _worded(" ".join(map(str, demo.values())))
        return any(answer in said for answer in self._answers)


def _closed_fields(program: dspy.Module) -> frozenset[str]:
    """Return outputs of a program whose values are a closed set: a label of it tells nobody."""
    predictors: list[Any] = program.predictors()
    outputs = [field for each in predictors for field in each.signature.output_fields.items()]
    is_open = {name for name, field in outputs if options_of(field.annotation) is None}
    return frozenset(name for name, _ in outputs) - is_open


def _telling_answers(valset: Sequence[dspy.Example], closed: Collection[str]) -> set[str]:
    """Return labels that a single example has: who reads one knows that example's answer."""
    labels = [label for example in valset for label in example.labels().items()]
    counts = Counter(_worded(value) for name, value in labels if name not in closed)
    return {text for text, count in counts.items() if count == 1 and text.strip()}


def _worded(value: object) -> str:
    """Return a text as its words and signs with blanks around, blind to case."""
    return f" {' '.join(_WORDS.findall(inert(str(value)).casefold()))} "


def _spread(demos: Sequence[dspy.Example], most: int, seed: int) -> list[dspy.Example]:
    """Choose demonstrations: one of each output in turn, each far from those that are chosen.

    Reference: Gonzalez 1985, "Clustering to minimize the maximum intercluster distance".
    """
    order = [*demos]
    random.Random(seed).shuffle(order)  # noqa: S311 - a choice that can be repeated, no secret
    words = [frozenset(tokens(" ".join(map(str, demo.inputs().values())))) for demo in order]
    outputs: dict[int, list[int]] = {}
    for place, demo in enumerate(order):
        outputs.setdefault(told_hash(demo.labels().toDict()), []).append(place)
    nearest = [math.inf] * len(order)
    chosen: list[int] = []
    waiting = sorted(outputs.values(), key=len, reverse=True)
    while waiting and len(chosen) < most:
        for places in waiting[: most - len(chosen)]:
            taken = max(places, key=lambda place: nearest[place])
            places.remove(taken)
            chosen.append(taken)
            for place, known in enumerate(words):
                nearest[place] = min(nearest[place], _apart(words[taken], known))
        waiting = [places for places in waiting if places]
    return [order[place] for place in chosen]


def _apart(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard distance of two sets of words."""
    return 1 - len(one & other) / len(one | other) if one or other else 0.0
