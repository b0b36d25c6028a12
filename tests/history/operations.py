"""What one process does to a shared memory by chance, with a note before and after each operation.

A note is one line of JSON, written whole: a process that is killed leaves an operation that began
and did not end. Names tell who made what: `2.1-17` is the 17th operation of the second process in
slot 2, `2.1-17-0` the first step that it added.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hybridagi_steps import AgentStep, AgentStepType, MessageRole, Step, StepMemory, fork_session
from hybridagi_steps.errors import StepsError

SLOTS = 6
SESSIONS = ("desk", "shop")
LIMIT = 100_000
"""More steps than one history has."""


class Notes:
    """The notes of one process, in a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def around(self, operation: str, work: Callable[[], Any], **arguments: Any) -> None:
        """Run one operation between its two notes."""
        name = arguments.pop("name")
        self._write(name=name, operation=operation, began=time.monotonic_ns(), **arguments)
        try:
            result = work()
        except StepsError as error:
            self._write(name=name, ended=time.monotonic_ns(), error=type(error).__name__)
            return
        self._write(name=name, ended=time.monotonic_ns(), result=result)

    def _write(self, **note: Any) -> None:
        os.write(self._file, json.dumps(note).encode() + b"\n")


def word_of(name: str) -> str:
    """Return a word that only the text of one step has."""
    return "w" + "".join(chr(ord("a") + int(c)) if c.isdigit() else "x" for c in name)


def step_of(name: str, user: str, run: str) -> AgentStep:
    """Return a step that is found by its word."""
    return AgentStep(
        id=name,
        step_type=AgentStepType.Action,
        user_id=user,
        run_id=run,
        inputs={"purpose": f"note {word_of(name)}"},
        outputs={"result": "noted"},
    )


class Worker:
    """One process of a slot."""

    def __init__(self, memory: StepMemory, notes: Notes, name: str, seed: int) -> None:
        self.memory, self.repo, self.notes, self.name = memory, memory.repository(), notes, name
        self.user = f"user {name.partition('.')[0]}"
        self.chance = random.Random(seed)
        self.batches: list[list[str]] = []
        """Ids of the steps of each batch that this process stored and has not removed."""
        self.keys: list[str] = []
        self.visible: list[str] = []
        """Ids that the last listing showed."""

    def run(self) -> None:
        """Work until the process is killed."""
        kinds = (self.add, self.commit, self.retry, self.fork, self.delete, self.purge, self.find)
        kinds += (self.read, self.search)
        weights = (5, 5, 1, 1, 2, 1, 4, 4, 4)
        number = 0
        while True:
            number += 1
            self.chance.choices(kinds, weights)[0](f"{self.name}-{number}")

    def add(self, name: str) -> None:
        """Add one to three steps at once."""
        ids = [f"{name}-{n}" for n in range(self.chance.randint(1, 3))]
        steps = [step_of(one, self.user, name) for one in ids]

        def work() -> None:
            self.memory.add(steps)
            self.batches.append(ids)

        self.notes.around("add", work, name=name, ids=ids, user=self.user)

    def commit(self, name: str) -> None:
        """Commit two messages of a session that all share, with the step behind them."""
        self._commit(name, name, self.chance.choice(SESSIONS))

    def retry(self, name: str) -> None:
        """Commit once more with a key that was used."""
        if self.keys:
            key, _, session = self.chance.choice(self.keys).partition(" ")
            self._commit(name, key, session)

    def _commit(self, name: str, key: str, session: str) -> None:
        messages = [
            Step(session_id=session, sequence=1, role=MessageRole.USER, content=f"{key} asks"),
            Step(
                session_id=session, sequence=1, role=MessageRole.ASSISTANT, content=f"{key} answers"
            ),
        ]
        step = step_of(f"{key}-0", self.user, key)

        def work() -> list[list[Any]]:
            stored = _wait(self.repo.commit(session, messages, [step], idempotency_key=key))
            self.keys.append(f"{key} {session}")
            return [[one.sequence, one.content] for one in stored]

        self.notes.around(
            "commit", work, name=name, key=key, session=session, ids=[f"{key}-0"], user=self.user
        )

    def fork(self, name: str) -> None:
        """Fork a session somewhere and read what the fork begins with."""
        session = self.chance.choice(SESSIONS)
        last = _wait(self.repo.get_step_count(session))
        if not last:
            return
        at = self.chance.randint(1, last)

        def work() -> list[list[Any]]:
            forked = _wait(fork_session(session, at, self.repo))
            return [[one.sequence, one.content] for one in _wait(self.repo.get_steps(forked))]

        self.notes.around("fork", work, name=name, session=session, at=at)

    def delete(self, name: str) -> None:
        """Delete all steps of one batch."""
        if self.batches:
            ids = self.batches.pop(self.chance.randrange(len(self.batches)))
            self.notes.around("remove", lambda: self.memory.delete(ids), name=name, ids=ids)

    def purge(self, name: str) -> None:
        """Purge the run of one batch."""
        if self.batches:
            ids = self.batches.pop(self.chance.randrange(len(self.batches)))
            run = ids[0].rpartition("-")[0]
            self.notes.around(
                "remove", lambda: bool(self.memory.purge({"run_id": run})), name=name, ids=ids
            )

    def find(self, name: str) -> None:
        """List all steps of somebody."""
        user = f"user {self.chance.randrange(SLOTS)}"

        def work() -> list[str]:
            steps = self.memory.find({"user_id": user}, limit=LIMIT).steps
            self.visible = [str(step.id) for step in steps] or self.visible
            return [str(step.id) for step in steps]

        self.notes.around("find", work, name=name, user=user)

    def read(self, name: str) -> None:
        """Read a session."""
        session = self.chance.choice(SESSIONS)

        def work() -> list[list[Any]]:
            return [[one.sequence, one.content] for one in _wait(self.repo.get_steps(session))]

        self.notes.around("read", work, name=name, session=session)

    def search(self, name: str) -> None:
        """Search for one step, of this process or another, by its word."""
        own = [one for batch in self.batches[-3:] for one in batch]
        if candidates := own + self.visible[-20:]:
            target = self.chance.choice(candidates)

            def work() -> list[str]:
                hits = self.memory.search(word_of(target), k=3, mode="lexical")
                return [str(hit.step.id) for hit in hits]

            self.notes.around("search", work, name=name, target=target)


def _wait(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)
