"""Files, folders and disks that cannot be written: they are read whole, writes are refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hybridagi_steps.errors import StepsError

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally, opened
from .operations import step_of
from .processes import Outcome, ask, fork, kill

STEPS = 120
NOBODY = 65_534


def attack(setting: Setting) -> Tally:
    """Try each way in which a file cannot be written, again and again."""
    tally, seen = Tally(), Counter[str]()
    if os.geteuid():
        tally.skipped = "only root can become another user and mount a disk"
        return tally
    os.chmod(setting.folder, 0o755)  # noqa: PTH101, S103, RUF100 - others may pass, as in any home
    while setting.going_on() or not tally.trials:
        for name, way in _WAYS.items():
            folder = setting.new_folder("memory")
            tally.trials += 1
            writer = way(folder)
            try:
                outcome = ask(partial(_as_nobody, folder / "steps.db"), LONGEST_ANSWER_SECONDS)
                _judge(tally, seen, name, outcome)
            finally:
                if writer:
                    kill(writer)
                if folder.is_mount():
                    subprocess.run(["umount", "-l", str(folder)], check=True)
    tally.figures |= dict(seen)
    return tally


def _judge(tally: Tally, seen: Counter[str], name: str, outcome: Outcome) -> None:
    if not tally.outcome(outcome, name):
        if outcome.typed:
            tally.found("lost", f"{name}: it cannot be read: {outcome.error}")
        return
    found = outcome.value
    tally.checked += STEPS
    if found["steps"] != STEPS:
        tally.found("lost", f"{name}: {STEPS - found['steps']} of {STEPS} steps are not seen")
    if found["hit"] != ["step 7"]:
        tally.found("lost", f"{name}: search finds {found['hit']}, not step 7")
    for problem in found["verify"]:
        tally.found("half_written", f"{name}: verify says {problem}")
    for told in found["refused"]:
        seen[f"refused with {told.split()[0].rstrip(':')}"] += 1
        tally.typed_errors += 1
    if found["written"]:
        tally.found("silently_changed", f"{name}: a write that cannot be kept was acknowledged")


def _filled(folder: Path) -> Path:
    path = folder / "steps.db"
    outcome = ask(partial(_fill, path, STEPS), LONGEST_ANSWER_SECONDS)
    assert not outcome.error, outcome.error
    _shared(folder)
    return path


def _fill(path: Path, count: int, first: int = 0) -> None:
    with opened(str(path), "default", "hashing") as memory:
        names = range(first, first + count)
        memory.add([step_of(f"step {n}", f"word{n} said", "r") for n in names])
        memory.search("word7")


def _shared(folder: Path) -> None:
    """Let everybody read what is there, and nobody else write it."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def _closed_file(folder: Path) -> int:
    _filled(folder)
    return 0


def _folder_of_others(folder: Path) -> int:
    path = _filled(folder)
    os.chown(path, NOBODY, NOBODY)
    return 0


def _bare_file(folder: Path) -> int:
    path = _filled(folder)
    for file in folder.iterdir():
        if file != path:
            file.unlink()
    return 0


def _without_rights(folder: Path) -> int:
    path = _filled(folder)
    shutil.chown(folder, NOBODY)
    path.chmod(0o444)
    return 0


def _disk(folder: Path) -> int:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    _filled(folder)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    return 0


def _being_written(folder: Path) -> int:
    """Half of the steps are only in the log of a process that has the file open."""
    path = folder / "steps.db"
    reading, writing = os.pipe()

    def keep() -> None:
        with opened(str(path), "default", "hashing") as memory:
            for n in range(STEPS):
                memory.add(step_of(f"step {n}", f"word{n} said", "r"))
            os.write(writing, b"!")
            while True:
                time.sleep(1)

    process_id = fork(keep)
    assert os.read(reading, 1) == b"!"
    os.close(reading)
    os.close(writing)
    _shared(folder)
    return process_id


_WAYS: dict[str, Callable[[Path], int]] = {
    "another user's file in another user's folder": _closed_file,
    "the same without lock and index files": _bare_file,
    "one's own file in another user's folder": _folder_of_others,
    "a file without rights in one's own folder": _without_rights,
    "a disk mounted read-only": _disk,
    "a file that its owner is writing": _being_written,
}


def _as_nobody(path: Path) -> dict[str, Any]:
    """Read a memory, and try to write it, as a user without rights."""
    # Whatever is imported later may lie where this user may not read.
    with opened(":memory:", "default", "hashing") as warm:
        warm.add(step_of("a", "a", "r"))
        warm.search("a")
        warm.find()
        asyncio.run(warm.repository().sessions())
        warm.verify()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with opened(str(path), "default", "hashing") as memory:
        answers: dict[str, Any] = {
            "steps": len(list(memory.iter_steps())),
            "hit": [str(hit.step.id) for hit in memory.search("word7", 1, mode="lexical")],
            "verify": memory.verify(),
            "refused": [],
            "written": False,
        }
        writes: list[Callable[[], Any]] = [
            lambda: memory.add(step_of("new", "new", "r")),
            lambda: memory.delete(["step 3"]),
            lambda: memory.purge({"run_id": "r"}),
        ]
        for write in writes:
            try:
                write()
                answers["written"] = True
            except StepsError as error:
                answers["refused"].append(f"{type(error).__name__}: {error}")
    return answers
