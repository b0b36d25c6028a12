"""DBOS as this library uses it: what is stored is JSON, one engine runs in a process.

Knows addresses, the serializer, how an engine starts and ends, and which workers are dead; knows
nothing of runs or plans. A worker has a name that it holds by a lock on a file. The system lets go
of the lock when the process dies, however it dies, so no heartbeat is needed on one machine.
"""

# DBOS keeps one instance for each process; so does this module.

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from hybridagi_steps.errors import InvalidSettingError, MissingExtraError, StorageError
from hybridagi_steps.outside_files import make_private

try:
    from dbos import DBOS, DBOSClient, Serializer
    from sqlalchemy.exc import SQLAlchemyError
except ImportError as error:
    raise MissingExtraError("durable runs", "durable") from error
try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

APPLICATION = "hybridagi-steps"
FORMAT_VERSION = "1"
"""Work is taken up only by code that reads this form of it."""
_running = threading.Lock()


class JsonSerializer(Serializer):
    """What DBOS stores, as JSON; its own default is pickle, which can run code when read."""

    def serialize(self, data: Any) -> str:
        """Return data as JSON text; what JSON cannot hold as its `repr`."""
        return orjson.dumps(data, default=repr).decode()

    def deserialize(self, serialized_data: str) -> Any:
        """Return data from its JSON text."""
        return orjson.loads(serialized_data)

    def name(self) -> str:
        """Return the name that the database knows this form by."""
        return "hybridagi_steps_json"


def address_of(database: Path) -> str:
    """Return the SQLAlchemy address of an SQLite file."""
    return f"sqlite:///{database}"


def open_client(database: Path) -> Any:
    """Return a client of the engine's database, which is created if it is not there."""
    try:
        make_private(database)
        DBOS.migrate(address_of(database))
        return DBOSClient(
            system_database_url=address_of(database),
            serializer=JsonSerializer(),
            application_name=APPLICATION,
        )
    except OSError as error:
        raise StorageError(
            f"{database} cannot be used as a queue of runs: {error.strerror}."
        ) from error
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise StorageError(f"{database} cannot be used as a queue of runs: {cause}.") from error


class WorkerName:
    """A name that one living process at a time can hold.

    POSIX locks, unlike `flock`, are not kept alive by a child that a killed worker leaves behind.

    Args:
        database: The engine's database; the lock files stand beside it.
        name: The name.
    """

    def __init__(self, database: Path, name: str) -> None:
        if fcntl is None:
            raise InvalidSettingError("workers need file locks, which this system does not have.")
        self.name = name
        self._path = database.with_name(f"{database.name}.{name}.lock")
        self._descriptor = -1

    def take(self) -> bool:
        """Take the name if no living process holds it."""
        assert fcntl is not None  # noqa: S101 - checked when it was made
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def first_free_name(database: Path, prefix: str) -> WorkerName:
    """Return the first of `prefix1`, `prefix2`, … that no living process holds, taken."""
    number = 1
    while not (name := WorkerName(database, f"{prefix}{number}")).take():
        number += 1
    return name


def recover_dead(client: Any, database: Path, queue: str, own: str) -> int:
    """Put work that dead workers had begun back into the queue; return how much."""
    begun = client.list_workflows(
        status="PENDING", queue_name=queue, load_input=False, load_output=False
    )
    recovered = 0
    for name in {status.executor_id for status in begun} - {own, None}:
        worker = WorkerName(database, name)
        if not worker.take():
            continue
        try:
            recovered += len(DBOS._recover_pending_workflows([name]))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        finally:
            worker.release()
    return recovered


@contextmanager
def only_engine() -> Generator[None]:
    """Hold this process's one place for an engine in the block."""
    if not _running.acquire(blocking=False):
        raise InvalidSettingError("this process is a worker already; start another process.")
    try:
        yield
    finally:
        _running.release()


@contextmanager
def engine(database: Path, worker: str, queue: str, grace_seconds: float) -> Generator[None]:
    """Run DBOS in the block: work in the queue is taken, as that worker."""
    DBOS(
        config={
            "name": APPLICATION,
            "system_database_url": address_of(database),
            "executor_id": worker,
            "application_version": FORMAT_VERSION,
            "serializer": JsonSerializer(),
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    try:
        DBOS.listen_queues([queue])
        DBOS.launch()
        yield
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=round(grace_seconds))
