"""Work tables: what is in progress on a PostgreSQL database, in a schema beside the memory's.

Queues of durable runs and plans (DBOS makes their tables), who lives and works (presence.py), and
the runs that servers have in flight. Rows are of what goes on now or ended lately; a purge takes
what it means out of all of them, and rewrites them, so that no page keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import psycopg
from psycopg import sql

from hybridagi_steps.errors import ReadOnlyStorageError, StorageError
from hybridagi_steps.outside_files import (
    READ_FORMS,
    RUN_COLUMNS,
    QueuedRun,
    Whose,
    handed_out,
    refuse_foreign_forms,
)
from hybridagi_steps.stores.address import secrets_of, shown_address
from hybridagi_steps.stores.postgres.driver_errors import translated, unreachable
from hybridagi_steps.stores.postgres.schema import LONGEST_STATEMENT, SCHEMA, rewrite
from hybridagi_steps.stores.postgres.spelling import READING, teach

Raw = psycopg.Connection[Any]

WORK_SCHEMA = "hybridagi_steps_work"
_EARLIER_SCHEMA = "dbos"
"""Where earlier versions kept queues of plans; one that is there stays."""
_CONNECT_SECONDS = 10
_BUSY_SECONDS = 30
_PAUSE_SECONDS = 0.05
_TRIES = 10
_IN_THE_WAY = (psycopg.errors.DeadlockDetected, psycopg.errors.InternalError_)
"""Others work in tables that are being isolated, or alter them ("tuple concurrently updated")."""
_LOCK = 0x48535457
_IS_THERE = "SELECT to_regclass(%s) IS NOT NULL"
_CREATE = f"""BEGIN;
    SELECT pg_advisory_xact_lock({_LOCK});
    CREATE SCHEMA IF NOT EXISTS {WORK_SCHEMA};
    DROP TABLE IF EXISTS {WORK_SCHEMA}.presence;
    CREATE TABLE IF NOT EXISTS {WORK_SCHEMA}.lease (
        namespace TEXT NOT NULL, name TEXT NOT NULL, token UUID NOT NULL, backend INTEGER NOT NULL,
        seen_at TIMESTAMPTZ NOT NULL, host TEXT NOT NULL, process INTEGER NOT NULL,
        PRIMARY KEY (namespace, name));
    CREATE TABLE IF NOT EXISTS {WORK_SCHEMA}.live_run (
        namespace TEXT NOT NULL, run_id TEXT NOT NULL, holder TEXT NOT NULL,
        session_id TEXT, user_id TEXT, ended_at TIMESTAMPTZ, PRIMARY KEY (namespace, run_id));
    CREATE TABLE IF NOT EXISTS {WORK_SCHEMA}.run_event (
        namespace TEXT NOT NULL, run_id TEXT NOT NULL, number BIGINT NOT NULL, step_id TEXT,
        PRIMARY KEY (namespace, run_id, number),
        FOREIGN KEY (namespace, run_id) REFERENCES {WORK_SCHEMA}.live_run ON DELETE CASCADE);
    CREATE TABLE IF NOT EXISTS {WORK_SCHEMA}.run_request (
        id UUID PRIMARY KEY, namespace TEXT NOT NULL, run_id TEXT NOT NULL, asked JSONB NOT NULL,
        answer JSONB, asked_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());
    CREATE UNLOGGED TABLE IF NOT EXISTS {WORK_SCHEMA}.request_rate (
        namespace TEXT NOT NULL, user_id TEXT NOT NULL, full_at TIMESTAMPTZ NOT NULL,
        PRIMARY KEY (namespace, user_id));
    COMMIT"""
"""Versions before had who lives in `presence`, where every role saw it; nothing there lasts."""
_ISOLATE = f"""DO $$
DECLARE
    mine CONSTANT TEXT := 'IN (SELECT n.name FROM {SCHEMA}.access a
        JOIN {SCHEMA}.namespace n ON n.id = a.namespace WHERE a.role = current_user)';
    of_queue CONSTANT TEXT := 'strpos(%1$s, $of$:$of$) > 0
        AND substr(%1$s, strpos(%1$s, $of$:$of$) + 1) %2$s';
    queue CONSTANT TEXT := $of$coalesce(attributes ->> 'queue', queue_name, '')$of$;
    t RECORD;
    condition TEXT;
BEGIN
    PERFORM pg_advisory_xact_lock({_LOCK});
    PERFORM set_config('search_path', '{WORK_SCHEMA}', true);
    IF to_regclass('{SCHEMA}.access') IS NULL OR NOT coalesce((SELECT pg_has_role(nspowner, 'USAGE')
        FROM pg_catalog.pg_namespace WHERE nspname = current_schema()), false) THEN RETURN; END IF;
    FOR t IN SELECT c.relname AS name, EXISTS (
                SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid
                AND a.attname = 'namespace') AS has_namespace,
            (SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid
                AND a.attname IN ('workflow_uuid', 'destination_uuid')) AS run
        FROM pg_catalog.pg_class c WHERE c.relnamespace = current_schema()::regnamespace
            AND c.relkind = 'r' AND pg_has_role(c.relowner, 'USAGE')
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid
                AND p.polname = 'own' AND pg_get_expr(p.polwithcheck, c.oid) <> 'true')
            AND (c.relname <> 'workflow_status' OR EXISTS (
                SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid
                AND a.attname = 'attributes'))
    LOOP
        condition := CASE WHEN t.has_namespace THEN format('namespace %s', mine)
            WHEN t.name = 'workflow_status' THEN format(of_queue, queue, mine)
            WHEN t.name = 'queues' THEN format(of_queue, 'name', mine)
            WHEN t.run IS NOT NULL THEN format('EXISTS (
                SELECT FROM workflow_status s WHERE s.workflow_uuid = %I.%I)', t.name, t.run)
            WHEN t.name NOT IN ('application_versions', 'dbos_migrations') THEN 'false'
            END;
        CONTINUE WHEN condition IS NULL;
        EXECUTE format('DROP POLICY IF EXISTS mine ON %I', t.name);
        EXECUTE format('DROP POLICY IF EXISTS own ON %I', t.name);
        EXECUTE format('CREATE POLICY own ON %I USING (%s) WITH CHECK (%2$s)', t.name, condition);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t.name);
    END LOOP;
    FOR t IN SELECT role AS name FROM {SCHEMA}.access WHERE rights <> 'reader'
        AND to_regrole(quote_ident(role)) IS NOT NULL GROUP BY role
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), t.name);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO %I',
            current_schema(), t.name);
        EXECUTE format('GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA %I TO %I',
            current_schema(), t.name);
    END LOOP;
END $$"""  # noqa: S608 - our own names
"""Lets a role that `access` binds see the work of its namespaces: a queue's name ends with its own.
Roles get the rights that DBOS needs; which version of DBOS it is all of them see. Tables that
another process is still making (`attributes` come late) are left to it: it calls this when it is
done. What says neither a namespace nor a run (schedules, dispatched events) is no bound role's.
Policies of earlier versions, `mine`, showed plans to everybody, and runs given up; a first form of
`own` let rows be added to the runs of others."""
_FORMS = ", ".join(f"'{form}'" for form in sorted(READ_FORMS))
_REFUSE_FORMS = f"""DO $$
DECLARE t RECORD;
BEGIN
    PERFORM pg_advisory_xact_lock({_LOCK});
    FOR t IN SELECT c.oid::regclass AS name FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'serialization'
        WHERE c.relnamespace = to_regnamespace('{WORK_SCHEMA}') AND c.relkind = 'r'
            AND pg_has_role(c.relowner, 'USAGE') AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid
                AND k.conname = 'own_form')
    LOOP
        EXECUTE format('ALTER TABLE %s ADD CONSTRAINT own_form
            CHECK (serialization IN ({_FORMS.replace("'", "''")})) NOT VALID', t.name);
    END LOOP;
END $$"""  # noqa: S608 - our own names
"""Has the server refuse what no queue reads; earlier rows may stand."""
_TABLES = """SELECT c.relname, array_agg(a.attname::text) FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' GROUP BY c.relname"""
_FORGET = f"DELETE FROM {WORK_SCHEMA}.live_run WHERE ended_at IS NOT NULL"  # noqa: S608 - our own name
_FORGET_DEAD = f"""DELETE FROM {WORK_SCHEMA}.lease
    WHERE seen_at < clock_timestamp() - interval '1 minute'"""  # noqa: S608 - our own name
"""Who is dead; some names are of places that users hold."""
_FORGET_RATES = f"""DELETE FROM {WORK_SCHEMA}.request_rate WHERE full_at <= clock_timestamp()
    OR (namespace = %s AND (%s OR user_id = %s))"""  # noqa: S608 - our own name
_RUNS = """SELECT s.workflow_uuid, coalesce(s.queue_name, s.attributes ->> 'queue'), i.inputs
    FROM {}.workflow_status s
    LEFT JOIN {}.workflow_input i ON i.workflow_uuid = s.workflow_uuid"""


def connected(conninfo: str) -> Raw:
    """Return a connection that commits each statement, and prepares none: a pooler may lend it.

    Waits for locks and statements have limits, but where a pooler would give them to others.
    """
    try:
        raw: Raw = psycopg.connect(conninfo, autocommit=True, connect_timeout=_CONNECT_SECONDS)
        raw.prepare_threshold = None
        raw.execute(_limits(raw).encode())
        teach(raw)
        return raw
    except psycopg.Error as error:
        name = shown_address(conninfo)
        raise unreachable(error, name, secrets_of(conninfo)) from error


def _limits(raw: Raw) -> str:
    """Return the query that sets limits for a session, unless a pooler lends the connection."""
    return f"""SELECT {READING}, set_config('lock_timeout', '{_BUSY_SECONDS}s', lent),
        set_config('statement_timeout', CASE current_setting('statement_timeout')
            WHEN '0' THEN '{LONGEST_STATEMENT}' ELSE current_setting('statement_timeout') END, lent)
        FROM (SELECT pg_backend_pid() <> {raw.info.backend_pid} AS lent) pooler"""  # noqa: S608 - no text in it


def limited(conninfo: str) -> Raw:
    """Return a connection for DBOS, with the limits that it does not set; no pickle is read."""
    raw: Raw = psycopg.connect(conninfo, connect_timeout=_CONNECT_SECONDS)
    refuse_foreign_forms(raw)
    try:
        raw.execute(_limits(raw).encode())
        raw.commit()  # or they would be rolled back
    except BaseException:
        raw.close()
        raise
    return raw


def limit_all(connections: Any) -> None:
    """Set the limits on all connections of an engine of SQLAlchemy's, of which none is in use."""
    from sqlalchemy import event

    def limit(raw: Any, _: object) -> None:
        try:
            raw.execute(_limits(raw))
            raw.commit()
        except BaseException:
            raw.close()  # which SQLAlchemy does not
            raise

    event.listen(connections, "connect", limit)
    connections.dispose()  # what it has tried


def translated_from(error: psycopg.Error, conninfo: str) -> StorageError:
    """Return the error to raise instead of the driver's own."""
    return translated(error, shown_address(conninfo), secrets_of(conninfo))


def prepare(raw: Raw, conninfo: str) -> None:
    """Create the schema where it is not; as its owner, isolate namespaces in it."""
    try:
        for tries_left in range(_TRIES, -1, -1):
            try:
                if raw.execute(_IS_THERE, (f"{WORK_SCHEMA}.lease",)).fetchone() != (True,):
                    raw.execute(_CREATE.encode())
                _secure(raw)
                break
            except _IN_THE_WAY:
                raw.execute("ROLLBACK")
                if not tries_left:
                    raise
                time.sleep(_PAUSE_SECONDS)
    except psycopg.errors.InsufficientPrivilege as error:
        raise ReadOnlyStorageError(
            f"{shown_address(conninfo)}: this role may neither use nor create {WORK_SCHEMA}, the "
            "schema of what is in progress. Let the owner of the memory start a server or worker "
            "once, which creates it, then: hybridagi-steps grant ROLE --rights writer --namespace "
            "NAME."
        ) from error
    except psycopg.Error as error:
        raise translated_from(error, conninfo) from error


def schema_of_queue(conninfo: str, queue: str) -> str:
    """Return the schema that holds a queue, or is to hold it."""
    with connected(conninfo) as raw:
        if raw.execute(_IS_THERE, (f"{_EARLIER_SCHEMA}.queues",)).fetchone() == (True,):
            earlier = sql.SQL("SELECT 1 FROM {}.queues WHERE name = %s").format(
                sql.Identifier(_EARLIER_SCHEMA)
            )
            if raw.execute(earlier, (queue,)).fetchone() is not None:
                return _EARLIER_SCHEMA
        prepare(raw, conninfo)
        _check_pooler(raw, conninfo)
    return WORK_SCHEMA


def isolate(conninfo: str) -> None:
    """Bind roles to the work of their namespaces in a schema that is there, as its owner."""
    with connected(conninfo) as raw:
        _secure(raw)


def _secure(raw: Raw) -> None:
    raw.execute(_REFUSE_FORMS.encode())
    raw.execute(_ISOLATE.encode())


def _check_pooler(raw: Raw, conninfo: str) -> None:
    """Refuse a pooler that forgets whose prepared statements are whose: DBOS prepares its own."""
    if raw.execute("SELECT pg_backend_pid()").fetchone() == (raw.info.backend_pid,):
        return
    try:
        with connected(conninfo) as other:
            for client in (raw, other):  # both call it the same, and get the same connection
                client.prepare_threshold = 0
                client.execute("SELECT 1")
    except psycopg.errors.DuplicatePreparedStatement as error:
        raise StorageError(
            f"{shown_address(conninfo)} is behind a pooler that keeps no prepared statements, as "
            "queues need it: give the server's own address, or PgBouncer 1.21 or later with "
            "max_prepared_statements."
        ) from error
    finally:
        raw.execute("DEALLOCATE ALL")


def erase_work(conninfo: str, gone: Callable[[QueuedRun], bool], whose: Whose) -> None:
    """Delete runs and pieces of work from the queues of a database, to the last byte.

    Args:
        conninfo: The address of the database.
        gone: Whether a run is to go.
        whose: Of whom it is forgotten how often he asked; of others where that tells nothing.
    """
    try:
        with connected(conninfo) as raw:
            own = raw.execute("SELECT pg_backend_pid()").fetchone() == (raw.info.backend_pid,)
            for schema in (WORK_SCHEMA, _EARLIER_SCHEMA):
                tables: dict[str, list[str]] = dict(raw.execute(_TABLES, (schema,)).fetchall())
                if any([_forgotten(raw, tables, whose), _erased(raw, schema, tables, gone)]):
                    names = [sql.Identifier(schema, table) for table in tables]
                    rewrite(raw, names, shown_address(conninfo), _BUSY_SECONDS, lent=not own)
    except psycopg.Error as error:
        raise translated_from(error, conninfo) from error


def _forgotten(raw: Raw, tables: Collection[str], whose: Whose) -> bool:
    """Delete what is known of runs that are over, of the dead, of a user; whether there was any."""
    found = 0
    if "live_run" in tables:
        found += raw.execute(_FORGET.encode()).rowcount
    if "lease" in tables:
        found += raw.execute(_FORGET_DEAD.encode()).rowcount
    if "request_rate" in tables:
        found += raw.execute(
            _FORGET_RATES.encode(), (whose.namespace, whose.everybody, whose.user_id)
        ).rowcount
    return found > 0


def _erased(
    raw: Raw, schema: str, tables: dict[str, list[str]], gone: Callable[[QueuedRun], bool]
) -> bool:
    """Delete what is meant from the tables of one schema; return whether there was anything."""
    if "workflow_input" not in tables:
        return False
    with raw.transaction():
        found = raw.execute(sql.SQL(_RUNS).format(*[sql.Identifier(schema)] * 2)).fetchall()
        runs = [QueuedRun(key, queue, handed_out(inputs)) for key, queue, inputs in found]
        ids = [run.id for run in runs if gone(run)]
        for table, columns in tables.items() if ids else ():
            for column in RUN_COLUMNS.intersection(columns):
                statement = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)")
                names = sql.Identifier(schema, table), sql.Identifier(column)
                raw.execute(statement.format(*names), (ids,))
    return bool(ids)
