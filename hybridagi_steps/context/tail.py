"""Which of the newest units are shown as they are: where the tail of a session begins.

The tail holds the last `recent` units. Moved by one with every message it would change the
beginning of each prompt, and no provider's prompt cache could help; so its beginning stands still
for `recent` units and then jumps: as long as there is room, up to twice as many are shown. The rule
knows nothing but the number of units and their tokens, so equal sessions give equal tails.
"""

from __future__ import annotations

from collections.abc import Sequence

_JUMPS_PER_BUDGET = 4


def tail_start(tokens: Sequence[int], room: int, recent: int | None) -> int:
    """Return the position of the first unit of the tail; the newest is always in it.

    Args:
        tokens: Tokens of each unit, in order; at least one.
        room: Tokens there are for the tail without its newest unit.
        recent: Units wanted; None wants as many as fit.
    """
    newest = len(tokens) - 1
    if recent is None:
        return _filling(tokens, room)
    wanted = max(0, len(tokens) - recent)
    steady = wanted - wanted % recent
    for start in (steady, wanted):
        if sum(tokens[start:newest]) <= room:
            return start
    return longest_start(tokens, room)


def longest_start(tokens: Sequence[int], room: int) -> int:
    """Return where the longest tail that fits begins; the newest unit is not counted."""
    start = len(tokens) - 1
    while start > 0 and tokens[start - 1] <= room:
        start -= 1
        room -= tokens[start]
    return start


def _filling(tokens: Sequence[int], room: int) -> int:
    """Return where a tail begins that fills the room, moving in jumps of a quarter of it."""
    newest = len(tokens) - 1
    excess = sum(tokens[:newest]) - room
    if excess <= 0:
        return 0
    jump = max(1, room // _JUMPS_PER_BUDGET)
    to_drop = -(-excess // jump) * jump
    start = 0
    while start < newest and to_drop > 0:
        to_drop -= tokens[start]
        start += 1
    return start
