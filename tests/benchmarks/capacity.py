"""What a step costs a database, and what a year of 10,000 namespaces would take of many.

The costs are measured on a PostgreSQL server of this machine; hardware and load are assumed, and
can be given. `capacity_simulation.py` says how namespaces come, grow and are moved.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import orjson

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE
from tests.benchmarks import CHECKOUT
from tests.benchmarks.capacity_process import cpu_of_server
from tests.benchmarks.capacity_simulation import Costs, Limits, Outcome, simulate
from tests.benchmarks.conditions import conditions, counts
from tests.benchmarks.corpus import PAYLOAD_BYTES, made_steps
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.cluster.postgres import PostgresServer

_BATCH = 500
_NO_BUDGET = "1MB"
"""Which no index here fits, so that it is searched in the database."""
_WORTH_A_LINE = 100
"""Bytes for each step."""
_EXTRAPOLATED = (100_000, 1_000_000)
_BYTES = """SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'hybridagi_steps' AND c.relkind IN ('r', 'p', 'm') ORDER BY 2 DESC"""
_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


def report(json_output: bool = False, **options: Any) -> None:
    """Print unit costs, the simulation and the plan; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(
    sizes: str = "10000,40000",
    appends: int = 300,
    namespaces: int = 10_000,
    steps: int = 1_000_000_000,
    days: int = 365,
    exponent: float = 1.0,
    peak: float = 5.0,
    searches: float = 0.2,
    disk: float = 1.0,
    cores: int = 16,
    budget: int = 256,
) -> dict[str, Any]:
    """Return unit costs, the states of the simulation, and what the load would take.

    Args:
        sizes: Numbers of steps at which costs are measured; the line through both ends is what
            grows.
        appends: Steps that are appended one at a time, to be measured.
        namespaces: How many are simulated.
        steps: How many all of them have in the end.
        days: In how many days they come.
        exponent: Of Zipf's law of their sizes; 0 makes all alike.
        peak: How many times the average the busiest hour has.
        searches: Searches for each step that is appended.
        disk: Terabytes of disk of a database.
        cores: Cores of a database's machine, and of a server's.
        budget: Megabytes that a process may use for an index.
    """
    unit = _unit_costs(counts(sizes), appends)
    costs = Costs(
        bytes_per_step=unit["bytes_per_step"] + unit["search_bytes_per_step"],
        append_cpu=unit["whole"]["server_cpu"],
        wal_bytes=unit["whole"]["wal_bytes"],
    )
    outcome = simulate(
        costs,
        Limits(disk_bytes=disk * 1e12, cores=cores),
        namespaces=namespaces,
        steps=steps,
        days=days,
        exponent=exponent,
        peak=peak,
    )
    options: dict[str, Any] = {"sizes": sizes, "appends": appends, "namespaces": namespaces}
    options |= {"steps": steps, "days": days, "exponent": exponent, "peak": peak, "disk": disk}
    return {
        **conditions(**options, searches=searches, cores=cores, budget=budget),
        "unit": unit,
        "states": [asdict(state) for state in outcome.states],
        "load": _load(outcome, costs, unit, searches, budget),
    }


def _unit_costs(sizes: Sequence[int], appends: int) -> dict[str, Any]:
    """Measure what a step takes; times in seconds."""
    os.environ[FOLDER_VARIABLE] = "no"  # no index is cached, and none read
    server = PostgresServer("capacity")
    try:
        server.run("CREATE EXTENSION vector")
        searched: dict[int, dict[str, float]] = {}
        # On a busy machine the thread that indexes takes its time, and `flush` waits for it.
        opened = partial(StepMemory, server.address(), timeout_seconds=3_600)
        with opened() as memory:
            memory.add(made_steps(1))
            _index(memory)
            first, batch, index = 1, dict[str, float](), dict[str, float]()
            for size in sizes:
                made = [
                    list(made_steps(min(_BATCH, size - at), first=at))
                    for at in range(first, size, _BATCH)
                ]
                batch = _spent(server, size - first, lambda made=made: _add_all(memory, made))
                index = _spent(server, size - first, lambda: _index(memory))
                first = size
                searched[size] = _searched(server)
            tables = _tables_of(server)
            each = [[step] for step in made_steps(appends, first=first)]
            append = _spent(server, appends, lambda: _add_all(memory, each))
            with opened(memory_budget=_NO_BUDGET) as other:
                there = _spent(server, first, other.flush)
            search_bytes = sum(_tables_of(server).values()) - sum(tables.values())
            found_there = _searched(server, _NO_BUDGET)

            more = max(first // 5, 1)
            made = [list(made_steps(more, first=first + appends))]

            def keep_up() -> None:
                _add_all(memory, made)
                _index(memory)

            kept_up = _spent(server, more, keep_up)
    finally:
        server.close()
    return {
        "bytes_per_step": sum(tables.values()) / first,
        "search_bytes_per_step": search_bytes / first,
        "tables": {name: size / first for name, size in tables.items() if size > first},
        "append": append,
        "batch": batch,
        "index": index,
        "search_index": there,
        "whole": {name: append[name] + kept_up[name] - batch[name] for name in append},
        "searched": {str(size): found for size, found in searched.items()},
        "searched_there": {str(first): found_there},
        **{name: _line(searched, name) for name in searched[first]},
    }


def _index(memory: StepMemory) -> None:
    """Let words and vectors of all steps be stored."""
    memory.search("so that all is indexed")
    memory.flush()


def _tables_of(server: PostgresServer) -> dict[str, int]:
    """Return the bytes of each table with its indexes."""
    server.run("VACUUM ANALYZE")
    return dict(server.run(_BYTES))


def _add_all(memory: StepMemory, batches: Sequence[Sequence[AgentStep]]) -> None:
    for batch in batches:
        memory.add(batch)


def _spent(server: PostgresServer, count: int, work: Callable[[], None]) -> dict[str, float]:
    """Return what each of `count` steps takes of both sides, and of the write-ahead log."""
    first = server.processes()[0].pid
    [[log]], theirs = server.run(_WAL), cpu_of_server(first)
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    found = {
        "client_cpu": time.process_time() - cpu,
        "server_cpu": cpu_of_server(first) - theirs,
        "seconds": time.perf_counter() - wall,
        "wal_bytes": float(server.run(_WAL)[0][0] - log),
    }
    return {name: value / count for name, value in found.items()}


def _searched(server: PostgresServer, budget: str = "") -> dict[str, float]:
    """Let a fresh process search what is stored; see capacity_process.py."""
    command = [sys.executable, "-m", "tests.benchmarks.capacity_process", server.address()]
    done = subprocess.run(
        [*command, str(server.process_id), budget], check=True, cwd=CHECKOUT, stdout=subprocess.PIPE
    )
    return orjson.loads(done.stdout.splitlines()[-1])


def _line(searched: dict[int, dict[str, float]], name: str) -> list[float]:
    """Return what something takes at no step, and for each step: the line through what was seen."""
    (least, below), (most, above) = min(searched.items()), max(searched.items())
    slope = max((above[name] - below[name]) / max(most - least, 1), 0.0)
    return [max(below[name] - slope * least, 0.0), slope]


def _load(
    outcome: Outcome, costs: Costs, unit: dict[str, Any], searches: float, budget: int
) -> dict[str, float]:
    """Return what the busiest hour takes, and which namespaces fit a process."""
    rate, sizes = outcome.appends_per_second, outcome.sizes
    fitting = budget * 2**20 / max(unit["index_bytes"][1], 1.0)
    small = sizes <= fitting
    search = unit["search_cpu"][0] + unit["search_cpu"][1] * sizes
    asked = rate * searches * sizes / sizes.sum()
    [there] = unit["searched_there"].values()
    return {
        "appends_per_second": rate,
        "append_cores": rate * unit["whole"]["client_cpu"],
        "busiest_database_cores": outcome.busiest_cores,
        "busiest_database_wal": outcome.busiest_wal,
        "total_bytes": float(sizes.sum()) * costs.bytes_per_step,
        "largest_share": float(sizes.max() / sizes.sum()),
        "over": float(outcome.over),
        "fitting_steps": fitting,
        "small_namespaces": float(small.sum()),
        "small_steps": float(sizes[small].sum() / sizes.sum()),
        "small_index_bytes": float(sizes[small].sum() * unit["index_bytes"][1]),
        "small_search_cores": float((asked * search)[small].sum()),
        "other_search_cores": float(asked[~small].sum())
        * (there["search_cpu"] + there["search_server_cpu"]),
        "all_index_bytes": float(sizes.sum() * unit["index_bytes"][1]),
        "median_namespace": float(np.median(sizes)),
    }


def _tables(result: dict[str, Any]) -> list[Table]:
    unit, load, options = result["unit"], result["load"], result["options"]
    return [
        _size_table(unit),
        _work_table(unit),
        _search_table(unit),
        _state_table(result["states"]),
        _load_table(unit, load, options),
    ]


def _size_table(unit: dict[str, Any]) -> Table:
    tables = sorted(unit["tables"].items(), key=lambda pair: -pair[1])
    rows = [
        ["database, with indexes", number(unit["bytes_per_step"], 0)],
        *([f"  {name}", number(size, 0)] for name, size in tables if size >= _WORTH_A_LINE),
        ["  for search in it, beside", number(unit["search_bytes_per_step"], 0)],
        ["index in a process", number(unit["index_bytes"][1], 0)],
    ]
    return Table(f"one step of {PAYLOAD_BYTES:,} bytes", ["", "bytes"], rows)


def _work_table(unit: dict[str, Any]) -> Table:
    told = {"append": "append of one", "batch": f"append in {_BATCH}", "index": "words and vector"}
    told |= {"search_index": "for search in the database", "whole": "append and all of it"}
    rows: list[list[str]] = []
    for work, name in told.items():
        cpu = (number(unit[work][f"{side}_cpu"] * 1e3, 2) for side in ("client", "server"))
        rows.append([name, *cpu, number(unit[work]["wal_bytes"], 0)])
    rows.append(["loading, in each process", number(unit["build_cpu"][1] * 1e3, 2), "-", "-"])
    columns = ["CPU of one step, ms", "client", "server", "log, bytes"]
    return Table("work", columns, rows)


def _search_table(unit: dict[str, Any]) -> Table:
    places = {"process": unit["searched"], "database": unit["searched_there"]}
    rows = [
        [f"{int(size):,}", place, *_searches(found)]
        for place, measured in places.items()
        for size, found in measured.items()
    ]
    for size in _EXTRAPOLATED:
        names = ("search_cpu", "process_bytes")
        found = {name: unit[name][0] + unit[name][1] * size for name in names}
        rows.append([f"{size:,}", "extrapolated", *_searches(found)])
    columns = ["steps", "index in", "client", "server", "per core", "process, MB"]
    note = "ms of CPU; searches a second that a core of both together carries"
    return Table("hybrid search", columns, rows, [note])


def _searches(found: dict[str, float]) -> list[str]:
    client, server = found["search_cpu"], found.get("search_server_cpu")
    return [
        number(client * 1e3, 1),
        "-" if server is None else number(server * 1e3, 1),
        "-" if server is None else number(1 / (client + server), 0),
        number(found["process_bytes"] / 1e6, 0),
    ]


def _state_table(states: Sequence[dict[str, Any]]) -> Table:
    rows = [
        [
            f"{state['steps']:,}",
            number(state["day"], 0),
            number(state["databases"], 0),
            f"{state['emptiest']:.0%} - {state['fullest']:.0%}",
            number(state["moves"], 0),
            f"{state['moved_steps'] / state['steps']:.1%}",
        ]
        for state in states
    ]
    columns = ["steps", "day", "databases", "disk in use", "moves", "moved"]
    return Table("simulated: namespaces on databases", columns, rows)


def _load_table(unit: dict[str, Any], load: dict[str, float], options: dict[str, Any]) -> Table:
    a_day = options["steps"] / options["days"] * unit["whole"]["wal_bytes"]
    move = options["steps"] * load["largest_share"] * unit["batch"]["seconds"]
    rows = [
        ["bytes of all", f"{load['total_bytes'] / 1e12:.2f} TB"],
        ["write-ahead log a day", f"{a_day / 1e9:.1f} GB"],
        ["median namespace", f"{load['median_namespace']:,.0f} steps"],
        ["largest namespace", f"{load['largest_share']:.1%} of the steps"],
        ["  copied at the speed of a batch", f"{move / 3600:.0f} hours"],
        ["  too large for any database", f"{load['over']:.0f} namespaces"],
        ["appends a second, busiest hour", number(load["appends_per_second"], 0)],
        ["  cores of all clients", number(load["append_cores"], 2)],
        ["  cores of the busiest database", number(load["busiest_database_cores"], 2)],
        ["  write-ahead log it writes", f"{load['busiest_database_wal'] / 1e6:.2f} MB/s"],
        ["steps whose index fits a process", f"{load['fitting_steps']:,.0f}"],
        ["  namespaces that do", f"{load['small_namespaces']:,.0f}"],
        ["  their share of the steps", f"{load['small_steps']:.0%}"],
        ["  memory of all their indexes", f"{load['small_index_bytes'] / 1e9:,.0f} GB"],
        ["  cores of their searches, busiest hour", number(load["small_search_cores"], 1)],
        ["  cores of the others', in databases", number(load["other_search_cores"], 1)],
        ["memory, were all indexes in processes", f"{load['all_index_bytes'] / 1e12:.1f} TB"],
    ]
    return Table("the load of the end", ["", "is"], rows)
