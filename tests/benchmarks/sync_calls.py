"""Counts how often a writer asks the disk to sync: what its durability really is.

Run as a program it opens a peer and appends real steps one by one; `syncs_per_append` runs that
under strace (Linux) and counts the calls between two marks. A peer that never syncs survives the
end of its process, but not a loss of power.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hybridagi_steps.memory import Durability
from tests.benchmarks import CHECKOUT

APPENDS = 20
MARK = "hybridagi-steps-appends"
_SYNC = re.compile(r"\b(?:fsync|fdatasync|sync_file_range|msync)\(")
_CALLS = "trace=fsync,fdatasync,sync_file_range,msync,access,faccessat,faccessat2"


def syncs_per_append(peer: str, durability: Durability) -> float | None:
    """Return how many sync calls one append makes; None where nothing can be traced."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        program = [sys.executable, "-m", __spec__.name, peer, durability]
        command = [strace, "-f", "-qq", "-e", _CALLS, "-o", str(log), *program]
        done = subprocess.run(command, check=False, capture_output=True, cwd=CHECKOUT)
        if done.returncode:
            return None
        return count_syncs(log.read_text("utf-8", errors="replace")) / APPENDS


def count_syncs(log: str) -> int:
    """Return the sync calls that stand between the two marks of a strace log."""
    _, _, after = log.partition(MARK)
    between, _, _ = after.partition(MARK)
    return len(_SYNC.findall(between))


def append_between_marks(peer: str, durability: Durability) -> None:
    """Append steps one by one; two harmless system calls mark where."""
    from tests.benchmarks.corpus import real_steps
    from tests.benchmarks.peers import WRITERS
    from tests.benchmarks.write_peers import record_of

    records = [record_of(step) for step in real_steps(2 * APPENDS, run_id="one run")]
    adapter = next(writer for writer in WRITERS if writer.name == peer).load()
    assert adapter is not None
    with tempfile.TemporaryDirectory() as folder:
        writer = adapter(Path(folder), durability)
        writer.add_each(records[:APPENDS])
        os.access(f"/{MARK}", os.F_OK)
        writer.add_each(records[APPENDS:])
        os.access(f"/{MARK}", os.F_OK)
        writer.close()


if __name__ == "__main__":
    append_between_marks(sys.argv[1], "full" if sys.argv[2] == "full" else "normal")
