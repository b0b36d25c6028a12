"""SessionWorker: carries out the runs of sessions that a durable queue hands out.

A run that a dead worker had begun is taken up where its stored messages end: they are whole units,
so nothing is stored twice. Handing runs out and looking at them is session_runs.py's business.
"""

# DBOS is loaded on first use, by name.

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.durable.engine import DBOS, Engine, workflow
from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidSettingError,
    SequenceConflictError,
    StorageError,
    UnknownSessionError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.running.limits import AgentSession
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.streaming import shown_error

if TYPE_CHECKING:
    from dbos import DBOSClient

WORKFLOW, CANCEL = "hybridagi_steps.session_run", "cancel"
FORMAT_VERSION = "1"
"""Runs are taken up only by code that reads this form of them."""
MOST_ATTEMPTS = 20
"""A run that takes its worker down this often is given up."""
_CONFLICTS = (SequenceConflictError.__name__, DuplicateStepError.__name__)
_MOST_CONFLICTS = 5
_QUIET_SECONDS = 5.0
"""After which a worker that writes to the same turn is believed to have stopped."""
_PAGE = 512
"""Messages of a run that are read at once."""

workflow(WORKFLOW, MOST_ATTEMPTS)


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

    def __init__(self, runner: StepRunner, client: DBOSClient, engine: Engine) -> None:
        self._runner, self._client, self._engine = runner, client, engine
        self._active: dict[str, str] = {}
        # Not on DBOS's loop, which cancels what is left when it ends: that would end runs that
        # another worker is to take up.
        self._loop = asyncio.new_event_loop()

    def serve(
        self, stop: threading.Event, at_once: int, poll_seconds: float, grace_seconds: float
    ) -> bool:
        """Take runs until told to stop; return whether all of them have ended."""
        thread = threading.Thread(target=self._turn_over, daemon=True)
        thread.start()
        try:
            self._engine.start(
                self,
                at_once=at_once,
                poll_seconds=poll_seconds,
                per_partition=1,
                look=self._stop_cancelled,
            )
            try:
                stop.wait()
            finally:
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
        run_id, order = str(DBOS.workflow_id), Order(**orjson.loads(work))
        future = asyncio.run_coroutine_threadsafe(self._done(run_id, order), self._loop)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _turn_over(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _done(self, run_id: str, order: Order) -> str:
        """Bring a run to its end; return how it ended as JSON."""
        self._active[run_id] = ""
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
        if await in_thread(partial(self._cancelled, [run_id])):
            return {"data": {"status": "cancelled", "termination_reason": "cancelled"}}
        if last is None:
            events = self._runner.run_stream(
                order.session, order.message, inputs=order.inputs, message_id=run_id
            )
        else:
            events = self._runner.resume(order.session, inputs=order.inputs)
        event: StepEvent | None = None
        async for event in events:
            self._active[run_id] = event.run_id
        if event is None:
            raise StorageError(f"session {order.session_id!r} went on before run {run_id} ended.")
        return {"data": event.data or {}}

    def _cancelled(self, run_ids: list[str]) -> list[str]:
        """Return those that some process has asked to cancel."""
        found = self._client.list_workflows(
            workflow_ids=run_ids, load_input=False, load_output=False
        )
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
