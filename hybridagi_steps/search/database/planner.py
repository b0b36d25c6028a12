"""Where a memory is searched: in the process as long as the index fits a budget, else where it is.

A step takes some bytes for its words and links, measured on the shipped runs and on made-up ones
(the decision record has the command), and its vector as many as the index in the process holds it
in.

And which of a query's words rows are to hold together to be candidates. The rarest words name rows
alone, as long as these are few enough to be read. Of the others those that hold several are sought:
all of a few words first, then all but one, and so on until there are enough.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from pydantic import ByteSize, TypeAdapter, ValidationError

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.store_values import Level, StemCounts
from hybridagi_steps.search.bm25 import inverse_frequency
from hybridagi_steps.stores.address import is_server

BYTES_PER_ROW = 800
"""Words, links and the keys of a few filters."""
BYTES_PER_DIMENSION = 5
"""A float, and the code that scans are made with."""
TOGETHER = 5
"""The rarest of the common words, of which rows are sought that hold several."""
TELLING = 0.8
"""Share of all rows; words that more hold tell none from another as long as there are others."""
MARGIN = 10
"""Times the rows wanted that are to be expected of words which know nothing of each other."""
LOOKS = 100
"""Entries of the words' index that are read while one row is looked through."""

log = logging.getLogger("hybridagi_steps")
_SIZE = TypeAdapter(ByteSize)


def budget_bytes(memory_budget: str | int | None, address: str) -> int | None:
    """Return a budget such as "256MB" or "1 GiB" in bytes; None where there is none."""
    if memory_budget is None:
        return None
    given: Any = memory_budget
    try:
        size = None if isinstance(given, bool) else int(_SIZE.validate_python(given))
    except ValidationError:
        size = None
    if size is None or size < 1:
        raise InvalidSettingError(
            f"memory_budget is a size such as '256MB' or '1GiB', or None; got {memory_budget!r}."
        )
    if not is_server(address):
        raise InvalidSettingError(
            f"memory_budget is for memories in PostgreSQL, which can search where the data is; "
            f"the index of {address!r} is always in this process. Leave it out."
        )
    return size


def fits(rows: int, dimension: int, budget: int) -> bool:
    """Tell whether the index of so many rows fits a budget of so many bytes."""
    return rows * (BYTES_PER_ROW + BYTES_PER_DIMENSION * dimension) <= budget


def levels(terms: Sequence[str], rare: int, room: int, counts: StemCounts) -> list[Level]:
    """Return which terms rows are to hold together, those first that weigh most.

    Words that most rows hold stand together in so many rows that the newest have enough of them:
    these are looked through first where that is less than to read who holds each. The rarest terms
    come first, of which so many (`rare`) are enough alone; `room` is for how many rows.
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
