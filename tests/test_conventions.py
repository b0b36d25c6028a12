"""The budgets and habits of this repository, held by measurement."""

from __future__ import annotations

import ast
import configparser
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import hybridagi_steps as hs

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hybridagi_steps"
FILES = sorted(PACKAGE.rglob("*.py"))

MOST_LINES_PER_FILE = 600
USUAL_LINES_PER_FILE = 400
SHARE_OF_USUAL_FILES = 0.95
MOST_LINES_PER_FUNCTION = 60
IMPORT_BUDGET_SECONDS = 0.05
TOP_LEVEL = {
    "setup.cfg",
    "pyproject.toml",
    "hybridagi_steps",
    "notebooks",
    "tests",
    "data",
    "README.md",
    "LICENSE",
}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_fits_its_budgets_and_says_what_it_is(path: Path) -> None:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    assert ast.get_docstring(tree), "no module docstring"
    assert len(source.splitlines()) <= MOST_LINES_PER_FILE
    for function in functions(tree):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= MOST_LINES_PER_FUNCTION, f"{function.name} has {length} lines"


def test_nearly_all_files_are_of_usual_length() -> None:
    lengths = [len(path.read_text("utf-8").splitlines()) for path in FILES]
    usual = sum(length <= USUAL_LINES_PER_FILE for length in lengths)
    assert usual >= SHARE_OF_USUAL_FILES * len(lengths)


def test_every_public_name_loads_is_listed_and_is_documented() -> None:
    assert sorted(hs.__all__) == hs.__all__
    for name in hs.__all__:
        value = getattr(hs, name)
        assert value.__doc__, f"hs.{name} has no docstring"
        assert name in dir(hs) or (name == "DurableRunner" and not find_spec("dbos"))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hs.nothing  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; t = time.process_time(); import hybridagi_steps as hs; "
        "spent = time.process_time() - t; hs.errors; "
        "heavy = {'dspy', 'faiss', 'numpy', 'pydantic', 'torch', 'wordllama'} & set(sys.modules); "
        "print(spent, sorted(heavy))"
    )
    best, loaded = 1.0, ""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        spent, _, loaded = done.stdout.decode().partition(" ")
        best = min(best, float(spent))
    assert loaded.strip() == "[]"
    assert best < IMPORT_BUDGET_SECONDS


WALL_CLOCKS = {"monotonic", "perf_counter", "time", "default_timer", "now", "utc_now"}
"""Functions that read a clock which goes on while other processes work; CPU clocks are none."""


def reads_wall_clock(node: ast.AST) -> bool:
    """Whether an expression is a call of a wall clock, as `time.monotonic()`."""
    if not isinstance(node, ast.Call):
        return False
    named = node.func
    name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
    return name.removesuffix("_ns") in WALL_CLOCKS


def wall_clock_assertions(source: str) -> list[int]:
    """Return the lines of asserts that compare wall-clock time that passed with anything else.

    Names are followed through assignments, `append` and `return` within a module; of two times that
    passed each may be compared with the other, which is a ratio. `# wall clock: why` exempts.
    """
    tree, lines = ast.parse(source), source.splitlines()
    readings, passed = set[str](), set[str]()

    def holds(node: ast.AST, names: set[str]) -> bool:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len":
            return False  # how many there are is no time
        return getattr(node, "id", "") in names or any(
            holds(part, names) for part in ast.iter_child_nodes(node)
        )

    def is_passed(node: ast.AST) -> bool:
        differences = (n for n in ast.walk(node) if isinstance(n, ast.BinOp))
        return holds(node, passed) or any(
            isinstance(n.op, ast.Sub)
            and any(reads_wall_clock(side) or holds(side, readings) for side in (n.left, n.right))
            for n in differences
        )

    def follow(targets: Iterable[ast.AST], value: ast.AST) -> None:
        names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        if is_passed(value):
            passed.update(names)
        elif any(reads_wall_clock(n) for n in ast.walk(value)):
            readings.update(names)

    nodes, before = list(ast.walk(tree)), -1
    while before < (before := len(readings) + len(passed)):
        for node in nodes:
            if isinstance(node, ast.Assign):
                follow(node.targets, node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "append":
                    follow([node.func.value], node.args[0])
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
                passed.update({node.name} if any(v and is_passed(v) for v in returned) else ())
    return [
        statement.lineno
        for statement in nodes
        if isinstance(statement, ast.Assert)
        and not any(
            "# wall clock: " in line for line in lines[statement.lineno - 1 : statement.end_lineno]
        )
        for node in ast.walk(statement.test)
        if isinstance(node, ast.Compare)
        and len({is_passed(side) for side in (node.left, *node.comparators)}) == 2
    ]


def test_no_test_asserts_how_long_something_takes_by_the_clock_on_the_wall() -> None:
    """Bound CPU time, counts or ratios, or wait for events: a busy machine is no fault."""
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (lines := wall_clock_assertions(path.read_text("utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("code", "is_one"),
    [
        ("began = time.monotonic()\nassert time.monotonic() - began < 5", True),
        ("began = perf_counter()\ntook = perf_counter() - began\nassert took <= LIMIT", True),
        ("def f():\n    return time.time() - before\nassert min(f(), f()) < 1", True),
        ("waits.append(time.monotonic_ns() - begun)\nassert max(waits) < 3", True),
        ("waits.append(time.monotonic() - begun)\nassert max(waits) < 3 * min(waits)", False),
        ("began = time.process_time()\nassert time.process_time() - began < 5", False),
        ("end = time.monotonic() + 9\nassert time.monotonic() < end", False),
        ("took = time.time() - before\nassert took >= 1  # wall clock: it slept so long", False),
    ],
)
def test_what_counts_as_an_assertion_about_the_clock_on_the_wall(code: str, is_one: bool) -> None:
    assert bool(wall_clock_assertions(code)) == is_one


def test_storing_and_searching_never_loads_dspy(tmp_path: Path) -> None:
    code = (
        "import sys, hybridagi_steps as hs\n"
        f"m = hs.StepMemory({str(tmp_path / 's.db')!r}, embedder='hashing')\n"
        "m.add(hs.AgentStep(step_type='Action', inputs={'purpose': 'refund'}))\n"
        "assert m.search('refund') and list(m.iter_steps())\n"
        "assert 'dspy' not in sys.modules and 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment)


def test_a_tool_is_configured_in_one_file_only() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    in_setup = {section.split(":")[-1].split(":")[0] for section in setup.sections()}
    in_pyproject = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"])
    assert not in_setup & in_pyproject
    assert "metadata" not in in_setup


def test_the_top_level_is_the_agreed_one() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, check=False, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_every_package_is_installed() -> None:
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = set(configured["tool"]["setuptools"]["packages"])
    found = PACKAGE.glob("**/__init__.py")
    folders = {file.parent.relative_to(ROOT) for file in found}
    assert {".".join(folder.parts) for folder in folders} | {"hybridagi_steps.data"} == listed


def test_every_error_is_documented_in_the_tree() -> None:
    tree = (hs.errors.__doc__ or "").split()
    names = [
        name
        for name, value in vars(hs.errors).items()
        if isinstance(value, type)
        and issubclass(value, hs.errors.StepsError)
        and not name.startswith("_")
    ]
    assert len(names) > 15
    assert not [name for name in names if name not in tree]
