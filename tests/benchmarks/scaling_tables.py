"""The tables of `benchmarks scaling`, made of what it returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks import lexical, turns
from tests.benchmarks.corpus import MESSAGE_BYTES
from tests.benchmarks.scaling_process import ADD_AND_SEARCH, CLOSE, SEARCH
from tests.benchmarks.search_peers import peer_tables
from tests.benchmarks.tables import Table, number

NO_CACHE, CLOSE_NO_CACHE = f"{SEARCH}, no cache", f"{CLOSE}, no cache"
WHOLE = "`hybridagi-steps search`, whole process"
BYTES = "bytes on disk per byte of payload"
TURN = "message through StepRunner, plain callable"


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Return a table for each part; one that was not measured is left out."""
    steps, chats = result["steps"], result["messages"]
    sizes = [f"{int(size):,} steps" for size in steps]
    return [
        table("steps: p50 / p99 / CPU, ms", sizes, steps, result["growth"]),
        resident_table(sizes, steps, (SEARCH, NO_CACHE, CLOSE_NO_CACHE, "search, hybrid")),
        _bytes_table("bytes on disk per step", sizes, result["bytes"]),
        *_imported_tables(result["imported"]),
        table(
            "sessions: p50 / p99 / CPU, ms",
            [f"{int(size):,} messages" for size in chats],
            chats,
            result["messages_growth"],
        ),
        *(turns.tables(result) if "turns" in result else ()),
        *lexical.tables(result["words"]),
        *(peer_tables(result["peers"]) if result["peers"] else ()),
    ]


def server_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return the tables of `benchmarks postgres_scaling`."""
    if "missing" in result:
        return [Table(f"on PostgreSQL: {result['missing']}", [""], [])]
    steps, sizes = result["steps"], [f"{int(size):,} steps" for size in result["steps"]]
    return [
        table("on PostgreSQL: p50 / p99 / CPU, ms", sizes, steps, result["growth"]),
        resident_table(sizes, steps, (SEARCH, NO_CACHE, ADD_AND_SEARCH)),
    ]


def _imported_tables(sizes: dict[str, Any]) -> list[Table]:
    columns = [f"{int(size):,} messages" for size in sizes]
    rows = [
        [BYTES, *(number(found["times"], 1) for found in sizes.values())],
        [
            "beside those of an empty memory",
            *(number(f["times_beside"], 1) for f in sizes.values()),
        ],
        ["an empty memory, bytes", *(f"{found['nothing']:,}" for found in sizes.values())],
    ]
    parts = {size: found["parts"] for size, found in sizes.items()}
    title = f"an imported chat, messages of {MESSAGE_BYTES} bytes"
    return [
        Table(title, ["", *columns], rows),
        _bytes_table("bytes on disk per imported message", columns, parts),
    ]


def _bytes_table(title: str, columns: Sequence[str], sizes: dict[str, dict[str, int]]) -> Table:
    each = {int(size): parts for size, parts in sizes.items()}
    rows = [
        [part, *(number(parts.get(part, 0) / size, 1) for size, parts in each.items())]
        for part, held in each[max(each)].items()
        if held >= max(each)
    ]
    return Table(title, ["", *columns], rows)


def resident_table(columns: Sequence[str], sizes: dict[str, Any], asked: Sequence[str]) -> Table:
    """Return a table of what is resident at most."""
    rows = [
        [what, *(number(found[what]["rss_mb"], 0) for found in sizes.values())] for what in asked
    ]
    return Table("resident, MB", ["", *columns], rows)


def table(
    title: str, columns: Sequence[str], sizes: dict[str, Any], growth: dict[str, float]
) -> Table:
    """Return a table of what each thing takes, and by how much that grows."""
    first = next(iter(sizes.values()))
    rows = [
        [what, *(_cell(found[what]) for found in sizes.values()), number(growth.get(what), 1)]
        for what in first
    ]
    return Table(title, ["", *columns, "growth"], rows)


def _cell(found: dict[str, float]) -> str:
    if "times" in found:
        return number(found["times"], 1)
    times = [found[key] for key in ("p50_ms", "p99_ms", "cpu_ms")]
    return " / ".join(number(time, 2 if time < 10 else 0) for time in times)
