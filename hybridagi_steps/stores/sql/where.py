"""A StepFilter as SQL over `step_view`. Every value and every metadata key is a bound parameter.

Conditions that compare a key of a step come from `records/filter_fields.py`; the others have a
meaning of their own, which stands here. How metadata is looked into, and where in a body a key
lies, is the back-end's to say. Tests compare what it finds with a filter in plain Python,
`tests/conformance/filter_oracle.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filter_fields import (
    KEY_FIELDS,
    Operator,
    Plain,
    StepKey,
    operators_asked,
    values_asked,
)
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import ABANDONED, REVOKED, UNREVOKED
from hybridagi_steps.stores.sql.tables import OF_USER, is_storable, many

Condition = tuple[str, list[Any]]
"""SQL with its parameters."""
OfMetadata = Callable[[Mapping[str, Sequence[Plain]]], Iterable[Condition]]
"""Makes the conditions that metadata keys have one of some values, in few parameters."""

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
_NOTHING: Condition = ("FALSE", [])
_SCORE = """coalesce(k.score, (
    SELECT score FROM run r WHERE r.namespace = k.namespace AND r.run_id = k.run_id))"""

_OWN_HISTORY = "count(v.scope) < count(*)"
_IN_SCOPE = "max(CASE WHEN v.scope = ? THEN 1 ELSE 0 END) = 1"


class Lines(NamedTuple):
    """What branches and revocations say about steps at this moment."""

    hides: bool
    """Whether some steps are abandoned."""
    late: list[str] | None
    """Ids of the steps that are revoked and not marked yet; None when nothing is revoked."""
    pinned: list[int]
    """Rows of the steps in the lineage of the session asked for, if any."""


def key_columns(in_body: str, **own: str) -> dict[StepKey, str]:
    """Return the SQL of each step key for a row `k` of `step_view`.

    `in_body` is SQL of a text in the body of row `k`, `{key}` standing for its key; `own` are keys
    that the back-end has in its own way.
    """
    columns = {key: f"k.{key}" for key in ("program", "scope", "created_at")}
    columns |= {
        field.key: in_body.format(key=field.key) if field.in_body else f"k.{field.key}"
        for field in KEY_FIELDS
        if field.key
    }
    columns["session_id"] = (  # of a pinned step that of its branch, whatever it names itself
        "coalesce((SELECT b.session_id FROM branch b WHERE b.id = k.branch_id), k.session_id)"
    )
    return columns | own


def condition(
    where: StepFilter,
    namespace: int,
    lines: Lines,
    of_metadata: OfMetadata,
    columns: Mapping[StepKey, str],
) -> Condition:
    """Return the WHERE clause for rows `k` of `step_view`, whose keys are these columns."""
    parts = list(_conditions(where, namespace, lines))
    parts += [_one_of(columns[key], values) for key, values in where.equalities()]
    parts += of_metadata(values_asked(where.metadata))
    sql = " AND ".join(part for part, _ in parts)
    return sql, [value for _, values in parts for value in values]


def _conditions(where: StepFilter, namespace: int, lines: Lines) -> Iterator[Condition]:
    """Yield the conditions that are no comparison of a step key."""
    yield "k.namespace = ?", [namespace]
    if not where.finds("step"):
        yield _NOTHING
    yield from _in_scope(where.scope, namespace, lines)
    if where.session_id is not None:
        yield _of_session(where.session_id, namespace, lines.pinned)
    if where.exclude_run_id is not None:
        excluded = [run_id for run_id in where.exclude_run_id if is_storable(run_id)]
        yield (
            "(k.run_id IS NULL OR NOT k.run_id IN (SELECT value FROM json_each(?)))",
            [many(excluded)],
        )
    if where.min_score is not None:
        yield f"{_SCORE} >= ?", [where.min_score]
    # Bodies write times so that the order of texts is that of times.
    if where.since is not None:
        yield "k.created_at >= ?", [where.since.isoformat()]
    if where.until is not None:
        yield "k.created_at < ?", [where.until.isoformat()]
    if where.program is not None:
        values = [where.program, namespace, where.program]
        named = f"(k.program = ? OR {_CALLS_OF_PROGRAM})"
        yield (named, values) if is_storable(where.program) else _NOTHING


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
        yield _one_of("k.scope", [scope])
    if lines.late is not None and scope not in (EVERY_SCOPE, REVOKED):
        yield f"NOT {revoked[0]}", revoked[1]


def _of_session(session_id: str, namespace: int, pinned: list[int]) -> Condition:
    """The steps of a session's lineage, and those recorded under its name without messages."""
    if not is_storable(session_id):
        return _NOTHING
    return _OF_SESSION, [many(pinned), namespace, session_id]


def _one_of(column: str, values: Sequence[str | None]) -> Condition:
    """A column has one of some values; None alone means that it has none."""
    if values == [None]:
        return f"{column} IS NULL", []
    storable = [value for value in values if value is not None and is_storable(value)]
    if len(storable) == 1:
        return f"{column} = ?", storable
    return f"{column} IN (SELECT value FROM json_each(?))", [many(storable)]  # noqa: S608 - column is ours


def whose_runs(where: StepFilter) -> Condition:
    """Return what the steps of a run must be together, by user and scope."""
    conditions, values = ["TRUE"], list[Any]()
    if where.scope is None:
        conditions.append(_OWN_HISTORY)
    elif where.scope != EVERY_SCOPE:
        conditions.append(_IN_SCOPE)
        values.append(where.scope)
    if where.users:
        conditions.append(f"({' OR '.join([OF_USER] * len(where.users))})")
        values += where.users
    return " AND ".join(conditions), values


ScalarKind = Literal["null", "true", "false", "number", "text", "other"]

_CALL_TYPES = ("ProgramCall", "ProgramEnd")
INTEGERS = range(-(2**63), 2**63)
"""What a database column can hold; others are compared as floats everywhere."""


def scalar_kind(value: object) -> tuple[ScalarKind, str | int | float | None]:
    """Return the JSON kind of a value and the value to compare within that kind.

    Integers that a database column cannot hold are compared as floats everywhere.
    """
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return ("true", None) if value else ("false", None)
    if isinstance(value, int):
        return "number", value if value in INTEGERS else _as_float(value)
    if isinstance(value, float):
        return "number", value
    return ("text", value) if isinstance(value, str) else ("other", None)


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "contains": operator.contains,
    "prefix": str.startswith,
}


def meeting(operators: Mapping[Operator, Plain]) -> Callable[[object], bool]:
    """Return what tells, on every back-end, whether a value is as all of some operators want it."""
    tests = [(name, *scalar_kind(bound)) for name, bound in operators.items()]

    def meets(value: object) -> bool:
        kind, own = scalar_kind(value)
        for name, wanted, bound in tests:
            if name == "contains" and isinstance(value, list):
                met = (wanted, bound) in map(scalar_kind, value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            else:
                comparable = kind == wanted and (name != "contains" or kind == "text")
                met = comparable and _COMPARED[name](own, bound)
            if not met:
                return False
        return True

    return meets


def has_metadata(metadata: Mapping[str, Any], where: StepFilter) -> bool:
    """Whether metadata are as a filter wants them."""
    return all(
        key in metadata and scalar_kind(metadata[key]) in map(scalar_kind, values)
        for key, values in values_asked(where.metadata).items()
    ) and all(
        key in metadata and meeting(operators)(metadata[key])
        for key, operators in operators_asked(where.metadata).items()
    )


def program_called(step: AgentStep) -> str | None:
    """Return the program that a ProgramCall or ProgramEnd names."""
    name = (step.inputs or {}).get("program")
    return name if str(step.step_type) in _CALL_TYPES and isinstance(name, str) else None


def tool_used(step: AgentStep) -> str | None:
    """Return the tool that an Action names, if it is a text."""
    name = (step.inputs or {}).get("tool")
    return name if isinstance(name, str) else None


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
