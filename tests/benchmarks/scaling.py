"""What grows with a memory, and how fast: each operation at 1,000, 10,000, 100,000 … steps.

A file of steps as real ones are (varied.py) is built once per size, kept in `workdir`, and copied
for each measurement, so that nothing is asked of a file that something else has warmed up or
written to. No query is asked twice, and each filter wants steps like another step. Its filters were
asked for once: a first filter is the first of a process, not of the memory's life. A whole process
finds its modules compiled, as it does wherever it ran before. What a process does once (open and
close, its first search by a filter or after an add) is timed in fresh processes, all else over many
calls of one process; see scaling_process.py. `growth` is how many times as much CPU the largest
size takes as the one a decade below it: 10 is linear, 1 is flat. Words stand beside FTS5 and
tantivy (lexical.py), turns beside the sessions of others (turns.py), vectors beside other indexes
where they are asked for (search_peers.py), which takes long at a million.

Bytes on disk are those of the database with the cache of its index. An imported chat is measured by
itself, and what a memory takes that holds nothing yet (pages of empty tables) is told apart: of a
few messages it is nearly all.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from hybridagi_steps.exchange.importer import import_file
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.search.index_cache import load_cache
from tests.benchmarks import CHECKOUT, lexical, turns
from tests.benchmarks.conditions import conditions, counts, folder_for
from tests.benchmarks.corpus import (
    MESSAGE_BYTES,
    made_conversations,
    payload,
)
from tests.benchmarks.peers import OURS, SEARCHERS, TALKERS, check_names, chosen
from tests.benchmarks.scaling_process import (
    ANOTHER,
    CLOSE,
    FILTERS,
    FIRST_BY,
    ONCE,
    OVER_AND_OVER,
    SEARCH,
    ask_filters,
)
from tests.benchmarks.scaling_tables import (
    BYTES,
    CLOSE_NO_CACHE,
    NO_CACHE,
    TURN,
    WHOLE,
    tables,
)
from tests.benchmarks.search_peers import measure_peers
from tests.benchmarks.tables import print_json, print_tables
from tests.benchmarks.varied import varied_queries, varied_steps

SIZES = "1000,10000,100000"
MILLION = 1_000_000
PEERS = f"{OURS},tantivy,openai,langgraph"
"""Those whose measurement is short."""
_BYTES_OF_TABLES = """SELECT coalesce(s.tbl_name, d.name), sum(d.pgsize) FROM dbstat d
    LEFT JOIN sqlite_schema s ON s.name = d.name WHERE d.aggregate = TRUE
    GROUP BY 1 ORDER BY 2 DESC"""
_CLI = "import sys; from hybridagi_steps.cli import main; sys.exit(main())"
_BATCH = 1_000
_PAYLOADS = "payloads.json"
"""How many bytes of inputs and outputs a built memory was given."""
_CHATS = "2,100,1000,10000"
_LONGEST_BESIDE = 1_000
"""Messages of a session up to which others are measured: they read all with each turn."""
_IMPORTED = "20,2000"


def report(json_output: bool = False, **options: Any) -> None:
    """Print what each operation costs at each size; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(tables(result), result)


def measure(
    sizes: str = SIZES,
    chats: str = _CHATS,
    imported: str = _IMPORTED,
    rounds: int = 60,
    starts: int = 3,
    embedder: str = "wordllama",
    workdir: str | None = None,
    peers: str = PEERS,
    million: bool = False,
) -> dict[str, Any]:
    """Return milliseconds on both clocks, megabytes and growth, for each number of steps.

    Args:
        sizes: Numbers of steps, with commas between them, ascending.
        chats: Numbers of messages a session has before a turn and a context are measured.
        imported: Numbers of messages of the imported chats whose bytes on disk are told.
        rounds: How often a process does each thing.
        starts: Fresh processes for what a process does once.
        embedder: Name of the embedder.
        workdir: Folder in which the built files are kept for the next time.
        peers: Whom to measure beside us: all (vector indexes, too), none, or how names begin.
        million: Measure 1,000,000 steps too.
    """
    check_names(peers)
    asked = [*counts(sizes), *([MILLION] if million else [])]
    with folder_for(workdir) as folder:
        files = {size: _built(folder, size, embedder) for size in asked}
        steps = {str(size): _measured(files[size], rounds, starts) for size in asked}
        parts = {str(size): bytes_by_part(files[size]) for size in asked}
        talks = {str(size): _contexts(size, rounds) for size in counts(chats)}
        chat_bytes = {str(size): imported_bytes(size, embedder) for size in counts(imported)}
        beside = None
        if len(chosen(SEARCHERS, peers)) > 1:
            beside = measure_peers(
                asked, rounds=rounds, embedder=embedder, peers=peers, folder=folder
            )
        said = _turns(counts(chats), rounds, peers)
        for size, found in said["turns"].items():
            talks[size][TURN] = found[OURS]
        words = lexical.measure(",".join(map(str, asked)), rounds, peers, str(folder))["steps"]
    options = {"sizes": sizes, "chats": chats, "rounds": rounds, "starts": starts}
    return {
        **conditions(**options, embedder=embedder, peers=peers, million=million),
        "steps": steps,
        "growth": growth(steps),
        "bytes": parts,
        "imported": chat_bytes,
        "messages": talks,
        "messages_growth": growth(talks),
        **said,
        "words": words,
        "peers": beside,
    }


def _built(folder: Path, size: int, embedder: str) -> Path:
    """Return the folder of a memory of `size` varied steps, indexed, with its cache."""
    made, payloads = folder / f"varied-{size}-{embedder}", 0
    if made.exists():
        return made
    with tempfile.TemporaryDirectory(dir=folder) as name:
        with StepMemory(Path(name) / "steps.db", embedder=embedder, durability="normal") as memory:
            for first in range(0, size, _BATCH):
                steps = list(varied_steps(min(_BATCH, size - first), first=first))
                memory.add(steps)
                payloads += sum(len(payload(step.inputs, step.outputs)) for step in steps)
            memory.flush()
            memory.search(next(varied_queries()))
            ask_filters(memory)
        (Path(name) / _PAYLOADS).write_bytes(orjson.dumps(payloads))
        Path(name).rename(made)
        Path(name).mkdir()  # which goes with the context
    return made


@contextmanager
def _copied(made: Path, *, cache: bool = True) -> Generator[Path]:
    """Give a copy of a built memory, with or without the cache of its index."""
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        for file in made.iterdir():
            if cache or ".index" not in file.name:
                shutil.copy(file, name) if file.is_file() else shutil.copytree(
                    file, Path(name) / file.name
                )
        yield Path(name) / "steps.db"


def _measured(made: Path, rounds: int, starts: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with _copied(made) as path:  # a filter that was asked for at all changes nothing any more
        for what in map(FIRST_BY.format, FILTERS):
            found[what] = middle([in_a_process(path, what, 1 + n) for n in range(starts)])
        for what in map(ANOTHER.format, FILTERS):
            found[what] = in_a_process(path, what, rounds)
    for what in [what for what in ONCE if what not in found]:
        found[what] = middle([_once(made, what, 1 + n) for n in range(starts)])
    for what, row in ((SEARCH, NO_CACHE), (CLOSE, CLOSE_NO_CACHE)):
        with _copied(made, cache=False) as path:
            found[row] = in_a_process(path, what, 1)
    with _copied(made) as path:
        command = [sys.executable, "-c", _CLI, "search", next(varied_queries()), "--db", str(path)]
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(path.parent / "code")}
        found[WHOLE] = middle([_whole(command, compiled) for _ in range(1 + starts)][1:])
    for what in [what for what in OVER_AND_OVER if what not in found]:
        with _copied(made) as path:
            found[what] = in_a_process(path, what, rounds)
    held = sum(file.stat().st_size for file in made.rglob("steps.db*") if file.is_file())
    found[BYTES] = {"times": held / orjson.loads((made / _PAYLOADS).read_bytes())}
    return found


def bytes_by_part(made: Path) -> dict[str, int]:
    """Return the bytes of each table with its indexes, and of each part of the cache beside it."""
    with closing(sqlite3.connect(made / "steps.db")) as database:
        found = {f"table {table}": size for table, size in database.execute(_BYTES_OF_TABLES)}
    for path in made.glob("*.index"):
        file = load_cache(path, {})
        if file is None:
            continue
        of_filters = path.name.endswith(".keys.index")
        for name in file:
            part = "filters" if of_filters else "/".join(name.split("/")[:2])
            part = f"cache, {'columns' if part.startswith('columns') else part}"
            found[part] = found.get(part, 0) + file[name].nbytes
    return found


def imported_bytes(messages: int, embedder: str) -> dict[str, Any]:
    """Return what so many imported messages take on disk, and what a memory of none does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chat, path = folder / "chat.jsonl", folder / "steps.db"
        chat.write_bytes(b"\n".join(map(orjson.dumps, made_conversations(messages))))
        with StepMemory(path, embedder=embedder, durability="normal") as memory:
            memory.flush()
        nothing = path.stat().st_size
        with StepMemory(path, embedder=embedder, durability="normal") as memory:
            import_file(memory, chat)
            memory.flush()
            memory.search(next(varied_queries()))
        held = sum(file.stat().st_size for file in folder.glob("steps.db*"))
        parts = bytes_by_part(folder)
    payload = messages * MESSAGE_BYTES
    beside = (held - nothing) / payload
    return {"nothing": nothing, "times": held / payload, "times_beside": beside, "parts": parts}


def _once(made: Path, what: str, number: int) -> dict[str, Any]:
    """Let a fresh process, one of several, do one thing with a copy of its own."""
    with _copied(made) as path:
        return in_a_process(path, what, number)


def _contexts(size: int, rounds: int) -> dict[str, Any]:
    """Return what a context of a session of so many messages takes."""
    with tempfile.TemporaryDirectory() as name:
        return in_a_process(Path(name) / "steps.db", f"session of {size}", rounds)


def _turns(lengths: Sequence[int], rounds: int, peers: str) -> dict[str, Any]:
    """Return what a turn takes of us at each length, and of others where it is not too long."""
    who = chosen(TALKERS, peers)
    near = {str(n): who if n <= _LONGEST_BESIDE else chosen(TALKERS, OURS) for n in lengths}
    return {
        "talkers": {peer.name: peer.version() for peer in who},
        "turns": {n: turns.turns(int(n), rounds, peers) for n, peers in near.items()},
        "streaming": turns.streaming(rounds),
    }


def in_a_process(address: str | Path, what: str, rounds: int, *others: str) -> dict[str, Any]:
    """Let a fresh process measure one thing; see scaling_process.py."""
    where = str(address.absolute() if isinstance(address, Path) else address)
    command = [sys.executable, "-m", "tests.benchmarks.scaling_process", where, what]
    done = subprocess.run(
        [*command, str(rounds), *others], check=True, cwd=CHECKOUT, stdout=subprocess.PIPE
    )
    return orjson.loads(done.stdout.splitlines()[-1])


def _whole(command: Sequence[str], settings: dict[str, str]) -> dict[str, float]:
    """Return what a command takes from its start to its end."""
    began = time.perf_counter()
    environment = os.environ | settings
    child = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    wall = (time.perf_counter() - began) * 1e3
    cpu = (used.ru_utime + used.ru_stime) * 1e3
    return {"p50_ms": wall, "p99_ms": wall, "cpu_ms": cpu}


def middle(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each number."""
    return {key: median(sample[key] for sample in samples) for key in samples[0]}


def growth(sizes: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the CPU at the largest size in units of that a decade below."""
    largest = max(map(int, sizes))
    below = sizes.get(str(largest // 10))
    if below is None:
        return {}
    return {
        what: found["cpu_ms"] / below[what]["cpu_ms"]
        for what, found in sizes[str(largest)].items()
        if below[what].get("cpu_ms")
    }
