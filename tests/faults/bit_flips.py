"""Single bits of a memory's files flip: the same answers as before, or a typed error.

Flips are aimed at stored texts, at any byte of the database, at its write-ahead log, at the index
file, which is rebuilt, and at the lock file, which does not matter. What a damaged log makes SQLite
leave out cannot be had back: it counts as lost unless `verify` says so.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hybridagi_steps import StepMemory

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally, opened
from .operations import step_of
from .processes import ask

SMALL, LARGE, SESSIONS = 160, 2_100, 8
"""Steps of the memories: the large one has an index file."""
_WEIGHTS = {"a text": 8, "database": 6, "write-ahead log": 4, "index": 3, "lock": 1}
_PARTS = ("steps", "runs", "sessions", "hits")


def attack(setting: Setting) -> Tally:
    """Flip one bit after the other until the time is over."""
    tally, seen = Tally(), Counter[str]()
    flipped, changed = Counter[str](), Counter[str]()
    wholes = {steps: setting.new_folder("whole") for steps in (SMALL, LARGE)}
    right: dict[int, Any] = {}
    for steps, whole in wholes.items():
        outcome = ask(partial(_fill, whole, steps), 2 * LONGEST_ANSWER_SECONDS)
        assert not outcome.error, outcome.error
        right[steps] = outcome.value
    while setting.going_on() or tally.trials < 3:
        where = setting.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        steps = LARGE if where == "index" else SMALL
        copy = Path(shutil.copytree(wholes[steps], setting.folder / "flipped"))
        place = _flip(copy, where, setting.chance)
        what = f"flip {tally.trials}, bit {place[1]} of byte {place[0]} of the {where}"
        flipped[where] += 1
        tally.trials += 1
        outcome = ask(partial(_answers, copy / "steps.db"), LONGEST_ANSWER_SECONDS)
        if tally.outcome(outcome, what):
            tally.checked += steps
            compare(tally, right[steps], outcome.value, what, where, changed)
            seen["by verify"] += bool(outcome.value["verify"])
            seen["by a typed error of one question"] += outcome.value["refused"]
        elif outcome.typed:
            seen["by a typed error"] += 1
        shutil.rmtree(copy)
    tally.figures |= {"flipped": dict(flipped), "damage seen": dict(seen)}
    tally.figures["changed or lost unseen"] = dict(changed)
    return tally


def compare(
    tally: Tally,
    right: dict[str, Any],
    found: dict[str, Any],
    what: str,
    where: str,
    changed: Counter[str],
) -> None:
    """Count each question that was answered differently, and without an error."""
    for part in _PARTS:
        if found[part] is None or found[part] == right[part]:
            continue
        told = "verify tells" if found["verify"] else "verify says nothing"
        fewer = len(found[part]) < len(right[part]) and all(
            one in right[part] for one in found[part]
        )
        if fewer and any("-wal is damaged" in line for line in found["verify"] or ()):
            return  # nobody can give these back, but everybody is told
        kind = "lost" if fewer else "silently_changed"
        changed[f"{part} ({where})"] += 1
        tally.found(kind, f"{what}: {'fewer' if fewer else 'other'} {part}; {told}")
        return


def _fill(folder: Path, steps: int) -> dict[str, Any]:
    """Write a memory with an index file and a write-ahead log; return what it answers."""
    path = folder / "steps.db"
    with opened(str(path), "default", "hashing") as memory:
        memory.add([_step(n) for n in range(steps)])
        for number in range(8):
            memory.score(f"run {number}", number / 20)
        asyncio.run(_say(memory))
        memory.flush()
    keeper = opened(str(path), "default", "hashing")  # who has it open keeps the log
    keeper.add([_step(n) for n in range(steps, steps + 40)])
    keeper.search("word7", mode="lexical")
    for name in ("steps.db", "steps.db-wal"):
        shutil.copy(folder / name, folder / f"{name}.kept")
    keeper.close()
    for name in ("steps.db", "steps.db-wal"):
        (folder / f"{name}.kept").replace(folder / name)
    (folder / "steps.db-shm").unlink(missing_ok=True)
    copy = Path(shutil.copytree(folder, folder.with_name("asked")))
    answers = _answers(copy / "steps.db")
    shutil.rmtree(copy)
    assert not answers["verify"], answers["verify"]
    return answers


def _step(number: int) -> Any:
    text = f"word{number} said of order{number % 97} " + "refund ticket " * (number % 12)
    return step_of(f"step {number}", text, f"run {number // 20}")


async def _say(memory: StepMemory) -> None:
    repo = memory.repository()
    for number in range(SESSIONS):
        said = [{"role": "user", "content": f"said {number} {n}"} for n in range(5)]
        await repo.append(f"session {number}", said)


def _flip(folder: Path, where: str, chance: random.Random) -> tuple[int, int]:
    """Flip one bit; return the byte and the bit."""
    names = {"write-ahead log": "steps.db-wal", "lock": "steps.db.lock"}
    path = folder / names.get(where, "steps.db")
    if where == "index":
        path = next(folder.glob("steps.db.????????.index"))
    content = bytearray(path.read_bytes() or b"\0")
    at = chance.randrange(len(content))
    if where == "a text":
        at = _in_text(content, chance)
    bit = chance.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return at, bit


def _in_text(content: bytearray, chance: random.Random) -> int:
    """Return a place inside what a step or a message says."""
    word = chance.choice((b"refund ticket", b"said of order", b'"content":"said'))
    at = content.find(word, chance.randrange(len(content)))
    return (at if at >= 0 else content.find(word)) + chance.randrange(len(word))


def _answers(path: Path) -> dict[str, Any]:
    """Ask everything; what is refused with an error of the library is None."""
    from hybridagi_steps.errors import StepsError

    answers: dict[str, Any] = {"refused": False}

    def answer(name: str, ask: Callable[[], Any]) -> None:
        try:
            answers[name] = ask()
        except StepsError:
            answers[name] = None
            answers["refused"] = True

    with opened(str(path), "default", "hashing") as memory:
        answer("hits", lambda: [_hits(memory, f"word{n} order{n % 97}") for n in (3, 70, 150)])
        answer("steps", lambda: [step.model_dump(mode="json") for step in memory.iter_steps()])
        answer("runs", lambda: [[run.run_id, run.steps, run.score] for run in memory.runs()])
        answer("sessions", lambda: asyncio.run(_read(memory)))
        answer("verify", memory.verify)
    return answers


def _hits(memory: StepMemory, query: str) -> list[str]:
    return [str(hit.step.id) for hit in memory.search(query, 5)]


async def _read(memory: StepMemory) -> list[Any]:
    repo = memory.repository()
    listed = await repo.sessions()
    return [
        [one.session_id, [message.content for message in await repo.get_steps(one.session_id)]]
        for one in listed
    ]
