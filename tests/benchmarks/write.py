"""What writing costs: `StepMemory.add` beside the least that any durable write costs.

The floor is the standard library's sqlite3: one bare INSERT of the same body in autocommit, in the
same journal and synchronous mode, without ids, checks or locks. Rivals take turns on the same disk.
A batch is compared, too, with sqlite3 that makes the JSON itself and keeps ids unique, as whoever
writes by hand has to. What a search needs besides (words, embeddings) is not written by an append;
its cost per step and its bytes are measured apart. What others take for the same is asked in
`write_peers`.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

from hybridagi_steps.memory import Durability, StepMemory
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import new_id
from hybridagi_steps.search.indexing import Deriver
from hybridagi_steps.stores import open_store
from hybridagi_steps.stores.body import encode_body
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS, Patience
from tests.benchmarks.conditions import conditions, counts
from tests.benchmarks.corpus import STEPS_PER_RUN, made_steps, payload
from tests.benchmarks.peers import check_names
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import (
    Samples,
    Stopwatch,
    fastest,
    in_turns,
    interleaved,
    ratio,
    typical,
)
from tests.benchmarks.write_peers import BATCH, measure_peers, peer_tables

FLOOR, STORE, MEMORY = "bare sqlite3", "store", "memory.add"
ENCODING = "sqlite3, JSON made and ids unique"
RANDOM_IDS, IDS_IN_ORDER = "random ids", "ids in order"
_TURNS = 4
"""Of appends with one kind of ids: few and long, so that each has its share of checkpoints."""

_TABLE = "CREATE TABLE step (row INTEGER PRIMARY KEY, body TEXT NOT NULL)"
_INSERT = "INSERT INTO step (body) VALUES (?)"
_TABLE_OF_IDS = "CREATE TABLE step (row INTEGER PRIMARY KEY, id TEXT UNIQUE, body TEXT NOT NULL)"
_INSERT_WITH_ID = "INSERT INTO step (id, body) VALUES (?, ?)"
_READ = "SELECT body FROM step WHERE row > ? AND row <= ?"


def report(json_output: bool = False, **options: Any) -> None:
    """Print what writing costs; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(
    appends: int = 800,
    block: int = 20,
    batches: int = 5,
    embedder: str = "wordllama",
    workdir: str | None = None,
    peers: str = "all",
    loops: str = "100,400",
    held: int = 10_000,
) -> dict[str, Any]:
    """Return times in microseconds per step, ratios, and bytes on disk.

    Args:
        appends: Single appends measured, also the steps whose size on disk is measured.
        block: Appends per measured sample.
        batches: Batches of 1,000 measured.
        embedder: Name of the embedder whose cost per step is shown.
        workdir: Folder on the disk to measure; by default the system's temporary folder.
        peers: Whom to measure beside us: all, none, or how their names begin, with commas between.
        loops: Lengths of the agent loops, with commas between them.
        held: Steps in a file before appends with random ids are measured beside ids in order.
    """
    check_names(peers)
    lengths = counts(loops)
    options = {"appends": appends, "block": block, "batches": batches, "embedder": embedder}
    with tempfile.TemporaryDirectory(dir=workdir) as name:
        folder = Path(name)
        return {
            **conditions(**options, peers=peers, loops=loops, held=held),
            "append": {
                durability: _appends(folder, durability, appends, block)
                for durability in get_args(Durability)
            },
            "ids": _ids(folder, appends, held),
            **_batch(folder, batches),
            "read_run": _read_run(folder),
            "drain": _drain(folder, embedder),
            "disk": _disk(folder, appends, embedder),
            "peers_conditions": conditions(),
            "peers": measure_peers(
                folder, appends=appends, batches=batches, loops=lengths, peers=peers
            ),
        }


def _appends(folder: Path, durability: Durability, count: int, block: int) -> dict[str, Any]:
    """Return what one durable append costs, each rival on a file of its own."""
    with (
        closing(open_store(str(folder / f"{durability}-store.db"), durability=durability)) as store,
        StepMemory(folder / f"{durability}.db", durability=durability) as memory,
        _floor(folder / f"{durability}-floor.db", durability) as connection,
    ):
        samples = in_turns(
            {
                FLOOR: _each(lambda _, body: connection.execute(_INSERT, (body,))),
                STORE: _each(lambda step, _: store.append([step])),
                MEMORY: _each(lambda step, _: memory.add(step)),
            },
            lambda turn: [
                (step, encode_body(step)) for step in made_steps(block, first=turn * block)
            ],
            count // block - 1,
        )
    return _compared(samples, MEMORY, per=block)


def _ids(folder: Path, count: int, held: int) -> dict[str, Any]:
    """Return what one append costs in a file of some size, by the kind of its ids."""
    makers = {RANDOM_IDS: uuid4, IDS_IN_ORDER: new_id}
    waiting: list[AgentStep] = []

    def make(name: str, first: int, size: int) -> None:
        steps = made_steps(size, first=first)
        waiting[:] = [step.model_copy(update={"id": makers[name]()}) for step in steps]

    def append(store: StepStore) -> None:
        for step in waiting:
            store.append([step])

    with ExitStack() as stack:
        stores: dict[str, StepStore] = {}
        for name in makers:
            opened = open_store(str(folder / f"{name}.db"), durability="normal")
            stores[name] = stack.enter_context(closing(opened))
            for first in range(0, held, BATCH):
                make(name, first, min(BATCH, held - first))
                opened.append(waiting)
        samples = interleaved(
            {name: partial(append, store) for name, store in stores.items()},
            _TURNS,
            before=lambda name: make(name, held, count // _TURNS),
        )
    return _compared(samples, IDS_IN_ORDER, per=count // _TURNS, floor=RANDOM_IDS)


def _each(
    write: Callable[[AgentStep, str], object],
) -> Callable[[list[tuple[AgentStep, str]]], None]:
    """Return a call that writes steps one by one, each at hand as JSON too."""

    def written(steps: list[tuple[AgentStep, str]]) -> None:
        for step, body in steps:
            write(step, body)

    return written


def _batch(folder: Path, batches: int) -> dict[str, Any]:
    """Return what a step of a batch costs; its words and embeddings are made outside the clock."""
    with (
        StepMemory(folder / "batch.db") as memory,
        _floor(folder / "batch-floor.db", "full") as connection,
        _floor(folder / "batch-ids.db", "full", _TABLE_OF_IDS) as with_ids,
    ):

        def made(turn: int) -> list[tuple[AgentStep, str]]:
            memory.flush()
            steps = made_steps(BATCH, first=turn * BATCH)
            return [(step, encode_body(step)) for step in steps]

        def bare(steps: list[tuple[AgentStep, str]]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, [(body,) for _, body in steps])
            connection.execute("COMMIT")

        def encoding(steps: list[tuple[AgentStep, str]]) -> None:
            values = ((str(s.id), s.model_dump_json(exclude_none=True)) for s, _ in steps)
            with_ids.execute("BEGIN IMMEDIATE")
            with_ids.executemany(_INSERT_WITH_ID, values)
            with_ids.execute("COMMIT")

        def ours(steps: list[tuple[AgentStep, str]]) -> None:
            memory.add([step for step, _ in steps])

        found = in_turns({FLOOR: bare, ENCODING: encoding, MEMORY: ours}, made, batches)
    rivals = {"batch": FLOOR, "batch_encoded": ENCODING}
    return {
        what: _compared(
            {name: found[name] for name in (floor, MEMORY)}, MEMORY, per=BATCH, floor=floor
        )
        for what, floor in rivals.items()
    }


def _read_run(folder: Path) -> dict[str, Any]:
    """Return what reading a run costs per step, from the batches written before."""
    with (
        StepMemory(folder / "batch.db") as memory,
        _floor(folder / "batch-floor.db", "full") as connection,
    ):
        runs = iter(range(2 * BATCH // STEPS_PER_RUN))

        def ours() -> None:
            found = list(memory.iter_steps({"run_id": f"run-{next(runs)}"}))
            assert len(found) == STEPS_PER_RUN

        def bare() -> None:
            connection.execute(_READ, (500, 500 + STEPS_PER_RUN)).fetchall()

        samples = interleaved({FLOOR: bare, "memory, as steps": ours}, 40)
    return _compared(samples, "memory, as steps", per=STEPS_PER_RUN)


def _drain(folder: Path, embedder: str) -> dict[str, Any]:
    """Return what words and embeddings cost per step, when a search or flush asks for them."""
    with StepMemory(folder / "drain.db", embedder=embedder) as memory:
        memory.flush()
        model = memory.embedder
        model.embed_documents(["warm up"])
        memory.add(made_steps(BATCH))
        with closing(open_store(str(folder / "drain.db"))) as store:
            deriver = Deriver(store, lambda _: model, Patience(DEFAULT_TIMEOUT_SECONDS))
            with Stopwatch() as texts:
                deque(deriver.save_all(vectors=False), maxlen=0)
            with Stopwatch() as vectors:
                deque(deriver.save_all(vectors=True), maxlen=0)
    found = {"words": texts.sample, "embeddings": vectors.sample}
    return {
        name: {"cpu_us": sample.cpu / BATCH * 1e6, "wall_us": sample.wall / BATCH * 1e6}
        for name, sample in found.items()
    }


def _disk(folder: Path, count: int, embedder: str) -> dict[str, Any]:
    """Return bytes on disk per byte of inputs and outputs, before and after indexing."""
    path = folder / "disk.db"
    raw = 0
    with StepMemory(path, embedder=embedder) as memory:
        for step in made_steps(count):
            memory.add(step)
            raw += len(payload(step.inputs, step.outputs))
        while_open = _size(path)
    steps_only = _size(path)
    with StepMemory(path, embedder=embedder) as memory:
        memory.flush()
    indexed = _size(path)
    return {
        "steps": count,
        "raw_bytes": raw,
        "bytes_while_open": while_open,
        "bytes": steps_only,
        "bytes_indexed": indexed,
        "ratio": steps_only / raw,
        "ratio_while_open": while_open / raw,
        "ratio_indexed": indexed / raw,
    }


def _size(path: Path) -> int:
    """Return the bytes of a database with all that stands beside it: log, lock, caches."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


@contextmanager
def _floor(
    path: Path, durability: Durability, table: str = _TABLE
) -> Generator[sqlite3.Connection]:
    """Open a bare table in the journal and synchronous mode of a memory of this durability."""
    fresh = not path.exists()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {durability}")
        if fresh:
            connection.execute(table)
        yield connection
    finally:
        connection.close()


def _compared(samples: Samples, ours: str, *, per: int, floor: str = FLOOR) -> dict[str, Any]:
    """Return times per step of all rivals, and ours in units of the floor's."""
    times = {
        name: {
            "cpu_us": typical(found, "cpu", per=per),
            "cpu_us_least": fastest(found, "cpu", per=per),
            "wall_us": typical(found, "wall", per=per),
        }
        for name, found in samples.items()
    }
    return {
        "times": times,
        "cpu_ratio": ratio(samples[ours], samples[floor], "cpu"),
        "wall_ratio": ratio(samples[ours], samples[floor], "wall"),
    }


def _tables(result: dict[str, Any]) -> list[Table]:
    parts = {f"append, {mode}": found for mode, found in result["append"].items()}
    parts[f"append to {result['options']['held']:,} steps"] = result["ids"]
    batch = f"batch of {BATCH:,}"
    parts |= {batch: result["batch"], f"{batch}, encoded": result["batch_encoded"]}
    parts["read a run"] = result["read_run"]
    rows: list[list[str]] = []
    for what, found in parts.items():
        for name, times in found["times"].items():
            ratios = [number(found[key], 2) for key in ("cpu_ratio", "wall_ratio")]
            last = name == list(found["times"])[-1]
            figures = [number(times[key], 1) for key in ("cpu_us", "cpu_us_least", "wall_us")]
            rows.append([what, name, *figures, *(ratios if last else ["", ""])])
    for name, times in result["drain"].items():
        rows.append(
            [
                "later, per step",
                name,
                number(times["cpu_us"], 1),
                "",
                number(times["wall_us"], 1),
                "",
                "",
            ]
        )
    columns = ["", "", "CPU µs/step", "least", "wall µs/step", "CPU ratio", "wall ratio"]
    disk = result["disk"]
    sizes = [
        [name, f"{disk[f'bytes{key}']:,}", number(disk[f"ratio{key}"], 2)]
        for name, key in (
            ("steps", ""),
            ("steps, file in use (with its log)", "_while_open"),
            ("with words, keys and embeddings", "_indexed"),
        )
    ]
    title = f"on disk: {disk['steps']} steps, {disk['raw_bytes']:,} bytes of inputs and outputs"
    return [
        Table("writing one-KB steps", columns, rows),
        Table(title, ["", "bytes", "per raw byte"], sizes),
        *peer_tables(result["peers"]),
    ]
