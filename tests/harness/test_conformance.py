"""The contracts as the author of another back-end runs them: they find what it does not keep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
BROKEN = """
from conformance.step_store import StepStoreContract
from hybridagi_steps.stores.sqlite import SqliteStepStore


class Broken(SqliteStepStore):
    def delete(self, ids):
        return super().delete(ids) and 0


class TestBroken(StepStoreContract):
    one_file = True

    def open_store(self, folder, namespace):
        return Broken(folder / "steps.db", namespace=namespace)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the contracts to be imported."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_back_end_that_does_not_keep_a_contract_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN, "utf-8")
    options = ("-q", "-p", "no:cacheprovider", "-n0", "-k", "delet", str(tmp_path))
    done = python(tmp_path, "-m", "pytest", *options)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 1, done.stdout + done.stderr
    assert any("delet" in line for line in failed)


def test_the_doubles_load_without_pytest(tmp_path: Path) -> None:
    code = "import sys, hybridagi_steps.testing; sys.exit({'pytest', 'dspy'} & set(sys.modules))"
    assert python(tmp_path, "-c", code).stderr == "set()\n"
