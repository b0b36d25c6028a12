"""What a search in the database reads: candidates by words and by meaning, and what is around them.

Each method is one statement in the transaction of one search, so all see the same state. Which rows
a filter lets through, and what they score, is decided by who asks. The number of the namespace
stands in the statements themselves: the planner must know it to use the indexes of that namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.store_values import (
    FloatVector,
    Rows,
    StemCounts,
    TextRow,
    VectorRow,
)
from hybridagi_steps.stores.postgres.spelling import SpellingConnection
from hybridagi_steps.stores.sql.derived import stored_text, stored_vector

_SEARCH_WIDTH = 200
"""Nodes of the graph that are kept in view (`hnsw.ef_search`): four times the usual pool."""
_SETTINGS = """SELECT set_config('hnsw.ef_search', '{width}', true),
    set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('jit', 'off', true)"""
_TEXTS = """SELECT checksum, row, parent_row, tokens, text_hash, purpose_hash, scoped
    FROM step_text WHERE namespace = {n} AND """
_VECTORS = """SELECT row, text_hash, given, vector, checksum, scoped FROM embedding
    WHERE namespace = {n} AND """
_STATE = """SELECT texts_through, vectors_through, documents, words, own_words,
        (SELECT max(seq) FROM step_text WHERE namespace = {n}) > texts_through,
        (SELECT max(seq) FROM embedding WHERE namespace = {n}) > vectors_through
    FROM search_state WHERE namespace = {n}"""
_COUNTS = """SELECT stem, documents FROM stem_count WHERE namespace = {n} AND stem = ANY(%s)"""
_UNCOUNTED = """SELECT tokens FROM step_text
    WHERE namespace = {n} AND seq > %s AND NOT scoped AND text_hash <> 0 ORDER BY seq"""
# All in two texts: the driver takes longer for so many rows than the server to find them.
_WORDED = """SELECT string_agg(CAST(row AS TEXT), ' '), string_agg(tokens, chr(1)) FROM (
    SELECT row, tokens FROM step_text WHERE namespace = {n} AND text_hash <> 0 AND """
_HOLDING = _WORDED + "stems(tokens) && CAST(%s AS TEXT[]) LIMIT %s) found"
_HOLDING_ALL = _WORDED + "stems(tokens) @> CAST(%s AS TEXT[]) LIMIT %s) found"
_WORDS = _WORDED + "row = ANY(%s)) found"
_SAYING = """SELECT row, text_hash = %s FROM step_text
    WHERE namespace = {n} AND (text_hash = %s OR purpose_hash = %s)"""
_NEAREST = """SELECT row FROM near WHERE namespace = {n} AND {schema}.vector_dims(vector) = {d}
    ORDER BY CAST(vector AS {schema}.halfvec({d})) OPERATOR({schema}.<=>)
        CAST(%s AS {schema}.halfvec({d})) LIMIT %s"""
# A graph would find few of a few rows; so all of them are compared.
_NEAREST_AMONG = """WITH few AS MATERIALIZED (SELECT row, vector FROM near
        WHERE row = ANY(%s) AND namespace = {n} AND {schema}.vector_dims(vector) = {d})
    SELECT row FROM few ORDER BY vector OPERATOR({schema}.<=>)
        CAST(%s AS {schema}.halfvec) LIMIT %s"""


class DatabaseView:
    """Implements `SearchView`; see search/database for the contract."""

    def __init__(
        self, connection: SpellingConnection, namespace: int, dimension: int, schema: str
    ) -> None:
        self._raw = connection.raw
        self._named = {"n": namespace, "d": dimension, "schema": schema}
        self._raw.execute(_SETTINGS.format(width=_SEARCH_WIDTH).encode())
        state = self._ask(_STATE)
        self._state: tuple[int, ...] = state[0] if state else (0, 0, 0, 0, 0, 1, 1)

    def counts(self, stems: Sequence[str]) -> StemCounts:
        """Return how many documents there are and hold each stem, those not counted yet, too."""
        through, _, documents, words, own_words, more, _ = self._state
        held = dict.fromkeys(stems, 0) | dict(self._ask(_COUNTS, list(stems)))
        for (tokens,) in self._ask(_UNCOUNTED, through) if more else ():
            window, further, *_ = (*tokens.split("\n", 2), "")
            documents += 1
            words += len(window.split())
            own_words += len(window.rpartition("\t")[2].split())
            for stem in {*window.split(), *further.split()} & held.keys():
                held[stem] += 1
        return StemCounts(documents, words, own_words, held)

    def holding(self, stems: Sequence[str], limit: int, *, all_of: bool) -> tuple[Rows, list[str]]:
        """Return up to `limit` rows that hold one of some stems, or all, and beside them words."""
        return self._worded(_HOLDING_ALL if all_of else _HOLDING, list(stems), limit)

    def words(self, rows: Rows) -> tuple[Rows, list[str]]:
        """Return those of some rows that may be found, and beside them their words."""
        return self._worded(_WORDS, _list(rows))

    def texts(self, rows: Rows) -> list[TextRow]:
        """Return the words of rows."""
        return self._texts("row = ANY(%s)", _list(rows)) if len(rows) else []

    def under(self, rows: Rows) -> list[TextRow]:
        """Return the words of what stands under some rows."""
        return self._texts("parent_row = ANY(%s)", _list(rows)) if len(rows) else []

    def saying(self, text_hash: int) -> tuple[Rows, Rows]:
        """Return all rows that say a text, and all others whose purpose says it."""
        found = np.array(self._ask(_SAYING, *[int(text_hash)] * 3), np.int64).reshape(-1, 2)
        says = found[:, 1] == 1
        return found[says, 0], found[~says, 0]

    def answering(self, hashes: Rows) -> list[TextRow]:
        """Return rows with one of some purposes."""
        return self._texts("purpose_hash = ANY(%s)", _list(hashes)) if len(hashes) else []

    def talks(self, sessions: Iterable[int], limit: int) -> list[TextRow]:
        """Return turns of some talks."""
        asked = "talk(tokens) IS NOT NULL AND talk(tokens) = ANY(%s) LIMIT %s"
        return self._texts(asked, [str(each) for each in sessions], limit)

    def vectors(self, rows: Rows) -> list[VectorRow]:
        """Return the embeddings of rows."""
        return self._vectors("row = ANY(%s)", _list(rows)) if len(rows) else []

    def newest_vectors(self) -> list[VectorRow]:
        """Return the embeddings that `nearest` does not know of yet."""
        return self._vectors("seq > %s ORDER BY seq", self._state[1]) if self._state[-1] else []

    def nearest(self, vector: FloatVector, count: int, among: Rows | None) -> Rows:
        """Return the rows whose vectors point most alike, the nearest first, roughly."""
        asked = f"[{','.join(map(str, of_length_one(vector).tolist()))}]"
        if among is None:
            found = self._ask(_NEAREST, asked, count)
        else:
            found = self._ask(_NEAREST_AMONG, _list(among), asked, count)
        return np.array([row for (row,) in found], np.int64)

    def _worded(self, sql: str, *values: object) -> tuple[Rows, list[str]]:
        rows, words = self._ask(sql, *values)[0]
        if rows is None:
            return np.empty(0, np.int64), []
        return np.array(rows.split(), np.int64), words.split("\x01")

    def _texts(self, condition: str, *values: object) -> list[TextRow]:
        return [stored_text(*row) for row in self._ask(_TEXTS + condition, *values)]

    def _vectors(self, condition: str, *values: object) -> list[VectorRow]:
        return [stored_vector(*row) for row in self._ask(_VECTORS + condition, *values)]

    def _ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        statement = sql.format(**self._named).encode()
        return self._raw.execute(statement, values or None, binary=True).fetchall()


def of_length_one(vector: FloatVector) -> npt.NDArray[np.float64]:
    """Return a vector of length one that points the same way: half floats end at 65,504."""
    exact = vector.astype(np.float64)
    return exact / np.sqrt(exact.dot(exact))


def _list(rows: Rows) -> list[int]:
    return rows.tolist()
