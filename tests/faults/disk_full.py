"""The disk fills up under a writer: a typed error, nothing half, and on it goes with new space."""

from __future__ import annotations

import os
import resource
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hybridagi_steps.errors import StepsError

from .harness import Ledger, Setting, Tally
from .operations import EVERY, Writer
from .processes import ended_within, shown

LANES = {"a": "default", "c": "alone"}
PATIENCE_SECONDS = 60.0
_TRIALS_PER_MEMORY = 6
_DISK_BYTES = 8 << 20


def attack(setting: Setting) -> Tally:
    """Fill disks until the time is over."""
    tally, errors, disks = Tally(), Counter[str](), Counter[str]()
    mounts = os.geteuid() == 0
    while setting.going_on():
        ledger = Ledger(setting, tally, LANES)
        assert ledger.folder is not None
        mounted = mounts and disks.total() % 2 == 0 and _mounted(ledger.folder)
        try:
            for _ in range(_TRIALS_PER_MEMORY):
                if not _trial(ledger, mounted) or not setting.going_on():
                    break
        finally:
            if mounted:
                subprocess.run(["umount", "-l", str(ledger.folder)], check=True)
        errors += ledger.errors
        disks["full file systems" if mounted else "memories at RLIMIT_FSIZE"] += 1
    tally.figures |= {**disks, "errors": dict(errors)}
    return tally


def _mounted(folder: Path) -> bool:
    """Mount a small disk; tell whether that is allowed here."""
    options = ["-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
    return subprocess.run(["mount", *options], check=False, capture_output=True).returncode == 0


def _trial(ledger: Ledger, mounted: bool) -> bool:
    tally, chance = ledger.tally, ledger.setting.chance
    folder = ledger.folder
    assert folder is not None
    name, focus = chance.choice(list(LANES)), chance.choice(EVERY)
    free = chance.randrange(2_000, 300_000)
    narrow, widen = _ballast(folder, free) if mounted else _limit(folder, free)
    process_id = ledger.start(
        name, focus, ready=lambda _: narrow(), work=partial(_through, widen, focus)
    )
    tally.trials += 1
    what = f"full disk {tally.trials} ({'file system' if mounted else 'RLIMIT_FSIZE'}, {focus})"
    code = ended_within(process_id, PATIENCE_SECONDS)
    if code is None:
        tally.found("hung", f"{what}: the writer does not end")
    elif code == 3:
        tally.found("hung", f"{what}: writing does not go on when there is space again")
    elif code == 4:
        why = (ledger.notes / "why").read_text()
        tally.found("untyped_errors", f"{what}: reading there: {why}")
    elif code:
        tally.found("untyped_errors", f"{what}: the writer ended with {code}")
    (folder / "ballast").unlink(missing_ok=True)
    refused = ledger.notes / "refused"
    tally.typed_errors += refused.exists()
    tally.figures["reads refused there"] = (
        tally.figures.get("reads refused there", 0) + refused.exists()
    )
    refused.unlink(missing_ok=True)
    return ledger.check(what)


def _ballast(folder: Path, free: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return how to fill a disk up to some bytes, and how to free them."""
    ballast = folder / "ballast"

    def fill() -> None:
        found = os.statvfs(folder)
        size = max(found.f_bavail * found.f_frsize - free, 0)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))

    return fill, lambda: ballast.unlink()


def _limit(folder: Path, free: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return how to limit the size of files to little more than they have, and how to lift that."""

    def limit() -> None:
        largest = max((file.stat().st_size for file in folder.iterdir()), default=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + free, resource.RLIM_INFINITY))

    endless = resource.RLIM_INFINITY
    return limit, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (endless, endless))


def _through(widen: Callable[[], None], focus: str, writer: Writer) -> None:
    """Write until the disk is full, read there, and go on when it is not."""
    operations = writer.lane.endless(focus)
    for _ in range(4_000):
        if writer.attempt(next(operations)):
            break
    else:
        return
    try:
        writer.memory.find(limit=3)
        writer.memory.search("anything", 3, mode="lexical")
    except StepsError:
        (writer.folder / "refused").touch()
    except Exception as error:
        (writer.folder / "why").write_text(shown(error))
        raise SystemExit(4) from error
    widen()
    again = writer.lane.new_only()
    goes_on = [writer.attempt(next(again)) for _ in range(2)]
    if any(goes_on):
        raise SystemExit(3)
