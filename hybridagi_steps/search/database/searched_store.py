"""What a store offers that can be searched where its data is, besides being followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from hybridagi_steps.records.store_values import (
    FloatVector,
    Level,
    Rows,
    StemCounts,
    TextRow,
    VectorRow,
)


class SearchView(Protocol):
    """What one search reads, all of one consistent state. Rows pass no filter but `among`."""

    def counts(self, stems: Sequence[str]) -> StemCounts:
        """Return how many documents there are, and how many hold each stem."""
        ...

    def holding(self, levels: Sequence[Level], limit: int, among: Rows | None) -> tuple[Rows, str]:
        """Return rows that hold all stems of a group, and their words.

        Args:
            levels: Rows of the first level come first, and so on until there are `limit`.
            limit: Rows returned at most.
            among: Only these rows.

        Returns:
            The rows, and the words of each, as `TextRow.tokens` has them, between U+0001.
        """
        ...

    def texts(self, rows: Rows) -> list[TextRow]:
        """Return the words of rows; those that are gone are left out, here and below."""
        ...

    def under(self, rows: Rows) -> list[TextRow]:
        """Return the words of all children of some rows."""
        ...

    def saying(self, text_hash: int) -> tuple[Rows, Rows]:
        """Return all rows that say a text, and all others whose purpose says it."""
        ...

    def around(
        self, rows: Rows, answers: Rows, *, links: bool, vectors: bool
    ) -> tuple[list[TextRow], list[VectorRow]]:
        """Return the words and vectors of rows and of what stands around them.

        Args:
            rows: They themselves, and rows that answer them.
            answers: Purpose hashes of further ones.
            links: Whether parents and children of all of these come, too.
            vectors: Whether vectors are asked for.
        """
        ...

    def talks(self, sessions: Iterable[int], limit: int) -> list[TextRow]:
        """Return up to `limit` turns of some talks, by the hashes of these."""
        ...

    def newest_vectors(self, after: int) -> tuple[int, dict[int, VectorRow]]:
        """Return what `nearest` does not know of yet; ask `counts` first.

        Args:
            after: Up to which number embeddings are held already.

        Returns:
            The number up to which `nearest` knows them, and by their numbers those behind both.
        """
        ...

    def nearest(self, vector: FloatVector, count: int, among: Rows | None) -> Callable[[], Rows]:
        """Begin to look for the rows whose vectors are most similar, trial runs too.

        Exact among few rows (`among`); else approximate, as the database's index is. Ask `counts`
        first.

        Returns:
            What waits for them and returns them, best first; one at a time may be under way.
        """
        ...


@runtime_checkable
class SearchedStore(Protocol):
    """A store that can be searched without an index in the process."""

    def indexed_rows(self) -> int:
        """Return about how many rows there are to search among."""
        ...

    def prepare_search(self, dimension: int) -> str | None:
        """Make what such searches need, once; return why that cannot be, None when it can."""
        ...

    def has_few(self, user_id: str, most: int, *, messages: bool) -> bool:
        """Tell whether a user has no more steps than `most`, which an index lists.

        Args:
            user_id: Whose.
            most: Steps.
            messages: Whether messages count: no index says whose they are.
        """
        ...

    def make_graph(self, dimension: int) -> bool:
        """Make what large memories need besides, which takes long; tell whether it was made."""
        ...

    def keep_search_up(self) -> None:
        """Bring along what came since, if that is much; waits as long as writers may."""
        ...

    def search_view(self, dimension: int) -> AbstractContextManager[SearchView]:
        """Give what one search reads."""
        ...
