"""A whole cluster as processes: databases, a standby, and the services of the compose file.

What is started are the commands of `.github/deploy/compose.yaml` with addresses of this machine,
so that what is played with and tested is what is deployed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.cluster.deployment import command_of, our_services
from tests.cluster.postgres import (
    PATIENCE_SECONDS,
    PostgresServer,
    address_of,
    standby_of,
    wait_for,
)

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.cluster.program:assistant"
_PLACES = {"0.0.0.0": "127.0.0.1"}  # noqa: S104 - what a container listens on
_READY = "Ctrl-C"
"""Stands in the last line that a server or worker prints when it has started."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a cluster consists of."""

    databases: int = 2
    """PostgreSQL servers that can be written to; the memory is in the first."""
    standby: bool = True
    """Whether the first has a standby."""
    synchronous: bool = False
    """Whether commits of the first wait until the standby has them on disk."""
    servers: int = 2
    workers: int = 2
    program: str = PROGRAM
    options: tuple[str, ...] = ()
    """More words for each server."""
    environment: Path | None = None
    """A virtual environment with the wheel, whose command is what runs; None: the checkout."""

    @property
    def parts(self) -> int:
        """How many processes it has that are started one after the other."""
        return self.databases + self.standby + self.servers + self.workers


class Service:
    """One process of the command line, its output in a file."""

    def __init__(
        self,
        name: str,
        words: list[str],
        environment: Mapping[str, str],
        folder: Path,
        entry: Sequence[str | Path] = (sys.executable, "-m", "hybridagi_steps"),
    ) -> None:
        self.name, self.words, self._log = name, words, folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*entry, *words],
                env={**os.environ, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for who started us, who ends it in its turn
            )
        self.page = ""

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text("utf-8", "replace")

    @property
    def address(self) -> str:
        """Where a server is."""
        return self.page.partition("/#")[0].rstrip("/")

    def wait(self) -> None:
        """Wait until it has started."""
        wait_for(self._has_started, f"{self.name} to start")
        pages = [line for line in self.said.splitlines() if line.startswith("page:")]
        self.page = pages[0].removeprefix("page:").strip() if pages else ""

    def close(self) -> int:
        """End it in order, by force where it does not end; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _has_started(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} did not start: {self.said[-2000:]}")
        return _READY in self.said


@dataclass
class Cluster:
    """What runs."""

    shape: Shape
    folder: Path
    token: str
    databases: list[PostgresServer] = field(default_factory=list["PostgresServer"])
    standby: PostgresServer | None = None
    servers: list[Service] = field(default_factory=list["Service"])
    workers: list[Service] = field(default_factory=list["Service"])

    @property
    def primary(self) -> PostgresServer:
        """The database with the memory."""
        return self.databases[0]

    @property
    def address(self) -> str:
        """The memory's address, with the standby beside the primary."""
        return address_of([self.primary, *([self.standby] if self.standby else [])])

    @contextmanager
    def clients(self) -> Generator[list[httpx.Client]]:
        """Give a client of each server, with the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    httpx.Client(base_url=one.address, headers=headers, timeout=PATIENCE_SECONDS)
                )
                for one in self.servers
            ]


@contextmanager
def started(shape: Shape, tell: Callable[[str], object] = lambda _: None) -> Generator[Cluster]:
    """Start a cluster; end all of it, and remove its folders, when the block ends.

    Args:
        shape: What it consists of.
        tell: Called with the name of each part when it runs.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cluster-"))
        stack.callback(shutil.rmtree, folder)
        cluster = Cluster(shape, folder, secrets.token_urlsafe(24))
        for number in range(shape.databases):
            server = PostgresServer(f"database-{number + 1}")
            stack.callback(server.close)
            cluster.databases.append(server)
            tell(server.name)
        if shape.standby:
            cluster.standby = standby_of(cluster.primary, "standby-1")
            stack.callback(cluster.standby.close)
            tell(cluster.standby.name)
        if shape.synchronous:
            cluster.primary.wait_for_commits_of(cluster.standby)
            stack.callback(_let_go, cluster.primary)
        _start_services(cluster, stack, tell)
        yield cluster


def _start_services(cluster: Cluster, stack: ExitStack, tell: Callable[[str], object]) -> None:
    """Start servers and workers, which wait for nobody but the database."""
    environment = {
        "HYBRIDAGI_STEPS_DB": cluster.address,
        "HYBRIDAGI_STEPS_TOKEN": cluster.token,
        "HYBRIDAGI_STEPS_CACHE": "no",
        "DSPY_CACHEDIR": str(cluster.folder / "dspy"),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    variables, entry = (
        {"STEPS_PROGRAM": cluster.shape.program},
        [sys.executable, "-m", "hybridagi_steps"],
    )
    if (installed := cluster.shape.environment) is not None:
        program = cluster.folder / "program"  # mounted so into a container
        program.mkdir()
        shutil.copy(ROOT / "tests" / "cluster" / "program.py", program)
        environment["PYTHONPATH"] = str(program)
        variables, entry = {}, [str(installed / "bin" / "hybridagi-steps")]
    for kind, count in (("server", cluster.shape.servers), ("worker", cluster.shape.workers)):
        services = cluster.servers if kind == "server" else cluster.workers
        for number in range(count):
            name = f"{kind}-{number + 1}"
            words = _words(cluster.shape, kind, number, variables)
            services.append(Service(name, words, environment, cluster.folder, entry))
            stack.callback(services[-1].close)
    for service in (*cluster.servers, *cluster.workers):
        service.wait()
        tell(service.name)


def _words(shape: Shape, kind: str, number: int, variables: Mapping[str, str]) -> list[str]:
    """Return the command of a service in the compose file, with addresses of this machine."""
    composed = [service for name, service in our_services().items() if name.startswith(kind)]
    words = command_of(composed[number % len(composed)], variables)
    free = ["--port", "0", *shape.options] if kind == "server" else []
    return [*(_PLACES.get(word, word) for word in words), *free]


def _let_go(primary: PostgresServer) -> None:
    """Let no commit wait for a standby that is about to end, if the primary is still there."""
    if primary.processes():
        primary.wait_for_commits_of(None)
