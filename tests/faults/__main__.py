"""Runs the attacks, each in processes of its own, within a time; prints what they counted.

Ends with 1 if anything was lost, half-written, silently changed, leaked or hung, or if an error was
raised that is none of the library's own. Every process, mount and folder of an attack is gone when
its line is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import logging
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally
from .processes import Server, ask, compiled_shim, end_server, without_postgres

PAGE = Path(__file__).parents[2] / ".github" / "docs" / "guarantees.md"
MARK = "faults"
PATIENCE_SECONDS = 150.0
"""How much longer than its share an attack may take before it counts as hung."""


_STARTING_SECONDS = 2.5
"""What the processes and servers of one attack take before it begins, about."""
MEASURING = ("busy_writers", "server_overload")
_ROOM_BYTES = 1 << 30


class Attack(NamedTuple):
    """One line of the table."""

    name: str
    """Of the attack, and of its module."""
    databases: tuple[str, ...]
    weight: float
    """Its share of the time, beside the others'."""


BOTH = ("sqlite", "postgres")
ATTACKS = (
    Attack("kill_loops", BOTH, 4),
    Attack("copy_kills", BOTH, 3),
    Attack("server_kills", ("postgres",), 2),
    Attack("durable_kills", ("sqlite",), 2),
    Attack("migrations", ("sqlite",), 2),
    Attack("io_faults", ("sqlite",), 4),
    Attack("bit_flips", ("sqlite",), 3),
    Attack("disk_full", ("sqlite",), 2),
    Attack("clock_jumps", BOTH, 1),
    Attack("stopped_writers", BOTH, 2),
    Attack("forks", BOTH, 1),
    Attack("threads", BOTH, 2),
    Attack("read_only", ("sqlite",), 1),
    Attack("busy_writers", BOTH, 3),
    Attack("server_overload", ("server",), 3),
)
"""All of them; `server_overload` makes its own memory, and counts what `tally_of` reads."""


class Line(NamedTuple):
    """What one attack on one database counted."""

    attack: str
    database: str
    seconds: float
    tally: Tally


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; return the exit code."""
    asked = _parsed(arguments)
    if asked.inside:
        _inside(asked)
        return 0
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1 << 32)
    chosen = [
        (attack, database)
        for attack in ATTACKS
        for database in attack.databases
        if (not asked.only or attack.name in asked.only)
        and (database != "postgres" or asked.postgres)
    ]
    print(f"seed {seed}, {asked.minutes:g} minutes, {len(chosen)} attacks", flush=True)
    lines: list[Line] = []
    ends = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(prefix="faults-shared-") as shared:
        for number, (attack, database) in enumerate(chosen):
            # Of the time that is left, so that one that took longer is made up for by the rest.
            share = attack.weight / sum(other.weight for other, _ in chosen[number:])
            seconds = max((ends - time.monotonic()) * share - _STARTING_SECONDS, 1.0)
            lines.append(run_alone(attack.name, database, seconds, seed, Path(shared)))
            print(shown_line(lines[-1]), flush=True)
    print(f"\n{table(lines)}\n")
    for line in lines:
        for defect in line.tally.defects:
            print(f"{line.attack}/{line.database}: {defect}")
    report = {"seed": seed, "minutes": asked.minutes, "machine": machine(), "lines": _plain(lines)}
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    if asked.write_docs:
        write_page(PAGE, page_part(lines, seed, asked.minutes))
    return int(any(line.tally.broken for line in lines))


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all attacks together")
    parser.add_argument("--seed", type=int, help="what happens; by default another each time")
    names = [attack.name for attack in ATTACKS]
    parser.add_argument("--only", nargs="+", choices=names, help="these attacks")
    parser.add_argument("--postgres", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, help="a file for all that was counted")
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run_alone(name: str, database: str, seconds: float, seed: int, shared: Path) -> Line:
    """Run one attack in a process group of its own, and clear away after it.

    What all attacks need is made once, in `shared`.
    """
    began = time.monotonic()
    module = Path(__file__).with_name(f"{name}.py")
    if not module.exists():
        return Line(name, database, 0, Tally(skipped="its module is not there"))
    if database == "postgres" and (why := without_postgres()):
        return Line(name, database, 0, Tally(skipped=why))
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=_place(name)))
    try:
        task = {"name": name, "database": database, "seconds": seconds, "seed": seed}
        tally = _watched(folder, task, shared)
    finally:
        _clear_away(folder)
    return Line(name, database, time.monotonic() - began, tally)


def _place(name: str) -> str | None:
    """Return where an attack works: in memory, unless it measures, since syncs only cost time.

    What a killed process wrote is kept by the system, on whatever disk.
    """
    memory = Path("/dev/shm")  # noqa: S108 - folders of our own in it
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_BYTES
    return str(memory) if roomy and name not in MEASURING else None


def _watched(folder: Path, task: dict[str, Any], shared: Path) -> Tally:
    shim = compiled_shim(shared)
    result = folder / "result.json"
    inside = json.dumps(
        {**task, "folder": str(folder), "result": str(result), "shared": str(shared)}
    )
    assert __package__
    root = Path(__file__).parents[__package__.count(".") + 1]
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(folder)}
    environment |= {"DSPY_CACHEDIR": str(folder / "dspy"), "PYTHONWARNINGS": "ignore"}
    if isinstance(shim, Path):
        environment["LD_PRELOAD"] = str(shim)
    command = [sys.executable, "-m", __package__, "--inside", inside]
    told, tally = folder / "stderr", Tally()
    with told.open("wb") as stderr:
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, cwd=root, stderr=stderr
        )
    try:
        code = process.wait(task["seconds"] + PATIENCE_SECONDS)
        if not result.exists():
            last = told.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            tally.found("untyped_errors", f"the attack itself ended with {code}: {last[:300]}")
        else:
            tally = Tally(**json.loads(result.read_bytes()))
    except subprocess.TimeoutExpired:
        tally.found("hung", f"the attack did not end within {PATIENCE_SECONDS:g} s of its share")
    finally:
        _end_group(process)
    return tally


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _clear_away(folder: Path) -> None:
    """End servers, mounts and files that a killed attack left."""
    for server in folder.glob("pg-*"):
        end_server(server)
    mounts = Path("/proc/mounts")
    for line in reversed(mounts.read_text().splitlines() if mounts.exists() else []):
        place = line.split()[1].replace("\\040", " ")
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", place], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def _inside(asked: argparse.Namespace) -> None:
    """Be the process of one attack: run it and write down what it counted."""
    task = json.loads(asked.inside)
    os.environ.pop("LD_PRELOAD", None)  # it is loaded; servers shall not load it
    sys.path.insert(0, str(Path(__file__).parents[1]))  # what tests share
    module = importlib.import_module(f".{task['name']}", __package__)
    logging.getLogger("hybridagi_steps").setLevel(logging.CRITICAL)  # it is being attacked
    _import_all(Path(task["shared"], "modules"))
    seed = random.Random(f"{task['seed']} {task['name']} {task['database']}").randrange(1 << 60)
    folder = Path(task["folder"])
    if task["database"] == "server":
        steps = min(max(int(1_000 * task["seconds"]), 2_000), 20_000)
        tally = tally_of(module.attack(task["seconds"], seed, steps=steps))
    else:
        server = Server(folder) if task["database"] == "postgres" else None
        try:
            setting = Setting(folder, task["seconds"], seed, task["database"], server)
            tally = module.attack(setting)
        finally:
            if server is not None:
                server.close()
    Path(task["result"]).write_text(json.dumps(dataclasses.asdict(tally)))


def _import_all(known: Path) -> None:
    """Import what children will use, so that each need not; nothing is used here itself."""
    from .operations import modules_used

    if not known.exists():
        known.write_text("\n".join(ask(modules_used, 2 * LONGEST_ANSWER_SECONDS).value or ()))
    for name in known.read_text().split():
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def tally_of(counted: dict[str, Any]) -> Tally:
    """Return the tally of the overload of a server, which counts requests."""
    tally = Tally(trials=counted.pop("offered"))
    tally.figures = counted
    forbidden = {
        "late": ("hung", "requests without an answer or a refusal within 2 s"),
        "failed": ("untyped_errors", "requests that failed otherwise"),
        "damage": ("half_written", "things that verify names afterwards"),
        "wal_left": ("half_written", "write-ahead log that was not closed"),
        "exit_code": ("untyped_errors", "is how the server ended"),
    }
    for name, (kind, what) in forbidden.items():
        if count := abs(int(counted.get(name) or 0)):
            tally.found(kind, f"{count} {what}", count)
    return tally


# -- what is printed and written


COLUMNS = (
    *("attack", "database", "trials", "acknowledged writes checked", "lost", "half-written"),
    *("silently changed", "leaked", "hung", "errors typed / untyped"),
)


def cells(line: Line) -> list[str]:
    """Return a line of the table."""
    tally, name = line.tally, line.attack.replace("_", " ")
    if tally.skipped:
        return [name, line.database, f"skipped: {tally.skipped}", *[""] * 7]
    counts = [tally.trials, tally.checked, tally.lost, tally.half_written]
    counts += [tally.silently_changed, tally.leaked, tally.hung]
    errors = f"{tally.typed_errors:,} / {tally.untyped_errors:,}"
    return [name, line.database, *(f"{count:,}" for count in counts), errors]


def table(lines: list[Line]) -> str:
    """Return all lines as a Markdown table."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS), *(cells(line) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def shown_line(line: Line) -> str:
    """Return one attack as it is printed when it ends."""
    told = dict(zip(COLUMNS[2:], cells(line)[2:], strict=True))
    counts = ", ".join(f"{name} {value}" for name, value in told.items() if value)
    figures = f"\n    {line.tally.figures}" if line.tally.figures else ""
    return f"{line.attack}/{line.database} ({line.seconds:.0f} s): {counts}{figures}"


def machine() -> str:
    """Return what the attacks were run on."""
    import sqlite3

    names = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    own = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    try:
        return f"{names}, {own}, psycopg {version('psycopg')}"
    except PackageNotFoundError:
        return f"{names}, {own}"


def page_part(lines: list[Line], seed: int, minutes: float) -> str:
    """Return what stands on the page between the marks."""
    command = f"`python -m tests.faults --minutes {minutes:g} --seed {seed}`"
    figures = [
        f"* {line.attack.replace('_', ' ')}, {line.database}: "
        + "; ".join(f"{name} {_short(value)}" for name, value in line.tally.figures.items())
        for line in lines
        if line.tally.figures
    ]
    return "\n".join([f"{command} on {machine()}:", "", table(lines), "", *figures])


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"  # pyright: ignore[reportUnknownVariableType]
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType]


def write_page(page: Path, part: str) -> None:
    """Put a part between the marks of a page."""
    text, first, last = page.read_text("utf-8"), f"<!-- {MARK} -->", f"<!-- /{MARK} -->"
    before, after = text[: text.index(first)], text[text.index(last) :]
    page.write_text(f"{before}{first}\n{part}\n{after}", "utf-8")


def _plain(lines: list[Line]) -> list[dict[str, Any]]:
    return [line._asdict() | {"tally": dataclasses.asdict(line.tally)} for line in lines]


if __name__ == "__main__":
    sys.exit(main())
