"""Which of a query's words rows are to hold together to be candidates, in which order.

The rarest words name rows alone, as long as these are few enough to be read. Rows with any of the
others are too many: sought are those that hold several, all of a few words first, then all but one,
and so on until there are enough. The database goes on only as far as it must.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from hybridagi_steps.records.store_values import StemCounts
from hybridagi_steps.search.bm25 import inverse_frequency
from hybridagi_steps.search.database.searched_store import Level

TOGETHER = 5
"""The rarest of the common words, of which rows are sought that hold several."""
TELLING = 0.8
"""Share of all rows; words that more hold tell none from another as long as there are others."""
MARGIN = 10
"""Times the rows wanted that are to be expected of words which know nothing of each other."""
LOOKS = 100
"""Entries of the words' index that are read while one row is looked through."""


def levels(terms: Sequence[str], rare: int, room: int, counts: StemCounts) -> list[Level]:
    """Return which terms rows are to hold together, those first that weigh most.

    Words that most rows hold stand together in so many rows that the newest have enough of them:
    these are looked through first where that is less than to read who holds each.

    Args:
        terms: The rarest first.
        rare: So many of them are enough alone.
        room: Rows wanted.
        counts: Of all rows.
    """
    documents = max(counts.documents, 1)
    telling = [term for term in terms[rare:] if counts.holding[term] <= TELLING * documents]
    some = (telling or terms[rare:])[:TOGETHER]
    found = [Level([[term] for term in terms[:rare]])] if rare else []
    if not some:
        return found
    holding = np.array([min(counts.holding[term], documents) for term in some])
    share, expected = holding / documents, 0.0
    if (wanted := room / max(float(share.prod()), 1 / documents)) * LOOKS < holding.sum():
        found.append(Level([some], newest=int(wanted * 1.5)))
    # A row that holds more of them than a group has was found before. Groups all rows of which may
    # be wanted are sought at once.
    weights = inverse_frequency(documents, holding)
    for count in range(len(some), 0, -1):
        if expected > MARGIN * room:
            break
        places = sorted(combinations(range(len(some)), count), key=lambda at: -weights[[*at]].sum())
        rows = documents * np.array([share[[*at]].prod() for at in places])
        groups, few = [[some[n] for n in at] for at in places], int((rows.cumsum() <= room).sum())
        found += [Level(groups[:few])] if few else []
        found += [Level(groups[few:], one_by_one=True)] if groups[few:] else []
        expected += float(rows.sum())
    return found
