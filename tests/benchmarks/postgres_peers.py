"""What keeping and finding steps takes on one PostgreSQL server, beside others that do it there.

All sides keep the same steps and are given the same vectors, each in a database of its own, and
take turns. CPU of the client is that of this process, CPU of the server that of the backends of a
side's database. The log is what the server's position in it moved, bytes are what tables and
indexes grew, statements those that the server logged in one more turn. No vacuum runs and no plan
is parallel meanwhile, for anybody. A ratio is the median over turns of both sides' CPU together.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import psycopg

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE
from tests.benchmarks.conditions import conditions, counts
from tests.benchmarks.corpus import USERS, made_queries, made_steps, payload, real_steps
from tests.benchmarks.peers import (
    NOT_INSTALLED,
    OURS,
    POSTGRES_FOUND,
    POSTGRES_SAVERS,
    POSTGRES_STORED,
    Peer,
    StepRecord,
    check_names,
    chosen,
)
from tests.benchmarks.peers.postgres_memory import BOTH, MEANING, FixedVectors, K, PostgresSide
from tests.benchmarks.postgres_tables import tables
from tests.benchmarks.tables import print_json, print_tables
from tests.benchmarks.timing import interleaved
from tests.benchmarks.write_peers import record_of
from tests.cluster.postgres import PostgresServer, wait_for

_SETTINGS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "max_wal_size": "16GB",
    "max_parallel_workers_per_gather": "0",
    "log_line_prefix": "%d ",
}
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
_WAL = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
_BYTES = """SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n
    ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm')
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""
_GRAPH = POSTGRES_SAVERS[-1].name
_HELD = 1_000
"""Steps in each database before an append is measured."""
_Calls = list[Callable[[], object]]
_EACH_WAYS = ((MEANING, BOTH), (MEANING, BOTH), (MEANING,), (BOTH,))
WAYS = {peer.name: ways for peer, ways in zip(POSTGRES_FOUND, _EACH_WAYS, strict=True)}
"""How each side searches."""


def report(json_output: bool = False, **options: Any) -> None:
    """Print what each side takes; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(tables(result), result)


def measure(
    rounds: int = 5,
    block: int = 25,
    loops: str = "100",
    size: int = 10_000,
    held: int = _HELD,
    peers: str = "all",
) -> dict[str, Any]:
    """Return CPU, log, bytes, latency and statements of appends, loops and filtered searches.

    Args:
        rounds: Turns of each side that are counted; one more warms up.
        block: Appends, and searches, in a turn.
        loops: Lengths of the agent loops, with commas between them.
        size: Steps that are searched.
        held: Steps in a database before an append is measured.
        peers: Whom to measure beside us: all, none, or how their names begin, with commas between.
    """
    check_names(peers)
    os.environ[FOLDER_VARIABLE] = "no"  # no index is cached, and none read
    who = [chosen(of, peers) for of in (POSTGRES_STORED, POSTGRES_FOUND, POSTGRES_SAVERS)]
    stored, found, savers = who[0], who[1], [peer for peer in who[2] if peer.name != OURS]
    if savers and savers[-1].name != _GRAPH:
        savers.append(POSTGRES_SAVERS[-1])
    steps = real_steps(block)
    with tempfile.TemporaryDirectory() as folder, _Bench(Path(folder)) as bench:
        parts = {
            "stored": bench.appends(stored, rounds, block, held, settle=False),
            "found": bench.appends(found, rounds, block, held, settle=True),
            "loops": {
                str(length): bench.loops([*stored, *found[2:], *savers], rounds, length)
                for length in counts(loops)
            },
            "searches": bench.searches(found, rounds, block, size),
        }
    options: dict[str, Any] = {"rounds": rounds, "block": block, "loops": loops, "size": size}
    return {
        **conditions(**options, held=held, peers=peers),
        "peers": {peer.name: peer.version() for peer in (*stored, *found, *savers)},
        "steps_bytes": fmean(len(payload(step.inputs, step.outputs)) for step in steps),
        **parts,
    }


class _Turn(NamedTuple):
    """What one turn of a side took; seconds and bytes."""

    client: float
    server: float
    log: int
    each: list[float]
    """How long each call took."""


class _Bench:
    """One server with a database for each side, and what is read from it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, count()
        self._vectors, self._server = FixedVectors(), PostgresServer("peers")
        self._set(**_SETTINGS)
        self._watch = psycopg.connect(self._server.address(), autocommit=True)

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._server.close()

    def _set(self, **settings: str) -> None:
        for name, value in settings.items():
            self._server.run(f"ALTER SYSTEM SET {name} = '{value}'")
        self._server.run("SELECT pg_reload_conf()")
        for name, value in settings.items():
            wait_for(lambda n=name, v=value: self._server.run(f"SHOW {n}") == [(v,)], name)

    @contextmanager
    def _opened(self, peers: Sequence[Peer]) -> Generator[dict[str, PostgresSide]]:
        """Open each installed side on an empty database of its number among `peers`."""
        with ExitStack() as stack:
            self._databases = {peer.name: f"side{next(self._numbers)}" for peer in peers}
            sides: dict[str, PostgresSide] = {}
            for peer in peers:
                if (adapter := peer.load()) is None:
                    continue
                database = self._databases[peer.name]
                self._server.run(f"CREATE DATABASE {database}")
                self._server.run("CREATE EXTENSION vector", database)
                (place := self._folder / database).mkdir()
                side = adapter(self._server.address(database), self._vectors, place)
                stack.callback(side.close)
                sides[peer.name] = side
            self._server.run("CHECKPOINT")
            yield sides

    def _records(self, made: Iterable[AgentStep]) -> list[StepRecord]:
        records = [record_of(step) for step in made]
        for record in records:
            self._vectors.know_step(record)
        return records

    def _server_cpu(self, database: str) -> dict[int, float]:
        """Return the seconds that each backend of a database has run."""
        found: dict[int, float] = {}
        for (process,) in self._watch.execute(_BACKENDS, (database,)):
            told = Path(f"/proc/{process}/schedstat")
            if told.exists():  # who made the database, or set it up, may be leaving
                found[process] = int(told.read_text().split()[0]) / 1e9
        return found

    def _turn(self, database: str, calls: _Calls) -> _Turn:
        [[log]], before = self._watch.execute(_WAL), self._server_cpu(database)
        each, cpu = list[float](), time.process_time()
        for call in calls:
            begun = time.perf_counter()
            call()
            each.append(time.perf_counter() - begun)
        cpu = time.process_time() - cpu
        [[end]], after = self._watch.execute(_WAL), self._server_cpu(database)
        server = sum(spent - before.get(process, 0.0) for process, spent in after.items())
        return _Turn(cpu, server, end - log, each)

    def _statements(self, database: str, calls: _Calls) -> int:
        """Return how many statements the server is sent in one more turn."""
        log = self._server.folder / "log"
        self._set(log_statement="all")
        begun = log.stat().st_size
        for call in calls:
            call()
        self._set(log_statement="none")
        told = re.compile(rb"%s LOG:  (?:statement|execute [^:]+): " % database.encode())
        with log.open("rb") as file:
            file.seek(begun)
            return sum(1 for line in file if told.match(line))

    def _size(self, name: str) -> int:
        return int(self._server.run(_BYTES, self._databases[name])[0][0] or 0)

    def _compared(
        self, names: Iterable[str], made: Callable[[str], _Calls], operations: int, rounds: int
    ) -> dict[str, Any]:
        """Let sides take turns; return what one operation takes of each.

        Args:
            names: Whose turns they are.
            made: Makes the calls of a side's next turn.
            operations: How many they are; what is called after so many calls has no latency.
            rounds: Turns that are counted.
        """
        turns: dict[str, list[_Turn]] = {name: [] for name in names}
        calls: dict[str, _Calls] = {}
        sizes: dict[str, int] = {}

        def prepare(name: str) -> None:
            if turns[name]:
                sizes.setdefault(name, self._size(name))
            calls[name] = made(name)

        def play(name: str) -> None:
            turns[name].append(self._turn(self._databases[name], calls[name]))

        interleaved({name: partial(play, name) for name in turns}, rounds, before=prepare)
        found: dict[str, Any] = {}
        for name, (_, *counted) in turns.items():
            each = [taken for turn in counted for taken in turn.each[:operations]]
            found[name] = {
                "client_us": median(turn.client for turn in counted) / operations * 1e6,
                "server_us": median(turn.server for turn in counted) / operations * 1e6,
                "p50_ms": median(each) * 1e3,
                "p99_ms": float(np.percentile(each, 99)) * 1e3,
                "log_bytes": median(turn.log for turn in counted) / operations,
                "bytes": (self._size(name) - sizes[name]) / (len(counted) * operations),
                "turns": [(turn.client + turn.server) / operations for turn in counted],
            }
            found[name]["statements"] = (
                self._statements(self._databases[name], made(name)) / operations
            )
        return found

    def appends(
        self, peers: Sequence[Peer], rounds: int, block: int, held: int, *, settle: bool
    ) -> dict[str, Any]:
        """Return what one append takes; with `settle`, until it can be found."""
        with self._opened(peers) as sides:
            first = self._records(made_steps(held, first=10**6))
            for side in sides.values():
                side.add_all(first)
                side.settle()
            turns = {name: count() for name in sides}

            def calls(name: str) -> _Calls:
                side, made = sides[name], real_steps(block, first=next(turns[name]) * block)
                found: _Calls = [partial(side.add_each, [one]) for one in self._records(made)]
                return [*found, side.settle] if settle else found

            return _rows(peers, self._compared(sides, calls, block, rounds), sides)

    def loops(self, peers: Sequence[Peer], rounds: int, length: int) -> dict[str, Any]:
        """Return what a step of an agent's loop takes; a graph's own CPU is taken off savers."""
        with self._opened(peers) as sides:
            turns = {name: count() for name in sides}

            def calls(name: str) -> _Calls:
                run = next(turns[name])
                made = real_steps(length, first=run * length, run_id=f"run-{run}")
                return [partial(sides[name].add_each, self._records(made))]

            found = self._compared(sides, calls, length, rounds)
        for row in found.values():
            row["p50_ms"] /= length
            del row["p99_ms"]
        for saver in POSTGRES_SAVERS[:-1]:
            if (row := found.get(saver.name)) is None:
                continue
            graph = found[_GRAPH]
            row["client_us"] -= graph["client_us"]
            row["p50_ms"] -= graph["p50_ms"]
            row["turns"] = [a - b for a, b in zip(row["turns"], graph["turns"], strict=True)]
        return _rows(peers, found, sides)

    def searches(self, peers: Sequence[Peer], rounds: int, block: int, size: int) -> dict[str, Any]:
        """Return what a search among one user's steps takes, another user with each query."""
        queries = made_queries(USERS)
        for query in queries:
            self._vectors.know([query])
        with self._opened(peers) as sides:
            records = self._records(made_steps(size))
            for name, side in sides.items():
                side.add_all(records)
                side.settle()
                self._server.run("VACUUM ANALYZE", self._databases[name])
            exact = _exact(self._vectors, records, queries)
            return {
                way: self._searches(peers, sides, way, queries, exact, rounds, block)
                for way in (MEANING, BOTH)
            }

    def _searches(
        self,
        peers: Sequence[Peer],
        sides: dict[str, PostgresSide],
        way: str,
        queries: Sequence[str],
        exact: dict[int, set[str]],
        rounds: int,
        block: int,
    ) -> dict[str, Any]:
        turns = {name: cycle(exact) for name in sides if way in WAYS[name]}

        def calls(name: str) -> _Calls:
            search = sides[name].search
            asked = islice(turns[name], block)
            return [partial(search, queries[n], f"user-{n}", way) for n in asked]

        found = self._compared(turns, calls, block, rounds)
        for name, row in found.items() if way == MEANING else ():
            nearest = {n: sides[name].search(queries[n], f"user-{n}", way) for n in exact}
            row["recall"] = fmean(
                len({*nearest[n]} & best) / len(best) for n, best in exact.items()
            )
        return _rows([peer for peer in peers if way in WAYS[peer.name]], found, sides)


def _exact(
    vectors: FixedVectors, records: Sequence[StepRecord], queries: Sequence[str]
) -> dict[int, set[str]]:
    """Return the ids of the nearest steps of each user to the query of its number."""
    held = vectors.embed_documents([record.text for record in records])
    users, asked = [record.step.user_id for record in records], vectors.embed_queries(queries)
    rows = {n: np.flatnonzero([user == f"user-{n}" for user in users]) for n in range(len(asked))}
    return {
        n: {records[int(row)].id for row in mine[np.argsort(-(held[mine] @ asked[n]))[:K]]}
        for n, mine in rows.items()
        if len(mine)
    }


def _rows(
    peers: Sequence[Peer], found: dict[str, Any], sides: dict[str, PostgresSide]
) -> dict[str, Any]:
    """Return a row for each peer, with what it takes in units of ours and what it stores."""
    ours = found[OURS]["turns"]
    for name, row in found.items():
        row["cpu_ratio"] = median(a / b for a, b in zip(row.pop("turns"), ours, strict=True))
        row["settings"] = sides[name].settings
    return {peer.name: found.get(peer.name, {"missing": NOT_INSTALLED}) for peer in peers}
