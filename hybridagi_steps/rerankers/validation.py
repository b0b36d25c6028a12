"""What a reranker gave back, looked at before anything is made of it.

A reranker may be anybody's code, and what it returns goes into prompts. It may drop hits, put them
in any order and give them new scores; it may not return anything that it was not given. Whether its
scores are good ones is its own affair.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Sequence
from numbers import Real
from typing import Any, cast

from hybridagi_steps.errors import RerankerError
from hybridagi_steps.protocols import Reranker
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.filters import StepHit


def reranked(reranker: Reranker, query: str, hits: Sequence[StepHit]) -> list[StepHit]:
    """Return hits in a reranker's order."""
    made: object = reranker.rerank(query, hits)
    wrong = _wrong(made, hits)
    if wrong is not None:
        raise RerankerError(
            f"{type(reranker).__name__}.rerank returned {wrong}; it returns a list of the hits it "
            "is given, in any order, each at most once."
        )
    return list(made)


def _wrong(made: object, hits: Sequence[StepHit]) -> str | None:
    """Return what is wrong with a reranker's answer, in words; None if nothing is."""
    if inspect.iscoroutine(made):
        made.close()
        return "a coroutine"
    if isinstance(made, str) or not isinstance(made, Sequence):
        return type(made).__name__
    left = Counter(id_text(hit.step.id) for hit in hits)
    for hit in cast("Sequence[Any]", made):
        if not isinstance(hit, StepHit):
            return f"a list with {type(hit).__name__} in it"
        step_id = id_text(hit.step.id)
        if not isinstance(hit.score, Real) or not math.isfinite(hit.score):  # pyright: ignore[reportUnnecessaryIsInstance] - copies are not validated
            return f"the score {hit.score!r} for step {step_id}"
        left[step_id] -= 1
        if left[step_id] < 0:
            return f"step {step_id} more often than it was given"
    return None
