"""What a worker does with a durable run: begin it, or take it up where a dead worker left it.

The user's message has the run's id. So the session itself tells how far the run came, and nothing
about its progress is written down twice: no such message, nothing was done; nothing but whole units
behind it, the turn is resumed; an answer behind it, the run had ended.
"""

# DBOS keeps one instance for each process; so does this module.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from hybridagi_steps.crossing import in_thread
from hybridagi_steps.durable import engine as dbos_engine
from hybridagi_steps.durable.engine import DBOS
from hybridagi_steps.durable.session_runs import CANCEL, WORKFLOW, Order, turn_of
from hybridagi_steps.errors import StorageError
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.running.active_run import shown_error
from hybridagi_steps.running.limits import AgentSession
from hybridagi_steps.running.runner import StepRunner

MOST_ATTEMPTS = 20
"""A run that takes its worker down this often is given up."""
_NAMES = "session-worker-"
_LOOK_SECONDS = 0.2


class Worker:
    """Takes runs from the queue of one database.

    Args:
        runner: Carries them out.
        client: Reads what the database says of them.
        database: The file of the queue.
        queue: Its name.
    """

    def __init__(self, runner: StepRunner, client: Any, database: Path, queue: str) -> None:
        self._runner, self._client = runner, client
        self._database, self._queue = database, queue
        self._active: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(
        self, stop: threading.Event, at_once: int, poll_seconds: float, grace_seconds: float
    ) -> bool:
        """Take runs until told to stop; return whether all of them have ended."""
        with dbos_engine.only_engine():
            name = dbos_engine.first_free_name(self._database, _NAMES)
            self._client.register_queue(
                self._queue,
                worker_concurrency=at_once,
                partition_concurrency=1,
                polling_interval_sec=poll_seconds,
            )
            # Not on DBOS's loop, which cancels what is left when it ends: that would end runs that
            # another worker is to take up.
            self._loop = loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_turn_over, args=(loop,), daemon=True)
            thread.start()
            # Before DBOS is launched: it may take work at once.
            _process.worker = self
            try:
                with dbos_engine.engine(self._database, name.name, self._queue, grace_seconds):
                    while not stop.wait(_LOOK_SECONDS):
                        self._look_around(name.name)
            finally:
                # A run that did not end in time still goes on: the name says that it is not dead.
                if not self._active:
                    loop.call_soon_threadsafe(loop.stop)
                    thread.join()
                    name.release()
            return not self._active

    def _look_around(self, name: str) -> None:
        dbos_engine.recover_dead(self._client, self._database, self._queue, name)
        self._stop_cancelled()

    async def session_run(self, run_id: str, order: Order) -> str:
        """Do a run on the worker's own loop; what waits for it may be cancelled, it is not."""
        future = asyncio.run_coroutine_threadsafe(self._do(run_id, order), self._own_loop())
        return await asyncio.shield(asyncio.wrap_future(future))

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise StorageError("this worker does not serve.")
        return self._loop

    async def _do(self, run_id: str, order: Order) -> str:
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
        turn = await in_thread(partial(turn_of, self._runner.memory, order.session_id, run_id))
        last = turn[-1] if turn else None
        if last is not None and last.is_assistant_step() and not last.has_tool_calls():
            return {"data": _stored_ending(turn)}
        if await in_thread(partial(self._cancelled, [run_id])):
            return {"data": {"status": "cancelled", "termination_reason": "cancelled"}}
        session = AgentSession(order.session_id, order.user_id)
        if last is None:
            events = self._runner.run_stream(
                session, order.message, inputs=order.inputs, message_id=run_id
            )
        else:
            events = self._runner.resume(session, inputs=order.inputs)
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
                asyncio.run_coroutine_threadsafe(stopping, self._own_loop()).result()


class _Process:
    """What there is once in each process, because DBOS is."""

    def __init__(self) -> None:
        self.worker: Worker | None = None


_process = _Process()


@DBOS.workflow(name=WORKFLOW, max_recovery_attempts=MOST_ATTEMPTS)
async def _session_run(order: str) -> str:
    """Do one run; DBOS keeps how it ended, and begins it again when its worker has died."""
    worker, run_id = _process.worker, DBOS.workflow_id
    if worker is None or run_id is None:
        raise StorageError("this process is no worker.")
    return await worker.session_run(run_id, Order(**orjson.loads(order)))


def _turn_over(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


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
