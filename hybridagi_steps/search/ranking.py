"""From queries to ranked rows: the hybrid pipeline, readable from top to bottom.

words and vectors give candidates → their neighbours along parent links join → exact scores for both
halves → fused → spread one hop → exact duplicates of the query first → same texts collapsed → cut.
It reads a StepIndex and returns rows; storage and records are the caller's.

The constants come from other runs than the shipped ones; `python -m tests.benchmarks quality
--tune` prints how others would do on one half of these, and the table is of the other half.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.step_text import text_hash, tokens, written_words
from hybridagi_steps.records.store_values import FloatVector, Rows
from hybridagi_steps.search.bm25 import Match
from hybridagi_steps.search.step_columns import NO_ROW
from hybridagi_steps.search.step_index import Shard, StepIndex

Mode = Literal["hybrid", "dense", "lexical"]
"""Which halves decide."""

LEXICAL_WEIGHT = 0.6
"""Share of the words in the fused score; meaning has the rest."""
NEIGHBOUR_SHARE = 0.7
"""What a step is worth for standing next to a match."""
POOL = 50
"""Candidates taken from each half."""

_Scores = npt.NDArray[np.float64]
_WORDS_SHOWN = 5


@dataclass(frozen=True)
class SearchQuery:
    """One query, ready to be answered."""

    text: str
    vector: FloatVector | None
    """Of length one; None when meaning is not asked for or the text has none."""
    whole: str | None = None
    """The query uncut, when that is longer than `text`: what an equal step would say."""
    itself: int | None = None
    """The row of the stored step that is the query."""

    @property
    def words(self) -> list[str]:
        """The stems of the query."""
        return tokens(self.text)


PARTS = {
    "window": "words that the step and the one before it share with the query, 1 for the best",
    "meaning": "cosine of meaning of the step itself",
    "neighbour": "fused score of the best neighbour along parent links",
}
"""Names of the parts of a score, each 0..1; a hit names those that were looked at."""


class RankedRow(NamedTuple):
    """One row of the answer."""

    row: int
    score: float
    dense: float | None
    lexical: float | None
    words: dict[str, str]
    """Stems of the query that its window holds, each with the word as the query writes it."""
    same: bool
    """Whether it says what the query says."""
    spread: bool
    """Whether a neighbour's match counts more than its own."""
    parts: dict[str, float]
    """Value of each part of the score that was looked at; see `PARTS`."""

    def why(self, own: Collection[str]) -> str:
        """Return what matched, in words; `own` are those stems that stand in the step itself."""
        before = [stem for stem in self.words if stem not in own]
        meaning = self.dense is not None and self.dense > 0
        reasons = [
            "same text" if self.same else "",
            self._named("words", [stem for stem in self.words if stem in own]),
            self._named("words of the step before", before),
            f"meaning {self.dense:.2f}" if meaning else "",
            "next to a match" if self.spread else "",
        ]
        return "; ".join(filter(None, reasons)) or "near the query"

    def _named(self, what: str, stems: Sequence[str]) -> str:
        # A single letter tells little, but more than nothing.
        telling = [stem for stem in stems if len(stem) > 1 or not stem.isascii()] or stems
        shown = list(dict.fromkeys(self.words[stem] for stem in telling))[:_WORDS_SHOWN]
        return f"{what}: {', '.join(shown)}" if shown else ""


class Scope(NamedTuple):
    """Where to look: the shards, and the rows that pass the filter (None: all of them)."""

    shards: list[Shard]
    rows: Rows | None


def search(
    index: StepIndex,
    queries: Sequence[SearchQuery],
    k: int,
    *,
    scope: Scope,
    mode: Mode = "hybrid",
    min_score: float | None = None,
) -> list[RankedRow]:
    """Return the k best rows over all queries, best first, no text twice.

    Each query has its turn: the best row not taken yet of the first, of the second, and so on.
    """
    answers = [_answer(index, query, k, scope, mode) for query in queries]
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
    score: _Scores
    dense: _Scores
    lexical: _Scores
    exact: npt.NDArray[np.bool_]
    spread: npt.NDArray[np.bool_]
    parts: dict[str, _Scores]


def _answer(
    index: StepIndex, query: SearchQuery, k: int, scope: Scope, mode: Mode
) -> list[RankedRow]:
    """Answer one query; look wider as long as equal texts crowd out the rest."""
    match = _Halves(scope, query, mode)
    pool = max(POOL, k)
    while True:
        rows, full = match.candidates(pool)
        scored = _score(index, query, match, rows, mode)
        chosen = _collapse(index, query, scored)
        if len(chosen) >= k or not full:
            words = _matched_words(query, match, scored.rows[chosen[:k]])
            return [_ranked(match, scored, *hit) for hit in zip(chosen[:k], words, strict=True)]
        pool *= 4


class _Halves:
    """Both halves of one query over the shards: candidates, and exact scores for any rows."""

    def __init__(self, scope: Scope, query: SearchQuery, mode: Mode) -> None:
        self.scope, self.query = scope, query
        self.words = query.words if mode != "dense" else []
        self.vector = query.vector if mode != "lexical" else None
        own = next((s for s in scope.shards if len(s.lexical)), scope.shards[0])
        known = own.lexical.statistics(self.words) if self.words else None
        self.matches: list[Match] = [
            s.lexical.match(self.words, known, scope.rows) for s in scope.shards
        ]
        self.best_lexical = 0.0

    def candidates(self, pool: int) -> tuple[Rows, bool]:
        """Return the best rows of each half, ascending, and whether there may be more."""
        found: list[Rows] = []
        for shard, match in zip(self.scope.shards, self.matches, strict=True):
            rows, scores = match.top(pool, self.scope.rows)
            self.best_lexical = max(self.best_lexical, float(scores[0]) if len(scores) else 0.0)
            found.append(rows)
            if self.vector is not None:
                nearest = shard.vectors.search(self.vector[None], pool, rows=self.scope.rows)
                found.append(nearest[0].rows)
        full = any(len(rows) >= pool for rows in found)
        return np.unique(np.concatenate(found)), full

    def visible(self, rows: Rows) -> Rows:
        """Return those of `rows` that may be found."""
        rows = np.unique(rows[rows != NO_ROW])
        held = [shard.lexical.positions_of(rows) >= 0 for shard in self.scope.shards]
        rows = rows[np.logical_or.reduce(held)]
        return rows if self.scope.rows is None else rows[_among(rows, self.scope.rows)]

    def lexical(self, rows: Rows) -> _Scores:
        """Return the BM25 score of each row."""
        return np.add.reduce([match.of(rows) for match in self.matches])

    def dense(self, rows: Rows) -> _Scores:
        """Return the cosine of each row, NaN where there is none."""
        found = np.full(len(rows), np.nan)
        if self.vector is not None:
            for shard in self.scope.shards:
                near = shard.vectors.similarities(self.vector, rows)
                found = np.where(np.isnan(near), found, near)
        return found


def _score(index: StepIndex, query: SearchQuery, match: _Halves, rows: Rows, mode: Mode) -> _Scored:
    """Score the candidates, and with them whoever stands next to them or says the same."""
    same = match.visible(index.columns.with_text(text_hash(query.whole or query.text)))[-POOL:]
    if query.itself is not None:
        same = np.union1d(same, match.visible(np.array([query.itself])))
    rows = np.union1d(rows, same)
    if mode == "hybrid":
        near = np.concatenate((index.columns.parents(rows), index.columns.children(rows)[0]))
        rows = np.union1d(rows, match.visible(near))
    lexical, dense = match.lexical(rows), match.dense(rows)
    words = lexical / match.best_lexical if match.best_lexical else lexical
    meaning = np.clip(np.nan_to_num(dense), 0.0, 1.0)
    if mode == "dense":
        fused = meaning
    elif mode == "lexical":
        fused = words
    else:
        fused = LEXICAL_WEIGHT * words + (1 - LEXICAL_WEIGHT) * meaning
    near = _best_neighbours(index, rows, fused) if mode == "hybrid" else np.zeros(len(rows))
    reached = np.maximum(fused, NEIGHBOUR_SHARE * near)
    exact = np.isin(rows, same)
    score = np.where(exact, 1.0, np.minimum(reached, 1.0))
    parts = {"window": words, "meaning": meaning, "neighbour": near}
    if mode != "hybrid":
        parts = {"window": words} if mode == "lexical" else {"meaning": meaning}
    return _Scored(rows, score, dense, lexical, exact, reached > fused, parts)


def _best_neighbours(index: StepIndex, rows: Rows, fused: _Scores) -> _Scores:
    """Return the best score among each row's parent and children, one hop."""
    parents = index.columns.parents(rows)
    place = np.minimum(np.searchsorted(rows, parents), len(rows) - 1) if len(rows) else parents
    linked = np.flatnonzero(rows[place] == parents) if len(rows) else place
    best = np.zeros(len(rows))
    np.maximum.at(best, linked, fused[place[linked]])
    np.maximum.at(best, place[linked], fused[linked])
    return best


def _collapse(index: StepIndex, query: SearchQuery, scored: _Scored) -> list[int]:
    """Return the places of the answer, best first; of equal texts the newest row stands."""
    order = np.lexsort((-scored.rows, ~scored.exact, -scored.score))
    order = order[scored.score[order] > 0]
    hashes = index.columns.text_hashes(scored.rows)
    best: dict[int, int] = {}
    for place in order.tolist():
        kept = best.setdefault(int(hashes[place]), place)
        if kept != place and _stands_for(query, scored, place, kept):
            scored.score[place] = max(scored.score[place], scored.score[kept])
            best[int(hashes[place])] = place
    return list(best.values())


def _stands_for(query: SearchQuery, scored: _Scored, place: int, kept: int) -> bool:
    if query.itself is not None and query.itself in (scored.rows[place], scored.rows[kept]):
        return bool(scored.rows[place] == query.itself)
    return bool(scored.rows[place] > scored.rows[kept])


def _ranked(match: _Halves, scored: _Scored, place: int, words: dict[str, str]) -> RankedRow:
    dense = float(scored.dense[place])
    return RankedRow(
        row=int(scored.rows[place]),
        score=float(scored.score[place]),
        dense=None if np.isnan(dense) else dense,
        lexical=float(scored.lexical[place]) if match.words else None,
        words=words,
        same=bool(scored.exact[place]),
        spread=bool(scored.spread[place]),
        parts={name: round(float(values[place]), 4) for name, values in scored.parts.items()},
    )


def _among(rows: Rows, known: Rows) -> npt.NDArray[np.bool_]:
    """Return which of `rows` stand in `known`, which ascends."""
    if not len(known):
        return np.zeros(len(rows), np.bool_)
    return known[np.minimum(np.searchsorted(known, rows), len(known) - 1)] == rows


def _matched_words(query: SearchQuery, match: _Halves, rows: Rows) -> list[dict[str, str]]:
    """Return, for each row, the stems of the query that it holds, with the words as written."""
    found: list[dict[str, str]] = [{} for _ in rows]
    if not match.words:
        return found
    for stem, word in written_words(query.text).items():
        held = [shard.lexical.holds(stem, rows) for shard in match.scope.shards]
        for place in np.flatnonzero(np.logical_or.reduce(held)).tolist():
            found[place][stem] = word
    return found
