"""A StepFilter as SQL over `step_view`. Every value and every metadata key is a bound parameter.

Tests compare what it finds with a filter in plain Python, `tests/conformance/filter_oracle.py`. How
metadata is looked into is the back-end's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from hybridagi_steps.protocols import StepKey
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import ABANDONED, REVOKED, UNREVOKED
from hybridagi_steps.stores.sql.tables import is_storable, many

Condition = tuple[str, list[Any]]
"""SQL with its parameters."""
PlainValue = str | int | float | bool | None
"""A value that a filter compares with."""
OfMetadata = Callable[[Mapping[str, PlainValue]], Iterable[Condition]]
"""Makes the conditions that metadata keys have values, in few parameters however many they are."""

_CALLS_OF_PROGRAM = """k.program_id IN (
    SELECT s.id FROM step_view c JOIN agent_step s ON s.row = c.row
    WHERE c.namespace = ? AND c.program = ? AND c.step_type = 'ProgramCall')"""
SOME_HIDDEN = """SELECT
    EXISTS (SELECT 1 FROM branch WHERE namespace = ? AND reach < 9223372036854775807),
    EXISTS (SELECT 1 FROM revoked WHERE namespace = ?)"""
"""Tells whether some branch is not read to its end, and whether some step is revoked."""
HIDDEN_ROWS = """SELECT s.row FROM branch b JOIN agent_step s
    ON s.namespace = b.namespace AND s.branch_id = b.id AND s.sequence > b.reach
    WHERE b.namespace = ? AND b.reach < 9223372036854775807"""
"""The steps on branches that no session reads that far."""
REVOKED_ROWS = """SELECT s.row FROM revoked m
    JOIN agent_step s ON s.namespace = m.namespace AND s.id = m.step_id WHERE m.namespace = ?
    UNION ALL SELECT s.row FROM agent_step s
    WHERE s.namespace = ? AND s.id IN (SELECT value FROM json_each(?))"""
"""The steps that are revoked, and those of some ids."""
_OF_SESSION = """k.row IN (SELECT value FROM json_each(?) UNION ALL
    SELECT u.row FROM step_view u
    WHERE u.namespace = ? AND u.session_id = ? AND u.branch_id IS NULL)"""
_SCORE = """coalesce(k.score, (
    SELECT score FROM run r WHERE r.namespace = k.namespace AND r.run_id = k.run_id))"""
KEY_COLUMNS: dict[StepKey, str] = {
    "user_id": "k.user_id",
    "program_id": "k.program_id",
    "program": "k.program",
    "call_id": """CASE WHEN k.step_type = 'ProgramCall'
        THEN (SELECT s.id FROM agent_step s WHERE s.row = k.row) END""",
    "tool": "k.tool",
    "step_type": "k.step_type",
    "scope": "k.scope",
    "status": "k.status",
    "created_at": "k.created_at",
    "source": "k.source",
}
"""Each step key as a column of `k`, a row of `step_view`."""


class Lines(NamedTuple):
    """What branches and revocations say about steps at this moment."""

    hides: bool
    """Whether some steps are abandoned."""
    late: list[str] | None
    """Ids of the steps that are revoked and not marked yet; None when nothing is revoked."""
    pinned: list[int]
    """Rows of the steps in the lineage of the session asked for, if any."""


def condition(
    where: StepFilter, namespace: int, lines: Lines, of_metadata: OfMetadata, source: str
) -> Condition:
    """Return the WHERE clause for rows `k` of `step_view`; `source` says how they tell theirs."""
    parts = [*_conditions(where, namespace, lines), *_from_source(where, source)]
    parts += of_metadata(where.metadata or {})
    sql = " AND ".join(part for part, _ in parts)
    return sql, [value for _, values in parts for value in values]


def _conditions(where: StepFilter, namespace: int, lines: Lines) -> Iterator[Condition]:
    yield "k.namespace = ?", [namespace]
    yield from _in_scope(where.scope, namespace, lines)
    yield from _equal("k.run_id", where.run_id)
    yield from _of_session(where.session_id, namespace, lines.pinned)
    yield from _equal("k.user_id", where.user_id)
    yield from _one_of("k.step_type", where.step_types)
    yield from _one_of("k.status", where.status)
    yield from _one_of("k.tool", where.tools)
    if where.exclude_run_id is not None:
        excluded = [run_id for run_id in where.exclude_run_id if is_storable(run_id)]
        yield (
            "(k.run_id IS NULL OR NOT k.run_id IN (SELECT value FROM json_each(?)))",
            [many(excluded)],
        )
    if where.min_score is not None:
        yield f"{_SCORE} >= ?", [where.min_score]
    if where.since is not None:
        yield "k.created_at >= ?", [_time_text(where.since)]
    if where.until is not None:
        yield "k.created_at < ?", [_time_text(where.until)]
    if where.program_id is not None:
        yield from _one_of("k.program_id", [where.program_id, id_text(where.program_id)])
    if where.program is not None:
        if is_storable(where.program):
            values = [where.program, namespace, where.program]
            yield f"(k.program = ? OR {_CALLS_OF_PROGRAM})", values
        else:
            yield "FALSE", []


def _in_scope(scope: str | None, namespace: int, lines: Lines) -> Iterator[Condition]:
    """A user's own history, one scope, or all; what is abandoned or revoked is a scope of its own.

    Revoked steps stand in no other scope; `*` alone, which is for keeping a memory, has them.
    """
    hidden = f"k.row IN ({HIDDEN_ROWS})"
    revoked = f"k.row IN ({REVOKED_ROWS})", [namespace, namespace, many(lines.late or ())]
    if scope is None:
        yield "k.scope IS NULL", []
        if lines.hides:
            yield f"NOT {hidden}", [namespace]
    elif scope == ABANDONED:
        yield f"(k.scope = ? OR {hidden})", [scope, namespace]
    elif scope == REVOKED and lines.late is not None:
        yield f"(k.scope = ? OR {revoked[0]})", [scope, *revoked[1]]
    elif scope not in (EVERY_SCOPE, UNREVOKED):
        yield from _equal("k.scope", scope)
    if lines.late is not None and scope not in (EVERY_SCOPE, REVOKED):
        yield f"NOT {revoked[0]}", revoked[1]


def _from_source(where: StepFilter, source: str) -> Iterator[Condition]:
    yield from _one_of(source, where.sources)
    if where.trust in ("own", "team"):
        yield f"{source} IS NULL", []
    if where.trust == "own" and where.user_id is None:
        yield "k.user_id IS NULL", []


def _of_session(session_id: str | None, namespace: int, pinned: list[int]) -> Iterator[Condition]:
    """The steps of a session's lineage, and those recorded under its name without messages."""
    if session_id is None:
        return
    if not is_storable(session_id):
        yield "FALSE", []
        return
    yield _OF_SESSION, [many(pinned), namespace, session_id]


def _equal(column: str, value: str | None) -> Iterator[Condition]:
    if value is None:
        return
    yield (f"{column} = ?", [value]) if is_storable(value) else ("FALSE", [])


def _one_of(column: str, values: Sequence[str] | None) -> Iterator[Condition]:
    if values is None:
        return
    storable = [value for value in values if is_storable(value)]
    yield f"{column} IN (SELECT value FROM json_each(?))", [many(storable)]  # noqa: S608 - column is ours


def _time_text(moment: datetime) -> str:
    """Return a time as bodies write it, so that text order is time order."""
    return moment.isoformat()
