"""What an attack is given and gives back; a memory under attack with its writers and its audit."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridagi_steps import StepMemory
from hybridagi_steps.errors import StepsError

from . import expected
from .expected import Actual, Operation, State
from .operations import Lane, Writer, prompts, read
from .processes import Outcome, Server, ask, fork, shown

FORBIDDEN = (
    *("lost", "half_written", "silently_changed", "leaked", "hung"),
    "untyped_errors",
)
"""The counts of which each must be 0."""
LONGEST_ANSWER_SECONDS = 60.0
"""After which a process that was asked something counts as hung."""
_MOST_DEFECTS = 12


@dataclass
class Tally:
    """What an attack counted."""

    trials: int = 0
    checked: int = 0
    """Acknowledged writes that were looked for."""
    lost: int = 0
    half_written: int = 0
    silently_changed: int = 0
    leaked: int = 0
    hung: int = 0
    typed_errors: int = 0
    untyped_errors: int = 0
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else is worth telling."""
    defects: list[str] = field(default_factory=list[str])
    """What each forbidden count stands for, the first ones."""
    skipped: str = ""
    """Why nothing was tried."""

    def found(self, kind: str, what: str, count: int = 1) -> None:
        """Count something that may not be."""
        assert kind in FORBIDDEN, kind
        setattr(self, kind, getattr(self, kind) + count)
        if len(self.defects) < _MOST_DEFECTS:
            self.defects.append(f"{kind}: {what}")

    def outcome(self, outcome: Outcome, what: str) -> bool:
        """Count how a process ended that was asked something; return whether it answered."""
        if outcome.hung:
            self.found("hung", f"{what}: {outcome.error}")
        elif outcome.error and outcome.typed:
            self.typed_errors += 1
        elif outcome.error:
            self.found("untyped_errors", f"{what}: {outcome.error}")
        return not outcome.error

    @property
    def broken(self) -> bool:
        """Whether any count is forbidden."""
        return any(getattr(self, kind) for kind in FORBIDDEN)


@dataclass
class Setting:
    """Where, for how long and with which chance an attack is made."""

    folder: Path
    seconds: float
    seed: int
    database: str = "sqlite"
    server: Server | None = None
    """One for this attack alone, if it is made on PostgreSQL."""

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}")
        self._ends = time.monotonic() + self.seconds
        self._made = 0

    def going_on(self, share: float = 0) -> bool:
        """Tell whether there is time left, and more than a share of it if one is named."""
        return self._ends - time.monotonic() > share * self.seconds

    def new_address(self) -> str:
        """Return the address of a memory that is not there yet."""
        if self.server is not None:
            return self.server.new_database()
        return str(self.new_folder("memory") / "steps.db")

    def new_folder(self, name: str) -> Path:
        """Return an empty folder whose name begins like this."""
        self._made += 1
        folder = self.folder / f"{name} {self._made}"
        folder.mkdir()
        return folder


Opener = Callable[[str, str, str], StepMemory]
"""(address, namespace, embedder) -> memory."""


def opened(address: str, namespace: str, embedder: str) -> StepMemory:
    """Open a memory as people do."""
    return StepMemory(address, namespace=namespace, embedder=embedder)


class Ledger:
    """A memory under attack: who writes to it under which names, and what it must hold."""

    def __init__(
        self, setting: Setting, tally: Tally, lanes: dict[str, str], open_memory: Opener = opened
    ) -> None:
        """Begin with an empty memory.

        Args:
            setting: Where.
            tally: What is found is counted here.
            lanes: The namespace of each writer; one called `alone…` may clear and reembed it.
            open_memory: How writers open it.
        """
        self.setting, self.tally, self.lanes = setting, tally, lanes
        self._open = open_memory
        self.move_to(setting.new_address())
        self.notes = setting.new_folder("notes")
        self.states: dict[str, State] = {name: expected.empty() for name in lanes}
        self.under_way: Counter[str] = Counter()
        """What was being done when a writer was cut short."""
        self.errors: Counter[str] = Counter()
        """The classes of what was raised."""

    def move_to(self, address: str) -> None:
        """Let what is looked at from now on be another memory, such as a copy."""
        self.address = address
        self.folder = None if "://" in address else Path(address).parent

    def open(self, name: str) -> StepMemory:
        """Open the memory of a lane."""
        namespace = self.lanes[name]
        alone = namespace.startswith("alone")
        return self._open(self.address, namespace, "auto" if alone else "hashing")

    def lane(self, name: str, seed: int) -> Lane:
        """Return what a lane does next."""
        alone = self.lanes[name].startswith("alone")
        return Lane(name, self.states[name], random.Random(seed), alone=alone)

    def start(
        self,
        name: str,
        focus: str | None = None,
        *,
        before: Callable[[], None] = lambda: None,
        ready: Callable[[StepMemory], None] = lambda _: None,
        work: Callable[[Writer], Any] | None = None,
    ) -> int:
        """Let a process write on a lane until it dies or something is raised; return its id.

        Args:
            name: The lane.
            focus: The operation it does most.
            before: Called before it opens the memory, in that process.
            ready: Called after that.
            work: What it does instead of all operations by chance.
        """
        seed = self.setting.chance.randrange(1 << 60)

        def write() -> None:
            before()
            try:
                memory = self.open(name)
            except Exception as error:  # noqa: BLE001, RUF100 - noted, for the attack to judge
                self._note_unopened(name, error)
                return
            writer = Writer(memory, self.lane(name, seed), self.notes / name)
            ready(memory)
            operations: Iterator[Operation] = writer.lane.endless(focus)
            work(writer) if work is not None else writer.go_on(operations)
            memory.close()

        return fork(write)

    def _note_unopened(self, name: str, error: Exception) -> None:
        told = {"error": shown(error), "typed": isinstance(error, StepsError)}
        with (self.notes / name).open("a") as notes:
            notes.write(f'{{"do": "nothing"}}\n{json.dumps(told)}\n')

    def wait_for_notes(self, name: str, seconds: float = 20) -> None:
        """Wait until a lane has begun to write."""
        give_up = time.monotonic() + seconds
        path = self.notes / name
        while time.monotonic() < give_up and not (path.exists() and path.stat().st_size):
            time.sleep(0.002)

    def check(self, what: str) -> bool:
        """Look for everything that was acknowledged; return whether all is well.

        The memory is as the nearest right state afterwards, or nobody should go on with it.
        """
        before = sum(getattr(self.tally, kind) for kind in FORBIDDEN)
        notes = {name: expected.noted(self.notes / name) for name in self.lanes}
        right = {name: expected.right_states(self.states[name], notes[name]) for name in self.lanes}
        words = {name: _last_words(right[name], notes[name]) for name in self.lanes}
        outcome = ask(lambda: self._looked(words), LONGEST_ANSWER_SECONDS)
        self._count_errors(notes)
        if not self.tally.outcome(outcome, f"{what}, opening the memory again"):
            if outcome.typed:
                self.tally.found("lost", f"{what}: it cannot be read again: {outcome.error}")
            return False
        for problem in outcome.value["verify"]:
            self.tally.found("half_written", f"{what}: verify says {problem}")
        for name in self.lanes:
            self._judge(name, what, right[name], notes[name], outcome.value["lanes"][name])
            if words[name] and not outcome.value["found"][name]:
                self.tally.found("lost", f"{what}: search does not find {words[name]!r}")
        self._look_for_erased(what, right, outcome.value["prompts"])
        for name in self.lanes:
            (self.notes / name).unlink(missing_ok=True)
        return sum(getattr(self.tally, kind) for kind in FORBIDDEN) == before

    def _looked(self, words: dict[str, str]) -> dict[str, Any]:
        """Read everything, in a process of its own."""
        answer: dict[str, Any] = {"verify": [], "lanes": {}, "found": {}, "prompts": []}
        for namespace in sorted(set(self.lanes.values())):
            names = [name for name, its in self.lanes.items() if its == namespace]
            with self.open(names[0]) as memory:
                answer["verify"] += memory.verify()
                answer["lanes"] |= read(memory, names)
                answer["prompts"] += prompts(memory)
                for name in names:
                    asked = words[name]
                    found = asked and any(
                        hit.step.purpose == asked for hit in memory.search(asked, 3, mode="lexical")
                    )
                    answer["found"][name] = bool(found)
        return answer

    def _count_errors(self, notes: dict[str, list[expected.Entry]]) -> None:
        for entry in (entry for entries in notes.values() for entry in entries):
            if entry.error:
                self.errors[entry.error.split(" ")[0].rstrip(":")] += 1
            if entry.error and entry.typed:
                self.tally.typed_errors += 1
            elif entry.error:
                self.tally.found("untyped_errors", f"{entry.operation['do']}: {entry.error}")

    def _judge(
        self,
        name: str,
        what: str,
        right: list[State],
        entries: list[expected.Entry],
        actual: Actual,
    ) -> None:
        self.tally.checked += sum(entry.acknowledged for entry in entries)
        cut = [entry.operation for entry in entries if not entry.acknowledged]
        self.under_way.update(operation["do"] for operation in cut)
        self.states[name], found = expected.nearest(right, actual)
        touched = {word for operation in cut for word in _names_in(operation)}
        for one in found:
            kind = "half_written" if one.name in touched else one.kind
            doing = ", ".join(operation["do"] for operation in cut) or "nothing"
            self.tally.found(
                kind, f"{what}, lane {name}, under way: {doing}: {one.name} {one.what}"
            )

    def _look_for_erased(
        self, what: str, right: dict[str, list[State]], prompted: list[str]
    ) -> None:
        """Read every byte of every file, and prompts, packed there: what was purged is in none."""
        erased = [expected.words_erased(states, 10_000) for states in right.values()]
        said = {word for one in prompted for word in one.split()}
        for word in said & {word for each in erased for word in each}:
            self.tally.found("leaked", f"{what}: purged {word} is in a prompt")
        words = [word for each in erased for word in each[:12]]
        if not words:
            return
        folder = self.folder
        if folder is None and self.setting.server is not None:
            folder = self.setting.server.files_of(self.address)
        for path in sorted(folder.rglob("*")) if folder is not None else ():
            content = path.read_bytes() if path.is_file() else b""
            for word in words:
                if word.encode() in content:
                    self.tally.found("leaked", f"{what}: purged {word} is in {path.name}")


def _names_in(operation: Operation) -> set[str]:
    names = {step[0] for step in operation.get("steps", ())} | set(operation.get("ids", ()))
    return names | {operation[key] for key in ("session", "new", "run") if key in operation}


def _last_words(right: list[State], entries: list[expected.Entry]) -> str:
    """Return the word of the last acknowledged step that every right state holds."""
    for entry in reversed(entries):
        steps: list[list[Any]] = entry.operation.get("steps", []) if entry.acknowledged else []
        for step_id, text, *_ in reversed(steps):
            if all(state["steps"].get(step_id, [None])[0] == text for state in right):
                return str(text).split()[0]
    return ""
