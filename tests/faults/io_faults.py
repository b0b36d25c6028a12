"""Writes, syncs, truncations, renames and openings fail: what is said to be stored is stored."""

from __future__ import annotations

import errno
from collections import Counter
from functools import partial

from .harness import Ledger, Setting, Tally
from .kill_loops import LANES, fill
from .operations import EVERY, Writer
from .processes import OPENS, RENAMES, SHORT, SYNCS, TRUNCATES, UNLINKS, WRITES, Shim, ended_within

KINDS = {
    "write": WRITES,
    "sync": SYNCS,
    "truncate": TRUNCATES,
    "rename": RENAMES,
    "open": OPENS,
    "unlink": UNLINKS,
}
FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "short": SHORT, "EMFILE": errno.EMFILE}
PATIENCE_SECONDS = 60.0
_TRIALS_PER_MEMORY = 30


def attack(setting: Setting) -> Tally:
    """Let one call after the other fail until the time is over."""
    tally, shim, failed, errors = Tally(), Shim(), Counter[str](), Counter[str]()
    if not shim.there:
        tally.skipped = "the shim that fails system calls is not there: it needs a C compiler"
        return tally
    while setting.going_on():
        ledger = Ledger(setting, tally, LANES)
        fill(ledger)
        for _ in range(_TRIALS_PER_MEMORY):
            well = _trial(ledger, shim, failed)
            if not well or not setting.going_on():
                break
        errors += ledger.errors
    tally.figures |= {"faults met": dict(failed), "errors": dict(errors)}
    return tally


def _trial(ledger: Ledger, shim: Shim, failed: Counter[str]) -> bool:
    tally, chance = ledger.tally, ledger.setting.chance
    kind = chance.choice(list(KINDS))
    fault = chance.choice(_possible(kind))
    most = {"write": 120, "sync": 30}.get(kind, 4)
    assert ledger.folder is not None
    arm = partial(
        shim.arm,
        ledger.folder,
        KINDS[kind],
        chance.randint(1, most),
        FAULTS[fault],
        sticky=chance.random() < 0.3,
    )
    at_opening = kind == "open" or chance.random() < 0.2
    name, focus = chance.choice("ac"), chance.choice(EVERY)
    if kind in ("rename", "unlink", "open") and chance.random() < 0.7:
        name, focus = "d", chance.choice(("flush", "purge_run", "delete"))
    process_id = ledger.start(
        name,
        focus,
        before=arm if at_opening else lambda: None,
        ready=lambda _: None if at_opening else arm(),
        work=partial(_through, shim, focus),
    )
    tally.trials += 1
    what = f"fault {tally.trials} ({fault} of a {kind}{', opening' if at_opening else ''})"
    code = ended_within(process_id, PATIENCE_SECONDS)
    if code is None:
        tally.found("hung", f"{what}: the writer does not end")
    elif code == 3:
        tally.found("hung", f"{what}: writing does not go on when the disk is well again")
    elif code:
        tally.found("untyped_errors", f"{what}: the writer ended with {code}")
    met = ledger.notes / "met"
    failed[f"{kind} {fault}"] += met.exists() or at_opening
    met.unlink(missing_ok=True)
    return ledger.check(what)


def _possible(kind: str) -> list[str]:
    if kind == "write":
        return ["EIO", "ENOSPC", "short"]
    return ["EIO", "EMFILE", "ENOSPC"] if kind == "open" else ["EIO", "ENOSPC"]


def _through(shim: Shim, focus: str, writer: Writer) -> None:
    """Write until something fails; when the disk is well again, go on."""
    operations = writer.lane.endless(focus)
    error = any(writer.attempt(next(operations)) for _ in range(25))
    if shim.fired():
        (writer.folder / "met").touch()
    if not error:
        return
    again = writer.lane.new_only()
    writer.attempt(next(again))  # with the fault, if it stays
    shim.disarm()
    goes_on = [writer.attempt(next(again)) for _ in range(2)]
    if any(goes_on):
        raise SystemExit(3)
