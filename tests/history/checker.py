"""What the notes of all processes say about a memory: reads that no correct memory could give.

An operation took effect at some moment between its beginning and its end; one that never ended, or
failed in a way that leaves it open, at any moment from its beginning on, or never. A read must fit
some choice of these moments, so only what holds for every choice counts as a violation.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEVER = 2**63
OPEN = {"ConnectionLostError"}
"""Errors after which a write is stored, or it is not."""


@dataclass(frozen=True)
class Operation:
    """One operation as its notes tell it."""

    name: str
    kind: str
    arguments: dict[str, Any]
    began: int
    """Nanoseconds of the clock that all processes share."""
    ended: int = NEVER
    result: Any = None
    error: str | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether it ended without an error."""
        return self.ended != NEVER and self.error is None

    @property
    def is_refused(self) -> bool:
        """Whether it certainly changed nothing."""
        return self.error is not None and self.error not in OPEN


@dataclass
class History:
    """All operations of one memory, with what is asked of them most."""

    operations: list[Operation]
    added: dict[str, Operation] = field(default_factory=dict[str, Operation])
    """The first operation that may have stored a step, by the step's id."""
    batches: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The ids stored together with an id."""
    removed: dict[str, list[Operation]] = field(default_factory=dict[str, list[Operation]])
    stored: dict[str, int] = field(default_factory=dict[str, int])
    """When a step was there for certain, by its id."""

    def __post_init__(self) -> None:
        """Index the operations."""
        for one in sorted(self.operations, key=lambda one: one.began):
            if one.kind in ("add", "commit") and not one.is_refused:
                for step_id in one.arguments["ids"]:
                    self.added.setdefault(step_id, one)
                    self.batches[step_id] = one.arguments["ids"]
                    if one.is_acknowledged:
                        self.stored[step_id] = min(one.ended, self.stored.get(step_id, NEVER))
            if one.kind == "remove" and not one.is_refused:
                for step_id in one.arguments["ids"]:
                    self.removed.setdefault(step_id, []).append(one)

    def must_show(self, step_id: str, read: Operation) -> bool:
        """Whether a read has to show a step: stored before it began, not removed till it ended."""
        gone = any(one.began < read.ended for one in self.removed.get(step_id, ()))
        return self.stored.get(step_id, NEVER) < read.began and not gone

    def may_show(self, step_id: str, read: Operation) -> bool:
        """Whether a read can show a step: written before the read ended, not removed before it."""
        adder = self.added.get(step_id)
        gone = any(
            one.is_acknowledged and one.ended < read.began for one in self.removed.get(step_id, ())
        )
        return adder is not None and adder.began < read.ended and not gone


def notes_in(folder: Path) -> History:
    """Read the notes of all processes."""
    operations: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):  # a killed process may leave half a line
                note = json.loads(line)
                operations.setdefault(note["name"], {}).update(note)
    known = ("name", "operation", "began", "ended", "result", "error")
    return History(
        [
            Operation(
                name=note["name"],
                kind=note["operation"],
                arguments={key: value for key, value in note.items() if key not in known},
                began=note["began"],
                ended=note.get("ended", NEVER),
                result=note.get("result"),
                error=note.get("error"),
            )
            for note in operations.values()
        ]
    )


def violations(history: History) -> list[str]:
    """Return a sentence for each read that no correct memory could give."""
    reads = [one for one in history.operations if one.is_acknowledged]
    return [
        *(line for one in reads if one.kind == "find" for line in _listing(history, one)),
        *(line for one in reads if one.kind == "search" for line in _search(history, one)),
        *_sessions(history, reads),
        *_halves(history, reads),
    ]


def _listing(history: History, read: Operation) -> Iterator[str]:
    user, shown = read.arguments["user"], set(read.result)
    if len(shown) != len(read.result):
        yield f"{read.name}: a step is listed twice"
    for step_id in shown:
        adder = history.added.get(step_id)
        if adder is None or adder.arguments["user"] != user:
            yield f"{read.name}: {step_id} is listed for {user} and not theirs"
        elif not history.may_show(step_id, read):
            yield f"{read.name}: {step_id} is listed after it was removed"
        for other in history.batches.get(step_id, ()):
            begun = any(one.began < read.ended for one in history.removed.get(other, ()))
            if other not in shown and not begun:
                yield f"{read.name}: {step_id} is listed without {other}, stored with it"
    for step_id, adder in history.added.items():
        missing = adder.arguments["user"] == user and step_id not in shown
        if missing and history.must_show(step_id, read):
            yield f"{read.name}: {step_id} was acknowledged before and is not listed"


def _search(history: History, read: Operation) -> Iterator[str]:
    target = read.arguments["target"]
    if history.must_show(target, read) and target not in read.result:
        yield f"{read.name}: {target} was acknowledged before and is not found"
    for step_id in read.result:
        if not history.may_show(step_id, read):
            yield f"{read.name}: {step_id} is found after it was removed, or was never stored"


Line = list[list[Any]]
"""Sequences and contents of a session's messages."""


def _sessions(history: History, reads: list[Operation]) -> Iterator[str]:
    commits: dict[str, list[Operation]] = defaultdict(list)
    for one in history.operations:
        if one.kind == "commit":
            commits[one.arguments["key"]].append(one)
    for key, attempts in commits.items():
        results = {json.dumps(one.result) for one in attempts if one.is_acknowledged}
        if len(results) > 1:
            yield f"the key {key} stored more than once: {sorted(results)}"
    for session in {one.arguments["session"] for one in reads if one.kind == "read"}:
        lines = [one for one in reads if one.kind == "read" and one.arguments["session"] == session]
        longest: Line = max((one.result for one in lines), key=len)
        yield from _whole(session, longest, commits)
        for read in lines:
            if read.result != longest[: len(read.result)]:
                yield f"{read.name}: what {session} said before was changed"
            yield from _missing(session, read, commits)
        for fork in reads:
            forked = fork.kind == "fork" and fork.arguments["session"] == session
            if forked and fork.result != longest[: fork.arguments["at"]]:
                yield f"{fork.name}: the fork does not begin as {session} does"


def _whole(session: str, line: Line, commits: dict[str, list[Operation]]) -> Iterator[str]:
    if [sequence for sequence, _ in line] != list(range(1, len(line) + 1)):
        yield f"{session}: its sequences have a gap"
    contents = [content for _, content in line]
    for content, count in Counter(contents).items():
        if count > 1:
            yield f"{session}: {content!r} stands there {count} times"
    for asked, answered in zip(contents[::2], contents[1::2], strict=False):
        key = asked.partition(" ")[0]
        if answered != f"{key} answers" or key not in commits:
            yield f"{session}: {asked!r} is followed by {answered!r}"
    if len(contents) % 2:
        yield f"{session}: {contents[-1]!r} is half of a commit"


def _missing(session: str, read: Operation, commits: dict[str, list[Operation]]) -> Iterator[str]:
    shown = {content for _, content in read.result}
    for key, attempts in commits.items():
        if attempts[0].arguments["session"] != session or f"{key} asks" in shown:
            continue
        if any(one.is_acknowledged and one.ended < read.began for one in attempts):
            yield f"{read.name}: the commit {key} was acknowledged before and is not read"


def _halves(history: History, reads: list[Operation]) -> Iterator[str]:
    """Yield commits of which one read shows the messages, and a later one not the step, or so."""
    messages: dict[str, int] = {}
    steps: dict[str, int] = {}
    for read in sorted(reads, key=lambda one: one.ended):
        if read.kind == "read":
            for _, content in read.result:
                messages.setdefault(content.partition(" ")[0], read.ended)
        elif read.kind == "find":
            for step_id in read.result:
                steps.setdefault(step_id.rpartition("-")[0], read.ended)
    commits = {
        one.arguments["key"]: one.arguments for one in history.operations if "key" in one.arguments
    }
    for read in reads:
        for key, commit in commits.items():
            if read.kind == "find" and read.arguments["user"] == commit["user"]:
                if messages.get(key, NEVER) < read.began and f"{key}-0" not in read.result:
                    yield f"{read.name}: the commit {key} has its messages and not its step"
            elif read.kind == "read" and read.arguments["session"] == commit["session"]:
                shown = any(content == f"{key} asks" for _, content in read.result)
                if steps.get(key, NEVER) < read.began and not shown:
                    yield f"{read.name}: the commit {key} has its step and not its messages"


def counts(history: History) -> dict[str, int]:
    """Return how many operations of each kind ended, and how many were cut or refused."""
    found: Counter[str] = Counter()
    for one in history.operations:
        if one.ended == NEVER:
            found["cut off"] += 1
        else:
            found[one.error or one.kind] += 1
    return dict(sorted(found.items()))


def first_of(lines: Iterable[str], most: int = 20) -> str:
    """Return the first lines as one text."""
    return "\n".join(list(lines)[:most])
