"""DurableQueue: work of plans in a queue that outlives processes.

Each piece of work is a DBOS workflow whose id is its key. So work that was finished is never done
again, whoever asks; work that a killed process had begun is begun again by any other. Knows texts
under keys and who turns one into another (a `TextWorker`), nothing of plans and their steps. The
database is an SQLite file, or PostgreSQL for several machines. Needs the extra `durable`.
"""

# DBOS keeps one instance for each process; so does this module.

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Protocol

import anyio

from hybridagi_steps.durable.engine import DBOS, Engine, QueueDatabase, Worker, workflow
from hybridagi_steps.errors import InvalidSettingError, MissingExtraError
from hybridagi_steps.outside_files import PLANS, prefix_of_plans, queue_of_plans
from hybridagi_steps.stores.address import shown_address
from hybridagi_steps.validation import MOST_PRIORITY

try:
    from dbos import SetEnqueueOptions, SetWorkflowAttributes, SetWorkflowID, WorkflowHandleAsync
except ImportError as error:
    raise MissingExtraError("Running plans from a durable queue", "durable") from error

FORMAT_VERSION = "plan-steps-2"
"""Work is taken up again only by code that reads this form of it."""
_ADVICE = "Name a new file in a directory that can be written, or a database of such a queue."


class PlanWorker(Worker, Protocol):
    """Does steps of plans."""

    at_once: int
    """Most steps at a time."""
    namespace: str
    """The memory's."""

    def note_queue(self, address: str, /) -> None:
        """Note where work is kept, for whoever erases it."""
        ...


class HasPlanWorker(Protocol):
    """An orchestrator, as a queue knows it."""

    def plan_worker(self) -> PlanWorker:
        """Return who does the steps of its plans."""
        ...


_opening = threading.Lock()
_plan_step = workflow("hybridagi_steps.plan_step")


@DBOS.workflow(name="hybridagi_steps.plan_note")
async def _plan_note(text: str) -> str:
    """Keep a text."""
    return text


class DurableQueue:
    """A queue of plan steps in a database.

    Args:
        database: Path of an SQLite file, or an SQLAlchemy address such as `postgresql://…`.
        worker_id: Names this worker, which no other running one may be called; by default a number.
        poll_seconds: How often the queue is looked at.
        serves: Whether this process does work; otherwise it only hands it out and waits.
        namespace: Whose it is in PostgreSQL, where a role sees what is of its own; by default that
            of the orchestrator's memory. A file is one queue.
    """

    _opened: ClassVar[DurableQueue | None] = None
    """The queue that is open in this process; DBOS takes no other beside it."""

    def __init__(
        self,
        database: Path | str,
        *,
        worker_id: str | None = None,
        poll_seconds: float = 0.1,
        serves: bool = True,
        namespace: str | None = None,
    ) -> None:
        if not isinstance(database, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSettingError(
                f"a durable queue is made of the path or address of its database, such as "
                f"'plans.sqlite', not of {database!r:.80}."
            )
        self.database = QueueDatabase.of(database, "a durable queue", _ADVICE)
        self.worker_id, self.poll_seconds, self.serves = worker_id, poll_seconds, serves
        self._namespace, self._queue, self._prefix = namespace, PLANS, ""
        self._engine: Engine | None = None

    def serve(self, orchestrator: HasPlanWorker, stop: threading.Event | None = None) -> None:
        """Do work from the queue until told to stop: what a worker process runs.

        Args:
            orchestrator: Says how steps are carried out: tools, workspace, model, limits.
            stop: Set it to end; by default the process serves until it is ended.
        """
        self.open(orchestrator.plan_worker())
        (stop or threading.Event()).wait()

    def open(self, worker: PlanWorker) -> None:
        """Start DBOS; work that dead workers had begun is begun again."""
        with _opening:
            if DurableQueue._opened not in (None, self):
                raise InvalidSettingError(
                    "this process has another durable queue open: close() it first."
                )
            if self._engine is not None:
                self._engine.serve_as(worker)
                return
            self._engine, DurableQueue._opened = self._started(worker), self
        file = self.database.file
        worker.note_queue(shown_address(self.database.address) if file is None else str(file))

    def close(self) -> None:
        """Stop; work in progress is given up and begun again by the next process."""
        with _opening:
            if self._engine is not None:
                self._engine.stop()
                self._engine.release_name()
                self._engine = DurableQueue._opened = None

    def __enter__(self) -> DurableQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def do(self, key: str, work: str, priority: int = 0) -> str:
        """Have work done, by this process or another; not again if its key was done before.

        Of what waits the one with the smallest priority goes first, then the oldest.
        """
        work_id = self._prefix + key
        status = await DBOS.get_workflow_status_async(work_id)
        if status is not None and status.status == "CANCELLED":
            handle = await DBOS.resume_workflow_async(work_id, queue_name=self._queue)
        else:
            own = MOST_PRIORITY + priority + 1  # DBOS's count from 1
            with self._named(work_id), SetEnqueueOptions(priority=own):
                handle = await DBOS.enqueue_workflow_async(self._queue, _plan_step, work)
        try:
            return str(await handle.get_result(polling_interval_sec=self.poll_seconds))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await DBOS.cancel_workflow_async(work_id)
            raise

    async def remember(self, key: str, make: Callable[[], Awaitable[str]]) -> str:
        """Return what was remembered under a key; make and store it first if nothing was."""
        if (known := await self.known(key)) is not None:
            return known
        text = await make()
        with self._named(self._prefix + key):
            handle = await DBOS.start_workflow_async(_plan_note, text)
        return str(await handle.get_result(polling_interval_sec=self.poll_seconds))

    async def known(self, key: str) -> str | None:
        """Return what was remembered under a key."""
        note_id = self._prefix + key
        if await DBOS.get_workflow_status_async(note_id) is None:
            return None
        handle: WorkflowHandleAsync[str] = await DBOS.retrieve_workflow_async(note_id)
        return str(await handle.get_result(polling_interval_sec=self.poll_seconds))

    @contextmanager
    def _named(self, work_id: str) -> Generator[None]:
        """Start something that says whose it is, also where DBOS takes it out of its queue."""
        with SetWorkflowID(work_id), SetWorkflowAttributes({"queue": self._queue}):
            yield

    def _started(self, worker: PlanWorker) -> Engine:
        file = self.database.file
        if file is not None and _is_foreign(file):
            raise self.database.unusable("it is a database of something else")
        if self.database.schema(PLANS) != "dbos":  # a file's, and one of an earlier version's
            namespace = self._namespace or worker.namespace
            self._queue, self._prefix = queue_of_plans(namespace), prefix_of_plans(namespace)
        engine = Engine(self.database, self._queue, FORMAT_VERSION, "plan-worker-")
        engine.start(
            worker,
            at_once={self._queue: worker.at_once},
            poll_seconds=self.poll_seconds,
            serves=self.serves,
            worker_id=self.worker_id,
        )
        return engine


def _is_foreign(path: Path) -> bool:
    """Whether a file is an SQLite database that holds other tables than those of a queue."""
    if not path.is_file():
        return False
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database,
    ):
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in found}
        return bool(tables) and "dbos_migrations" not in tables
    return False
