"""LearnedRank: the order that this memory's own use, or labels, say is better.

The parts of a hit's score (`StepHit.parts`) are summed up with fixed weights by the search. What
they are worth differs from memory to memory, so a logistic model learns it, with a few facts that
cost nothing (age, outcome, company of the same run). It works on hits at hand: as any reranker it
is used only where it is given, and reorders nothing by being saved. What it keeps is numbers and
the names of parts, no text; it lies with the memory, is copied with it, and a purge forgets it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from hybridagi_steps.display.templates import render
from hybridagi_steps.errors import InvalidSettingError, LabelError, NotLearnedError
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.message import in_utc, utc_now
from hybridagi_steps.rerankers.judged_hits import (
    JudgedHits,
    Labels,
    SearchedMemory,
    judged,
    labelled,
    used,
)
from hybridagi_steps.rerankers.logistic import (
    Floats,
    Gain,
    JudgedRows,
    LogisticModel,
    cross_fitted,
    fit_logistic,
    measured_gain,
)
from hybridagi_steps.rerankers.rescoring import best_first, rescored
from hybridagi_steps.validation import is_number, whole_number

_log = logging.getLogger("hybridagi_steps")
LEAST_LABELS = 200
"""Fewer teach nothing that would hold."""
FACTS: Mapping[str, str] = {
    "score": "the score that the hit came with",
    "rank": "1 / the place at which it came",
    "newer": "share of the other hits that are older",
    "same_run": "share of the other hits that are of its run",
    "decision": "it is a decision",
    "call": "it is the call of a program",
    "end": "it is the end of a program",
    "result": "it has outputs",
    "failed": "it ended with an error",
}
"""What is known of every hit beside the parts of its score."""

MOST_COUNTED = 20
"""Labels of a run or query that count in full; more of them share that weight."""

_NAME = "learned_rank"
_ORDER = ("score", "rank")
"""What tells in which order the hits came."""
_FREE_SHARE = 0.01
_KEPT_AT_ZERO = 1e15
_NEVER_DIFFERS = 1e-9
_LEAST_POOL = 2
_TOLD = 3
_KINDS = {
    "decision": AgentStepType.Decision,
    "call": AgentStepType.ProgramCall,
    "end": AgentStepType.ProgramEnd,
}


class LearningMemory(SearchedMemory, Protocol):
    """A memory that can keep what was learned from it."""

    def learned(self, name: str) -> str | None:
        """Return what was kept under a name."""
        ...

    def keep_learned(self, name: str, value: str | None) -> None:
        """Keep what was learned; None forgets it."""
        ...


class RankWeights(BaseModel):
    """What a learned rank knows: numbers, and the names of the parts they belong to."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: Literal[1] = 1
    """Layout of this object."""
    features: list[str]
    """Names of the parts and facts."""
    scales: list[float]
    """Standard deviation of each among the hits of a query; 1 where it never differs."""
    weights: list[float]
    """What one standard deviation of it adds to the log-odds that a hit is good."""
    intercept: float
    """The log-odds of an average hit."""
    source: Literal["use", "labels"]
    """Whether the memory's own use taught it, or labels."""
    good: int
    """Hits called good."""
    bad: int
    """Hits called bad."""
    unusable: int
    """Labels of steps that are not among the hits of their query."""
    queries: int
    """Queries that were asked again."""
    gain: Gain
    """Its worth, cross-validated."""
    learned_at: datetime
    """When."""

    def model(self) -> LogisticModel:
        """Return the regression."""
        return LogisticModel(np.array(self.weights), self.intercept)

    def standardised(self, hits: Sequence[StepHit]) -> Floats:
        """Return the features of the hits of one query, as the regression takes them."""
        return np.nan_to_num(_centred(hits, self.features) / np.array(self.scales))


class LearnedRank:
    """Orders hits by the probability that they are good, learned from a memory.

    Example:
        >>> from hybridagi_steps.memory import StepMemory
        >>> memory = StepMemory(":memory:", embedder="hashing")
        >>> LearnedRank().fit(memory)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        hybridagi_steps.errors.LabelError: a rank is learned from at least 200 labels, ...
    """

    def __init__(self, *, l2: float = 10.0, pool: int = 100) -> None:
        """Set how to learn.

        Args:
            l2: How strongly weights are kept small, above 0; that of the score hardly is, so few
                labels leave the order as it came.
            pool: Hits of a query among which labelled steps are looked for; at least 2.

        Raises:
            InvalidSettingError: A number that means nothing.
        """
        if not is_number(l2) or not 0 < l2 < float("inf"):
            raise InvalidSettingError(f"l2 is a number above 0, not {l2!r}.")
        self.l2, self.pool = float(l2), whole_number("pool", pool, _LEAST_POOL)
        self.learned: RankWeights | None = None
        """What it knows; None before it has learned."""

    def fit(
        self,
        memory: LearningMemory,
        labels: Labels | None = None,
        *,
        where: StepFilter | Mapping[str, Any] | None = None,
        good_from: float = 0.5,
        save: bool = True,
    ) -> Self:
        """Learn, measure the gain on queries left out, and save it with the memory.

        An order that is measured to be worse is logged as a warning.

        Args:
            memory: Whose hits are to be ordered.
            labels: (query, step id, 0 or 1) each, or a JSONL file of objects with `query`, `step`
                and `label`. By default the memory's own use: steps recalled into runs that scored
                well are good, those recalled into runs that scored badly bad.
            where: Whose use is learned from; by default all of the user's own history. With labels
                it means nothing.
            good_from: Least score of a run that went well.
            save: Whether the memory keeps it, for `LearnedRank.of`. It is not used by that.

        Raises:
            LabelError: Fewer than 200 labels that can be used, labels of one kind or of one query
                only, or one that is none. Nothing was learned or saved.
        """
        if not is_number(good_from):
            raise InvalidSettingError(f"good_from is a number, not {good_from!r}.")
        with unnoted():  # nobody's prompt holds these hits
            verdicts = used(memory, where, good_from) if labels is None else labelled(labels)
            hits, lost = judged(memory, verdicts, self.pool)
        self.learn(hits, source="use" if labels is None else "labels", unusable=lost)
        if save:
            self.save(memory)
        return self

    def learn(
        self,
        judged: Iterable[JudgedHits],
        *,
        source: Literal["use", "labels"] = "labels",
        unusable: int = 0,
    ) -> Self:
        """Learn from hits at hand, whoever judged them; saves nothing.

        Args:
            judged: Hits of many queries with verdicts.
            source: Where the verdicts come from.
            unusable: Labels that are not among them.

        Raises:
            LabelError: As `fit`.
        """
        queries = list(judged)
        features, scales, rows = _rows(queries)
        _check(rows, unusable, source)
        fit = partial(_fit, names=features, l2=self.l2)
        model = fit(rows)
        good = int(rows.labels.sum())
        self.learned = RankWeights(
            features=features,
            scales=scales.tolist(),
            weights=model.weights.tolist(),
            intercept=model.intercept,
            source=source,
            good=good,
            bad=len(rows.labels) - good,
            unusable=unusable,
            queries=len(queries),
            gain=measured_gain(rows, cross_fitted(rows, fit)),
            learned_at=utc_now(),
        )
        if self.gain.high < 0:
            _log.warning("the learned order is worse than the one before: gain %s", self.gain)
        return self

    def save(self, memory: LearningMemory) -> None:
        """Keep it with a memory, in the place of what was kept before.

        Raises:
            NotLearnedError: It has not learned yet.
        """
        memory.keep_learned(_NAME, self._known().model_dump_json())

    @classmethod
    def of(cls, memory: LearningMemory) -> Self:
        """Return the rank that was learned from a memory.

        Raises:
            NotLearnedError: None was, what is kept is of another version, or a purge forgot it.
        """
        kept = memory.learned(_NAME)
        if kept is None:
            raise NotLearnedError(f"{memory!r} keeps no learned rank; LearnedRank().fit(memory).")
        try:
            known = RankWeights.model_validate_json(kept)
        except ValidationError as error:
            raise NotLearnedError(
                f"{memory!r} keeps a learned rank that this version cannot read; fit it anew."
            ) from error
        rank = cls()
        rank.learned = known
        return rank

    @staticmethod
    def forget(memory: LearningMemory) -> None:
        """Let a memory forget its learned rank, if it keeps one."""
        memory.keep_learned(_NAME, None)

    @property
    def weights(self) -> dict[str, float]:
        """What one standard deviation of each part adds to the log-odds, the weightiest first."""
        known = self._known()
        pairs = zip(known.features, known.weights, strict=True)
        return dict(sorted(pairs, key=lambda pair: -abs(pair[1])))

    @property
    def gain(self) -> Gain:
        """How much better its order is than the search's, on queries it was not learned from."""
        return self._known().gain

    def rerank(self, query: str, hits: Sequence[StepHit]) -> list[StepHit]:  # noqa: ARG002 - the protocol's
        """Return the hits by the probability that they are good.

        Raises:
            NotLearnedError: It has not learned yet.
        """
        known = self._known()
        if not hits:
            return []
        model, features = known.model(), known.standardised(hits)
        added = features * model.weights
        return best_first(
            [
                rescored(hit, float(likely), _told(float(likely), row, known.features))
                for hit, likely, row in zip(hits, model.probabilities(features), added, strict=True)
            ]
        )

    def _known(self) -> RankWeights:
        if self.learned is None:
            raise NotLearnedError(
                "this rank has learned nothing yet: LearnedRank().fit(memory), or, where one was "
                "saved, LearnedRank.of(memory)."
            )
        return self.learned

    def __repr__(self) -> str:
        if self.learned is None:
            return "LearnedRank(nothing learned)"
        return f"LearnedRank({self._summary()}; {', '.join(_lines(self.weights, _TOLD))})"

    def _summary(self) -> str:
        known = self._known()
        labels = f"{known.good + known.bad:,} labels of {known.queries:,} queries"
        return f"{labels} by {known.source}, gain {known.gain}"

    def _repr_html_(self) -> str:
        """Show what it learned in a notebook."""
        if self.learned is None:
            return render("context", title=repr(self), messages=[], sections=[], notes=[])
        rows = [
            {"id": name, "why": FACTS.get(name, "part of the score"), "tokens": round(weight, 3)}
            for name, weight in self.weights.items()
        ]
        known = self.learned
        notes = [
            f"{known.good:,} good and {known.bad:,} bad, {known.unusable:,} that are no hit of "
            "their query; weights per standard deviation"
        ]
        sections = [("weights", rows, 0)]
        title = f"LearnedRank: {self._summary()}"
        return render("context", title=title, messages=[], sections=sections, notes=notes)


def features_of(hits: Sequence[StepHit]) -> list[dict[str, float]]:
    """Return what is known of each hit of one query: the parts of its score, and `FACTS`."""
    runs = Counter(hit.step.run_id or "" for hit in hits)
    runs[""] = 1  # steps of no run have no company
    made = np.array([in_utc(hit.step.created_at).timestamp() for hit in hits])
    others = max(1, len(hits) - 1)
    older = np.searchsorted(np.sort(made), made) / others
    return [
        {
            **hit.parts,
            "score": hit.score,
            "rank": 1 / rank,
            "newer": float(older[rank - 1]),
            "same_run": (runs[hit.step.run_id or ""] - 1) / others,
            **{name: float(hit.step.step_type == kind) for name, kind in _KINDS.items()},
            "result": float(bool(hit.step.outputs)),
            "failed": float(hit.step.status == "error"),
        }
        for rank, hit in enumerate(hits, start=1)
    ]


def _centred(hits: Sequence[StepHit], names: Sequence[str]) -> Floats:
    """Return the features of the hits of one query, less their mean; NaN where one is missing.

    Queries differ in how well anything matches them, and an order is needed within each.
    """
    found = [[each.get(name, np.nan) for name in names] for each in features_of(hits)]
    matrix = np.array(found, np.float64).reshape(len(hits), len(names))
    known = ~np.isnan(matrix)
    sums = np.where(known, matrix, 0.0).sum(axis=0)
    return matrix - sums / np.maximum(known.sum(axis=0), 1)


def _rows(queries: Sequence[JudgedHits]) -> tuple[list[str], Floats, JudgedRows]:
    """Return the names of all features, their scales, and the judged hits as rows.

    Scales are those of all hits, judged or not: the judged ones may stand close together, and an
    order is asked for among all.
    """
    parts = {name for query in queries for hit in query.hits for name in hit.parts}
    names = [*sorted(parts - FACTS.keys()), *FACTS]
    verdicts = [verdict for query in queries for verdict in query.verdicts]
    known = np.array([verdict is not None for verdict in verdicts], np.bool_)
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(query.group or query.query, len(numbers)) for query in queries]
    sizes = [len(query.hits) for query in queries]
    found = [np.empty((0, len(names))), *(_centred(query.hits, names) for query in queries)]
    features = np.nan_to_num(np.concatenate(found))
    scales = np.sqrt((features**2).mean(axis=0)) if len(features) else np.ones(len(names))
    scales = np.where(scales > _NEVER_DIFFERS, scales, 1.0)
    rows = JudgedRows(
        features / scales,
        np.array([bool(verdict) for verdict in verdicts], np.float64),
        np.array([hit.score for query in queries for hit in query.hits], np.float64),
        np.repeat(np.arange(len(queries)), sizes),
        np.repeat(np.array(groups, np.int64), sizes),
    )
    return names, scales, rows.of(known)


def _fit(rows: JudgedRows, names: Sequence[str], l2: float) -> LogisticModel:
    """Learn from judged hits, those of long runs no more than those of others.

    No hit is worth less for matching better: where score or place would weigh against it, which a
    few labels of hits that stand close together can ask for, it weighs nothing.
    """
    counts = np.minimum(1.0, MOST_COUNTED / np.bincount(rows.groups)[rows.groups])
    penalties = np.array([l2 * _FREE_SHARE if name == "score" else l2 for name in names])
    order = [names.index(name) for name in _ORDER]
    while True:
        model = fit_logistic(rows.features, rows.labels, counts, penalties)
        least = min(order, key=lambda place: model.weights[place])
        if model.weights[least] >= -_NEVER_DIFFERS:
            return model
        penalties[least] = _KEPT_AT_ZERO


def _check(rows: JudgedRows, unusable: int, source: str) -> None:
    """Refuse labels from which nothing can be learned, saying what there is and what is wanted."""
    good = int(rows.labels.sum())
    bad = len(rows.labels) - good
    if good + bad >= LEAST_LABELS and good and bad and len(np.unique(rows.groups)) > 1:
        return
    lost = f" {unusable:,} more name steps that are no hit of their query." if unusable else ""
    way_out = (
        "record more runs that recall steps, and score them, the bad ones too: "
        "memory.score(run_id, 0.0); or give labels, (query, step id, 0 or 1) each."
        if source == "use"
        else "give more, of several queries, good hits and bad ones; a larger pool finds more of "
        "the steps they name."
    )
    raise LabelError(
        f"a rank is learned from at least {LEAST_LABELS} labels, good and bad ones, of several "
        f"queries or runs; there are {good + bad:,}: {good:,} good and {bad:,} bad.{lost} "
        f"{way_out[0].upper()}{way_out[1:]}",
        good=good,
        bad=bad,
        unusable=unusable,
    )


def _told(likely: float, added: Floats, names: Sequence[str]) -> str:
    """Return what a hit's place comes from."""
    said = _lines(dict(zip(names, added.tolist(), strict=True)), _TOLD)
    return f"learned {likely:.2f}: {', '.join(said)}"


def _lines(weights: Mapping[str, float], most: int) -> list[str]:
    first = sorted(weights.items(), key=lambda pair: -abs(pair[1]))[:most]
    return [f"{name} {weight:+.2f}" for name, weight in first]
