"""Files outside of a memory's own that hold what it may have to erase: queues, workspaces, indexes.

Knows which tables the engine of a queue (DBOS) keeps runs in, how a workspace's state folder is
laid out, and what the writers of an index leave; needs none of them, so that any process can erase.
Whether a run is to go, the caller says.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from glob import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote

from hybridagi_steps.errors import StorageError

try:
    import fcntl
except ImportError:  # not a POSIX system, which has no workspaces either
    fcntl = None

UNFINISHED = ".tmp"
_BUSY_SECONDS = 30.0
_ABANDONED_SECONDS = 3600
_RUNS = """SELECT s.workflow_uuid, coalesce(s.queue_name, s.attributes ->> '$.queue'), i.inputs
    FROM workflow_status s
    LEFT JOIN workflow_input i ON i.workflow_uuid = s.workflow_uuid"""
QUEUES = """SELECT coalesce(queue_name, attributes ->> 'queue') AS queue,
    sum(CASE WHEN status IN ('ENQUEUED', 'DELAYED') THEN 1 ELSE 0 END),
    sum(CASE status WHEN 'PENDING' THEN 1 ELSE 0 END),
    sum(CASE WHEN status IN ('ERROR', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED') THEN 1 ELSE 0 END),
    min(CASE WHEN status IN ('ENQUEUED', 'DELAYED') THEN created_at END)
    FROM {}workflow_status WHERE coalesce(queue_name, attributes ->> 'queue') IS NOT NULL
    GROUP BY queue ORDER BY queue"""
"""Of each queue its name, how many wait, go on and were given up, and since when (ms) one waits."""
log = logging.getLogger("hybridagi_steps")
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
PLANS = "plan-steps"
"""What queues of plans are called: in a file so alone."""
OWN_FORM = "hybridagi_steps_json"
READ_FORMS = frozenset({OWN_FORM, "portable_json"})
"""Of values in a queue; the second is DBOS's own JSON. A row without a form has the first."""
_FORM_COLUMN = "serialization"
RUN_COLUMNS = frozenset({"workflow_uuid", "destination_uuid"})
"""What the tables of a queue call the run that a row belongs to."""


class QueuedRun(NamedTuple):
    """One run or piece of work in a queue."""

    id: str
    queue: str | None
    text: str
    """What it was asked, as the JSON text that was handed out; empty when there is none."""


class Whose(NamedTuple):
    """Whom an erasure is about."""

    namespace: str
    user_id: str | None = None
    """The user who goes as a whole, if one does."""
    everybody: bool = False


def queues_of_runs(namespace: str) -> tuple[str, str]:
    """Return the names of a memory's queues of durable runs: those that wait, and those to do."""
    return f"session-runs:{namespace}", f"ready-session-runs:{namespace}"


def queue_of_jobs(namespace: str) -> str:
    """Return the name of a memory's queue of bulk jobs."""
    return f"bulk-jobs:{namespace}"


def queue_of_plans(namespace: str) -> str:
    """Return the name of a namespace's queue of plans in PostgreSQL; that of a file is for all."""
    return f"{PLANS}:{namespace}"


def make_private(path: Path) -> None:
    """Create a file that is not there yet, so that its owner alone can read it.

    One that is there is not even opened: closing it would drop SQLite's locks in this process.
    """
    with suppress(FileExistsError):
        os.close(private_opener(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))


def private_opener(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for `open`; one that this creates can be read by its owner alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Generator[BinaryIO]:
    """Give a file beside a path, which takes its place once all went well; else it is gone.

    Its owner alone can read it. With `sync` its content is on the disk before it has that place.
    """
    temporary: Path | None = None
    try:
        with NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
        ) as file:
            temporary = Path(file.name)
            yield cast("BinaryIO", file)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise


def queues_of(path: Path) -> list[tuple[Any, ...]]:
    """Return what `QUEUES` finds in the file of a queue; nothing where there is none."""
    if not path.is_file():
        return []
    with closing(
        sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    ) as queue:
        return queue.execute(QUEUES.format("")).fetchall()


class QueueFile(sqlite3.Connection):
    """A connection to the file of a queue that refuses foreign forms."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refuse_foreign_forms(self)


def refuse_foreign_forms(raw: Any) -> None:
    """Have a connection rename, in each row that it reads, a form that no queue reads.

    DBOS reads a value in the form that its row names, pickle among them, whatever serializer it
    was set up with: whoever can write a row could have code run. For a name that it does not know
    it has no reader, and that row alone fails.
    """
    factory: Any = _file_row if isinstance(raw, sqlite3.Connection) else _server_rows
    setattr(raw, "row_factory", factory)  # noqa: B010 - each kind of connection has its own type of it


def _file_row(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return _without_foreign_forms(row, _form_places(cursor.description))


def _server_rows(cursor: Any) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    places = _form_places(cursor.description or ())
    return lambda row: _without_foreign_forms(tuple(row), places)


def _form_places(columns: Sequence[Any]) -> list[int]:
    return [place for place, column in enumerate(columns) if _FORM_COLUMN in column[0]]


def _without_foreign_forms(row: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
    foreign = {n for n in places if row[n] is not None and row[n] not in READ_FORMS}
    if not foreign:
        return row
    return tuple(f"refused: {v!r}" if n in foreign else v for n, v in enumerate(row))


def erase_from_queue(path: Path, gone: Callable[[QueuedRun], bool]) -> int:
    """Delete runs from the file of a queue, to the last byte; return how many there were."""
    if not path.is_file():
        raise FileNotFoundError(path)
    address = f"{path.as_uri()}?mode=rw"
    with closing(
        sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    ) as queue:
        queue.execute("PRAGMA secure_delete = ON")
        queue.execute("BEGIN IMMEDIATE")
        found: list[tuple[str, str | None, str | None]] = queue.execute(_RUNS).fetchall()
        runs = [QueuedRun(key, name, handed_out(inputs)) for key, name, inputs in found]
        ids = json.dumps([run.id for run in runs if gone(run)])
        for (table,) in queue.execute(_TABLES).fetchall():
            columns = {row[1] for row in queue.execute(f'PRAGMA table_info("{table}")')}
            for column in RUN_COLUMNS.intersection(columns):
                queue.execute(
                    f'DELETE FROM "{table}" WHERE "{column}" IN (SELECT value FROM json_each(?))',  # noqa: S608 - names of the file's own tables
                    (ids,),
                )
        queue.execute("COMMIT")
        queue.execute("VACUUM")
        queue.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return len(json.loads(ids))


def prefix_of_plans(namespace: str) -> str:
    """Return what ids of a namespace's work of plans begin with in PostgreSQL."""
    return f"{quote(namespace, safe='')}/"


def plan_runs(keys: Iterable[str], namespace: str) -> Callable[[QueuedRun], bool]:
    """Return what tells the work of these runs of plans; see planning/queued_steps.py."""
    quoted = [f"{quote(key, safe='')}:" for key in keys]
    prefixes = (*quoted, *(prefix_of_plans(namespace) + key for key in quoted))
    return lambda run: run.id.startswith(prefixes)


class StateFolder:
    """Where a workspace keeps snapshots, and the new files of steps until they are merged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold a lock that other processes, and other objects in this one, respect."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = private_opener(self.path / "lock", os.O_RDWR | os.O_CREAT)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def object(self, name: str) -> Path:
        """Return the file of a content."""
        return self.path / "objects" / name[:2] / name

    def snapshot(self, snapshot_id: str) -> Path:
        """Return the file of a snapshot."""
        return self.path / "snapshots" / f"{snapshot_id}.json"

    def handed_on(self, key: str) -> Path:
        """Return the folder of what the run of a plan left: new contents, names of snapshots."""
        return self.path / "handed_on" / quote(key, safe="").replace(".", "%2E")

    def drop_unnamed(self, contents: Iterable[str]) -> None:
        """Drop those of the contents that no snapshot names."""
        named = {
            entry[2]
            for path in self.path.glob("snapshots/*.json")
            for entry in json.loads(path.read_bytes()).values()
        }
        for name in set(contents) - named:
            self.object(name).unlink(missing_ok=True)

    def forget(self, snapshot_id: str) -> None:
        """Drop a snapshot, and the contents that no other one names."""
        self.snapshot(snapshot_id).unlink(missing_ok=True)
        self.drop_unnamed([path.name for path in self.path.glob("objects/*/*")])

    def forget_run(self, key: str) -> None:
        """Drop what a plan's run has left here."""
        if not self.path.is_dir():
            raise FileNotFoundError(self.path)
        with self.locked():
            for noted in self.handed_on(key).glob("*.snapshot"):
                self.forget(noted.stem)
            if self.handed_on(key).is_dir():
                shutil.rmtree(self.handed_on(key))


def handed_out(inputs: str | None) -> str:
    """Return the one argument that a run was handed out with."""
    try:
        return str(json.loads(inputs or "")["args"][0])
    except (ValueError, TypeError, KeyError, IndexError):
        return ""


def columns_path(cache: Path) -> Path:
    """Return where the columns of filters are cached: many an index is not worth writing for."""
    return cache.with_suffix(".keys.index")


def erase_cache(cache: Path) -> None:
    """Remove an index and the columns of filters, or empty what cannot be removed.

    What is half written goes, too: who is writing finds it gone and goes on without a cache.
    """
    for file in cached_files(cache):
        _erase(file)


def cached_files(cache: Path) -> Iterator[Path]:
    """Yield where an index and the columns of filters are, finished or half written."""
    for path in (cache, columns_path(cache)):
        yield from (path, *_unfinished(path))


def remove_abandoned(path: Path) -> None:
    """Remove temporary files that writers killed halfway left behind."""
    for leftover in _unfinished(path):
        with suppress(FileNotFoundError):  # another process was faster
            if time.time() - leftover.stat().st_mtime > _ABANDONED_SECONDS:
                leftover.unlink()


def _unfinished(path: Path) -> Iterator[Path]:
    """Yield the files that writers of a cache are at, or were at when they were killed."""
    return path.parent.glob(f".{escape(path.name)}.*{UNFINISHED}")


def _erase(path: Path) -> None:
    try:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if path.exists():
                os.truncate(path, 0)
                log.info("the cache %s was emptied, since it cannot be removed: %s", path, error)
    except OSError as error:
        raise StorageError(
            f"what was deleted is gone from the memory, but {path} still holds words and vectors "
            f"of it, and can be neither removed nor emptied ({error.strerror}). Remove that file, "
            "or call vacuum() once it can be written."
        ) from error
