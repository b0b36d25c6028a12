"""What sessions cost: appending from many processes, forking, retrying, reading a context back.

Peers are measured doing the same where they are installed; see session_writers.py. Times of forks
and retries are those of whole calls, with their transactions. What pydantic takes is what a store
needs that keeps each row as a model: the same rows read, validated and rendered.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from hybridagi_steps.protocols import Durability
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
from hybridagi_steps.stores.sqlite import SqliteStepStore
from tests.benchmarks.conditions import conditions
from tests.benchmarks.session_writers import RIVALS, SESSION, contest, kill_loop
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import interleaved, ratio, typical

_ANSWER = "The fare rules allow a change until two hours before departure. " * 8
_CONTEXTS = (100, 1_000)


def report(json_output: bool = False, **options: Any) -> None:
    """Print what sessions cost; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(
    processes: int = 8,
    appends: int = 500,
    length: int = 10_000,
    forks: int = 1_000,
    kills: int = 50,
    peers: str = "all",
    durability: Durability = "normal",
) -> dict[str, Any]:
    """Return times in milliseconds, losses, and bytes.

    Args:
        processes: How many append to one session at once.
        appends: How many messages each of them appends.
        length: Messages of the session that is forked, retried and read.
        forks: How many forks, and how many retries of one turn.
        kills: How many processes are killed while they commit.
        peers: `all` or `none`.
        durability: What an acknowledged message survives, ours and theirs.
    """
    rivals = RIVALS if peers == "all" else RIVALS[:1]
    return {
        **conditions(
            processes=processes,
            appends=appends,
            length=length,
            forks=forks,
            kills=kills,
            durability=durability,
        ),
        "writers": {rival.name: contest(rival, processes, appends, durability) for rival in rivals},
        "killed": kill_loop(kills),
        **_alone(length, forks, durability),
    }


def _alone(length: int, forks: int, durability: Durability) -> dict[str, Any]:
    """Measure one process with one long session."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.db"
        with closing(SqliteStepStore(path, durability=durability)) as store:
            store.commit(SESSION, [_message(n) for n in range(length)])
            reading = {
                str(count): _reading(store, Path(folder), length, count) for count in _CONTEXTS
            }
        before = path.stat().st_size  # closing has written everything into the one file
        with closing(SqliteStepStore(path, durability=durability)) as store:
            fork = _times(lambda: store.fork(SESSION, length * 9 // 10), forks)
        grown = (path.stat().st_size - before) / forks
        with closing(SqliteStepStore(path, durability=durability)) as store:
            retry = _times(lambda: _retry(store, length), forks)
            end = store.session_end(SESSION).sequence
        few = max(forks // 20, 1)
        return {
            "fork": {"median_ms": median(fork), "max_ms": max(fork), "bytes": grown},
            "retry": {
                "median_ms": median(retry),
                "first_ms": median(retry[:few]),
                "last_ms": median(retry[-few:]),
                "ends_at": end,
            },
            "reading": reading,
        }


def _retry(store: SqliteStepStore, length: int) -> None:
    """Replace the last message by another, as a retry does: attempt, answer, adopt."""
    attempt = store.branch_at(SESSION, length - 1)
    store.commit(SESSION, [_message(1)], branch_id=attempt)
    store.adopt(SESSION, attempt)


def _reading(store: SqliteStepStore, folder: Path, length: int, count: int) -> dict[str, float]:
    """Measure the newest messages as a context, beside rows that are validated one by one."""
    first = length - count + 1
    rows = [(step.sequence, step.model_dump_json()) for step in store.messages(SESSION, first)]
    plain = sqlite3.connect(folder / f"models-{count}.db")
    plain.execute("CREATE TABLE model (sequence INTEGER PRIMARY KEY, body TEXT)")
    plain.executemany("INSERT INTO model VALUES (?, ?)", rows)
    plain.commit()

    def validated() -> list[dict[str, Any]]:
        bodies = plain.execute("SELECT body FROM model ORDER BY sequence").fetchall()
        return [Step.model_validate_json(body).to_message_dict() for (body,) in bodies]

    if validated() != store.message_dicts(SESSION, first):
        raise AssertionError("both must read the same")
    rivals: dict[str, Callable[[], object]] = {
        "context": lambda: store.message_dicts(SESSION, first),
        "steps": lambda: store.messages(SESSION, first),
        "validated": validated,
    }
    samples = interleaved(rivals, 30, warm_up=3)
    plain.close()
    return {
        **{f"{name}_ms": typical(found, "wall") / 1e3 for name, found in samples.items()},
        "faster_than_validation": ratio(samples["validated"], samples["context"], "cpu"),
    }


def _message(place: int) -> Step:
    asks = place % 2 == 0
    return Step(
        session_id=SESSION,
        run_id=f"run-{place // 2}",
        role=MessageRole.USER if asks else MessageRole.ASSISTANT,
        content=f"May I change flight {place}?" if asks else _ANSWER,
        metrics=None if asks else StepMetrics(input_tokens=900, output_tokens=120, cost=0.002),
    )


def _times(call: Callable[[], object], rounds: int) -> list[float]:
    """Return what each call takes, in milliseconds."""
    taken: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e3)
    return taken


def _tables(result: dict[str, Any]) -> list[Table]:
    options, killed = result["options"], result["killed"]
    columns = ["", "median ms", "p99 ms", "max ms", "per second", "refused", "lost", "doubled"]
    writers = Table(
        f"{options['processes']} processes append {options['appends']} messages each to one "
        f"session, durability {options['durability']}",
        columns,
        [_writer_row(name, found) for name, found in result["writers"].items()],
        [
            f"kill -9, {killed['kills']} times: {killed['acknowledged']} units acknowledged, "
            f"{killed['lost']} lost, {killed['half_units']} half."
        ],
    )
    fork, retry = result["fork"], result["retry"]
    branches = Table(
        f"a session of {options['length']:,} messages",
        ["", "median ms", "first", "last", "bytes"],
        [
            ["fork", number(fork["median_ms"]), "", "", number(fork["bytes"], 0)],
            [
                "retry of the last turn (attempt, answer, adopt)",
                number(retry["median_ms"]),
                number(retry["first_ms"]),
                number(retry["last_ms"]),
                "",
            ],
        ],
    )
    reading = Table(
        "reading the newest messages, ms",
        ["", "context", "steps", "validated by pydantic", "context is faster by"],
        [
            [
                f"{count} messages",
                number(found["context_ms"]),
                number(found["steps_ms"]),
                number(found["validated_ms"]),
                f"{found['faster_than_validation']:.1f}x",
            ]
            for count, found in result["reading"].items()
        ],
        ["pydantic reads whole models from a table of their own; the ratio is of CPU time."],
    )
    return [writers, branches, reading]


def _writer_row(name: str, found: dict[str, Any]) -> list[str]:
    if "missing" in found:
        return [name, f"{found['missing']} is not installed", *[""] * 6]
    times = [number(found[key], 2) for key in ("median_ms", "p99_ms", "max_ms")]
    counts = [str(found[key]) for key in ("refused", "lost", "doubled")]
    return [name, *times, number(found["per_second"], 0), *counts]
