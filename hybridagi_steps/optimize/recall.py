"""Recall at call time: what past steps a predictor's prompt is given, and what is told of it.

One search, no write, no model. It asks for steps of the same predictor that did something in a like
state, ranks them by how they match and how they ended, and keeps what fits the budget. Whatever
goes wrong leaves the program as it is without a memory, and is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import dspy

from hybridagi_steps.dspy_types import Query, QueryList, QueryWithSteps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.optimize.demos import LeftOutError, demo_of, node_fields_of, told_hash
from hybridagi_steps.optimize.exclusion import (
    Echo,
    Echoes,
    Exclusion,
    Fence,
    Group,
    Ties,
    examples_of,
    of_served_user,
)
from hybridagi_steps.optimize.receipt import RecalledDemo, Receipt, failure_warning, tokens_of
from hybridagi_steps.optimize.stored_runs import closed_after, ending_of
from hybridagi_steps.recording.call_tree import Maker
from hybridagi_steps.recording.recorder import active_recorders, active_run_ids
from hybridagi_steps.recording.scopes import current_scope
from hybridagi_steps.recording.step_shapes import (
    RECALLED_IDS,
    STEP_ID,
    maker_of,
    predict_arguments,
    purpose_of,
    signature_of,
)
from hybridagi_steps.recording.trajectories import NEXT_TOOL, TOOL_CALLS, agent_question
from hybridagi_steps.recording.trials import current_level, example_key
from hybridagi_steps.recording.values import plain
from hybridagi_steps.recording_hooks import tell, unnoted
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.records.store_values import CLOSING
from hybridagi_steps.search.formulas import Mode

POOL = 24
"""Hits that are looked at, at least; eight for each demonstration wanted."""
_MOST_FETCHED = 2_000
_log = logging.getLogger("hybridagi_steps")


@dataclass(slots=True, eq=False)
class OutermostCall:
    """The call of a program that has experience."""

    experience: Experience
    inputs: Mapping[str, Any] | None
    """What the outermost program was asked; None when that is another one."""
    receipt: Receipt
    program: dspy.Module
    seen: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of the steps that its answers may repeat: recalled, or behind a demonstration."""
    ties: Ties = field(default_factory=Ties)
    """Whose answers it may not see."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OutermostCall:
        return self


class Shown(NamedTuple):
    """What a prompt is given."""

    demos: list[Any]
    """The predictor's own demonstrations and those that were recalled, the best one last."""
    warning: str | None = None


class _Candidate(NamedTuple):
    score: float
    hit: StepHit
    reason: str


@dataclass(eq=False)
class Experience:
    """Where a program recalls from, and how; shared by its copies."""

    memory: StepMemory | None
    k: int
    where: StepFilter
    prefer: float
    group: Group | None
    exclude: tuple[Exclusion, ...]
    max_tokens: int
    warn: bool
    on_error: Literal["plain", "raise"]
    mode: Mode
    defaults: Mapping[str, Any]
    """What the program takes for inputs that a call leaves out."""
    _said: bool = False
    _fence: Fence | None = None
    _out: dict[Ties, set[str]] = field(default_factory=dict[Ties, set[str]])
    """Of ties that were asked for the runs that have them."""
    _echoes: Echoes = field(default_factory=Echoes)

    def __deepcopy__(self, memo: dict[int, Any]) -> Experience:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_said": False, "_fence": None, "_out": {}}

    def settings(self) -> dict[str, Any]:
        """Return what decides about what is recalled, as JSON."""
        memory, group = self.memory, self.group
        if callable(group):
            group = str(getattr(group, "__qualname__", type(group).__name__))
        return {
            "memory": None if memory is None else [memory.address, memory.namespace],
            "where": self.where.model_dump(mode="json", exclude_none=True),
            "examples": sorted(examples_of(self.exclude)),
            "group": group,
            **{name: getattr(self, name) for name in ("k", "prefer", "max_tokens", "warn", "mode")},
        }

    def shown(self, predict: dspy.Predict, kwargs: dict[str, Any], call: OutermostCall) -> Shown:
        """Return what a predictor's prompt is given for a call, and write the receipt."""
        own = [*(kwargs.get("demos", predict.demos) or ())]
        try:
            memory, ties = self.memory, None
            if memory is None:
                self._say("it has no memory")
            else:
                ties = self._ties(memory, call)
            if memory is None or ties is None:
                return Shown(own)
            call.ties = ties
            own = self._untied(memory, predict, own, call)
            ranked = self._ranked(memory, predict, kwargs, ties)
            demos = self._chosen(memory, predict, kwargs, ranked, call, own)
            if call.receipt.over_budget and not demos:
                self._say(f"no step found fits into max_tokens={self.max_tokens}")
            elif not demos:
                self._say("the memory has no step yet that could be shown to this predictor")
            hits = [each.hit for each in ranked]
            warning = failure_warning(hits) if self.warn else None
        except Exception as error:
            if self.on_error == "raise":
                raise
            self._say(f"recall failed: {type(error).__name__}: {error}")
            return Shown(own)
        call.seen.update((step_id, None) for demo in [*own, *demos] for step_id in _sources(demo))
        if warning is None:
            return Shown([*own, *demos])
        told_of = {id_text(step.id): step.run_id for step in warning.told_of}
        tell(told_of)  # its line repeats what they say, as a demonstration does
        call.seen.update(dict.fromkeys(told_of))
        call.receipt.warnings.append(warning.line)
        return Shown([*own, *demos], warning.line)

    def remember(self, asked: Mapping[str, Any], given: Any, call: OutermostCall) -> None:
        """Note what was recalled before a predictor gave something in a trial.

        Optimisers make demonstrations of that, which then may repeat what was recalled.
        """
        if (call.seen or any(call.ties)) and isinstance(given, dspy.Prediction) and in_scope():
            self._echoes.note(told_hash({**asked, **dict(given)}), call.seen, call.ties)

    def mark_echoes(self, predict: Any, demos: Iterable[Any]) -> None:
        """Let demonstrations that an optimiser made of trials say what those had recalled."""
        for demo in demos if self._echoes else ():
            if seen := self._echo(predict, demo).seen:
                demo[RECALLED_IDS] = [*seen]

    def _echo(self, predict: Any, demo: Any) -> Echo:
        names = [name for name in predict.signature.fields if name in demo]
        return self._echoes.get(told_hash({name: demo[name] for name in names}), Echo())

    def _untied(
        self, memory: StepMemory, predict: dspy.Predict, own: list[Any], call: OutermostCall
    ) -> list[Any]:
        """Return a predictor's own demonstrations without those that know the call's answer."""
        self.mark_echoes(predict, own)
        if not any(call.ties):
            return own
        kept: list[Any] = []
        for demo in own:
            ids = _sources(demo)
            steps = memory.get_steps(ids)
            if len(steps) < len(ids) or self._fenced(memory).tied(steps, call.ties):
                continue
            if not self._example_of(memory, predict, demo, call).with_any_of(call.ties):
                kept.append(demo)
        return kept

    def _example_of(self, memory: StepMemory, predict: Any, demo: Any, call: OutermostCall) -> Ties:
        """Return whose a demonstration is: a trial here made it, or it has an example's inputs."""
        made = self._echo(predict, demo).ties
        if not call.inputs or not call.inputs.keys() <= {*demo.keys()}:
            return made
        asked = {name: demo[name] for name in call.inputs}
        group = self._fenced(memory).group_of(asked)
        return made | Ties(frozenset([] if group is None else [group]), _own_example(memory, asked))

    def _chosen(
        self,
        memory: StepMemory,
        predict: dspy.Predict,
        kwargs: dict[str, Any],
        ranked: Sequence[_Candidate],
        call: OutermostCall,
        own: Sequence[Any],
    ) -> list[dspy.Example]:
        """Return the best steps as demonstrations, the best one last, and note them."""
        signature: Any = signature_of(predict, {"kwargs": kwargs})
        predictor = str(maker_of(predict, {"kwargs": kwargs}).predictor)
        known = {demo.get(STEP_ID) for demo in own}
        node_fields = node_fields_of(call.program, predict)
        found: list[tuple[RecalledDemo, dspy.Example]] = []
        for score, hit, reason in ranked:
            step_id, run_id = id_text(hit.step.id), hit.step.run_id
            if len(found) >= self.k:
                break
            if step_id in known:
                continue
            try:
                demo = demo_of(hit.step, signature, memory, node_fields)
            except LeftOutError:
                continue
            said = step_id, run_id, predictor, score, reason, tokens_of(demo)
            told = RecalledDemo(*said, *ending_of(memory, run_id))
            found.append((told, demo))
        while sum(told.tokens for told, _ in found) > self.max_tokens:
            call.receipt.over_budget.append(found.pop()[0].step_id)
        tell({told.step_id: told.run_id for told, _ in found})
        call.receipt += [told for told, _ in reversed(found)]
        return [demo for _, demo in reversed(found)]

    def _ranked(
        self, memory: StepMemory, predict: dspy.Predict, kwargs: dict[str, Any], ties: Ties
    ) -> list[_Candidate]:
        """Return past steps of a predictor, the best first; of none, those of its signature."""
        maker = maker_of(predict, {"kwargs": kwargs})
        signature: Any = signature_of(predict, {"kwargs": kwargs})
        question: Query | QueryWithSteps = _query(predict, kwargs, maker)
        turns = signature.output_fields.keys() & {NEXT_TOOL, TOOL_CALLS}
        step_before = _step_before(memory) if turns else None
        before = [] if step_before is None else memory.get_steps([step_before])
        if before:  # a turn's own text does not tell after what it was made
            question = QueryWithSteps(queries=QueryList(queries=[question]), steps=before)
        of_signature = {"signatures": maker.signature}
        for keys in ({"predictors": maker.predictor, **of_signature}, of_signature):
            hits = self._hits(memory, question, keys, None, ties)
            if before:
                like = self._hits(
                    memory, before[0], {"step_types": before[0].step_type}, None, ties
                )
                hits += closed_after(memory, like, hits, self._where(memory, keys, CLOSING), self.k)
            elif turns:
                hits += self._hits(memory, question, keys, CLOSING, ties)
            if hits:
                return self._scored(hits)
        return []

    def _hits(
        self,
        memory: StepMemory,
        question: AgentStep | Query | QueryWithSteps,
        keys: Mapping[str, Any],
        scope: str | None,
        ties: Ties,
    ) -> list[StepHit]:
        """Return the nearest steps that may be seen: those of tied runs do not even vote."""
        where = self._where(memory, keys, scope)
        out = self._out.setdefault(ties, set()) if any(ties) else set[str]()
        out.update(self._fenced(memory).untold if any(ties) else ())
        limit = max(POOL, 8 * self.k)
        aim = "next" if isinstance(question, QueryWithSteps) else None
        while where is not None:
            asked = where.and_(StepFilter(exclude_run_id=sorted(out))) if out else where
            with unnoted():
                hits = memory.search(question, limit, where=asked, mode=self.mode, aim=aim)
            if not any(ties):
                return list(hits)
            tied = self._fenced(memory).tied([hit.step for hit in hits], ties)
            runs = {hit.step.run_id for hit in hits} & tied
            if not runs:
                return [hit for hit in hits if hit.step.run_id is not None]
            out |= {run for run in runs if run is not None}
            if 2 * len(tied) > len(hits):
                limit = min(4 * limit, _MOST_FETCHED)
        return []

    def _where(
        self, memory: StepMemory, keys: Mapping[str, Any], scope: str | None
    ) -> StepFilter | None:
        """Return the filter of a search: the user's, of his own steps, without the runs under way.

        None when no step can pass all of it.
        """
        asked = self.where
        if scope is not None and asked.scope is None:
            asked = asked.model_copy(update={"scope": scope})
        found = asked.and_(StepFilter(kinds="step", **keys))
        found = of_served_user(memory, found)
        under_way = active_run_ids(memory)
        if found is not None and under_way:
            found = found.and_(StepFilter(exclude_run_id=under_way))
        return found

    def _scored(self, hits: Sequence[StepHit]) -> list[_Candidate]:
        ranked: list[_Candidate] = []
        for hit in hits:
            rated = 0.0 if hit.step.score is None else min(max(hit.step.score, 0.0), 1.0) - 0.5
            ranked.append(_Candidate(hit.score + self.prefer * rated, hit, hit.why))
        return sorted(ranked, key=lambda each: -each.score)

    def _ties(self, memory: StepMemory, call: OutermostCall) -> Ties | None:
        """Return whose steps this call may not see; None: nobody's may be seen."""
        named = examples_of(self.exclude)
        if not in_scope():
            return Ties(examples=named)
        if self.group is None:
            return self._say(
                "it runs in an evaluation, a compilation or a scope: give WithExperience a group, "
                "such as group=lambda inputs: inputs['task_id'], that says which runs know each "
                'other\'s answers, or group="inputs" if only equal inputs do'
            )
        if call.inputs is None:
            return self._say("in a scope WithExperience has to be the outermost program")
        own = self._fenced(memory).group_of(call.inputs)
        if own is None:
            return self._say("group gave nothing for what the program was asked")
        return Ties(frozenset([own]), named | _own_example(memory, call.inputs))

    def _fenced(self, memory: StepMemory) -> Fence:
        if self._fence is None:
            self._fence = Fence(memory, self.group, self.defaults)
        return self._fence

    def _say(self, why: str) -> None:
        """Warn, once a program."""
        if not self._said:
            self._said = True
            _log.warning("WithExperience: nothing is recalled, since %s.", why)


def _sources(demo: Any) -> list[str]:
    """Return the ids of the steps that a demonstration is made of, or may repeat."""
    step_id = demo.get(STEP_ID)
    return list(dict.fromkeys([*(demo.get(RECALLED_IDS) or ()), *([step_id] if step_id else [])]))


def in_scope() -> bool:
    """Whether what runs here is a trial: no everyday use, whose answers may all be seen."""
    if current_scope() is not None:
        return True
    return any(recorder.active_scope is not None for recorder in active_recorders())


def _own_example(memory: StepMemory, inputs: Mapping[str, Any]) -> frozenset[str]:
    """Return how steps name the example that is tried here."""
    level, key = current_level(), example_key(inputs)
    known = None if level is None else level.trials.known(key)
    redacted = key if memory.redact is None else example_key(inputs, memory.redact)
    return frozenset([redacted if known is None or known.example is None else known.example])


def _step_before(memory: StepMemory) -> str | None:
    """Return the id of the step after which a predictor is called, if it is being recorded here."""
    ids = (each.step_before for each in active_recorders() if each.memory is memory)
    return next((id_text(step_id) for step_id in ids if step_id is not None), None)


def _query(predict: dspy.Predict, kwargs: dict[str, Any], maker: Maker) -> Query:
    """Return what the step would say that this call will leave."""
    arguments = predict_arguments(predict, {"kwargs": kwargs})
    if TOOL_CALLS in signature_of(predict, {"kwargs": kwargs}).output_fields:
        arguments = agent_question(arguments)
    asked = plain(arguments, [])
    purpose = "" if asked else purpose_of(predict)  # the same in all of its steps
    inputs = {"purpose": purpose, "arguments": asked}
    kind = AgentStepType.Action
    step = AgentStep(step_type=kind, inputs=inputs, predictor=maker.predictor)
    return Query(query=own_text(step))
