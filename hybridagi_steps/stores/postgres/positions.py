"""Where writers side by side begin: how followers know that no row appears any more below one.

Rows are numbered when they are written and appear when their transaction commits, so one may appear
below others. Before a writer draws its first number it takes a shared advisory lock whose key says
which number comes next. What is below the keys of all who write a namespace is settled: the lock
is held until what was written can be seen. Nobody ever waits for such a lock.

A key has 22 bits of the namespace, one of the kind and 40 of the number: rows stay below
`MESSAGE_ROWS`. Namespaces, or programs, that meet in a key only hold each other's followers back.

Numbers are asked for before locks are looked at, and what they say holds for statements that begin
later. A standby knows no locks; there, what a writer found settled is taken from the watermarks.
"""

from __future__ import annotations

from functools import cache

from hybridagi_steps.stores.postgres.schema import LOCK_CLASS, NAMES_CLASS, SAME_VERSION
from hybridagi_steps.stores.sql.tables import DERIVED

STEPS, MESSAGES = "step_row", "message_row_seq"
"""Where a writer's rows are numbered."""
KINDS = (STEPS, MESSAGES)
_NAMESPACES = 2**22 - 1
_NUMBER_BITS = 40
_CLASS_BITS = _NUMBER_BITS - 32
"""`pg_locks` shows the upper half of a key as its class."""

SETTLED = f"""SELECT
    CASE WHEN pg_is_in_recovery() THEN (SELECT texts_through FROM namespace WHERE id = :namespace)
        ELSE least((SELECT coalesce(max(row), 0) FROM agent_step),
            min(first) FILTER (WHERE kind = 0) - 1) END AS row,
    CASE WHEN pg_is_in_recovery()
        THEN (SELECT message_texts_through FROM namespace WHERE id = :namespace)
        ELSE least((SELECT coalesce(max(row), 0) FROM message),
            min(first) FILTER (WHERE kind = 1) - 1) END AS message
    FROM (SELECT upper >> {_CLASS_BITS} & 1 AS kind,
            (upper & {2**_CLASS_BITS - 1}) << 32 | lower AS first
        FROM (SELECT CAST(classid AS BIGINT) AS upper, CAST(objid AS BIGINT) AS lower
            FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1
            AND database = (SELECT oid FROM pg_catalog.pg_database
                WHERE datname = current_database())) held
        WHERE upper >> {_CLASS_BITS + 1} = CAST(:namespace AS BIGINT) & {_NAMESPACES}) begun"""  # noqa: S608 - no value in it
"""Up to which row of a step, and of a message, of a `:namespace` no row appears any more."""


def locks_of_a_writer(
    namespace: int, beside: str | None, name: object, draws: tuple[str, ...] = KINDS
) -> str:
    """Return the query that takes a writer's locks, last those that hold followers back.

    It returns no row, and takes none, where another process has migrated the schema. What reads
    `meta` holds a migration back until its transaction ends; see `schema.migrate`.

    Args:
        namespace: What it writes.
        beside: What it alone may change while others write beside it; see `Database`.
        name: SQL of the number that stands for that; it may wait for its turn.
        draws: Where it draws rows from: what it does not draw holds nobody back.
    """
    if beside is None:
        return f"SELECT pg_advisory_xact_lock({LOCK_CLASS}, {namespace}) {SAME_VERSION}"
    locks = [f"pg_advisory_xact_lock_shared({LOCK_CLASS}, {namespace})"]
    if beside:
        locks.append(f"pg_advisory_xact_lock({NAMES_CLASS}, {name})")
    if beside == DERIVED:
        return f"SELECT {', '.join(locks)} {SAME_VERSION}"
    base = (namespace & _NAMESPACES) << _NUMBER_BITS + 1
    locks += (
        f"pg_advisory_xact_lock_shared({base + (kind << _NUMBER_BITS)}"
        f" + {sequence}.last_value + CAST({sequence}.is_called AS INTEGER))"
        for kind, sequence in enumerate(KINDS)
        if sequence in draws
    )
    return f"SELECT {', '.join(locks)} FROM {', '.join(draws)} {SAME_VERSION}"  # noqa: S608 - ours


@cache
def locked_insert(namespace: int, named: bool, draws: tuple[str, ...], sql: str) -> tuple[str, str]:
    """Return the query of a writer's locks, and SQL that takes them first; `:turn` is the name.

    Args:
        namespace: What it writes.
        named: Whether something with a name is changed by it alone.
        draws: See `locks_of_a_writer`.
        sql: Takes its values `FROM turn`, which holds the locks. Where it may wait for a name and
            looks at a row again afterwards, they are a CTE, since that is never run twice; else a
            subquery, which takes the server 10 µs less.
    """
    locks = locks_of_a_writer(namespace, "named" * named, "CAST(:turn AS INTEGER)", draws)
    if named:
        return locks, f"WITH turn AS MATERIALIZED ({locks}) {sql}"
    return locks, sql.replace("FROM turn", f"FROM ({locks}) turn")
