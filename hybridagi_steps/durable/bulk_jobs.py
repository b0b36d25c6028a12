"""Bulk jobs: long work on a whole memory that survives its process, shows how far it is, and stops.

A job is a kind and its arguments; a worker calls the kind's function again until it has returned.
So what it does must be harmless twice: an import counts what is there already, re-embedding goes on
with what is pending, and what `JobRun.step` gave is stored and not done again. The queue says which
kind; what a kind does, the worker alone says: nobody who writes to a queue can name code to run.
"""

# DBOS is loaded on first use, by name.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import dspy
import orjson

from hybridagi_steps.durable.engine import (
    DBOS,
    FOREIGN_FORM,
    QueueDatabase,
    handed_out_text,
    workflow,
)
from hybridagi_steps.errors import EmbedderError, InvalidSettingError, UnknownRunError
from hybridagi_steps.exchange import import_file
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.outside_files import queue_of_jobs
from hybridagi_steps.recording.attempts import read_score
from hybridagi_steps.recording.blocks import record
from hybridagi_steps.records.message import new_id
from hybridagi_steps.running.streaming import shown_error

if TYPE_CHECKING:
    from dbos import DBOSClient, WorkflowStatus

P = ParamSpec("P")
T = TypeVar("T")

WORKFLOW, FORMAT_VERSION = "hybridagi_steps.bulk_job", "1"
"""As session runs have it: one worker takes both."""
_PAGE = 500
JobStatus = Literal["waiting", "running", "completed", "cancelled", "failed"]
_STATUS: dict[str, JobStatus] = {
    "ENQUEUED": "waiting",
    "PENDING": "running",
    "SUCCESS": "completed",
    "CANCELLED": "cancelled",
}

workflow(WORKFLOW)


@dataclass(frozen=True, slots=True)
class BulkJob:
    """A job as it stands."""

    id: str
    kind: str
    arguments: dict[str, Any]
    status: JobStatus
    done: int
    """Of `total`: bytes of an imported file, steps to embed, examples; 0 of 0 before it began."""
    total: int
    result: Any
    """What the kind returned; None before."""
    error: str | None
    """Why it failed."""
    submitted_at: datetime


class _JobStopped(BaseException):
    """Ends a job in its worker: somebody cancelled it, or the worker ends."""


class JobRun:
    """What the function of a kind is called with: `kind(run)` returns the job's result as JSON."""

    def __init__(self, jobs: BulkJobs, job_id: str, arguments: dict[str, Any]) -> None:
        self.id, self.arguments, self.memory = job_id, arguments, jobs.memory
        self._jobs = jobs

    def progress(self, done: int, total: int) -> None:
        """Say how far the job is, after each batch; does not return when it is to stop."""
        self._jobs.note(self.id, done=done, total=total)
        if self._jobs.stopping.is_set() or self._jobs.get(self.id).status != "running":
            raise _JobStopped

    def step(self, do: Callable[[], Any]) -> Any:
        """Return what a call gave, as JSON; after a kill what was given before.

        Steps of a job follow each other in the same order whenever it is done.
        """
        return DBOS.run_step({"name": "batch"}, do)


JobKind = Callable[[JobRun], Any]


def _import(run: JobRun) -> dict[str, Any]:
    """Store the steps of a file: `path` and what `import_file` takes beside it."""
    report = import_file(run.memory, progress=run.progress, **run.arguments)._asdict()
    try:
        run.memory.flush(run.progress)
    except EmbedderError as error:  # as soon as somebody searches
        report["not_indexed"] = str(error)
    return report


def _reembed(run: JobRun) -> dict[str, Any]:
    """Embed every step anew with the `embedder`."""
    run.memory.reembed(run.arguments["embedder"], run.progress)
    return {name: run.memory.stats()[name] for name in ("steps", "embedder")}


def evaluation(
    program: Any, examples: Sequence[Any], metric: Callable[..., Any], *, at_once: int = 8
) -> JobKind:
    """Return a kind that asks a program about examples, and says how it did.

    Its result has the mean `score` and all `scores`, in order; None where the metric gave no
    number. Runs are recorded as those of `dspy.Evaluate` are, with the job's id as the tag `job`.

    Args:
        program: A DSPy module.
        examples: `dspy.Example`s with their inputs named.
        metric: As DSPy has it.
        at_once: Examples in a batch, which is done at once: what a killed worker may do again.
    """

    def evaluate(run: JobRun) -> dict[str, Any]:
        scores: list[float | None] = []
        for start in range(0, len(examples), at_once):
            some = [*examples[start : start + at_once]]
            scores += run.step(partial(scored, run, some))
            run.progress(len(scores), len(examples))
        known = [score for score in scores if score is not None]
        return {"score": sum(known) / len(known) if known else None, "scores": scores}

    def scored(run: JobRun, some: list[Any]) -> list[float | None]:
        ask = dspy.Evaluate(devset=some, metric=metric, num_threads=at_once)
        with record(run.memory, tags={"job": run.id}):
            return [read_score(score)[0] for _, _, score in ask(program).results]

    return evaluate


class BulkJobs:
    """The jobs of a memory: hands them out, lists them, stops them; a worker does them.

    It knows `import`, `reembed`, and the `kinds` that are given by name.
    """

    def __init__(
        self,
        memory: StepMemory,
        database: QueueDatabase,
        client: DBOSClient,
        kinds: Mapping[str, JobKind] | None = None,
    ) -> None:
        self.memory, self.queue = memory, queue_of_jobs(memory.namespace)
        self.stopping = threading.Event()
        self._client, self._database = client, database
        self._kinds = {"import": _import, "reembed": _reembed, **(kinds or {})}

    def submit(self, kind: str, **arguments: Any) -> str:
        """Hand out a job and return its id.

        Args:
            kind: `import` (`path`, `format`, `session_id`, `user_id`), `reembed` (`embedder`), or
                one that the workers know.
            **arguments: What the kind needs, as JSON; paths are those of the worker's machine.

        Raises:
            InvalidSettingError: No JSON.
        """
        try:
            text = orjson.dumps({"kind": kind, "arguments": arguments}).decode()
        except TypeError as error:
            raise InvalidSettingError(f"arguments of a job must be JSON: {error}.") from error
        options: Any = {
            "workflow_name": WORKFLOW,
            "queue_name": self.queue,
            "workflow_id": str(new_id()),
            "app_version": FORMAT_VERSION,
            # DBOS takes what is cancelled out of its queue; a list must still know it.
            "attributes": {"queue": self.queue},
        }
        self._ask(self._client.enqueue, options, text)
        return options["workflow_id"]

    def list(self) -> list[BulkJob]:
        """Return all jobs of the memory, newest first."""
        return self._own()

    def get(self, job_id: str) -> BulkJob:
        """Return a job.

        Raises:
            UnknownRunError: No such job.
        """
        found = self._own([job_id])
        if not found:
            raise UnknownRunError(job_id)
        return found[0]

    def cancel(self, job_id: str) -> bool:
        """Stop a job after its batch, in whichever process it is; return whether it had not ended.

        What it has done stays.

        Raises:
            UnknownRunError: No such job.
        """
        if self.get(job_id).status not in ("waiting", "running"):
            return False
        self._ask(self._client.cancel_workflow, job_id)
        return True

    def resume(self, job_id: str) -> bool:
        """Let a job that was cancelled, or failed, go on; return whether it was one.

        Raises:
            UnknownRunError: No such job.
        """
        if self.get(job_id).status not in ("cancelled", "failed"):
            return False
        self.note(job_id, error=None)
        self._ask(self._client.resume_workflow, job_id, queue_name=self.queue)
        return True

    def note(self, job_id: str, **attributes: Any) -> None:
        """Store how far a job is, or why it failed."""
        self._ask(self._client.update_workflow_attributes, job_id, attributes, merge=True)

    def _ask(self, call: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        """Ask the queue, whose driver's errors are ours then."""
        with self._database.opening():
            return call(*args, **named)

    def _own(self, ids: Sequence[str] | None = None) -> list[BulkJob]:
        """Return jobs, newest first; of others nothing is read but whose they are."""
        read = partial(self._client.list_workflows, name=WORKFLOW, sort_desc=True)
        listed = self._ask(
            read, workflow_ids=list(ids) if ids else None, load_input=False, load_output=False
        )
        own = [each.workflow_id for each in listed if _queue(each) == self.queue]
        pages = (own[start : start + _PAGE] for start in range(0, len(own), _PAGE))
        found = [each for page in pages for each in self._ask(read, workflow_ids=page)]
        return [_job(each) for each in sorted(found, key=lambda each: own.index(each.workflow_id))]

    def do(self, job_id: str, order: dict[str, Any]) -> str:
        """Do a job; return its result as JSON, or cancel whoever waits for it."""
        run = JobRun(self, job_id, order["arguments"])
        try:
            if order["kind"] not in self._kinds:
                known = ", ".join(self._kinds)
                raise InvalidSettingError(f"this worker knows no jobs {order['kind']!r}: {known}.")
            result = self._kinds[order["kind"]](run)
        except _JobStopped as stopped:
            # The queue knows of it already; what its worker leaves another one takes up.
            raise asyncio.CancelledError from stopped
        except Exception as error:
            shown = shown_error(error, self.memory.redact)
            self.note(job_id, error=f"{shown['type']}: {shown['message']}")
            self._ask(self._client.cancel_workflow, job_id)  # so that it can be resumed
            raise asyncio.CancelledError from error
        return orjson.dumps(result, default=repr).decode()


def _queue(found: WorkflowStatus) -> str | None:
    return dict[str, Any](found.attributes or {}).get("queue")


def _job(found: WorkflowStatus) -> BulkJob:
    said = dict(found.attributes or {})
    text = handed_out_text(found)
    if text is None:
        said["error"] = FOREIGN_FORM
    order: dict[str, Any] = orjson.loads(text or '{"kind": "", "arguments": {}}')
    failed = said.get("error") is not None or found.status not in _STATUS
    total = int(said.get("total", 0))
    return BulkJob(
        found.workflow_id,
        order["kind"],
        order["arguments"],
        "failed" if failed else _STATUS[found.status],
        total if found.status == "SUCCESS" else int(said.get("done", 0)),
        total,
        orjson.loads(str(found.output)) if found.status == "SUCCESS" else None,
        said.get("error") or (str(found.error) if found.error else None),
        datetime.fromtimestamp((found.created_at or 0) / 1000, UTC),
    )
