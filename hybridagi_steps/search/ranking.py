"""From queries to ranked rows: the hybrid pipeline, readable from top to bottom.

words and vectors give candidates → their neighbours along parent links join → exact scores for all
parts → fused by the row's formula → votes → spread one hop → exact duplicates of the query first →
same texts collapsed → cut. It reads a StepIndex and returns rows; storage and records are the
caller's. What the parts are stands in `score_parts`, what they weigh in `formulas`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.step_identity import answer_to
from hybridagi_steps.records.step_text import asks_when, text_hash, written_words
from hybridagi_steps.records.store_values import FloatVector, Rows, among, distinct
from hybridagi_steps.search.formulas import (
    LENGTH_POWER,
    ONE_HALF,
    QUESTION_COST,
    UNDATED_COST,
    Aim,
    Formula,
    Mode,
    carried,
    formulas,
    fused_score,
)
from hybridagi_steps.search.forward_index import Scores, by_name, changing
from hybridagi_steps.search.score_parts import ELSEWHERE, OWN, Places, ReadIndex, Scope, ScoreParts
from hybridagi_steps.search.vocabulary import AskedText

POOL = 50
"""Candidates taken from each half."""
MOST_EQUAL = 3_000
"""Of more rows that say the same those behind the candidates are passed over but for the newest."""
VOTERS = 20
"""The best rows, which vote for others of their tool and run."""

_Flags = npt.NDArray[np.bool_]
_ByPlace = Callable[[dict[str, str]], dict[str, dict[str, str]]]
_WORDS_SHOWN = 5
_QUESTIONS_DEEP = 2
"""A message may be a program's question, and the program's end answers both."""


class State(NamedTuple):
    """Where a run stands: what is asked is what was done next in a state like this one."""

    text: str
    vector: FloatVector | None


@dataclass(frozen=True)
class SearchQuery:
    """One query, ready to be answered."""

    text: str
    vector: FloatVector | None
    """Of any length above zero; None when meaning is not asked for or the text has none."""
    whole: str | None = None
    """The query uncut, when that is longer than `text`: what an equal step would say."""
    itself: int | None = None
    """The row of the stored step that is the query."""
    state: State | None = None
    """Where the run stands that asks."""


class RankedRow(NamedTuple):
    """One row of the answer."""

    row: int
    score: float
    dense: float | None
    lexical: float | None
    query_words: dict[str, str]
    """Stems of the query, each with the word as the query has it."""
    held: npt.NDArray[np.int8]
    """Of each of them, whether the row holds it; see `ScoreParts.held`."""
    same: bool
    """Whether it says what the query says."""
    spread: bool
    """Whether a neighbour's match counts more than its own."""
    parts: dict[str, float]
    """Value of each part of the score that was looked at; see `formulas.PARTS`."""
    formula: Formula
    """By which they made the score."""

    @property
    def glimpsed_words(self) -> dict[str, str]:
        """Stems that only the glimpse of the step before holds, or what no text shows of it."""
        return self._words(ELSEWHERE)

    def _words(self, where: int) -> dict[str, str]:
        known = zip(self.query_words.items(), self.held.tolist(), strict=True)
        return dict(word for word, held in known if held == where)

    def why(self, own: Collection[str] = (), by_place: _ByPlace = lambda words: {"": words}) -> str:
        """Return what matched, in words; `own` are glimpsed stems that stand in the step, too.

        `by_place` groups words by the field that has them, "" for what a reader sees at once.
        """
        glimpsed = self.glimpsed_words
        here = {**self._words(OWN), **{s: w for s, w in glimpsed.items() if s in own}}
        before = {s: w for s, w in glimpsed.items() if s not in own}
        meaning = self.dense is not None and self.dense > 0
        reasons = [
            "same text" if self.same else "",
            *(_named(f"words{at and ' in '}{at}", some) for at, some in by_place(here).items()),
            _named("words of the step before", before),
            f"meaning {self.dense:.2f}" if meaning else "",
            *(_REASONS[n] for n in carried(self.parts, self.formula) if n in _REASONS),
            "next to a match" if self.spread else "",
        ]
        return "; ".join(filter(None, reasons)) or "near the query"


_REASONS = {
    "phrases": "same phrase",
    "tool_words": "words of other steps of its tool",
    "state_words": "after a step with the words of this state",
    "state_meaning": "after a step like this state",
    "wide": "words of the turns around it",
    "session": "words of its session",
    "speaker": "said by whom the query names",
    "tool_vote": "the tool of the best matches",
    "run_vote": "the run of the best matches",
}


def _named(what: str, words: dict[str, str]) -> str:
    # A single letter tells little, but more than nothing.
    telling = [s for s in words if len(s) > 1 or not s.isascii()] or [*words]
    shown = list(dict.fromkeys(words[stem] for stem in telling))[:_WORDS_SHOWN]
    return f"{what}: {', '.join(shown)}" if shown else ""


def search(
    index: ReadIndex,
    queries: Sequence[SearchQuery],
    k: int,
    *,
    scope: Scope,
    mode: Mode = "hybrid",
    aim: Aim | None = None,
    min_score: float | None = None,
) -> list[RankedRow]:
    """Return the k best rows over all queries, best first, no text twice.

    Each query has its turn: the best row not taken yet of the first, of the second, and so on.
    """
    return merged(
        [best_rows(index, query, k, scope=scope, mode=mode, aim=aim) for query in queries],
        k,
        min_score,
    )


def best_rows(
    index: ReadIndex,
    query: SearchQuery,
    k: int,
    *,
    scope: Scope,
    mode: Mode,
    aim: Aim | None,
    pool: int | None = None,
) -> list[RankedRow]:
    """Return the k best rows of one query, best first; with a `pool`, of no more candidates."""
    return _Answer(index, query, scope, mode, aim).best(k, pool)


def merged(answers: list[list[RankedRow]], k: int, min_score: float | None) -> list[RankedRow]:
    """Return the k best rows of several answers, as `search` says."""
    if min_score is not None:
        answers = [[hit for hit in hits if hit.score >= min_score] for hits in answers]
    taken: dict[int, RankedRow] = {}
    for rank in range(max(map(len, answers), default=0)):
        for hits in answers:
            if rank < len(hits) and len(taken) < k:
                taken.setdefault(hits[rank].row, hits[rank])
    return sorted(taken.values(), key=lambda hit: -hit.score)


@dataclass
class _Scored:
    """Candidate rows, ascending, with their scores."""

    rows: Rows
    score: Scores
    exact: _Flags
    spread: _Flags
    parts: dict[str, Scores] = field(default_factory=dict[str, Scores])
    """NaN where a part was not looked at."""


class _Answer:
    """The answer to one query."""

    def __init__(
        self, index: ReadIndex, query: SearchQuery, scope: Scope, mode: Mode, aim: Aim | None
    ) -> None:
        self.index, self.query, self.scope, self.mode = index, query, scope, mode
        self.of_steps, self.of_turns = formulas(mode, aim)
        halves = {"words": mode != "dense", "meaning": mode != "lexical"}
        state = query.state and AskedText(query.state.text, query.state.vector, **halves)
        asked = AskedText(query.text, query.vector, **halves)
        self.values = ScoreParts(index, scope, asked, state)

    def best(self, k: int, only: int | None = None) -> list[RankedRow]:
        """Return the best rows; look wider as long as equal texts crowd out the rest."""
        pool, kept = only or max(POOL, k), list[Rows]()
        while True:
            rows, full = self.values.candidates(pool, self.of_steps)
            scored = self._answers(self._scored(distinct(np.concatenate((rows, *kept)))))
            chosen = self._collapsed(scored)
            if len(chosen) >= k or not full or only:
                return self._ranked(scored, np.array(chosen[:k], np.intp))
            kept += self._thinned(scored.rows)
            pool = max(4 * pool, MOST_EQUAL if kept else 0)

    def _thinned(self, rows: Rows) -> list[Rows]:
        """Look no further among many that say the same; return those seen, and the newest."""
        hashes = np.sort(self.index.columns.text_hashes(rows))
        twice = distinct(hashes[1:][hashes[1:] == hashes[:-1]])
        crowds = self.index.columns.crowds(twice, MOST_EQUAL, self.values.answers)
        if crowds:
            self.values.pass_over(distinct(np.concatenate(crowds)))
        return [np.append(rows[among(rows, crowd)], crowd[-1]) for crowd in crowds]

    def _scored(self, rows: Rows) -> _Scored:
        """Score the candidates, and with them whoever stands next to them or says the same."""
        rows, same = self._joined(rows)
        place = self.index.turns.places(rows)
        turns = place >= 0
        fused, parts = np.zeros(len(rows)), dict[str, Scores]()
        for formula, kind in ((self.of_steps, ~turns), (self.of_turns, turns)):
            if kind.any():
                of_kind = rows if kind.all() else rows[kind]
                found = self.values.values(of_kind, formula.weights)
                if of_kind is rows:
                    fused = np.asarray(fused_score(found, formula), float)
                    parts = {name: np.asarray(values, float) for name, values in found.items()}
                    break
                fused[kind] = fused_score(found, formula)
                for name, values in found.items():
                    parts.setdefault(name, np.full(len(rows), np.nan))[kind] = values
        worth = np.ones(len(rows))
        if turns.any() and self.mode == "hybrid":
            worth[turns] = self._priors(place[turns])
        reached, spread = self._spread(rows, fused, turns, worth, parts)
        exact = among(rows, same)
        reached = np.where(exact, 1.0, np.minimum(reached, 1.0))
        return _Scored(rows, reached, exact, spread, parts)

    def _answers(self, scored: _Scored) -> _Scored:
        """Leave out what was only looked at to score others."""
        (kept,) = self.values.may_answer(scored.rows).nonzero()
        if len(kept) == len(scored.rows):
            return scored
        parts = {name: values[kept] for name, values in scored.parts.items()}
        rows = self.values.choose(scored.rows, kept)
        return _Scored(rows, scored.score[kept], scored.exact[kept], scored.spread[kept], parts)

    def _joined(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the candidates with their neighbours and duplicates, and the duplicates."""
        index, query, visible = self.index, self.query, self.values.visible
        said, answers = text_hash(query.whole or query.text), self.values.answers
        same = np.sort(index.columns.with_text(said, answers)[:POOL])
        if query.itself is not None:
            same = distinct(np.concatenate((same, answers(np.array([query.itself])))))
        rows = distinct(np.concatenate((rows, same))) if len(same) else rows
        replies = index.columns.with_purposes(answer_to(index.columns.text_hashes(rows)))
        rows = distinct(np.concatenate((rows, visible(replies)))) if len(replies) else rows
        if self.mode == "hybrid":
            columns = index.columns
            rows = visible(np.concatenate((rows, columns.parents(rows), columns.children(rows)[0])))
        return rows, same

    def _spread(
        self,
        rows: Rows,
        fused: Scores,
        turns: _Flags,
        worth: Scores,
        parts: dict[str, Scores],
    ) -> tuple[Scores, _Flags]:
        """Let the best vote, and a match shine on its neighbours; return also where it did.

        A neighbour is never worth more by a match than the match itself.
        """
        total = sum(self.of_steps.weights.values()) + sum(self.of_steps.votes.values())
        weight = sum(self.of_steps.weights.values()) / total
        if (share := self.of_steps.votes.get("tool_vote")) is not None:
            parts["tool_vote"] = self._votes("tool", rows, fused)
            fused = np.where(turns, fused, weight * fused + share / total * parts["tool_vote"])
        if self.mode != "hybrid":
            return fused, np.zeros(len(rows), np.bool_)
        near = parts["neighbour"] = self.index.columns.best_neighbours(rows, fused, worth)
        fused = worth * fused
        shares = np.where(turns, self.of_turns.spread, self.of_steps.spread)
        reached = np.maximum(fused, shares * near)
        spread = reached > fused
        if (share := self.of_steps.votes.get("run_vote")) is not None:
            parts["run_vote"] = self._votes("run_id", rows, reached)
            reached = weight * reached + share / total * parts["run_vote"]
        return reached, spread

    def _votes(self, key: str, rows: Rows, scores: Scores) -> Scores:
        """Return for each row how much the best ones have its value of a key, 1 for the most."""
        numbers = self.index.filters.numbers(key, rows)
        best = np.argsort(-scores, kind="stable")[:VOTERS]
        best = best[numbers[best] >= 0]
        if not len(best):
            return np.zeros(len(rows))
        cast = np.bincount(numbers[best], scores[best], minlength=int(numbers.max()) + 1)
        return np.where(numbers >= 0, cast[numbers] / (cast.max() or 1.0), 0.0)

    def _priors(self, places: Places) -> Scores:
        """Return what turns are worth for how they speak, at most 1."""
        turns = self.index.turns
        words = np.minimum(np.log1p(turns.column("lengths", places)), 3.0) / 3.0
        worth = words**LENGTH_POWER * (1 - QUESTION_COST * turns.column("asks", places))
        if asks_when(self.query.text):
            worth *= 1 - UNDATED_COST * ~turns.column("dated", places)
        return worth

    def _collapsed(self, scored: _Scored) -> list[int]:
        """Return the places of the answer, best first; of equal texts the newest row stands."""
        given_way = self._given_way(scored)
        keys = [-scored.rows, ~scored.exact, -scored.score]
        if self.of_steps is ONE_HALF["lexical"]:  # whose own words they are, not the step before's
            keys.insert(1, -self.values.values(scored.rows, ["own"])["own"])
        order = np.lexsort(keys)
        order = order[(scored.score[order] > 0) & ~given_way[order]]
        hashes = self.index.columns.text_hashes(scored.rows)[order]
        if len(distinct(hashes)) == len(hashes):
            return order.tolist()
        best: dict[int, int] = {}
        for said, place in zip(hashes.tolist(), order.tolist(), strict=True):
            kept = best.setdefault(said, place)
            if kept != place and self._stands_for(scored, place, kept):
                scored.score[place] = max(scored.score[place], scored.score[kept])
                best[said] = place
        return list(best.values())

    def _given_way(self, scored: _Scored) -> _Flags:
        """Return which rows only ask what others answer; those are as good as their questions.

        A question may be asked of a program, whose call gives way in turn.
        """
        columns, given_way = self.index.columns, np.zeros(len(scored.rows), np.bool_)
        wanted = answer_to(columns.text_hashes(scored.rows))
        order = wanted.argsort(kind="stable")
        asked, wanted = columns.purpose_hashes(scored.rows), wanted[order]
        first, last = (wanted.searchsorted(asked, side) for side in ("left", "right"))
        (answering,) = (last > first).nonzero()
        if not len(answering):
            return given_way
        starts = np.flatnonzero(changing(wanted))
        group = starts.searchsorted(first[answering])
        for _ in range(_QUESTIONS_DEEP):
            best = np.maximum.reduceat(scored.score[order], starts)[group]
            scored.exact[answering] |= np.logical_or.reduceat(scored.exact[order], starts)[group]
            scored.score[answering] = np.maximum(scored.score[answering], best)
        given_way[order] = among(wanted, distinct(asked[answering]))
        itself = self.query.itself
        return given_way if itself is None else given_way & (scored.rows != itself)

    def _stands_for(self, scored: _Scored, place: int, kept: int) -> bool:
        itself = self.query.itself
        if itself is not None and itself in (scored.rows[place], scored.rows[kept]):
            return bool(scored.rows[place] == itself)
        return bool(scored.rows[place] > scored.rows[kept])

    def _ranked(self, scored: _Scored, chosen: Places) -> list[RankedRow]:
        rows = self.values.choose(scored.rows, chosen)
        query_words = written_words(self.query.text) if self.values.query.stems else {}
        turns = (self.index.turns.places(rows) >= 0).tolist()
        parts = np.array([values[chosen] for values in scored.parts.values()]).round(4).T
        columns = (
            rows.tolist(),
            scored.score[chosen].tolist(),
            [None if isnan(near) else near for near in self.values.cosines(rows).tolist()],
            self.values.lexical(rows).tolist() if query_words else [None] * len(rows),
            [query_words] * len(rows),
            self.values.held(rows, [*query_words]),
            scored.exact[chosen].tolist(),
            scored.spread[chosen].tolist(),
            by_name([*scored.parts], parts),
            [self.of_turns if turn else self.of_steps for turn in turns],
        )
        return [*map(RankedRow._make, zip(*columns, strict=True))]
