"""How far one thing walks through the package: files entered, functions, calls, changes of file.

Six things that people do every day are done once to warm up and once under `sys.setprofile`, which
tells of every call in every thread. A change of file is a call whose file is not that of the call
before it in the same thread. Few files and few changes mean that a stranger can follow. Then each
is done a number of times without that, for its CPU time: the median, all threads of the process.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import dspy

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file
from hybridagi_steps.testing import ToolCall, scripted_lm
from tests.benchmarks.conditions import conditions
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import interleaved, typical

_PACKAGE = str(Path(hs.__file__).parent) + "/"
_CHAT = """{"messages": [{"role": "user", "content": "When is the flight to Seattle?"},
{"role": "assistant", "content": "At 9:40, HAT742."}]}""".replace("\n", " ")
_PLAN = "PLAN: one step\nSTEP: look\nGOAL: say what is there"


class Walk:
    """Counts the calls into this package of one thing that is done."""

    def __init__(self) -> None:
        self.calls = self.changes = 0
        self.files: set[str] = set()
        self.functions: set[tuple[str, int]] = set()
        self._last = threading.local()

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of one call; `sys.setprofile` calls this."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE):
            return
        self.calls += 1
        self.changes += getattr(self._last, "file", None) != code.co_filename
        self._last.file = code.co_filename
        self.files.add(code.co_filename)
        self.functions.add((code.co_filename, code.co_firstlineno))


def report(json_output: bool = False, **options: Any) -> None:
    """Print how far each thing walks; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables([_table(result)], result)


def measure(rounds: int = 40) -> dict[str, Any]:
    """Return the counts of each walk, and its CPU time in microseconds.

    Args:
        rounds: How often the time of each is taken.
    """
    with tempfile.TemporaryDirectory() as name, _things(Path(name)) as things:
        walks = {what: _walked(do) for what, do in things.items()}
        samples = {what: interleaved({what: do}, rounds)[what] for what, do in things.items()}
    return {
        **conditions(rounds=rounds),
        "walks": {
            what: {
                "files": len(walk.files),
                "functions": len(walk.functions),
                "calls": walk.calls,
                "changes": walk.changes,
                "cpu_us": typical(samples[what], "cpu"),
            }
            for what, walk in walks.items()
        },
    }


@contextmanager
def _things(folder: Path) -> Generator[dict[str, Callable[[], Any]]]:
    """Give what is walked: each can be done again and again."""
    chats = iter(range(1_000))
    predict = dspy.Predict("question -> answer")

    def add() -> None:
        memory.add(
            hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": "refund the ticket"})
        )

    def record() -> None:
        with hs.record(memory):
            predict(question="When is the flight?")

    def talk() -> None:
        asyncio.run(runner.run(f"talk {next(chats)}", "When is the flight to Seattle?"))

    def take_in() -> None:
        file = folder / f"{next(chats)}.jsonl"
        file.write_text(_CHAT)
        import_file(memory, file, session_id=file.stem)

    def plan() -> None:
        with dspy.context(lm=scripted_lm(lambda _: [ToolCall("finish_step", {"summary": "done"})])):
            assert hs.Orchestrator(memory=memory).run(plan=_PLAN).success

    lm = scripted_lm(lambda _: {"answer": "At 9:40."})
    with (
        hs.StepMemory(folder / "steps.db", embedder="hashing", durability="normal") as memory,
        dspy.context(lm=lm, callbacks=[]),
    ):
        runner = hs.StepRunner(predict, memory)
        yield {
            "memory.add": add,
            "memory.search": lambda: memory.search("refund"),
            "a recorded Predict": record,
            "a message through StepRunner": talk,
            "import of a chat of two messages": take_in,
            "a plan of one step": plan,
        }


def _walked(do: Callable[[], Any]) -> Walk:
    do()
    walk = Walk()
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    try:
        do()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType] - what ends it
    return walk


def _table(result: dict[str, Any]) -> Table:
    columns = ["files", "functions", "calls", "changes", "cpu_us"]
    return Table(
        "How far one thing walks through the package",
        ["", *columns[:3], "changes of file", "CPU µs"],
        [
            [what, *(number(found[column], 0) for column in columns)]
            for what, found in result["walks"].items()
        ],
    )
