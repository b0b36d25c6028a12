"""Live runs: what several servers on one PostgreSQL memory know of each other's runs in flight.

A row for each run, with the server that has it; a row for each of its events that can be told again
(a message that was stored, the end) with its number; and requests, which whoever has the run
answers. A run whose server is dead was cut off. Rows are for a while: the steps are the truth.
Every call blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.postgres.presence import ALIVE, Presence
from hybridagi_steps.stores.postgres.work_tables import WORK_SCHEMA

_KEPT = "15 minutes"
"""How long runs that are over, servers that are gone and requests are kept."""
_BEGIN = f"""INSERT INTO {WORK_SCHEMA}.live_run
    VALUES (%(namespace)s, %(run_id)s, %(holder)s, %(session_id)s, %(user_id)s)
    ON CONFLICT DO NOTHING"""  # noqa: S608 - our own names, here and below
_TELL = f"""INSERT INTO {WORK_SCHEMA}.run_event
    SELECT namespace, run_id, %(number)s, %(step_id)s FROM {WORK_SCHEMA}.live_run
    WHERE namespace = %(namespace)s AND run_id = %(run_id)s ON CONFLICT DO NOTHING"""  # noqa: S608
_END = f"""UPDATE {WORK_SCHEMA}.live_run SET ended_at = clock_timestamp()
    WHERE namespace = %(namespace)s AND run_id = %(run_id)s"""  # noqa: S608
_RUNS = f"""SELECT r.run_id, r.session_id, r.user_id, r.ended_at IS NULL AND EXISTS (
        SELECT FROM {WORK_SCHEMA}.presence p
        WHERE p.name = r.holder AND ({ALIVE} OR %(doubts)s)) AS in_flight
    FROM {WORK_SCHEMA}.live_run r WHERE r.namespace = %(namespace)s"""  # noqa: S608
_FIND = f"{_RUNS} AND r.run_id = %(run_id)s"
_NUMBERS = f"""SELECT step_id, number FROM {WORK_SCHEMA}.run_event
    WHERE namespace = %(namespace)s AND run_id = %(run_id)s"""  # noqa: S608
_ELSEWHERE = f"""SELECT * FROM ({_RUNS} AND r.holder <> %(holder)s) runs WHERE in_flight
    AND (%(session_id)s::text IS NULL OR session_id = %(session_id)s)
    AND (%(wanted)s::text IS NULL OR run_id = %(wanted)s)
    AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s)"""  # noqa: S608
_ASK = f"""INSERT INTO {WORK_SCHEMA}.run_request (id, namespace, run_id, asked)
    VALUES (%(id)s, %(namespace)s, %(run_id)s, %(asked)s) ON CONFLICT DO NOTHING"""  # noqa: S608
_OPEN = f"""SELECT id, run_id, asked FROM {WORK_SCHEMA}.run_request
    WHERE namespace = %(namespace)s AND answer IS NULL"""  # noqa: S608
_REPLY = f"UPDATE {WORK_SCHEMA}.run_request SET answer = %(answer)s WHERE id = %(id)s"  # noqa: S608
_ANSWER = f"SELECT answer FROM {WORK_SCHEMA}.run_request WHERE id = %(id)s"  # noqa: S608
_WITHDRAW = f"DELETE FROM {WORK_SCHEMA}.run_request WHERE id = %(id)s"  # noqa: S608
_SWEEP = tuple(
    f"DELETE FROM {WORK_SCHEMA}.{table} WHERE {time} < clock_timestamp() - interval '{_KEPT}'"  # noqa: S608
    for table, time in (
        ("live_run", "ended_at"),
        ("run_request", "asked_at"),
        ("presence", "seen_at"),
    )
)
_SWEEP_DEAD = f"""UPDATE {WORK_SCHEMA}.live_run r SET ended_at = clock_timestamp()
    WHERE ended_at IS NULL AND NOT EXISTS (
        SELECT FROM {WORK_SCHEMA}.presence p WHERE p.name = r.holder)"""  # noqa: S608


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
    """The runs in flight on all servers of a namespace, and this server among them.

    Args:
        conninfo: The address of the memory.
        namespace: The memory's.
    """

    def __init__(self, conninfo: str, namespace: str) -> None:
        self._presence = Presence(conninfo)
        self._own: dict[str, Any] = {
            "namespace": namespace,
            "holder": self._presence.new_name("server-"),
        }

    def renew(self) -> None:
        """Show that this server lives."""
        self._presence.take(self._own["holder"])

    def sweep(self) -> None:
        """Forget what is over, and who is gone, for long enough."""
        for statement in (_SWEEP_DEAD, *_SWEEP):
            self._presence.ask(statement)

    def claim(self, name: str) -> bool:
        """Be the one server that does something, for the length of a lease."""
        return self._presence.take(name)

    def begin(self, run_id: str, session_id: str | None, user_id: str | None) -> None:
        """Note that this server has a run."""
        self._ask(_BEGIN, run_id=run_id, session_id=session_id, user_id=user_id)

    def tell(self, run_id: str, number: int, step_id: str | None) -> None:
        """Note with which number an event is told; without a message it is the end."""
        self._ask(_TELL, run_id=run_id, number=number, step_id=step_id)
        if step_id is None:
            self._ask(_END, run_id=run_id)

    def find(self, run_id: str) -> LiveRun | None:
        """Return a run of any server; None where nothing is known of it (any more)."""
        for name, session_id, user_id, in_flight in self._ask(_FIND, run_id=run_id):
            numbers: dict[str | None, int] = dict(self._ask(_NUMBERS, run_id=run_id))
            return LiveRun(name, session_id, user_id, in_flight, numbers)
        return None

    def elsewhere(self, meant: StepFilter) -> list[str]:
        """Return the runs in flight on other servers of a filter's session, run and user."""
        asked = {"session_id": meant.session_id, "user_id": meant.user_id, "wanted": meant.run_id}
        return [found[0] for found in self._ask(_ELSEWHERE, **asked)]

    def ask(self, run_id: str, **asked: Any) -> UUID:
        """Ask whoever has a run, or one inside it, for something."""
        request_id = uuid4()
        self._ask(_ASK, id=request_id, run_id=run_id, asked=Jsonb(asked))
        return request_id

    def requests(self) -> list[tuple[UUID, str, dict[str, Any]]]:
        """Return what was asked and not answered: the request, its run, and what for."""
        return [(each[0], each[1], each[2]) for each in self._ask(_OPEN)]

    def reply(self, request_id: UUID, answer: object) -> None:
        """Answer a request."""
        self._ask(_REPLY, id=request_id, answer=Jsonb(answer))

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

    def _ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        doubts = self._presence.doubts
        return self._presence.ask(sql, {**self._own, "doubts": doubts, **values})
