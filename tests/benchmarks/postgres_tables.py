"""The tables of `benchmarks postgres_peers`, made of what it returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.benchmarks.tables import Table, number

_COLUMNS = {
    "client_us": ("client", 0),
    "server_us": ("server", 0),
    "cpu_ratio": ("x ours", 2),
    "p50_ms": ("p50 ms", 2),
    "p99_ms": ("p99 ms", 2),
    "log_bytes": ("log", 0),
    "bytes": ("bytes", 0),
    "statements": ("sent", 1),
    "recall": ("recall", 3),
}
_WALLS = ("p50_ms", "p99_ms")


def tables(result: Mapping[str, Any], *, walls: bool = True) -> list[Table]:
    """Return a table for each part, what the sides store below the last.

    Args:
        result: What was measured.
        walls: Whether to show latencies, which mean nothing where others kept the machine busy.
    """
    parts = {
        f"append of a step ({result['steps_bytes']:.0f} bytes)": result["stored"],
        "append, and found by words and meaning": result["found"],
    }
    parts |= {f"loop of {n} steps, a step of it": part for n, part in result["loops"].items()}
    size = f"{result['options']['size']:,}"
    parts |= {f"1 % of {size}, by {way}": part for way, part in result["searches"].items()}
    shown = {key: column for key, column in _COLUMNS.items() if walls or key not in _WALLS}
    heads = ["", *(head for head, _ in shown.values())]
    found = [
        Table(what, heads, [[name, *_cells(row, shown)] for name, row in part.items()])
        for what, part in parts.items()
    ]
    settings = {
        name: row["settings"]
        for part in parts.values()
        for name, row in part.items()
        if "settings" in row
    }
    versions = {one: None for found in result["peers"].values() for one in found.split(", ")}
    notes = [
        "CPU in µs and both in units of ours; log (WAL) and tables with indexes in bytes; "
        "sent: statements; what flush takes is in CPU, log and bytes, not in latencies",
        *(f"{name}: {words}" for name, words in settings.items()),
        f"load average before: {result['load_average']}; {', '.join(versions)}",
    ]
    return [*found[:-1], replace(found[-1], notes=notes)]


def _cells(row: dict[str, Any], shown: Mapping[str, tuple[str, int]]) -> list[str]:
    if "missing" in row:
        return [str(row["missing"]), *[""] * (len(shown) - 1)]
    return [number(row.get(key), digits) for key, (_, digits) in shown.items()]
