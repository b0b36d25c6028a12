"""`python -m tests.benchmarks install`: what `pip install .` brings, and who brings it.

An environment of its own is made with venv and pip, as the README says, and thrown away. Weighed is
all that lies in it afterwards, byte code included, but for pip and setuptools themselves. A package
that several dependencies need is nobody's alone: it would stay if one of them left.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.conditions import conditions
from tests.benchmarks.tables import Table, number, print_json, print_tables

ROOT = Path(__file__).parents[2]
_ITSELF = "hybridagi-steps"
_WEIGH = """
import json, re
from importlib.metadata import distributions
from pathlib import Path
from pip._vendor.packaging.requirements import Requirement

def named(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def needs(distribution):
    wanted = map(Requirement, distribution.requires or ())
    return [named(r.name) for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})]

def weight(distribution):
    files = {Path(distribution.locate_file(f)) for f in distribution.files or ()}
    return sum(file.stat().st_size for file in files if file.is_file())

print(json.dumps({
    named(d.metadata["Name"]): {"bytes": weight(d), "needs": needs(d), "version": d.version}
    for d in distributions()
}))
"""
"""What the interpreter of the new environment runs; pip's RECORD lists the byte code it makes."""


def measure(extra: str = "") -> dict[str, Any]:
    """Install into an empty environment and weigh what came.

    Args:
        extra: Extras to install too, such as `server,mcp`.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
        limits = ROOT / ".ci" / "constraints.txt"
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", limits, wanted], check=True)
        told = subprocess.run([python, "-c", _WEIGH], check=True, capture_output=True, text=True)
    found: dict[str, dict[str, Any]] = json.loads(told.stdout)
    for tool in ("pip", "setuptools"):
        found.pop(tool, None)
    return {**conditions(), "extra": extra, "packages": found, "parts": parts_of(found)}


def parts_of(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what each direct dependency weighs: with all it needs, and what it alone brings."""
    whole = {name: _closure(name, found) for name in [_ITSELF, *found[_ITSELF]["needs"]]}
    whole[_ITSELF] = {_ITSELF}
    parts: dict[str, dict[str, Any]] = {}
    for name, brought in whole.items():
        others = set[str]().union(*(more for other, more in whole.items() if other != name))
        alone = brought - others
        parts[name] = {
            "bytes": sum(found[each]["bytes"] for each in brought),
            "packages": len(brought),
            "alone_bytes": sum(found[each]["bytes"] for each in alone),
            "alone": sorted(alone),
        }
    return parts


def _closure(name: str, found: dict[str, dict[str, Any]]) -> set[str]:
    """Return a package and all that it needs, as far as it was installed."""
    seen, edge = set[str](), [name]
    while edge:
        here = edge.pop()
        if here in found and here not in seen:
            seen.add(here)
            edge += found[here]["needs"]
    return seen


def tables(result: dict[str, Any]) -> list[Table]:
    """Return what was measured as a table, the heaviest dependency first."""
    parts: dict[str, dict[str, Any]] = result["parts"]
    rows = [
        [name, _mb(part["bytes"]), str(part["packages"]), _mb(part["alone_bytes"]), _count(part)]
        for name, part in sorted(parts.items(), key=lambda item: -item[1]["bytes"])
    ]
    packages = result["packages"]
    total = sum(package["bytes"] for package in packages.values())
    rows.append(["all", _mb(total), str(len(packages)), "", ""])
    note = "Alone: what would go if this dependency went; the rest is shared with others."
    heads = ["dependency", "MB with all it needs", "packages", "MB alone", "packages alone"]
    return [Table("what pip install brings", heads, rows, (note,))]


def report(*, json_output: bool, **options: Any) -> None:
    """Print what is measured."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(tables(result), result)


def _mb(size: int) -> str:
    return number(size / 1e6, 1)


def _count(part: dict[str, Any]) -> str:
    return str(len(part["alone"]))
