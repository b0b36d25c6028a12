"""The formulas of hybrid search: which parts of a score weigh how much, for which question.

A part is a number in 0..1 for each candidate (`PARTS`); a formula is the weights of its parts. The
fused score is their weighted sum divided by the sum of the weights, so rows scored by different
formulas compare: an agent's step by the formula of what is asked for (`aim`), a spoken turn by that
of dialogue. Weights come from runs and chats that do not travel in the package; the decision record
on hybrid retrieval has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Mode = Literal["hybrid", "dense", "lexical"]
"""Which halves decide."""
Aim = Literal["next", "episode", "tool"]
"""What a search is for: what was done next in a state like this one; the run that did this; the
tool that can do this."""

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "window": "words of the query in the step and in a glimpse of the one before it",
        "meaning": "cosine of the step's own meaning with the query's",
        "phrases": "pairs of words that follow each other in the query",
        "pieces": "pieces of words, four letters long",
        "own": "words of the query in the step itself",
        "tool_words": "words of the query in the first steps of the same tool",
        "state_words": "words of the state in the step before",
        "state_meaning": "cosine of the state's meaning with that of the step before",
        "wide": "words of the query in the two turns before and after, and in the turn itself",
        "session": "words of the query in the whole session",
        "speaker": "the query names who speaks",
        "tool_vote": "how much the best steps used the same tool",
        "run_vote": "how much the best steps are of the same run",
        "neighbour": "fused score of the best neighbour along parent links",
    }
)
"""Every part of a score, each 0..1. Those of words are divided by the best among the candidates."""

MEANINGS = frozenset({"meaning", "state_meaning"})
"""Parts that need an embedder."""


class Formula(NamedTuple):
    """How the parts of one kind of row make its score."""

    weights: Mapping[str, float]
    """Of the parts that are summed up."""
    spread: float = 0.7
    """What a row is worth for standing next to a match."""
    votes: Mapping[str, float] = MappingProxyType({})
    """What the best rows add to others of their tool or run."""

    def of(self, mode: Mode) -> Formula:
        """Return what one half leaves of it."""
        if mode == "hybrid":
            return self
        dense = mode == "dense"
        left = {name: w for name, w in self.weights.items() if (name in MEANINGS) == dense}
        return Formula(left, 0.0, self.votes)


GENERAL = Formula({"window": 0.6, "meaning": 0.55, "phrases": 0.15, "pieces": 0.15})
"""Steps of agents, nothing said about what for."""
AIMS: dict[Aim | None, Formula] = {
    None: GENERAL,
    "next": Formula(
        {**GENERAL.weights, "state_words": 0.6, "state_meaning": 0.6},
        votes={"tool_vote": 0.2},
    ),
    "episode": Formula(GENERAL.weights, spread=0.9, votes={"run_vote": 0.2}),
    "tool": Formula({"own": 0.4, "window": 0.2, "meaning": 0.4, "tool_words": 0.3}, spread=0.5),
}
"""Steps of agents, by what is asked for."""
DIALOGUE = Formula(
    {
        "window": 0.45,
        "wide": 0.5,
        "session": 0.25,
        "phrases": 0.15,
        "meaning": 0.4,
        "speaker": 0.2,
    }
)
"""Spoken turns."""
ONE_HALF: dict[Mode, Formula] = {
    "lexical": Formula({"window": 1.0}, spread=0.0),
    "dense": Formula({"meaning": 1.0}, spread=0.0),
}
"""Rows of any kind when one half is asked for and no aim."""

QUESTION_COST = 0.1
"""Share that a turn loses which ends in a question mark: it asks, and what is sought answers."""
UNDATED_COST = 1 - 1 / 1.35
"""Share that a turn without a time expression loses when the query asks when."""
_CARRIED = 0.05
"""What a part adds to a score from which it is named."""
LENGTH_POWER = 0.45
"""How much a short turn loses: min(ln(1 + words), 3) / 3 to this power."""


def formulas(mode: Mode, aim: Aim | None) -> tuple[Formula, Formula]:
    """Return the formulas of agent steps and of spoken turns."""
    if aim is None and mode in ONE_HALF:
        return ONE_HALF[mode], ONE_HALF[mode]
    return AIMS[aim].of(mode), DIALOGUE.of(mode)


def fused_score(parts: Mapping[str, npt.NDArray[Any]], formula: Formula) -> npt.NDArray[Any]:
    """Return the weighted mean of the parts; a part that nothing can have does not count."""
    silent = {"speaker"} if not parts.get("speaker", np.zeros(1)).any() else set[str]()
    weights = {name: w for name, w in formula.weights.items() if name not in silent}
    fused = np.add.reduce([weight * parts[name] for name, weight in weights.items()])
    return fused / sum(weights.values())


def carried(parts: Mapping[str, float], formula: Formula) -> list[str]:
    """Return the parts that added more to a score than others can tell."""
    weights = {**formula.weights, **formula.votes}
    total = sum(weights.values())
    return [name for name, w in weights.items() if w * parts.get(name, 0.0) / total > _CARRIED]
