"""SessionWorker: carries out the runs of sessions that a durable queue hands out.

A run that a dead worker had begun is taken up where its stored messages end: they are whole units,
so nothing is stored twice. Runs wait in one queue, and a `RunScheduler` moves those whose turn it
is to another one, from which DBOS hands them to workers: it knows neither sessions nor users.
Handing runs out and looking at them is session_runs.py's business.
"""

# DBOS is loaded on first use, by name.

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import suppress
from contextvars import Context
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.durable.bulk_jobs import BulkJobs
from hybridagi_steps.durable.engine import (
    DBOS,
    Engine,
    Outage,
    QueueDatabase,
    QueueTables,
    workflow,
)
from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidSettingError,
    SequenceConflictError,
    StorageError,
    UnknownRunError,
    UnknownSessionError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.outside_files import queues_of_runs
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.running.limits import AgentSession
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.stored_events import stored_events
from hybridagi_steps.running.streaming import shown_error
from hybridagi_steps.validation import MOST_PRIORITY, checked_priority

WORKFLOW, CANCEL = "hybridagi_steps.session_run", "cancel"
FORMAT_VERSION = "1"
"""Runs are taken up only by code that reads this form of them."""
MOST_ATTEMPTS = 20
"""A run that takes its worker down this often is given up."""
_log = logging.getLogger("hybridagi_steps")
_CONFLICTS = (SequenceConflictError.__name__, DuplicateStepError.__name__)
_MOST_CONFLICTS = 5
_QUIET_SECONDS = 5.0
"""After which a worker that writes to the same turn is believed to have stopped."""
_PAGE = 512
"""Messages of a run that are read at once."""
_CLASS = 1 << 20
"""DBOS's priority of a run is ours, counted from 0, times this, and its place in its session."""

workflow(WORKFLOW, MOST_ATTEMPTS)
_LAST = """SELECT max(priority % :class_size) FROM {status} WHERE queue_name IN (:waiting, :ready)
    AND queue_partition_key = :session AND status IN ('ENQUEUED', 'PENDING')"""
_RELEASE = """
WITH in_flight AS (
    SELECT queue_partition_key AS session, authenticated_user AS owner, status, executor_id,
        created_at
    FROM {status} WHERE status = 'PENDING' AND queue_name IN (:waiting, :ready)
        OR status = 'ENQUEUED' AND queue_name = :ready),
free AS (
    SELECT 2 * :at_once - count(*) AS slots FROM in_flight
    WHERE status = 'ENQUEUED' OR executor_id = :worker),
busy AS (SELECT owner, count(*) AS runs FROM in_flight WHERE owner IS NOT NULL GROUP BY owner),
line AS (
    SELECT workflow_uuid, authenticated_user AS owner, priority / :class_size AS class, created_at,
        row_number() OVER (PARTITION BY queue_partition_key
            ORDER BY priority % :class_size, created_at, workflow_uuid) AS place
    FROM {status} WHERE queue_name = :waiting AND status = 'ENQUEUED'
        AND queue_partition_key NOT IN (SELECT session FROM in_flight)),
turns AS (
    SELECT workflow_uuid, class, created_at, CASE WHEN line.owner IS NULL THEN 1 ELSE
        coalesce(busy.runs, 0) + row_number() OVER (PARTITION BY line.owner
            ORDER BY class, created_at, workflow_uuid) END AS turn
    FROM line LEFT JOIN busy ON busy.owner = line.owner WHERE place = 1),
newest AS (SELECT max(created_at) AS at FROM (
    SELECT created_at FROM line UNION ALL SELECT created_at FROM in_flight) AS every),
chosen AS (
    SELECT workflow_uuid, class, row_number() OVER (ORDER BY class, turn, created_at) AS place
    FROM turns WHERE turn <= :per_user
    ORDER BY place LIMIT (SELECT CASE WHEN slots > 0 THEN slots ELSE 0 END FROM free))
UPDATE {status} SET queue_name = :ready, priority = class * :class_size,
    created_at = (SELECT at FROM newest) + chosen.place
FROM chosen WHERE {status}.workflow_uuid = chosen.workflow_uuid
    AND queue_name = :waiting AND status = 'ENQUEUED'"""
"""As many runs become ready as one worker does at a time and may do next. What is in flight counts
by session and by user; of each session the first run in line, of each user as many as may be. DBOS
takes them by priority, then by time: so theirs is later than that of all before."""


class RunScheduler:
    """The order in which the runs of a queue are done: by priority, then fairly among users.

    Those of a session keep theirs, one at a time. Of users with runs of one priority the next is
    whoever has the fewest in flight; a run of nobody counts as a user's first.
    """

    def __init__(self, database: QueueDatabase, namespace: str) -> None:
        self.waiting, self.ready = queues_of_runs(namespace)
        self._tables = QueueTables(database, self.waiting)
        self._names: dict[str, Any] = {
            "waiting": self.waiting,
            "ready": self.ready,
            "class_size": _CLASS,
        }
        self.close = self._tables.close

    def priority(self, priority: int, session_id: str) -> int:
        """Return what DBOS is to call the priority of a session's next run."""
        own = MOST_PRIORITY + checked_priority(priority)
        [[last]] = self._tables.ask(_LAST, **self._names, session=session_id)
        return own * _CLASS + (last or 0) + 1

    def release(self, worker: str, at_once: int, per_user: int | None) -> None:
        """Make as many runs ready as a worker, that does so many at once, may soon take.

        `per_user` is how many one user may have in flight on all workers.
        """
        how: Any = {"worker": worker, "at_once": at_once, "per_user": per_user or sys.maxsize}
        self._tables.ask(_RELEASE, lock=True, **self._names, **how)


@dataclass(frozen=True, slots=True)
class Order:
    """What a run is asked to do."""

    session_id: str
    user_id: str | None
    message: str | list[dict[str, Any]]
    inputs: dict[str, Any]
    as_any_user: bool = False

    @property
    def session(self) -> AgentSession:
        """Where, and for whom."""
        return AgentSession(self.session_id, self.user_id, as_any_user=self.as_any_user)

    def to_json(self) -> str:
        """Return it as JSON."""
        values = asdict(self)
        if not self.as_any_user:  # a worker of before knows no such member
            del values["as_any_user"]
        try:
            return orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()
        except TypeError as error:
            raise InvalidSettingError(
                f"message and inputs of a durable run must be JSON: {error}."
            ) from error


class SessionWorker:
    """Carries out runs that a queue hands out."""

    def __init__(
        self, runner: StepRunner | None, jobs: BulkJobs, engine: Engine, scheduler: RunScheduler
    ) -> None:
        self._given, self._jobs, self._engine = runner, jobs, engine
        self._scheduler = scheduler
        self._active: dict[str, str] = {}
        self._outage = Outage()
        # Not on DBOS's loop, which cancels what is left when it ends: that would end runs that
        # another worker is to take up.
        self._loop = asyncio.new_event_loop()

    def serve(
        self,
        stop: threading.Event,
        at_once: int,
        per_user: int | None,
        poll_seconds: float,
        grace_seconds: float,
    ) -> bool:
        """Take runs until told to stop; return whether all of them have ended."""
        thread = threading.Thread(target=self._turn_over, daemon=True)
        thread.start()
        try:
            runs = {} if self._given is None else {self._scheduler.ready: at_once}
            self._engine.start(
                self,
                at_once={**runs, self._jobs.queue: 1},
                poll_seconds=poll_seconds,
                look=self._stop_cancelled,
            )
            try:
                while not stop.wait(poll_seconds):
                    with self._outage.noted(self._engine.name):  # runs wait for the next look
                        if runs:
                            self._scheduler.release(self._engine.name, at_once, per_user)
            finally:
                self._jobs.stopping.set()
                self._engine.stop(grace_seconds)
                # A run that did not end in time still goes on: the name says that it is not dead.
                if not self._active:
                    self._engine.release_name()
        finally:
            if not self._active:
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join()
        return not self._active

    async def do(self, work: str) -> str:
        """Do a run on the worker's own loop; what waits for it may be cancelled, it is not."""
        run_id, asked = str(DBOS.workflow_id), orjson.loads(work)
        if "kind" in asked:
            self._active[run_id] = ""
            return await asyncio.to_thread(self._job_done, run_id, asked)
        order = Order(**asked)
        future = asyncio.run_coroutine_threadsafe(self._done(run_id, order), self._loop)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _job_done(self, job_id: str, asked: dict[str, Any]) -> str:
        try:
            return self._jobs.do(job_id, asked)
        finally:
            del self._active[job_id]

    @property
    def _runner(self) -> StepRunner:
        assert self._given is not None  # noqa: S101 - else it takes no runs
        return self._given

    def _turn_over(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _done(self, run_id: str, order: Order) -> str:
        """Bring a run to its end; return how it ended as JSON."""
        self._active[run_id] = ""
        ending: dict[str, Any]
        try:
            try:
                ending = await self._ended(run_id, order)
            except Exception as error:
                shown = shown_error(error, self._runner.memory.redact)
                data = {"status": "failed", "termination_reason": "error", "error": shown}
                ending = {"data": data}
        finally:
            del self._active[run_id]
        return orjson.dumps(ending, default=repr).decode()

    async def _ended(self, run_id: str, order: Order) -> dict[str, Any]:
        """Bring a run to its end, with whoever is at it as well.

        A worker that stood still was taken for dead, and may go on: the session takes what one of
        the two says first. The other waits until that one has ended the turn, or is quiet.
        """
        ending: dict[str, Any] = {}
        for _ in range(_MOST_CONFLICTS):
            ending = await self._attempted(run_id, order)
            error: dict[str, Any] = ending["data"].get("error") or {}
            if error.get("type") not in _CONFLICTS:
                break
            seen = -1
            while (length := len(await in_thread(partial(self._turn, run_id, order)))) > seen:
                seen = length
                await asyncio.sleep(_QUIET_SECONDS)
        return ending

    def _turn(self, run_id: str, order: Order) -> list[Step]:
        return turn_of(self._runner.memory, order.session_id, run_id)

    async def _attempted(self, run_id: str, order: Order) -> dict[str, Any]:
        turn = await in_thread(partial(self._turn, run_id, order))
        last = turn[-1] if turn else None
        if last is not None and last.is_assistant_step() and not last.has_tool_calls():
            return {"data": _stored_ending(turn)}
        # In a context of its own: inside its workflow DBOS would keep the answer, and repeat it.
        if await in_thread(lambda: Context().run(self._cancelled, [run_id])):
            return {"data": {"status": "cancelled", "termination_reason": "cancelled"}}
        if last is None:
            events = self._runner.run_stream(
                order.session, order.message, inputs=order.inputs, message_id=run_id
            )
        else:
            if (paused := await in_thread(partial(self._paused_ending, order, last))) is not None:
                return {"data": paused}
            events = self._runner.resume(order.session, inputs=order.inputs)
        event: StepEvent | None = None
        async for event in events:
            self._active[run_id] = event.run_id
        if event is None:
            raise StorageError(f"session {order.session_id!r} went on before run {run_id} ended.")
        return {"data": event.data or {}}

    def _paused_ending(self, order: Order, last: Step) -> dict[str, Any] | None:
        """Return how the newest attempt ended if it paused: it goes on when somebody answers."""
        if last.run_id is None:
            return None
        with suppress(UnknownRunError):  # it was cut off before its first step
            memory, session_id = self._runner.memory, order.session_id
            ending = stored_events(memory, last.run_id, session_id=session_id)[-1]
            return ending.data if ending.type is StepEventType.RUN_PAUSED else None
        return None

    def _cancelled(self, run_ids: list[str]) -> list[str]:
        """Return those that some process has asked to cancel."""
        found = DBOS.list_workflows(workflow_ids=run_ids, load_input=False, load_output=False)
        asked = [each for each in found if CANCEL in (each.attributes or {})]
        return [each.workflow_id for each in asked]

    def _stop_cancelled(self) -> None:
        active = dict(self._active)
        for run_id in self._cancelled(list(active)) if active else []:
            if active[run_id]:
                stopping = self._runner.cancel(active[run_id])
                asyncio.run_coroutine_threadsafe(stopping, self._loop).result()


def _stored_ending(turn: list[Step]) -> dict[str, Any]:
    """Return what the final event of a run said, from its stored messages."""
    how: dict[str, str] = (turn[-1].metadata or {}).get("run", {})
    metrics = RunMetrics.of(*(step.metrics for step in turn if step.metrics is not None))
    return {
        "status": how.get("status", "completed"),
        "termination_reason": how.get("reason", "completed"),
        "metrics": metrics.model_dump(mode="json", exclude_none=True),
        "last_sequence": turn[-1].sequence,
    }


def turn_of(
    memory: StepMemory, session_id: str, run_id: str, last: int | None = None
) -> list[Step]:
    """Return the messages of a durable run, the user's first; none before it was begun."""
    store = memory.repository().store
    place = store.place_of(run_id)
    if place is None:
        return []
    try:
        last = last or store.session_end(session_id).sequence
    except UnknownSessionError:
        return []
    turn: list[Step] = []
    for start in range(place[1], last + 1, _PAGE):
        for step in store.messages(session_id, start, min(last, start + _PAGE - 1)):
            # The first is the run's own, unless this session no longer reads it.
            is_another = step.is_user_step() if turn else step.id != run_id
            if is_another:
                return turn
            turn.append(step)
    return turn
