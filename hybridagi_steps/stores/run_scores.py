"""Which scores a store keeps for a run: finite numbers, the same on every back-end.

NaN compares with nothing and JSON has no name for it; one database would keep it, the next turn it
into NULL, and a filter by score would answer differently on each.
"""

from __future__ import annotations

import math

from hybridagi_steps.errors import InvalidStepError


def check_score(run_id: str, value: float) -> None:
    """Check the score that a run is given.

    Raises:
        InvalidStepError: It is NaN or infinite.
    """
    if not math.isfinite(value):
        raise InvalidStepError(f"the score of run {run_id!r} is {value}; give a finite number.")
