"""Under what conditions a number was measured: machine, versions, time, and what else ran.

A number without them cannot be compared with anything, so every measurement carries them.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.message import utc_now

_PACKAGES = ("hybridagi-steps", "dspy", "faiss-cpu", "numpy", "orjson", "pydantic", "wordllama")


def conditions(**options: Any) -> dict[str, Any]:
    """Return machine, versions, time and the options a measurement was made with."""
    return {
        "machine": _machine(),
        "versions": {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            **{name: found for name in _PACKAGES if (found := _version(name))},
        },
        "measured_at": utc_now().isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "options": options,
    }


def _machine() -> str:
    """Return the processor's name and how many of it this process may use."""
    name = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        lines = described.read_text().splitlines()
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = models[0] if models else name
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {count} CPUs, {platform.system()}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def counts(words: str) -> list[int]:
    """Return whole numbers that are written with commas between them.

    Raises:
        InvalidSettingError: One is no whole number above zero.
    """
    found = [int(word) if word.strip().isdecimal() else 0 for word in words.split(",")]
    if 0 in found:
        raise InvalidSettingError(
            f"{words!r} is no list of numbers above zero; write them as 10000,100000."
        )
    return found


@contextmanager
def folder_for(workdir: str | None) -> Generator[Path]:
    """Give the folder that was asked for, else one that goes with the block."""
    if workdir is not None:
        Path(workdir).mkdir(parents=True, exist_ok=True)
        yield Path(workdir)
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
