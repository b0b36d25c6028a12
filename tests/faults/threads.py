"""Threads and tasks of one process share a memory: each finds what it wrote, none what is gone.

Eight threads do all that a memory does, each under names of its own, half of them through a second
memory of the same file; how often Python changes between them is another each round. Now and then
one sleeps right after it has asked the store, so that others work between two looks of its. When
all is quiet a memory that is opened anew must answer as those do.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from hybridagi_steps import ContextBuilder, StepMemory
from hybridagi_steps.errors import StepsError

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally, opened
from .operations import step_of
from .processes import ask, shown

THREADS = 8
TASKS = 6
"""Appends, or searches, of one thread at once."""
ROUND_SECONDS = 1.5
SWITCH_SECONDS = (1e-5, 1e-4, 1e-3, 5e-3)
"""After which Python lets another thread go on."""
MODES: tuple[Any, ...] = ("hybrid", "lexical", "dense")
AIMS: tuple[Any, ...] = (None, None, "next", "episode", "tool")
LOOKS = (
    *("frontier", "identity", "changes", "pending_texts", "pending_vectors", "save_derived"),
    *("read", "get", "rows", "hidden_rows", "session_state", "messages", "step_keys", "mend"),
)
"""What a memory asks its store, after which a thread may sleep."""
ASLEEP, LONGEST_SLEEP_SECONDS = 0.1, 0.01
SHARED = "shared"
"""The session that all append to."""

Found = list[tuple[str, str]]
"""What was wrong: the forbidden count, and how."""


def attack(setting: Setting) -> Tally:
    """Work in rounds, each on a memory of its own, until the time is over."""
    tally, number = Tally(), 0
    while setting.going_on() or not number:
        number += 1
        in_memory = setting.database == "sqlite" and number % 3 == 0
        address = ":memory:" if in_memory else setting.new_address()
        work = partial(_round, address, number % 2 == 0, setting.chance.randrange(1 << 60))
        outcome = ask(work, LONGEST_ANSWER_SECONDS)
        if tally.outcome(outcome, f"round {number}"):
            tally.trials += outcome.value["calls"]
            tally.checked += outcome.value["checked"]
            tally.typed_errors += outcome.value["typed"]
            for kind, what in outcome.value["found"]:
                tally.found(kind, f"round {number} ({address}): {what}")
    return tally


class Worker:
    """One thread: does things by chance, and looks for what it did right after."""

    def __init__(self, memory: StepMemory, name: str, seed: int) -> None:
        self.memory, self.name, self.chance = memory, name, random.Random(seed)
        self.words: dict[str, tuple[str, str]] = {}
        """Of each step that is there the word it is found by, and its run."""
        self.said: list[str] = []
        self.calls = self.checked = self.typed = 0
        self.found: Found = []
        self._made = 0

    def work(self, ends: float) -> None:
        """Go on until then."""
        calls = [
            *(*[self.add] * 12, self.update, self.update, self.delete, self.purge, self.score),
            *(self.revoke, self.say, self.say, self.many, self.build, self.read, self.keep),
        ]
        while time.monotonic() < ends:
            call = self.chance.choice(calls)
            self.calls += 1
            try:
                call()
            except StepsError as error:
                self.typed += 1
                self.wrong("typed", call, shown(error))
            except Exception as error:  # noqa: BLE001, RUF100 - what is counted
                self.wrong("untyped_errors", call, shown(error))

    def wrong(self, kind: str, call: Callable[[], None], what: str) -> None:
        """Take note of what may not be."""
        self.found.append((kind, f"{call.__name__} of thread {self.name}: {what}"))

    def add(self) -> None:
        """Add one step, or several."""
        run, ids = self._word(), [self._word() for _ in range(self.chance.choice((1, 1, 3)))]
        words = [self._word() for _ in ids]
        self.memory.add([step_of(*each, run) for each in zip(ids, words, strict=True)])
        self.words |= {step_id: (word, run) for step_id, word in zip(ids, words, strict=True)}
        self._sees(ids[-1], self.add)

    def update(self) -> None:
        """Replace a step: it is found by what it says now, and not by what it said."""
        if (step_id := self._some()) is None:
            return
        (old, run), new = self.words[step_id], self._word()
        self.memory.update(step_of(step_id, new, run))
        self.words[step_id] = new, run
        self._sees(step_id, self.update)
        self._sees_no(old, step_id, self.update)

    def delete(self) -> None:
        """Delete a step."""
        if (step_id := self._some()) is None:
            return
        self.memory.delete(step_id)
        word, _ = self.words.pop(step_id)
        self._sees_no(word, step_id, self.delete)
        if self.memory.exist(step_id):
            self.wrong("leaked", self.delete, f"{step_id} is still there")

    def purge(self) -> None:
        """Erase a run."""
        if (step_id := self._some()) is None or self.chance.random() < 0.7:
            return
        _, run = self.words[step_id]
        self.memory.purge({"run_id": run})
        gone = [name for name, (_, of) in self.words.items() if of == run]
        for name in gone:
            word, _ = self.words.pop(name)
            self._sees_no(word, name, self.purge)

    def score(self) -> None:
        """Score a run, and look among those of such a score."""
        if (step_id := self._some()) is None:
            return
        value = round(self.chance.uniform(0.2, 1), 6)
        self.memory.score(self.words[step_id][1], value)
        self._sees(step_id, self.score, where={"min_score": value})
        self._sees_no(self.words[step_id][0], step_id, self.score, {"min_score": value + 0.001})

    def revoke(self) -> None:
        """Take a run out of recall, and back."""
        if (step_id := self._some()) is None:
            return
        word, run = self.words[step_id]
        revocation = self.memory.revoke({"run_id": run})
        self._sees_no(word, step_id, self.revoke)
        self.memory.reinstate(str(revocation.id))
        self._sees(step_id, self.revoke)

    def say(self) -> None:
        """Append to the shared session, several at once, and to one of this thread."""
        asyncio.run(self._say())

    async def _say(self) -> None:
        repo, words = self.memory.repository(), [self._word() for _ in range(TASKS)]
        said = [{"role": "user", "content": word} for word in words]
        await asyncio.gather(*(repo.append(SHARED, one) for one in said))
        await repo.append(self.name, said[0])
        self.said += words
        there = {str(one.content) for one in await repo.get_steps(SHARED)}
        own = await repo.get_steps(self.name)
        self.checked += TASKS + 1
        if not there.issuperset(words) or own[-1].content != words[0]:
            self.wrong("lost", self.say, f"{words} were not read")
        hits = self.memory.search(words[0], 1, where={"session_id": self.name})
        if [hit.step.purpose for hit in hits] != [words[0]]:
            self.wrong("lost", self.say, f"{words[0]} was not found")

    def many(self) -> None:
        """Search for several at once, from tasks."""
        asyncio.run(self._many())

    async def _many(self) -> None:
        known = [name for name in (self._some() for _ in range(TASKS)) if name is not None]
        await asyncio.gather(*(asyncio.to_thread(self._sees, name, self.many) for name in known))

    def build(self) -> None:
        """Build a context: it ends with what was said last."""
        asyncio.run(self.memory.repository().append(self.name, {"role": "user", "content": "so"}))
        built = ContextBuilder(self.memory, budget=1_000).build(session_id=self.name)
        if built.messages[-1]["content"] != "so":
            self.wrong("lost", self.build, f"it ends with {built.messages[-1]}")

    def read(self) -> None:
        """Read what there is, by id, by filter and by number."""
        if (step_id := self._some()) is None:
            return
        word, run = self.words[step_id]
        [step] = self.memory.get_steps(step_id, vectors=True)
        names = {str(each.id) for each in self.memory.run_steps(run)}
        if step.purpose != word or step.vector is None or step_id not in names:
            self.wrong("lost", self.read, f"{step_id} was read as {step.purpose}, {names}")
        self.memory.stats()

    def keep(self) -> None:
        """Bring the index up to date."""
        self.memory.flush()

    def _word(self) -> str:
        self._made += 1
        return f"w{self.name}x{self._made:x}z"

    def _some(self) -> str | None:
        return self.chance.choice([*self.words]) if self.words else None

    def _sees(self, step_id: str, call: Callable[[], None], where: Any = None) -> None:
        word, _ = self.words[step_id]
        mode, aim = self.chance.choice(MODES), self.chance.choice(AIMS)
        query: Any = self.memory.get_steps(step_id)[0] if mode == "dense" or aim == "next" else word
        expand: Any = self.chance.choice((None, "parents", "following", "program"))
        k = 1 if aim is None else 50  # with an aim others may come first
        asked: dict[str, Any] = {"mode": mode, "aim": aim, "expand": expand, "where": where}
        hits = self.memory.search(query, k, **asked)
        self.checked += 1
        if aim not in ("next", "tool") and step_id not in [str(hit.step.id) for hit in hits]:
            self.wrong("lost", call, f"{step_id} is not found as {word}, {asked}: {hits[:1]}")

    def _sees_no(
        self, word: str, step_id: str, call: Callable[[], None], where: Any = None
    ) -> None:
        hits = self.memory.search(word, 50, mode=self.chance.choice(MODES), where=where)
        self.checked += 1
        known = where is not None or word not in [self.words.get(step_id, ("",))[0]]
        if any(str(h.step.id) == step_id and h.step.purpose == word for h in hits) and known:
            self.wrong("leaked", call, f"{step_id} is found as {word}, {where}")


def _sleepy(memory: StepMemory, chance: random.Random) -> None:
    """Let threads sleep now and then when the store of a memory has answered."""
    store = memory.repository().store

    def slept(look: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*given: Any, **named: Any) -> Any:
            found = look(*given, **named)
            if chance.random() < ASLEEP:
                time.sleep(chance.random() * LONGEST_SLEEP_SECONDS)
            return found

        return answer

    for name in LOOKS:
        if (look := getattr(store, name, None)) is not None:
            setattr(store, name, slept(look))


def _round(address: str, twice: bool, seed: int) -> dict[str, Any]:
    """Let threads work on a memory, and compare its answers when they are done."""
    chance, found, before = random.Random(seed), Found(), sys.getswitchinterval()
    with ExitStack() as open_until:
        first = open_until.enter_context(opened(address, "default", "hashing"))
        memories = [first]
        if twice and address != ":memory:":
            memories.append(open_until.enter_context(opened(address, "default", "hashing")))
        workers = [
            Worker(memories[n % len(memories)], chr(97 + n), chance.randrange(1 << 60))
            for n in range(THREADS)
        ]
        for memory in memories:
            _sleepy(memory, chance)
        ends = time.monotonic() + ROUND_SECONDS
        threads = [threading.Thread(target=worker.work, args=(ends,)) for worker in workers]
        sys.setswitchinterval(chance.choice(SWITCH_SECONDS))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
        for worker in workers:
            found += worker.found
        words = [word for worker in workers for word, _ in worker.words.values()]
        asked = chance.sample(words, min(12, len(words)))
        if address != ":memory:":
            with opened(address, "default", "hashing") as fresh:
                expected = _answers(fresh, asked)
            found += [
                ("silently_changed", f"searches for {asked} answer as nobody else's")
                for memory in memories
                if _answers(memory, asked) != expected
            ]
        said = [word for worker in workers for word in worker.said]
        found += _beyond(first, said)
    return {
        "calls": sum(worker.calls for worker in workers),
        "checked": sum(worker.checked for worker in workers),
        "typed": sum(worker.typed for worker in workers),
        "found": [each for each in found if each[0] != "typed"][:20],
        "typed_found": [each for each in found if each[0] == "typed"][:20],
    }


def _answers(memory: StepMemory, words: list[str]) -> list[list[tuple[str, float]]]:
    """Return what searches find, with scores as far as they must be equal."""
    return [
        [(str(hit.step.id), round(hit.score, 9)) for hit in memory.search(word, 10, mode=mode)]
        for word in words
        for mode in MODES
    ]


def _beyond(memory: StepMemory, said: list[str]) -> Found:
    """Return what is not whole: the shared session, or what `verify` names."""
    told = asyncio.run(memory.repository().get_steps(SHARED)) if said else []
    found = [("half_written", f"verify says {problem}") for problem in memory.verify()]
    if [one.sequence for one in told] != [*range(1, len(said) + 1)]:
        found.append(("half_written", "the shared session has gaps or duplicates"))
    if {str(one.content) for one in told} != {*said}:
        found.append(("lost", f"{len(said) - len(told)} messages of the shared session"))
    return found
