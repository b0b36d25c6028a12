"""A filled file of the first schema is brought up to date and killed at it, again and again.

The file is made as the first version made it: of 0001_initial.sql and the statements and JSON of
that time, written down here, so that what later versions write does not matter.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hybridagi_steps

from .harness import LONGEST_ANSWER_SECONDS, Setting, Tally, opened
from .processes import (
    KILL,
    OPENS,
    RENAMES,
    SYNCS,
    TRUNCATES,
    UNLINKS,
    WRITES,
    Shim,
    ask,
    ended_within,
    fork,
    kill,
)

STEPS, SESSIONS, MESSAGES = 600, 12, 5
_SCHEMA = Path(hybridagi_steps.__file__).parent / "stores" / "sqlite" / "0001_initial.sql"
_APPLICATION_ID = 0x48535450
_KINDS = WRITES | SYNCS | RENAMES | TRUNCATES | UNLINKS | OPENS
_OLD_STEP = (
    "INSERT INTO agent_step (row, namespace, id, body, branch_id, sequence) VALUES (?,1,?,?,?,?)"
)
_OLD_MESSAGE = """INSERT INTO message (namespace, branch_id, sequence, id, said, body)
    VALUES (1, ?, ?, ?, ?, ?)"""
_KEYS = """INSERT INTO step_key SELECT * FROM step_tail WHERE row <= 300"""


def attack(setting: Setting) -> Tally:
    """Kill migrations at one system call after the other, then at random moments."""
    tally, shim = Tally(), Shim()
    first = setting.new_folder("first") / "steps.db"
    old_file(first)
    right = _content_of_old()
    call = most = total = 0
    while setting.going_on() or tally.trials < 3:
        path = Path(setting.new_address())
        shutil.copy(first, path)
        if tally.trials % 4 == 3:  # again and again, until it is whole
            kills = 0
            while kills < 60 and _killed(setting, shim, path, setting.chance.randint(1, 80)):
                kills += 1
            what = f"migration {tally.trials} killed {kills} times"
        else:
            call += 1
            kills = int(_killed(setting, shim, path, call))
            what = f"migration {tally.trials} killed at system call {call}"
            call *= kills  # it had fewer calls: begin again at the first
        tally.trials += 1
        total, most = total + kills, max(most, kills)
        _check(tally, path, right, what)
        shutil.rmtree(path.parent)
    tally.figures = {"kills": total, "most kills of one file": most}
    return tally


def _killed(setting: Setting, shim: Shim, path: Path, nth: int) -> bool:
    """Open a file and be killed at the nth call, or soon; return whether it was killed."""

    def migrate() -> None:
        if shim.there:
            shim.arm(path.parent, _KINDS, nth, KILL)
        with opened(str(path), "default", "hashing") as memory:
            memory.stats()

    process_id = fork(migrate)
    if not shim.there:
        time.sleep(setting.chance.uniform(0, 0.05))
        kill(process_id)
        return True
    return ended_within(process_id, LONGEST_ANSWER_SECONDS) != 0


def _check(tally: Tally, path: Path, right: dict[str, Any], what: str) -> None:
    """Open the file for good: all that was in it is there."""
    outcome = ask(lambda: _content(path), LONGEST_ANSWER_SECONDS)
    if not tally.outcome(outcome, what):
        if outcome.typed:
            tally.found("lost", f"{what}: the old file cannot be opened: {outcome.error}")
        return
    tally.checked += STEPS + SESSIONS * MESSAGES
    found = outcome.value
    for problem in found["verify"]:
        tally.found("half_written", f"{what}: verify says {problem}")
    for part in ("steps", "sessions"):
        gone = right[part].keys() - found[part].keys()
        if gone:
            tally.found("lost", f"{what}: {len(gone)} {part}, such as {min(gone)}", len(gone))
        for name in right[part].keys() & found[part].keys():
            if right[part][name] != found[part][name]:
                tally.found("silently_changed", f"{what}: {name} is {found[part][name]!r:.80}")
    if found["hit"] != ["old 450"]:
        tally.found("lost", f"{what}: search finds {found['hit']}, not step 450")


def _content(path: Path) -> dict[str, Any]:
    """Return what the library reads in a file."""
    with opened(str(path), "default", "hashing") as memory:
        hits = memory.search("word450", 1, mode="lexical")
        return {
            "verify": memory.verify(),
            "steps": {
                str(step.id): [step.outputs, step.run_id, step.hop] for step in memory.iter_steps()
            },
            "sessions": asyncio.run(_sessions(memory)),
            "hit": [str(hit.step.id) for hit in hits],
        }


async def _sessions(memory: Any) -> dict[str, list[Any]]:
    repo = memory.repository()
    return {
        session.session_id: [
            [one.sequence, one.content] for one in await repo.get_steps(session.session_id)
        ]
        for session in await repo.sessions(limit=10**6)
    }


def _content_of_old() -> dict[str, Any]:
    return {
        "steps": {f"old {n}": [{"text": _text(n)}, f"run {n // 10}", n % 10] for n in range(STEPS)},
        "sessions": {
            f"session {n}": [[m, f"said {n} {m}"] for m in range(1, MESSAGES + 1)]
            for n in range(SESSIONS)
        },
    }


def _text(number: int) -> str:
    return f"word{number} " + "refund order ключ 🙂 " * (number % 40)


def old_file(path: Path) -> None:
    """Write a file as the first version did."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA.read_text("utf-8"))
        connection.execute("BEGIN")
        connection.execute("INSERT INTO meta VALUES ('store_id', 'f00d'), ('row_floor', 0)")
        connection.execute(
            "INSERT INTO namespace (id, name, embedder, dimension) "
            "VALUES (1, 'default', 'hashing/256@1', 256)"
        )
        for number in range(SESSIONS):
            _old_session(connection, number)
        for number in range(STEPS):
            values = (number + 1, f"old {number}", _old_body(number), None, None)
            connection.execute(_OLD_STEP, values)
        connection.execute(_KEYS)
        connection.execute("UPDATE namespace SET keys_through = 300")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("COMMIT")


def _old_session(connection: sqlite3.Connection, number: int) -> None:
    when, branch = _old_time(number), number + 1
    connection.execute(
        "INSERT INTO branch VALUES (?, 1, ?, NULL, 0, 9223372036854775807, 1, 'start', ?)",
        (branch, f"session {number}", when),
    )
    connection.execute(
        "INSERT INTO session VALUES (1, ?, ?, ?, ?, NULL, NULL)",
        (f"session {number}", branch, when, when),
    )
    for sequence in range(1, MESSAGES + 1):
        role = "user" if sequence % 2 else "assistant"
        said = json.dumps({"role": role, "content": f"said {number} {sequence}"})
        values = (branch, sequence, f"m {number} {sequence}", said, f'{{"created_at":"{when}"}}')
        connection.execute(_OLD_MESSAGE, values)


def _old_body(number: int) -> str:
    body: dict[str, Any] = {
        "id": f"old {number}",
        "parent_id": f"old {number - 1}" if number % 10 else None,
        "hop": number % 10,
        "step_type": "Action",
        "inputs": {"tool": "note", "purpose": f"word{number}"},
        "outputs": {"text": _text(number)},
        "vector": None,
        "metadata": None,
        "created_at": _old_time(number),
        "session_id": None,
        "user_id": None,
        "run_id": f"run {number // 10}",
        "program_id": None,
        "scope": None,
        "status": "ok",
        "score": None,
        "metrics": None,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _old_time(number: int) -> str:
    return (datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=number)).isoformat()
