"""Puts faults into the functions of one room and runs the tests that reach each of them.

The tests of the room run once under coverage, to know which of them reach a line; then each fault
is written into a copy of the tree and those tests run, the quickest first, until one fails. A test
that hangs has failed, too. A line that no test reaches is a survivor. Faults are drawn at random
from all that `operators` finds; which of the survivors change nothing is judged by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.operators import Mutant, mutants

ROOT = Path(__file__).parents[2]
ROOMS: dict[str, list[str]] = {
    "search": ["tests/search", "tests/memory/test_memory.py"],
    "sessions": ["tests/sessions"],
    "stores/sql": ["tests/stores", "tests/sessions"],
    "recording": ["tests/recording"],
    "context": ["tests/context"],
    "running": ["tests/running"],
    "planning": ["tests/planning"],
}
"""Folders of the package, and the tests that are to find what is wrong there."""
FILES = {"search": "ranking.py score_parts.py formulas.py searcher.py"}
"""Those of a room that are given faults, where it is not all."""
SLOWEST_SECONDS = 10.0
"""Tests that take longer are left out, and those marked slow: they start processes."""


class Reach(NamedTuple):
    """What the tests of a room reach."""

    seconds: dict[str, float]
    """How long each test took that passed."""
    tests: dict[tuple[str, int], set[str]]
    """The tests that come to a line of a file; of a line that runs at import, the quickest."""


def main() -> int:
    """Print the faults of one room that no test notices, and return how many there are."""
    options = argparse.ArgumentParser(prog="python -m tests.mutation")
    options.add_argument("--room", choices=ROOMS, required=True)
    options.add_argument("--mutants", type=int, default=20)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", type=Path, help="append the result to this file")
    asked = options.parse_args()
    tree = Path(tempfile.mkdtemp(prefix="mutation-"))
    try:
        shutil.copytree(ROOT, tree, dirs_exist_ok=True, ignore=_NOT_COPIED)
        _few_examples(tree / "tests" / "conftest.py")
        _warm_up()
        reach = _reach(tree, asked.room)
        files = sorted((tree / "hybridagi_steps" / asked.room).glob("*.py"))
        some = FILES.get(asked.room, "").split()
        every = [m for file in files if not some or file.name in some for m in mutants(file)]
        chosen = random.Random(asked.seed).sample(every, min(asked.mutants, len(every)))
        codes: list[int] = []
        for mutant in chosen:
            codes.append(_exit_code(tree, mutant, reach))
            line = f"{mutant.path.name}:{mutant.line} ended with {codes[-1]}"
            print(f"{len(codes)}/{len(chosen)}, {codes.count(0)} survived; {line}", file=sys.stderr)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    places = [
        f"{each.path.relative_to(tree)}:{each.line}: {each.before} → {each.after}"
        for each, code in zip(chosen, codes, strict=True)
        if code == 0
    ]
    hung = codes.count(-signal.SIGKILL)
    result = {"room": asked.room, "seed": asked.seed, "mutants": len(chosen), "survivors": places}
    print(
        f"{asked.room}: {len(chosen)} mutants, {len(chosen) - len(places)} killed, {hung} hung",
        *places,
        sep="\n  ",
    )
    if asked.json:
        with asked.json.open("a") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")
    return len(places)


_NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".hypothesis", ".*_cache", "*.egg-info")


def _few_examples(conftest: Path) -> None:
    """Let hypothesis try ten examples and not a hundred: what they miss counts as missed."""
    text = conftest.read_text("utf-8")
    few = text.replace("deadline=None,", "deadline=None, max_examples=10,")
    assert few != text
    conftest.write_text(few, "utf-8")


def _warm_up() -> None:
    """Import what is large and not ours, once for all that is forked from this process."""
    os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="dspy-cache-")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in ("coverage", "dspy", "faiss", "numpy", "pydantic", "pytest"):
        __import__(name)


def _in_a_child(tree: Path, do: Callable[[], int], seconds: float) -> int:
    """Return the exit code of a function in a process of its own; -9 when it took too long."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        code = 70
        try:
            sys.stdout.flush()
            with (tree / "output.txt").open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.chdir(tree)
                os.environ["PYTHONPATH"] = str(tree)
                sys.path.insert(0, str(tree))
                for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
                    del sys.modules[name]
                code = do()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])


def _pytest(arguments: list[str], *plugins: Any) -> int:
    import pytest

    quiet = [
        "-q",
        "-n",
        "0",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        "-k",
        "not postgres",
    ]
    return int(pytest.main([*quiet, "--timeout=60", *arguments], plugins=list(plugins)))


class _Watching:
    """A plugin of pytest that notes which lines each test reaches, and how long it takes."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds = coverage, dict[str, float]()

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed and report.duration < SLOWEST_SECONDS:
            self.seconds[report.nodeid] = report.duration


def _reach(tree: Path, room: str) -> Reach:
    """Run the tests of a room once, as they are."""

    def run() -> int:
        import coverage

        measuring = coverage.Coverage(
            data_file=None, source=[f"hybridagi_steps/{room}"], config_file=False
        )
        watching = _Watching(measuring)
        measuring.start()
        _pytest(ROOMS[room], watching)
        measuring.stop()
        found, data = defaultdict[tuple[str, int], set[str]](set), measuring.get_data()
        quickest = min(watching.seconds, key=lambda test: watching.seconds[test])
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                at_import = {quickest} if "" in contexts else set[str]()
                found[file, line] |= (watching.seconds.keys() & contexts) or at_import
        (tree / "reach").write_bytes(pickle.dumps((watching.seconds, dict(found))))
        return 0

    if _in_a_child(tree, run, 3_600):
        raise SystemExit((tree / "output.txt").read_text()[-5_000:])
    return Reach(*pickle.loads((tree / "reach").read_bytes()))


def _exit_code(tree: Path, mutant: Mutant, reach: Reach) -> int:
    """Return how the tests end with the fault in its file: 0 when none fails, -9 when one hangs."""
    tests = reach.tests.get((str(mutant.path), mutant.line), set())
    quickest = sorted(tests, key=lambda test: reach.seconds[test])
    if not quickest:
        return 0
    source = mutant.path.read_bytes()
    mutant.path.write_bytes(mutant.applied(source))
    try:
        patience = 30 + 3 * sum(reach.seconds[test] for test in quickest)
        return _in_a_child(tree, lambda: _pytest(["-x", *quickest]), patience)
    finally:
        mutant.path.write_bytes(source)


if __name__ == "__main__":
    sys.exit(main())
