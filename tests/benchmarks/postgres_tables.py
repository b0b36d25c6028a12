"""The tables of `benchmarks postgres_peers`, made of what it returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.benchmarks.tables import Table, number


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Return what each part printed, what the sides store below the last."""
    parts = {
        f"append of a step ({result['steps_bytes']:.0f} bytes)": result["stored"],
        "append, and found by words and meaning": result["found"],
    }
    parts |= {f"loop of {n} steps, a step of it": part for n, part in result["loops"].items()}
    size = f"{result['options']['size']:,}"
    parts |= {f"1 % of {size}, by {way}": part for way, part in result["searches"].items()}
    columns = ("client", "server", "x ours", "p50 ms", "p99 ms", "log", "bytes", "sent", "recall")
    found = [
        Table(what, ["", *columns], [[name, *_cells(row)] for name, row in part.items()])
        for what, part in parts.items()
    ]
    settings = {
        name: row["settings"]
        for part in parts.values()
        for name, row in part.items()
        if "settings" in row
    }
    versions = dict.fromkeys(result["peers"].values())
    notes = [
        "CPU in µs and both in units of ours; log (WAL) and tables with indexes in bytes; "
        "sent: statements; what flush takes is in CPU, log and bytes, not in p50 and p99",
        *(f"{name}: {words}" for name, words in settings.items()),
        f"load average before: {result['load_average']}; {', '.join(versions)}",
    ]
    return [*found[:-1], replace(found[-1], notes=notes)]


def _cells(row: dict[str, Any]) -> list[str]:
    if "missing" in row:
        return [str(row["missing"]), *[""] * 8]
    digits = {"client_us": 0, "server_us": 0, "cpu_ratio": 2, "p50_ms": 2, "p99_ms": 2}
    digits |= {"log_bytes": 0, "bytes": 0, "statements": 1, "recall": 3}
    return [number(row.get(key), places) for key, places in digits.items()]
