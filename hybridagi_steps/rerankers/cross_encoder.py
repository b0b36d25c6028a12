"""CrossEncoder: a model that reads query and step together.

It is the most exact reranker and by far the slowest, so give it a few dozen hits, not thousands.
Any object with `predict(pairs)` will do; a name is loaded through sentence-transformers on first
use, which is an extra of this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from hybridagi_steps.errors import InvalidQueryError, MissingExtraError, RerankerError
from hybridagi_steps.messages.recalled_text import recalled_text
from hybridagi_steps.records.excerpts import words
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.rerankers.rescoring import best_first, rescored

DEFAULT_MODEL = "cross-encoder/ms-marco-MiniLM-L6-v2"
"""A small model trained on questions and passages, 90 MB, fetched from the model hub."""
_LONGEST_STEP = 1_500
"""Characters of a step: such models read some 500 tokens of query and text together."""


@runtime_checkable
class PairModel(Protocol):
    """Scores pairs of texts, as sentence-transformers' cross-encoders do."""

    def predict(self, sentences: list[tuple[str, str]]) -> Any:
        """Return one number per pair, bigger for a better match."""
        ...


class CrossEncoder:
    """Scores each hit by a model that sees the query beside the recalled step.

    Scores outside 0..1 are taken for logits and go through the logistic function, which keeps their
    order. The model is shared by copies and, when it was given by name, loaded anew after pickling.

    Args:
        model: A model's name or folder, or any object with `predict(pairs)`.
        load_arguments: Given to `sentence_transformers.CrossEncoder`, such as `device`.

    Raises:
        InvalidQueryError: `model` is neither.

    Reference: Nogueira and Cho 2019, "Passage re-ranking with BERT".
    """

    def __init__(self, model: str | PairModel = DEFAULT_MODEL, **load_arguments: object) -> None:
        if not isinstance(model, str) and (
            isinstance(model, type) or not callable(getattr(model, "predict", None))
        ):
            raise InvalidQueryError(
                "a cross-encoder is a model's name or folder as a text, or an object with "
                f"predict(pairs), not {model!r:.60}."
            )
        self._name = model if isinstance(model, str) else None
        self._model = None if isinstance(model, str) else model
        self._load_arguments = load_arguments

    def rerank(self, query: str, hits: Sequence[StepHit]) -> list[StepHit]:
        """Return the hits by the model's score.

        Raises:
            MissingExtraError: The model is a name and sentence-transformers is not installed.
            RerankerError: The model failed, or did not give one finite number per hit.
        """
        if not hits:
            return []
        wanted = words(query)
        pairs = [
            (query, recalled_text(hit.step, length=_LONGEST_STEP, wanted=wanted)) for hit in hits
        ]
        scores = _probabilities(self._predicted(pairs))
        return best_first(
            [
                rescored(hit, float(score), f"cross-encoder {score:.2f}")
                for hit, score in zip(hits, scores, strict=True)
            ]
        )

    def _predicted(self, pairs: list[tuple[str, str]]) -> npt.NDArray[np.float64]:
        if self._model is None:
            self._model = _load(self._name or DEFAULT_MODEL, self._load_arguments)
        try:
            scores = np.asarray(self._model.predict(pairs), dtype=np.float64).squeeze()
        except Exception as error:
            raise RerankerError(f"the cross-encoder failed: {error}") from error
        scores = np.atleast_1d(scores)
        if scores.shape != (len(pairs),) or not np.isfinite(scores).all():
            raise RerankerError(
                f"the cross-encoder gave scores of shape {scores.shape} for {len(pairs)} pairs; "
                "one finite number per pair is wanted: use a model with a single output label."
            )
        return scores

    def __deepcopy__(self, memo: dict[int, Any]) -> CrossEncoder:
        # A model is hundreds of megabytes and holds no state of ours.
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._name is not None:
            state["_model"] = None
        return state


def _load(name: str, arguments: dict[str, Any]) -> PairModel:
    try:
        import sentence_transformers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("CrossEncoder", "sentence-transformers") from error
    try:
        return cast("PairModel", sentence_transformers.CrossEncoder(name, **arguments))  # pyright: ignore[reportUnknownMemberType]
    except Exception as error:
        raise RerankerError(f"the cross-encoder {name!r} cannot be loaded: {error}") from error


def _probabilities(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if scores.min() >= 0 and scores.max() <= 1:
        return scores
    return 0.5 * (1 + np.tanh(scores / 2))  # the logistic function, which so never overflows
