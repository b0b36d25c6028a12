"""Which positions of a vector store a search may answer with, and what is kept of the last answer.

A program asks with the same filter again and again, so the vectors of a narrow one that is asked a
second time are laid side by side: a product over them is one pass instead of a walk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridagi_steps.protocols import FloatMatrix, Rows
from hybridagi_steps.search.vector_rows import Mask, Positions, VectorStore


class Scope(NamedTuple):
    """The positions a search may answer with: listed, or marked, or (both None) all of them."""

    positions: Positions | None
    vectors: FloatMatrix | None
    """Those of `positions`, side by side."""
    allowed: Mask | None
    size: int

    def among(self, positions: Positions) -> Positions:
        """Return those of some positions that are marked."""
        return positions if self.allowed is None else positions[self.allowed[positions]]


class Scopes:
    """Turns rows into scopes; remembers the last narrow one.

    Args:
        store: Where the rows stand.
        kept_rows: Most rows whose vectors are kept side by side.
    """

    def __init__(self, store: VectorStore, kept_rows: int) -> None:
        self._store, self._kept_rows = store, kept_rows
        self._last: tuple[Rows, Scope] | None = None

    def forget(self) -> None:
        """Drop what is remembered: rows have come or gone."""
        self._last = None

    def of(self, rows: Rows | None, narrow: int, *, gather: bool) -> Scope:
        """Return the scope of some rows; None: of all.

        Args:
            rows: Row numbers; unknown ones are skipped.
            narrow: Up to so many rows are listed, more are marked.
            gather: Lay vectors side by side at once, not only when rows are asked for again.
        """
        store = self._store
        if rows is None:
            return Scope(None, None, store.alive if store.dead else None, len(store))
        rows = np.asarray(rows, np.int64)
        if len(rows) > narrow:
            allowed = store.holding(rows)
            return Scope(None, None, allowed, int(np.count_nonzero(allowed)))
        if self._last is None or not _same(self._last[0], rows):
            scope = self._listed(rows)
            kept = rows if _is_frozen(rows) else rows.copy()
        else:
            kept, scope = self._last
            gather = True
        if gather and scope.vectors is None:
            scope = self._gathered(scope)
        self._last = kept, scope
        return scope

    def _listed(self, rows: Rows) -> Scope:
        if (rows[1:] <= rows[:-1]).any():  # a row given twice must not be found twice
            rows = np.unique(rows)
        positions = self._store.positions(rows)
        positions = positions[positions >= 0]
        return Scope(positions, None, None, len(positions))

    def _gathered(self, scope: Scope) -> Scope:
        positions = scope.positions
        if positions is None or len(positions) > min(self._kept_rows, self._store.count // 4):
            return scope
        return scope._replace(vectors=self._store.vectors[positions])


def _is_frozen(rows: Rows) -> bool:
    """Tell whether an array cannot be changed: then it need not be copied or compared."""
    return rows.base is None and not rows.flags.writeable


def _same(known: Rows, asked: Rows) -> bool:
    return (known is asked and _is_frozen(asked)) or np.array_equal(known, asked)
