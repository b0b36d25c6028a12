"""The command line as a process: readers that leave, kills, files larger than memory should be."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.cli import main

DATA = str(files("hybridagi_steps.data") / "steps.jsonl")


def process(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hybridagi_steps", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    filled = str(tmp_path / "filled.db")
    assert main(["import", DATA, "--db", filled]) == 0
    for command in (["export", "-"], ["runs", "--json"], ["search", "refund", "-k", "50"]):
        running = process(*command, "--db", filled)
        assert running.stdout is not None
        running.stdout.read(10)
        running.stdout.close()
        assert running.stderr is not None
        said = running.stderr.read()
        running.stderr.close()
        assert running.wait() == 0
        assert b"rror" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
@pytest.mark.parametrize(
    "command", ["--help", "stats", "stats --json", "search refund", "runs"], ids=lambda c: c
)
def test_output_that_cannot_be_written_is_one_plain_line(
    tmp_path: Path, command: str, where: str
) -> None:
    done = in_shell(tmp_path, f"{command} {where}")
    assert done.returncode == 2
    assert done.stderr.startswith("hybridagi-steps: the output cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_closed_streams_do_no_harm(tmp_path: Path) -> None:
    assert in_shell(tmp_path, "stats <&- 2>&-").returncode == 0
    assert in_shell(tmp_path, "show nothing-like-it <&- >&- 2>&-").returncode == 2
    refused = in_shell(tmp_path, "purge --run r <&-")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert in_shell(tmp_path, "verify").stdout.startswith("all well: 1 steps")


def in_shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line with redirections, on a memory of one step."""
    db = folder / "steps.db"
    if not db.exists():
        with StepMemory(db, embedder="hashing") as memory:
            memory.add(AgentStep.model_validate({"step_type": "Action", "run_id": "r"}))
    line = f"{shlex.quote(sys.executable)} -m hybridagi_steps {command}"
    environment = {**os.environ, "HYBRIDAGI_STEPS_DB": str(db)}
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=False, env=environment
    )


def test_killing_an_import_loses_nothing_and_repeating_it_completes(tmp_path: Path) -> None:
    source = tmp_path / "many.jsonl"
    base = AgentStep.model_validate({"step_type": "Action", "inputs": {"purpose": "x" * 400}})
    with source.open("w") as file:
        for n in range(6_000):
            file.write(base.model_copy(update={"id": f"s{n}"}).model_dump_json() + "\n")
    db = tmp_path / "steps.db"
    running = process("import", str(source), "--db", str(db))
    for _ in range(400):
        if db.exists() and db.stat().st_size + _size(f"{db}-wal") > 300_000:
            break
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    with StepMemory(db) as memory:
        kept = memory.stats()["steps"]
        assert memory.verify() == []
    assert kept % 500 == 0
    assert main(["import", str(source), "--db", str(db)]) == 0
    with StepMemory(db) as memory:
        assert memory.stats()["steps"] == 6_000


def _size(path: str) -> int:
    return Path(path).stat().st_size if Path(path).exists() else 0


@pytest.mark.slow
def test_a_large_file_is_read_in_constant_memory(tmp_path: Path) -> None:
    """As many steps take as much memory, however long their texts are."""
    short, long = (_import_peak_kib(tmp_path / f"{size}.jsonl", size) for size in (500, 4_000))
    assert long - short < MANY_STEPS * (4_000 - 500) / 1024 / 3


MANY_STEPS = 12_500


def _import_peak_kib(source: Path, length: int) -> int:
    """Return the most memory that a process takes to import steps with texts of one length."""
    with source.open("w") as file:
        for n in range(MANY_STEPS):
            fields = {"step_type": "Action", "inputs": {"purpose": "p" * length}}
            file.write(json.dumps({"id": f"s{n}", **fields}) + "\n")
    code = (
        "import resource, sys; from hybridagi_steps.cli import main; "
        "main(['import', sys.argv[1], '--db', sys.argv[1] + '.db']); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source)], capture_output=True, text=True, check=True
    )
    assert f"{MANY_STEPS:,} steps added" in done.stdout
    return int(done.stdout.splitlines()[-1])
