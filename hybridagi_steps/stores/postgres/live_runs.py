"""Live runs: what several servers on one PostgreSQL memory know of each other's runs in flight.

A row for each run, with the server that has it; a row for each of its events that can be told again
(a message that was stored, the end) with its number; and requests, which whoever has the run
answers. A run whose server is dead was cut off. Rows are for a while: the steps are the truth.
Every call blocks but `listen`: what is notified only says that it is time to look.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4
from zlib import crc32

import psycopg
from psycopg.types.json import Jsonb

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.outside_files import QUEUES
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.postgres.presence import Presence, alive
from hybridagi_steps.stores.postgres.work_tables import WORK_SCHEMA, translated_from

_KEPT = "15 minutes"
"""How long runs that are over, servers that are gone and requests are kept."""
_PROBE_SECONDS = 5.0
"""How long a notification of one's own may take."""
_BEGIN = f"""INSERT INTO {WORK_SCHEMA}.live_run
    VALUES (%(namespace)s, %(run_id)s, %(holder)s, %(session_id)s, %(user_id)s)
    ON CONFLICT DO NOTHING"""  # noqa: S608 - our own names, here and below
_TELL = f"""WITH told AS (INSERT INTO {WORK_SCHEMA}.run_event
        SELECT namespace, run_id, %(number)s, %(step_id)s FROM {WORK_SCHEMA}.live_run
        WHERE namespace = %(namespace)s AND run_id = %(run_id)s ON CONFLICT DO NOTHING)
    UPDATE {WORK_SCHEMA}.live_run SET ended_at = clock_timestamp() WHERE %(step_id)s::text IS NULL
        AND namespace = %(namespace)s AND run_id = %(run_id)s"""  # noqa: S608
_ALIVE = alive(1.0)
_RUNS = f"""SELECT r.run_id, r.session_id, r.user_id, r.ended_at IS NULL AND EXISTS (
        SELECT FROM {WORK_SCHEMA}.lease p
        WHERE (p.namespace, p.name) = (r.namespace, r.holder)
            AND ({_ALIVE} OR %(doubts)s)) AS in_flight, ARRAY(
        SELECT e.step_id FROM {WORK_SCHEMA}.run_event e WHERE e.namespace = r.namespace
        AND e.run_id = r.run_id ORDER BY e.number), ARRAY(
        SELECT e.number FROM {WORK_SCHEMA}.run_event e WHERE e.namespace = r.namespace
        AND e.run_id = r.run_id ORDER BY e.number)
    FROM {WORK_SCHEMA}.live_run r WHERE r.namespace = %(namespace)s"""  # noqa: S608
_FIND = f"{_RUNS} AND r.run_id = ANY(%(run_ids)s)"
_LIVING = f"""SELECT p.name FROM {WORK_SCHEMA}.lease p
    WHERE p.namespace = %(namespace)s AND p.name LIKE 'server-%%' AND {_ALIVE}"""  # noqa: S608
_PROCESSES = f"""SELECT p.name, p.host, p.process,
    extract(epoch FROM clock_timestamp() - p.seen_at)::float FROM {WORK_SCHEMA}.lease p
    WHERE p.namespace = %(namespace)s AND {alive(2.0)}
        AND (p.name LIKE 'server-%%' OR p.name LIKE '%%-worker-%%') ORDER BY p.name"""  # noqa: S608
_IN_FLIGHT = f"""SELECT r.run_id, r.session_id, r.user_id, r.holder FROM {WORK_SCHEMA}.live_run r
    JOIN {WORK_SCHEMA}.lease p ON (p.namespace, p.name) = (r.namespace, r.holder) AND {_ALIVE}
    WHERE r.namespace = %(namespace)s AND r.ended_at IS NULL ORDER BY r.holder, r.run_id"""  # noqa: S608
_HAS_QUEUES = f"SELECT to_regclass('{WORK_SCHEMA}.workflow_status') IS NOT NULL"
_CHANNEL = "hybridagi_steps_work"
_NOTIFY = f"SELECT pg_notify('{_CHANNEL}', %(news)s)"
_ELSEWHERE = f"""SELECT * FROM ({_RUNS} AND r.holder <> %(holder)s) runs WHERE in_flight
    AND (%(session_id)s::text IS NULL OR session_id = %(session_id)s)
    AND (%(wanted)s::text[] IS NULL OR run_id = ANY(%(wanted)s::text[]))
    AND (%(users)s::text[] IS NULL OR user_id = ANY(%(users)s::text[]))"""  # noqa: S608
_ASK = f"""INSERT INTO {WORK_SCHEMA}.run_request (id, namespace, run_id, asked)
    VALUES (%(id)s, %(namespace)s, %(run_id)s, %(asked)s) ON CONFLICT DO NOTHING"""  # noqa: S608
_OPEN = f"""SELECT id, run_id, asked FROM {WORK_SCHEMA}.run_request
    WHERE namespace = %(namespace)s AND answer IS NULL"""  # noqa: S608
_REPLY = f"UPDATE {WORK_SCHEMA}.run_request SET answer = %(answer)s WHERE id = %(id)s"  # noqa: S608
_ANSWER = f"SELECT answer FROM {WORK_SCHEMA}.run_request WHERE id = %(id)s"  # noqa: S608
_WITHDRAW = f"DELETE FROM {WORK_SCHEMA}.run_request WHERE id = %(id)s"  # noqa: S608
_ADMIT = f"""WITH admitted AS (
    INSERT INTO {WORK_SCHEMA}.request_rate AS r VALUES (%(namespace)s, %(user_id)s,
        clock_timestamp() + %(each)s * interval '1 microsecond')
    ON CONFLICT (namespace, user_id) DO UPDATE
        SET full_at = greatest(r.full_at, clock_timestamp()) + %(each)s * interval '1 microsecond'
        WHERE greatest(r.full_at, clock_timestamp()) + %(each)s * interval '1 microsecond'
            <= clock_timestamp() + interval '1 minute' RETURNING 1)
    SELECT EXISTS (SELECT FROM admitted), (
        SELECT extract(epoch FROM r.full_at - clock_timestamp())::float + %(each)s / 1e6 - 60
        FROM {WORK_SCHEMA}.request_rate r
        WHERE r.namespace = %(namespace)s AND r.user_id = %(user_id)s)"""  # noqa: S608
_SWEEP = tuple(
    f"DELETE FROM {WORK_SCHEMA}.{table} WHERE {time} < clock_timestamp() - interval '{_KEPT}'"  # noqa: S608
    for table, time in (
        ("request_rate", "full_at"),
        ("live_run", "ended_at"),
        ("run_request", "asked_at"),
        ("lease", "seen_at"),
    )
)
_SWEEP_DEAD = f"""UPDATE {WORK_SCHEMA}.live_run r SET ended_at = clock_timestamp()
    WHERE ended_at IS NULL AND NOT EXISTS (
        SELECT FROM {WORK_SCHEMA}.lease p WHERE (p.namespace, p.name) = (r.namespace, r.holder))"""  # noqa: S608


class LiveRun(NamedTuple):
    """A run of some server, in flight or over for a while."""

    run_id: str
    session_id: str
    user_id: str | None
    in_flight: bool
    """Whether a living server has it."""
    numbers: dict[str | None, int]
    """The numbers that its events were told with, by the id of the message; the end has none."""


class LiveRuns:
    """The runs in flight on all servers of a namespace, and this server among them."""

    REQUESTS = "requests"
    """What is notified when a request was made."""

    def __init__(self, conninfo: str, namespace: str) -> None:
        self._conninfo, self._presence = conninfo, Presence(conninfo, namespace)
        self._living = frozenset[str]()
        self._places = set[str]()
        self._own: dict[str, Any] = {
            "namespace": namespace,
            "holder": self._presence.new_name("server-"),
        }

    @staticmethod
    def mark_of(run_id: str) -> str:
        """Return what is notified when a run is told on; its id would lie on disk too long."""
        return f"{crc32(run_id.encode()):x}"

    def renew(self) -> frozenset[str]:
        """Show that this server lives; return the names of all that do."""
        self._presence.take(self._own["holder"])
        if self._places:
            self._presence.renew(tuple(self._places))
        self._living = frozenset(name for (name,) in self._ask(_LIVING))
        return self._living

    async def listen(self) -> AsyncGenerator[str]:
        """Yield what is notified, at first an empty text; one connection for all that listen here.

        It ends at once where notifications do not come, as behind a pooler of transactions.
        """
        own = self._own["holder"]
        try:
            raw = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
            async with raw:
                await raw.execute(f"LISTEN {_CHANNEL}".encode())
                # Through the other connection: a pooler lends both of them the same one.
                await in_thread(partial(self._ask, _NOTIFY, news=own))
                async for heard in raw.notifies(timeout=_PROBE_SECONDS):
                    if heard.payload == own:
                        break
                else:
                    return
                yield ""
                async for heard in raw.notifies():
                    yield heard.payload
        except psycopg.Error as error:
            raise translated_from(error, self._conninfo) from error

    def sweep(self) -> None:
        """Forget what is over, and who is gone, for long enough."""
        for statement in (_SWEEP_DEAD, *_SWEEP):
            self._presence.ask(statement)

    def claim(self, name: str) -> bool:
        """Be the one server that does something, for the length of a lease."""
        return self._presence.take(name)

    def admit(self, user_id: str, per_minute: int) -> float | None:
        """Count a request of a user on all servers, as `RequestRates` does on one.

        Returns:
            None, or after how many seconds there is room for it.
        """
        asked = {"user_id": user_id, "each": 60_000_000 // per_minute}
        [(admitted, wait)] = self._ask(_ADMIT, **asked)
        return None if admitted else wait or 0.0

    def hold(self, place: str) -> bool:
        """Take a place that no living server holds, until it is let go; return whether it is."""
        if self._presence.take(place):
            self._places.add(place)
        return place in self._places

    def let_go(self, place: str) -> None:
        """Give a place back."""
        self._places.discard(place)
        self._presence.release(place)

    def begin(self, run_id: str, session_id: str | None, user_id: str | None) -> None:
        """Note that this server has a run."""
        self._ask(_BEGIN, run_id=run_id, session_id=session_id, user_id=user_id)

    def tell(self, run_id: str, number: int, step_id: str | None) -> None:
        """Note with which number an event is told; without a message it is the end."""
        self._ask(_TELL, run_id=run_id, number=number, step_id=step_id)
        self._notify(self.mark_of(run_id))

    def find(self, run_id: str) -> LiveRun | None:
        """Return a run of any server; None where nothing is known of it (any more)."""
        return self.find_all([run_id]).get(run_id)

    def find_all(self, run_ids: Collection[str]) -> dict[str, LiveRun]:
        """Return runs of any server by their ids, without those of which nothing is known."""
        return {
            name: LiveRun(name, session, user, lives, dict(zip(steps, numbers, strict=True)))
            for name, session, user, lives, steps, numbers in self._ask(
                _FIND, run_ids=list(run_ids)
            )
        }

    def elsewhere(self, meant: StepFilter) -> list[str]:
        """Return the runs in flight on other servers of a filter's session, run and user."""
        users, wanted = meant.users or None, meant.runs or None
        found = self._ask(_ELSEWHERE, session_id=meant.session_id, users=users, wanted=wanted)
        return [run_id for run_id, *_ in found]

    def processes(self) -> list[tuple[Any, ...]]:
        """Return name, host, process and seconds since a sign of life of servers and workers."""
        return self._ask(_PROCESSES)

    def in_flight(self) -> list[tuple[Any, ...]]:
        """Return run, session, user and server of the runs that living servers have."""
        return self._ask(_IN_FLIGHT)

    def queues(self) -> list[tuple[Any, ...]]:
        """Return what `QUEUES` finds of this namespace, and of plans of earlier versions."""
        if self._ask(_HAS_QUEUES) != [(True,)]:
            return []
        found = self._ask(QUEUES.format(f"{WORK_SCHEMA}."))
        own = ("", self._own["namespace"])
        return [row for row in found if row[0].partition(":")[2] in own]

    def ask(self, run_id: str, **asked: Any) -> UUID:
        """Ask whoever has a run, or one inside it, for something."""
        request_id = uuid4()
        self._ask(_ASK, id=request_id, run_id=run_id, asked=Jsonb(asked))
        self._notify(self.REQUESTS)
        return request_id

    def requests(self) -> list[tuple[UUID, str, dict[str, Any]]]:
        """Return what was asked and not answered: the request, its run, and what for."""
        return [(each[0], each[1], each[2]) for each in self._ask(_OPEN)]

    def reply(self, request_id: UUID, answer: object) -> None:
        """Answer a request."""
        self._ask(_REPLY, id=request_id, answer=Jsonb(answer))
        self._notify(str(request_id))

    def answer(self, request_id: UUID) -> Any:
        """Return the answer to a request; None while there is none."""
        return next((answer for (answer,) in self._ask(_ANSWER, id=request_id)), None)

    def withdraw(self, request_id: UUID) -> None:
        """Forget a request."""
        self._ask(_WITHDRAW, id=request_id)

    def close(self) -> None:
        """Be no server any more."""
        self._presence.release(self._own["holder"])
        self._presence.close()

    def _notify(self, news: str) -> None:
        """Let other servers know; beside what was committed, since notices wait for each other."""
        if len(self._living) != 1:
            self._ask(_NOTIFY, news=news)

    def _ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._presence.ask(sql, {**self._own, **values})
