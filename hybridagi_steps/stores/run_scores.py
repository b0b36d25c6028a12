"""Which scores a store keeps for a run: finite numbers, the same on every back-end.

NaN compares with nothing and JSON has no name for it; one database would keep it, the next turn it
into NULL, and a filter by score would answer differently on each.
"""

from __future__ import annotations

import math

from hybridagi_steps.errors import InvalidStepError


def check_score(run_id: str, value: float, feedback: str | None) -> None:
    """Check the score that a run is given, and what is said about it.

    Raises:
        InvalidStepError: It is NaN or infinite, or the feedback is no text.
    """
    if feedback is not None and not isinstance(feedback, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidStepError(f"the feedback on run {run_id!r} is {feedback!r}; give a text.")
    if not math.isfinite(value):
        raise InvalidStepError(f"the score of run {run_id!r} is {value}; give a finite number.")
