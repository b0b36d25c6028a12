"""Scoring: which runs there are, and how good they and their steps were.

A run has one score, which its steps inherit, with what was said of it in words; a step may have its
own. A memory is one of these: what it stores in is told by the memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from hybridagi_steps.errors import InvalidQueryError, InvalidStepError
from hybridagi_steps.protocols import StoreBackend
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.trials import TRIAL_END, TrialTable, summaries
from hybridagi_steps.validation import StepId, check_score, one_id


class Scoring(ABC):
    """What a memory knows of runs and scores."""

    redact: Redact | None

    @property
    @abstractmethod
    def _open_store(self) -> StoreBackend:
        """Return the store, unless it is closed."""

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
            it prints as a table.

        Raises:
            InvalidQueryError: `compile_id` is no text.
        """
        if compile_id is not None and not isinstance(compile_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidQueryError(f"a compile_id is a text, not {type(compile_id).__name__}.")
        marked = StepFilter(metadata={TRIAL_END: True}, scope=EVERY_SCOPE)
        ends = self._open_store.iter_steps(marked)
        return summaries(ends, compile_id, self._feedback_on)
