"""What a search in the database reads: candidates by words and by meaning, and what is around them.

Each method is one statement in the transaction of one search, so all see the same state. Only the
nearest rows are looked for beside it, on a second connection, while the words are read: they name
candidates, which are then read in that transaction; vectors that it sees waiting are found by it.
Which rows a filter lets through, and what they score, is decided by who asks. The number of the
namespace stands in the statements themselves: the planner must know it to use the indexes of that
namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.records.step_identity import answer_to
from hybridagi_steps.records.store_values import (
    FloatVector,
    Level,
    Rows,
    ShortVector,
    StemCounts,
    TextRow,
    VectorRow,
)
from hybridagi_steps.stores.checked_tables import DamagedRow, sound_texts, sound_vectors
from hybridagi_steps.stores.postgres.database import Raw
from hybridagi_steps.stores.postgres.spelling import SpellingConnection

_SEARCH_WIDTH = 400
"""Nodes of the graph that are kept in view (`hnsw.ef_search`): seven times the usual pool."""
# Of rows that are named there is always an index; what the planner believes of a namespace may be
# as old as its statistics.
SETTINGS = f"""SELECT set_config('hnsw.ef_search', '{_SEARCH_WIDTH}', true),
    set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true)"""
_TEXT = "t.checksum, t.row, t.parent_row, t.tokens, t.text_hash, t.purpose_hash, t.scoped"
_VECTOR = "e.row, e.text_hash, e.given, e.vector, e.checksum, e.scoped"
_TEXTS = f"SELECT {_TEXT} FROM step_text t WHERE t.namespace = {{n}} AND "  # noqa: S608 - ours
_NEWEST = (
    f"SELECT seq, {_VECTOR} FROM embedding e WHERE namespace = {{n}} AND seq > %s ORDER BY seq"  # noqa: S608 - ours
)
_COUNTS = """SELECT s.texts_through, s.vectors_through, s.documents, s.words, s.own_words,
        (SELECT max(seq) FROM step_text WHERE namespace = {n}) > s.texts_through,
        (SELECT max(seq) FROM embedding WHERE namespace = {n}) > s.vectors_through,
        c.stems, c.documents
    FROM search_state s, (SELECT array_agg(stem) AS stems, array_agg(documents) AS documents
        FROM stem_count WHERE namespace = {n} AND stem = ANY(%s)) c WHERE s.namespace = {n}"""
_UNCOUNTED = """SELECT tokens FROM step_text
    WHERE namespace = {n} AND seq > %s AND NOT scoped AND text_hash <> 0 ORDER BY seq"""
# All in two texts: the driver takes longer for so many rows than the server to find them.
_WORDED = "SELECT string_agg(CAST(row AS TEXT), ' '), string_agg(tokens, chr(1)) FROM ({}) found"
_WORDS = "SELECT row, tokens FROM step_text WHERE namespace = {n} AND text_hash <> 0 AND "
_HOLDS = "stems(tokens) @> CAST(%s AS TEXT[])"
# A LIMIT of none does not begin with what it limits.
_LEVEL = """SELECT row, tokens FROM ({level}) l WHERE row NOT IN (SELECT row FROM ({before}) b)
    LIMIT (SELECT %s - count(*) FROM ({before}) b)"""
# By the letters, without taking words apart: who ranks the rows looks closer.
_HAS = "strpos(tokens, %s) > 0"
_NEWEST_WORDS = """SELECT row, tokens FROM (SELECT row, tokens FROM step_text
    WHERE namespace = {n} AND text_hash <> 0 ORDER BY seq DESC LIMIT %s) newest"""
_ROWS = "row = ANY(CAST(%s AS BIGINT[]))"
_SAYING = """SELECT row, text_hash = %s FROM step_text
    WHERE namespace = {n} AND (text_hash = %s OR purpose_hash = %s)"""
# What answers rows, what stands above and below both, and all of them with their vectors.
_ALONE = "SELECT row FROM met"
_LINKED = f"""{_ALONE} UNION SELECT parent_row FROM met WHERE parent_row IS NOT NULL
    UNION SELECT c.row FROM met JOIN step_text c
        ON c.namespace = {{n}} AND c.parent_row = met.row"""  # noqa: S608 - ours
_AROUND = f"""WITH asked AS MATERIALIZED (SELECT row, parent_row, text_hash FROM step_text
        WHERE namespace = {{n}} AND {_ROWS}),
    met AS MATERIALIZED (SELECT row, parent_row FROM asked UNION
        SELECT a.row, a.parent_row FROM step_text a JOIN (
            SELECT text_hash # CAST(%s AS BIGINT) AS hash FROM asked
            UNION SELECT unnest(CAST(%s AS BIGINT[]))) q
        ON a.namespace = {{n}} AND a.purpose_hash = q.hash),
    linked AS MATERIALIZED ({{links}})
    SELECT {_TEXT}, {{vector}}
    FROM linked JOIN step_text t ON t.namespace = {{n}} AND t.row = linked.row {{vectors}}"""  # noqa: S608 - ours
_NEAREST = """SELECT row FROM near WHERE namespace = {n} AND {schema}.vector_dims(vector) = {d}
    ORDER BY CAST(vector AS {schema}.halfvec({d})) OPERATOR({schema}.<=>)
        CAST(%s AS {schema}.halfvec({d})) LIMIT %s"""
# A graph would find few of a few rows; so all of them are compared.
_NEAREST_AMONG = f"""WITH few AS MATERIALIZED (SELECT row, vector FROM near
        WHERE {_ROWS} AND namespace = {{n}} AND {{schema}}.vector_dims(vector) = {{d}})
    SELECT row FROM few ORDER BY vector OPERATOR({{schema}}.<=>)
        CAST(%s AS {{schema}}.halfvec) LIMIT %s"""  # noqa: S608 - ours


class DatabaseView:
    """Implements `SearchView`; see search/database for the contract."""

    def __init__(
        self,
        connection: SpellingConnection,
        beside: Callable[[], Raw | None],
        namespace: int,
        dimension: int,
        schema: str,
        note: Callable[[DamagedRow], object],
    ) -> None:
        """Read from a connection; `beside` gives a second one, called once, for what is begun.

        `note` is told of words and embeddings that are not what was written.
        """
        self._note = note
        self._raw, self._give_beside = connection.raw, beside
        self._named = {"n": namespace, "d": dimension, "schema": schema}
        self._vectors = 0, True

    def counts(self, stems: Sequence[str]) -> StemCounts:
        """Return how many documents there are and hold each stem, those not counted yet, too."""
        found = self._ask(_COUNTS, list(stems))
        state = found[0] if found else (0, 0, 0, 0, 0, True, True, None, None)
        through, vectors, documents, words, own_words, more, newer, known, counts = state
        self._vectors = vectors, bool(newer)
        held = dict.fromkeys(stems, 0) | dict(zip(known or (), counts or (), strict=True))
        for (tokens,) in self._ask(_UNCOUNTED, through) if more else ():
            window, further, *_ = (*tokens.split("\n", 2), "")
            documents += 1
            words += len(window.split())
            own_words += len(window.rpartition("\t")[2].split())
            for stem in {*window.split(), *further.split()} & held.keys():
                held[stem] += 1
        return StemCounts(documents, words, own_words, held)

    def holding(self, levels: Sequence[Level], limit: int, among: Rows | None) -> tuple[Rows, str]:
        """Return rows that hold all stems of a group, of the first levels first, and words."""
        parts: list[str] = []
        values: list[object] = []
        names = [f"l{number}" for number in range(len(levels))]
        for name, level in zip(names, levels, strict=True):
            sql, asked = _of_level(level, among)
            before = _all_of(names[: len(parts)])
            part = _LEVEL.format(level=sql, before=before) if parts else f"{sql} LIMIT %s"
            parts.append(f"{name} AS MATERIALIZED ({part})")
            values += [*asked, limit]
        sql = f"WITH {', '.join(parts)} {_WORDED.format(_all_of(names))}"
        rows, words = self._ask(sql, *values, planned=among is None)[0]
        return np.array((rows or "").split(), np.int64), words or ""

    def texts(self, rows: Rows) -> list[TextRow]:
        """Return the words of rows."""
        return self._texts(_ROWS, _list(rows)) if len(rows) else []

    def under(self, rows: Rows) -> list[TextRow]:
        """Return the words of what stands under some rows."""
        return self._texts("parent_row = ANY(CAST(%s AS BIGINT[]))", _list(rows))

    def saying(self, text_hash: int) -> tuple[Rows, Rows]:
        """Return all rows that say a text, and all others whose purpose says it."""
        found = np.array(self._ask(_SAYING, *[int(text_hash)] * 3), np.int64).reshape(-1, 2)
        says = found[:, 1] == 1
        return found[says, 0], found[~says, 0]

    def around(
        self, rows: Rows, answers: Rows, *, links: bool, vectors: bool
    ) -> tuple[list[TextRow], list[VectorRow]]:
        """Return rows, what answers them, and with `links` what stands next to any of these."""
        sql = _AROUND.replace("{links}", _LINKED if links else _ALONE)
        sql = sql.replace("{vector}", _VECTOR if vectors else "NULL")
        join = "LEFT JOIN embedding e ON e.namespace = {n} AND e.row = linked.row"
        sql = sql.replace("{vectors}", join if vectors else "")
        found = self._ask(sql, _list(rows), answer_to(0), _list(answers))
        saved = sound_vectors((row[7:] for row in found if row[7] is not None), self._note)
        return sound_texts((row[:7] for row in found), self._note), [*saved]

    def talks(self, sessions: Iterable[int], limit: int) -> list[TextRow]:
        """Return turns of some talks."""
        asked = "talk(tokens) IS NOT NULL AND talk(tokens) = ANY(%s) LIMIT %s"
        return self._texts(asked, [str(each) for each in sessions], limit)

    def newest_vectors(self, after: int) -> tuple[int, dict[int, VectorRow]]:
        """Return up to where `nearest` knows vectors, as `counts` saw it, and newer ones."""
        through, newer = self._vectors
        found = self._ask(_NEWEST, max(through, after)) if newer else []
        vectors = sound_vectors((row for _, *row in found), self._note)
        return through, dict(zip((row[0] for row in found), vectors, strict=True))

    def nearest(self, vector: FloatVector, count: int, among: Rows | None) -> Callable[[], Rows]:
        """Begin to look for the rows whose vectors point most alike; return what waits for them."""
        asked: list[object] = [f"[{','.join(map(str, of_length_one(vector).tolist()))}]", count]
        if among is not None:
            asked.insert(0, _list(among))
        sql = _NEAREST if among is None else _NEAREST_AMONG
        found = self._begin(self._beside or self._raw, sql, *asked, planned=among is None)
        return lambda: np.array([row for (row,) in found.fetchall()], np.int64)

    @cached_property
    def _beside(self) -> Raw | None:
        return self._give_beside()

    def _texts(self, condition: str, *values: object) -> list[TextRow]:
        return sound_texts(self._ask(_TEXTS + condition, *values), self._note)

    def _ask(self, sql: str, *values: object, planned: bool = True) -> list[tuple[Any, ...]]:
        return self._begin(self._raw, sql, *values, planned=planned).fetchall()

    def _begin(
        self, raw: Raw, sql: str, *values: object, planned: bool = True
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        statement = sql.format(**self._named).encode()
        prepare = None if planned else False  # a plan for any rows would be one for few
        return raw.execute(statement, values or None, binary=True, prepare=prepare)


def _all_of(names: Sequence[str]) -> str:
    """Return SQL for all rows of some levels."""
    return " UNION ALL ".join(f"TABLE {name}" for name in names)


def _of_level(level: Level, among: Rows | None) -> tuple[str, list[object]]:
    """Return SQL for the rows of a level and their words, with its values."""
    groups, one_by_one, newest = level
    values: list[object] = []
    if newest is not None:
        asked = " OR ".join(" AND ".join([_HAS] * len(group)) for group in groups)
        values += [newest, *(stem for group in groups for stem in group)]
        return f"{_NEWEST_WORDS} WHERE {asked}", values
    values += map(list, groups)
    if one_by_one:
        return " UNION ALL ".join([f"({_WORDS}{_HOLDS})"] * len(groups)), values
    asked = " OR ".join([_HOLDS] * len(groups))
    if among is None:
        return f"({_WORDS}({asked}))", values
    return f"({_WORDS}({asked}) AND {_ROWS})", [*values, _list(among)]


def of_length_one(vector: FloatVector | ShortVector) -> npt.NDArray[np.float64]:
    """Return a vector of length one that points the same way: half floats end at 65,504."""
    exact = vector.astype(np.float64)
    return exact / np.sqrt(exact.dot(exact))


def _list(rows: Rows) -> str:
    """Return numbers as an array is written: the driver takes ten times as long for a list."""
    return f"{{{','.join(map(str, rows.tolist()))}}}"
