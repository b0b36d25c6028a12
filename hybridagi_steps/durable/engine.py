"""DBOS engine: one for each process, which takes work from a queue and recovers that of the dead.

Both queues (runs of sessions, steps of plans) stand on it: addresses and errors of databases, the
stored form (JSON), start and end of DBOS, worker names, recovery. Knows nothing of runs or plans.
A worker holds its name as long as it lives (worker_names.py): what began under a name that is free
goes back into the queue. DBOS keeps what the one says that took the work last.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from hybridagi_steps.durable.worker_names import FileNames, LeasedNames
from hybridagi_steps.errors import InvalidSettingError, MissingExtraError, StorageError
from hybridagi_steps.outside_files import OWN_FORM, QueueFile, make_private, refuse_foreign_forms
from hybridagi_steps.records.json_reading import as_object
from hybridagi_steps.stores.address import checked_server, is_server

if TYPE_CHECKING or find_spec("dbos"):
    from dbos import DBOS, DBOSClient, Serializer
    from dbos import error as dbos_error
    from psycopg import Error as DriverError
    from psycopg.conninfo import conninfo_to_dict
    from sqlalchemy import URL, create_engine, event, make_url, text
    from sqlalchemy.exc import SQLAlchemyError

    from hybridagi_steps.stores.postgres import work_tables
else:  # said when a queue is opened, not when this module is loaded
    DBOS, Serializer = None, object

APPLICATION = "hybridagi-steps"
_SQLITE, _PSYCOPG, _LOCK = "sqlite:///", "postgresql+psycopg", 0x48535253
_DRIVER = re.compile(r"\+\w+(?=://)")  # said by SQLAlchemy's addresses beside the kind of server

FOREIGN_FORM = "its row in the queue is in a form that is not read here"

_log = logging.getLogger("hybridagi_steps")
_NOTHING = logging.Filter("no logger has this name")


class Worker(Protocol):
    """Does the work of a queue in this process."""

    async def do(self, work: str, /) -> str:
        """Return what comes of a piece of work."""
        ...


class _Process:
    """What there is once in each process, because DBOS is."""

    def __init__(self) -> None:
        self.running = threading.Lock()
        self.worker: Worker | None = None


_process = _Process()


def check_installed() -> None:
    """Check that the extra `durable` is there."""
    if not DBOS:
        raise MissingExtraError("durable runs", "durable")


def workflow(name: str, attempts: int = 100) -> Callable[[str], Coroutine[Any, Any, str]]:
    """Return the workflow that has work done by the worker of this process; DBOS keeps its result.

    Work that takes its worker down as often as there are `attempts` is given up.
    """

    async def do(work: str) -> str:
        if _process.worker is None:
            raise StorageError("this process is no worker.")
        return await _process.worker.do(work)

    return DBOS.workflow(name=name, max_recovery_attempts=attempts)(do) if DBOS else do


class JsonSerializer(Serializer):
    """What DBOS stores, as JSON; its own default is pickle, which can run code when read."""

    def serialize(self, data: object) -> str:
        """Return data as JSON text; what JSON cannot hold as its `repr`."""
        return orjson.dumps(data, default=repr).decode()

    def deserialize(self, serialized_data: str) -> Any:
        """Return data from its JSON text."""
        return orjson.loads(serialized_data)

    def name(self) -> str:
        """Return the name that the database knows this form by."""
        return OWN_FORM


def handed_out_text(status: Any) -> str | None:
    """Return the text that a piece of work was handed out with; None where its form is refused."""
    order = as_object(status.input)
    return order["args"][0] if order else None


class QueueDatabase(NamedTuple):
    """Where a queue is kept."""

    address: str
    """As libpq has it; of a file as SQLAlchemy has it."""
    file: Path | None
    """Of SQLite."""
    use: str
    """What it is for, in the words of an error: `a durable queue`."""
    advice: str = ""
    """What to do when it cannot be used."""

    @classmethod
    def of(cls, place: os.PathLike[str] | str, use: str, advice: str = "") -> QueueDatabase:
        """Return the database at a path or an address."""
        path = os.fspath(place).removeprefix(_SQLITE)
        if is_server(path):
            server = cls(checked_server(_DRIVER.sub("", path)), None, use, advice)
            if not server.address.startswith(("postgresql:", "postgres:")):
                raise server.unusable("its address is neither a path nor postgresql://…")
            return server
        file = Path(path).resolve()
        return cls(f"{_SQLITE}{file}", file, use, advice)

    @property
    def url(self) -> str:
        """The address as SQLAlchemy has it, which names several hosts in its own way."""
        if self.file is not None:
            return self.address
        parts: dict[str, Any] = conninfo_to_dict(self.address)
        user, password, database = (parts.pop(n, None) for n in ("user", "password", "dbname"))
        hosts, ports = (str(parts.pop(n, "")).split(",") for n in ("host", "port"))
        if len(hosts) > 1:
            ports = ports * len(hosts) if len(ports) == 1 else ports
            parts["host"] = [f"{h}:{p or 5432}" for h, p in zip(hosts, ports, strict=True)]
        else:
            parts |= {n: v for n, [v] in (("host", hosts), ("port", ports)) if v}
        url = URL.create("postgresql", user, password, None, None, database, parts)
        return url.render_as_string(hide_password=False)

    @contextmanager
    def opening(self) -> Generator[None]:
        """Translate what goes wrong inside the block; DBOS would also log it with a traceback."""
        log = logging.getLogger("dbos")
        log.addFilter(_NOTHING)
        try:
            yield
        except OSError as error:
            raise self.unusable(error.strerror or str(error)) from error
        except (SQLAlchemyError, DriverError, dbos_error.DBOSException) as error:
            cause = str(getattr(error, "orig", None) or error).rstrip(".?")
            raise self.unusable(cause) from error
        finally:
            log.removeFilter(_NOTHING)

    def unusable(self, cause: str) -> StorageError:
        """Return the error of a database that cannot be used."""
        told = f"{self.file or 'the database'} cannot be used as"  # an address may hold a password
        return StorageError(f"{told} {self.use}: {cause}. {self.advice}".rstrip())

    def schema(self, queue: str) -> str:
        """Return the schema that holds a queue; an SQLite file has but one."""
        return work_tables.schema_of_queue(self.address, queue) if self.file is None else "dbos"

    def client(self, queue: str) -> Any:
        """Return a client of a queue; file or schema are created where there are none."""
        with self.opening():
            if self.file is not None:
                make_private(self.file)
            schema = self.schema(queue)
            DBOS.migrate(self.url, schema=schema)
            if self.file is None:
                work_tables.isolate(self.address)
            client = DBOSClient(
                system_database_url=self.url,
                dbos_system_schema=schema,
                serializer=JsonSerializer(),
                application_name=APPLICATION,
                retry_connection_errors=False,  # without end, and to be cancelled by nobody
            )
            connections = client._sys_db.engine  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

            def refuse(raw: Any, _: object) -> None:
                refuse_foreign_forms(raw)

            event.listen(connections, "connect", refuse)
            if self.file is None:
                work_tables.limit_all(connections)
            connections.dispose()  # what it has tried
            return client


class QueueTables:
    """Statements on a queue's tables, for what DBOS's client cannot say."""

    def __init__(self, database: QueueDatabase, queue: str) -> None:
        self._database, schema = database, database.schema(queue)
        self._is_server = database.file is None  # else there is one writer, and one schema
        url = make_url(database.url)
        self._sql = create_engine(url.set(drivername=_PSYCOPG) if self._is_server else url)
        if self._is_server:
            work_tables.limit_all(self._sql)
        self._status = f'"{schema}".workflow_status' if self._is_server else "workflow_status"

    def ask(self, statement: str, *, lock: bool = False, **values: Any) -> list[Any]:
        """Run one statement on the table `{status}` and return its rows, in a transaction.

        It is spelled as both SQLite and PostgreSQL take it; others that `lock`, too, wait.
        """
        with self._database.opening(), self._sql.begin() as raw:
            if lock and self._is_server:
                raw.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            found = raw.execute(text(statement.format(status=self._status)), values)
            return [*found] if found.returns_rows else []

    def close(self) -> None:
        """Let the connections go."""
        self._sql.dispose()


class Outage:
    """A time in which a queue cannot be used, however often it is tried: its begin and its end."""

    def __init__(self) -> None:
        self.lasts = False

    @contextmanager
    def noted(self, name: str) -> Generator[None]:
        """Log the first of the errors inside the block, and that there is none any more."""
        try:
            yield
        except Exception as error:
            if not self.lasts and threading.main_thread().is_alive():
                fault = None if isinstance(error, StorageError) else error
                _log.warning("%s: the queue is away: %s", name, error, exc_info=fault)
            self.lasts = True
        else:
            if self.lasts:
                _log.warning("%s: the queue is back", name)
            self.lasts = False


class Engine:
    """DBOS in this process, for a queue whose name ends with its namespace where it has one.

    Work is taken up only by code that reads its `version`; `prefix` is what names of workers begin
    with.
    """

    def __init__(self, database: QueueDatabase, queue: str, version: str, prefix: str) -> None:
        self.database, self.queue, self.version = database, queue, version
        self._namespace = queue.partition(":")[2]
        self._prefix = prefix
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._recover, daemon=True, name=f"{prefix}recovery")
        self._stack = ExitStack()
        self._look: Callable[[], None] | None = None
        self._names: FileNames | LeasedNames
        self.name = ""

    def serve_as(self, worker: Worker) -> None:
        """Have the work done by another worker from now on."""
        _process.worker = worker

    def start(
        self,
        worker: Worker,
        *,
        at_once: Mapping[str, int],
        poll_seconds: float,
        serves: bool = True,
        worker_id: str | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Launch DBOS; what dead workers had begun is put back into the queue, now and later.

        `worker` does what is taken, of each queue that is served so much `at_once` in this process,
        unless work is only handed out (`serves`). Without a name it has the first that nobody
        living holds. `look` is also called whenever dead workers are looked for, in the same
        thread.
        """
        self._look = look
        with ExitStack() as stack, self.database.opening():
            stack.enter_context(only_engine(worker))
            # Before DBOS is launched, which may take work at once.
            client = self.database.client(self.queue)
            for queue, most in at_once.items():
                client.register_queue(
                    queue, worker_concurrency=most, polling_interval_sec=poll_seconds
                )
            client.destroy()
            address, file = self.database.address, self.database.file
            self._names = FileNames(file) if file else LeasedNames(address, self._namespace)
            undo = stack.enter_context(ExitStack())
            undo.callback(self._names.close)
            self._take_name(worker_id)
            undo.callback(DBOS.destroy)
            DBOS(config=self._config(poll_seconds))
            DBOS.listen_queues([*at_once] if serves else [])
            DBOS.launch()
            undo.pop_all()
            self._stack = stack.pop_all()
        self._watch.start()

    def stop(self, grace_seconds: float = 0.0) -> None:
        """End DBOS; the name is held until it is released, for what still goes on."""
        self._stopping.set()
        # DBOS tries again without end what a locked database refuses; nobody waits for that.
        self._watch.join(max(grace_seconds, 1.0))
        with self._stack:
            DBOS.destroy(workflow_completion_timeout_sec=round(grace_seconds))

    def release_name(self) -> None:
        """Let other workers take up what this one has left."""
        self._names.release(self.name)
        self._names.close()

    def _take_name(self, worker_id: str | None) -> None:
        if worker_id is None:
            self.name = self._names.first_free(self._prefix)
            return
        # Of another namespace one may be called so, too: DBOS knows workers by their name alone.
        self.name = f"{worker_id}@{self._namespace}" if self._namespace else worker_id
        if not self._names.take(self.name):
            raise InvalidSettingError(
                f"a running process is the worker {worker_id!r}; give another worker_id, or none."
            )

    def _config(self, poll_seconds: float) -> Any:
        connect = partial(work_tables.limited, self.database.address)
        of_file = {"connect_args": {"factory": QueueFile}}
        return {
            "name": APPLICATION,
            "system_database_url": self.database.url,
            "dbos_system_schema": self.database.schema(self.queue),
            "use_listen_notify": False,  # nothing here waits for DBOS's messages
            "executor_id": self.name,
            "application_version": self.version,
            "serializer": JsonSerializer(),
            "log_level": "ERROR",
            "enable_otlp": False,
            "notification_listener_polling_interval_sec": poll_seconds,
            "db_engine_kwargs": of_file if self.database.file else {"creator": connect},
        }

    def _recover(self) -> None:
        """Put work that dead workers had begun back into the queue, until this engine stops."""
        outage = Outage()
        while True:
            with outage.noted(self.name):  # the work waits for the next look
                if self._names.renew(self.name):
                    self._recover_dead()
                if self._look is not None:
                    self._look()
            if self._stopping.wait(self._names.look_seconds):
                return
            if outage.lasts and not threading.main_thread().is_alive():
                return  # DBOS ends with the process

    def _recover_dead(self) -> None:
        begun = DBOS.list_workflows(
            status="PENDING", app_version=self.version, load_input=False, load_output=False
        )
        # Names are held within a namespace: of another one nobody here can tell who lives.
        own: set[str | None] = set()
        for status in begun:  # what was not handed out says its queue itself
            queue = dict[str, Any](status.attributes or {}).get("queue") or status.queue_name or ""
            own |= {status.executor_id} if queue.partition(":")[2] == self._namespace else set()
        for name in own - {self.name}:
            if name is not None and self._names.take(name):
                try:
                    DBOS._recover_pending_workflows([name])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                finally:
                    self._names.release(name)


@contextmanager
def only_engine(worker: Worker | None = None) -> Generator[None]:
    """Hold this process's one place for an engine in the block."""
    if not _process.running.acquire(blocking=False):
        raise InvalidSettingError("this process is a worker already; start another process.")
    _process.worker = worker  # before DBOS is launched, which may take work at once
    try:
        yield
    finally:
        _process.worker = None
        _process.running.release()
