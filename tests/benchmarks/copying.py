"""What copying a memory costs, from files and PostgreSQL to either, beside its bare rows.

The floor of a direction reads what is copied as the source keeps it, and writes the rows of the
finished copy into an empty target with its indexes: sqlite3 and COPY alone, a transaction a page;
nothing is compared, checked or derived. Two files and two databases of one server take part.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.message import Step
from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE
from tests.benchmarks.capacity_process import cpu_of_server
from tests.benchmarks.conditions import conditions
from tests.benchmarks.corpus import made_conversations, made_steps
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.cluster.postgres import PostgresServer, wait_for

_PAGE, _MESSAGES, _TALK = 500, 5, 20
_COPIED = "branch session message agent_step run embedding".split()  # noqa: SIM905 - names read better so
_KINDS = ("file", "server")
_ALONE = """SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend'
    HAVING count(*) = 1"""


def report(json_output: bool = False, **options: Any) -> None:
    """Print what each direction costs; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
        return
    rows = [
        [
            *name.split(":"),
            *(number(cost[key], 1) for key in ("client_cpu", "server_cpu", "wall")),
            number(result["options"]["steps"] / cost["wall"], 0),
            number(result["options"]["steps"] / (cost["client_cpu"] + cost["server_cpu"]), 0),
            number(cost.get("bytes", 0) / 1e6, 0) if cost.get("bytes") else "-",
        ]
        for name, cost in result["costs"].items()
    ]
    columns = ["from → to", "", "CPU, s", "server", "wall, s", "steps/s", "of CPU", "copy, MB"]
    notes = [
        "of CPU: steps a second that a core of both sides together would copy;",
        "copy: from an empty target until it was read back and compared;",
        "floor: the same rows by sqlite3 and COPY alone.",
    ]
    print_tables([Table("copying a memory", columns, rows, notes)], result)


def measure(steps: int = 20_000, directions: str = "") -> dict[str, Any]:
    """Return what copies cost in seconds.

    Args:
        steps: How many the memory has, of 1 KB each with its embedding; a fifth as many messages
            in talks of 20, a tenth of these forked.
        directions: Such as file-server,server-file; all four by default.
    """
    os.environ[FOLDER_VARIABLE] = "no"
    asked = directions.split(",") if directions else [f"{a}-{b}" for a in _KINDS for b in _KINDS]
    costs: dict[str, dict[str, float]] = {}
    server = PostgresServer("copying")
    try:
        with tempfile.TemporaryDirectory(prefix="copying-") as folder:
            places = _Places(Path(folder), server)
            sources = {kind: places.new(kind) for kind in _KINDS}
            with StepMemory(sources["file"], embedder="hashing") as memory:
                _fill(memory, steps)
                memory.copy_to(sources["server"])
            for direction in asked:
                source, target = direction.split("-")
                costs |= _measured(places, sources[source], target, f"{source} → {target}")
    finally:
        server.close()
    return {**conditions(steps=steps, directions=directions), "costs": costs}


class _Places:
    """Empty addresses, and what work costs this process and the server."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder, self.server, self._made = folder, server, 0

    def new(self, kind: str) -> str:
        """Return the address of a memory that is not there yet."""
        self._made += 1
        if kind == "file":
            return str(self._folder / f"{self._made}.db")
        self.server.run(f"CREATE DATABASE copy_{self._made}")
        return self.server.address(f"copy_{self._made}")

    def cost(self, work: Callable[[], Any]) -> dict[str, float]:
        """Return what work takes."""
        first = self.server.processes()[0].pid
        theirs, cpu, wall = cpu_of_server(first), time.process_time(), time.perf_counter()
        work()
        ours = {"client_cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        wait_for(lambda: self.server.run(_ALONE), "connections to end, whose CPU counts then")
        return {**ours, "server_cpu": cpu_of_server(first) - theirs}


def _fill(memory: StepMemory, steps: int) -> None:
    made = list(made_steps(_PAGE))
    for first in range(0, steps, _PAGE):
        made = list(made_steps(min(_PAGE, steps - first), first=first))
        memory.add(made)
    store = memory.repository().store
    for n, talk in enumerate(made_conversations(max(steps // _MESSAGES, _TALK))):
        said = [Step.model_validate({"session_id": "-", **one}) for one in talk["messages"]]
        store.commit(f"talk-{n}", said)
        if n % 10 == 0:
            store.fork(f"talk-{n}", len(said) // 2, f"fork-{n}")
    memory.flush()


def _measured(places: _Places, source: str, target: str, name: str) -> dict[str, dict[str, float]]:
    copied, empty = places.new(target), places.new(target)

    def copy() -> None:
        with StepMemory(source, embedder="hashing") as memory:
            memory.copy_to(copied)

    found = {f"{name}:copy": places.cost(copy)}
    with StepMemory(copied) as memory:
        found[f"{name}:copy"]["bytes"] = memory.stats()["bytes"]
    StepMemory(empty).close()
    rows = dict(_rows(copied))

    def floor() -> None:
        for _ in _rows(source):
            pass
        _write(empty, rows)

    return found | {f"{name}:floor": places.cost(floor)}


def _rows(address: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the rows of each table that is copied."""
    opened: Any = psycopg.connect if "://" in address else sqlite3.connect
    with closing(opened(address)) as database:
        if "://" in address:
            database.execute("SET search_path TO hybridagi_steps")
        for table in _COPIED:
            yield table, database.execute(f"SELECT * FROM {table}").fetchall()


def _write(address: str, rows: dict[str, list[Any]]) -> None:
    """Write rows into empty tables."""
    for table, held in rows.items():
        pages = [held[n : n + _PAGE] for n in range(0, len(held), _PAGE)]
        if "://" not in address:
            with closing(sqlite3.connect(address)) as file:
                for page in pages:
                    marks = ", ".join("?" * len(page[0]))
                    with file:
                        file.executemany(f"INSERT INTO {table} VALUES ({marks})", page)
            continue
        statement = f"COPY hybridagi_steps.{table} FROM STDIN".encode()
        with psycopg.connect(address) as server:
            for page in pages:
                with server.cursor().copy(statement) as copy:
                    for row in page:
                        copy.write_row(row)
                server.commit()
