"""The conformance kit as others use it: a command that tells which contracts a back-end keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = """
import sys
import hybridagi_steps.stores as stores
from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.testing.conformance.__main__ import main

class Broken(SqliteStepStore):
    def __init__(self, address, **options):
        super().__init__(address.partition("://")[2], **options)
    def delete(self, ids):
        return super().delete(ids) and 0

sys.modules["broken"] = sys.modules["__main__"]
stores._BACKENDS["broken"] = "broken:Broken"
sys.exit(main(["broken://steps.db"]))
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("address", [":memory:", "steps.db"])
def test_a_back_end_that_keeps_the_contracts(tmp_path: Path, address: str) -> None:
    done = python(tmp_path, "-m", "hybridagi_steps.testing.conformance", address)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    report = [line.split() for line in done.stdout.splitlines() if "Contract: " in line]
    assert [line[1] for line in report] == [
        "AdminContract:",
        "FilterContract:",
        "MessageIndexContract:",
        "OwnerContract:",
        "RunContract:",
        "SessionContract:",
        "SessionFollowerContract:",
        "StepsContract:",
    ]
    assert all(line[0] == "passed" and line[2] == line[4] for line in report)


def test_a_back_end_that_does_not(tmp_path: Path) -> None:
    done = python(tmp_path, "-c", BROKEN)
    assert done.returncode == 1, done.stderr
    report = [line for line in done.stdout.splitlines() if "Contract: " in line]
    assert [line.partition(":")[0] for line in report if line.startswith("FAILED")] == [
        "FAILED  AdminContract"
    ]


def test_an_address_that_nothing_serves(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "hybridagi_steps.testing.conformance", "nothing://here")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no store serves nothing://" in done.stderr


def test_the_doubles_load_without_pytest_and_the_kit_without_dspy(tmp_path: Path) -> None:
    code = "import sys, hybridagi_steps.testing; sys.exit({'pytest', 'dspy'} & set(sys.modules))"
    assert python(tmp_path, "-c", code).stderr == "set()\n"
    code = "import sys, hybridagi_steps.testing.conformance; sys.exit('dspy' in sys.modules)"
    assert python(tmp_path, "-c", code).returncode == 0
