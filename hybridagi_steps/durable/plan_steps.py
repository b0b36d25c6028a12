"""DurableQueue: the steps of plans as work in a queue that outlives processes.

Each attempt of a step is a DBOS workflow whose id is the attempt's key. So work that was finished
is never done again, whoever asks; work that a killed process had begun is begun again when a
process of the same worker id starts. The database is an SQLite file, or PostgreSQL for several
machines, which then share the workspace's directory. What is stored is JSON: reading it runs no
code. Needs the extra `durable`.
"""

# DBOS keeps one instance for each process; so does this module.

from __future__ import annotations

import base64
import logging
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import dspy
import orjson
from anyio.to_thread import run_sync

from hybridagi_steps.errors import InvalidSettingError, MissingExtraError, StorageError
from hybridagi_steps.outside_files import make_private
from hybridagi_steps.planning.settings import Settings
from hybridagi_steps.planning.usage import Ledger, LMCall
from hybridagi_steps.planning.worker import Finished, Outcome, Problem, StepWorker, Work
from hybridagi_steps.recording import record
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.stores.address import shown_address
from hybridagi_steps.workspace.snapshot import Change, Changes, Entry

if TYPE_CHECKING:
    from hybridagi_steps.planning.orchestrator import Orchestrator

try:
    from dbos import DBOS, SetWorkflowID
    from dbos import error as dbos_error
    from sqlalchemy.exc import SQLAlchemyError

    from hybridagi_steps.durable import engine as dbos_engine
except ImportError as error:
    raise MissingExtraError("Running plans from a durable queue", "durable") from error

QUEUE = "plan-steps"
FORMAT_VERSION = "plan-steps-2"
"""Work is taken up again only by code that reads this form of it."""


_ENGINE = dbos_engine._running  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""Held by whoever runs DBOS in this process."""


class _Serving(NamedTuple):
    """Who does the work in this process."""

    worker: StepWorker
    settings: Settings


class _Process:
    """What there is once in each process, because DBOS is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queue: DurableQueue | None = None
        self.serving: _Serving | None = None


_process = _Process()


@DBOS.workflow(name="hybridagi_steps.plan_step")
async def _plan_step(work: str) -> str:
    """Do one attempt of a step; its result is kept by DBOS."""
    serving = _process.serving
    if serving is None:
        raise StorageError("this process has no orchestrator that could do the work.")
    asked = Work.model_validate_json(work)
    outcome = await _done(serving, asked)

    def keep(contents: Mapping[str, bytes]) -> None:
        if (workspace := serving.settings.workspace) is not None:
            workspace.hand_on(asked.run_id, contents)

    return await run_sync(write_outcome, outcome, keep, serving.settings.redact)


@DBOS.workflow(name="hybridagi_steps.plan_note")
async def _plan_note(text: str) -> str:
    """Keep a text."""
    return text


class DurableQueue:
    """A queue of plan steps in a database.

    Args:
        database: Path of an SQLite file, or an SQLAlchemy address such as `postgresql://…`.
        worker_id: Names this worker. Work that a killed process had begun is taken up by the next
            one that starts with the same id; two running workers must not share one.
        poll_seconds: How often the queue is looked at.
        serves: Whether this process does work; otherwise it only hands it out and waits.
    """

    def __init__(
        self,
        database: Path | str,
        *,
        worker_id: str = "local",
        poll_seconds: float = 0.1,
        serves: bool = True,
    ) -> None:
        if not isinstance(database, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSettingError(
                f"a durable queue is made of the path or address of its database, such as "
                f"'plans.sqlite', not of {database!r:.80}."
            )
        text = os.fspath(database)
        self._file = None if "://" in text else Path(text).resolve()
        self.address = text if self._file is None else f"sqlite:///{self._file}"
        self.worker_id, self.poll_seconds, self.serves = worker_id, poll_seconds, serves

    async def dispatcher(self, worker: StepWorker, settings: Settings) -> QueueDispatcher:
        """Return what hands the steps of a run to the queue; opens it if need be."""
        await run_sync(self.open, worker, settings)
        return QueueDispatcher(self.poll_seconds, settings)

    def serve(self, orchestrator: Orchestrator, stop: threading.Event | None = None) -> None:
        """Do work from the queue until told to stop: what a worker process runs.

        Args:
            orchestrator: Says how steps are carried out: tools, workspace, model, limits.
            stop: Set it to end; by default the process serves until it is ended.
        """
        self.open(orchestrator.worker, orchestrator.settings)
        (stop or threading.Event()).wait()

    def open(self, worker: StepWorker, settings: Settings) -> None:
        """Start DBOS; work that this worker had begun before a crash is begun again."""
        with _process.lock:
            if _process.queue not in (None, self):
                raise InvalidSettingError(
                    "this process has another durable queue open: close() it first."
                )
            _process.serving = _Serving(worker, settings)
            if _process.queue is self:
                return
            if self._file is not None and _is_foreign(self._file):
                raise self._unusable("it is a database of something else")
            if not _ENGINE.acquire(blocking=False):
                raise InvalidSettingError("this process is a worker of session runs already.")
            try:
                if self._file is not None:
                    make_private(self._file)
                with _silent_log():
                    DBOS(config=self._config())
                    self._launch(settings.max_parallel)
            except BaseException as error:
                DBOS.destroy()
                _ENGINE.release()
                if isinstance(error, OSError):
                    raise self._unusable(error.strerror or str(error)) from error
                if isinstance(error, SQLAlchemyError | dbos_error.DBOSException):
                    cause = str(getattr(error, "orig", None) or error).rstrip(".?")
                    raise self._unusable(cause) from error
                raise
            _process.queue = self
        note = getattr(settings.memory, "note_queue", None)
        if note is not None:
            note(shown_address(self.address) if self._file is None else str(self._file))

    def take_over(self, worker_id: str) -> int:
        """Begin the work again that a worker had begun and will never end; return how much.

        Only for a worker that is known to be dead: work of a living one would be done twice.
        """
        if _process.queue is not self:
            raise InvalidSettingError(
                "the queue is not open: call take_over while it serves or runs a plan, "
                "or after open(orchestrator.worker, orchestrator.settings)."
            )
        return len(DBOS._recover_pending_workflows([worker_id]))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def close(self) -> None:
        """Stop; work in progress is given up and begun again by the next process."""
        with _process.lock:
            if _process.queue is self:
                DBOS.destroy()
                _ENGINE.release()
                _process.queue = _process.serving = None

    def __enter__(self) -> DurableQueue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _unusable(self, cause: str) -> StorageError:
        place = self._file or "the database"  # an address may hold a password
        return StorageError(
            f"{place} cannot be used as a durable queue: {cause}. Name a new file in a directory "
            "that can be written, or a database of such a queue."
        )

    def _launch(self, at_once: int) -> None:
        DBOS.listen_queues([QUEUE] if self.serves else [])
        DBOS.launch()
        DBOS.register_queue(
            QUEUE,
            worker_concurrency=at_once,
            polling_interval_sec=self.poll_seconds,
            on_conflict="always_update",
        )

    def _config(self) -> Any:
        return {
            "name": dbos_engine.APPLICATION,
            "system_database_url": self.address,
            "executor_id": self.worker_id,
            "application_version": FORMAT_VERSION,
            "serializer": dbos_engine.JsonSerializer(),
            "log_level": "ERROR",
            "enable_otlp": False,
            "notification_listener_polling_interval_sec": self.poll_seconds,
        }


class QueueDispatcher:
    """Hands work to the queue and waits for what comes of it.

    Args:
        poll_seconds: How often the queue is looked at.
        settings: Of the plan: what must not reach the queue, and where files are kept.
    """

    def __init__(self, poll_seconds: float, settings: Settings) -> None:
        self._poll, self._settings = poll_seconds, settings

    async def do(self, work: Work) -> Outcome:
        """Have an attempt done, by this process or another; not again if it was done before."""
        status = await DBOS.get_workflow_status_async(work.key)
        if status is not None and status.status == "CANCELLED":
            handle: Any = await DBOS.resume_workflow_async(work.key, queue_name=QUEUE)
        else:
            with SetWorkflowID(work.key):
                text = work.model_dump_json()
                handle = await DBOS.enqueue_workflow_async(QUEUE, _plan_step, text)

        def find(names: list[str]) -> dict[str, bytes]:
            workspace = self._settings.workspace
            return {} if workspace is None else workspace.handed_on(work.run_id, names)

        try:
            text = await handle.get_result(polling_interval_sec=self._poll)
            return await run_sync(read_outcome, text, find)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await DBOS.cancel_workflow_async(work.key)
            raise

    async def remember(self, key: str, make: Callable[[], Awaitable[str]]) -> str:
        """Return what was remembered under a key; make and store it first if nothing was."""
        known = await self.known(key)
        if known is not None:
            return known
        text = await make()
        if (redact := self._settings.redact) is not None:
            text = _redacted_note(text, redact)
        with SetWorkflowID(key):
            handle: Any = await DBOS.start_workflow_async(_plan_note, text)
        return str(await handle.get_result(polling_interval_sec=self._poll))

    async def known(self, key: str) -> str | None:
        """Return what was remembered under a key."""
        if await DBOS.get_workflow_status_async(key) is None:
            return None
        handle: Any = await DBOS.retrieve_workflow_async(key)
        return str(await handle.get_result(polling_interval_sec=self._poll))


def _redacted_note(text: str, redact: Redact) -> str:
    """Return a note without what `redact` takes out; what was JSON is JSON still."""
    try:
        note = orjson.loads(text)
    except orjson.JSONDecodeError:
        note = text
    kept = redacted(note, redact)
    return kept if isinstance(kept, str) else orjson.dumps(kept).decode()


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


@contextmanager
def _silent_log() -> Generator[None]:
    """Keep DBOS from logging, with a traceback, what is raised here anyway."""
    log = logging.getLogger("dbos")
    log.addFilter(_nothing)
    try:
        yield
    finally:
        log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:  # noqa: ARG001 - none is let through
    return False


async def _done(serving: _Serving, work: Work) -> Outcome:
    """Do an attempt where nothing of the plan's own process is at hand, and record it."""
    settings = serving.settings
    ledger = Ledger(work.tokens_left, work.cost_left)
    notes = {"plan_run": work.run_id, "plan_step": work.step.id, "attempt": work.attempt}
    with ExitStack() as stack:
        if settings.lm is not None:
            stack.enter_context(overriding(lm=settings.lm))
        if settings.memory is not None:
            stack.enter_context(record(settings.memory, settings.session_id))
        callbacks: list[Any] = list(dspy.settings.get("callbacks", []))
        stack.enter_context(overriding(callbacks=[ledger, *callbacks]))
        told = FunctionStep(
            "program", "StepWorker", work.step.goal, own=settings.predictors, notes=notes
        )
        steps = RunSteps(settings.memory)
        with steps.step(told, {"step": work.step.id, "attempt": work.attempt}) as opened:
            outcome = await serving.worker.do(work)
            opened.outcome = {"error": str(outcome.error)} if outcome.error else {}
    outcome.calls = ledger.calls
    return outcome


def write_outcome(
    outcome: Outcome,
    keep: Callable[[Mapping[str, bytes]], None],
    redact: Redact | None = None,
) -> str:
    """Return an outcome as JSON, without the contents of files.

    Args:
        outcome: What became of an attempt.
        keep: Keeps the contents of new files, by their hash, elsewhere.
        redact: What is said of it goes through this; names of files do not.
    """
    if outcome.changes is not None:
        keep(outcome.changes.contents)
    said: dict[str, Any] = {
        "finished": outcome.finished and outcome.finished.model_dump(mode="json"),
        "error": None if outcome.error is None else Problem.of(outcome.error).model_dump(),
        "problems": [problem.model_dump() for problem in outcome.problems],
        "calls": [call.model_dump(mode="json") for call in outcome.calls],
    }
    said = json_value(said, [])
    said = said if redact is None else redacted(said, redact)
    changes = None if outcome.changes is None else json_value(_changes(outcome.changes), [])
    return orjson.dumps({**said, "changes": changes}).decode()


def read_outcome(text: str, find: Callable[[list[str]], dict[str, bytes]]) -> Outcome:
    """Return an outcome from its JSON.

    Args:
        text: What `write_outcome` gave.
        find: Returns the contents that it kept.
    """
    data: dict[str, Any] = orjson.loads(text)
    finished, error, changes = data["finished"], data["error"], data["changes"]
    return Outcome(
        finished=None if finished is None else Finished.model_validate(finished),
        error=None if error is None else Problem.model_validate(error).error(),
        changes=None if changes is None else _read_changes(changes, find),
        problems=[Problem.model_validate(problem) for problem in data["problems"]],
        calls=[LMCall.model_validate(call) for call in data["calls"]],
    )


def _changes(changes: Changes) -> dict[str, Any]:
    return {
        "paths": {path: [change.before, change.after] for path, change in changes.paths.items()},
        "contents": sorted(changes.contents),
    }


def _read_changes(data: dict[str, Any], find: Callable[[list[str]], dict[str, bytes]]) -> Changes:
    paths: dict[str, Any] = data["paths"]
    kept: dict[str, str] | list[str] = data["contents"]
    if isinstance(kept, dict):  # as earlier versions wrote it
        contents = {name: base64.b64decode(content) for name, content in kept.items()}
    else:
        contents = find(kept)
    return Changes(
        {path: Change(_entry(before), _entry(after)) for path, (before, after) in paths.items()},
        contents,
    )


def _entry(data: Any) -> Entry | None:
    return None if data is None else Entry(*data)
