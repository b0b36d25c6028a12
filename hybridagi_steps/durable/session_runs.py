"""DurableRunner: runs of sessions that outlive the process they run in.

A run is handed to a queue in a database (DBOS: a file beside the memory's, or the memory's own
PostgreSQL for several machines) and carried out by whichever worker process is there. A worker that
is killed leaves whole units in the session; another one takes the turn up. Runs of one session
follow each other; those of different sessions stand side by side. This module hands runs out and
looks at them; session_worker.py carries them out.
"""

# DBOS is loaded on first use, by name.
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import NAMESPACE_URL, uuid5

import orjson

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.durable.bulk_jobs import BulkJobs, JobKind
from hybridagi_steps.durable.engine import (
    FOREIGN_FORM,
    Engine,
    QueueDatabase,
    check_installed,
    handed_out_text,
)
from hybridagi_steps.durable.session_worker import (
    CANCEL,
    FORMAT_VERSION,
    WORKFLOW,
    Order,
    RunScheduler,
    SessionWorker,
    turn_of,
)
from hybridagi_steps.errors import (
    InvalidSettingError,
    SequenceConflictError,
    StorageError,
    UnknownRunError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.outside_files import queues_of_runs
from hybridagi_steps.recording.call_tree import Labels
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import MessageRole, Step, new_id
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.running.limits import AgentSession
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.starting import check_message, session_of
from hybridagi_steps.running.stored_events import RunResult
from hybridagi_steps.sessions.session_checks import check_owner
from hybridagi_steps.stores.address import is_server, shown_address
from hybridagi_steps.stores.body import encode_message
from hybridagi_steps.stores.commits import check_names
from hybridagi_steps.validation import admitted_messages, whole_number

if TYPE_CHECKING:
    from dbos import WorkflowStatus

T = TypeVar("T")
_log = logging.getLogger("hybridagi_steps")

_OUTAGE_SECONDS = 5.0


class _Standing(NamedTuple):
    """What the queue knows of a run."""

    order: Order
    ending: dict[str, Any] | None
    """What its final event says, once it has ended."""


class DurableRunner:
    """Runs a program in sessions, whatever happens to its processes.

    Args:
        program: A StepRunner, or what one is made of; a process that only hands out needs none.
        memory: Where sessions are kept, a file or a server's address, which every process opens.
        database: The queue's SQLite file or PostgreSQL address; by default beside the memory's file
            with `.runs`, or in the memory's own database.
        poll_seconds: How often queue and runs are looked at.
        jobs: Kinds of bulk jobs that its worker knows beside `import` and `reembed`, by name.

    Attributes:
        jobs: Hands out bulk jobs, lists and stops them.

    Raises:
        MissingExtraError: The extra `durable` is not installed.
        InvalidSettingError: A memory of this process alone, or a StepRunner over another one.
        StorageError: The queue's database cannot be opened or is none.

    Example:
        `run_id = await hs.DurableRunner(memory="steps.db").submit("chat", "Hello")`
    """

    def __init__(
        self,
        program: Any = None,
        memory: StepMemory | str | os.PathLike[str] | None = None,
        *,
        database: str | os.PathLike[str] | None = None,
        poll_seconds: float = 0.1,
        jobs: Mapping[str, JobKind] | None = None,
    ) -> None:
        check_installed()
        if isinstance(program, StepRunner):
            if memory not in (None, program.memory):
                raise InvalidSettingError("the StepRunner's memory is another one: leave `memory`.")
            memory = program.memory
        self._opened = None if isinstance(memory, StepMemory) else StepMemory(memory or "steps.db")
        self.memory: StepMemory = self._opened or memory  # pyright: ignore[reportAttributeAccessIssue]
        if self.memory.address == ":memory:":
            raise InvalidSettingError("durable runs need a memory in a file, such as 'steps.db'.")
        place = os.fspath(database or self.memory.whole_address)
        if database is None and not is_server(place):
            place = f"{place}.runs"
        made = program is None or isinstance(program, StepRunner)
        self.runner: StepRunner | None = program if made else StepRunner(program, self.memory)
        self._queue_database = QueueDatabase.of(place, "a queue of runs")
        shown = shown_address(place) if is_server(place) else Path(place).absolute()
        self.database: Path | str = shown
        self._poll = poll_seconds
        try:
            waiting, _ = queues_of_runs(self.memory.namespace)
            self._client = self._queue_database.client(waiting)
            self._scheduler = RunScheduler(self._queue_database, self.memory.namespace)
            self.jobs = BulkJobs(self.memory, self._queue_database, self._client, jobs)
            self.memory.note_queue(str(self.database))
        except BaseException:
            if self._opened is not None:
                self._opened.close()
            raise

    async def submit(
        self,
        session: str | AgentSession,
        message: str | list[dict[str, Any]],
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        priority: int = 0,
    ) -> str:
        """Hand out a run and return its id; it is safe on disk then.

        Args:
            session: The session; its runs follow each other in the order of their submission.
            message: What the user says. Of a memory that redacts, what is left of it: the queue
                keeps that, and that is what the program answers. So with `inputs`.
            inputs: Further inputs of a DSPy program.
            idempotency_key: Repeating one in a session, for the same user, returns the run that
                it first handed out.
            priority: Of the sessions that wait, the one whose next run has the smallest goes
                first; from -1,000 to 1,000.

        Raises:
            MessageError: The message is empty, or neither text nor parts.
            NotAllowedError: The session is another's than the user whom it names.
            InvalidStepError: A name that no session, user or key has, or a message over 8 MiB.
            SequenceConflictError: The key handed out something else.
            StorageError: The queue's database cannot be reached; with a key it is safe to repeat.
            InvalidSettingError: What is asked cannot be written as JSON, or no such priority.
        """
        order = order_of(session, message, inputs, self.memory.redact)
        text, run_id = order.to_json(), str(new_id())
        await in_thread(partial(self._check_owner, order))
        if idempotency_key is not None:
            check_names(order.session_id, [], str(idempotency_key))
            of_user = "" if order.user_id is None else f"\n{order.user_id}"
            run_id = str(uuid5(NAMESPACE_URL, f"{order.session_id}\n{idempotency_key}{of_user}"))
        await self._ask(partial(self._enqueue, run_id, order, text, priority))
        if idempotency_key is not None and (await self._standing(run_id)).order != order:
            raise SequenceConflictError(
                f"key {idempotency_key!r} has handed out another message of session "
                f"{order.session_id!r}; use a new key."
            )
        return run_id

    async def result(self, run_id: str) -> RunResult:
        """Wait for the end of a run, whichever process does it, and return how it ended.

        Raises:
            UnknownRunError: No such run.
        """
        while (standing := await self._reached(run_id)).ending is None:
            await asyncio.sleep(self._poll)
        turn = await self._turn(run_id, standing)
        answers = [step for step in turn if step.is_assistant_step()]
        return RunResult(run_id, answers[-1] if answers else None, standing.ending or {})

    async def events(self, run_id: str, *, after: int = 0) -> AsyncGenerator[StepEvent]:
        """Follow a run, from its beginning or from the event numbered `after`.

        There are RUN_STARTED, STEP_COMPLETED for each message that is stored, and the final event.
        Numbers are the same whoever asks and whenever. Pieces stay in the worker's process.

        Raises:
            UnknownRunError: No such run.
        """
        number, ended = 0, False
        while not ended:
            standing = await self._reached(run_id)
            ending, session_id = standing.ending, standing.order.session_id
            turn = await self._turn(run_id, standing)
            events = [StepEvent(type=StepEventType.RUN_STARTED, run_id=run_id)]
            for step in turn:
                events.append(StepEvent(type=StepEventType.STEP_COMPLETED, run_id=run_id))
                events[-1].step_id, events[-1].snapshot = step.id, step
            if ended := ending is not None:
                kind = StepEventType(f"run_{ending['status']}")
                events.append(StepEvent(type=kind, run_id=run_id, data=ending))
            for number, event in enumerate(events[number:], number + 1):  # noqa: B020
                event.number, event.session_id = number, session_id
                if number > after:
                    yield event
            if not ended:
                await asyncio.sleep(self._poll)

    async def cancel(self, run_id: str) -> bool:
        """Ask that a run be stopped, in whichever process it is; return whether it had not ended.

        A run that waits never begins; one in flight stops as with `StepRunner.cancel`.

        Raises:
            UnknownRunError: No such run.
        """
        if (await self._standing(run_id)).ending is not None:
            return False
        said = {CANCEL: True, "queue": self._scheduler.waiting}
        await self._ask(partial(self._client.update_workflow_attributes, run_id, said))
        [status] = await self._ask(
            partial(
                self._client.list_workflows,
                workflow_ids=[run_id],
                load_input=False,
                load_output=False,
            )
        )
        if status.status == "ENQUEUED":
            await self._ask(partial(self._client.cancel_workflow, run_id))
        return True

    def run_worker(
        self,
        stop: threading.Event | None = None,
        *,
        at_once: int = 8,
        max_runs_per_user: int | None = None,
        grace_seconds: float = 10.0,
    ) -> bool:
        """Take runs and bulk jobs from the queue until told to stop: what a worker process does.

        Without a program it takes jobs alone.

        Runs that a dead worker had begun are taken up, too, by any worker of the same queue and
        machine. Killing a worker does no harm.

        Args:
            stop: Set it to end; by default the worker serves until its process is ended.
            at_once: Most runs at a time in this process.
            max_runs_per_user: Most runs of one user in flight on all workers; its others wait.
            grace_seconds: How long runs may take to end after `stop`; what is left is taken up
                by another worker once this process has ended.

        Returns:
            Whether all runs have ended.

        Raises:
            InvalidSettingError: This process is a worker already.
        """
        if max_runs_per_user is not None:
            whole_number("max_runs_per_user", max_runs_per_user, 1)
        ready = self._scheduler.ready
        engine = Engine(self._queue_database, ready, FORMAT_VERSION, "session-worker-")
        worker = SessionWorker(self.runner, self.jobs, engine, self._scheduler)
        stop = stop or threading.Event()
        return worker.serve(stop, at_once, max_runs_per_user, self._poll, grace_seconds)

    def close(self) -> None:
        """Close what this object has opened; runs go on in their workers."""
        self._client.destroy()
        self._scheduler.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> DurableRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_owner(self, order: Order) -> None:
        """Refuse here what its worker would: a session that is another's."""
        if order.user_id is not None and not order.as_any_user:
            store = self.memory.repository().store
            check_owner(store, order.session_id, order.user_id, new=True, nobodys=True)

    def _enqueue(self, run_id: str, order: Order, text: str, priority: int) -> None:
        options: Any = {
            "workflow_name": WORKFLOW,
            "queue_name": self._scheduler.waiting,
            "queue_partition_key": order.session_id,
            "workflow_id": run_id,
            "app_version": FORMAT_VERSION,  # plans, of another form, may stand in the same database
            # The queue's own order is that of the clock, which SQLite has in whole seconds.
            "priority": self._scheduler.priority(priority, order.session_id),
            # DBOS takes what is given up, or cancelled, out of its queue; a purge must still know
            # whose it is, and roles of other namespaces must not see it.
            "attributes": {"queue": self._scheduler.waiting},
        }
        if order.user_id is not None:
            options["authenticated_user"] = order.user_id
        self._client.enqueue(options, text)

    async def _standing(self, run_id: str) -> _Standing:
        found = await self._ask(
            partial(self._client.list_workflows, workflow_ids=[run_id], name=WORKFLOW)
        )
        if not found:
            raise UnknownRunError(run_id)
        text = handed_out_text(found[0])
        if text is None:
            raise UnknownRunError(run_id, f"run {run_id!r} is refused: {FOREIGN_FORM}.")
        return _Standing(Order(**orjson.loads(text)), _ending(found[0]))

    async def _reached(self, run_id: str) -> _Standing:
        """Return what the queue knows of a run, once it can be reached."""
        while True:
            try:
                return await self._standing(run_id)
            except StorageError as error:
                _log.warning("run %s: its end is waited for on: %s", run_id, error)
                await asyncio.sleep(_OUTAGE_SECONDS)

    async def _ask(self, call: Callable[[], T]) -> T:
        """Ask the queue, whose driver's errors are ours then."""
        return await in_thread(self._queue_database.opening()(call))

    async def _turn(self, run_id: str, standing: _Standing) -> list[Step]:
        last = (standing.ending or {}).get("last_sequence")
        read = partial(turn_of, self.memory, standing.order.session_id, run_id, last)
        return await in_thread(read)


def order_of(session: object, message: Any, inputs: object, redact: Redact | None) -> Order:
    """Return what a run is asked to do, refused here if a runner would refuse it."""
    named = session_of(session)
    Labels.of(named.session_id, named.user_id, None, None)
    check_message(message)
    asked = Step(session_id=named.session_id, role=MessageRole.USER, content=message)
    [kept] = admitted_messages(asked, named.session_id, redact)
    encode_message(kept)  # in the end nobody could store one that is too large
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidSettingError(f"inputs are values by name, not {inputs!r:.80}.")
    order = Order(named.session_id, named.user_id, message, dict(inputs or {}), named.as_any_user)
    if redact is None:
        return order
    plain: dict[str, Any] = orjson.loads(order.to_json())["inputs"]
    values = {name: redacted(value, redact) for name, value in plain.items()}
    check_message(kept.content)
    return replace(order, message=kept.content, inputs=values)


def _ending(status: WorkflowStatus) -> dict[str, Any] | None:
    """Return what the final event of a run says, if the run has ended."""
    if status.status == "SUCCESS":
        return orjson.loads(str(status.output))["data"]
    if status.status == "CANCELLED":
        return {"status": "cancelled", "termination_reason": "cancelled"}
    if status.status in ("ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"):
        error = {"type": status.status, "message": str(status.error or "its workers died.")}
        return {"status": "failed", "termination_reason": "error", "error": error}
    return None
