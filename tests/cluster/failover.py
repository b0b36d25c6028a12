"""A primary is killed under load and its standby promoted: who wrote goes on, and what is lost.

Writers are threads, each with a memory of its own that was opened with both servers' addresses;
nobody opens it anew. A write whose connection ended in the middle is done again: a step that is
there says so by its id, a message by its key. Without synchronous replication the standby is cut
off some writes before the kill, since on one machine it would hardly ever be behind.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.errors import DuplicateStepError, StorageError
from hybridagi_steps.records.agent_step import AgentStepType
from tests.cluster.postgres import PostgresServer, address_of, standby_of, wait_for

BEFORE, BEHIND, AFTER = 120, 60, 40
"""Acknowledged writes of all together before the standby is cut off, and while it is; of each
writer after the takeover."""
_TRIES = 5
"""How often a writer tries one step before it gives up."""


@dataclass
class Outcome:
    """What became of the writes."""

    acknowledged: int
    lost: int
    """Acknowledged, and not there after the takeover."""
    differing: int
    """Writers whose search answers otherwise than one that was opened after the takeover."""
    untold: int
    """There after the takeover, though no writer was told so in the end."""
    errors: Counter[str]
    """What writers were told when a call failed, by class."""
    seconds: float
    """From the kill to the first write acknowledged after it."""
    damage: list[str]
    """What `verify` names on the promoted server, and sessions with gaps or repeats."""

    def __str__(self) -> str:
        errors = ", ".join(f"{count} {name}" for name, count in self.errors.items()) or "none"
        return (
            f"{self.acknowledged:,} writes acknowledged, {self.lost} of them lost, writes again "
            f"after {self.seconds:.1f} s; failed calls: {errors}"
        )


@dataclass
class Writer:
    """Appends until it is told to stop."""

    name: str
    memory: StepMemory
    stop: threading.Event
    acknowledged: list[str] = field(default_factory=list[str])
    times: list[float] = field(default_factory=list[float])
    errors: Counter[str] = field(default_factory=Counter[str])
    gave_up: str = ""

    def work(self) -> None:
        """Write steps and messages in turn; search now and then, so that there is an index."""
        repository = self.memory.repository()
        for number in itertools.count():
            if self.stop.is_set() or self.gave_up:
                return
            text = f"{self.name} refunds ticket {number}"
            if number % 3:
                step = AgentStep(step_type=AgentStepType.Action, inputs={"purpose": text})
                self._store(partial(self._add, step))
            else:
                message: list[Any] = [{"role": "user", "content": text}]
                append = partial(repository.append, self.name, message, idempotency_key=text)
                self._store(lambda append=append: asyncio.run(append())[0].id)
            if number % 10 == 0:
                self._search(text)

    def _add(self, step: AgentStep) -> str:
        with suppress(DuplicateStepError):  # the try before was stored, and only its answer lost
            self.memory.add(step)
        return str(step.id)

    def _store(self, write: Callable[[], str]) -> None:
        for _ in range(_TRIES):
            try:
                self.acknowledged.append(write())
            except StorageError as error:
                self.errors[type(error).__name__] += 1
                continue
            self.times.append(time.monotonic())
            return
        self.gave_up = f"{self.name} could not write in {_TRIES} tries: {dict(self.errors)}"

    def _search(self, text: str) -> None:
        try:
            self.memory.search(text, k=3)
        except StorageError as error:
            self.errors[type(error).__name__] += 1


def failover(*, synchronous: bool, writers: int = 3) -> Outcome:
    """Kill a primary under load, promote its standby, and count.

    Args:
        synchronous: Whether commits wait until the standby has them on disk.
        writers: How many write at a time.
    """
    with ExitStack() as stack:
        primary = PostgresServer("primary")
        stack.callback(primary.close)
        standby = standby_of(primary, "standby")
        stack.callback(standby.close)
        if synchronous:
            primary.wait_for_commits_of(standby)
        stop, everyone = threading.Event(), list[Writer]()
        for number in range(writers):
            memory = StepMemory(address_of([primary, standby]), embedder="hashing")
            stack.callback(memory.close)
            everyone.append(Writer(f"writer {number}", memory, stop))
        threads = [threading.Thread(target=writer.work) for writer in everyone]
        stack.callback(_ended, threads, stop)
        for thread in threads:
            thread.start()
        killed = _taken_over(everyone, primary, standby, synchronous=synchronous)
        _ended(threads, stop)
        return _counted(everyone, standby, killed)


def _taken_over(
    writers: list[Writer], primary: PostgresServer, standby: PostgresServer, *, synchronous: bool
) -> float:
    """Kill and promote under load; return when it was killed."""
    _wait_for_writes(writers, BEFORE)
    if not synchronous:
        standby.stop_receiving()
        _wait_for_writes(writers, _written(writers) + BEHIND)
    primary.kill()
    killed = time.monotonic()
    standby.promote()
    before = [len(writer.acknowledged) for writer in writers]

    def all_write_again() -> bool:
        assert not (gave_up := [w.gave_up for w in writers if w.gave_up]), gave_up
        return all(
            len(w.acknowledged) >= count + AFTER for w, count in zip(writers, before, strict=True)
        )

    wait_for(all_write_again, "every writer to write again")
    return killed


def _counted(writers: list[Writer], standby: PostgresServer, killed: float) -> Outcome:
    acknowledged = {step_id for writer in writers for step_id in writer.acknowledged}
    with StepMemory(standby.address(), embedder="hashing") as fresh:
        there, damage = {str(step.id) for step in fresh.iter_steps()}, fresh.verify()
        for writer in writers:
            said = asyncio.run(fresh.repository().get_steps(writer.name))
            there |= {message.id for message in said}
            if [message.sequence for message in said] != [*range(1, len(said) + 1)]:
                damage.append(f"the session of {writer.name} has gaps")
            if len({str(message.content) for message in said}) < len(said):
                damage.append(f"the session of {writer.name} says something twice")
        right, *answers = (_scores(m, len(there)) for m in (fresh, *(w.memory for w in writers)))
    return Outcome(
        acknowledged=len(acknowledged),
        lost=len(acknowledged - there),
        differing=sum(answer != right for answer in answers),
        untold=len(there - acknowledged),
        errors=sum((writer.errors for writer in writers), Counter[str]()),
        seconds=min(t for writer in writers for t in writer.times if t > killed) - killed,
        damage=damage,
    )


def _scores(memory: StepMemory, count: int) -> dict[str, float]:
    """Return what a search that finds everything says of each step."""
    hits = memory.search("writer 1 refunds ticket 7", k=count)
    return {str(hit.step.id): round(hit.score, 4) for hit in hits}


def _written(writers: list[Writer]) -> int:
    return sum(len(writer.acknowledged) for writer in writers)


def _wait_for_writes(writers: list[Writer], count: int) -> None:
    wait_for(lambda: _written(writers) >= count, f"{count} writes")


def _ended(threads: list[threading.Thread], stop: threading.Event) -> None:
    stop.set()
    for thread in threads:
        if thread.ident is not None:
            thread.join()
