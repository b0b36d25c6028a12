"""The parts of a score: each one number in 0..1 per candidate, exact, for the rows asked for.

Candidates come from the postings and the vectors; every other part is counted for candidates only,
in the forward index. Rows outside the scope give nothing to any part: no parent's text, no turn
around, no session and no tool is read that the search may not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.records.store_values import FloatVector, Rows, among, distinct, without
from hybridagi_steps.search.bm25 import (
    LexicalIndex,
    Match,
    ReadWords,
    Statistics,
    inverse_frequency,
)
from hybridagi_steps.search.columns.row_filter import RowFilter
from hybridagi_steps.search.columns.step_columns import NO_ROW, StepColumns, TurnColumns
from hybridagi_steps.search.formulas import Formula
from hybridagi_steps.search.forward_index import Counts, Scores, bm25, counted, summed, to_best
from hybridagi_steps.search.step_index import Shard
from hybridagi_steps.search.vocabulary import AskedText, piece_counts

TOOL_STEPS = 12
"""The first steps of a tool that stand for it."""
AROUND = 2
"""Turns before and after a turn that belong to its wide window."""
BRANCHES = 4
"""Followers of a turn that are looked at, where a conversation was forked."""

ELSEWHERE, OWN = 1, 2
"""Where a row holds a word: in its window alone, or in its own text."""

Places = npt.NDArray[np.intp]
_OF_STATE = ("state_words", "state_meaning")


class ReadIndex(Protocol):
    """What is known of rows besides words and vectors: of all, or of candidates and those near."""

    columns: StepColumns
    turns: TurnColumns
    filters: RowFilter
    whole: bool
    """Whether all rows are known: else sessions are counted by what the known ones are like."""


class Scope(NamedTuple):
    """Where to look."""

    shards: list[Shard]
    rows: Rows | None
    """The rows inside the filter's fences; None: all of them."""
    answers: Rows | None = None
    """Those of them that pass its wishes, too, and may be answers; None: all of them."""


class _Read(NamedTuple):
    """What is read of rows, by shard, and what they score by their windows."""

    rows: Rows
    words: list[ReadWords]
    counts: list[Counts]
    """How often each row has each of the query's terms, as `FoundTerms` says."""
    scores: Scores


class ScoreParts:
    """Computes the parts of one query's score over the shards of a scope."""

    def __init__(
        self, index: ReadIndex, scope: Scope, query: AskedText, state: AskedText | None
    ) -> None:
        self.index, self.scope, self.query, self.state = index, scope, query, state
        self._voters = scope.rows
        self._sought = scope.rows if scope.answers is None else scope.answers
        self._lexicals = [shard.lexical for shard in scope.shards]
        self._matches = self._matched(query.stems)
        self._best_window = 0.0
        self._read: _Read | None = None
        self._near: tuple[Rows, Scores] | None = None
        self._by_name: dict[str, Callable[[Rows], Scores]] = {
            "window": lambda rows: self.lexical(rows) / (self._best_window or 1.0),
            "meaning": lambda rows: np.clip(np.nan_to_num(self.cosines(rows)), 0.0, 1.0),
            "phrases": self._phrases,
            "pieces": self._pieces,
            "own": self._own,
            "tool_words": self._tool_words,
            "state_words": self._state_words,
            "state_meaning": self._state_meaning,
            "wide": self._wide,
            "session": self._session,
            "speaker": self._speaker,
        }

    def candidates(self, pool: int, formula: Formula) -> tuple[Rows, bool]:
        """Return the best rows of each half, ascending, and whether there may be more.

        With a state also what followed the rows that are most like it; with votes also the best
        rows that may vote and be no answers.
        """
        found = self._alike(self.query, pool, self._sought)
        full = any(len(rows) >= pool for rows in found)
        if self.scope.answers is not None and formula.votes:
            found += self._alike(self.query, pool, self._voters)
        if self.state is not None and not formula.weights.keys().isdisjoint(_OF_STATE):
            found.append(self._after_the_state(pool, self.state))
        return distinct(np.concatenate(found)), full

    def _alike(self, text: AskedText, pool: int, among: Rows | None) -> list[Rows]:
        """Return the best rows of each half, of some or of all."""
        found: list[Rows] = []
        asked = text is self.query
        matches = self._matches if asked else self._matched(text.stems)
        for shard, match in zip(self.scope.shards, matches, strict=True):
            rows, scores = match.top(pool, among)
            if asked and len(scores):
                self._best_window = max(self._best_window, float(scores[0]))
            found.append(rows)
            if text.vector is not None:
                found.append(shard.vectors.search(text.vector[None], pool, rows=among)[0].rows)
        return found

    def pass_over(self, rows: Rows) -> None:
        """Leave rows, ascending, out of the candidates from now on."""
        self._sought, self._voters = (
            without(self.index.columns.held() if each is None else each, rows)
            for each in (self._sought, self._voters)
        )

    def _after_the_state(self, pool: int, state: AskedText) -> Rows:
        alike = self._alike(state, pool, self.scope.rows)
        return self.visible(self.index.columns.children(distinct(np.concatenate(alike)))[0])

    def visible(self, rows: Rows) -> Rows:
        """Return those of `rows` that may be looked at, ascending."""
        if not len(rows):
            return rows
        rows = distinct(rows[rows != NO_ROW])
        return rows[self._may_show(rows)]

    def answers(self, rows: Rows) -> Rows:
        """Return those of `rows` that may be answers, ascending."""
        rows = self.visible(rows)
        return rows[self.may_answer(rows)]

    def may_answer(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which of some rows that may be looked at may be answers, too."""
        wished = self.scope.answers
        return np.ones(len(rows), np.bool_) if wished is None else among(rows, wished)

    def values(self, rows: Rows, names: Iterable[str]) -> dict[str, Scores]:
        """Return parts of the score of some rows, by name."""
        return {name: self._by_name[name](rows) for name in names}

    # -- the query and the step itself ------------------------------------------------------------

    def lexical(self, rows: Rows) -> Scores:
        """Return the BM25 score of each row's window."""
        return self._words(rows).scores

    def held(self, rows: Rows, stems: Sequence[str]) -> npt.NDArray[np.int8]:
        """Return where rows hold stems of the query, shape (rows, stems): `OWN`, `ELSEWHERE`, 0."""
        if not stems:
            return np.zeros((len(rows), 0), np.int8)
        own = self._own_counts(rows, stems)[0] > 0
        counts = np.full(own.shape, -1.0)
        for match, often in zip(self._matches, self._words(rows).counts, strict=True):
            slots = match.slots(stems)
            (known,) = (slots >= 0).nonzero()
            counts[:, known] = np.maximum(counts[:, known], often[:, slots[known]])
        # What stands in no window, but further on, is the row's own as well.
        held = np.where(own | (counts == 0), OWN, ELSEWHERE)
        return np.where(counts >= 0, held, 0).astype(np.int8)

    def cosines(self, rows: Rows) -> Scores:
        """Return the cosine of each row with the query, NaN where there is none."""
        if self._near is None or self._near[0] is not rows:
            self._near = rows, self._cosines(self.query.vector, rows)
        return self._near[1]

    def choose(self, rows: Rows, chosen: Places) -> Rows:
        """Return some of the rows; what is known of all of them is known of these, too."""
        some = rows[chosen]
        if self._near is not None and self._near[0] is rows:
            self._near = some, self._near[1][chosen]
        if (read := self._read) is not None and read.rows is rows:
            counts = [each[chosen] for each in read.counts]
            self._read = _Read(some, [], counts, read.scores[chosen])
        return some

    def _phrases(self, rows: Rows) -> Scores:
        found = np.zeros(len(rows))
        for match, read in zip(self._matches, self._words(rows).words, strict=True):
            counts = read.found.phrases(match.slots(self.query.stems))
            found += bm25(counts, read.found.lengths, 1.0, self._average)
        return to_best(found)

    def _pieces(self, rows: Rows) -> Scores:
        found = np.zeros(len(rows))
        for words, read in zip(self._lexicals, self._words(rows).words, strict=True):
            counts = piece_counts(
                read.words, self.query.terms, words.vocabulary.spelling(), words.slots
            )
            found += bm25(counts, read.found.lengths, 1.0, self._average)
        return to_best(found)

    def _words(self, rows: Rows) -> _Read:
        """Return the words of each row; asked again for the same, without reading them again."""
        if self._read is None or self._read.rows is not rows:
            read = [match.read(rows) for match in self._matches]
            words, scores = [each for each, _ in read], np.add.reduce([each for _, each in read])
            self._read = _Read(rows, words, [each.found.counts for each in words], scores)
        return self._read

    def _own(self, rows: Rows) -> Scores:
        return to_best(self._own_words(rows, self.query))

    # -- the step before --------------------------------------------------------------------------

    def _state_words(self, rows: Rows) -> Scores:
        if self.state is None:
            return np.zeros(len(rows))
        return to_best(self._own_words(self._parents(rows), self.state))

    def _state_meaning(self, rows: Rows) -> Scores:
        if self.state is None:
            return np.zeros(len(rows))
        near = self._cosines(self.state.vector, self._parents(rows))
        return np.clip(np.nan_to_num(near), 0.0, 1.0)

    def _parents(self, rows: Rows) -> Rows:
        """Return the parent of each row, `NO_ROW` where it may not be shown."""
        parents = self.index.columns.parents(rows)
        return np.where(self._may_show(parents), parents, NO_ROW)

    # -- other steps of the same tool -------------------------------------------------------------

    def _tool_words(self, rows: Rows) -> Scores:
        """Score one document per tool, its first steps; weights by how many tools have a word."""
        tools = self.index.filters.numbers("tool", rows)
        named = distinct(tools[tools >= 0])
        if not len(named):
            return np.zeros(len(rows))
        firsts = [
            self.index.filters.first_rows("tool", number, TOOL_STEPS, self._may_show)
            for number in named.tolist()
        ]
        steps = np.concatenate([np.empty(0, np.int64), *firsts])
        tool_of = np.repeat(np.arange(len(named)), [len(first) for first in firsts])
        counts, lengths = self._own_counts(steps, self.query.terms)
        of_tool = summed(counts, tool_of, len(named))
        length = np.bincount(tool_of, lengths, minlength=len(named))
        holding = (of_tool > 0).sum(axis=0)
        weights = inverse_frequency(len(named), holding)
        scores = bm25(of_tool, length, weights, float(length.mean()))
        place = np.searchsorted(named, tools).clip(max=len(named) - 1)
        return to_best(np.where(tools >= 0, scores[place], 0.0))

    # -- turns of a dialogue ----------------------------------------------------------------------

    def _wide(self, rows: Rows) -> Scores:
        """Score each turn with those up to `AROUND` links before and after it, as one text."""
        members, owners = self._around(rows)
        members, place = np.unique(members, return_inverse=True)  # many stand around several
        counts, lengths = self._own_counts(members, self.query.terms)
        wide = summed(counts[place], owners, len(rows))
        length = np.bincount(owners, lengths[place], minlength=len(rows))
        return to_best(bm25(wide, length, self._weights(self.query), float(length.mean())))

    def _around(self, rows: Rows) -> tuple[Rows, Places]:
        """Return the turns around each row, itself included, and beside each the row's place.

        Two links in either direction, but one where each row is a question with its answer.
        """
        turns = self.index.turns
        alone = ~turns.column("exchanges", turns.places(rows))
        before, owners = rows, np.arange(len(rows))
        after, owners_after = rows, owners
        members, of = [rows], [owners]
        for hop in range(AROUND):
            before = self.index.columns.parents(before)
            after, owners_after = self._followers(after, owners_after)
            if hop == AROUND - 1:
                before = np.where(alone, before, NO_ROW)
                after, owners_after = (x[alone[owners_after]] for x in (after, owners_after))
            members += [before, after]
            of += [owners, owners_after]
        member, owner = np.concatenate(members), np.concatenate(of)
        kept = self._may_show(member) & (turns.places(member) >= 0)
        return member[kept], owner[kept]

    def _followers(self, rows: Rows, owners: Places) -> tuple[Rows, Places]:
        """Return what follows each row, `BRANCHES` of it at most, each with the row's owner.

        What may not be shown comes last: it takes the place of nothing that may.
        """
        children, parents = self.index.columns.children(distinct(rows))
        order = np.lexsort((~self._may_show(children), parents))
        children, parents = children[order], parents[order]
        first = np.searchsorted(parents, rows)
        count = np.minimum(np.searchsorted(parents, rows, side="right") - first, BRANCHES)
        place: Places = np.repeat(first - (np.cumsum(count) - count), count)
        place = place + np.arange(int(count.sum()))
        return children[place], np.repeat(owners, count)

    def _session(self, rows: Rows) -> Scores:
        """Score the session of each turn: all its turns that may be shown, as one text."""
        turns, terms = self.index.turns, self.query.terms
        shown, sessions, count = turns.rows, turns.sessions, turns.session_count
        if self.scope.rows is not None:
            kept = among(shown, self.scope.rows)
            shown, sessions = shown[kept], sessions[kept]
        wanted, place = np.unique(turns.sessions[turns.places(rows)], return_inverse=True)
        slot, words = np.full(count, -1, np.int32), np.zeros(count)
        slot[wanted] = np.arange(len(wanted))
        counts, holding = np.zeros((len(wanted), len(terms))), np.zeros((len(terms), count), bool)
        for lexical in self._lexicals:
            grouping = lexical.grouping(shown, sessions, count)
            words += grouping.words
            for of, groups, often in lexical.in_groups(terms, grouping):
                holding[of, groups] = True
                asked = slot[groups]
                here = asked >= 0
                counts += counted(asked[here], of[here], len(wanted), len(terms), often[here])
        known = int(np.count_nonzero(words))
        if self.index.whole or not known:
            weights = inverse_frequency(known, np.count_nonzero(holding, axis=1))
        else:
            statistics = self._own_history().statistics(terms)
            weights = statistics.group_weights(terms, len(shown) / known)
        scores = bm25(counts, words[wanted], weights, float(words.sum()) / max(known, 1))
        return to_best(scores[place])

    def _speaker(self, rows: Rows) -> Scores:
        turns = self.index.turns
        return turns.spoken_by(turns.places(rows), self.query.terms).astype(np.float64)

    # -- what all of them need --------------------------------------------------------------------

    def _matched(self, stems: Sequence[str]) -> list[Match]:
        known = self._statistics(stems)
        return [words.match(stems, known) for words in self._lexicals]

    def _own_history(self) -> LexicalIndex:
        """Return the words whose weights count: trial runs must not distort them."""
        return next((words for words in self._lexicals if len(words)), self._lexicals[0])

    def _statistics(self, terms: Sequence[str]) -> Statistics | None:
        return self._own_history().statistics(terms) if terms else None

    @cached_property
    def _average(self) -> float:
        return self._own_history().average_length

    def _weights(self, asked: AskedText) -> Scores:
        known = self._own_history().statistics(asked.terms)
        return known.weights(asked.terms)

    def _own_words(self, rows: Rows, asked: AskedText) -> Scores:
        """Return the BM25 score of each row's own text; of `NO_ROW` 0."""
        counts, lengths = self._own_counts(rows, asked.terms)
        return bm25(counts, lengths, self._weights(asked), self._own_history().average_own_length)

    def _own_counts(self, rows: Rows, terms: Sequence[str]) -> tuple[Counts, Places]:
        """Return how often each row's own text has each term, and its length."""
        counts, lengths = np.zeros((len(rows), len(terms))), np.zeros(len(rows), np.int64)
        for lexical in self._lexicals:
            words, first, last = lexical.forward.own_words(lexical.positions_of(rows))
            slots = lexical.slots.of(words, lexical.numbers(terms), len(lexical.vocabulary))
            (found,) = (slots >= 0).nonzero()  # few: only of these is asked whose they are
            document, place = words.at(found)
            own = (place >= first[document]) & (place < last[document])
            counts += counted(document[own], slots[found[own]], len(rows), len(terms))
            lengths += last - first
        return counts, lengths

    def _cosines(self, vector: FloatVector | None, rows: Rows) -> Scores:
        found = np.full(len(rows), np.nan)
        if vector is not None:
            for shard in self.scope.shards:
                near = shard.vectors.similarities(vector, rows)
                found = np.where(np.isnan(near), found, near)
        return found

    def _may_show(self, rows: Rows) -> npt.NDArray[np.bool_]:
        held = np.any([words.positions_of(rows) >= 0 for words in self._lexicals], axis=0)
        return held if self.scope.rows is None else held & among(rows, self.scope.rows)
